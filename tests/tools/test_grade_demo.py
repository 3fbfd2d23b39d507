"""The demonstration of grading: what is handed in, and what it gets."""

import csv
import os
import shutil

import pytest

from ampedu.exercises import load, of_stem
from ampedu.grading import answers, ingest, notebook
from tools import grade_demo

LAB = "01_bit_layouts"
MOST = sum(ex.points for ex in of_stem(LAB))


def worth(*ids):
    return sum(load(id).points for id in ids)


def test_the_submissions_are_what_they_say(tmp_path):
    grade_demo.write(tmp_path)
    grade_demo.write(tmp_path)  # a second time replaces them
    collected = ingest.collect(tmp_path / "submissions", tmp_path / "roster.csv", [LAB])
    assert len(collected.submissions) == 10 and not collected.rejected
    assert set(collected.names) == {item.student_id for item in collected.submissions}
    answered = {}
    for item in collected.submissions:
        if item.student_id == "hana":
            with pytest.raises(notebook.Unreadable):
                notebook.parse(ingest.load(item))
        else:
            answered[item.student_id] = len(answers.locate(notebook.parse(ingest.load(item)), of_stem(LAB)))
    every = len(of_stem(LAB))
    assert answered == dict.fromkeys(("ada", "ben", "chloe", "dev", "emil", "fatima", "gus", "ivo"), every) | {"jun": 4}
    emil = notebook.parse((tmp_path / "submissions/emil.ipynb").read_bytes())
    assert not [cell for cell in emil.cells if cell.kind == "code" and cell.source.startswith("def ")]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap")
def test_what_they_get(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert grade_demo.main([str(tmp_path / "demo")]) == 0
    out = tmp_path / "demo/results"
    with open(out / "scores.csv", encoding="utf-8", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    four = worth("01.decode", "01.ulp", "01.encode", "01.quantize")
    assert {id: (row["status"], int(row["score"])) for id, row in rows.items()} == {
        "ada": ("graded", MOST),
        "ben": ("graded", 0),
        "chloe": ("graded", MOST - worth("01.decode")),
        "dev": ("graded", MOST - four),
        "emil": ("graded", MOST),
        "fatima": ("timeout", MOST - worth("01.largest_integer")),
        "gus": ("crashed", MOST - worth("01.decode")),
        "hana": ("unreadable", 0),
        "ivo": ("graded", 0),
        "jun": ("graded", worth(*(ex.id for ex in of_stem(LAB)[:3]))),
    }
    printed = capsys.readouterr().out
    assert str(out / "class.html") in printed and "10 students: 1 crashed, 7 graded, 1 timeout, 1 unreadable" in printed
    assert "to review" in printed and os.path.getsize(out / "class.html") > 5000
