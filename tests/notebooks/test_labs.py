"""A lab that nobody has touched: Run All reaches the end, every check says "not started", nothing is given away."""

from pathlib import Path

import pytest

from tests.notebooks.test_notebooks import run, text_on
from tools import labs, normalise, specs
from tools import notebook as files
from tools.project import Project

ROOT = Path(__file__).resolve().parents[2]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))


def test_there_are_labs():
    assert LABS


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_run_all_of_the_blank_lab(path):
    done = run(path, parameters={"device": "cpu", "seed": 1})
    reports = {}
    for cell in done["cells"]:
        grade = cell["metadata"].get("nbgrader", {})
        if grade.get("grade"):
            reports[grade["grade_id"]] = "".join(text for out in cell["outputs"] for text in normalise.texts(out))
    assert set(reports) == {labs.grade_id(ident) for ident in specs.read(Project(ROOT), path.stem)}
    assert [ident for ident, text in reports.items() if "not started" not in text] == []
    assert text_on("stderr", done) == ""


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_holds_no_solution_and_no_output(path):
    cells = files.load(path)["cells"]
    assert not any(labs.MARKER.search(cell["source"]) for cell in cells)
    assert not any(cell.get("outputs") for cell in cells)
    answers = [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("solution")]
    assert answers
    assert all("raise NotImplementedError(" in cell["source"] for cell in answers)
