"""Training loops with one mistake each, as people make them: the id that the watcher must name first."""

import warnings

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

from tests.unit.steps_loops import batches, half, halve, mse, net, scaler, sgd

WRONG = {}


def wrong(name, raises=None):
    """The loop breaks the rule `name` first; torch stops it with the exception `raises`."""

    def keep(loop):
        WRONG[loop.__name__] = (loop, name, raises)
        return loop

    return keep


def _steps(watch, body, make=sgd, number=3, **options):
    model = net()
    optimizer, scale = make(model), scaler(**options)
    with watch(model, optimizer, scale):
        for k, (x, y) in enumerate(batches(number)):
            body(model, optimizer, scale, x, y, k)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def fused(model):
    return torch.optim.SGD(model.parameters(), lr=0.02, fused=True)


@wrong("clip-before-unscale")
def clip_without_unscale(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("clip-before-unscale")
def clip_then_unscale(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scale.unscale_(optimizer)
        scale.step(optimizer)
        scale.update()

    _steps(watch, body, make=adam)


@wrong("clip-before-unscale")
def clip_values_without_unscale_fused(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        clip_grad_value_(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()

    _steps(watch, body, make=fused)


@wrong("clip-before-unscale")
def unscale_one_optimizer_clip_both(watch):
    body, head = net(out=4), net(2, 4)
    first, second, scale = sgd(body), sgd(head), scaler()
    with watch([body, head], [first, second], scale):
        for x, y in batches():
            first.zero_grad()
            second.zero_grad()
            scale.scale(mse(nn.Sequential(body, head), x, y)).backward()
            scale.unscale_(first)
            clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
            scale.step(first)
            scale.step(second)
            scale.update()


@wrong("clip-by-scaled-norm")
def norm_measured_before_unscale(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        total = get_total_norm([p.grad for p in model.parameters()])
        scale.unscale_(optimizer)
        clip_grads_with_norm_(model.parameters(), 1.0, total)
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("step-before-backward")
def step_then_backward(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(model, x, y)
            optimizer.step()
            loss.backward()


@wrong("step-before-backward")
def backward_forgotten(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            mse(model, x, y)
            optimizer.step()


@wrong("step-before-backward")
def two_steps_for_one_backward(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
            optimizer.step()


@wrong("step-before-backward", AssertionError)
def scaler_steps_before_backward(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        loss = scale.scale(mse(model, x, y))
        scale.step(optimizer)
        loss.backward()
        scale.update()

    _steps(watch, body)


@wrong("zero-grad-before-step")
def zero_between_backward_and_step(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            mse(model, x, y).backward()
            optimizer.zero_grad()
            optimizer.step()


@wrong("zero-grad-before-step", AssertionError)
def zero_between_with_scaler(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y)).backward()
        model.zero_grad()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("zero-grad-before-step")
def zero_between_unscale_and_step(watch):
    """torch is content: unscale_ has recorded its check."""

    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y)).backward()
        scale.unscale_(optimizer)
        optimizer.zero_grad()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("clip-after-step")
def clip_between_step_and_update(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.unscale_(optimizer)
        scale.step(optimizer)
        clip_grad_norm_(model.parameters(), 1e-3)
        scale.update()

    _steps(watch, body)


@wrong("clip-after-step")
def clip_after_a_step_without_scaler(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
            clip_grad_value_(model.parameters(), 1e-4)


@wrong("direct-step-unchecked")
def unscaled_and_stepped_without_a_look(watch):
    """The second batch overflows; unscale_ finds it, and nobody asks."""

    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y) * (1e38 if k == 1 else 1.0)).backward()
        scale.unscale_(optimizer)
        optimizer.step()
        scale.update()

    _steps(watch, body)


@wrong("zero-grad-before-step")
def zero_between_keeping_tensors(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y)).backward()
        optimizer.zero_grad(set_to_none=False)
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("zero-grad-before-step")
def zero_between_by_hand(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            mse(model, x, y).backward()
            for p in model.parameters():
                p.grad = None
            optimizer.step()


@wrong("zero-grad-missing")
def zero_forgotten(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            mse(model, x, y).backward()
            optimizer.step()


@wrong("zero-grad-missing")
def zero_forgotten_with_scaler(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y)).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("zero-grad-missing")
def zero_forgotten_with_fused(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y)).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body, make=fused)


@wrong("zero-grad-missing")
def zero_only_the_other_optimizer(watch):
    body, head = net(out=4), net(2, 4)
    first, second = sgd(body), sgd(head)
    with watch([body, head], [first, second]):
        for x, y in batches():
            first.zero_grad()
            mse(nn.Sequential(body, head), x, y).backward()
            first.step()
            second.step()


@wrong("direct-step")
def optimizer_stepped_directly(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        optimizer.step()

    _steps(watch, body)


@wrong("direct-step", AssertionError)
def optimizer_stepped_directly_then_update(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        optimizer.step()
        scale.update()

    _steps(watch, body)


@wrong("direct-step")
def closure_with_a_scaled_loss(watch):
    def body(model, optimizer, scale, x, y, k):
        def closure():
            optimizer.zero_grad()
            loss = mse(model, x, y)
            scale.scale(loss).backward()
            return loss

        optimizer.step(closure)

    _steps(watch, body)


@wrong("optimizer-bypasses-scaler")
def second_optimizer_stepped_directly(watch):
    body, head = net(out=4), net(2, 4)
    first, second, scale = sgd(body), sgd(head), scaler()
    with watch([body, head], [first, second], scale):
        for x, y in batches():
            first.zero_grad()
            second.zero_grad()
            scale.scale(mse(nn.Sequential(body, head), x, y)).backward()
            scale.step(first)
            second.step()
            scale.update()


@wrong("missing-update", RuntimeError)
def update_forgotten(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.step(optimizer)

    _steps(watch, body)


@wrong("missing-update", RuntimeError)
def update_forgotten_with_clip(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scale.step(optimizer)

    _steps(watch, body)


@wrong("missing-update", RuntimeError)
def step_skipped_by_hand_without_update(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.unscale_(optimizer)
        if k == 1:
            return
        scale.step(optimizer)
        scale.update()

    _steps(watch, body, number=4)


@wrong("missing-update")
def update_forgotten_in_one_step(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y)).backward()
        scale.step(optimizer)

    _steps(watch, body, number=1)


@wrong("update-before-step", AssertionError)
def update_then_step(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.update()
        scale.step(optimizer)

    _steps(watch, body)


@wrong("update-before-step")
def unscale_update_step(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scale.update()
        scale.step(optimizer)

    _steps(watch, body, number=1)


@wrong("update-per-optimizer")
def update_between_two_optimizers(watch):
    body, head = net(out=4), net(2, 4)
    first, second, scale = sgd(body), sgd(head), scaler(growth_interval=1)
    with watch([body, head], [first, second], scale):
        for x, y in batches():
            first.zero_grad()
            second.zero_grad()
            scale.scale(mse(nn.Sequential(body, head), x, y)).backward()
            scale.step(first)
            scale.update()
            scale.step(second)
            scale.update()


@wrong("update-twice", AssertionError)
def update_called_twice(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.step(optimizer)
        scale.update()
        scale.update()

    _steps(watch, body)


@wrong("update-inside-accumulation")
def new_scale_inside_accumulation(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y) / 2).backward()
        if k % 2:
            scale.step(optimizer)
            optimizer.zero_grad()
        scale.update(scale.get_scale() * 2)

    _steps(watch, body, number=4)


@wrong("unscale-twice", RuntimeError)
def unscaled_twice(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.unscale_(optimizer)
        scale.unscale_(optimizer)
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("unscale-inside-accumulation", RuntimeError)
def unscaled_in_every_micro_batch(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y) / 2).backward()
        scale.unscale_(optimizer)
        if k % 2:
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()

    _steps(watch, body)


@wrong("unscale-inside-accumulation")
def unscaled_in_the_first_micro_batch(watch):
    def body(model, optimizer, scale, x, y, k):
        scale.scale(mse(model, x, y) / 2).backward()
        if k % 2 == 0:
            scale.unscale_(optimizer)
        else:
            clip_grad_norm_(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()

    _steps(watch, body, number=4)


@wrong("unscale-after-step", RuntimeError)
def unscaled_after_the_step(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        scale.step(optimizer)
        scale.unscale_(optimizer)
        scale.update()

    _steps(watch, body)


def _scheduled(watch, order, inf_at=None):
    model = net()
    optimizer, scale = sgd(model), scaler()
    scheduler = halve(optimizer)
    with watch(model, optimizer, scale, scheduler), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the first call only
        for k, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = mse(model, x, y)
            scale.scale(loss * float("inf") if k == inf_at else loss).backward()
            for name in order:
                {"schedule": scheduler.step, "step": lambda: scale.step(optimizer), "update": scale.update}[name]()


@wrong("scheduler-after-skip")
def scheduler_unaware_of_skips(watch):
    _scheduled(watch, ("step", "update", "schedule"), inf_at=1)


@wrong("scheduler-after-skip")
def scheduler_unaware_of_a_skip_at_the_start(watch):
    _scheduled(watch, ("step", "update", "schedule"), inf_at=0)


@wrong("scheduler-before-step")
def scheduler_first(watch):
    _scheduled(watch, ("schedule", "step", "update"))


@wrong("loss-not-scaled")
def scale_forgotten_later(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scaled = scale.scale(mse(model, x, y))
        (scaled if k == 0 else mse(model, x, y)).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("loss-not-scaled", AssertionError)
def scale_forgotten(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("loss-not-scaled")
def scaled_but_not_used(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        loss = mse(model, x, y)
        scale.scale(loss)
        loss.backward()
        scale.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 100.0)
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("loss-not-scaled")
def second_loss_not_scaled(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        model[0].weight.pow(2).sum().backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("loss-not-scaled")
def regularizer_not_scaled(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        (scale.scale(mse(model, x, y)) + model[0].weight.pow(2).sum()).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("loss-scaled-twice")
def scaled_twice(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(scale.scale(mse(model, x, y))).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body, init_scale=1024.0)


@wrong("two-scalers")
def scaled_by_another_scaler(watch):
    other = scaler(init_scale=1024.0)

    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(torch.zeros(()))
        other.scale(mse(model, x, y)).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)


@wrong("two-scalers")
def one_scaler_per_loss(watch):
    model = net(out=2)
    optimizer, first, second = sgd(model), scaler(), scaler(init_scale=256.0)
    with watch(model, optimizer, first):
        for x, y in batches():
            optimizer.zero_grad()
            out = model(x)
            first.scale(nn.functional.mse_loss(out[:, :1], y)).backward(retain_graph=True)
            second.scale(nn.functional.mse_loss(out[:, 1:], y)).backward()
            first.step(optimizer)
            first.update()


@wrong("penalty-from-scaled-gradients")
def penalty_of_scaled_gradients(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        loss = mse(model, x, y)
        grads = torch.autograd.grad(scale.scale(loss), model.parameters(), create_graph=True)
        penalty = sum(grad.pow(2).sum() for grad in grads).sqrt()
        scale.scale(loss + 0.1 * penalty).backward()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body, init_scale=1024.0)


@wrong("scaler-disabled")
def scaler_for_a_missing_gpu(watch):
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
    optimizer = sgd(model)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(half(model, x, y) * 1e-9).backward()
            scale.step(optimizer)
            scale.update()


@wrong("fp16-parameters", ValueError)
def half_model(watch):
    model = net().half()
    optimizer, scale = sgd(model), scaler(init_scale=4.0)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x.half(), y)).backward()
            scale.step(optimizer)
            scale.update()


@wrong("no-gradients", AssertionError)
def optimizer_with_frozen_parameters(watch):
    model = net()
    optimizer, scale = torch.optim.SGD(model[0].parameters(), lr=0.1), scaler()
    model[0].requires_grad_(False)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()


@wrong("loop-in-autocast")
def one_region_around_the_loop(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer), torch.autocast("cpu", dtype=torch.bfloat16):
        for x, y in batches():
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@wrong("wrong-units")
def divided_twice_by_hand(watch):
    def body(model, optimizer, scale, x, y, k):
        optimizer.zero_grad()
        scale.scale(mse(model, x, y)).backward()
        for p in model.parameters():
            p.grad /= scale.get_scale()
        scale.step(optimizer)
        scale.update()

    _steps(watch, body)
