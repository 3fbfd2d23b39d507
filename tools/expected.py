"""Expected data of the labs: made by running solutions and mutants, and known to be current without running anything.

ampedu/data/expected/manifest.json says for every lab from which sources and modules its data were made, and holds the
hash of each file.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import execute, labs, modules, percent
from tools import notebook as files
from tools.project import SOURCE_FOLDER, BuildError, Project, parse_python, read_text
from tools.specs import path_of

TIMEOUT = 600  # seconds for the solution and all mutants of one lab
REBUILD = "run `make build`"


def folder(project: Project) -> Path:
    """Where expected data are."""
    return project.root / "ampedu" / "data" / "expected"


def stems(project: Project) -> list[str]:
    """Labs that have a source."""
    return [path.stem for path in sorted((project.root / SOURCE_FOLDER["lab"]).glob("*.py"))]


def targets(project: Project) -> list[Path]:
    """Every file that the build makes here."""
    made = [folder(project) / f"{stem}{suffix}" for stem in stems(project) for suffix in (".json", ".safetensors")]
    return [*made, folder(project) / "manifest.json"] if made else []


def inputs(project: Project, stem: str) -> dict:
    """What the data of a lab depend on: `source`, a hash of lab code, exercises and mutants, and `modules`."""
    lab = project.root / SOURCE_FOLDER["lab"] / f"{stem}.py"
    texts = solution_cells(percent.read(lab, project.name(lab)))
    for path in (path_of(project, stem), mutants_path(project, stem)):
        if not path.exists():
            raise BuildError(f"{project.name(path)} does not exist; the checks of lab {stem} need it.")
        texts.append(read_text(path, project.name(path)))
        parse_python(texts[-1], project.name(path))
    used = modules.hashes(project.root, [*texts, "import ampedu.exercises"])
    return {"source": hashlib.sha256("\0".join(texts).encode()).hexdigest(), "modules": used}


def solution_cells(script: percent.Script) -> list[str]:
    """Code cells of a lab without the checks: definitions with their solutions, imports, constants."""
    return [cell.source for cell in script.cells if cell.kind == "code" and not labs.check_of(cell)]


def mutants_path(project: Project, stem: str) -> Path:
    """The file of typical wrong answers."""
    return project.root / "sources" / "mutants" / f"{stem}.py"


def manifest(project: Project) -> dict:
    """The stored manifest; empty when there is none that can be read."""
    try:
        table = json.loads((folder(project) / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def file_hashes(project: Project, stem: str) -> dict[str, str]:
    """SHA-256 of the two files of a lab; an empty string for a missing one."""
    names = (f"{stem}.json", f"{stem}.safetensors")
    return {name: modules.digest(folder(project) / name) for name in names}


def build(project: Project, stem: str, force: bool = False) -> str:
    """Bring the data of one lab up to date; returns "unchanged" or "executed". Raises BuildError."""
    now, stored = inputs(project, stem), manifest(project)
    if not force and stored.get(stem) == now | {"files": file_hashes(project, stem)}:
        return "unchanged"
    _make(project, stem)
    stored[stem] = now | {"files": file_hashes(project, stem)}
    kept = {name: stored[name] for name in stems(project) if name in stored}
    text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
    files.write_text(folder(project) / "manifest.json", text)
    return "executed"


def check(project: Project) -> tuple[list[str], list[str]]:
    """(problems, warnings) of all expected data, without running anything."""
    problems, warnings = [], []
    stored = manifest(project)
    for stem in stems(project):
        name = f"ampedu/data/expected/{stem}.json"
        try:
            now = inputs(project, stem)
        except BuildError as error:
            problems += str(error).split("\n")
            continue
        entry, hashes = stored.get(stem), file_hashes(project, stem)
        if entry is None or not all(hashes.values()):
            problems.append(f"{name}: the expected data are missing; {REBUILD}.")
        elif entry.get("source") != now["source"]:
            problems.append(
                f"{name} is stale: the code of the lab, its exercises or its mutants have changed; {REBUILD}."
            )
        elif entry.get("files") != hashes:
            problems.append(f"{name} or its .safetensors was edited by hand; {REBUILD}.")
        elif entry.get("modules") != now["modules"]:
            before, after = entry.get("modules", {}), now["modules"]
            changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
            warnings.append(
                f"{name} was made with another version of {', '.join(changed[:3])}; {REBUILD} to make it again."
            )
    return problems, warnings


def _make(project: Project, stem: str) -> None:
    """Run the worker in a process of its own, so that one lab cannot disturb another."""
    lab = project.root / SOURCE_FOLDER["lab"] / f"{stem}.py"
    job = {"stem": stem, "cells": solution_cells(percent.read(lab, project.name(lab)))}
    job |= {"mutants": str(mutants_path(project, stem)), "folder": str(folder(project))}
    with tempfile.TemporaryDirectory(prefix="ampedu-") as scratch:
        command = [sys.executable, "-m", "tools.expected_worker"]
        env = execute.environment(project.root, Path(scratch))
        process = subprocess.Popen(command, env=env, cwd=project.root, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        try:
            output, _ = process.communicate(json.dumps(job), timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise BuildError(f"{project.name(lab)}: making the expected data took more than {TIMEOUT} s; "
                             "make the cases smaller.") from None  # fmt: skip
        finally:
            execute.kill_tree(process)
    if process.returncode:
        lines = [line for line in output.strip().split("\n") if line.strip()] or ["no message"]
        lines = lines[-1:] if "Traceback" in output else lines
        raise BuildError("\n".join(f"{project.name(lab)}: cannot make the expected data: {line}" for line in lines))
