"""`make check`: every way in which a generated file can differ from its source is named, with the cure."""

import json

import pytest

from tests.tools.conftest import LAB, LESSON, QUIZ, write
from tools import build
from tools.check import check

NOTEBOOK = "notebooks/01_bits.ipynb"


@pytest.fixture
def built(project, runner, no_expected):
    write(project.root, {"sources/quizzes/01_bits.toml": QUIZ})
    assert build.build(project) == []
    runner.calls.clear()
    return project


def edit(project, name, old, new):
    path = project.root / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_fresh_build_is_clean_and_nothing_is_executed(built, runner):
    assert check(built) == ([], [])
    assert runner.calls == []


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (
            NOTEBOOK,
            "double(21)",
            "double(22)",
            "(cell 01_bits-004: source); put the change into sources/lessons/01_bits.py",
        ),
        (NOTEBOOK, '"42\\n"', '"43\\n"', "(outputs)"),
        (NOTEBOOK, '"measured"', '"parameters"', "(cell 01_bits-006: metadata)"),
        (NOTEBOOK, '"01_bits-003"', '"a1b2c3"', "cell 01_bits-003: id"),
        (NOTEBOOK, '"accelerator": "GPU"', '"accelerator": "TPU"', "notebook metadata: accelerator"),
        (NOTEBOOK, '"nbformat_minor": 5', '"nbformat_minor": 4', "(nbformat)"),
        (NOTEBOOK, '"execution_count": 2', '"execution_count": 7', "(outputs)"),
        (NOTEBOOK, "{\n", "{ \n", "not laid out as the build writes it"),
        (NOTEBOOK, '"cells": [', '"cells": ', "not a notebook any more"),
        ("labs/01_bits.ipynb", "NotImplementedError", "RuntimeError", "put the change into sources/labs/01_bits.py"),
        ("labs/01_bits.ipynb", '"points": 2', '"points": 3', "metadata"),
        ("solutions/01_bits.ipynb", "half_of_it = x / 2", "half_of_it = x / 3", "cell 01_bits-005: source"),
        (
            "sources/lessons/01_bits.py",
            "# See the",
            "# Look at the",
            "notebooks/01_bits.ipynb is stale: sources/lessons",
        ),
        ("sources/labs/01_bits.py", "x / 2", "x / 2.0", "labs/01_bits.ipynb is stale"),
        ("sources/lessons/01_bits.py", "x = 3", "x = = 3", "sources/lessons/01_bits.py, line 19: invalid syntax"),
        ("ampedu/exercises/ex01_bits.py", "points=2", "points=3", "metadata"),
        ("ampedu/data/quizzes/01_bits.json", "By definition", "By law", "differs from sources/quizzes/01_bits.toml"),
        ("sources/quizzes/01_bits.toml", "By definition", "By law", "run `make build`"),
        ("sources/quizzes/01_bits.toml", "correct = false", "correct = true", "2 options are correct"),
        ("docs/coverage.md", "Doubling", "Halving", "docs/coverage.md is stale or was edited by hand"),
        ("docs/claims.toml", "Doubling", "Halving", "docs/coverage.md is stale"),
    ],
)
def test_every_difference_is_named_with_the_cure(built, name, old, new, words):
    edit(built, name, old, new)
    problems, _ = check(built)
    assert any(words in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


@pytest.mark.parametrize(
    "name",
    [NOTEBOOK, "labs/01_bits.ipynb", "solutions/01_bits.ipynb", "ampedu/data/quizzes/01_bits.json", "docs/coverage.md"],
)
def test_missing_files(built, name):
    (built.root / name).unlink()
    assert check(built)[0] == [f"{name} is missing; run `make build`."]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("sources/lessons/01_bits.py", b"", "sources/lessons/01_bits.py has no cells; start it with"),
        (
            "sources/lessons/01_bits.py",
            b"# %%\nx = '\xff'\n",
            "01_bits.py is not UTF-8 (the byte at position 10); save",
        ),
        ("sources/quizzes/01_bits.toml", b"\xff", "sources/quizzes/01_bits.toml is not UTF-8"),
        ("ampedu/helper.py", b"def f(:\n", "ampedu/helper.py, line 1: invalid syntax; correct the Python"),
        ("ampedu/exercises/ex01_bits.py", b"x = (\n", "ampedu/exercises/ex01_bits.py, line 1: '(' was never closed"),
    ],
)
def test_what_cannot_be_read_is_named(built, name, content, words):
    (built.root / name).write_bytes(content)
    assert any(words in problem for problem in check(built)[0])


def test_mutants_that_are_no_python_are_named(project):
    write(project.root, {"sources/mutants/01_bits.py": "def f(:"})
    assert any("sources/mutants/01_bits.py, line 1: invalid syntax" in problem for problem in check(project)[0])


@pytest.mark.parametrize("name", ["notebooks/09_x.ipynb", "labs/notes.txt", "ampedu/data/quizzes/09_x.json"])
def test_files_without_a_source(built, name):
    write(built.root, {name: "{}"})
    (problem,) = check(built)[0]
    assert problem.startswith(f"{name} has no source; delete it")


def test_a_removed_cell_and_an_added_one(built):
    path = built.root / NOTEBOOK
    for change in (lambda cells: cells.pop(), lambda cells: cells.append(dict(cells[0], id="x"))):
        good = path.read_text(encoding="utf-8")
        notebook = json.loads(good)
        change(notebook["cells"])
        path.write_text(json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        assert "cells instead of 6" in check(built)[0][0]
        path.write_text(good, encoding="utf-8")


def test_a_changed_module_only_warns(built):
    edit(built, "ampedu/helper.py", "return 2", "return 2.0")
    problems, warnings = check(built)
    assert problems == []
    assert warnings == [
        f"{NOTEBOOK} was executed with another version of ampedu.helper; run `make build` to execute it again."
    ]


def test_a_lab_without_exercises_file(built):
    (built.root / "ampedu/exercises/ex01_bits.py").unlink()
    assert any("ampedu/exercises/ex01_bits.py does not exist" in problem for problem in check(built)[0])


def test_sources_are_never_written(built):
    check(built)
    assert (built.root / "sources/lessons/01_bits.py").read_text(encoding="utf-8") == LESSON
    assert (built.root / "sources/labs/01_bits.py").read_text(encoding="utf-8") == LAB
