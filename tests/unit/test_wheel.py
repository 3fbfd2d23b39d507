"""The wheel holds everything: a forgotten data file breaks only the installed package, never the checkout."""

import os
import zipfile
from pathlib import Path

import pytest

from tests.notebooks import colab_machine

PACKAGE = Path(__file__).resolve().parents[2] / "ampedu"


@pytest.fixture(scope="module")
def contents(tmp_path_factory) -> zipfile.ZipFile:
    with zipfile.ZipFile(colab_machine.wheel(tmp_path_factory.mktemp("wheel"))) as wheel:
        yield wheel


def test_holds_exactly_the_files_of_the_package(contents):
    folders = os.walk(PACKAGE, followlinks=True)  # the examples are a link, so that there is one copy of them
    ours = {Path(where, name).relative_to(PACKAGE.parent).as_posix() for where, _, names in folders for name in names}
    ours = {name for name in ours if "__pycache__" not in name}
    assert {name for name in contents.namelist() if ".dist-info/" not in name} == ours
    assert {Path(name).suffix for name in ours} >= {".py", ".js", ".json", ".safetensors"}


def test_depends_on_nothing_that_colab_lacks(contents):
    (name,) = (name for name in contents.namelist() if name.endswith(".dist-info/METADATA"))
    lines = contents.read(name).decode().split("\n")
    needed = {line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")}
    needed = {line.split(">=")[0] for line in needed if "extra ==" not in line}
    assert needed == {"torch", "numpy", "matplotlib", "ipython", "ipywidgets"}
