"""ScalerLog against what really happened: weights that moved or not, the scaler's own numbers, torch's errors."""

import copy
import gc
import io
import json
import math
import pickle
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampedu.scaling import LossScale, ScalerLog, log


def setup(make=torch.optim.SGD, enabled=True, growth_interval=3, **options):
    weight = torch.nn.Parameter(torch.ones(3))
    options = {"lr": 0.1, **options}
    scaler = torch.amp.GradScaler("cpu", growth_interval=growth_interval, enabled=enabled)
    return weight, make([weight], **options), scaler


def backward(scaler, weight, bad=False):
    weight.grad = None
    loss = (weight * torch.tensor([1.0, 2.0, math.inf if bad else 3.0])).sum()
    scaler.scale(loss).backward()


def iterate(scaler, pairs, bad=(), unscale=False):
    """One iteration of all (weight, optimizer) pairs; bad: those whose gradients overflow. Which weights moved."""
    scaler_moved = []
    for index, (weight, _) in enumerate(pairs):
        backward(scaler, weight, index in bad)
    for weight, optimizer in pairs:
        before = weight.detach().clone()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler_moved.append(not torch.equal(before, weight))
    return scaler_moved


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}),
    "adam": (torch.optim.Adam, {}),
    "fused sgd": (torch.optim.SGD, {"fused": True}),
    "fused adamw": (torch.optim.AdamW, {"fused": True}),
}


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_stepped_is_whether_the_weights_moved(kind, unscale):
    make, options = OPTIMIZERS[kind]
    weight, optimizer, scaler = setup(make, **options)
    pattern = [False, True, True, False, False, False, True, False]
    with ScalerLog(scaler) as seen:
        for bad in pattern:
            moved = iterate(scaler, [(weight, optimizer)], {0} if bad else (), unscale)
            assert [seen.stepped] == [not bad] == moved
            scaler.update()
            assert seen.stepped == seen.stepped_by(optimizer) == moved[0]
    name = make.__name__
    assert [row.found_inf for row in seen.rows] == [{name: bad} for bad in pattern]
    assert [row.stepped for row in seen.rows] == [{name: not bad} for bad in pattern]
    assert seen.skips == [1, 2, 6]
    states = [LossScale(growth_interval=3), *LossScale(growth_interval=3).trace(pattern)]
    assert [(r.scale_before, r.tracker_before) for r in seen.rows] == [(s.scale, s.growth_tracker) for s in states[:-1]]
    assert [(r.scale, r.tracker) for r in seen.rows] == [(s.scale, s.growth_tracker) for s in states[1:]]
    assert [r.event for r in seen.rows] == [r.event for r in LossScale(growth_interval=3).simulate(pattern)]


def test_backoff_of_one_hides_a_skip_in_the_scale_but_not_in_the_log():
    weight, optimizer, scaler = setup()
    scaler.set_backoff_factor(1.0)
    with ScalerLog(scaler) as seen:
        before = scaler.get_scale()
        assert iterate(scaler, [(weight, optimizer)], {0}) == [False]
        scaler.update()
    assert scaler.get_scale() == before and not seen.stepped and seen.skips == [0]
    assert seen.rows[0].event == "inf or NaN found: step skipped, scale stays 65536"


def test_a_scale_of_zero_still_tells_skips():
    weight, optimizer, scaler = setup()
    scaler.scale(torch.zeros(1))
    scaler.load_state_dict({**scaler.state_dict(), "scale": 0.0})
    with ScalerLog(scaler) as seen:
        iterate(scaler, [(weight, optimizer)], {0})
        scaler.update()
    assert seen.skips == [0] and (seen.rows[0].scale_before, seen.rows[0].scale) == (0, 0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, 8.0])), max_size=8))
def test_one_of_two_optimizers_may_skip_while_the_other_steps(iterations):
    first, second = setup(), setup(torch.optim.Adam, fused=True)
    pairs, scaler = [first[:2], second[:2]], first[2]
    with ScalerLog(scaler, critic=second[1]) as seen:
        for one_bad, two_bad, unscale, new_scale in iterations:
            bad = {index for index, each in enumerate((one_bad, two_bad)) if each}
            moved = iterate(scaler, pairs, bad, unscale)
            scaler.update(new_scale)
            row = seen.rows[-1]
            assert row.stepped == {"SGD": moved[0], "critic": moved[1]} == {"SGD": not one_bad, "critic": not two_bad}
            assert row.found_inf == {"SGD": one_bad, "critic": two_bad}
            assert seen.stepped == all(moved) and row.skipped == (not all(moved))
            assert [seen.stepped_by(first[1]), seen.stepped_by("critic")] == moved
            if len(bad) == 1 and new_scale is None:
                assert f"step of {'critic' if two_bad else 'SGD'} skipped" in row.event


