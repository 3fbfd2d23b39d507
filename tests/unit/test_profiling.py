"""torch.profiler over a few steps: counts that are known, and nothing written to the terminal."""

import pytest
import torch

from ampedu.profiling import profiled


def calls(events, key):
    return sum(event.count for event in events if event.key == key)


def test_counts_what_the_steps_call_and_not_the_warm_up():
    x = torch.randn(8, 8)
    made = []
    events = profiled(lambda: made.append((x @ x, x.bfloat16())), steps=3)
    assert len(made) == 5
    assert (calls(events, "aten::mm"), calls(events, "aten::_to_copy")) == (3, 3)


def test_is_silent_and_restores_the_threads(capfd):
    before = torch.get_num_threads()
    profiled(lambda: torch.ones(2).sum(), steps=1)
    assert capfd.readouterr().err == ""
    assert torch.get_num_threads() == before


def test_ends_the_profiler_where_a_step_raises():
    count = []

    def step():
        count.append(1)
        if len(count) == 3:
            raise KeyError("step")

    with pytest.raises(KeyError):
        profiled(step)
    assert profiled(lambda: None, steps=1) is not None


def test_refuses_no_steps():
    with pytest.raises(ValueError, match="at least one step"):
        profiled(lambda: None, steps=0)
