"""Wrong answers to lab 06 that real people give, each with the message that the check shows."""

import torch

from ampedu.exercises import mutant

clip = torch.nn.utils.clip_grad_norm_
RIGHT = dict(zip((f"patient {n}" for n in range(1, 11)), "igjedbcknm", strict=True))


def half(device):
    return torch.autocast(device, dtype=torch.float16)


def forward(model, batch, loss_fn):
    x, y = batch
    with half(x.device.type):
        return loss_fn(model(x), y)


def loss_of_heads(model, x, y, z, loss_fn):
    with half(x.device.type):
        main, side = model(x)
        return loss_fn(main, y) + loss_fn(side, z)


def diagnosed(**letters):
    """The right letters but for those given: diagnosed(_2="c")."""
    return {**RIGHT, **{f"patient {name[1:]}": letter for name, letter in letters.items()}}


@mutant(
    "06.diagnoses",
    "You have exchanged patients 2 and 7: the same error, two causes. Patient 2 unscales in every micro-batch. Patient "
    "7 unscales once per step, but leaves out `update` when it skips.",
)
def twins_of_unscale():
    return diagnosed(_2="c", _7="g")


@mutant(
    "06.diagnoses",
    "You have exchanged patients 3 and 8. Both errors say that no infinities were looked for. Patient 8 has an "
    "optimizer whose parameters are frozen. Patient 3 updates before any optimizer was stepped.",
)
def twins_of_inf_checks():
    return diagnosed(_3="k", _8="j")


@mutant(
    "06.diagnoses",
    "Patient 1 does call the optimizer through the scaler. Its updates are too small, not too large: clipping has "
    "already shrunk scaled gradients to `max_norm` when they are divided by the scale.",
)
def first_steps_directly():
    return diagnosed(_1="e", _4="i")


@mutant(
    "06.diagnoses",
    "Patient 4 zeroes its gradients, in the first line of the loop. What is too large by the scale has not been "
    "unscaled.",
)
def fourth_adds_up():
    return diagnosed(_4="a")


@mutant(
    "06.diagnoses",
    "Patient 9 scales its only loss. Look at what happens between the two optimizers: `update` may change the scale "
    "before the second one divides by it.",
)
def ninth_is_unscaled():
    return diagnosed(_9="d", _5="n")


@mutant(
    "06.diagnoses",
    "Patient 2 is wrong. Its scaler does look at gradients before each update. But `unscale_` stands in every "
    "micro-batch: the second call would divide the first micro-batch's gradients again.",
)
def second_updates_too_often():
    return diagnosed(_2="j", _3="g")


@mutant(
    "06.diagnoses",
    "Patient 3 divides its loss by `steps`. The error comes from `update`, which is called in every micro-batch, also "
    "where no optimizer was stepped.",
)
def third_does_not_divide():
    return diagnosed(_3="f")


@mutant(
    "06.diagnoses",
    "Patient 7 has an `update`, in the last line, and its healthy steps reach it. After a skip by hand they do not: "
    "`continue` jumps over it.",
)
def seventh_never_updates():
    return diagnosed(_7="p")


@mutant(
    "06.diagnoses",
    "The region of patient 5 ends before backward, and so do all regions of the ward. One of its two losses goes to "
    "backward without `scaler.scale`.",
)
def fifth_leaves_region_open():
    return diagnosed(_5="h")


def clipped(model, batch, loss_fn, optimizer, scaler, max_norm, *, zero=True, region=True, unscale=True,
            limit=lambda scaler, norm: norm, after=False, step=lambda scaler, optimizer: scaler.step(optimizer),
            update=True):  # fmt: skip
    """clipped_step, with the parts that mutants replace."""
    if zero:
        optimizer.zero_grad()
    x, y = batch
    loss = forward(model, batch, loss_fn) if region else loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if unscale:
        scaler.unscale_(optimizer)
    norm = clip(model.parameters(), limit(scaler, max_norm))
    if after:
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    step(scaler, optimizer)
    if update:
        scaler.update()
    return norm.item()


