"""The example trains, and a run that lost a rank ends with the same bits as the one that did not."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ampedu.distributed import run_distributed

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_ddp_amp.py"
COMMON = ("--steps", 60, "--growth-interval", 5, "--save-every", 16)


def run(checkpoint, *options, restarts=0):
    return run_distributed(SCRIPT, args=(*COMMON, "--checkpoint", str(checkpoint), *options),
                           timeout=300, max_restarts=restarts)  # fmt: skip


def same(results):
    return {key: value for key, value in results.items() if key != "restarts"}


@pytest.fixture(scope="module")
def example():
    """The script as a module, in a process group of this process alone."""
    spec = importlib.util.spec_from_file_location("train_ddp_amp", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield module
    dist.destroy_process_group()


def train(example, monkeypatch, checkpoint, steps, *options):
    """A trainer after that many steps, which took up the checkpoint if there is one."""
    words = [str(SCRIPT), *map(str, COMMON), "--batch", "32", "--checkpoint", str(checkpoint), *options]
    monkeypatch.setattr(sys, "argv", words)
    trainer = example.Trainer(example.arguments())
    trainer.load()
    last, trainer.args.steps = trainer.args.steps, steps
    trainer.train()
    trainer.args.steps = last
    return trainer


def weights(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("options", [(), ("--precision", "bf16"), ("--precision", "fp32"), ("--accumulate", "3")])
def test_a_run_in_two_parts_is_the_run_in_one(example, monkeypatch, tmp_path, options):
    """60 steps cross the end of an epoch; the checkpoint of step 48 lies in the middle of the next."""
    whole = train(example, monkeypatch, tmp_path / "a.pt", 60, *options)
    train(example, monkeypatch, tmp_path / "b.pt", 55, *options)
    again = train(example, monkeypatch, tmp_path / "b.pt", 60, *options)
    assert equal(weights(whole), weights(again))
    assert whole.scaler.state_dict() == again.scaler.state_dict() and whole.skipped == again.skipped
    assert whole.evaluate() == again.evaluate() < 0.25
    assert (whole.epoch, whole.seen) == (again.epoch, again.seen) and whole.epoch > 0
    if not options:
        assert whole.skipped >= 2, "the scale must have moved, or its state would not matter"


FRESH = {
    "scaler": lambda saved: {**saved, "scale": 1024.0, "_growth_tracker": 0},
    "rng": lambda saved: [torch.Generator().manual_seed(9).get_state()],
    "optimizer": lambda saved: {**saved, "state": {}},
    "scheduler": lambda saved: {**saved, "last_epoch": 0},
    "progress": lambda saved: [saved[0], saved[1], 0, saved[3]],
}


@pytest.mark.parametrize("part", FRESH)
def test_each_part_of_the_checkpoint_is_needed(example, monkeypatch, tmp_path, part):
    whole = train(example, monkeypatch, tmp_path / "a.pt", 60)
    file = tmp_path / "b.pt"
    train(example, monkeypatch, file, 48)
    checkpoint = torch.load(file, weights_only=True)
    torch.save({**checkpoint, part: FRESH[part](checkpoint[part])}, file)
    again = train(example, monkeypatch, file, 60)
    if part == "scaler":
        assert again.scaler.state_dict() != whole.scaler.state_dict()
    else:
        assert not equal(weights(whole), weights(again))


def test_a_window_that_no_epoch_can_fill_is_refused(example, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="smaller --batch"):
        train(example, monkeypatch, tmp_path / "a.pt", 60, "--accumulate", "65")


def test_two_ranks_train_and_agree(tmp_path, capsys):
    results = run(tmp_path / "a.pt", "--steps", 20)
    assert results[0] == results[1] and results[0]["restarts"] == 0
    assert capsys.readouterr().out.startswith("[rank 0] 20 steps")
    assert torch.load(tmp_path / "a.pt", weights_only=True)["progress"][0] == 16


@pytest.mark.slow
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
def test_a_checkpoint_of_more_ranks_is_taken_up_by_fewer(tmp_path, capsys):
    run(tmp_path / "a.pt", "--steps", 32)
    alone = run_distributed(SCRIPT, nproc=1, args=(*COMMON, "--checkpoint", str(tmp_path / "a.pt")), timeout=300)
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
