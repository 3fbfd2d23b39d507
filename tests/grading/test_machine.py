"""Memory for the jobs, and scratch folders of runs that were killed."""

import os
import signal
import subprocess
import sys

import pytest

from ampedu.grading import batch, machine
from ampedu.grading.machine import fit

GIB = 2**30


@pytest.mark.parametrize(
    ("jobs", "memory", "total", "cores", "seen"),
    [
        (None, None, 64, 8, (8, 4.0)),  # the usual
        (None, None, None, 8, (8, 4.0)),  # the memory is unknown
        (None, None, 16, 8, (8, 1.8)),  # 14.4 GiB for 8
        (None, None, 4, 8, (3, 1.2)),  # 3.6 GiB: three jobs of at least 1
        (3, None, 10, 8, (3, 3.0)),
        (None, 4.0, 16, 8, (3, 4.0)),
        (2, 4.0, 16, 8, (2, 4.0)),
    ],
)
def test_jobs_and_memory_fit_the_machine(jobs, memory, total, cores, seen):
    count, share, text = fit(jobs, memory, total and total * GIB, cores)
    assert (count, share) == seen
    assert bool(text) == (count != (jobs or cores) or share != (memory or 4.0))
    assert not text or (f"{count} jobs" in text and f"{share:g} GiB" in text)


@pytest.mark.parametrize(
    ("jobs", "memory", "total", "cure"),
    [
        (8, 4.0, 16, "Give --jobs 3 or --memory 1.8."),
        (8, None, 4, "Give --jobs 3."),
        (None, 64.0, 16, "Give --memory 14.4."),
        (None, None, 1, "Take a machine with more."),
    ],
)
def test_what_does_not_fit_names_the_cure(jobs, memory, total, cure):
    with pytest.raises(machine.TooMuch) as error:
        fit(jobs, memory, total * GIB, 8)
    assert str(error.value).endswith(cure)
    given = cure.removesuffix(".").split()
    if "--jobs" in given:
        fit(int(given[given.index("--jobs") + 1]), memory, total * GIB, 8)
    if "--memory" in given:
        fit(jobs, float(given[given.index("--memory") + 1]), total * GIB, 8)


def test_a_batch_says_so(monkeypatch):
    monkeypatch.setattr(batch, "memory_bytes", lambda: 4 * GIB)
    said = []
    assert batch._fitting(2, None, said.append) == (2, 1.8) and "1.8 GiB" in said[0]
    with pytest.raises(batch.GradingError, match="do not fit"):
        batch._fitting(4, 4.0, said.append)


OWNER = """
import signal, tempfile
from ampedu.grading import machine
with machine.scratch() as path:
    print(path, flush=True)
    signal.pause()
"""


def test_folders_of_killed_runs_are_removed_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "else").mkdir()
    (tmp_path / f"{machine.PREFIX}file").write_text("x")
    (tmp_path / f"{machine.PREFIX}link").symlink_to(tmp_path / "else")
    command, there = [sys.executable, "-c", OWNER], os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=there) as run:
        path = run.stdout.readline().strip()
        assert os.path.dirname(path) == str(tmp_path)
        with machine.scratch() as own:
            machine.tidy()
            assert os.path.isdir(path) and os.path.isdir(own)
            run.send_signal(signal.SIGKILL)
            run.wait()
            assert os.path.isdir(path)
            machine.tidy()
            assert not os.path.exists(path) and os.path.isdir(own)
    names = ["else", f"{machine.PREFIX}file", f"{machine.PREFIX}link"]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
