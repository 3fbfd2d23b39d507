"""The part of ampedu that the sandbox shows: what runs an answer, and nothing that answers.

A copy in a temporary folder, so that the list is positive: modules of the package without grading's judge, without what
an exercise of the lab forbids, and without expected answers, quizzes and records.
"""

import functools
import os
import shutil
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = ("ampedu.grading", "ampedu.grading.worker", "ampedu.grading.cleaning", "ampedu.grading.transport")
WITHOUT = ("cli", "doctor", "reset", "__main__", "nbengine", "recorded", "quizzes")


@functools.cache
def module_files() -> dict[str, Path]:
    """All modules of the package by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def hits(module: str, names) -> bool:
    """Whether a module is one of these or inside of one."""
    return any(module == name or module.startswith(name + ".") for name in names)


def forbidden(exercises) -> frozenset[str]:
    """The modules that at least one of the exercises forbids."""
    return frozenset(name for ex in exercises for name in ex.forbids)


def shown(without) -> tuple[dict[str, Path], list[Path]]:
    """Modules and data files that the sandbox shows when the modules ``without`` are the answer key."""
    modules, hidden = {}, []
    for name, path in module_files().items():
        if hits(name, ("ampedu.grading",)) and name not in INSIDE:
            continue
        if name.rpartition(".")[2] in WITHOUT and name.count(".") == 1:
            continue
        if hits(name, without):
            hidden.append(path.read_text(encoding="utf-8"))
        else:
            modules[name] = path
    texts = [path.read_text(encoding="utf-8") for path in modules.values()]
    data = [
        path
        for path in sorted((PACKAGE / "data").glob("*.json"))
        if any(path.name in text for text in texts) and not any(path.name in text for text in hidden)
    ]
    return modules, data


def served(ex, without) -> dict[str, dict]:
    """The modules that the lab hides and this exercise does not forbid: they go in with the job."""
    found = {}
    for name, path in module_files().items():
        if hits(name, without) and not hits(name, ex.forbids):
            found[name] = {"package": path.name == "__init__.py", "source": path.read_text(encoding="utf-8")}
    return found


def make(without, where=None) -> Path:
    """A new folder in ``where`` (or the system's temporary folder) that holds ``ampedu`` as the sandbox shows it.

    The caller removes it.
    """
    folder = Path(tempfile.mkdtemp(prefix="ampedu-course-", dir=where))
    modules, data = shown(without)
    for path in [*modules.values(), *data]:
        target = folder / path.relative_to(PACKAGE.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        os.chmod(target, 0o644)
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        os.chmod(place, 0o755)
    return folder