@mutant(
    "06.clipped_step",
    "You clipped scaled gradients. They are longer by the scale, so nearly all are clipped, and `step` then divides by "
    "the scale: the update is far too small. Call `scaler.unscale_(optimizer)` first.",
)
def clip_before_unscale(*args):
    return clipped(*args, unscale=False)


@mutant(
    "06.clipped_step",
    "The weights are right, but the norm you return is in units of the scale: you clipped scaled gradients to a scaled "
    "`max_norm`. The log would jump with every change of the scale. Unscale first.",
)
def scaled_threshold(*args):
    return clipped(*args, unscale=False, limit=lambda scaler, norm: norm * scaler.get_scale())


@mutant(
    "06.clipped_step",
    "You returned the norm after clipping. Return what `clip_grad_norm_` returns: the one before.",
)
def norm_after_clipping(*args):
    return clipped(*args, after=True)


@mutant(
    "06.clipped_step",
    "The gradients of earlier steps are still there: backward adds to them. Call `optimizer.zero_grad()` in each step.",
)
def never_zeroed(*args):
    return clipped(*args, zero=False)


@mutant(
    "06.clipped_step",
    "You unscaled and then called `optimizer.step()` yourself. It does not skip: after an overflow the weights are "
    "NaN. `scaler.step(optimizer)` knows that the gradients are unscaled already.",
)
def steps_without_scaler(*args):
    return clipped(*args, step=lambda scaler, optimizer: optimizer.step())


