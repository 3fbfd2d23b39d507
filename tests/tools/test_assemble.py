import json

import nbformat
import pytest

from tests.tools.conftest import LAB, LESSON, write
from tools import notebook as files
from tools import percent
from tools.assemble import assemble
from tools.project import BuildError


def made(project, kind):
    (target,) = project.targets(kinds=(kind,))
    return assemble(project, target, percent.read(target.source, project.name(target.source)))


def test_lesson_has_ids_setup_badge_and_metadata(project):
    notebook, lines = made(project, "lesson")
    cells = notebook["cells"]
    assert [cell["id"] for cell in cells] == [f"01_bits-{n:03d}" for n in range(1, len(cells) + 1)]
    assert cells[1]["metadata"]["tags"] == ["setup"]
    assert cells[1]["metadata"]["jupyter"] == {"source_hidden": True}
    assert cells[1]["source"].startswith("# @title ")
    assert "git+https://github.com/someone/course@v9.9" in cells[1]["source"]
    badge = "https://colab.research.google.com/github/someone/course/blob/v9.9/notebooks/01_bits.ipynb"
    assert cells[0]["source"].endswith(f"({badge})")
    assert lines[:3] == [2, 0, 7]
    assert notebook["metadata"]["accelerator"] == "GPU"
    assert notebook["metadata"]["colab"] == {"gpuType": "T4", "provenance": []}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"]["ampedu"]["modules"]) == {"ampedu", "ampedu.helper", "ampedu.numbers"}


@pytest.mark.parametrize("kind", ["lesson", "lab", "solution"])
def test_nbformat_accepts_it_and_writes_the_same_bytes(project, kind):
    notebook, _ = made(project, kind)
    text = files.dumps(notebook)
    theirs = nbformat.reads(text, as_version=4)
    nbformat.validate(theirs)
    assert nbformat.writes(theirs) + "\n" == text


def test_lab_is_cut_and_solution_is_not(project):
    lab, solution = made(project, "lab")[0], made(project, "solution")[0]
    assert "half_of_it" not in json.dumps(lab)
    assert 'raise NotImplementedError("01.halve: Half of x.")' in "\n".join(cell["source"] for cell in lab["cells"])
    assert "### BEGIN SOLUTION" in json.dumps(solution)
    for notebook in (lab, solution):
        graded = [cell["metadata"]["nbgrader"] for cell in notebook["cells"] if "nbgrader" in cell["metadata"]]
        assert [meta["grade_id"] for meta in graded] == ["01-halve-answer", "01-halve"]
        assert graded[1]["points"] == 2
    assert all(not cell.get("outputs") for cell in lab["cells"])


@pytest.mark.parametrize(
    ("kind", "file", "text", "words"),
    [
        (
            "lesson",
            "sources/lessons/01_bits.py",
            LESSON.replace("# # 1 Bits", "# 1 Bits"),
            "must be markdown that starts",
        ),
        ("lesson", "sources/lessons/01_bits.py", LAB, "a lesson has no exercise cells"),
        ("lab", "sources/labs/01_bits.py", LAB.replace("01.halve", "01.other"), "no exercise 01.other"),
        (
            "lab",
            "ampedu/exercises/ex01_bits.py",
            "POINTS = 2\n@exercise('01.halve', points=POINTS)\nclass A: ...",
            "plain values",
        ),
        ("lab", "pyproject.toml", "[tool.ampedu]\ntag = 'v1'\n", 'no "repository"'),
    ],
)
def test_what_cannot_become_a_notebook_is_named(project, kind, file, text, words):
    write(project.root, {file: text})
    with pytest.raises(BuildError, match=words):
        made(project, kind)


def test_an_unknown_stem_lists_the_known_ones(project):
    with pytest.raises(BuildError, match="no lesson or lab called 07_x; sources/ has: 01_bits"):
        project.targets(("07_x",))
