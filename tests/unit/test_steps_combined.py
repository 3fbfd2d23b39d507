"""The watcher of training loops: loops put together from every combination of parts, right and with one mistake."""

import contextlib
import itertools
import random

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ampedu.steps import StepWatcher
from tests.unit.steps_loops import batches, halve, mse, net, scaler

PARTS = {
    "micro": (1, 2, 3),
    "clip": ("none", "unscale only", "norm", "value"),
    "zero": ("start", "end", "keep tensors", "by hand"),
    "optimizer": ("sgd", "adam", "fused"),
    "schedule": ("none", "aware"),
    "inf_at": (None, 0, 2),
    "growth": (1, 2000),
}
MISTAKES = {
    "no unscale": "clip-before-unscale",
    "direct": "direct-step",
    "no zero": "zero-grad-missing",
    "no scale": "loss-not-scaled",
    "early unscale": "unscale-inside-accumulation",
    "blind schedule": "scheduler-after-skip",
    "no update": "missing-update",
}
ALL = [dict(zip(PARTS, values, strict=True)) for values in itertools.product(*PARTS.values())]


def possible(parts, mistake) -> bool:
    """Whether the mistake can be made, and shows, in such a loop."""
    if mistake == "no unscale":
        return parts["clip"] in ("norm", "value")
    if mistake == "direct" and parts["clip"] != "none":  # unscale_ has divided already
        return False
    if mistake in ("no scale", "direct", "no zero", "no update"):  # without a skip
        return parts["inf_at"] is None and parts["schedule"] == "none"
    if mistake == "early unscale":
        return parts["micro"] > 1 and parts["clip"] == "none"
    if mistake == "blind schedule":
        return parts["schedule"] == "aware" and parts["inf_at"] == 2
    return True


def run(watch, mistake="", micro=1, clip="none", zero="start", optimizer="sgd", schedule="none", inf_at=None, growth=1):
    model = net()
    make = {
        "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.5),
        "adam": lambda params: torch.optim.Adam(params, lr=0.01),
        "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    }[optimizer]
    opt, scale = make(model.parameters()), scaler(init_scale=1024.0, growth_interval=growth)
    scheduler = halve(opt) if schedule == "aware" else None

    def clear():
        if mistake == "no zero":
            return
        if zero == "by hand":
            for p in model.parameters():
                p.grad = None
        else:
            opt.zero_grad(set_to_none=zero != "keep tensors")

    with watch(model, opt, scale, scheduler):
        data = list(batches(4 * micro))
        for k in range(4):
            if zero == "start":
                clear()
            for i, (x, y) in enumerate(data[k * micro : (k + 1) * micro]):
                loss = mse(model, x, y) / micro
                scaled = scale.scale(loss * float("inf") if k == inf_at else loss)
                (loss if mistake == "no scale" else scaled).backward()
                if mistake == "early unscale" and i == 0:
                    scale.unscale_(opt)
            if clip != "none" and mistake != "no unscale":
                scale.unscale_(opt)
            if clip == "norm":
                clip_grad_norm_(model.parameters(), 0.5)
            elif clip == "value":
                clip_grad_value_(model.parameters(), 0.1)
            if mistake == "direct":
                opt.step()
            else:
                scale.step(opt)
            before = scale.get_scale()
            if mistake not in ("direct", "no update"):
                scale.update()
            if scheduler and (scale.get_scale() >= before or mistake == "blind schedule"):
                scheduler.step()
            if zero != "start":
                clear()
    return list(model.parameters())


def both(mistake="", **parts):
    """The watcher, and the weights with and without it."""
    watches = []

    def watch(*args):
        watches.append(StepWatcher(*args))
        return watches[-1]

    kinds = (watch, lambda *args: contextlib.nullcontext())
    weights = [[], []]
    for k, kind in enumerate(kinds):
        with contextlib.suppress(RuntimeError if mistake else ()):
            weights[k] = run(kind, mistake, **parts)
    return watches[0], weights


def check_right(parts):
    watch, (seen, plain) = both(**parts)
    assert watch.violations == [] and watch.problem is None, f"{parts}: {watch.report()}"
    torch.testing.assert_close(seen, plain, rtol=0, atol=0, equal_nan=True)


def check_wrong(mistake, parts):
    watch, (seen, plain) = both(mistake, **parts)
    named = watch.first.id if watch.first else None
    assert named == MISTAKES[mistake], f"{mistake}, {parts}: {watch.report()}"
    assert watch.problem is None
    torch.testing.assert_close(seen, plain, rtol=0, atol=0, equal_nan=True)


def test_no_alarm_for_right_combinations():
    for parts in random.Random(0).sample(ALL, 50):
        check_right(parts)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_any_combination_is_named(mistake):
    for parts in random.Random(1).sample([parts for parts in ALL if possible(parts, mistake)], 8):
        check_wrong(mistake, parts)


@pytest.mark.slow
def test_every_seventh_combination():  # 7 divides no number of choices, so that all choices meet
    for parts in ALL[::7]:
        check_right(parts)
        for mistake in MISTAKES:
            if possible(parts, mistake):
                check_wrong(mistake, parts)
