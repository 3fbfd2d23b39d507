"""The watcher of training loops: its numbers, what it leaves behind, its picture, its errors."""

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.utils import clip_grad
from torch.nn.utils import clip_grad_norm_ as clip_imported_by_name
from torch.optim import optimizer as optimizers

from ampedu.plots import step_timeline
from ampedu.steps import StepWatcher
from tests.unit.steps_loops import batches, half, halve, mse, net, scaler, sgd


def one_step(watch_args=(), lr=0.5, clip=None, unscale=True, make=torch.optim.SGD, inf=False, steps=1):
    """A watched loop on the same data; returns the watcher and the model."""
    model = net()
    optimizer, scale = make(model.parameters(), lr=lr), scaler()
    with StepWatcher(model, optimizer, scale) as watch:
        for x, y in batches(steps):
            optimizer.zero_grad()
            loss = mse(model, x, y) * (float("inf") if inf else 1.0)
            scale.scale(loss).backward()
            if unscale:
                scale.unscale_(optimizer)
            if clip:
                clip_imported_by_name(model.parameters(), clip)
            scale.step(optimizer)
            scale.update()
    return watch, model


def true_gradient():
    model = net()
    x, y = next(batches(1))
    mse(model, x, y).backward()
    return [p.grad for p in model.parameters()]


def size(tensors):
    return torch.cat([tensor.double().flatten() for tensor in tensors]).norm().item()


def torch_state():
    """Everything that a watcher replaces or registers."""
    cells = [cell.cell_contents for name in ("clip_grad_norm_", "clip_grad_value_") for cell in _cells(name)]
    owners = [torch.amp.GradScaler, torch.optim.Optimizer, torch.nn.Module, torch.autocast, torch.autograd, clip_grad]
    owners += [torch.nn.utils, torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau]
    owners += [torch.optim.lr_scheduler.SequentialLR, torch.optim.lr_scheduler.ChainedScheduler]
    hooks = [modules._global_forward_hooks, optimizers._global_optimizer_pre_hooks]
    hooks += [optimizers._global_optimizer_post_hooks]
    return [cells, [dict(vars(owner)) for owner in owners], [dict(kept) for kept in hooks]]


def _cells(name):
    return getattr(clip_grad, name).__closure__


# ---- numbers


def test_clip_before_unscale_the_update_is_the_threshold_over_the_scale():
    watch, _ = one_step(clip=1.0, unscale=False)
    # After the clip the scaled gradient has norm 1; SGD's update is lr / scale, and lr * 1 in the right order (C29).
    assert watch.first.actual == pytest.approx(0.5 / 65536, rel=2e-3)  # float32 weights round
    assert size(true_gradient()) > 1
    assert watch.first.correct == pytest.approx(0.5, rel=1e-4)
    assert watch.first.consequence == "this update has norm 7.6e-06; it would have been 0.5."


def test_clip_before_unscale_with_adam_is_compared_with_adams_own_first_step():
    watch, _ = one_step(clip=1.0, unscale=False, lr=0.01, make=torch.optim.Adam)
    grads = true_gradient()
    factor = 1.0 / size(grads)
    expected = [0.01 * grad * factor / ((grad * factor).abs() + 1e-8) for grad in grads]
    assert watch.first.correct == pytest.approx(size(expected), rel=1e-4)
    shrunk = [grad * factor / 65536 for grad in grads]
    assert watch.first.actual == pytest.approx(size([0.01 * g / (g.abs() + 1e-8) for g in shrunk]), rel=1e-3)


def test_norms_of_events_are_those_of_the_gradients_after_the_call():
    watch, _ = one_step(clip=0.25)
    true = size(true_gradient())
    norms = {event.call: event.norm for event in watch.events}
    assert norms["backward"] == pytest.approx(65536 * true, rel=1e-5)
    assert norms["scaler.unscale_"] == pytest.approx(true, rel=1e-5)
    assert norms["clip_grad_norm_"] == pytest.approx(0.25, rel=1e-4)
    assert norms["forward"] is None and watch.events[0].scale == 65536.0


