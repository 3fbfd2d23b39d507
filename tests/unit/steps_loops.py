"""Training loops with a right order of calls. Each enters `watch(...)` around its loop and returns tensors."""

import copy

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

RIGHT = {}
SCALE = 65536.0


def right(loop):
    RIGHT[loop.__name__] = loop
    return loop


def net(seed=0, size=6, out=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, out))


def batches(number=4, rows=8, size=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        x = torch.randn(rows, size, generator=generator)
        yield x, x.sum(1, keepdim=True) * 3


def mse(model, x, y):
    return nn.functional.mse_loss(model(x).float(), y)


def half(model, x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    return nn.functional.mse_loss(out.float(), y)


def sgd(model, **kwargs):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.02, **kwargs})


def scaler(**kwargs):
    return torch.amp.GradScaler("cpu", **kwargs)


@right
def float32(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
    return list(model.parameters())


@right
def bfloat16_without_scaler(watch):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with watch(model, optimizer):
        for x, y in batches():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mse(model, x, y)
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


@right
def float16_with_scaler(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(half(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def clip_after_unscale(watch):
    model = net()
    optimizer, scale = sgd(model, momentum=0.9), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            scale.scale(half(model, x, y)).backward()
            scale.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
    return list(model.parameters())


@right
def clip_by_name_of_the_module(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.unscale_(optimizer)
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def clip_in_two_parts(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.unscale_(optimizer)
            total = get_total_norm([p.grad for p in model.parameters()])
            clip_grads_with_norm_(model.parameters(), 0.5, total)
            clip_grad_value_(model.parameters(), 0.3)
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def clip_by_hand(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.unscale_(optimizer)
            for p in model.parameters():
                p.grad.data.clamp_(-0.1, 0.1)
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def centered_gradients(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            for p in model.parameters():  # linear, so that the scale does not matter
                p.grad -= p.grad.mean()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


def _accumulate(watch, number, every, unscale, divide=True):
    model = net()
    optimizer, scale = sgd(model), scaler(growth_interval=1)
    with watch(model, optimizer, scale):
        for k, (x, y) in enumerate(batches(number), start=1):
            loss = half(model, x, y)
            scale.scale(loss / every if divide else loss).backward()
            if k % every == 0 or k == number:
                if unscale:
                    scale.unscale_(optimizer)
                    if not divide:
                        for p in model.parameters():
                            p.grad /= every
                    clip_grad_norm_(model.parameters(), 1.0)
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()
    return list(model.parameters())


@right
def accumulation(watch):
    return _accumulate(watch, 8, 4, unscale=False)


@right
def accumulation_with_clip_and_partial_window(watch):
    return _accumulate(watch, 7, 3, unscale=True)


@right
def accumulation_divided_by_hand(watch):
    return _accumulate(watch, 6, 3, unscale=True, divide=False)


@right
def accumulation_leftover_into_next_epoch(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for _ in range(2):
            for k, (x, y) in enumerate(batches(5), start=1):
                scale.scale(half(model, x, y) / 2).backward()
                if k % 2 == 0:
                    scale.step(optimizer)
                    scale.update()
                    optimizer.zero_grad()
    return list(model.parameters())


@right
def accumulation_without_scaler(watch):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer):
        for k, (x, y) in enumerate(batches(6)):
            (mse(model, x, y) / 3).backward()
            if k % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    return list(model.parameters())


@right
def two_optimizers_one_scaler(watch):
    body, head = net(out=4), net(2, 4)
    first, second, scale = sgd(body), torch.optim.Adam(head.parameters()), scaler()
    with watch([body, head], [first, second], scale):
        for x, y in batches():
            first.zero_grad()
            second.zero_grad()
            scale.scale(mse(nn.Sequential(body, head), x, y)).backward()
            scale.unscale_(first)
            clip_grad_norm_(body.parameters(), 0.5)  # the other one's gradients are still scaled
            scale.step(first)
            scale.step(second)
            scale.update()
    return [*body.parameters(), *head.parameters()]


@right
def two_optimizers_one_used_every_second_time(watch):
    body, head = net(out=4), net(2, 4)
    first, second, scale = sgd(body), sgd(head), scaler()
    with watch([body, head], {"body": first, "head": second}, scale):
        for k, (x, y) in enumerate(batches(6)):
            first.zero_grad()
            second.zero_grad()
            scale.scale(mse(nn.Sequential(body, head), x, y)).backward()
            scale.step(first)
            if k % 2:
                scale.step(second)
            scale.update()
    return [*body.parameters(), *head.parameters()]


def _gan(watch, updates, scaled=True):
    make, judge = net(3, 6, 6), net(4)
    first, second, scale = sgd(make), sgd(judge), scaler(enabled=scaled, growth_interval=1)
    loss = nn.functional.binary_cross_entropy_with_logits
    with watch([make, judge], [first, second], scale if scaled else None):
        for x, _ in batches():
            ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
            second.zero_grad()
            scale.scale(loss(judge(x), ones)).backward()
            scale.scale(loss(judge(make(x * 0.5).detach()), zeros)).backward()
            scale.step(second)
            if updates == 2:
                scale.update()
            first.zero_grad()
            scale.scale(loss(judge(make(x * 0.5)), ones)).backward()  # also fills the judge's gradients
            scale.step(first)
            scale.update()
    return [*make.parameters(), *judge.parameters()]


@right
def gan_one_update(watch):
    return _gan(watch, 1)


@right
def gan_update_after_each_step(watch):
    return _gan(watch, 2)


@right
def gan_without_scaler(watch):
    return _gan(watch, 2, scaled=False)


@right
def two_scalers_for_two_models(watch):
    make, judge = net(3), net(4)
    pairs = [(make, sgd(make), scaler()), (judge, sgd(judge), scaler(init_scale=1024.0))]
    with watch([make, judge], [pair[1] for pair in pairs], pairs[0][2]):
        for x, y in batches():
            for model, optimizer, scale in pairs:
                optimizer.zero_grad()
                scale.scale(mse(model, x, y)).backward()
            for _, optimizer, scale in pairs:
                scale.step(optimizer)
                scale.update()
    return [*make.parameters(), *judge.parameters()]


def _penalty(watch, divide):
    model = net()
    optimizer, scale = sgd(model), scaler(init_scale=1024.0)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(model, x, y)
            grads = torch.autograd.grad(scale.scale(loss), model.parameters(), create_graph=True)
            grads = divide(grads, scale.get_scale())
            penalty = sum(grad.pow(2).sum() for grad in grads).sqrt()
            scale.scale(loss + 0.1 * penalty).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def penalty_times_inverse_scale(watch):
    return _penalty(watch, lambda grads, scale: [grad * (1.0 / scale) for grad in grads])


@right
def penalty_divided_by_scale(watch):
    return _penalty(watch, lambda grads, scale: [grad / scale for grad in grads])


@right
def penalty_divided_by_a_tensor(watch):
    return _penalty(watch, lambda grads, scale: [grad / torch.tensor(scale) for grad in grads])


@right
def penalty_foreach(watch):
    return _penalty(watch, lambda grads, scale: torch._foreach_mul(grads, 1.0 / scale))


@right
def penalty_of_concatenated(watch):
    return _penalty(watch, lambda grads, scale: [torch.cat([grad.flatten() for grad in grads]) / scale])


@right
def penalty_in_place(watch):
    return _penalty(watch, lambda grads, scale: [grad.clone().div_(scale) for grad in grads])


@right
def penalty_without_scaler(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            x.requires_grad_()
            out = model(x)
            (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (nn.functional.mse_loss(out, y) + (grad.norm(dim=1) - 1).pow(2).mean()).backward()
            optimizer.step()
    return list(model.parameters())


def _fused(watch, make, unscale):
    model = net()
    optimizer, scale = make(model.parameters(), lr=0.01, fused=True), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(half(model, x, y)).backward()
            if unscale:
                scale.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def fused_adamw(watch):
    return _fused(watch, torch.optim.AdamW, False)


@right
def fused_adamw_with_clip(watch):
    return _fused(watch, torch.optim.AdamW, True)


@right
def fused_sgd(watch):
    return _fused(watch, torch.optim.SGD, False)


@right
def lbfgs(watch):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    with watch(model, optimizer):
        for x, y in batches(2):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = mse(model, x, y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return list(model.parameters())


@right
def closure_with_sgd(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = mse(model, x, y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return list(model.parameters())


def _scheduled(watch, make, step, inf_at=None, **options):
    model = net()
    optimizer, scale = sgd(model), scaler(**options)
    schedulers = make(optimizer)
    with watch(model, optimizer, scale, schedulers):
        for k, (x, y) in enumerate(batches(5)):
            optimizer.zero_grad()
            loss = mse(model, x, y)
            scale.scale(loss * float("inf") if k == inf_at else loss).backward()
            scale.step(optimizer)
            before = scale.get_scale()
            scale.update()
            step(schedulers, k, loss, skipped=scale.get_scale() < before)
    return [*model.parameters(), torch.tensor(optimizer.param_groups[0]["lr"])]


def halve(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


@right
def scheduler_each_batch(watch):
    return _scheduled(watch, halve, lambda scheduler, k, loss, skipped: scheduler.step())


@right
def scheduler_aware_of_skips(watch):
    def step(scheduler, k, loss, skipped):
        if not skipped:
            scheduler.step()

    return _scheduled(watch, halve, step, inf_at=2)


@right
def scheduler_each_epoch_with_a_skip(watch):
    return _scheduled(watch, halve, lambda s, k, loss, skipped: s.step() if k % 2 else None, inf_at=1)


@right
def scheduler_on_plateau(watch):
    def make(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    return _scheduled(watch, make, lambda s, k, loss, skipped: s.step(loss.item()), inf_at=2)


@right
def several_schedulers(watch):
    def make(optimizer):
        return [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    return _scheduled(watch, make, lambda found, k, loss, skipped: [scheduler.step() for scheduler in found])


@right
def chained_schedulers(watch):
    def make(optimizer):
        kinds = torch.optim.lr_scheduler
        warm, cold = kinds.LinearLR(optimizer), kinds.CosineAnnealingLR(optimizer, 10)
        return kinds.SequentialLR(optimizer, [warm, cold], [2])

    return _scheduled(watch, make, lambda scheduler, k, loss, skipped: scheduler.step())


@right
def scheduler_each_micro_batch(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with watch(model, optimizer, scale, scheduler):
        for k, (x, y) in enumerate(batches(6)):
            scale.scale(mse(model, x, y) / 3).backward()
            if k % 3 == 2:
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()
            if k > 2:
                scheduler.step()
    return list(model.parameters())


@right
def skipped_by_inf(watch):
    return _scheduled(watch, halve, lambda *args, **kwargs: None, inf_at=1)


@right
def skipped_by_hand_with_update(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for k, (x, y) in enumerate(batches(5)):
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.unscale_(optimizer)
            if k != 2:
                scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def bad_batches_thrown_away(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for k, (x, y) in enumerate(batches(5)):
            mse(model, x, y).backward()
            if k % 2:
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


@right
def new_scale_by_hand(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update(1024.0)
    return list(model.parameters())


@right
def scale_changes_after_every_step(watch):
    model = net()
    optimizer, scale = sgd(model), scaler(growth_interval=1, growth_factor=1.7)
    with watch(model, optimizer, scale):
        for x, y in batches(6):
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def zeroed_by_the_model(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
            model.zero_grad()
    return list(model.parameters())


@right
def zeroed_by_hand(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for k, (x, y) in enumerate(batches()):
            for p in model.parameters():
                if k % 2:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.zero_()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def zeroed_before_backward_keeping_tensors(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            loss = mse(model, x, y)
            optimizer.zero_grad(set_to_none=False)
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def several_losses(watch):
    model = net(out=2)
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            out = model(x)
            first, second = (nn.functional.mse_loss(out[:, k : k + 1], y) for k in range(2))
            scale.scale(first).backward(retain_graph=True)
            scale.scale(second).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def losses_scaled_in_a_list_and_summed(watch):
    model = net(out=2)
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for number, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            out = model(x)
            losses = scale.scale([nn.functional.mse_loss(out[:, k : k + 1], y) for k in range(2)])
            torch.autograd.backward(losses) if number % 2 else sum(losses).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def scaled_by_hand(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches(1):
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
        for k, (x, y) in enumerate(batches()):
            loss = mse(model, x, y)
            if k % 2:
                (loss * scale.get_scale()).backward()
            else:
                loss.backward(torch.tensor(scale.get_scale()))
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
    return list(model.parameters())


@right
def divided_by_hand_then_stepped_directly(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            for p in model.parameters():
                p.grad /= scale.get_scale()
            optimizer.step()
    return list(model.parameters())


@right
def unscaled_then_stepped_directly(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.unscale_(optimizer)
            optimizer.step()
            scale.update()
    return list(model.parameters())


@right
def static_scale_without_scaler(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            (mse(model, x, y) * 1024).backward()
            for p in model.parameters():
                p.grad.div_(1024)
            optimizer.step()
    return list(model.parameters())


@right
def evaluation_and_metrics_between(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            model.train()
            optimizer.zero_grad()
            scale.scale(half(model, x, y)).backward()
            with torch.no_grad():
                mse(model, x, y)
            scale.step(optimizer)
            scale.update()
            model.eval()
            with torch.inference_mode():
                half(model, x, y)
            mse(model, x, y)  # a forward pass with a graph, and no backward
    return list(model.parameters())


@right
def moving_average_by_copy(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    average = copy.deepcopy(model)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.1)
            best = copy.deepcopy((model, optimizer))
    return [*model.parameters(), *average.parameters(), *best[0].parameters()]


@right
def frozen_layers(watch):
    model = net()
    model[0].requires_grad_(False)
    optimizer, scale = sgd(model, weight_decay=0.1), scaler()
    with watch(model, optimizer, scale):
        for k, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            model[0].requires_grad_(k >= 2)
            scale.scale(half(model, x, y)).backward()
            scale.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


def _checkpointed(watch, reentrant):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            x.requires_grad_()
            with torch.autocast("cpu", dtype=torch.float16):
                out = checkpoint(model, x, use_reentrant=reentrant)
            scale.scale(nn.functional.mse_loss(out.float(), y)).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def checkpointing(watch):
    return _checkpointed(watch, False)


@right
def reentrant_checkpointing(watch):
    return _checkpointed(watch, True)


@right
def groups_added(watch):
    model = net()
    optimizer, scale = torch.optim.SGD(model[2].parameters(), lr=0.02), scaler()
    with watch(model, optimizer, scale):
        for k, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            if k == 2:
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
            model[0].zero_grad()
    return list(model.parameters())


@right
def disabled_scaler_with_bfloat16(watch):
    model = net()
    optimizer, scale = sgd(model), scaler(enabled=False)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mse(model, x, y)
            scale.scale(loss).backward()
            scale.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def region_around_the_whole_iteration(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mse(model, x, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return list(model.parameters())


@right
def gradients_from_before(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    x, y = next(batches(1))
    scale.scale(mse(model, x, y)).backward()
    with watch(model, optimizer, scale):
        scale.step(optimizer)
        scale.update()
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def unused_branch(watch):
    model, spare = net(), net(5)
    optimizer, scale = sgd(nn.ModuleList([model, spare])), scaler()
    with watch([model, spare], optimizer, scale):
        for k, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            scale.scale(mse(spare if k % 2 else model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
    return [*model.parameters(), *spare.parameters()]


@right
def sparse_embedding(watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(12, 1))
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for k in range(4):
            optimizer.zero_grad()
            scale.scale(model(torch.tensor([[k, 1, 2], [3, 4, k]])).pow(2).mean()).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def step_at_the_start_of_the_next_iteration(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for k, (x, y) in enumerate(batches()):
            if k:
                optimizer.step()
                optimizer.zero_grad()
            mse(model, x, y).backward()
    return list(model.parameters())


@right
def gradients_assigned_by_hand(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer):
        for x, y in batches():
            found = torch.autograd.grad(mse(model, x, y), list(model.parameters()))
            for p, grad in zip(model.parameters(), found, strict=True):
                p.grad = grad
            optimizer.step()
    return list(model.parameters())


@right
def vector_product_with_a_scaled_gradient(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for x, _ in batches():
            optimizer.zero_grad()
            out = model(x)
            out.backward(scale.scale(torch.ones_like(out) / 3))
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def step_inside_backward(watch):
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
    with watch(model, list(optimizers.values())):
        for x, y in batches():
            mse(model, x, y).backward()
    for handle in handles:
        handle.remove()
    return list(model.parameters())


class SharpnessAware(torch.optim.Optimizer):
    """Foret et al. 2021 in few lines: a step up, a second gradient there, a step of the base optimizer."""

    def __init__(self, params, base):
        self.base = base
        super().__init__(params, {"lr": 0.01})

    def step(self, closure):
        with torch.enable_grad():
            closure()
        params = [p for group in self.param_groups for p in group["params"]]
        moves = [p.grad * 0.01 for p in params]
        with torch.no_grad():
            torch._foreach_add_(params, moves)
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            torch._foreach_sub_(params, moves)
        self.base.step()


@right
def sharpness_aware(watch):
    model = net()
    optimizer = SharpnessAware(model.parameters(), sgd(model))
    with watch(model, optimizer):
        for x, y in batches():

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = mse(model, x, y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return list(model.parameters())


@right
def one_watch_for_many_steps_with_growth_and_backoff(watch):
    model = net()
    optimizer, scale = torch.optim.Adam(model.parameters()), scaler(init_scale=2.0**120, growth_interval=3)
    scheduler = halve(optimizer)
    with watch(model, optimizer, scale, scheduler):
        for k, (x, y) in enumerate(batches(30)):
            optimizer.zero_grad()
            scale.scale(half(model, x, y)).backward()
            scale.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            before = scale.get_scale()
            scale.step(optimizer)
            scale.update()
            if scale.get_scale() >= before and k % 7 == 6:
                scheduler.step()
    return list(model.parameters())


@right
def cache_cleared_by_hand(watch):
    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer), torch.autocast("cpu", dtype=torch.bfloat16):
        for x, y in batches():
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
            torch.clear_autocast_cache()
    return list(model.parameters())


@right
def one_region_for_two_models_in_turn(watch):
    models = net(), net(1)
    pairs = [(model, sgd(model)) for model in models]
    with watch(list(models), [pair[1] for pair in pairs]):
        for x, y in batches():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for model, optimizer in pairs:
                    optimizer.zero_grad()
                    mse(model, x, y).backward()
                    optimizer.step()
    return [p for model in models for p in model.parameters()]


@right
def converted_back_and_forth(watch):
    model = net()
    optimizer, scale = sgd(model), scaler(init_scale=256.0)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            model.half()
            model.float()
            scale.step(optimizer)
            scale.update()
            model.double()
            model.float()
    return list(model.parameters())


@right
def second_order_with_create_graph(watch):
    model = net()
    optimizer, scale = sgd(model), scaler(init_scale=64.0)
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(model, x, y)
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            scale.scale(sum((grad**2).sum() for grad in grads)).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def compiled(watch):
    torch._dynamo.reset()
    model = net()
    fast = torch.compile(model, backend="eager")
    optimizer, scale = sgd(model), scaler()
    with watch(fast, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(half(fast, x, y)).backward()
            scale.step(optimizer)
            scale.update()
    return list(model.parameters())


@right
def norm_for_the_log_after_the_step(watch):
    model = net()
    optimizer, scale = sgd(model), scaler()
    norms = []
    with watch(model, optimizer, scale):
        for x, y in batches():
            optimizer.zero_grad()
            scale.scale(mse(model, x, y)).backward()
            scale.step(optimizer)
            scale.update()
            norms.append(clip_grad_norm_(model.parameters(), float("inf")))
    return [*model.parameters(), *norms]


@right
def direct_step_after_a_check_of_ones_own(watch):
    """The second batch overflows, and its step is left out by hand."""
    model = net()
    optimizer, scale = sgd(model), scaler()
    with watch(model, optimizer, scale):
        for k, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            scale.scale(mse(model, x, y) * (1e38 if k == 1 else 1.0)).backward()
            scale.unscale_(optimizer)
            if clip_grad_norm_(model.parameters(), 1.0).isfinite():
                optimizer.step()
            scale.update()
    return list(model.parameters())
