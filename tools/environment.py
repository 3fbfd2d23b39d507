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
            f"Python {version[0]}.{version[1]} ({executable}) is too old: the course needs "
            f"{OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer.\n"
            "Install a newer Python and name it: make learn PYTHON=python3.13   (or: python3.13 tools/learn.py)"
        )


def installed_torch():
    """The version of a torch that this interpreter has already and that is new enough ("2.11.0+cu128"); else None."""
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


def fingerprint(repository, python, torch, version=sys.version_info):
    """Changes when the environment has to be brought up to date: project file, constraints, Python, chosen torch."""
    found = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        found.update((repository / name).read_bytes())
        found.update(b"\0")
    found.update("{} {}.{} {}".format(python, version[0], version[1], torch or "").encode())
    return found.hexdigest()


def is_ready(folder, python, extra, mark):
    """Whether the stamp in `folder` says that `extra` is installed for `python` from the same files."""
    return python.exists() and extra in _stamped(folder, mark)


def write_stamp(folder, extra, mark, present):
    """Notes that `extra` is installed; extras installed before from the same files stay noted."""
    extras = _stamped(folder, mark) | CONTAINS[extra]
    stamp = {"fingerprint": mark, "extras": sorted(extras), "torch": present}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def _read_stamp(folder):
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _stamped(folder, mark):
    stamp = _read_stamp(folder)
    return set(stamp.get("extras", ())) if stamp.get("fingerprint") == mark else set()


def constraints(text, torch=None, keep=()):
    """The text of constraints.txt, changed so that what is installed stays.

    torch: a version that takes the place of torch's line; its local part ("+cpu") is dropped, since a constraint
    without it accepts any build of that version. keep: names of packages whose lines are left out: pip leaves them be.
    """
    leave = {canonical(name) for name in keep} | ({"torch"} if torch else set())
    lines = [line for line in text.splitlines() if canonical(line.partition("==")[0]) not in leave]
    if torch:
        lines.append(f"torch=={torch.partition('+')[0]}")
    return "\n".join(lines) + "\n"


def canonical(name):
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def installed_names():
    """The names of all packages of this interpreter."""
    from importlib.metadata import distributions

    return sorted({found.metadata["Name"] for found in distributions() if found.metadata["Name"]})


