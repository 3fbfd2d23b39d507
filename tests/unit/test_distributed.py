"""Tests of what run_distributed is made of, and of one run that goes well."""

import json
import math
import os

import pytest
import torch

from ampedu import _facts
from ampedu.distributed import launch, output, packing, processes, run_distributed, task
from tests.unit import distributed_jobs as jobs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Results and printed text of one run of two ranks, with variables of another launcher around it."""
    text = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_PORT", "1")
        patch.setenv("RANK", "7")
        patch.setenv("PET_NPROC_PER_NODE", "9")
        patch.setattr("builtins.print", lambda *words, **_: text.append(" ".join(words)))
        results = run_distributed(jobs.everything, args=(1.0, jobs.VALUES), timeout=300)
    return results, text


def test_each_rank_returns_and_the_ranks_have_talked(run):
    results, _ = run
    assert [torch.equal(result["sum"], torch.full((3,), 3.0)) for result in results] == [True, True]
    assert [result["env"]["LOCAL_RANK"] for result in results] == ["0", "1"]
    assert [(result["backend"], result["device"]) for result in results] == [("gloo", "cpu")] * 2


def test_arguments_and_results_keep_every_bit(run):
    for result in run[0]:
        back = result["values"]
        assert back["tuple"] == jobs.VALUES["tuple"] and type(back["tuple"]) is tuple
        assert back["none"] is None and back["nan"] == [math.inf, -math.inf]
        for name in ("bf16", "empty", "scalar"):
            assert back[name].dtype == jobs.VALUES[name].dtype and back[name].shape == jobs.VALUES[name].shape
            assert torch.equal(back[name], jobs.VALUES[name])
        assert torch.signbit(back["bf16"][1])


def test_lines_are_whole_and_tagged_and_there_are_no_others(run):
    lines = run[1]
    assert sorted(lines) == sorted(
        f"[rank {rank}] {line}" for rank in (0, 1) for line in (f"half a line, the other half of {rank}", "to stderr")
    )
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[rank {rank}]")]
        assert own[1].endswith("to stderr"), "stdout and stderr of a rank keep their order"


def test_ranks_share_the_cores_and_have_sessions_of_their_own(run):
    share = str(max(1, _facts.cores() // 2))
    assert [result["env"]["OMP_NUM_THREADS"] for result in run[0]] == [share] * 2
    assert all(result["group"] for result in run[0])
    assert [result["stdin"] for result in run[0]] == ["", ""]


def test_the_ledger_counts_a_collective_of_two_ranks(run):
    row = {"op": "all_reduce", "dtype": "float32", "calls": 1, "elements": 3, "bytes": 12}
    assert [result["ledger"] for result in run[0]] == [[row]] * 2


def test_the_address_of_another_launcher_is_not_used(run):
    assert all(result["env"]["MASTER_PORT"] != "1" for result in run[0])


def test_functions_that_no_new_process_can_import_are_refused_with_the_cure():
    typed = type(jobs.crash)(jobs.crash.__code__, {}, "train")
    typed.__module__ = "__main__"
    with pytest.raises(TypeError, match=r'%%writefile job\.py.*run_distributed\("job\.py:train"'):
        run_distributed(typed)
    with pytest.raises(TypeError, match=r"lambda.*%%writefile"):
        run_distributed(lambda: 1)

    def inner():
        return 1

    with pytest.raises(TypeError, match="inside another function"):
        run_distributed(inner)
    with pytest.raises(TypeError, match="not int"):
        run_distributed(3)
    with pytest.raises(TypeError, match="not a plain function"):
        run_distributed(print)


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("nowhere.py", "no file nowhere.py.*%%writefile"),
        ("nowhere.py:main", "no file nowhere.py"),
        ("no_such_module_here:main", "no module 'no_such_module_here'"),
        ("main", "names nothing to run"),
        ("a b:c d", "names nothing to run"),
    ],
)
def test_names_that_lead_nowhere_are_refused_before_anything_starts(what, match):
    with pytest.raises(ValueError, match=match):
        run_distributed(what)


def test_what_a_name_means(tmp_path, monkeypatch):
    file = tmp_path / "job.py"
    file.write_text("def main():\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    path = str(file.resolve())
    assert task.describe("job.py:main") == {"kind": "file", "target": path, "function": "main"}
    assert task.describe(file) == {"kind": "script", "target": path, "function": None}
    assert task.describe("json:dumps") == {"kind": "module", "target": "json", "function": "dumps"}
    assert task.describe(jobs.crash) == {"kind": "module", "target": jobs.__name__, "function": "crash"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"nproc": 0}, "nproc is 0"),
        ({"nproc": True}, "nproc is True"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": math.nan}, "timeout is nan"),
        ({"backend": "mpi"}, "backend is 'mpi'.*auto, gloo or nccl"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"args": (object(),)}, r"\[0\] is of type object; convert"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        run_distributed(jobs.crash, **options)


@pytest.mark.parametrize(
    ("gpus", "asked", "chosen"),
    [(0, "auto", "gloo"), (1, "auto", "gloo"), (2, "auto", "nccl"), (2, "nccl", "nccl"), (2, "gloo", "gloo")],
)
def test_the_backend_follows_the_gpus(monkeypatch, capsys, gpus, asked, chosen):
    monkeypatch.setattr("ampedu.device.resolve", lambda _: "cuda" if gpus else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert launch.choose_backend(asked, 2) == chosen
    assert ("2 ranks and 1 GPU: NCCL wants one GPU per rank" in capsys.readouterr().out) == (gpus == 1)


def test_nccl_without_enough_gpus_is_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"2 ranks and 0 GPUs.*backend='gloo'"):
        launch.choose_backend("nccl", 2)


def test_the_environment_of_the_ranks(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PET_NNODES", "MPLBACKEND"):
        monkeypatch.setenv(name, "x")
    env = processes.environment("mark", 3, "gloo", restarts=False)
    assert not {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PET_NNODES", "MPLBACKEND"} & set(env)
    assert env["OMP_NUM_THREADS"] == "3" and env[processes.MARK] == "mark"
    assert all(os.path.isabs(entry) for entry in env["PYTHONPATH"].split(os.pathsep))
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in env
    assert processes.environment("mark", 3, "gloo", restarts=True)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_output_waits_for_the_end_of_a_line(tmp_path, capsys):
    place = tmp_path / "run" / "attempt_0"
    for rank in ("0", "1"):
        (place / rank).mkdir(parents=True)
    out = output.Output(tmp_path, 2, quiet=False)
    out.poll()
    files = [place / str(rank) / "stdout.log" for rank in (0, 1)]
    files[0].write_bytes("ab \u00fc".encode()[:-1])  # half a line, and half a letter
    files[1].write_bytes(b"[Gloo] Rank 1 is connected to 1 peer ranks. Expected number\nfirst\nsec")
    out.poll()
    assert capsys.readouterr().out == "[rank 1] first\n"
    files[0].write_bytes("ab \u00fc\n10%\r100%\n".encode())
    out.poll()
    assert capsys.readouterr().out == "[rank 0] ab \u00fc\n[rank 0] 100%\n"
    out.poll()
    assert capsys.readouterr().out == ""
    out.poll(last=True)
    assert capsys.readouterr().out == "[rank 1] sec\n"
    assert out.text == {0: "ab \u00fc\n100%\n", 1: "first\nsec\n"}


def test_output_names_a_restart(tmp_path, capsys):
    for attempt, text in enumerate(("one\n", "two\n")):
        (tmp_path / "run" / f"attempt_{attempt}" / "0").mkdir(parents=True)
        (tmp_path / "run" / f"attempt_{attempt}" / "0" / "stdout.log").write_text(text)
    output.Output(tmp_path, 1, quiet=False).poll()
    assert capsys.readouterr().out == (
        "[rank 0] one\n[torchrun] a rank is gone: all ranks start again (restart 1)\n[rank 0] two\n"
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.float64, torch.bool, torch.int16])
def test_packed_tensors_are_plain_json_and_the_same_bits(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    text = packing.pack({"t": tensor.t()})
    json.loads(text)
    back = packing.unpack(text)["t"]
    assert back.dtype == dtype and torch.equal(back.view(torch.uint8) if dtype.itemsize == 1 else back,
                                               tensor.t().contiguous().view(torch.uint8)
                                               if dtype.itemsize == 1 else tensor.t())  # fmt: skip


def test_the_place_of_a_rank_is_the_innermost_line_outside_torch():
    stack = (
        'Stack (most recent call first):\n  File "/v/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n'
        '  File "/v/torch/distributed/c10d_logger.py", line 81 in wrapper\n  File "/home/a/job.py", line 4 in step\n'
        '  File "/home/a/job.py", line 8 in main\n  File "/x/ampedu/distributed/rank.py", line 60 in run\n'
    )
    assert launch._place(stack) == "job.py, line 4, in step (inside all_reduce)"
    assert launch._place("") == ""
