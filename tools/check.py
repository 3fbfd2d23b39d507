"""Compare every generated file with its source, without executing anything: `python -m tools.build --check`."""

import copy
from pathlib import Path

from tools import coverage, expected, normalise, percent, quizzes
from tools import notebook as files
from tools.assemble import assemble
from tools.project import EXECUTED, TARGET_FOLDER, BuildError, Project, Target

REBUILD = "run `make build`"


def check(project: Project) -> tuple[list[str], list[str]]:
    """(problems, warnings), one sentence each. A problem is a file that `make build` would change, or cannot build."""
    problems: list[str] = []
    warnings: list[str] = []
    for target in project.targets():
        found, warned = check_notebook(project, target)
        problems += found
        warnings += warned
    problems += _check_quizzes(project)
    found, warned = expected.check(project)
    problems += found
    warnings += warned
    problems += coverage.check(project)
    problems += orphans(project)
    return problems, warnings


def check_notebook(project: Project, target: Target) -> tuple[list[str], list[str]]:
    """Problems and warnings of one notebook."""
    name, source = project.name(target.path), project.name(target.source)
    try:
        fresh, _ = assemble(project, target, percent.read(target.source, source))
    except BuildError as error:
        return str(error).split("\n"), []
    if not target.path.exists():
        return [f"{name} is missing; {REBUILD}."], []
    try:
        text = target.path.read_text(encoding="utf-8")
        old = files.load(target.path)
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{name} is not a notebook any more (damaged or edited by hand); {REBUILD}."], []
    stored = old.get("metadata", {}).get("ampedu", {})
    if stored.get("source_sha256") != fresh["metadata"]["ampedu"]["source_sha256"]:
        return [f"{name} is stale: {source} has changed since it was built; {REBUILD}."], []
    warnings = []
    if target.kind in EXECUTED:
        warnings = _changed_modules(name, stored.get("modules", {}), fresh["metadata"]["ampedu"]["modules"])
        fresh["metadata"]["ampedu"]["modules"] = stored.get("modules", {})
    edited = _difference(old, fresh, target.kind in EXECUTED)
    if edited:
        by = "edited by hand or built with other tools"
        return [f"{name} was {by} ({edited}); put the change into {source} and {REBUILD}."], warnings
    if files.dumps(old) != text:
        return [f"{name} is not laid out as the build writes it (saved by an editor?); {REBUILD}."], warnings
    return [], warnings


def _difference(old: dict, fresh: dict, executed: bool) -> str:
    """Where a stored notebook differs from the one that its source gives, in a few words; empty when nowhere."""
    fresh = copy.deepcopy(fresh)
    for mine, stored in zip(fresh["cells"], old["cells"], strict=False):
        if executed and mine["cell_type"] == stored.get("cell_type") == "code":
            mine["outputs"], mine["execution_count"] = stored.get("outputs"), stored.get("execution_count")
        if mine != stored:
            keys = sorted(key for key in {*mine, *stored} if mine.get(key) != stored.get(key))
            return f"cell {mine['id']}: {', '.join(keys)}"
    if len(old["cells"]) != len(fresh["cells"]):
        return f"{len(old['cells'])} cells instead of {len(fresh['cells'])}"
    if executed:
        fresh["metadata"]["ampedu"]["outputs_sha256"] = normalise.digest(old)
    for key in sorted({*fresh["metadata"], *old.get("metadata", {})}):
        if fresh["metadata"].get(key) != old.get("metadata", {}).get(key):
            changed_outputs = key == "ampedu" and executed
            return "outputs" if changed_outputs else f"notebook metadata: {key}"
    if (old.get("nbformat"), old.get("nbformat_minor")) != (fresh["nbformat"], fresh["nbformat_minor"]):
        return "nbformat"
    return ""


def _changed_modules(name: str, stored: dict, now: dict) -> list[str]:
    changed = sorted(module for module in {*stored, *now} if stored.get(module) != now.get(module))
    if not changed:
        return []
    listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return [f"{name} was executed with another version of {listed}; {REBUILD} to execute it again."]


def _check_quizzes(project: Project) -> list[str]:
    problems = []
    for source in quizzes.sources(project):
        target = quizzes.target(project, source)
        try:
            text = quizzes.render(project, source)
        except BuildError as error:
            problems += str(error).split("\n")
            continue
        if not target.exists():
            problems.append(f"{project.name(target)} is missing; {REBUILD}.")
        elif target.read_text(encoding="utf-8") != text:
            problems.append(
                f"{project.name(target)} differs from {project.name(source)} (stale or edited by hand); {REBUILD}."
            )
    return problems


def orphans(project: Project) -> list[str]:
    """Generated files that no source gives."""
    wanted = {target.path for target in project.targets()}
    wanted |= {quizzes.target(project, source) for source in quizzes.sources(project)}
    wanted |= set(expected.targets(project))
    folders = [*TARGET_FOLDER.values(), "ampedu/data/quizzes", "ampedu/data/expected"]
    present: list[Path] = []
    for folder in folders:
        present += (path for path in sorted((project.root / folder).glob("*")) if path.is_file())
    return [
        f"{project.name(path)} has no source; delete it, or write its source and {REBUILD}."
        for path in present
        if path not in wanted and path.name != ".gitkeep" and not path.name.startswith(".building-")
    ]
