"""The first code cell of every notebook: installs the course's helper where it is missing. Authors never write it."""

TEMPLATE = '''\
# @title Setup: run this cell first. It installs the course's helper if it is missing and never touches PyTorch.
import importlib.util, os, pathlib, subprocess, sys

for folder in (pathlib.Path.cwd(), *pathlib.Path.cwd().parents):  # a checkout of the course needs no installation
    if importlib.util.find_spec("ampedu") is None and (folder / "ampedu" / "nbengine.py").exists():
        sys.path.insert(0, str(folder))
if importlib.util.find_spec("torch") is None:
    raise RuntimeError("PyTorch is missing. Install torch 2.11 or newer (https://pytorch.org), then run this cell again.")
if importlib.util.find_spec("ampedu") is None:
    source = os.environ.get("AMPEDU_SOURCE", "{source}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", source]
    result = subprocess.run(pip, capture_output=True, text=True)
    importlib.invalidate_caches()
    if result.returncode:
        raise RuntimeError(f"Could not install the course's helper from {{source}}. Set AMPEDU_SOURCE to a folder, a wheel "
                           f"or an address that this machine can reach. pip said:\\n{{result.stderr[-1500:]}}")
    if importlib.util.find_spec("ampedu") is None:
        raise RuntimeError("The course's helper is installed. Restart the kernel, then run this cell again.")
'''


def render(repository: str, tag: str) -> str:
    """Source of the setup cell for the https address of the repository and the tag that notebooks of this version use."""
    return TEMPLATE.format(source=f"git+{repository}@{tag}").rstrip("\n")


# Folded in JupyterLab and in Colab: learners run it, few want to read it.
METADATA = {"tags": ["setup"], "jupyter": {"source_hidden": True}, "cellView": "form"}
