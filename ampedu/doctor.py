"""The machine report: what is installed, what this machine can do, what is wrong and how to cure it."""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
NEWEST_TRIED_TORCH = (2, 13)
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Check:
    """One row. status: "OK", "note" (works, but know this) or "problem" (something in the course will fail)."""

    name: str
    status: str
    value: str
    cure: str = ""


def report() -> list[Check]:
    """All rows, in order. Never raises: a check that fails itself becomes a row that says so."""
    rows = []
    for check in CHECKS:
        try:
            rows.extend(check())
        except Exception as error:
            name = check.__name__.replace("_", " ").strip()
            rows.append(Check(name, "note", f"could not be checked ({type(error).__name__}: {error})"))
    return rows


def has_problem(rows: list[Check]) -> bool:
    """Whether a row is a problem."""
    return any(row.status == "problem" for row in rows)


def number(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" → (2, 13, 0)."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)


def installed(name: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python_version(version: str | None = None) -> list[Check]:
    """Python is new enough."""
    version = version or platform.python_version()
    if number(version) < OLDEST_PYTHON:
        return [Check("Python", "problem", version, "Install Python 3.11 or newer and make the environment anew.")]
    return [Check("Python", "OK", version)]


def torch_version(version: str | None = None) -> list[Check]:
    """torch is there and between the oldest supported and the newest tried version."""
    version = version or installed("torch")
    if version is None:
        return [Check("torch", "problem", "not installed", "pip install torch")]
    if number(version) < OLDEST_TORCH:
        return [Check("torch", "problem", version, "pip install 'torch>=2.11'")]
    if number(version)[:2] > NEWEST_TRIED_TORCH:
        return [Check("torch", "note", version, "Newer than the course was tried with (2.13): a few facts may differ.")]
    return [Check("torch", "OK", version)]


def packages(version_of: Callable[[str], str | None] = installed) -> list[Check]:
    """What the notebooks need besides torch."""
    rows = []
    kernel = version_of("ipykernel")
    if kernel is None:
        rows.append(Check("ipykernel", "problem", "not installed", "pip install 'ipykernel>=6.29,<7'"))
    elif number(kernel) >= (7,):
        cure = "Running notebooks from the command line can hang: pip install 'ipykernel>=6.29,<7'"
        rows.append(Check("ipykernel", "note", kernel, cure))
    else:
        rows.append(Check("ipykernel", "OK", kernel))
    for name in ("numpy", "matplotlib"):
        version = version_of(name)
        rows.append(
            Check(name, "OK", version) if version else Check(name, "problem", "not installed", f"pip install {name}")
        )
    return rows + _widgets(version_of)


def _widgets(version_of: Callable[[str], str | None]) -> list[Check]:
    """ipywidgets, and the half of it that lives in JupyterLab: the two must belong together."""
    version = version_of("ipywidgets")
    if version is None:
        cure = "Quizzes and explorers stay static. pip install 'ipywidgets>=7.7.1'"
        return [Check("ipywidgets", "note", "not installed", cure)]
    if number(version) < (7, 7, 1):
        return [Check("ipywidgets", "problem", version, "pip install 'ipywidgets>=7.7.1'")]
    rows = [Check("ipywidgets", "OK", version)]
    if version_of("jupyterlab") is None:
        return rows
    extension = version_of("jupyterlab_widgets")
    wanted = 3 if number(version) >= (8,) else 1
    if extension is None or number(extension)[0] != wanted:
        cure = f"Widgets show as text in JupyterLab: pip install 'jupyterlab_widgets>={wanted},<{wanted + 1}'"
        rows.append(Check("Widgets in JupyterLab", "problem", extension or "not installed", cure))
    else:
        rows.append(Check("Widgets in JupyterLab", "OK", f"jupyterlab_widgets {extension}"))
    return rows


def device() -> list[Check]:
    """The device that the lessons use, its bf16, matrix units, float32 flags, and threads."""
    from ampedu.device import DeviceError, resolve, this_machine

    try:
        machine = this_machine(resolve("auto"))
    except DeviceError as error:
        asked = os.environ.get("AMPEDU_DEVICE", "")
        return [Check("Device", "problem", asked, str(error)), *device_rows(this_machine())[1:]]
    rows = device_rows(machine)
    return rows if machine.device != "cpu" else [*_unused_gpu(), *rows]


def _unused_gpu() -> list[Check]:
    """A GPU that torch sees and has no kernels for."""
    import torch

    from ampedu.device import this_machine

    if not torch.cuda.is_available() or (machine := this_machine("cuda")).has_kernels:
        return []
    cure = "The installed torch has no kernels for this GPU, so the CPU is used. Install a torch build that has them."
    return [Check("GPU", "problem", f"{machine.name} (capability {machine.capability})", cure)]


def device_rows(machine) -> list[Check]:
    """The rows about one device; a pure function of ampedu.device.Machine."""
    from ampedu._card import gibibytes

    name = machine.name + (f", capability {machine.capability}" if machine.capability else "")
    rows = [Check("Device", "OK", f"{machine.device}: {name}")]
    if not machine.has_kernels:
        cure = "The installed torch has no kernels for this GPU. Use device = 'cpu', or install a build that has them."
        rows[0] = Check("Device", "problem", rows[0].value, cure)
    bf16_cure = {
        "native": "",
        "emulated": "bf16 gives the right numbers and no speed here; torch.cuda.is_bf16_supported() would say True.",
        "unknown": "The course does not know whether bf16 is native on this device: measure before you expect a gain.",
    }[machine.bf16]
    if machine.backend == "cpu" and machine.bf16 == "emulated":
        bf16_cure = "bf16 gives the right numbers and no speed here."
    rows.append(Check("bf16", "OK" if machine.bf16 == "native" else "note", machine.bf16, bf16_cure))
    units = ", ".join(machine.matrix_units) or "none"
    if machine.matrix_dtypes:
        units += f" ({', '.join(machine.matrix_dtypes)})"
    if machine.vector_units:
        units += f"; vector instructions {', '.join(machine.vector_units)}"
    cure = "" if machine.matrix_dtypes else "Expect no large gain in speed from low precision here."
    rows.append(Check("Matrix units", "OK" if machine.matrix_dtypes else "note", units, cure))
    rows.append(_float32_flags(machine))
    rows.append(_threads(machine, os.environ.get("OMP_NUM_THREADS")))
    enough = machine.memory_bytes is None or machine.memory_bytes >= 3 * 2**30
    cure = "" if enough else "Less than 3 GiB: close other programs, and run one notebook at a time."
    rows.append(Check("Memory", "OK" if enough else "note", gibibytes(machine.memory_bytes), cure))
    return rows


def _float32_flags(machine) -> Check:
    """Reduced precision of float32 matrix products that somebody switched on: then "float32" is not the baseline."""
    value = ", ".join(f"{name} {value}" for name, value in machine.float32_flags)
    reduced = [
        name
        for name, value in machine.float32_flags
        if (name.endswith("matmul") and value in ("tf32", "bf16"))
        or (name == "float32_matmul_precision" and value != "highest")
    ]
    if reduced:
        cure = f"{', '.join(reduced)}: products are rounded. torch.set_float32_matmul_precision('highest') undoes it."
        return Check("float32 products", "note", value, cure)
    return Check("float32 products", "OK", value)


def _threads(machine, omp: str | None) -> Check:
    value = f"{machine.threads} of {machine.cores} cores" + (f" (OMP_NUM_THREADS={omp})" if omp else "")
    if machine.threads > machine.cores:
        cure = f"More threads than cores make everything slow: set OMP_NUM_THREADS={machine.cores} before you start."
        return Check("Threads", "note", value, cure)
    return Check("Threads", "OK", value)


def disk(folder: Path | None = None) -> list[Check]:
    """Room for notebooks, figures and checkpoints."""
    free = shutil.disk_usage(folder or Path.cwd()).free
    if free < 10**9:
        return [Check("Disk", "note", f"{free / 1e9:.1f} GB free", "Make room: saving a notebook may fail.")]
    return [Check("Disk", "OK", f"{free / 1e9:.0f} GB free")]


def sandbox(find: Callable[[str], str | None] = shutil.which, system: str | None = None) -> list[Check]:
    """Graders run submissions in bubblewrap; learners do not need it."""
    if find("bwrap"):
        return [Check("Sandbox", "OK", "bubblewrap")]
    cure = "Only graders need one" + (": apt install bubblewrap" if (system or platform.system()) == "Linux" else ".")
    return [Check("Sandbox", "note", "none", cure)]


def progress_path() -> list[Check]:
    """The file for progress, or the folder where it will be made, can be written."""
    from ampedu.progress import path as where

    path = where()
    # No machine's path in a stored notebook.
    shown = "the file that AMPEDU_PROGRESS names" if os.environ.get("AMPEDU_PROGRESS") else "~/.ampedu/progress.json"
    nearest = path if path.exists() else next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir():
        return [Check("Progress", "problem", shown, "This is a folder: let AMPEDU_PROGRESS name a file.")]
    if not os.access(nearest, os.W_OK) or (nearest != path and not nearest.is_dir()):
        cure = f"{nearest} cannot be written. Set AMPEDU_PROGRESS to a file that you may write."
        return [Check("Progress", "problem", shown, cure)]
    return [Check("Progress", "OK", shown)]


def package(repository: Path | None = None, version_of: Callable[[str], str | None] = installed) -> list[Check]:
    """The installed ampedu is this repository's, at its version."""
    version = version_of("ampedu")
    if version is None:
        return [Check("ampedu", "problem", "not installed", "pip install --no-deps -e . (in the repository)")]
    around = repository or _repository_around(Path.cwd())
    if around is None:
        return [Check("ampedu", "OK", version)]
    wanted = re.search(r'^version = "(.+)"$', (around / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if wanted and wanted[1] != version:
        cure = f"The repository here is at {wanted[1]}: run make learn again, or pip install --no-deps -e {around}"
        return [Check("ampedu", "problem", version, cure)]
    if around != REPOSITORY:
        cure = f"Imported from {REPOSITORY}, not from the repository here. pip install --no-deps -e {around}"
        return [Check("ampedu", "note", version, cure)]
    return [Check("ampedu", "OK", f"{version}, from this repository")]


def _repository_around(folder: Path) -> Path | None:
    """The course's repository that contains `folder`; None outside of one."""
    for place in (folder, *folder.parents):
        if (place / "ampedu" / "doctor.py").is_file() and (place / "pyproject.toml").is_file():
            return place
    return None


CHECKS = (python_version, torch_version, packages, device, disk, sandbox, progress_path, package)


def as_json(rows: list[Check]) -> str:
    """The rows as JSON: {"problem": bool, "checks": [{name, status, value, cure}]}."""
    return json.dumps({"problem": has_problem(rows), "checks": [asdict(row) for row in rows]}, indent=1)


def as_text(rows: list[Check]) -> str:
    """The rows as aligned plain lines, the cure below its row."""
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.status:<8}{row.name:<{width}}  {row.value}")
        if row.cure:
            lines.append(f"{'':<8}{'':<{width}}  → {row.cure}")
    return "\n".join(lines)


def as_html(rows: list[Check]) -> str:
    """The rows as a table; status in words, so that nothing depends on color."""
    from html import escape

    cell = "text-align:left;vertical-align:top;padding:.15em 1em .15em 0"
    body = "".join(
        f'<tr><td style="{cell}">{escape(row.status)}</td>'
        f'<th scope="row" style="{cell};white-space:nowrap">{escape(row.name)}</th>'
        f'<td style="{cell}">{escape(row.value)}</td><td style="{cell}">{escape(row.cure)}</td></tr>'
        for row in rows
    )
    head = "".join(f'<th scope="col" style="{cell}">{text}</th>' for text in ("Status", "What", "Value", "What to do"))
    return f'<table aria-label="Machine report"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def show() -> None:
    """Displays the report as a table in a notebook; prints it where there is no IPython."""
    from ampedu._card import Card
    from ampedu._display import display

    rows = report()
    display(Card(as_html(rows), as_text(rows)))


def print_table(rows: list[Check]) -> None:
    """Prints the rows: a table with rich where it is installed, plain lines otherwise."""
    try:
        table_class = importlib.import_module("rich.table").Table
        console_class = importlib.import_module("rich.console").Console
    except ImportError:
        print(as_text(rows))
        return
    from rich.text import Text

    table = table_class("Status", "What", "Value", "What to do", title="Machine report", title_justify="left")
    style = {"OK": "green", "note": "yellow", "problem": "bold red"}
    for row in rows:
        table.add_row(Text(row.status, style[row.status]), Text(row.name), Text(row.value), Text(row.cure))
    console = console_class()
    if console.is_terminal:
        console.print(table)
    else:  # a pipe or a log: whole lines, no box cut at 80 columns
        print(as_text(rows))


def main(json_wanted: bool = False) -> int:
    """Prints the report; returns 1 if there is a problem, else 0."""
    rows = report()
    if json_wanted:
        print(as_json(rows))
    else:
        print_table(rows)
        sys.stdout.flush()
    return int(has_problem(rows))
