"""Notebooks made on the spot, one warm sandbox for all tests that need one, and a secret and a cache of their own."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest

from ampedu.exercises import of_stem
from ampedu.grading import slot, stage
from ampedu.grading.sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[2]
LAB = "01_bit_layouts"


def written(path: Path, cells, **more) -> Path:
    """A notebook file. cells: texts of code cells, or (kind, text)."""
    pairs = [("code", cell) if isinstance(cell, str) else cell for cell in cells]
    node = {"cells": [{"cell_type": kind, "source": text, "metadata": {}} for kind, text in pairs]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**node, "nbformat": 4, "nbformat_minor": 5, "metadata": {}, **more}))
    return path


def cells_of(path: Path) -> list[tuple[str, str]]:
    """(kind, text) of the cells of a notebook file."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]


def why_no_sandbox() -> str:
    """The reason why bubblewrap cannot be used here, or ""."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        return "bubblewrap is not installed: apt install bubblewrap"
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    bare = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "/bin/true"]
    tried = subprocess.run(bare, capture_output=True, text=True, cwd="/", **user)
    if tried.returncode:
        return f"bubblewrap does not work on this machine: {tried.stderr.strip()}"
    return ""


@pytest.fixture(scope="session")
def bwrap():
    """Skips where bubblewrap does not work."""
    if reason := why_no_sandbox():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def warm(bwrap):
    """A sandbox for lab 01 that all tests share: that they do not disturb each other is what is promised."""
    with Sandbox("bwrap", [LAB], stage.forbidden(of_stem(LAB))) as sandbox:
        yield sandbox


class Inline(Executor):
    """Runs everything at once in this process."""

    def __init__(self, settings):
        slot.use(settings)

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def inline(warm, monkeypatch):
    """For batch.grade(executor=…): no processes, and the shared sandbox, so that nothing has to start."""
    monkeypatch.setattr(slot, "_ready", lambda stem: warm)
    return lambda jobs, prepare, settings: Inline(settings)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache of expected answers for the whole session: making them takes a while."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, cache, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
