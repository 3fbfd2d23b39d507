"""Runs with real ranks: how they end, what the reader is told, and that no process is left.

Processes are found by a variable of the test's own in their environment, not by what the code under test sets.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from ampedu.distributed import DistributedError, DistributedTimeout, run_distributed
from tests.unit import distributed_jobs as jobs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
HANG = "from ampedu.distributed import run_distributed; run_distributed('tests.unit.distributed_jobs:hang')"


def alive(mark):
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TEST_MARK={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append((int(place.name), (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def gone(mark, seconds):
    """Whether the marked processes end in that time."""
    limit = time.monotonic() + seconds
    while alive(mark) and time.monotonic() < limit:
        time.sleep(0.1)
    return alive(mark) == []


@pytest.fixture
def mark(monkeypatch, tmp_path):
    """A variable that all processes of the test inherit; none of them, and no file, may be left at its end."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("TEST_MARK", value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield value
    left = [process for process in alive(value) if process[0] != os.getpid()]
    for pid, _ in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.mark.slow
def test_an_exception_of_a_rank_is_told_with_its_traceback(mark, tmp_path):
    with pytest.raises(DistributedError) as caught:
        run_distributed(jobs.crash, timeout=300)
    text = str(caught.value)
    assert text.startswith("rank 1 raised ValueError\n") and caught.value.rank == 1
    assert "[rank 1] ValueError: the loss is nan" in text and 'raise ValueError("the loss is nan")' in text
    assert "rank.py" not in text and "runpy" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_rank_is_named_and_not_the_one_that_waited_for_it(mark):
    with pytest.raises(DistributedError, match=r"rank 1 was killed by SIGKILL") as caught:
        run_distributed(jobs.killed, timeout=300)
    assert caught.value.rank == 1


@pytest.mark.slow
def test_a_rank_that_leaves_without_a_word(mark):
    with pytest.raises(DistributedError, match=r"rank [01] ended with exit code 3 and no traceback"):
        run_distributed(jobs.leaves, timeout=300)


@pytest.mark.slow
def test_a_result_that_cannot_be_sent_is_told_with_the_cure(mark):
    with pytest.raises(DistributedError, match=r"returned what cannot be sent back.*of type object; convert it to int"):
        run_distributed(jobs.no_plain_data, timeout=300)


@pytest.mark.slow
def test_a_hang_is_stopped_and_the_message_says_where(mark, tmp_path, capsys):
    started = time.monotonic()
    with pytest.raises(DistributedTimeout) as caught:
        run_distributed(jobs.hang, timeout=60)
    assert time.monotonic() - started < 150, "ending a hang must not take as long as the hang"
    assert "stopped after 60 s" in str(caught.value)
    assert "rank 0: distributed_jobs.py" in str(caught.value) and "inside all_reduce" in str(caught.value)
    assert "rank 1: distributed_jobs.py" in str(caught.value)
    assert capsys.readouterr().out == "[rank 1] asleep\n" and caught.value.output[1] == "asleep\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_timeout_before_anything_has_started(mark):
    with pytest.raises(DistributedTimeout, match="rank 0: not started yet"):
        run_distributed(jobs.hang, timeout=0.2)


def hanging_notebook(mark):
    """A process that plays the notebook, with two ranks that hang."""
    notebook = subprocess.Popen([sys.executable, "-u", "-c", HANG], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, start_new_session=True)  # fmt: skip
    assert notebook.stdout.readline() == "[rank 1] asleep\n"
    assert len(alive(mark)) >= 5, "the notebook, the launcher, two ranks and the child of one"
    return notebook


@pytest.mark.slow
def test_an_interrupt_of_the_notebook_ends_all_ranks(mark):
    notebook = hanging_notebook(mark)
    notebook.send_signal(signal.SIGINT)
    _, said = notebook.communicate(timeout=60)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert gone(mark, 0.5)


@pytest.mark.slow
def test_ranks_end_when_the_notebook_is_killed(mark):
    notebook = hanging_notebook(mark)
    notebook.kill()
    notebook.communicate()
    ranks = [process for process in alive(mark) if "ampedu.distributed.rank" in process[1]]
    deadline = time.monotonic() + 30
    while ranks and time.monotonic() < deadline:
        time.sleep(0.1)
        ranks = [process for process in alive(mark) if "distributed" in process[1]]
    assert ranks == []
    for pid, _ in alive(mark):  # a child in a session of its own outlives the rank that started it: nobody can know it
        os.kill(pid, signal.SIGKILL)
    assert gone(mark, 5)


@pytest.mark.slow
def test_a_port_in_use_does_no_harm(mark, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # a documentation address: nobody answers there
        with pytest.raises(DistributedError, match="the loss is nan"):
            run_distributed(jobs.crash, timeout=300)


@pytest.mark.slow
def test_a_script_runs_as_under_torchrun_and_leaves_its_result(mark, tmp_path, capsys):
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, helper\nimport torch.distributed as dist\n"
        "if __name__ == '__main__':\n    dist.init_process_group('gloo')\n"
        "    result = [sys.argv[1:], dist.get_rank(), helper.NAME]\n    dist.destroy_process_group()\n"
    )
    (tmp_path / "helper.py").write_text("NAME = 'beside the script'\n")
    results = run_distributed(script, args=("--steps", 3), timeout=300, quiet=True)
    assert results == [[["--steps", "3"], rank, "beside the script"] for rank in (0, 1)]
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_mistakes_in_the_file_are_told_with_its_line(mark, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("def main():\n    return 1\n\nx = undefined\n")
    with pytest.raises(DistributedError) as caught:
        run_distributed(f"{script}:main", timeout=300)
    assert "NameError: name 'undefined' is not defined" in str(caught.value)
    assert 'job.py", line 4' in str(caught.value) and "distributed/rank.py" not in str(caught.value)


@pytest.mark.slow
def test_bytes_between_two_ranks_are_those_of_the_theory(mark):
    for rank in run_distributed(jobs.ledgers, timeout=300):
        count = rank["parameters"]
        ((ddp,), (hook,)) = rank["ddp"], rank["fp16 hook"]
        assert (ddp["op"], ddp["dtype"], ddp["bytes"]) == ("all_reduce", "float32", 4 * count)
        assert (hook["op"], hook["dtype"], hook["bytes"]) == ("all_reduce", "float16", 2 * count)
        for dtype, size in (("float32", 4), ("bfloat16", 2)):
            rows = {(row["op"], row["dtype"]): row for row in rank[f"fsdp {dtype}"]}
            assert rows["reduce_scatter", dtype]["bytes"] == size * count
            assert set(rows) == {("all_gather", "bfloat16"), ("reduce_scatter", dtype), ("all_reduce", "float32")}
            # GradScaler's agreement on inf between shards: one float32 number.
            assert rows["all_reduce", "float32"]["bytes"] == 4