def pip_command(python, constraint_file, *packages, torch_index=None):
    """The pip command that installs `packages`, as a list."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(constraint_file)]
    if not sys.stdout.isatty():
        command.append("-q")
    if torch_index:
        command += ["--extra-index-url", torch_index]
    return [*command, *packages]


def jupyter_packages(repository):
    """The extra `course` of pyproject.toml with ipywidgets: JupyterLab and what lives in it; none needs torch."""
    import tomllib

    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    widgets = [text for text in project["dependencies"] if text.startswith("ipywidgets")]
    return widgets + project["optional-dependencies"]["course"]


def prepare(repository, extra="course", here=False, torch_index=None, torch=None, say=print):
    """Makes or finds the environment and returns its interpreter.

    The environment is .venv in the repository; with `here` it is the one of the interpreter that runs this. A torch
    that the interpreter has already is used, never replaced: a new .venv then sees the interpreter's packages.
    `torch` asks for a version other than the one in constraints.txt. Raises Stop with a cure.
    """
    check_python()
    folder = repository / ("build" if here else ".venv")
    inside = not here and Path(sys.prefix).resolve() == folder.resolve()
    present = None if torch else _read_stamp(folder).get("torch") if inside else installed_torch()
    python = Path(sys.executable) if here else python_of(folder)
    mark = fingerprint(repository, python, torch or present)
    if is_ready(folder, python, extra, mark):
        return python
    if here:
        folder.mkdir(exist_ok=True)
    else:
        make_venv(folder, python, bool(present), say)
    known = repository / "constraints.txt"
    constraint_file = folder / "constraints-used.txt"
    keep = installed_names() if present and not inside else ()
    used = constraints(known.read_text(encoding="utf-8"), torch or present, keep)
    constraint_file.write_text(used, encoding="utf-8")
    if present:
        say(f"torch {present} is installed already and stays. Installing the other packages …")
    else:
        check_disk(repository)
        say(f"Installing torch and JupyterLab into {python.parent.parent}: a few minutes, once …")
    if present and not here and not inside:
        # JupyterLab looks for its pages and extensions in its own environment only, so the base's copy cannot serve.
        run_pip(pip_command(python, known, "--ignore-installed", *jupyter_packages(repository)))
    run_pip(pip_command(python, constraint_file, "-e", f"{repository}[{extra}]", torch_index=torch_index))
    write_stamp(folder, extra, mark, present)
    return python


def make_venv(folder, python, see_base, say):
    """Makes the virtual environment unless a working one is there; a broken one is made anew."""
    if python.exists() and _runs([str(python), "-m", "pip", "--version"]):
        return
    if not (_importable("venv") and _importable("ensurepip")):
        raise Stop(
            "This Python cannot make virtual environments: its module venv or ensurepip is missing.\n"
            f"On Debian or Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv. "
            "Or install into the Python that you run, without one: make learn LEARN=--here"
        )
    say("Making the environment .venv …")
    command = [sys.executable, "-m", "venv", "--clear", *(["--system-site-packages"] if see_base else []), str(folder)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Stop(explain(done.stdout) or f"Could not make .venv:\n{done.stdout[-1500:]}")
    if see_base and sys.prefix != sys.base_prefix:
        show_packages_of_active_venv(folder)


def show_packages_of_active_venv(folder):
    """Lets the environment in `folder` see the packages of the virtual one that runs this.

    --system-site-packages shows only those of the Python below it, where torch is not.
    """
    import site
    import sysconfig

    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    (packages / "ampedu_base.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")


def check_disk(repository):
    """Raises Stop if the disk has no room for torch."""
    free = shutil.disk_usage(str(repository)).free
    if free < NEEDED_BYTES:
        raise Stop(
            f"The disk has {free / 1e9:.1f} GB free; the environment needs at least {NEEDED_BYTES / 1e9:.0f} GB "
            "(about 6 GB with CUDA libraries).\n"
            "Make room, or use a Python that has torch already: make learn PYTHON=/path/to/that/python"
        )


def run_pip(command):
    """Runs pip. Its warnings are shown only if it fails; then Stop is raised with the cure."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = process.communicate()[1]
    if process.returncode != 0:
        raise Stop(said[-3000:] + "\n" + (explain(said) or "pip could not install the packages; its message is above."))


# What pip prints → what to do. The first that matches is said.
CURES = (
    (
        r"No space left on device|Errno 28|disk quota",
        "The disk is full. Make room (about 2 GB, 6 GB with CUDA libraries) and run the same command again.",
    ),
    (
        r"externally-managed-environment",
        "This Python belongs to the operating system and may not be changed. Leave out --here: make learn makes .venv.",
    ),
    (
        r"NewConnectionError|Temporary failure in name resolution|getaddrinfo|Network is unreachable|ConnectTimeout"
        r"|Connection (?:refused|reset|timed out)|Max retries exceeded|Read timed out|SSLError|ProxyError",
        "No connection to the package index. Check the network or the proxy (HTTPS_PROXY) and start again.\n"
        "Without a network, use a Python that has the packages: make learn PYTHON=/path/to/that/python LEARN=--here",
    ),
    (
        r"No matching distribution found for torch|Could not find a version that satisfies the requirement torch",
        "The package index has no torch for this Python and system. Use Python 3.11 to 3.13 "
        "(make learn PYTHON=python3.12), or name an index that has one: make learn TORCH_INDEX=https://download.pytorch.org/whl/cpu",
    ),
    (
        r"Permission denied|Errno 13",
        "A folder may not be written. Check who owns the repository and .venv, or clone it into a folder of your own.",
    ),
)


def explain(output):
    """The cure for a known failure in the output of pip or venv; None for an unknown one."""
    return next((cure for pattern, cure in CURES if re.search(pattern, output, re.IGNORECASE)), None)


def _importable(name):
    from importlib.util import find_spec

    return find_spec(name) is not None


def _runs(command):
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0
