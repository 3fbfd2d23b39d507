import csv
import json
import os
import subprocess
import sys
import time

import pytest

from ampedu import progress


@pytest.fixture
def file(tmp_path, monkeypatch):
    target = tmp_path / "deep" / "progress.json"
    monkeypatch.setenv("AMPEDU_PROGRESS", str(target))
    monkeypatch.setattr(progress, "_said", set())
    return target


def test_best_status_and_points_are_kept_and_attempts_counted(file):
    for status, points in (("not started", 0), ("failed", 0), ("passed", 2), ("failed", 0), ("not started", 0)):
        progress.record_exercise("01.decode", status, points)
    assert progress.load() == {
        "schema": 1,
        "exercises": {"01.decode": {"status": "passed", "points": 2, "attempts": 3}},
        "quizzes": {},
    }
    assert json.loads(file.read_text()) == progress.load()
    assert [path.name for path in file.parent.iterdir()] == ["progress.json"], "no lock or part is left"
    with pytest.raises(ValueError, match="'great' is not one of"):
        progress.record_exercise("01.decode", "great", 1)


def test_quizzes(file):
    for correct in (False, True, False):
        progress.record_quiz("quiz/01.range", correct)
    progress.record_quiz("quiz/01.other", True)
    assert progress.load()["quizzes"] == {
        "quiz/01.range": {"correct": True, "attempts": 3, "first": False},
        "quiz/01.other": {"correct": True, "attempts": 1, "first": True},
    }


def test_default_place(monkeypatch):
    monkeypatch.delenv("AMPEDU_PROGRESS", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert str(progress.path()) == "/somewhere/.ampedu/progress.json"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"schema": 0, "exercises": {}, "quizzes": {}}', b"[" * 100_000,
     b'{"schema": 1, "exercises": {"a": {"status": "great", "points": 1, "attempts": 1}}, "quizzes": {}}',
     b'{"schema": 1, "exercises": {"a": 3}, "quizzes": {}}', b'{"schema": 1, "exercises": [], "quizzes": {}}',
     b'{"schema": 1, "exercises": {}, "quizzes": {"q": {"correct": 1, "attempts": 1, "first": true}}}'],
)  # fmt: skip
def test_a_damaged_file_is_set_aside_and_said_once(file, content, capsys):
    file.parent.mkdir()
    file.write_bytes(content)
    progress.record_exercise("01.a", "passed", 1)
    progress.record_exercise("01.b", "passed", 1)
    assert set(progress.load()["exercises"]) == {"01.a", "01.b"}
    assert (file.parent / "progress.corrupt-1.json").read_bytes() == content
    out, err = capsys.readouterr()
    assert out == "The progress file was damaged. It is kept as progress.corrupt-1.json, and a new one is started.\n"
    assert err == ""
    file.write_text("again")
    progress.load()
    assert (file.parent / "progress.corrupt-2.json").read_text() == "again"


def test_a_newer_file_is_left_alone(file, capsys):
    file.parent.mkdir()
    file.write_text('{"schema": 2, "new": true}')
    progress.record_exercise("01.a", "passed", 1)
    assert file.read_text() == '{"schema": 2, "new": true}' and progress.load()["exercises"] == {}
    assert "written by a newer version of ampedu: update ampedu." in capsys.readouterr().out


def test_an_unwritable_place_is_said_once_and_never_raises(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPEDU_PROGRESS", str(tmp_path / "file" / "progress.json"))
    monkeypatch.setattr(progress, "_said", set())
    for _ in range(2):
        progress.record_exercise("01.a", "passed", 1)
        progress.record_quiz("quiz/01.a", True)
    out, err = capsys.readouterr()
    assert out.count("Your progress could not be recorded") == 1 and "AMPEDU_PROGRESS" in out and err == ""
    assert progress.load()["exercises"] == {}


def test_what_is_no_regular_file_is_left_alone(tmp_path, monkeypatch, capsys):
    """AMPEDU_PROGRESS=/dev/null is a way to record nothing; setting it aside would rename the device."""
    device = tmp_path / "null"
    os.mkfifo(device)
    monkeypatch.setenv("AMPEDU_PROGRESS", str(device))
    monkeypatch.setattr(progress, "_said", set())
    progress.record_exercise("01.decode", "passed", 2)
    assert progress.load()["exercises"] == {}
    assert [path.name for path in tmp_path.iterdir()] == ["null"] and device.is_fifo()
    assert "is not a regular file" in capsys.readouterr().out


def test_without_a_home_folder_nothing_is_recorded_and_nothing_raises(monkeypatch, capsys):
    monkeypatch.delenv("AMPEDU_PROGRESS", raising=False)
    monkeypatch.setattr(progress, "_said", set())

    def homeless(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", homeless)
    progress.record_exercise("01.decode", "passed", 2)
    assert progress.load()["exercises"] == {}
    assert (
        "no home folder: choose another file with the environment variable AMPEDU_PROGRESS" in capsys.readouterr().out
    )


def test_a_lock_is_waited_for_and_a_stale_one_removed(file, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOCK_SECONDS", 0.2)
    file.parent.mkdir()
    lock = file.with_name("progress.json.lock")
    lock.touch()
    progress.record_exercise("01.a", "passed", 1)
    assert not file.exists() and "held by another notebook" in capsys.readouterr().out
    old = time.time() - 60
    os.utime(lock, (old, old))
    progress.record_exercise("01.a", "passed", 1)
    assert file.exists() and not lock.exists()


def test_notebooks_at_the_same_time_lose_no_entry(file):
    code = "import sys\nfrom ampedu.progress import record_exercise as record\n"
    code += "for i in range(40): record(f'0{sys.argv[1]}.e{i}', 'passed', 1)"
    workers = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(4)]
    assert [worker.wait(60) for worker in workers] == [0] * 4
    assert len(progress.load()["exercises"]) == 160


def test_export(file, tmp_path):
    progress.record_exercise("01.b", "passed", 2)
    progress.record_exercise("01.a", "failed", 0)
    progress.record_quiz("quiz/01.aa", True)
    with open(progress.export(tmp_path / "out.csv"), newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["kind"], row["id"], row["status"], row["points"], row["attempts"]) for row in rows] == [
        ("exercise", "01.a", "failed", "0", "1"),
        ("quiz", "quiz/01.aa", "passed", "0", "1"),
        ("exercise", "01.b", "passed", "2", "1"),
    ]
    assert json.loads(progress.export(tmp_path / "out.json").read_text()) == progress.load()
    with pytest.raises(ValueError, match=r"out\.xlsx: .*\.csv or a \.json"):
        progress.export(tmp_path / "out.xlsx")


def test_it_needs_no_torch():
    code = "import sys, ampedu.progress; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
