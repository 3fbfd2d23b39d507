"""Build everything that is generated: `python -m tools.build [STEM…] [--check] [--force]`."""

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools import coverage, expected, lint, normalise, percent, quizzes
from tools import notebook as files
from tools.assemble import assemble
from tools.check import check
from tools.project import EXECUTED, BuildError, Project, Target

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Result:
    """What the build did with one notebook: "unchanged", "refreshed" (no execution) or "executed", and notes."""

    target: Target
    action: str
    seconds: float
    notes: tuple[str, ...] = ()


def existing(path: Path) -> dict | None:
    """The notebook at `path`, or None when there is none that can be read."""
    try:
        return files.load(path)
    except (OSError, ValueError):
        return None


def reusable(old: dict | None, fresh: dict) -> bool:
    """Whether the outputs of `old` are those of `fresh`: same source, modules and code, and outputs untouched."""
    if old is None:
        return False
    provenance = old.get("metadata", {}).get("ampedu", {})
    same = all(provenance.get(key) == fresh["metadata"]["ampedu"][key] for key in ("source_sha256", "modules"))
    code = [[(c["id"], c["source"]) for c in nb["cells"] if c["cell_type"] == "code"] for nb in (old, fresh)]
    return same and code[0] == code[1] and provenance.get("outputs_sha256") == normalise.digest(old)


def with_outputs(fresh: dict, executed: dict) -> dict:
    """`fresh` with the normalised outputs of `executed`, cell by cell."""
    pairs = zip(fresh["cells"], executed["cells"], strict=True)
    count = 0
    for cell, done in pairs:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = normalise.outputs(done["outputs"], count)
    fresh["metadata"]["ampedu"]["outputs_sha256"] = normalise.digest(fresh)
    return fresh


def execute(project: Project, target: Target, fresh: dict, lines: list[int]) -> dict:
    """Run `fresh` and return it with outputs. Raises BuildError that names the line of the source and the cure."""
    from tools import execute as runner

    source = project.name(target.source)
    try:
        done = runner.run(fresh, project.root)
    except runner.CellError as error:
        raise BuildError(f"{_place(source, fresh, lines, error.index, error.line)}: {error.text}") from None
    except runner.NotebookTimeout as error:
        raise BuildError(f"{source}: {error}; make the notebook shorter or find the cell that does not end.") from None
    except RuntimeError as error:
        raise BuildError(f"{source}: {error}") from None
    built = with_outputs(fresh, done)
    problems = []
    for index, cell in enumerate(built["cells"]):
        for problem in normalise.problems(cell.get("outputs", [])):
            problems.append(f"{_place(source, fresh, lines, index, 1)}: {problem}")
    if problems:
        raise BuildError("\n".join(problems))
    return built


def build_notebook(project: Project, target: Target, force: bool = False) -> Result:
    """Bring one notebook up to date; executes it only when it must (or with `force`)."""
    start = time.perf_counter()
    script = percent.read(target.source, project.name(target.source))
    fresh, lines = assemble(project, target, script)
    action, notes = "refreshed", []
    if target.kind in EXECUTED:
        old = existing(target.path)
        reuse = reusable(old, fresh)
        if reuse and not force:
            fresh = with_outputs(fresh, old)
        else:
            action, fresh = "executed", execute(project, target, fresh, lines)
            if reuse:
                notes = _unexpected_changes(project, target, old, fresh)
    changed = files.write_text(target.path, files.dumps(fresh))
    if action == "refreshed" and not changed:
        action = "unchanged"
    return Result(target, action, time.perf_counter() - start, tuple(notes))


def _place(source: str, notebook: dict, lines: list[int], index: int, line: int) -> str:
    ident = notebook["cells"][index]["id"]
    if not lines[index]:
        return f"{source}, setup cell ({ident})"
    return f"{source}, line {lines[index] + line - 1} (cell {ident})"


def _unexpected_changes(project: Project, target: Target, old: dict, new: dict) -> list[str]:
    """Notes on cells whose outputs changed in a forced run although they are not tagged `measured`."""
    notes = []
    for before, after in zip(old["cells"], new["cells"], strict=True):
        if before.get("outputs") != after.get("outputs") and "measured" not in after["metadata"].get("tags", []):
            notes.append(
                f"{project.name(target.path)}, cell {after['id']}: the outputs differ from the stored ones; "
                'make the cell reproducible or tag it "measured".'
            )
    return notes


def build_data(project: Project, stems: tuple[str, ...], force: bool) -> list[str]:
    """Quizzes and expected data, which notebooks read; prints one line each and returns the problems."""
    jobs = []
    for source in quizzes.sources(project):
        jobs.append((source.stem, quizzes.target(project, source), partial(_build_quiz, project, source)))
    for stem in expected.stems(project):
        path = expected.folder(project) / f"{stem}.json"
        jobs.append((stem, path, partial(expected.build, project, stem, force)))
    problems = []
    for stem, path, job in jobs:
        if stems and stem not in stems:
            continue
        start = time.perf_counter()
        try:
            action = job()
        except BuildError as error:
            problems += str(error).split("\n")
            action = "failed"
        print(f"{action:<11} {project.name(path)}  {time.perf_counter() - start:.1f} s", flush=True)
    return problems


def build(project: Project, stems: tuple[str, ...] = (), force: bool = False) -> list[str]:
    """Build everything (or what belongs to `stems`), print one line each, and return the problems."""
    targets = project.targets(stems)
    problems = build_data(project, stems, force)
    for target in targets:
        try:
            result = build_notebook(project, target, force)
        except BuildError as error:
            problems += [problem for problem in str(error).split("\n") if problem not in problems]
            print(f"{'failed':<11} {project.name(target.path)}", flush=True)
            continue
        print(f"{result.action:<11} {project.name(target.path)}  {result.seconds:.1f} s", flush=True)
        for note in result.notes:
            print(f"  note: {note}")
    if not stems:
        try:
            if not coverage.settled(project)[1]:  # a broken source must not take its rows off the table
                files.write_text(project.root / coverage.TARGET, coverage.render(project))
            problems += [problem for problem in coverage.problems(project) if problem not in problems]
        except BuildError as error:
            problems += str(error).split("\n")
    return problems


def _build_quiz(project: Project, source: Path) -> str:
    changed = files.write_text(quizzes.target(project, source), quizzes.render(project, source))
    return "refreshed" if changed else "unchanged"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.build", description="Build the generated files.")
    parser.add_argument("stems", nargs="*", metavar="STEM", help="build only these, for example 01_bit_layouts")
    parser.add_argument("--check", action="store_true", help="build nothing; fail on a stale or hand-edited file")
    parser.add_argument("--force", action="store_true", help="execute every notebook, also the unchanged ones")
    options = parser.parse_args(arguments)
    project, stems = Project(ROOT), tuple(options.stems)
    warnings: list[str] = []
    try:
        if options.check:
            problems, warnings = check(project)
        else:
            problems = build(project, stems, options.force)
        problems += [problem for problem in lint.lint(project, stems) if problem not in problems]
    except BuildError as error:
        problems = str(error).split("\n")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for problem in dict.fromkeys(problems):  # a lab and its solution share a source, and so its errors
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