def test_an_optimizer_that_has_its_turn_every_other_iteration_did_not_step_in_between():
    first, second = setup(), setup()
    with ScalerLog(first[2]) as seen:
        iterate(first[2], [first[:2], second[:2]])
        first[2].update()
        iterate(first[2], [first[:2]])
        first[2].update()
    assert [list(row.stepped) for row in seen.rows] == [["SGD", "SGD 2"], ["SGD"]]
    assert seen.stepped and seen.stepped_by(first[1]) and not seen.stepped_by(second[1])


def test_a_disabled_scaler_steps_always():
    weight, optimizer, scaler = setup(enabled=False)
    with ScalerLog(scaler) as seen:
        backward(scaler, weight)
        scaler.step(optimizer)
        scaler.update()
    assert weight[0] != 1 and seen.stepped and seen.skips == []
    (row,) = seen.rows
    assert (row.scale, row.tracker, row.found_inf) == (1.0, 0, {"SGD": None}) and "disabled" in row.event


def test_a_new_scale_is_told():
    weight, optimizer, scaler = setup()
    with ScalerLog(scaler) as seen:
        iterate(scaler, [(weight, optimizer)])
        scaler.update(new_scale=128.0)
        iterate(scaler, [(weight, optimizer)], {0})
        scaler.update(64.0)
    assert [row.event for row in seen.rows] == [
        "scale set to 128, the count goes on",
        "scale set to 64, the count goes on",
    ]
    assert [row.scale for row in seen.rows] == [128, 64] and seen.skips == [1]
    assert [row.tracker for row in seen.rows] == [0, 0] == [scaler.state_dict()["_growth_tracker"]] * 2


@pytest.mark.parametrize("bad", [False, True])
def test_an_optimizer_that_was_unscaled_and_never_stepped(bad):
    weight, optimizer, scaler = setup()
    with ScalerLog(scaler) as seen:
        backward(scaler, weight, bad)
        scaler.unscale_(optimizer)
        assert not seen.stepped
        scaler.update()
    assert seen.rows[0].found_inf == {"SGD": bad} and seen.rows[0].stepped == {"SGD": False}
    assert not seen.stepped and seen.skips == ([0] if bad else [])


def test_without_a_step_torchs_error_comes_through_and_nothing_is_claimed():
    weight, optimizer, scaler = setup()
    with ScalerLog(scaler) as seen:
        with pytest.raises(AssertionError, match="_scale is None"):
            scaler.step(optimizer)
        backward(scaler, weight)
        with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
            scaler.update()
        assert not seen.stepped and seen.rows == [] and repr(seen) == "ScalerLog: no update() yet"
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="already been called since the last update"):
            scaler.step(optimizer)
        assert seen.stepped
    assert not optimizer._optimizer_step_post_hooks


def test_a_step_that_raises_is_not_a_step():
    weight, optimizer, scaler = setup()
    handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), ScalerLog(scaler) as seen:
        backward(scaler, weight)
        scaler.step(optimizer)
    handle.remove()
    assert not seen.stepped and seen.rows == []
    assert not set(log.WATCHED) & set(vars(scaler)) and not optimizer._optimizer_step_post_hooks


def train(watched: bool, fused: bool):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    parts = [list(model[0].parameters()), list(model[2].parameters())]
    optimizers = [torch.optim.Adam(parts[0], 0.01, fused=fused), torch.optim.SGD(parts[1], 0.01, momentum=0.9)]
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    seen = ScalerLog(scaler)
    if watched:
        seen.attach()
    for step in range(20):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 8)).float().square().mean() * (math.inf if step in (3, 11) else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizers[0])
        torch.nn.utils.clip_grad_norm_(parts[0], 0.1)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        seen.stepped  # noqa: B018 asked in every step, as a scheduler would
    state = [model.state_dict(), *(optimizer.state_dict() for optimizer in optimizers), scaler.state_dict()]
    packed = io.BytesIO()
    torch.save([state, torch.get_rng_state()], packed)
    return packed.getvalue(), seen


@pytest.mark.parametrize("fused", [False, True])
def test_a_watched_run_is_the_same_to_the_last_bit(fused):
    plain, nothing = train(False, fused)
    watched, seen = train(True, fused)
    assert plain == watched
    assert nothing.rows == [] and len(seen.rows) == 20 and seen.skips == [3, 11]
    assert repr(seen) == "ScalerLog: 20 steps, 2 skipped (steps 3, 11), scale 65536 → 131072"


def test_neither_graph_nor_gradients_nor_optimizer_are_kept():
    weight, optimizer, scaler = setup()
    with ScalerLog(scaler) as seen:
        hidden = weight.exp()
        loss = scaler.scale(hidden.square().sum())
        loss.backward()
        kept = [weakref.ref(each) for each in (hidden, loss, weight, optimizer)]
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        del hidden, loss, weight, optimizer
        gc.collect()
        assert [ref() for ref in kept] == [None] * 4
    assert seen.stepped


