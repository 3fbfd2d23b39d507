"""A whole batch: scores, statuses, what is written, what is taken over, and when nothing is graded at all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ampedu.exercises import of_stem
from ampedu.grading import batch, canaries, command, results, secret, slot
from ampedu.grading.batch import GradingError, grade, regrade
from ampedu.grading.confine import SandboxError

from .conftest import LAB, ROOT, cells_of, written

MOST = sum(ex.points for ex in of_stem(LAB))
SOLUTION = ROOT / f"solutions/{LAB}.ipynb"
MUTANT = '''
def decode(code, exponent_bits, mantissa_bits):
    sign, exponent, mantissa = split(code, exponent_bits, mantissa_bits)
    bias = 2 ** (exponent_bits - 1)
    if exponent == 2**exponent_bits - 1:
        number = math.nan if mantissa else math.inf
    elif exponent == 0:
        number = math.ldexp(mantissa / 2**mantissa_bits, 1 - bias)
    else:
        number = math.ldexp(1 + mantissa / 2**mantissa_bits, exponent - bias)
    return -number if sign else number
'''


@pytest.fixture(scope="module")
def done(bwrap, cache, tmp_path_factory):
    """One graded batch: (folder of submissions, OUT, secret file, Run, {id: StudentResult})."""
    root = tmp_path_factory.mktemp("batch")
    given, key = root / "given", root / "secret"
    given.mkdir()
    shutil.copy(SOLUTION, given / "ann.ipynb")
    shutil.copy(ROOT / f"labs/{LAB}.ipynb", given / "bob.ipynb")
    written(given / "cyd.ipynb", [*cells_of(SOLUTION), MUTANT])
    written(given / "dan.ipynb", [*cells_of(SOLUTION), "def ulp(*a):\n    import os\n    os._exit(1)"])
    written(given / "eve.ipynb", ["def decode(code, exponent_bits, mantissa_bits):\n    return eval('code') * 1.0"])
    (given / "fay.ipynb").write_bytes(SOLUTION.read_bytes()[:5000])
    (given / "gus.ipynb").symlink_to(SOLUTION)
    roster = root / "roster.csv"
    roster.write_text("student_id,name\nann,Ann A\nzoe,Zoë\n", encoding="utf-8")
    secret.make(key)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    try:
        run = grade("1", given, root / "out", secret_file=key, roster=roster, jobs=2)
    finally:
        os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)
    _, students = results.load_run(root / "out")
    return given, root / "out", key, run, {student.student_id: student for student in students}


def of(done, id):
    return done[4][id].labs[0]


def exercise(done, id, name):
    return next(item for item in of(done, id).exercises if item.id == name)


def test_scores_and_statuses(done):
    seen = {id: (student.labs[0].status, student.labs[0].score) for id, student in done[4].items()}
    decode, ulp = (next(ex.points for ex in of_stem(LAB) if ex.id == id) for id in ("01.decode", "01.ulp"))
    assert seen == {
        "ann": ("graded", MOST),
        "bob": ("graded", 0),
        "cyd": ("graded", MOST - decode),
        "dan": ("crashed", MOST - ulp),
        "eve": ("graded", 0),
        "fay": ("unreadable", 0),
        "gus": ("unreadable", 0),
        "zoe": ("absent", None),
    }
    assert done[3].counts == {"absent": 1, "crashed": 1, "graded": 4, "unreadable": 2}
    assert all(student.labs[0].max_score == MOST for student in done[4].values())


def test_feedback_names_the_misconception_and_the_reason(done):
    wrong = exercise(done, "cyd", "01.decode")
    assert wrong.mutant == "bias_too_large" and "bias" in wrong.message and "2 times" in wrong.notes[0]
    assert wrong.difference.call.startswith("decode(") and wrong.difference.expected != wrong.difference.got
    ended = exercise(done, "dan", "01.ulp")
    assert "process ended" in ended.message and "status 1" in ended.error
    assert exercise(done, "bob", "01.decode").verdict == "not started"
    assert exercise(done, "eve", "01.ulp").verdict == "missing"
    assert exercise(done, "eve", "01.decode").review == ["uses eval"]
    assert "damaged" in of(done, "fay").reason and "link" in of(done, "gus").reason


def test_what_is_equal_is_flagged_and_costs_nothing(done):
    groups = {group.exercise: group for group in done[3].equal}
    assert groups["01.encode"].students == ["ann", "cyd", "dan"] and groups["01.encode"].published
    assert "cyd" not in groups["01.decode"].students
    assert not [group for group in done[3].equal if "bob" in group.students]


def test_the_secret_is_nowhere_in_the_results(done):
    key = secret.read(done[2])
    for path in done[1].rglob("*"):
        assert not path.is_file() or key not in path.read_bytes()
    assert done[3].secret_id == secret.secret_id(key) and key.decode()[:12] != done[3].secret_id


def test_run_tells_how_it_was_made(done):
    run = done[3]
    assert (run.sandbox, run.regraded, run.reused, run.labs) == ("bwrap", 7, 0, [LAB])
    assert {(c.name, c.score) for c in run.canaries} == {("solution", MOST), ("blank", 0), ("hostile", 0)}
    assert [info.id for info in run.exercises] == [ex.id for ex in of_stem(LAB)]
    assert sorted(os.listdir(done[1])) == ["class.html", "feedback", "results", "run.json", "scores.csv"]
    text = command.summary(run, list(done[4].values()))
    assert "dan: crashed" in text and "1 to review" in text and "8 students" in text


def steady(out):
    """The results without times."""
    found = {}
    for path in sorted((out / "results").glob("*.json")):
        node = json.loads(path.read_text())
        for lab in node["labs"]:
            lab["graded_at"] = lab["seconds"] = None
        found[path.name] = node
    return found


def test_a_second_run_grades_only_what_changed(done, inline, tmp_path):
    given, out, key, _, _ = done
    copy, again = tmp_path / "given", tmp_path / "out"
    shutil.copytree(given, copy, symlinks=True)
    shutil.copytree(out, again)
    written(copy / "bob.ipynb", cells_of(SOLUTION))
    (copy / "eve.ipynb").unlink()
    shutil.move(copy / "cyd.ipynb", copy / "cyd2.ipynb")
    roster = given.parent / "roster.csv"
    run = grade("01", copy, again, secret_file=key, roster=roster, jobs=1, executor=inline)
    # fay and gus have no answers that could be compared, bob's changed, cyd2 is somebody new.
    assert (run.reused, run.regraded) == (2, 4) and run.students == ["ann", "bob", "cyd2", "dan", "fay", "gus", "zoe"]
    after, before = steady(again), steady(out)
    assert after["ann.json"] == before["ann.json"] and after["dan.json"] == before["dan.json"]
    assert after["bob.json"]["labs"][0]["score"] == MOST and "eve.json" not in after
    assert results.load_run(again)[1][0].labs[0].graded_at == done[4]["ann"].labs[0].graded_at


@pytest.mark.slow
def test_regrade_and_another_secret(done, tmp_path):
    _, out, _, _, _ = done
    again, other = tmp_path / "out", tmp_path / "other"
    shutil.copytree(out, again)
    secret.make(other)
    assert regrade(again).regraded == 2
    run = regrade(again, secret_file=other)
    assert (run.reused, run.regraded) == (0, 7) and run.secret_id != done[3].secret_id
    assert {path: node["labs"][0]["score"] for path, node in steady(again).items()} == {
        path: node["labs"][0]["score"] for path, node in steady(out).items()
    }


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed(done, tmp_path):
    given, _, key, _, _ = done
    code = textwrap.dedent(f"""
        from ampedu.grading import grade
        def progress(done, total, item):
            print(done, flush=True)
        if __name__ == "__main__":
            grade("01", {str(given)!r}, {str(tmp_path / "out")!r}, secret_file={str(key)!r}, jobs=2, progress=progress)
    """)
    (tmp_path / "run.py").write_text(code)
    command_line = [sys.executable, tmp_path / "run.py"]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        for line in process.stdout:
            if int(line) >= 2:
                break
        process.send_signal(signal.SIGKILL)
    kept = list((tmp_path / "out/results").glob("*.json"))
    assert 2 <= len(kept) < 7 and not (tmp_path / "out/run.json").exists()
    run = grade("01", given, tmp_path / "out", secret_file=key, jobs=2)
    assert run.reused >= 1
    grade("01", given, tmp_path / "whole", secret_file=key, jobs=2)
    assert steady(tmp_path / "out") == steady(tmp_path / "whole")


def test_a_surprising_canary_stops_everything(done, inline, tmp_path, monkeypatch):
    given, _, key, _, _ = done
    monkeypatch.setattr(canaries, "hostile", lambda lab, course: SOLUTION.read_bytes())
    with pytest.raises(GradingError, match=f"hostile.*{MOST} points instead of 0"):
        grade("01", given, tmp_path / "out", secret_file=key, jobs=1, executor=inline)
    assert list((tmp_path / "out").rglob("*.json")) == []


def test_a_sandbox_that_fails_never_looks_like_a_zero(monkeypatch, tmp_path):
    """Nothing here runs: the sandbox cannot start."""

    def fails(*arguments, **options):
        raise SandboxError("Creating new namespace failed")

    monkeypatch.setattr(slot, "_ready", lambda stem: type("Broken", (), {"observe": fails})())
    lab = _lab()
    bundle = _bundle()
    slot.use(slot.Settings("bwrap", b"public", "public", 60.0, 1 << 30, str(tmp_path)), {LAB: bundle})
    found = slot.grade(canaries.Submission("ann", "", "a.ipynb", str(SOLUTION)), [lab], []).result
    assert (found.status, found.score) == ("infra", None)
    assert "Creating new namespace failed" in found.exercises[0].message
    assert {item.points for item in found.exercises} == {None}


def _lab():
    from ampedu.grading import course

    return course.labs(ROOT, "01")[0]


def _bundle():
    from ampedu.exercises import data

    return data.load(LAB)


def test_the_time_of_a_submission_is_bounded(warm, monkeypatch, tmp_path):
    monkeypatch.setattr(slot, "_ready", lambda stem: warm)
    slot.use(slot.Settings("bwrap", b"public", "public", 2.0, 1 << 30, str(tmp_path)), {LAB: _bundle()})
    path = written(tmp_path / "a.ipynb", [*cells_of(SOLUTION), "def decode(*a):\n    while True: pass"])
    began = time.monotonic()
    found = slot.grade(canaries.Submission("ann", "", "a.ipynb", str(path)), [_lab()], []).result
    assert found.status == "timeout" and "01.decode" in found.reason
    assert any("for the whole notebook were over" in item.message for item in found.exercises)
    assert time.monotonic() - began < 60  # far above 2 s, far below what all cases would take


@pytest.mark.parametrize("place", ["given/out", ".", "given"])
def test_results_do_not_go_among_the_submissions(tmp_path, place):
    written(tmp_path / "given/a.ipynb", ["x = 1"])
    with pytest.raises(GradingError, match="must not lie in each other"):
        grade("01", tmp_path / "given", tmp_path / place, sandbox="none")


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    written(tmp_path / "given/a.ipynb", ["x = 1"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("x")
    with pytest.raises(GradingError, match="not empty"):
        grade("01", tmp_path / "given", tmp_path / "out", sandbox="none")
    assert os.listdir(tmp_path / "out") == ["thesis.tex"]


def test_regrade_needs_a_finished_run(tmp_path):
    with pytest.raises(GradingError, match="ampedu grade run"):
        regrade(tmp_path)


def test_a_task_that_kills_its_process_is_given_up_and_the_others_are_done():
    from ampedu.grading.pool import Pool, local

    pool = Pool(lambda jobs: local(jobs, abs, 0), 2)
    try:
        found = dict(pool.each(_fatal, [(number,) for number in range(6)]))
    finally:
        pool.stop()
    assert {index for index, value in found.items() if isinstance(value, Exception)} == {3}
    assert [found[i] for i in (0, 1, 2, 4, 5)] == [0, 1, 2, 4, 5]


def _fatal(number):
    if number == 3:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_lost_is_infra(tmp_path):
    item = batch._lost(canaries.Submission("ann", "", "a.ipynb", str(tmp_path)), [_lab()], RuntimeError("boom"))
    assert (item.result.status, item.result.score) == ("infra", None) and "boom" in item.result.reason


