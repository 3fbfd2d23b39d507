"""The watcher of training loops: every planted mistake is named, first and with its consequence."""

import contextlib

import pytest
import torch

from ampedu.steps import RULES, StepWatcher
from tests.unit.steps_mistakes import WRONG


def watched(loop, raises=None):
    """The watcher after a loop that torch may stop."""
    watches = []

    def watch(*args, **kwargs):
        watches.append(StepWatcher(*args, **kwargs))
        return watches[-1]

    with pytest.raises(raises) if raises else contextlib.nullcontext():
        loop(watch)
    return watches[0]


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_the_first_that_is_named(name):
    loop, rule, raises = WRONG[name]
    watch = watched(loop, raises)
    assert watch.problem is None, watch.report()
    assert watch.first is not None, watch.report()
    assert watch.first.id == rule, watch.report()
    assert [violation.id for violation in watch.violations] == [rule], watch.report()
    assert watch.first.consequence
    assert watch.first.index < len(watch.events)
    assert rule in str(watch.report()) and watch.first.cure in str(watch.report())


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_keeps_every_bit(name):
    loop, _, raises = WRONG[name]
    weights = []
    for make in (StepWatcher, lambda *args, **kwargs: contextlib.nullcontext()):
        models = []

        def watch(model, *args, make=make, models=models, **kwargs):
            models.extend(model if isinstance(model, list) else [model])
            return make(model, *args, **kwargs)

        with pytest.raises(raises) if raises else contextlib.nullcontext():
            loop(watch)
        weights.append([p for model in models for p in model.parameters()])
    torch.testing.assert_close(*weights, rtol=0, atol=0, equal_nan=True)


def test_every_rule_is_planted_at_least_once():
    assert {rule for _, rule, _ in WRONG.values()} == set(RULES)
