"""A stand-in for a Colab runtime: an environment with Colab's versions, the course as a wheel, and no repository."""

import hashlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Colab's runtime of August 2026, see github.com/googlecolab/backend-info. What is not named here, pip chooses.
PINS = (
    "numpy==2.1.3",
    "matplotlib==3.10.0",
    "ipywidgets==7.7.1",
    "ipykernel==6.17.1",
    "ipython==7.34.0",
    "traitlets==5.7.1",
    "jupyter_client==7.4.9",
    "nbclient==0.10.4",
    "nbformat==5.11.1",
    "anywidget==0.9.21",
    "tqdm==4.67.3",
    "tornado<6.6",
    "setuptools",
)
KEPT = ("torch", "numpy", "matplotlib", "ipywidgets", "ipython", "ipykernel", "anywidget", "traitlets")
SHIPPED = ("ampedu", "pyproject.toml", "README.md", "LICENSE", "LICENSE-texts")


class NotAvailable(Exception):
    """The environment cannot be made here; the message is pip's reason."""


def requirements() -> list[str]:
    """The pins, with the torch of this interpreter in the place of the one that Colab has."""
    return [f"torch=={importlib.metadata.version('torch').split('+')[0]}", *PINS]


def python() -> Path:
    """Interpreter of the environment: made once per set of pins in build/colab/, found again later.

    Raises NotAvailable when pip cannot install the packages.
    """
    key = hashlib.sha256(" ".join([sys.version, *requirements()]).encode()).hexdigest()[:12]
    folder = ROOT / "build" / "colab" / key
    found, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        base = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        pip = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements()]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            raise NotAvailable(done.stderr.strip()[-500:])
        ready.touch()
    return found


def wheel(folder: Path) -> Path:
    """Build the wheel of ampedu into `folder`, from a copy: what an earlier build left behind must not get in."""
    copy = folder / "source"
    copy.mkdir(parents=True)
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check"]
    if importlib.util.find_spec("setuptools"):
        command.append("--no-build-isolation")
    subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True, capture_output=True)
    (built,) = folder.glob("ampedu-*.whl")
    return built
