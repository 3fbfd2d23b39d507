"""`make check` and the format rules on the course itself."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import lint
from tools.check import check
from tools.project import Project

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Project(ROOT)


def test_every_generated_file_is_what_its_source_gives():
    problems, _ = check(PROJECT)
    assert problems == []


def test_the_format_rules_hold():
    assert lint.lint(PROJECT) == []


def test_the_command_imports_no_torch():
    code = "import sys, tools.build as b; b.main(['--check']); assert not {'torch', 'nbformat'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", lint.notebooks(PROJECT), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_nbformat_accepts_every_notebook_as_it_is(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert nbformat.writes(notebook) + "\n" == text