@mutant(
    "06.clipped_step",
    "You divided the gradients by the scale by hand. `scaler.step` does not know it and divides once more: the update "
    "is too small by the scale. Use `scaler.unscale_(optimizer)`, which it remembers.",
)
def divides_by_hand(model, batch, loss_fn, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    scaler.scale(forward(model, batch, loss_fn)).backward()
    for parameter in model.parameters():
        parameter.grad /= scaler.get_scale()
    norm = clip(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm.item()


@mutant(
    "06.clipped_step",
    "`scaler.update()` is missing. The second step finds that `unscale_` was called already, and the scale can never "
    "change.",
)
def no_update(*args):
    return clipped(*args, update=False)


@mutant(
    "06.clipped_step",
    "The order is right, but the model ran in float32. Compute outputs and loss under `torch.autocast` with "
    "`dtype=torch.float16`.",
)
def no_region(*args):
    return clipped(*args, region=False)


@mutant(
    "06.patient_2",
    "You silenced the error with an `update` in every micro-batch. Now each `unscale_` divides all gradients that are "
    "there, the older ones again and again. Unscale once, at the end of the window.",
)
def updates_to_unscale_again(model, batches, loss_fn, optimizer, scaler, steps, max_norm):
    for index, batch in enumerate(batches):
        scaler.scale(forward(model, batch, loss_fn) / steps).backward()
        scaler.unscale_(optimizer)
        clip(model.parameters(), max_norm)
        if (index + 1) % steps == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


@mutant(
    "06.patient_2",
    "`unscale_` is gone, and the error with it. But now clipping sees scaled gradients, and your patient has the "
    "disease of patient 1.",
)
def never_unscales(model, batches, loss_fn, optimizer, scaler, steps, max_norm):
    for index, batch in enumerate(batches):
        scaler.scale(forward(model, batch, loss_fn) / steps).backward()
        if (index + 1) % steps == 0:
            clip(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@mutant(
    "06.patient_2",
    "You unscale in the first micro-batch of a window only. The others then add scaled gradients to unscaled ones, and "
    "nobody divides them. Unscale when the window is complete.",
)
def unscales_first(model, batches, loss_fn, optimizer, scaler, steps, max_norm):
    for index, batch in enumerate(batches):
        scaler.scale(forward(model, batch, loss_fn) / steps).backward()
        if index % steps == 0:
            scaler.unscale_(optimizer)
        if (index + 1) % steps == 0:
            clip(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@mutant(
    "06.patient_2",
    "You step after every micro-batch. That is no accumulation any more: clipping and growth of the scale come `steps` "
    "times as often. Step when the window is complete.",
)
def steps_each(model, batches, loss_fn, optimizer, scaler, steps, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn) / steps).backward()
        scaler.unscale_(optimizer)
        clip(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()


@mutant(
    "06.patient_2",
    "The division by `steps` is lost. The sum of the gradients is `steps` times their mean.",
)
def sums_and_clips(model, batches, loss_fn, optimizer, scaler, steps, max_norm):
    for index, batch in enumerate(batches):
        scaler.scale(forward(model, batch, loss_fn)).backward()
        if (index + 1) % steps == 0:
            scaler.unscale_(optimizer)
            clip(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def both(optimizer, scaler):
    scaler.step(optimizer)
    scaler.update()


def nothing(optimizer, scaler):
    pass


def windows(model, batches, loss_fn, optimizer, scaler, steps, *, before=nothing, at_end=both, always=nothing,
            divide=True, zero_each=False):  # fmt: skip
    """repaired_3, with the parts that mutants replace."""
    for index, batch in enumerate(batches):
        if zero_each:
            optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn) / (steps if divide else 1)).backward()
        before(optimizer, scaler)
        if (index + 1) % steps == 0:
            at_end(optimizer, scaler)
            optimizer.zero_grad()
        always(optimizer, scaler)


@mutant(
    "06.patient_3",
    "You moved `scaler.step` to every micro-batch, so that `update` has something to look at. It unscales in place, "
    "and the next micro-batch adds scaled gradients to unscaled ones. Move `update` instead.",
)
def steps_with_update(*args):
    windows(*args, before=both, at_end=nothing)


@mutant(
    "06.patient_3",
    "You unscale in every micro-batch, so that `update` has something to look at. The older gradients are divided "
    "again and again. `update` belongs to the step, at the end of the window.",
)
def unscales_with_update(*args):
    windows(*args, before=lambda optimizer, scaler: scaler.unscale_(optimizer),
            at_end=lambda optimizer, scaler: scaler.step(optimizer),
            always=lambda optimizer, scaler: scaler.update())  # fmt: skip


@mutant(
    "06.patient_3",
    "`update` is gone. The first window passes, and the second step finds that there was no update since the last one.",
)
def never_updates(*args):
    windows(*args, at_end=lambda optimizer, scaler: scaler.step(optimizer))


@mutant(
    "06.patient_3",
    "You zero the gradients before every micro-batch, so that only the last one of a window counts. Zero them after "
    "the step.",
)
def zeroes_each(*args):
    windows(*args, zero_each=True)


@mutant("06.patient_3", "The division by `steps` is lost: the update is `steps` times too large.")
def sums(*args):
    windows(*args, divide=False)


def simple(model, batches, loss_fn, optimizer, scaler, step, scale=True):
    """A loop without accumulation; step: of the optimizer and the scaler."""
    for batch in batches:
        optimizer.zero_grad()
        loss = forward(model, batch, loss_fn)
        (scaler.scale(loss) if scale else loss).backward()
        step(optimizer, scaler)


@mutant(
    "06.patient_4",
    "This is the patient's loop. `optimizer.step()` takes the gradients as they are, too large by the scale. Call "
    "`scaler.step(optimizer)` and `scaler.update()`.",
)
def fourth_as_before(*args):
    simple(*args, lambda optimizer, scaler: optimizer.step())


@mutant(
    "06.patient_4",
    "You unscale and then call `optimizer.step()`. The sizes are right, but it steps even if a gradient is infinite, "
    "and the weights are lost. `scaler.step(optimizer)` looks first.",
)
def unscales_and_steps(*args):
    def step(optimizer, scaler):
        scaler.unscale_(optimizer)
        optimizer.step()
        scaler.update()

    simple(*args, step)


@mutant(
    "06.patient_4",
    "Dividing by the scale by hand makes the sizes right, but nobody looks for infinities and the scale never changes. "
    "`scaler.step` and `scaler.update` do both.",
)
def divides_and_steps(model, *args):
    def step(optimizer, scaler):
        for parameter in model.parameters():
            parameter.grad /= scaler.get_scale()
        optimizer.step()

    simple(model, *args, step)


@mutant(
    "06.patient_4",
    "You took the scaler out. Then small gradients become 0 in float16: with the small loss, nothing moves.",
)
def no_scaler(*args):
    simple(*args, lambda optimizer, scaler: optimizer.step(), scale=False)


@mutant(
    "06.patient_4",
    "You call `scaler.step(optimizer)` and `optimizer.step()`. The scaler calls the optimizer itself: now every update "
    "is made twice.",
)
def steps_twice(*args):
    def step(optimizer, scaler):
        scaler.step(optimizer)
        optimizer.step()
        scaler.update()

    simple(*args, step)


def heads(model, batches, loss_fn, optimizer, scaler, weight, backward):
    """Loop over two heads; backward: of the two losses."""
    for x, y, z in batches:
        optimizer.zero_grad()
        with half(x.device.type):
            main, side = model(x)
            losses = loss_fn(main, y), weight * loss_fn(side, z)
        backward(*losses)
        scaler.step(optimizer)
        scaler.update()


@mutant(
    "06.patient_5",
    "The second loss is still not scaled, and `step` divides its gradients by the scale. Add the losses, then scale "
    "the sum.",
)
def fifth_as_before(model, batches, loss_fn, optimizer, scaler, weight):
    heads(model, batches, loss_fn, optimizer, scaler, weight, lambda a, b: (scaler.scale(a) + b).backward())


@mutant(
    "06.patient_5",
    "The second loss is scaled twice: once by itself, once with the sum. Its gradients are too large by the scale. "
    "Scale the sum alone.",
)
def scales_twice(model, batches, loss_fn, optimizer, scaler, weight):
    heads(model, batches, loss_fn, optimizer, scaler, weight,
          lambda a, b: scaler.scale(a + scaler.scale(b)).backward())  # fmt: skip


def scheduled(model, batches, loss_fn, optimizer, scaler, scheduler, move):
    """repaired_6; move: whether the scheduler steps, from the scales before and after."""
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if move(before, scaler.get_scale()):
            scheduler.step()


@mutant(
    "06.patient_6",
    "The scheduler still steps every time, also after a skip. Compare the scale before and after `update`; reading it "
    "twice after `update` tells nothing, and `scaler.step` returns None in both cases.",
)
def schedule_as_before(*args):
    scheduled(*args, lambda before, after: True)


@mutant(
    "06.patient_6",
    "You step the scheduler only if the scale is unchanged. But it also changes when it grows, after a good step. "
    "Only a scale that fell means a skip.",
)
def growth_is_a_skip(*args):
    scheduled(*args, lambda before, after: after == before)


@mutant(
    "06.patient_6",
    "The scheduler never steps. `scaler.step` returns None whether it stepped or not: look at the scale instead.",
)
def schedule_never(*args):
    scheduled(*args, lambda before, after: False)


@mutant(
    "06.patient_6",
    "You skip the whole rest of a step that overflows, `update` too. The scale stays too large.",
)
def skips_update_too(model, batches, loss_fn, optimizer, scaler, scheduler):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()


@mutant(
    "06.patient_7",
    "The error is still there: after a skip by hand, `update` must run as well. Simply leave the test out: "
    "`scaler.step` skips by itself.",
)
def seventh_as_before(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.unscale_(optimizer)
        if torch.isfinite(clip(model.parameters(), max_norm)):
            scaler.step(optimizer)
            scaler.update()


@mutant(
    "06.patient_7",
    "Without `unscale_` there is no error, but clipping sees scaled gradients, and after an overflow the scale still "
    "does not fall.",
)
def seventh_without_unscale(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        if torch.isfinite(clip(model.parameters(), max_norm)):
            scaler.step(optimizer)
            scaler.update()


@mutant(
    "06.patient_7",
    "You skip before `unscale_`, so that there is no error, but the scale does not fall: it would be too large in "
    "every step to come. Let `step` and `update` run.",
)
def skips_before_unscale(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            scaler.unscale_(optimizer)
            clip(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()


@mutant(
    "06.patient_7",
    "Training ends at the first overflow. One skipped step is normal: go on with the next batch.",
)
def stops_at_overflow(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.unscale_(optimizer)
        if not torch.isfinite(clip(model.parameters(), max_norm)):
            break
        scaler.step(optimizer)
        scaler.update()


@mutant(
    "06.patient_7",
    "You replaced infinities in the gradients by 0 before the scaler could see them. The rest of such a gradient is no "
    "good either, the step is taken, and the scale does not fall.",
)
def cleans_gradients(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        for parameter in model.parameters():
            parameter.grad.nan_to_num_(nan=0.0, posinf=6e4, neginf=-6e4)
        scaler.unscale_(optimizer)
        clip(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()


@mutant(
    "06.patient_7",
    "After an overflow you go on with a new scaler. It starts at 65536 again, which is too large here, and the old one "
    "never learns of the skip.",
)
def new_scaler(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.unscale_(optimizer)
        if torch.isfinite(clip(model.parameters(), max_norm)):
            scaler.step(optimizer)
            scaler.update()
        else:
            scaler = torch.amp.GradScaler("cpu")


def frozen(backbone, head, batches, loss_fn, optimizers, scaler, thaw, step, thawed=lambda index, thaw: index >= thaw):
    """repaired_8; step: of the index of the batch."""
    model = torch.nn.Sequential(backbone, head)
    for index, batch in enumerate(batches):
        backbone.requires_grad_(thawed(index, thaw))
        model.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        step(index)


@mutant(
    "06.patient_8",
    "The backbone's optimizer is never stepped, also not when the backbone has been thawed.",
)
def head_only(backbone, head, batches, loss_fn, optimizers, scaler, thaw):
    def step(index):
        scaler.step(optimizers[1])
        scaler.update()

    frozen(backbone, head, batches, loss_fn, optimizers, scaler, thaw, step)


@mutant(
    "06.patient_8",
    "There is no error any more because nothing is frozen any more. Leave `requires_grad_` as it was and do not step "
    "an optimizer without gradients.",
)
def thaws_at_once(backbone, head, batches, loss_fn, optimizers, scaler, thaw):
    def step(index):
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()

    frozen(backbone, head, batches, loss_fn, optimizers, scaler, thaw, step, lambda index, thaw: True)


@mutant(
    "06.patient_8",
    "You step the backbone's optimizer without the scaler. That is no error while it is frozen, but afterwards it "
    "takes scaled gradients.",
)
def backbone_without_scaler(backbone, head, batches, loss_fn, optimizers, scaler, thaw):
    def step(index):
        optimizers[0].step()
        scaler.step(optimizers[1])
        scaler.update()

    frozen(backbone, head, batches, loss_fn, optimizers, scaler, thaw, step)


@mutant(
    "06.patient_8",
    "While the backbone is frozen you train nothing. Only its own optimizer has to wait: the head's goes on.",
)
def waits_for_thaw(backbone, head, batches, loss_fn, optimizers, scaler, thaw):
    def step(index):
        if index >= thaw:
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

    frozen(backbone, head, batches, loss_fn, optimizers, scaler, thaw, step)


@mutant(
    "06.patient_8",
    "The scaler is updated once for each optimizer. Where both step, the scale then changes twice, and the second one "
    "may divide by another scale than backward multiplied with.",
)
def update_for_each(backbone, head, batches, loss_fn, optimizers, scaler, thaw):
    def step(index):
        for optimizer in optimizers if index >= thaw else optimizers[1:]:
            scaler.step(optimizer)
            scaler.update()

    frozen(backbone, head, batches, loss_fn, optimizers, scaler, thaw, step)


def pair(model, batches, loss_fn, optimizers, scaler, finish):
    """repaired_9; finish: what comes after backward."""
    for x, y, z in batches:
        model.zero_grad()
        scaler.scale(loss_of_heads(model, x, y, z, loss_fn)).backward()
        finish(*optimizers, scaler)


@mutant(
    "06.patient_9",
    "There are still two updates per step. The first one may change the scale before the second optimizer divides by "
    "it. Call `update` once, after both.",
)
def two_updates(*args):
    def finish(first, second, scaler):
        scaler.step(first)
        scaler.update()
        scaler.step(second)
        scaler.update()

    pair(*args, finish)


@mutant(
    "06.patient_9",
    "`update` now runs once, but between the optimizers. The second one divides by the new scale, and its infinities "
    "count only in the next step. Call `update` after both.",
)
def update_between(*args):
    def finish(first, second, scaler):
        scaler.step(first)
        scaler.update()
        scaler.step(second)

    pair(*args, finish)


@mutant(
    "06.patient_9",
    "There is no update at all now: the second call of `step` for the same optimizer is an error, and the scale could "
    "never change.",
)
def no_update_for_heads(*args):
    def finish(first, second, scaler):
        scaler.step(first)
        scaler.step(second)

    pair(*args, finish)


@mutant(
    "06.patient_9",
    "If one head overflows, you skip both. The other head's gradients are fine: `scaler.step` decides for each "
    "optimizer by itself.",
)
def skips_both(model, *args):
    def finish(first, second, scaler):
        scaler.unscale_(first)
        scaler.unscale_(second)
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            scaler.step(first)
            scaler.step(second)
        scaler.update()

    pair(model, *args, finish)


@mutant(
    "06.patient_10",
    "The error is gone because the scaler is. The weights are still float16, and updates smaller than half the gap "
    "between two numbers are rounded away.",
)
def half_without_scaler(model, batches, loss_fn, optimizer, scaler):
    model.half()
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x.half()), y.half()).backward()
        optimizer.step()


@mutant(
    "06.patient_10",
    "You made the model bfloat16. The scaler accepts it, but bfloat16 has fewer digits still: the updates are rounded "
    "away. Keep the weights float32.",
)
def bfloat16_instead(model, batches, loss_fn, optimizer, scaler):
    model.bfloat16()
    for x, y in batches:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x.bfloat16()), y.bfloat16())).backward()
        scaler.step(optimizer)
        scaler.update()


@mutant(
    "06.patient_10",
    "The weights are healthy, and everything runs in float32 now. Use `forward`, or a region: products in float16, "
    "weights in float32.",
)
def all_in_float32(model, batches, loss_fn, optimizer, scaler):
    for x, y in batches:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()


@mutant(
    "06.patient_10",
    "Autocast is right, and the scaler is gone. An overflow now goes straight into the weights.",
)
def autocast_without_scaler(model, batches, loss_fn, optimizer, scaler):
    for batch in batches:
        optimizer.zero_grad()
        scale = scaler.get_scale()
        (forward(model, batch, loss_fn) * scale).backward()
        for parameter in model.parameters():
            parameter.grad /= scale
        optimizer.step()


def accumulated(batches, steps, optimizer, scaler, model, loss_fn, share, complete=False):
    """accumulate; share: of a batch in its window."""
    for start in range(0, len(batches), steps):
        window = batches[start : start + steps]
        if complete and len(window) < steps:
            return
        optimizer.zero_grad()
        for batch in window:
            scaler.scale(forward(model, batch, loss_fn) * share(batch, window)).backward()
        scaler.step(optimizer)
        scaler.update()


def size(batch):
    return len(batch[0])


@mutant(
    "06.accumulate",
    "You divide every loss by `steps`. That is a mean of means: rows of a small batch count too much, and in a last "
    "window that is not full all rows count too little.",
)
def divides_by_steps(model, batches, loss_fn, optimizer, scaler, steps):
    accumulated(batches, steps, optimizer, scaler, model, loss_fn, lambda batch, window: 1 / steps)


@mutant(
    "06.accumulate",
    "You divide by the number of batches that are in the window. That heals the last window, but rows of a small batch "
    "still count more than those of a large one.",
)
def divides_by_batches(model, batches, loss_fn, optimizer, scaler, steps):
    accumulated(batches, steps, optimizer, scaler, model, loss_fn, lambda batch, window: 1 / len(window))


@mutant(
    "06.accumulate",
    "The last window makes no step if it is not full, as in loops with `if (i + 1) % steps == 0`. Those batches are "
    "lost.",
)
def drops_the_rest(model, batches, loss_fn, optimizer, scaler, steps):
    accumulated(batches, steps, optimizer, scaler, model, loss_fn,
                lambda batch, window: size(batch) / sum(map(size, window)), complete=True)  # fmt: skip


@mutant(
    "06.accumulate",
    "You multiplied by the rows of each batch and divided by nothing: this is the sum over rows, not their mean.",
)
def sums_over_rows(model, batches, loss_fn, optimizer, scaler, steps):
    accumulated(batches, steps, optimizer, scaler, model, loss_fn, lambda batch, window: size(batch))


@mutant(
    "06.accumulate",
    "The losses are added without any weight: with four batches the update is four times too large.",
)
def adds_means(model, batches, loss_fn, optimizer, scaler, steps):
    accumulated(batches, steps, optimizer, scaler, model, loss_fn, lambda batch, window: 1.0)


@mutant(
    "06.accumulate",
    "You divide by the rows of all batches, not by those of the window. Every window is a step of its own.",
)
def rows_of_everything(model, batches, loss_fn, optimizer, scaler, steps):
    accumulated(batches, steps, optimizer, scaler, model, loss_fn,
                lambda batch, window: size(batch) / sum(map(size, batches)))  # fmt: skip


def gan(generator, critic, real, noise, loss_fn, g_optimizer, d_optimizer, scaler, *, zero_critic="before",
        update_twice=False, generator_first=False):  # fmt: skip
    """gan_step, with the parts that mutants replace."""

    def step_critic():
        if zero_critic == "before":
            d_optimizer.zero_grad()
        with half("cpu"):
            good, bad = critic(real), critic(generator(noise).detach())
            loss = loss_fn(good, torch.ones_like(good)) + loss_fn(bad, torch.zeros_like(bad))
        scaler.scale(loss).backward()
        scaler.step(d_optimizer)
        if zero_critic == "after":
            d_optimizer.zero_grad()

    def step_generator():
        g_optimizer.zero_grad()
        with half("cpu"):
            fake = critic(generator(noise))
            loss = loss_fn(fake, torch.ones_like(fake))
        scaler.scale(loss).backward()
        scaler.step(g_optimizer)

    first, second = (step_generator, step_critic) if generator_first else (step_critic, step_generator)
    first()
    if update_twice:
        scaler.update()
    second()
    scaler.update()


@mutant(
    "06.gan_step",
    "The generator's backward leaves gradients in the critic, and they enter the critic's next step. Zeroing the "
    "critic after its own step is too early: do it right before its next backward.",
)
def gradients_left_in_the_critic(*args):
    gan(*args, zero_critic="after")


@mutant(
    "06.gan_step",
    "You call `update` after each of the two steps. Then the scale grows and falls twice as fast as it should. One "
    "scaler, one update per call.",
)
def gan_updates_twice(*args):
    gan(*args, update_twice=True)


@mutant(
    "06.gan_step",
    "The generator steps first. The task asks for the critic first, so that the generator meets the critic as it is "
    "then.",
)
def generator_steps_first(*args):
    gan(*args, generator_first=True)


@mutant(
    "06.gan_step",
    "Both passes are in one region. It keeps the critic's cast weights, so that the generator learns from the critic "
    "as it was before its step. Open a region for each pass.",
)
def one_region(generator, critic, real, noise, loss_fn, g_optimizer, d_optimizer, scaler):
    with half("cpu"):
        d_optimizer.zero_grad()
        good, bad = critic(real), critic(generator(noise).detach())
        loss = loss_fn(good, torch.ones_like(good)) + loss_fn(bad, torch.zeros_like(bad))
        scaler.scale(loss).backward()
        scaler.step(d_optimizer)
        g_optimizer.zero_grad()
        fake = critic(generator(noise))
        scaler.scale(loss_fn(fake, torch.ones_like(fake))).backward()
        scaler.step(g_optimizer)
        scaler.update()


@mutant(
    "06.gan_step",
    "The critic's loss reaches into the generator: `detach` is missing. Its gradients are added to those of the "
    "generator's own loss, and push the other way.",
)
def not_detached(generator, critic, real, noise, loss_fn, g_optimizer, d_optimizer, scaler):
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    with half("cpu"):
        good, bad = critic(real), critic(generator(noise))
        loss = loss_fn(good, torch.ones_like(good)) + loss_fn(bad, torch.zeros_like(bad))
    scaler.scale(loss).backward()
    scaler.step(d_optimizer)
    with half("cpu"):
        fake = critic(generator(noise))
        loss = loss_fn(fake, torch.ones_like(fake))
    scaler.scale(loss).backward()
    scaler.step(g_optimizer)
    scaler.update()


def penalized(critic, batch, loss_fn, optimizer, scaler, weight, *, unscale=True, graph=True, scaled=True,
              penalty=lambda inner: (inner.norm(dim=1) - 1).square().mean()):  # fmt: skip
    """penalty_step, with the parts that mutants replace."""
    x, y = batch
    x = x.detach().requires_grad_()
    optimizer.zero_grad()
    with half("cpu"):
        outputs = critic(x)
        loss = loss_fn(outputs, y)
    (inner,) = torch.autograd.grad(scaler.scale(outputs.float().sum()), x, create_graph=graph, retain_graph=True)
    value = penalty(inner / scaler.get_scale() if unscale else inner)
    if scaled:
        scaler.scale(loss + weight * value).backward()
    else:
        scaler.scale(loss).backward(retain_graph=True)
        (weight * value).backward()
    scaler.step(optimizer)
    scaler.update()
    return value.item()


@mutant(
    "06.gradient_penalty",
    "The penalty is made of scaled gradients: it wants a norm of 1/scale. Divide the inner gradient by "
    "`scaler.get_scale()` before you take its norm.",
)
def penalty_of_scaled_gradients(*args):
    return penalized(*args, unscale=False)


@mutant(
    "06.gradient_penalty",
    "The penalty has the right value and no effect: without `create_graph=True` the inner gradient is a constant to "
    "the second backward.",
)
def penalty_is_a_constant(*args):
    return penalized(*args, graph=False)


@mutant(
    "06.gradient_penalty",
    "The penalty is right, but its backward starts unscaled, and `step` divides its gradients by the scale. Add it to "
    "the loss and scale the sum.",
)
def penalty_not_scaled(*args):
    return penalized(*args, scaled=False)


@mutant(
    "06.gradient_penalty",
    "You took one norm of the whole batch. Each row has a norm of its own: `norm(dim=1)`.",
)
def one_norm_for_all(*args):
    return penalized(*args, penalty=lambda inner: (inner.norm() - 1).square())


@mutant(
    "06.gradient_penalty",
    "You return the mean square of the norms. The penalty is the square of their distance from 1.",
)
def norm_without_target(*args):
    return penalized(*args, penalty=lambda inner: inner.norm(dim=1).square().mean())
