"""The files that grading writes: round trip, damage, and what a score is when something could not be graded."""

import dataclasses
import json

import pytest

from ampedu.grading import results
from ampedu.grading.results import Difference, ExerciseResult, LabResult, StudentResult


def student(*labs):
    return StudentResult("ann", "Ann Ä", list(labs), "0123", {"torch": "2.13.0"})


def lab(status="graded", score=3):
    first = ExerciseResult(
        "01.decode", "T", "failed", 0, 2, "ok", "No.", "m", notes=["n"], difference=Difference(0, "f(1)", "1", "2")
    )
    second = ExerciseResult("01.ulp", "U", "passed", 3, 3, "ok", "All agree.")
    return LabResult("01_bit_layouts", status, score, 5, [first, second])


def test_round_trip(tmp_path):
    path = results.result_path(tmp_path, "ann")
    results.write(path, student(lab()))
    assert results.read(path, StudentResult) == student(lab())
    assert json.loads(path.read_text())["labs"][0]["exercises"][0]["difference"]["got"] == "2"
    assert [item.name for item in path.parent.iterdir()] == ["ann.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "surprise": 0}', '{"format": 1}'])
def test_damage_names_the_file_and_the_cure(tmp_path, text):
    path = tmp_path / "ann.json"
    path.write_text(text)
    with pytest.raises(results.ResultDamaged, match=r"ann\.json.*Delete it"):
        results.read(path, StudentResult)


def test_what_could_not_be_graded_has_no_score():
    assert student(lab(), lab("absent", None)).score == 3
    assert student(lab(), lab("infra", None)).score is None
    assert student(lab("absent", None)).score is None
    assert student(lab("unreadable", 0)).score == 0


def test_every_field_is_json(tmp_path):
    for kind in (StudentResult, results.Run):
        assert "format" in {field.name for field in dataclasses.fields(kind)}
