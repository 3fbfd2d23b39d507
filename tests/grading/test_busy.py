"""A busy machine must not cost points: second tries, longer limits, and known submissions that ran out of time."""

import types

import pytest

from ampedu.exercises import data, load, of_stem
from ampedu.grading import batch, canaries, course, expected, results, sandbox, slot
from ampedu.grading.batch import GradingError
from ampedu.grading.results import LabResult, StudentResult
from ampedu.grading.sandbox import Observed

from .conftest import LAB, ROOT

MOST = sum(ex.points for ex in of_stem(LAB))


class Scripted:
    """A sandbox that runs nothing: its first answers to some exercises come too late."""

    def __init__(self, bundle, late):
        self.bundle, self.late, self.asked = bundle, dict(late), []

    def observe(self, ex, source, name, cases, within, slack):
        self.asked.append((ex.id, slack))
        count = len(cases)
        if self.late.get(ex.id, 0):
            self.late[ex.id] -= 1
            return Observed({}, [{"timeout": ex.seconds}] * count, [None] * count, "timeout", "At least one case.")
        return Observed({}, next(iter(self.bundle.exercises[ex.id].expected.values())), [None] * count)


def graded(monkeypatch, late, seconds=60.0):
    bundle = data.load(LAB)
    scripted = Scripted(bundle, late)
    monkeypatch.setattr(slot, "_ready", lambda stem: scripted)
    monkeypatch.setattr(slot, "patience", lambda: 3.0)
    slot.use(slot.Settings("bwrap", b"public", "public", seconds, 1 << 30, "/nowhere"), {LAB: bundle})
    lab = course.labs(ROOT, "01")[0]
    found = slot.grade(canaries.Submission("ann", "", "a.ipynb", str(lab.solution)), [lab], []).result
    return found, scripted.asked


def points(found, *ids):
    return [item.points for id in ids for item in found.exercises if item.id == id]


def test_what_was_late_is_run_again_after_all_others_and_with_more_time(monkeypatch):
    found, asked = graded(monkeypatch, {"01.decode": 1, "01.ulp": 1})
    assert found.status == "graded" and points(found, "01.decode", "01.ulp") == [2, 2]
    ids = [ex.id for ex in of_stem(LAB)]
    assert asked == [*((id, 1.0) for id in ids), ("01.decode", 3.0), ("01.ulp", 3.0)]


def test_what_is_late_twice_is_a_timeout_and_the_rest_counts(monkeypatch):
    found, _ = graded(monkeypatch, {"01.decode": 2, "01.ulp": 1})
    assert found.status == "timeout" and points(found, "01.decode", "01.ulp") == [0, 2]
    assert "01.decode" in found.reason and "01.ulp" not in found.reason


def test_longer_limits_reach_the_answer(warm):
    ex = load("01.decode")
    source = f"import time\ndef decode(*case):\n    time.sleep({ex.seconds + 0.5})\n    return 0.0"
    cases = ex.cases()[:1]
    assert warm.observe(ex, source, "decode", cases).end == "timeout"
    assert warm.observe(ex, source, "decode", cases, slack=8.0).end == "ok"


@pytest.mark.parametrize(("load_average", "slack"), [(0.0, 1.0), (2.0, 1.0), (6.0, 3.0), (500.0, 4.0)])
def test_patience_follows_the_load_of_each_core(load_average, slack, monkeypatch):
    monkeypatch.setattr(sandbox.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(sandbox.os, "getloadavg", lambda: (load_average, 0.0, 0.0))
    assert sandbox.patience() == slack


def result(status, score):
    return types.SimpleNamespace(result=LabResult(LAB, status, score, MOST, reason="Ran out of time: 01.decode."))


class OneByOne:
    """A pool that gives what was written down for it."""

    def __init__(self, answers):
        self.answers = answers

    def each(self, function, tasks):
        return [(number, self.answers.pop(0)) for number in range(len(tasks))]


BIRDS = [("solution", MOST), ("blank", 0), ("hostile", 0)]


def flown(tmp_path, answers):
    chosen = [(name, points, canaries.Submission(name, "", "x", str(tmp_path))) for name, points in BIRDS]
    lab = course.labs(ROOT, "01")[0]
    return list(batch._canaries(OneByOne([result(*answer) for answer in answers]), lab, chosen))


def test_a_known_submission_that_was_late_is_graded_once_more(tmp_path):
    late, good, none = ("timeout", MOST - 2), ("graded", MOST), ("graded", 0)
    assert [proof.score for proof in flown(tmp_path, [late, none, none, good])] == [MOST, 0, 0]
    with pytest.raises(GradingError, match=f"solution.* got {MOST - 2} .*overloaded.*--jobs 1"):
        flown(tmp_path, [late, none, none, late])
    with pytest.raises(GradingError, match=r"hostile.* got 1 points") as stopped:
        flown(tmp_path, [good, none, ("graded", 1)])
    assert "overloaded" not in str(stopped.value)


def test_regrade_gives_what_was_late_another_chance(tmp_path):
    labs = [LabResult(LAB, "timeout", 3, MOST), LabResult("02_where_precision_is_lost", "graded", 3, 5)]
    results.write(results.result_path(tmp_path, "ann"), StudentResult("ann", "", labs, "id", {}))
    assert batch._old(tmp_path, "ann", False) == labs and batch._old(tmp_path, "ann", True) == labs[1:]
    assert batch._old(tmp_path, "bob", True) == []


def test_a_late_answer_is_not_kept_as_expected():
    """The second look at the solution is the one that counts."""
    ex, asked = load("01.decode"), []

    class Busy:
        def observe(self, ex, source, name, cases, slack=1.0):
            asked.append(slack)
            late = len(asked) == 1
            outcome = {"timeout": ex.seconds} if late else {"value": 1.0}
            return Observed({}, [outcome] * len(cases), [None] * len(cases), "timeout" if late else "ok")

    cases = ex.cases()
    assert expected._outcomes(ex, "the solution", "", "decode", cases, Busy()) == [{"value": 1.0}] * len(cases)
    assert asked == [1.0, sandbox.MOST_PATIENCE]
