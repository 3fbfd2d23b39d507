"""nbgrader itself, in an environment of its own, grades a lab: the solution gets full marks, the blank lab none."""

import subprocess

import pytest

from ampedu.exercises import of_stem
from benchmarks import grading as benchmark

from .conftest import LAB, ROOT


@pytest.mark.slow
def test_the_solution_gets_full_marks_and_the_blank_none(tmp_path):
    try:
        python = benchmark.environment(tmp_path / "environment")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nbgrader cannot be installed here: {error}")
    given = {"ann": ROOT / f"solutions/{LAB}.ipynb", "bob": ROOT / f"labs/{LAB}.ipynb"}
    _, scores = benchmark.theirs(python, LAB, given, tmp_path / "course")
    most = sum(ex.points for ex in of_stem(LAB))
    assert scores == {"ann": (most, most), "bob": (0, most)}