def test_direct_step_is_the_scale_times_too_large():
    model = net()
    optimizer, scale = sgd(model, lr=0.5), scaler(init_scale=512.0)
    x, y = next(batches(1))
    with StepWatcher(model, optimizer, scale) as watch:
        scale.scale(mse(model, x, y)).backward()
        optimizer.step()
    right = 0.5 * size(true_gradient())
    assert watch.first.id == "direct-step"
    assert watch.first.correct == pytest.approx(right, rel=1e-5)
    assert watch.first.actual == pytest.approx(512 * right, rel=1e-5)
    assert watch.first.off == pytest.approx(511, rel=1e-4)


def test_unscale_inside_accumulation_loses_the_first_micro_batch():
    model = net()
    optimizer, scale = sgd(model, lr=1.0), scaler()
    parts = list(batches(2))
    with StepWatcher(model, optimizer, scale) as watch:
        for k, (x, y) in enumerate(parts):
            scale.scale(mse(model, x, y)).backward()
            if k == 0:
                scale.unscale_(optimizer)
        scale.step(optimizer)
        scale.update()
    grads = []
    for x, y in parts:
        fresh = net()
        mse(fresh, x, y).backward()
        grads.append([p.grad for p in fresh.parameters()])
    assert watch.first.id == "unscale-inside-accumulation"
    assert watch.first.correct == pytest.approx(size([a + b for a, b in zip(*grads, strict=True)]), rel=1e-4)
    # unscale_ is not repeated: the first part is in true units, the second is scaled and stays so.
    wrong = size([a + 65536 * b for a, b in zip(*grads, strict=True)])
    assert watch.first.actual == pytest.approx(wrong, rel=1e-4)


def test_zero_grad_missing_compares_with_the_new_gradient_alone():
    model = net()
    optimizer = sgd(model, lr=0.5)
    with StepWatcher(model, optimizer) as watch:
        for x, y in batches(2):
            before = [p.detach().clone() for p in model.parameters()]
            kept = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
            mse(model, x, y).backward()
            new = [p.grad - old for p, old in zip(model.parameters(), kept, strict=True)]
            optimizer.step()
    moved = size([p.detach() - old for p, old in zip(model.parameters(), before, strict=True)])
    assert watch.first.id == "zero-grad-missing" and watch.first.step == 1
    assert watch.first.correct == pytest.approx(0.5 * size(new), rel=1e-4)
    assert watch.first.actual == pytest.approx(moved, rel=1e-5)


