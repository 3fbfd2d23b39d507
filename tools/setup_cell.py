"""The first code cell of every notebook: installs the course's helper where it is missing. Authors never write it."""

TEMPLATE = """\
# @title Setup: run this cell first. It installs the course's helper if it is missing and never touches PyTorch.
import importlib.util, os, pathlib, subprocess, sys

def missing(name):
    spec = importlib.util.find_spec(name)
    return spec is None or spec.origin is None  # without an origin it is a folder that happens to have this name
here = pathlib.Path.cwd()
for folder in (here / "ampedu", here, *here.parents):  # a checkout of the course needs no installation
    if missing("ampedu") and (folder / "ampedu" / "nbengine.py").exists():
        sys.path.insert(0, str(folder))
if missing("torch"):
    raise RuntimeError("PyTorch is missing. Install torch 2.11 or newer (https://pytorch.org) and run this cell again.")
if missing("ampedu"):
    source = os.environ.get("AMPEDU_SOURCE", "{source}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", source]
    done = subprocess.run(pip, capture_output=True, text=True)
    importlib.invalidate_caches()
    cure = "Set AMPEDU_SOURCE to a folder, a wheel or an address that this machine can reach, or restart the kernel."
    if done.returncode or missing("ampedu"):
        raise RuntimeError(f"Could not install the course's helper from {{source}}. {{cure}}\\n{{done.stderr[-1500:]}}")
"""


def render(repository: str, tag: str) -> str:
    """Source of the setup cell, for the https address of the repository and the tag to install from."""
    return TEMPLATE.format(source=f"git+{repository}@{tag}").rstrip("\n")


# Folded in JupyterLab and in Colab: learners run it, few want to read it.
METADATA = {"tags": ["setup"], "jupyter": {"source_hidden": True}, "cellView": "form"}
