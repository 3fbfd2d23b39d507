"""The watcher of training loops: every planted mistake is named, first and with its consequence."""

import contextlib

import pytest

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
    assert watch.first is not None, watch.report()
    assert watch.first.id == rule, watch.report()
    assert [violation.id for violation in watch.violations] == [rule], watch.report()
    assert watch.first.consequence
    assert watch.first.index < len(watch.events)
    assert rule in str(watch.report()) and watch.first.cure in str(watch.report())


def test_every_rule_is_planted_at_least_once():
    assert {rule for _, rule, _ in WRONG.values()} == set(RULES)
