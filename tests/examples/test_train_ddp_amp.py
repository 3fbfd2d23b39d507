"""The example trains, and a run that lost a rank ends with the same bits as the one that did not."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ampedu.distributed import run_distributed

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_ddp_amp.py"
COMMON = ("--steps", 60, "--growth-interval", 5, "--save-every", 16)


def run(checkpoint, *options, restarts=0):
    return run_distributed(SCRIPT, args=(*COMMON, "--checkpoint", str(checkpoint), *options), max_restarts=restarts)


def same(results):
    return {key: value for key, value in results.items() if key != "restarts"}


def test_a_killed_rank_costs_time_but_no_bit(tmp_path, capsys):
    """Resumed from step 32, with an overflow before and after; then again, in a new run from the last checkpoint."""
    lost = run(tmp_path / "a.pt", "--die-at", 45, restarts=1)
    text = capsys.readouterr().out
    assert [result["restarts"] for result in lost] == [1, 1]
    assert "resumed at step 32, loss scale" in text and "restart 1" in text
    assert lost[0] == lost[1], "the ranks must agree"
    assert not (tmp_path / "a.part").exists()
    checkpoint = torch.load(tmp_path / "a.pt", weights_only=True)
    assert checkpoint["progress"][0] == 48 and len(checkpoint["rng"]) == 2
    assert checkpoint["scaler"]["scale"] != 65536.0 or checkpoint["scaler"]["_growth_tracker"] > 0
    undisturbed = run(tmp_path / "b.pt")
    assert [result["restarts"] for result in undisturbed] == [0, 0]
    assert same(lost[0]) == same(undisturbed[0])
    assert undisturbed[0]["skipped"] >= 2 and undisturbed[0]["loss"] < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--precision", "bf16"), ("--accumulate", 3, "--seed", 3), ("--die-rank", 0)])
def test_other_settings_resume_bit_for_bit(tmp_path, options):
    lost = run(tmp_path / "a.pt", "--die-at", 33, *options, restarts=1)
    undisturbed = run(tmp_path / "b.pt", *options)
    assert lost[0]["restarts"] == 1 and same(lost[0]) == same(undisturbed[0])


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["scaler", "rng", "optimizer", "scheduler"])
def test_each_part_of_the_checkpoint_is_needed(tmp_path, left_out):
    """Without one of its parts, the resumed run ends elsewhere: the equality above can fail."""
    whole = run(tmp_path / "a.pt")
    part = tmp_path / "b.pt"
    run(part, "--steps", 32)
    checkpoint = torch.load(part, weights_only=True)
    fresh = {"scaler": {**checkpoint["scaler"], "scale": 1024.0, "_growth_tracker": 0},
             "rng": checkpoint["rng"][::-1],
             "optimizer": {**checkpoint["optimizer"], "state": {}},
             "scheduler": {**checkpoint["scheduler"], "last_epoch": 0}}  # fmt: skip
    torch.save({**checkpoint, left_out: fresh[left_out]}, part)
    assert run(part)[0]["weights"] != whole[0]["weights"]


@pytest.mark.slow
def test_a_checkpoint_of_more_ranks_is_taken_up_by_fewer(tmp_path, capsys):
    run(tmp_path / "a.pt", "--steps", 32)
    alone = run_distributed(SCRIPT, nproc=1, args=(*COMMON, "--checkpoint", str(tmp_path / "a.pt")))
    text = capsys.readouterr().out
    assert "the checkpoint is of 2 ranks" in text and "resumed at step 32" in text
    assert alone[0]["loss"] < 0.2


@pytest.mark.slow
def test_the_command_of_the_docstring(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    done = subprocess.run([*command, "--steps", "20", "--batch", "8"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=200, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "20 steps" in done.stdout and (tmp_path / "train_ddp_amp.pt").exists()
