"""LossScale in lock-step with torch.amp.GradScaler: every state, for any sequence of overflows, factors and scales."""

import dataclasses
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampedu.scaling import LossScale, pattern_of

FACTORS = st.one_of(
    st.sampled_from([2.0, 0.5, 1.1, 0.1, 1.0, 1.99999999999, 1e30]),
    st.floats(1e-3, 1e3, allow_nan=False),
)
SCALES = st.one_of(
    st.sampled_from([65536.0, 1.0, 0.0, 2.0**127, 2.0**-149, 3 * 2.0**-149, math.inf, math.nan, -3.0]),
    st.floats(width=32, min_value=0.0),
)
ACTIONS = st.one_of(
    st.tuples(st.just("update"), st.booleans()),
    st.tuples(st.just("update"), st.booleans()),
    st.tuples(st.just("update"), st.just(False)),
    st.tuples(st.just("new_scale"), SCALES),
    st.tuples(st.just("growth_interval"), st.integers(-1, 6)),
    st.tuples(st.just("growth_factor"), FACTORS),
    st.tuples(st.just("backoff_factor"), FACTORS),
    st.tuples(st.just("resume"), st.none()),
)


def whole_scaler(scale=65536.0, growth_interval=2000):
    """A GradScaler for the CPU with one weight: inf in its gradient is what a step finds."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    scaler.scale(torch.zeros(1))
    return scaler, optimizer, weight


def act(scaler, optimizer, weight, kind, value):
    if kind in ("update", "new_scale"):
        weight.grad = torch.full((1,), math.inf if value is True else 0.0)
        scaler.step(optimizer)
        scaler.update(None if kind == "update" else value)
    elif kind == "resume":
        state = scaler.state_dict()
        scaler = torch.amp.GradScaler("cpu")
        scaler.load_state_dict(state)
        scaler.scale(torch.zeros(1))
    else:
        getattr(scaler, f"set_{kind}")(value)
    return scaler


def follow(state, kind, value):
    if kind == "update":
        return state.update(value)
    if kind == "new_scale":
        return state.update(new_scale=value)
    if kind == "resume":
        return LossScale.from_state_dict(state.state_dict())
    return dataclasses.replace(state, **{kind: value})


def same(ours: dict, torchs: dict) -> bool:
    """Equal to the last bit, types and order of the keys too; NaN equals NaN."""
    return repr(list(ours.items())) == repr(list(torchs.items()))


def lock_step(interval, actions):
    scaler, optimizer, weight = whole_scaler(growth_interval=interval)
    state = LossScale(growth_interval=interval)
    for kind, value in actions:
        if kind == "new_scale" and not 0 < value < math.inf:
            continue  # the optimizer's own unscaling is not what is compared here
        scaler, state = act(scaler, optimizer, weight, kind, value), follow(state, kind, value)
        assert same(state.state_dict(), scaler.state_dict()), (kind, value)


def kernel_lock_step(state, actions):
    scale, tracker = torch.tensor(state.scale), torch.tensor(state.growth_tracker, dtype=torch.int32)
    for kind, value in actions:
        state = follow(state, kind, value)
        if kind == "update":
            constants = state.growth_factor, state.backoff_factor, state.growth_interval
            torch._amp_update_scale_(scale, tracker, torch.tensor(float(value)), *constants)
        elif kind == "new_scale":
            scale.fill_(value)
        assert repr((state.scale, state.growth_tracker)) == repr((scale.item(), tracker.item())), (kind, value)


STATES = st.builds(LossScale, SCALES, st.integers(0, 8), FACTORS, FACTORS, st.integers(-1, 8))


@settings(max_examples=200)
@given(STATES, st.lists(ACTIONS, max_size=60))
@example(LossScale(2.0**126, 0, 2.0, 0.5, 1), [("update", False)] * 4)
@example(LossScale(2.0**-147, 0, 2.0, 0.5, 1), [("update", True)] * 5 + [("update", False)])
def test_every_state_is_that_of_torchs_kernel(state, actions):
    kernel_lock_step(state, actions)


@settings(max_examples=200)
@given(st.integers(1, 5), st.lists(ACTIONS, max_size=12))
def test_every_state_is_that_of_a_whole_scaler(interval, actions):
    lock_step(interval, actions)


@pytest.mark.slow
@settings(max_examples=5000)
@given(STATES, st.lists(ACTIONS, max_size=200))
def test_every_state_of_many_long_runs_is_that_of_torchs_kernel(state, actions):
    kernel_lock_step(state, actions)


@pytest.mark.slow
@settings(max_examples=5000)
@given(st.integers(1, 5), st.lists(ACTIONS, max_size=30))
def test_every_state_of_many_runs_is_that_of_a_whole_scaler(interval, actions):
    lock_step(interval, actions)


def test_defaults_are_torchs():
    assert same(LossScale().state_dict(), torch.amp.GradScaler("cpu").state_dict())


def test_growth_needs_exactly_the_interval():
    assert [state.scale for state in LossScale(8.0, growth_interval=3).trace("......")] == [8, 8, 16, 16, 16, 32]
    assert [state.growth_tracker for state in LossScale(8.0, growth_interval=3).trace("..x.")] == [1, 2, 0, 1]
    lowered = dataclasses.replace(LossScale(8.0, growth_tracker=5), growth_interval=3)
    assert [(s.scale, s.growth_tracker) for s in lowered.trace("..")] == [(8, 6), (8, 7)]
    assert "cannot grow" in lowered.simulate(".")[0].event


def test_the_scale_stops_below_infinity_and_has_no_floor():
    capped = LossScale(2.0**127, growth_interval=1).update()
    assert (capped.scale, capped.growth_tracker) == (2.0**127, 0)
    falls = LossScale().trace("x" * 166)
    assert falls[-2].scale == 2.0**-149 and falls[-1].scale == 0
    assert 1 / torch.tensor(falls[142].scale) == 2.0**127 and torch.isinf(1 / torch.tensor(falls[143].scale))


def test_a_new_scale_leaves_the_tracker_alone():
    state = LossScale(8.0, growth_tracker=2).update(found_inf=True, new_scale=3.3)
    assert (state.scale, state.growth_tracker) == (torch.tensor(3.3).item(), 2)
    assert state.update(new_scale=torch.tensor(4.0)).scale == 4
    with pytest.raises(TypeError, match=r"write a float, 5\.0"):
        state.update(new_scale=5)
    with pytest.raises(AttributeError):
        whole_scaler()[0].update(5)


@pytest.mark.parametrize("found_inf", [math.nan, 2.0, -1.0, torch.tensor(1.0), True])
def test_whatever_is_not_zero_counts_as_found(found_inf):
    scale, tracker = torch.tensor(8.0), torch.tensor(1, dtype=torch.int32)
    torch._amp_update_scale_(scale, tracker, torch.as_tensor(found_inf).float(), 2.0, 0.5, 9)
    state = LossScale(8.0, 1).update(found_inf)
    assert (state.scale, state.growth_tracker) == (scale.item(), tracker.item()) == (4, 0)


def test_beyond_float32_is_refused_where_torch_refuses():
    with pytest.raises(RuntimeError, match="overflow"):
        torch.full((), 3.5e38, dtype=torch.float32)
    with pytest.raises(ValueError, match="float32, which ends at"):
        LossScale(3.5e38)
    with pytest.raises(ValueError, match="float32, which ends at"):
        LossScale().update(new_scale=3.5e38)


def test_what_is_no_state_is_named():
    with pytest.raises(ValueError, match="disabled GradScaler"):
        LossScale.from_state_dict(torch.amp.GradScaler("cpu", enabled=False).state_dict())
    with pytest.raises(ValueError, match="lacks _growth_tracker, growth_factor"):
        LossScale.from_state_dict({"scale": 1.0})
    with pytest.raises(TypeError, match="growth_interval must be an int"):
        LossScale(growth_interval=2.5)
    with pytest.raises(TypeError, match="scale must be a number, not str"):
        LossScale("65536")


def test_patterns():
    assert pattern_of(". x 0 1") == pattern_of([0, 1.0, False, True]) == [False, True, False, True]
    assert pattern_of("") == []
    with pytest.raises(ValueError, match="unknown sign 'y'"):
        pattern_of("..y")
    with pytest.raises(TypeError, match="not int"):
        pattern_of(5)


def test_a_simulation_tells_each_step():
    rows = LossScale(2.0**16, growth_interval=2).simulate("x..")
    assert [(row.step, row.scale_before, row.scale, row.tracker, row.skipped) for row in rows] == [
        (0, 65536, 32768, 0, True),
        (1, 32768, 32768, 1, False),
        (2, 32768, 65536, 0, False),
    ]
    assert [row.event for row in rows] == [
        "inf or NaN found: step skipped, scale 65536 → 32768",
        "clean step 1 of 2: scale stays 32768",
        "clean step 2 of 2: scale 32768 → 65536, the count starts again",
    ]
