"""Lab 05: the shared rules; its solutions against torch.amp.GradScaler, float32 training, and casts of real tensors."""

import functools
import io
import math
import random
import re

import numpy
import pytest
import torch
import torch.nn.functional as F

from ampedu.exercises import scaling_runs
from ampedu.exercises.ex05_dynamic_loss_scaling import SCALERS
from ampedu.exercises.mutants import load_mutants
from tests.labs.common import ROOT, LabTests, lab

STEM = "05_dynamic_loss_scaling"
SECRETS = [b"public", b"x", b"y", b"z"]
INF = math.inf


class TestLab05(LabTests):
    stem = STEM


@functools.cache
def answer(name):
    return lab(STEM).answer(f"05.{name}")


def spec(name):
    return lab(STEM).exercises[f"05.{name}"]


@functools.cache
def mutants():
    return {mutant.name: mutant.answer for mutant in load_mutants(ROOT / "sources" / "mutants" / f"{STEM}.py")}


# --- 5.1 ---------------------------------------------------------------------------------------------------------


def regression():
    """A model whose float16 gradients are zero unless the loss is scaled, with its data and its loss."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    batches = [(torch.randn(6, 4), torch.randn(6, 2)) for _ in range(3)]
    return model, batches, lambda outputs, targets: F.mse_loss(outputs.float(), targets) * 2.0**-30


def trained(step):
    """The updates of three steps; step: of model, batch, loss and optimizer."""
    model, batches, loss_fn = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**27, momentum=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    losses = [step(model, batch, loss_fn, optimizer) for batch in batches]
    return losses, torch.cat([(p - q).detach().flatten() for p, q in zip(model.parameters(), before, strict=True)])


def scaler_step(scaler):
    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step


def float32_step(model, batch, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("scale", [2.0**18, 2.0**24])
def test_a_constant_scale_makes_the_updates_of_torchs_scaler_and_nearly_those_of_float32(scale):
    def step(*given):
        return answer("static_step")(*given, scale)

    losses, moved = trained(step)
    theirs = trained(scaler_step(torch.amp.GradScaler("cpu", init_scale=scale)))
    assert losses == theirs[0]
    torch.testing.assert_close(moved, theirs[1], rtol=0, atol=0)
    wide = trained(float32_step)
    torch.testing.assert_close(moved, wide[1], rtol=0.02, atol=0.02 * wide[1].abs().max().item())
    torch.testing.assert_close(losses, wide[0], rtol=0.01, atol=0)


def test_without_a_scale_nothing_moves():
    _, moved = trained(lambda *given: answer("static_step")(*given, 1.0))
    assert torch.equal(moved, torch.zeros_like(moved))


@pytest.mark.parametrize("secret", SECRETS)
def test_gradients_of_the_cases_vanish_unscaled_and_are_normal_when_scaled(secret):
    for case in spec("static_step").cases(secret):
        x, y, w = (torch.tensor(case[name], dtype=torch.float64) for name in ("x", "y", "weights"))
        for rows in (slice(0, None), slice(1, None)):
            error = 2 * (x[rows] @ w.T - y[rows]) / len(x[rows]) * spec("static_step").spec.factor
            assert error.abs().max() < 2.0**-25 / 4
            scaled = error * case["scale"]
            assert 4 * 2.0**-14 < scaled.abs().min() and 40 * scaled.abs().max() < 65504


# --- 5.2 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
def test_check_and_unscale_is_torchs_kernel(secret):
    found = set()
    for case in spec("check_and_unscale").cases(secret):
        grads = [None if grad is None else torch.tensor(grad) for grad in case["grads"]]
        theirs = [grad.clone() for grad in grads if grad is not None]
        flag, inverse = torch.zeros(1), torch.tensor(1 / case["scale"])
        torch._amp_foreach_non_finite_check_and_unscale_(theirs, flag, inverse)
        assert answer("check_and_unscale")(grads, case["scale"]) is bool(flag.item())
        found.add(bool(flag.item()))
        mine = [grad for grad in grads if grad is not None]
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert found == {True, False}


# --- 5.3 ---------------------------------------------------------------------------------------------------------


class Live:
    """torch.amp.GradScaler behind the interface of the exercise."""

    def __init__(self, scale=65536.0, **constants):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, **constants)
        self.weight = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)
        self.get_scale, self.state_dict = self.scaler.get_scale, self.scaler.state_dict
        self.set_growth_interval, self.load_state_dict = self.scaler.set_growth_interval, self.scaler.load_state_dict

    def update(self, found_inf):
        self.scaler.scale(torch.zeros(1))  # makes the tensors that hold the state
        self.weight.grad = torch.full((1,), INF if found_inf else 0.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.parametrize("secret", SECRETS)
def test_the_scaler_is_torchs_on_secret_patterns(secret):
    for case in spec("dynamic_loss_scaler").cases(secret):
        mine = spec("dynamic_loss_scaler").run(answer("dynamic_loss_scaler"), case)
        assert mine == spec("dynamic_loss_scaler").run(Live, case)


@pytest.mark.parametrize("seed", range(20))
def test_the_scaler_is_torchs_on_random_walks(seed):
    draw = random.Random(seed)
    constants = {
        "growth_factor": draw.choice([2.0, 1.5, 1.1, 8.0]),
        "backoff_factor": draw.choice([0.5, 0.9, 0.1]),
        "growth_interval": draw.randint(1, 4),
    }
    scale = 2.0 ** draw.choice([-140, 0, 16, 120])
    mine, theirs = answer("dynamic_loss_scaler")(scale, **constants), Live(scale, **constants)
    for _ in range(60):
        event = draw.choices(["ok", "inf", "interval", "reload"], [8, draw.choice([1, 8]), 0.5, 0.5])[0]
        if event == "interval":
            interval = draw.randint(1, 5)
            mine.set_growth_interval(interval)
            theirs.set_growth_interval(interval)
        elif event == "reload":  # each loads what the other saved
            saved = mine.state_dict(), theirs.state_dict()
            mine, theirs = answer("dynamic_loss_scaler")(), Live()
            mine.load_state_dict(saved[1])
            theirs.load_state_dict(saved[0])
        else:
            mine.update(event == "inf")
            theirs.update(event == "inf")
        assert mine.state_dict() == theirs.state_dict()
        assert mine.get_scale() == theirs.get_scale()


@pytest.mark.parametrize("secret", SECRETS)
def test_cases_reach_the_cap_zero_and_a_stopped_growth(secret):
    walks = [Live(case["scale"], **{n: case[n] for n in ("growth_factor", "backoff_factor", "growth_interval")})
             for case in spec("dynamic_loss_scaler").cases(secret)]  # fmt: skip
    seen = set()
    for case, live in zip(spec("dynamic_loss_scaler").cases(secret), walks, strict=True):
        for event in case["events"]:
            if event in ("ok", "inf"):
                before = live.get_scale()
                live.update(event == "inf")
                state = live.state_dict()
                seen |= {"cap"} if before == 2.0**127 == live.get_scale() and not state["_growth_tracker"] else set()
                seen |= {"zero"} if live.get_scale() == 0 else set()
                seen |= {"stopped"} if state["_growth_tracker"] > state["growth_interval"] else set()
            elif event.startswith("interval"):
                live.set_growth_interval(int(event.split()[1]))
    assert seen == {"cap", "zero", "stopped"}


def test_a_scale_that_is_a_float32_of_numpy_passes():
    class Scaler(answer("dynamic_loss_scaler")):
        def update(self, found_inf):
            super().update(found_inf)
            self.scale = numpy.float32(self.scale)

    verdict = lab(STEM).verdict("05.dynamic_loss_scaler", Scaler)
    assert verdict.status == "passed", (verdict.message, verdict.difference)


def test_ways_to_use_torchs_scaler_are_flagged_and_not_forbidden():
    from ampedu.exercises import cells

    for name in ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.GradScaler", "torch._amp_update_scale_"):
        source = f"import torch\n\n\ndef f():\n    return {name}\n"
        assert cells.uses(source, SCALERS) == [name], name
    assert spec("dynamic_loss_scaler").forbids == ("ampedu.scaling",)


# --- 5.4 to 5.6 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
def test_the_schedule_counts_the_steps_that_happened(secret):
    for case in spec("finish_step").cases(secret):
        seen = spec("finish_step").run(answer("finish_step"), case)
        done = 0
        for grad, text in zip(case["grads"], seen, strict=True):
            moved, _, lr = text.split(", ")
            assert float(moved) == (0 if grad == INF else -0.5 * 0.5**done * grad)
            done += grad != INF
            assert float(lr) == 0.5 * 0.5**done


@pytest.mark.parametrize("finish", ["always_on_schedule", "finish_step"])
def test_torch_warns_as_the_lab_says_if_the_first_step_is_skipped(finish, recwarn):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale((weight * INF).sum()).backward()
    (answer(finish) if finish == "finish_step" else mutants()[finish])(scaler, optimizer, scheduler)
    texts = [str(warning.message) for warning in recwarn]
    quoted = "Detected call of `lr_scheduler.step()` before `optimizer.step()`"
    assert [text.startswith(quoted) for text in texts] == [True] * (finish != "finish_step")


@pytest.mark.parametrize("secret", SECRETS)
def test_step_all_tells_the_truth_also_for_fused_optimizers(secret):
    seen_fused = set()
    for case in spec("step_all").cases(secret):
        seen_fused.add(case["fused"])
        for grads, text in zip(case["grads"], spec("step_all").run(answer("step_all"), case), strict=True):
            happened, _, rest = text.partition(": ")
            assert happened.split() == ["no" if grad == INF else "yes" for grad in grads]
            moved = [float(value) for value in rest.split(", ")[0].split()]
            assert moved == [0 if grad == INF else -0.25 * grad for grad in grads]
    assert seen_fused == {True, False}


def test_step_all_with_adam_and_a_parameter_without_a_gradient():
    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([{"params": [used]}, {"params": [unused]}])
    scaler = torch.amp.GradScaler("cpu")
    for factor, expected in ((1.0, True), (INF, False), (0.0, True)):
        optimizer.zero_grad()
        scaler.scale((used * factor).sum()).backward()
        assert answer("step_all")(scaler, [optimizer]) == [expected]
    assert optimizer.state[used]["step"] == 2


@pytest.mark.parametrize("factor", [INF, math.nan, -INF])
def test_a_guarded_step_leaves_weights_and_state_of_adam_alone(factor):
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    assert answer("guarded_step")(layer(torch.ones(2, 3)).sum(), optimizer) is True
    before = {**{k: v.clone() for k, v in layer.state_dict().items()},
              **{k: v.clone() for k, v in optimizer.state[layer.weight].items()}}  # fmt: skip
    assert answer("guarded_step")((layer(torch.ones(2, 3)) * factor).sum(), optimizer) is False
    after = {**layer.state_dict(), **optimizer.state[layer.weight]}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert answer("guarded_step")(layer(torch.ones(2, 3)).sum(), optimizer) is True
    assert all(torch.isfinite(p).all() for p in layer.parameters())


@pytest.mark.parametrize("secret", SECRETS)
def test_losses_of_guarded_steps_are_finite_where_the_case_says_so(secret):
    kinds = set()
    for case in spec("guarded_step").cases(secret):
        for step in case["steps"]:
            a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
            loss = spec("guarded_step").spec.loss(step, a, b)
            loss.backward()
            assert loss.isfinite().item() is (step["kind"] != "loss")
            finite = bool(a.grad.isfinite().all() and b.grad.isfinite().all())
            assert finite is (step["kind"] == "ok")
            kinds.add(step["kind"])
    assert kinds == {"ok", "inf", "nan", "minus", "loss"}


# --- 5.7 and 5.8 -----------------------------------------------------------------------------------------------------


def places(values, dtype):
    """Where real tensors land: the fractions of each place, counted after a cast."""
    landed = values.to(dtype).double()
    least = torch.finfo(dtype).smallest_normal
    flags = {
        "zero": landed == 0,
        "subnormal": (landed != 0) & (landed < least),
        "normal": (landed >= least) & landed.isfinite(),
        "overflow": landed.isinf(),
    }
    return {name: flag.double().mean().item() for name, flag in flags.items()}


@pytest.mark.parametrize("secret", SECRETS)
def test_landing_is_what_a_cast_of_the_gradients_does(secret):
    for case in spec("landing").cases(secret):
        dtype, histogram = getattr(torch, case["dtype"]), dict(case["histogram"])
        middles = [1.5 * 2.0**e for e, count in histogram.items() for _ in range(count)]
        expected = places(torch.tensor(middles, dtype=torch.float64) * case["scale"], dtype)
        assert answer("landing")(histogram, dtype, case["scale"]) == pytest.approx(expected, abs=1e-12)


def test_landing_is_nearly_right_for_gradients_that_fill_their_bins():
    generator = torch.Generator().manual_seed(1)
    values = torch.exp2(-34 + 30 * torch.rand(20000, generator=generator, dtype=torch.float64))
    exponents = (torch.frexp(values)[1] - 1).tolist()
    histogram = {e: exponents.count(e) for e in set(exponents)}
    for k in (0, 4, 12, 20):
        mine = answer("landing")(histogram, torch.float16, 2.0**k)
        assert mine == pytest.approx(places(values * 2.0**k, torch.float16), abs=0.002)


@pytest.mark.parametrize("secret", SECRETS)
def test_the_chosen_scale_is_the_largest_that_fits(secret):
    for case in spec("choose_scale").cases(secret):
        histogram, headroom = dict(case["histogram"]), case["headroom"]
        scale, lost = answer("choose_scale")(histogram, headroom)
        middles = torch.tensor([1.5 * 2.0**e for e in histogram], dtype=torch.float64)
        assert (middles * scale * 2.0**headroom).half().isfinite().all()
        assert not (middles * scale * 2.0 ** (headroom + 1)).half().isfinite().all()
        counts = torch.tensor(list(histogram.values()), dtype=torch.float64)
        assert lost == pytest.approx((counts[(middles * scale).half() == 0].sum() / counts.sum()).item())


# --- 5.9 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
def test_the_resumed_run_is_the_uninterrupted_one(secret):
    resumed = spec("checkpoint").spec
    for case in spec("checkpoint").cases(secret):
        objects, cut = resumed.built(case), case["saved_after"]
        resumed.train(objects, case["inputs"][:cut])
        weight = objects[0].weight.item()
        uninterrupted = resumed.train(objects, case["inputs"][cut:])
        assert resumed.run(answer("checkpoint"), case) == [f"weight {weight:.8g}", *uninterrupted]


def test_the_checkpoint_survives_a_file_with_weights_only():
    resumed = spec("checkpoint").spec
    case = spec("checkpoint").cases()[0]
    objects, cut = resumed.built(case), case["saved_after"]
    resumed.train(objects, case["inputs"][:cut])
    file = io.BytesIO()
    torch.save(answer("checkpoint").save(*objects), file)
    file.seek(0)
    fresh = resumed.built({**case, "weight": 0.0, "scale": 65536.0})
    answer("checkpoint").load(torch.load(file, weights_only=True), *fresh)
    assert resumed.train(fresh, case["inputs"][cut:]) == resumed.train(objects, case["inputs"][cut:])


# --- 5.10 ------------------------------------------------------------------------------------------------------------

X = torch.tensor([[1.0, 2.0], [-1.0, 1.0], [2.0, -1.0], [0.5, 1.5]])
Y = X @ torch.tensor([[1.0], [-2.0]])


def made(scaler, factor=1.0, plant="", fresh=None):
    """Ten steps under float16 with a planted cause: (loss, scale that the step was made with)."""
    weight = torch.zeros(1, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.05 / factor)
    rows = []
    for n in range(10):
        scaler = fresh if fresh and n == 5 else scaler
        x = X.clone()
        if plant == "batch" and n == 5:
            x[0, 0] = INF
        if plant == "weights" and n == 4:
            with torch.no_grad():
                weight.fill_(math.nan)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(F.linear(x, weight).float(), Y) * factor
        if plant == "sqrt":
            loss = loss + (0 * weight.sum()).sqrt()
        rows.append((loss.item(), scaler.get_scale()))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return rows


def scaler_of(scale=65536.0, interval=2000, backoff=0.5, **more):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval, **more)
    if scaler.is_enabled():
        scaler.set_backoff_factor(backoff)
    return scaler


CAUSED = {
    "A": lambda: made(scaler_of()),
    "B": lambda: made(scaler_of(1024.0), plant="batch"),
    "C": lambda: made(scaler_of(4096.0, interval=2)),
    "D": lambda: made(scaler_of(enabled=False), factor=1e-9),
    "E": lambda: made(scaler_of(2.0**30, backoff=1.0)),
    "F": lambda: made(scaler_of(1024.0), plant="weights"),
    "G": lambda: made(scaler_of(1024.0), plant="sqrt"),
    "H": lambda: made(scaler_of(2048.0), fresh=scaler_of()),
}


@pytest.mark.parametrize("run", list(scaling_runs.RUNS))
def test_each_run_is_what_its_planted_cause_makes(run):
    letter = answer("diagnoses")()[run - 1]
    losses, scales = zip(*CAUSED[letter](), strict=True)
    expected_losses, expected_scales = zip(*scaling_runs.RUNS[run], strict=True)
    assert scales == expected_scales
    assert list(losses) == pytest.approx(list(expected_losses), rel=0.01, nan_ok=True)
    finite = [loss for loss in losses if math.isfinite(loss)]
    shown = {f"{loss:.3g}" for loss in finite}
    assert len(set(finite)) == len(shown), "a loss that looks the same is not the same to the last bit"


def test_every_run_has_a_cause_of_its_own():
    letters = answer("diagnoses")()
    assert len(set(letters)) == len(letters) == len(scaling_runs.RUNS) and set(letters) < set(scaling_runs.CAUSES)


def test_the_lab_counts_its_runs_and_causes():
    text = "\n".join(cell.source for cell in lab(STEM).script.cells if cell.kind == "markdown")
    assert re.search(r"Eight runs .* ten steps each", text) and "Ten causes" in text
    assert (len(scaling_runs.RUNS), len(scaling_runs.CAUSES)) == (8, 10)
    assert {len(steps) for steps in scaling_runs.RUNS.values()} == {10}
