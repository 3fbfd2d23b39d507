"""The setup cell as learners meet it: in a checkout, in an empty folder, without torch, with and without a network."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tools.conftest import write
from tools import setup_cell

CELL = setup_cell.render("https://github.com/someone/course", "v1")


def wheel(folder: Path) -> Path:
    """A wheel of a stand-in for the course's helper."""
    path = folder / "ampedu-1.0-py3-none-any.whl"
    info = "ampedu-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ampedu/__init__.py", "here = 'wheel'\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: ampedu\nVersion: 1.0\nRequires-Dist: torch>=99\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def bare(tmp_path):
    """Runs the cell in an interpreter that has pip and a stand-in for torch, but not the course."""
    site, cwd = tmp_path / "site", tmp_path / "cwd"
    write(tmp_path, {"site/torch.py": "", "cwd/notes.txt": ""})
    start = (
        "import sys\n"
        "sys.path = [p for p in sys.path if 'site-packages' not in p or 'pip_only' in p]\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
    )

    def run(after="import ampedu; print(ampedu.__file__)", source="", torch=True, folder=cwd):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_TARGET": str(site), "PIP_NO_INDEX": "1"}
        if source:
            env["AMPEDU_SOURCE"] = str(source)
        paths = f"sys.path += [{str(site)!r}]\n" if torch else f"sys.path += [{str(tmp_path / 'none')!r}]\n"
        script = f"{start}{paths}sys.path.insert(0, '')\n{CELL}\n{after}\n"
        command = [sys.executable, "-c", script]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)

    run.site, run.cwd, run.root = site, cwd, tmp_path
    return run


def test_size_and_folding():
    assert len(CELL.split("\n")) <= 20
    assert CELL.startswith("# @title Setup")
    assert setup_cell.METADATA["jupyter"]["source_hidden"] is True
    assert "git+https://github.com/someone/course@v1" in CELL


def test_installs_from_the_given_source_without_dependencies_and_prints_nothing(bare):
    done = bare(source=wheel(bare.root))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(bare.site / "ampedu" / "__init__.py")
    assert (bare.site / "torch.py").read_text() == ""


def test_an_installed_course_is_left_alone(bare):
    write(bare.root, {"site/ampedu/__init__.py": ""})
    done = bare(source="/no/such/place")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", ["", "notebooks", "work/labs"])
def test_a_checkout_needs_no_installation(bare, folder):
    write(bare.root, {"repo/ampedu/__init__.py": "", "repo/ampedu/nbengine.py": "", f"repo/{folder}/x": ""})
    done = bare(source="/no/such/place", folder=bare.root / "repo" / folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(bare.root / "repo" / "ampedu" / "__init__.py")


def test_a_clone_named_like_the_package_beside_the_notebook(bare):
    write(bare.cwd, {"ampedu/pyproject.toml": "", "ampedu/ampedu/__init__.py": "", "ampedu/ampedu/nbengine.py": ""})
    done = bare(source="/no/such/place")
    assert done.stdout.strip() == str(bare.cwd / "ampedu" / "ampedu" / "__init__.py")


def test_a_source_that_cannot_be_reached_is_named_with_the_cure(bare):
    done = bare(source="/no/such/wheel.whl")
    last = done.stderr.split("RuntimeError: ")[-1]
    assert last.startswith(
        "Could not install the course's helper from /no/such/wheel.whl. Set AMPEDU_SOURCE to a folder"
    )
    assert "pip said" in last or "wheel.whl" in last.split("\n", 1)[1]


def test_a_machine_without_torch(bare):
    done = bare(torch=False)
    assert "RuntimeError: PyTorch is missing. Install torch 2.11 or newer" in done.stderr