def test_a_mistake_in_a_skipped_step_gets_its_numbers_from_the_next_one():
    model = net()
    optimizer, scale = sgd(model, lr=0.5), scaler()
    with StepWatcher(model, optimizer, scale) as watch:
        for k, (x, y) in enumerate(batches(2)):
            optimizer.zero_grad()
            scale.scale(mse(model, x, y) * (1.0 if k else float("inf"))).backward()
            clip_imported_by_name(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()
    assert (watch.first.step, watch.first.times) == (0, 2)
    assert watch.first.actual == pytest.approx(0.5 / 32768, rel=2e-3)


def test_skips_are_those_of_the_scaler_fused_or_not():
    for fused in (False, True):
        model = net()
        optimizer, scale = sgd(model, fused=fused), scaler()
        with StepWatcher(model, optimizer, scale) as watch:
            for k, (x, y) in enumerate(batches(4)):
                optimizer.zero_grad()
                scale.scale(mse(model, x, y) * (float("nan") if k in (0, 2) else 1.0)).backward()
                scale.step(optimizer)
                scale.update()
        assert [event.skipped for event in watch.events if event.kind == "step"] == [True, False, True, False]
        assert [event.scale for event in watch.events if event.kind == "update"] == [2.0**k for k in (15, 15, 14, 14)]


def test_steps_are_counted_as_the_loop_does():
    watch, _ = one_step(steps=3)
    calls = ["zero_grad", "forward", "backward", "scaler.unscale_", "scaler.step", "scaler.update"]
    assert [(event.step, event.call) for event in watch.events] == [(k, call) for k in range(3) for call in calls]
    assert [event.index for event in watch.events] == list(range(18))


# ---- what it leaves behind


def test_torch_is_as_before_after_the_block_and_after_an_exception():
    before = torch_state()
    one_step(clip=1.0)
    assert torch_state() == before
    for error in (ValueError, KeyboardInterrupt):
        model = net()
        optimizer, scale = sgd(model), scaler()
        with pytest.raises(error), StepWatcher(model, optimizer, scale) as watch:
            scale.scale(mse(model, *next(batches(1)))).backward()
            raise error
        assert torch_state() == before
        assert [event.kind for event in watch.events] == ["forward", "backward"]
        assert watch.violations == []


def test_an_exception_inside_a_call_ends_the_call():
    model = net()
    with pytest.raises(RuntimeError), StepWatcher(model, sgd(model)) as watch:
        loss = mse(model, *next(batches(1)))
        loss.backward()
        loss.backward()
    assert "second time" in watch.events[-1].error
    assert watch.inside == []


def test_watchers_can_be_nested_and_left_in_any_order():
    before = torch_state()
    models = net(), net(1)
    outer, inner = (StepWatcher(model, sgd(model)) for model in models)
    outer.__enter__()
    inner.__enter__()
    for model, watch in zip(models, (outer, inner), strict=True):
        mse(model, *next(batches(1))).backward()
        assert watch.events
    outer.__exit__(None, None, None)
    mse(models[0], *next(batches(1))).backward()
    mse(models[1], *next(batches(1))).backward()
    inner.__exit__(None, None, None)
    assert torch_state() == before
    assert [event.kind for event in outer.events] == ["forward", "backward"]
    assert [event.kind for event in inner.events] == ["forward", "backward"] * 2


def test_two_watchers_of_one_loop_see_the_same():
    model = net()
    optimizer, scale = sgd(model), scaler()
    with StepWatcher(model, optimizer, scale) as outer, StepWatcher(model, optimizer, scale) as inner:
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(half(model, x, y)).backward()
            clip_imported_by_name(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()
    assert str(outer.events) == str(inner.events)  # NaN is not equal to itself
    assert outer.violations == inner.violations != []


def test_everything_can_be_copied_pickled_and_saved_inside_the_loop():
    model = net()
    optimizer, scale = sgd(model), scaler()
    scheduler = halve(optimizer)
    with StepWatcher(model, optimizer, scale, scheduler):
        for x, y in batches(2):
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
            scheduler.step()
        twin = copy.deepcopy(model)
        states = pickle.loads(pickle.dumps([scale.state_dict(), scheduler.state_dict()]))
        assert pickle.loads(pickle.dumps(scale)).get_scale() == scale.get_scale()
        torch.save([model, optimizer], io.BytesIO())
        copy.deepcopy((model, optimizer, scheduler))
    assert not twin._forward_hooks and not model._forward_hooks and not optimizer._optimizer_step_pre_hooks
    assert "step" not in states[1]


def test_a_copy_of_the_model_is_not_the_model():
    model = net()
    with StepWatcher(model, sgd(model)) as watch:
        other = copy.deepcopy(model)
        mse(other, *next(batches(1))).backward()
        sgd(other).step()
    assert [event.kind for event in watch.events if event.kind in ("forward", "step")] == []


def test_a_scaler_that_was_not_given_is_found():
    model = net()
    optimizer, scale = sgd(model), scaler()
    with StepWatcher(model, optimizer) as watch:
        scale.scale(mse(model, *next(batches(1)))).backward()
        clip_imported_by_name(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
    assert watch.scaler is scale and watch.first.id == "clip-before-unscale"


def test_an_own_scaler_class_is_watched():
    class Mine(torch.amp.GradScaler):
        def unscale_(self, optimizer):
            super().unscale_(optimizer)

        def update(self, new_scale=None):
            super().update(new_scale)

    before = dict(vars(Mine))
    model = net()
    optimizer, scale = sgd(model), Mine("cpu")
    with StepWatcher(model, optimizer, scale) as watch:
        scale.scale(mse(model, *next(batches(1)))).backward()
        scale.unscale_(optimizer)
        scale.step(optimizer)
        scale.update()
    calls = ["forward", "backward", "scaler.unscale_", "scaler.step", "scaler.update"]
    assert [event.call for event in watch.events] == calls
    assert watch.violations == [] and dict(vars(Mine)) == before


def test_gradients_do_not_outlive_the_loop():
    model = net()
    optimizer = sgd(model)
    with StepWatcher(model, optimizer) as watch:
        loss = mse(model, *next(batches(1)))
        loss.backward()
        node = loss.grad_fn
        optimizer.step()
    del loss
    gc.collect()
    assert not any(referrer is watch for referrer in gc.get_referrers(node))


# ---- report, picture, errors


def test_the_report_says_what_where_and_what_to_do():
    watch, _ = one_step(clip=1.0, unscale=False, steps=2)
    text = repr(watch.report())
    assert text == repr(watch) and not text.startswith("'")
    for part in ("12 calls, 2 optimizer steps, 0 of them skipped", "clip-before-unscale (first in step 0, 2 times)"):
        assert part in text
    for part in ("Consequence: this update has norm 7.6e-06", "Computed: ", "Cure: Call scaler.unscale_(optimizer)"):
        assert part in text
    right, _ = one_step()
    assert right.report().endswith("The order of the calls is right.")
    assert str(watch.events[2]).split() == ["2", "step", "0", "backward", "|grad|", "=", f"{watch.events[2].norm:.3g}"]


def test_the_timeline_has_a_row_per_kind_and_rings_the_violation():
    watch, _ = one_step(clip=1.0, unscale=False, steps=2)
    shown = step_timeline(watch)
    axes = shown.figure.axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["forward", "backward", "unscale_", "clip", "step", "update", "zero_grad"]
    (ring,) = [line for line in axes.lines if line.get_gid() == "violation"]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (3, rows.index("clip"))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 0", "step 1"]
    assert "clip_grad_norm_" in shown.alt and "7.6e-06" in shown.alt
    assert shown.png() == step_timeline(watch).png()


def test_the_timeline_marks_skips_and_draws_whole_steps():
    watch, _ = one_step(inf=True, steps=20)
    shown = step_timeline(watch)
    axes = shown.figure.axes[0]
    assert len(axes.get_xticklabels()) == 8  # of 6 calls each: 48
    assert [text.get_text() for text in axes.texts] == ["skipped"] * 8
    assert not [line for line in axes.lines if line.get_gid() == "violation"]
    later = step_timeline(watch, first=17)
    assert [label.get_text() for label in later.figure.axes[0].get_xticklabels()] == ["step 17", "step 18", "step 19"]
    with pytest.raises(ValueError, match="no step 20"):
        step_timeline(watch, first=20)
    with pytest.raises(ValueError, match="no call was recorded"):
        step_timeline(StepWatcher(net(), sgd(net())))


def test_wrong_arguments_are_named():
    model = net()
    with pytest.raises(TypeError, match="model: expected Module"):
        StepWatcher(sgd(model), model)
    with pytest.raises(TypeError, match="optimizers: expected Optimizer"):
        StepWatcher(model, model)
    with pytest.raises(TypeError, match=r"scaler must be a torch\.amp\.GradScaler"):
        StepWatcher(model, sgd(model), halve(sgd(model)))
    with pytest.raises(ValueError, match="at least one optimizer"):
        StepWatcher(model, [])
    watch = StepWatcher(model, sgd(model))
    with watch:
        pass
    with pytest.raises(RuntimeError, match="make a new one"):
        watch.__enter__()


def test_a_fault_of_the_watcher_does_not_end_the_loop(monkeypatch):
    def fail(*args):
        raise LookupError("planted")

    before = torch_state()
    monkeypatch.setattr("ampedu.steps.judge.Judge.backward", fail)
    watch, model = one_step(clip=1.0, unscale=False, steps=3)
    monkeypatch.undo()
    _, other = one_step(clip=1.0, unscale=False, steps=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert "could not follow this loop further: LookupError: planted" in watch.report()
    assert torch_state() == before


def test_names_come_from_the_dict_or_the_class():
    model = nn.ModuleList([net(), net(1)])
    first, second = (sgd(part) for part in model)
    with StepWatcher(list(model), {"body": first, "head": second}) as watch:
        for part in model:
            mse(part, *next(batches(1))).backward()
        first.step()
        second.step()
    assert [event.who for event in watch.events if event.kind == "step"] == ["body", "head"]
    assert [event.who for event in watch.events if event.kind == "forward"] == ["Sequential 1", "Sequential 2"]
