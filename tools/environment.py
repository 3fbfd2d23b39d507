"""The Python environment of the course: made once, found again by a stamp. Standard library only."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
STAMP = "ampedu-stamp.json"
# A CPU environment takes 1.3 GB; torch with CUDA libraries takes about 6 GB.
NEEDED_BYTES = 2 * 10**9
# An extra contains the extras after it.
CONTAINS = {"dev": {"dev", "course"}, "course": {"course"}}


class Stop(Exception):
    """Something the learner has to cure; the message says what and how."""


def check_python(version=sys.version_info, executable=sys.executable):
    """Raises Stop if this Python is too old."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise Stop(
            "Python {}.{} is too old: the course needs {}.{} or newer. This one is {}.\n"
            "Install a newer Python and name it: make learn PYTHON=python3.13   (or: python3.13 tools/learn.py)".format(
                version[0], version[1], OLDEST_PYTHON[0], OLDEST_PYTHON[1], executable
            )
        )


def installed_torch():
    """The version of a torch that this interpreter has already and that is new enough, e.g. "2.11.0+cu128"; else None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("torch")
    except PackageNotFoundError:
        return None
    return found if new_enough(found) else None


def new_enough(version):
    """Whether a version of torch, as text, is at least the oldest supported one."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return bool(match) and (int(match.group(1)), int(match.group(2))) >= OLDEST_TORCH


def python_of(folder):
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def fingerprint(repository, torch, version=sys.version_info):
    """Changes when the environment has to be brought up to date: project file, constraints, Python, chosen torch."""
    found = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        found.update((repository / name).read_bytes())
        found.update(b"\0")
    found.update("{}.{} {}".format(version[0], version[1], torch or "").encode())
    return found.hexdigest()


def is_ready(folder, extra, mark):
    """Whether the stamp in `folder` says that `extra` is installed there from the same files."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        return stamp["fingerprint"] == mark and extra in stamp["extras"] and python_of(folder).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_stamp(folder, extra, mark):
    """Notes that `extra` is installed; extras installed before from the same files stay noted."""
    extras = set(CONTAINS[extra])
    for known in CONTAINS:
        if is_ready(folder, known, mark):
            extras.add(known)
    text = json.dumps({"fingerprint": mark, "extras": sorted(extras)}, indent=1) + "\n"
    (folder / STAMP).write_text(text, encoding="utf-8")


def constraints(text, torch):
    """The text of constraints.txt with torch's line replaced by `torch` (a version), if one is given.

    The local part ("+cpu") is dropped: a constraint without it accepts any build of that version.
    """
    if not torch:
        return text
    lines = [line for line in text.splitlines() if not line.lower().startswith("torch==")]
    return "\n".join([*lines, "torch=={}".format(torch.partition("+")[0])]) + "\n"


def pip_command(python, repository, extra, constraint_file, torch_index=None):
    """The pip command that installs ampedu with `extra`, as a list."""
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(constraint_file)]
    if torch_index:
        command += ["--extra-index-url", torch_index]
    return [*command, "-e", "{}[{}]".format(repository, extra)]


def prepare(repository, extra="course", here=False, torch_index=None, torch=None, say=print):
    """Makes or finds the environment and returns its interpreter.

    The environment is .venv in the repository; with `here` it is the interpreter that runs this. A torch that the
    interpreter has already is used, never replaced: the new environment then sees the interpreter's packages.
    `torch` asks for a version other than the one in constraints.txt. Raises Stop with a cure.
    """
    check_python()
    present = None if torch else installed_torch()
    if here:
        mark_folder, python = repository / "build", Path(sys.executable)
    else:
        mark_folder, python = repository / ".venv", python_of(repository / ".venv")
    mark = fingerprint(repository, torch or present) if not here else _fingerprint_here(repository, torch or present)
    if here and is_ready_here(mark_folder, extra, mark):
        return python
    if not here and is_ready(mark_folder, extra, mark):
        return python
    if not here:
        _make_venv(mark_folder, bool(present), say)
    mark_folder.mkdir(exist_ok=True)
    _check_disk(repository)
    known = constraints((repository / "constraints.txt").read_text(encoding="utf-8"), torch or present)
    constraint_file = mark_folder / "constraints-used.txt"
    constraint_file.write_text(known, encoding="utf-8")
    if present:
        say("torch {} is installed already and stays. Installing the other packages.".format(present))
    else:
        say("Installing torch and JupyterLab into {}: a few minutes, once.".format("this Python" if here else ".venv"))
    run_pip(pip_command(python, repository, extra, constraint_file, torch_index))
    write_stamp(mark_folder, extra, mark)
    return python