def test_the_scaler_can_be_copied_and_pickled_while_it_is_watched():
    weight, optimizer, scaler = setup()
    with ScalerLog(scaler) as seen:
        iterate(scaler, [(weight, optimizer)])
        scaler.update()
        copies = [copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))]
        for other in copies:
            assert other.state_dict() == scaler.state_dict()
            iterate(other, [(weight, optimizer)], {0})
            other.update()
            assert other.get_scale() == scaler.get_scale() / 2
    assert len(seen.rows) == 1, "the copies are not watched"


def test_two_logs_in_any_order_of_leaving():
    weight, optimizer, scaler = setup()
    first, second = ScalerLog(scaler).attach(), ScalerLog(scaler).attach()
    first.attach()  # a second time changes nothing
    iterate(scaler, [(weight, optimizer)])
    scaler.update()
    first.detach()
    iterate(scaler, [(weight, optimizer)], {0})
    scaler.update()
    second.detach()
    iterate(scaler, [(weight, optimizer)])
    scaler.update()
    assert (len(first.rows), len(second.rows)) == (1, 2) and second.skips == [1]
    assert not set(log.WATCHED) & set(vars(scaler)), "the scaler is as it was"


def test_a_method_that_somebody_else_has_shadowed_comes_back():
    weight, optimizer, scaler = setup()
    calls, plain = [], scaler.update
    scaler.update = mine = lambda *args: (calls.append(args), plain(*args))
    with ScalerLog(scaler) as seen:
        iterate(scaler, [(weight, optimizer)])
        scaler.update()
    assert scaler.update is mine and calls == [()] and len(seen.rows) == 1
    assert "step" not in vars(scaler)


def test_a_log_goes_on_after_it_was_attached_again():
    weight, optimizer, scaler = setup()
    seen = ScalerLog(scaler)
    for bad in ((), {0}):
        with seen:
            iterate(scaler, [(weight, optimizer)], bad)
            scaler.update()
    assert [row.step for row in seen.rows] == [0, 1] and seen.skips == [1]


class OldContract(torch.optim.SGD):
    """Takes the scaler in its step, as torch still allows: it is called always and looks for inf itself."""

    _step_supports_amp_scaling = True

    def step(self, closure=None, *, grad_scaler=None):
        grad_scaler.unscale_(self)
        if not any(float(found) for found in grad_scaler._found_inf_per_device(self).values()):
            super().step()


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop passing itself:FutureWarning")
@pytest.mark.parametrize("bad", [False, True])
def test_an_optimizer_that_takes_the_scaler(bad):
    weight, optimizer, scaler = setup(OldContract)
    with ScalerLog(scaler) as seen:
        assert iterate(scaler, [(weight, optimizer)], {0} if bad else ()) == [not bad]
        scaler.update()
    assert seen.rows[0].stepped == {"OldContract": not bad} and seen.rows[0].found_inf == {"OldContract": bad}


class LooksLikeOne:
    """No Optimizer, but all that a GradScaler asks for."""

    def __init__(self, params, lr):
        self.inner = torch.optim.SGD(params, lr)
        self.param_groups = self.inner.param_groups

    def step(self):
        self.inner.step()


@pytest.mark.parametrize("bad", [False, True])
def test_something_that_only_looks_like_an_optimizer(bad):
    weight, optimizer, scaler = setup(LooksLikeOne)
    with ScalerLog(scaler) as seen:
        assert iterate(scaler, [(weight, optimizer)], {0} if bad else ()) == [not bad]
        scaler.update()
    assert seen.rows[0].stepped == {"LooksLikeOne": not bad}


def test_json_lines_are_strict_json(tmp_path):
    weight, optimizer, scaler = setup()
    with ScalerLog(scaler) as seen:
        for bad in ((), {0}):
            iterate(scaler, [(weight, optimizer)], bad)
            scaler.update()
        iterate(scaler, [(weight, optimizer)])
        scaler.update(math.inf)
    path = tmp_path / "scaler.jsonl"
    seen.to_jsonl(path)
    lines = path.read_text(encoding="utf-8").splitlines()

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    objects = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [each["scale"] for each in objects] == [65536.0, 32768.0, "inf"]
    assert [each["stepped"] for each in objects] == [{"SGD": True}, {"SGD": False}, {"SGD": True}]


def test_another_torch_is_refused_before_the_training_starts():
    class Other(torch.amp.GradScaler):
        _found_inf_per_device = None

    scaler = Other("cpu")
    with pytest.raises(RuntimeError, match=r"cannot read the Other of torch .*_found_inf_per_device"):
        ScalerLog(scaler).attach()
    assert not set(log.WATCHED) & set(vars(scaler))
    with pytest.raises(TypeError, match="not SGD"):
        ScalerLog(setup()[1])
