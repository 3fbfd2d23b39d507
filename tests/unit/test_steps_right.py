"""The watcher of training loops: silent about every right loop, in which it changes no bit."""

import contextlib

import pytest
import torch

from ampedu.steps import StepWatcher
from tests.unit.steps_loops import RIGHT


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_raises_no_alarm_and_keeps_every_bit(name):
    watches = []

    def watched(*args, **kwargs):
        watches.append(StepWatcher(*args, **kwargs))
        return watches[-1]

    plain = RIGHT[name](lambda *args, **kwargs: contextlib.nullcontext())
    state = torch.get_rng_state()
    seen = RIGHT[name](watched)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    (watch,) = watches
    assert watch.violations == [], watch.report()
    assert watch.first is None and watch.problem is None
    assert {"backward", "step"} <= {event.kind for event in watch.events}
