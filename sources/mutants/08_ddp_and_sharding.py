"""Wrong answers to lab 08 that real people give, each with the message that the check shows."""

import contextlib

import torch

from ampedu.exercises import mutant

SAVED = {
    **dict.fromkeys(("weights", "optimizer state", "scaler state", "scheduler state", "epoch"), "once"),
    **dict.fromkeys(("random state", "shuffle buffer", "error feedback", "weight shard"), "per rank"),
    **dict.fromkeys(("gradients", "autocast copies", "buckets"), "not at all"),
}


def forward(model, batch, loss_fn):
    x, y = batch
    with torch.autocast(x.device.type, dtype=torch.float16):
        return loss_fn(model(x), y)


def backward(models, batches, loss_fn, scalers):
    for model, batch, scaler in zip(models, batches, scalers, strict=True):
        model.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()


def reduce(models, group, divide=True):
    for copies in zip(*(model.parameters() for model in models), strict=True):
        gradients = [parameter.grad for parameter in copies]
        group.all_reduce(gradients)
        for gradient in gradients:
            gradient /= group.size if divide else 1


def step(optimizers, scalers):
    for optimizer, scaler in zip(optimizers, scalers, strict=True):
        scaler.step(optimizer)
        scaler.update()


@mutant(
    "08.ddp_step",
    "You added the gradients of the ranks. DDP takes their mean: with two ranks your updates are twice too large.",
)
def summed(models, batches, loss_fn, optimizers, scalers, group):
    backward(models, batches, loss_fn, scalers)
    reduce(models, group, divide=False)
    step(optimizers, scalers)


@mutant(
    "08.ddp_step",
    "You unscale before you average. Then each scaler has looked at its own rank's gradients only: one rank skips, the "
    "others step with the infinity that the mean has brought them. Reduce first, then unscale.",
)
def averaged_after_unscale(models, batches, loss_fn, optimizers, scalers, group):
    backward(models, batches, loss_fn, scalers)
    for optimizer, scaler in zip(optimizers, scalers, strict=True):
        scaler.unscale_(optimizer)
    reduce(models, group)
    step(optimizers, scalers)


@mutant(
    "08.ddp_step",
    "Every rank trains by itself: nothing goes through the group. The models move apart from the first step on.",
)
def never_reduced(models, batches, loss_fn, optimizers, scalers, group):
    backward(models, batches, loss_fn, scalers)
    step(optimizers, scalers)


@mutant(
    "08.ddp_step",
    "You average the weights after the step. Without an overflow SGD does not notice; but a rank that skips alone now "
    "drags the mean back, and the scales move apart. Average the gradients, before the scalers look.",
)
def weights_averaged(models, batches, loss_fn, optimizers, scalers, group):
    backward(models, batches, loss_fn, scalers)
    step(optimizers, scalers)
    with torch.no_grad():
        for copies in zip(*(model.parameters() for model in models), strict=True):
            group.all_reduce(list(copies))
            for parameter in copies:
                parameter /= group.size


@mutant(
    "08.ddp_step",
    "The mean is right, and you step without the scalers' check: `optimizer.step()` takes the scaled gradients as they "
    "are. Use `scaler.step(optimizer)` on each rank.",
)
def stepped_directly(models, batches, loss_fn, optimizers, scalers, group):
    backward(models, batches, loss_fn, scalers)
    reduce(models, group)
    for optimizer in optimizers:
        optimizer.step()


@mutant(
    "08.ddp_step",
    "The result is right, but you took it from all ranks at once. A rank sees only its own entry of the lists: send "
    "the gradients through `group.all_reduce`.",
)
def mean_without_group(models, batches, loss_fn, optimizers, scalers, group):
    backward(models, batches, loss_fn, scalers)
    for copies in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack([parameter.grad for parameter in copies]).mean(0)
        for parameter in copies:
            parameter.grad = mean.clone()
    step(optimizers, scalers)


def tokens(replicas, batches, loss_sum, optimizers, scalers, group, factor, ask=True):
    """token_step; factor: of a rank's loss, from (its rows, all rows, ranks)."""
    counts = [torch.tensor(float(len(x))) for x, _ in batches]
    own = [count.item() for count in counts]
    if ask:
        group.all_reduce(counts)
        totals = [count.item() for count in counts]
    else:
        totals = [sum(own)] * len(own)
    for optimizer in optimizers:
        optimizer.zero_grad()
    losses = replicas.losses(batches, loss_sum)
    replicas.backward([scaler.scale(loss * factor(mine, total, group.size))
                       for scaler, loss, mine, total in zip(scalers, losses, own, totals, strict=True)])  # fmt: skip
    step(optimizers, scalers)


@mutant(
    "08.token_step",
    "You take the mean on each rank, and DDP the mean of these means: a row on a small rank counts more than one on a "
    "large rank. Divide by the rows of all ranks.",
)
def mean_of_means(*args):
    tokens(*args, lambda mine, total, ranks: 1 / max(mine, 1), ask=False)


@mutant(
    "08.token_step",
    "You divide by the rows of all ranks, and DDP divides by the number of ranks once more: the updates are that many "
    "times too small. Multiply the losses by `group.size`.",
)
def divided_twice(*args):
    tokens(*args, lambda mine, total, ranks: 1 / total)


@mutant(
    "08.token_step",
    "You multiply by the share of the rank's rows, but `loss_sum` is a sum already: rows of large ranks count too "
    "much. That share is for a loss that is a mean.",
)
def share_of_a_sum(*args):
    tokens(*args, lambda mine, total, ranks: ranks * mine / total)


@mutant(
    "08.token_step",
    "You divide by nothing: these are the gradients of a sum over rows, divided by the ranks.",
)
def sum_over_rows(*args):
    tokens(*args, lambda mine, total, ranks: 1.0)


@mutant(
    "08.token_step",
    "The result is right, but no rank can count the rows of the others. Put each count in a tensor and add them by "
    "`group.all_reduce`.",
)
def counts_of_others(*args):
    tokens(*args, lambda mine, total, ranks: ranks / total, ask=False)


def accumulated(replicas, batches, loss_fn, optimizers, scalers, steps, max_norm, *, home=None, share=None,
                clip="after", complete=False):  # fmt: skip
    """accumulate; home(index in the window, its length, index of all): stays at home; share: of a loss."""
    home = home or (lambda index, length, overall: index < length - 1)
    share = share or (lambda length: 1 / length)
    for start in range(0, len(batches), steps):
        window = batches[start : start + steps]
        if complete and len(window) < steps:
            return
        for optimizer in optimizers:
            optimizer.zero_grad()
        for index, batch in enumerate(window):
            with replicas.no_sync() if home(index, len(window), start + index) else contextlib.nullcontext():
                losses = replicas.losses(batch, loss_fn)
                replicas.backward([scaler.scale(loss * share(len(window)))
                                   for scaler, loss in zip(scalers, losses, strict=True)])  # fmt: skip
        for model, optimizer, scaler in zip(replicas.models, optimizers, scalers, strict=True):
            if clip == "before":
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.unscale_(optimizer)
            if clip == "after":
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()


@mutant(
    "08.accumulate",
    "The weights are right, and `no_sync` is missing: every micro-batch sends all gradients. Only the last one of a "
    "window has to.",
)
def sends_always(*args):
    accumulated(*args, home=lambda index, length, overall: False)


@mutant(
    "08.accumulate",
    "Your windows never send: the last micro-batch is in `no_sync`, too. Each rank steps with its own gradients, and "
    "the models move apart.",
)
def never_sends(*args):
    accumulated(*args, home=lambda index, length, overall: True)


@mutant(
    "08.accumulate",
    "You send when `(i + 1) % steps == 0`. A last window that is not full never gets there, and the ranks step with "
    "their own gradients.",
)
def last_window_stays_at_home(*args):
    steps = args[5]
    accumulated(*args, home=lambda index, length, overall: (overall + 1) % steps != 0)


@mutant(
    "08.accumulate",
    "You send in the first micro-batch of a window and not in the last one. What comes after the last all-reduce never "
    "leaves its rank.",
)
def sends_first(*args):
    accumulated(*args, home=lambda index, length, overall: index > 0)


@mutant(
    "08.accumulate",
    "You divide every loss by `steps`. The last window may hold fewer micro-batches, and its update is too small then.",
)
def divides_by_steps(*args):
    steps = args[5]
    accumulated(*args, share=lambda length: 1 / steps)


@mutant(
    "08.accumulate",
    "The losses are not divided by the micro-batches of the window: the gradient is their sum.",
)
def adds_losses(*args):
    accumulated(*args, share=lambda length: 1.0)


@mutant(
    "08.accumulate",
    "You clip before `unscale_`: the norm that is compared with `max_norm` is too large by the scale. Unscale first.",
)
def clips_scaled(*args):
    accumulated(*args, clip="before")


@mutant(
    "08.accumulate",
    "A last window that is not full makes no step. Its batches are lost.",
)
def drops_the_rest(*args):
    accumulated(*args, complete=True)


def sharded(weights, gradients, scale, rate, group, opinion, op="max", inverse=True):
    """sharded_step; opinion: of a rank on its gradient, a number; op: None for no agreement."""
    found = [torch.as_tensor(float(opinion(gradient))) for gradient in gradients]
    if op:
        group.all_reduce(found, op=op)
    scales = []
    for weight, gradient, bad in zip(weights, gradients, found, strict=True):
        if not bad:
            weight -= rate * gradient / (scale if inverse else 1)
        scales.append(scale / 2 if bad else scale)
    return scales


def bad(gradient):
    return not gradient.isfinite().all()


@mutant(
    "08.sharded_step",
    "Each rank decides for itself: only the rank with the infinity skips, and the scales differ from then on. Take the "
    "maximum of all opinions.",
)
def decides_alone(*args):
    return sharded(*args, bad, op=None)


@mutant(
    "08.sharded_step",
    "You take the minimum: the step is skipped only if *all* ranks have found an infinity. One is enough.",
)
def only_if_all(*args):
    return sharded(*args, bad, op="min")


@mutant(
    "08.sharded_step",
    "You look for infinities and let NaN pass. `isfinite` is False for both.",
)
def nan_passes(*args):
    return sharded(*args, lambda gradient: gradient.isinf().any())


@mutant(
    "08.sharded_step",
    "You look for the largest element, and an empty shard has none. A rank without elements has found no infinity, and "
    "must say so: the others wait for it.",
)
def largest_of_nothing(*args):
    return sharded(*args, lambda gradient: not gradient.abs().amax().isfinite())


@mutant(
    "08.sharded_step",
    "The ranks agree, and the gradients are still scaled when they reach the weights. Divide by the scale.",
)
def still_scaled(*args):
    return sharded(*args, bad, inverse=False)


@mutant(
    "08.sharded_step",
    "The result is right, but you looked at all shards from one place. A rank sees only its own: let them agree by "
    "`group.all_reduce`.",
)
def sees_all_shards(weights, gradients, scale, rate, group):
    found = any(map(bad, gradients))
    return sharded(weights, gradients, scale, rate, group, lambda gradient: found, op=None)


def clipped(gradients, scale, max_norm, group, *, unscale=True, measure=lambda g: g.square().sum(), reduce=True,
            norm=lambda value, size: value**0.5,
            factor=lambda norm, limit: min(1.0, limit / (norm + 1e-6))):  # fmt: skip
    """clip_shards, with the parts that mutants replace."""
    if unscale:
        for gradient in gradients:
            gradient /= scale
    values = [measure(gradient) for gradient in gradients]
    if reduce:
        group.all_reduce(values)
    norms = [norm(value.item(), group.size) for value in values]
    for gradient, found in zip(gradients, norms, strict=True):
        gradient *= factor(found, max_norm)
        if not unscale:
            gradient /= scale
    return norms


@mutant(
    "08.clip_shards",
    "Each rank clips by the norm of its own shard. The shards shrink by different factors, and the update changes its "
    "direction. Add the squares of all ranks.",
)
def norm_of_own_shard(*args):
    return clipped(*args, reduce=False)


@mutant(
    "08.clip_shards",
    "You added the norms. Squares add up, norms do not: add the sums of squares and take one root.",
)
def sum_of_norms(*args):
    return clipped(*args, measure=lambda g: g.norm(), norm=lambda value, size: value)


@mutant(
    "08.clip_shards",
    "You measure the scaled gradients: the norm is too large by the scale, and everything is clipped. Unscale first.",
)
def norm_of_scaled(*args):
    return clipped(*args, unscale=False)


@mutant(
    "08.clip_shards",
    "You took the mean of the squares over the ranks. Shards are parts of one gradient and not copies: their squares "
    "are added.",
)
def mean_of_squares(*args):
    return clipped(*args, norm=lambda value, size: (value / size) ** 0.5)


@mutant(
    "08.clip_shards",
    "A gradient with a small norm is made larger. Clipping never does that: the factor is at most 1.",
)
def makes_larger(*args):
    return clipped(*args, factor=lambda norm, limit: limit / (norm + 1e-6))


def ring(tensors, group, *, sign=1, gather=True, divide=False, extra=0, keep=False):
    n = group.size
    chunks = [tensor.tensor_split(n) for tensor in tensors]
    for r in range(n - 1 + extra):
        received = group.pass_right([chunks[rank][(rank - r) % n] for rank in range(n)])
        for rank in range(n):
            chunks[rank][(rank - 1 - r) % n].add_(received[rank])
    for r in range(n - 1 if gather else 0):
        first = 0 if keep else 1
        received = group.pass_right([chunks[rank][(rank + first - r) % n] for rank in range(n)])
        for rank in range(n):
            chunks[rank][(rank + first - 1 - r) % n].copy_(received[rank])
    if divide:
        for tensor in tensors:
            tensor /= n


@mutant(
    "08.ring",
    "The sums are right, and every rank has sent its whole tensor around the ring. Cut it into chunks: that costs less "
    "than two tensors per rank, however many ranks there are.",
)
def whole_tensors(tensors, group):
    messages = [tensor.clone() for tensor in tensors]
    for _ in range(group.size - 1):
        messages = group.pass_right(messages)
        for tensor, message in zip(tensors, messages, strict=True):
            tensor += message


@mutant(
    "08.ring",
    "This is the reduce-scatter alone: each rank has one finished chunk. The all-gather has to pass these around.",
)
def scatter_only(tensors, group):
    ring(tensors, group, gather=False)


@mutant(
    "08.ring",
    "The first part has one round too many: after n − 1 rounds a chunk has met all ranks, and then its own rank adds "
    "to it again.",
)
def one_round_too_many(tensors, group):
    ring(tensors, group, extra=1)


@mutant(
    "08.ring",
    "The all-gather starts with chunk r. After the reduce-scatter rank r has finished chunk r + 1, so it passes on a "
    "sum that is not complete.",
)
def gathers_the_wrong_chunk(tensors, group):
    ring(tensors, group, keep=True)


@mutant(
    "08.ring",
    "You divided by the number of ranks. An all-reduce gives the sum; DDP divides by itself.",
)
def ring_mean(tensors, group):
    ring(tensors, group, divide=True)


@mutant(
    "08.ring",
    "You called `group.all_reduce`. This exercise is about what happens inside it: use `group.pass_right`.",
)
def ready_made(tensors, group):
    group.all_reduce(tensors)


def ledger(parameters, way, param_dtype, reduce_dtype, *, counted=lambda p: p.requires_grad, gathered=lambda p: True,
           itemsize=lambda dtype: dtype.itemsize, amp=None, hook=torch.float16, times=2,
           reduce_too=lambda reduce_dtype, param_dtype, own: reduce_dtype or param_dtype or own):  # fmt: skip
    """step_bytes, with the parts that mutants replace."""
    if way == "fsdp2":
        gather = sum(p.numel() * itemsize(param_dtype or p.dtype) for p in parameters if gathered(p))
        scatter = sum(p.numel() * itemsize(reduce_too(reduce_dtype, param_dtype, p.dtype))
                      for p in parameters if counted(p))  # fmt: skip
        return {"all_reduce": 0, "all_gather": times * gather, "reduce_scatter": scatter}
    sent = {"ddp": None, "ddp+amp": amp, "ddp+fp16 hook": hook}[way]
    total = sum(p.numel() * itemsize(sent or p.dtype) for p in parameters if counted(p))
    return {"all_reduce": total, "all_gather": 0, "reduce_scatter": 0}


@mutant(
    "08.bytes",
    "You counted frozen parameters in the reductions. They have no gradient, so there is nothing to reduce.",
)
def frozen_gradients(*args):
    return ledger(*args, counted=lambda p: True)


@mutant(
    "08.bytes",
    "These are bits: eight times too many. `dtype.itemsize` gives bytes.",
)
def bits(*args):
    return ledger(*args, itemsize=lambda dtype: 8 * dtype.itemsize)


@mutant(
    "08.bytes",
    "You halved the gradients because of AMP. Autocast casts weights for the products; gradients come back in the "
    "dtype of the parameters, and DDP sends them so.",
)
def amp_halves(*args):
    return ledger(*args, amp=torch.float16)


@mutant(
    "08.bytes",
    "All gradients have 4 bytes in your ledger of DDP. A gradient has the dtype of its parameter, and one of them is "
    "bfloat16.",
)
def always_four(*args):
    return ledger(*args, amp=torch.float32)


@mutant(
    "08.bytes",
    "The fp16 hook does change what is sent: it casts the gradients to 2 bytes for the wire.",
)
def hook_ignored(*args):
    return ledger(*args, hook=None)


@mutant(
    "08.bytes",
    "FSDP2 gathers the parameters twice here: for the forward, after which it frees them, and for the backward again.",
)
def gathered_once(*args):
    return ledger(*args, times=1)


@mutant(
    "08.bytes",
    "Frozen parameters are missing in the all-gather. They are sharded like the others, and no rank can compute "
    "without them.",
)
def frozen_not_gathered(*args):
    return ledger(*args, gathered=lambda p: p.requires_grad)


@mutant(
    "08.bytes",
    "With `reduce_dtype=None` you reduce in the dtype of the stored parameters. FSDP2 takes `param_dtype` then: that "
    "is why `reduce_dtype=torch.float32` has to be asked for.",
)
def reduced_in_float32(*args):
    return ledger(*args, reduce_too=lambda reduce_dtype, param_dtype, own: reduce_dtype or own)


@mutant(
    "08.bytes",
    "You reduce in `param_dtype` even where a `reduce_dtype` is given. The two are chosen separately.",
)
def reduced_in_param_dtype(*args):
    return ledger(*args, reduce_too=lambda reduce_dtype, param_dtype, own: param_dtype or own)


def compressed(gradients, group, before, after, dtype=torch.float16, cast_first=False, late=False):
    """compressed_mean; before, after: the divisors; late: the second division in float16."""
    if cast_first:
        messages = [gradient.to(dtype) / before for gradient in gradients]
    else:
        messages = [(gradient / before).to(dtype) for gradient in gradients]
    group.all_reduce(messages)
    for gradient, message in zip(gradients, messages, strict=True):
        gradient.copy_(message / after if late else message.float() / after)


@mutant(
    "08.compressed",
    "You cast first and divide then, as torch's own hook does: what is larger than 65504 is infinite already. Divide "
    "in float32, then cast.",
)
def casts_first(gradients, factor, group):
    compressed(gradients, group, factor, group.size / factor, cast_first=True)


@mutant(
    "08.compressed",
    "You divide by `factor` and not by the rest. The mean needs a division by all ranks: n / factor is left.",
)
def rest_forgotten(gradients, factor, group):
    compressed(gradients, group, factor, 1)


@mutant(
    "08.compressed",
    "You divide by the number of ranks before the cast, whatever the factor is. Small gradients become zero in "
    "float16.",
)
def all_before(gradients, factor, group):
    compressed(gradients, group, group.size, 1)


@mutant(
    "08.compressed",
    "You divide only after the sum, whatever the factor is. The sum of large gradients overflows.",
)
def all_after(gradients, factor, group):
    compressed(gradients, group, 1, group.size)


@mutant(
    "08.compressed",
    "The mean is right, and the messages are float32: nothing is saved. Cast before the all-reduce.",
)
def float32_messages(gradients, factor, group):
    compressed(gradients, group, factor, group.size / factor, dtype=torch.float32)


@mutant(
    "08.compressed",
    "The second division happens in float16, where a small sum loses its last bits. Make the sum float32 first.",
)
def divides_in_float16(gradients, factor, group):
    compressed(gradients, group, factor, group.size / factor, late=True)


def chosen(smallest, largest, ranks, *, terms=None, lowest=2.0**-14, most=None):
    factor = 1
    while factor <= (most or ranks):
        if (terms or ranks) * largest / factor <= 65504:
            return factor if smallest / factor >= lowest else None
        factor *= 2
    return None


@mutant(
    "08.factor",
    "You made a single message fit. The sum over the ranks has to fit, too: it can be `ranks` times as large.",
)
def one_message(smallest, largest, ranks):
    return chosen(smallest, largest, ranks, terms=1)


@mutant(
    "08.factor",
    "You divide by all ranks, always. That avoids most overflows, and loses bits of small gradients without need: take "
    "the smallest factor that is enough.",
)
def always_all(smallest, largest, ranks):
    return ranks if largest <= 65504 and smallest / ranks >= 2.0**-14 else None


@mutant(
    "08.factor",
    "You take about the square root of the number of ranks, as FSDP does by default. That is a good guess if nothing "
    "is known; here you know the gradients.",
)
def square_root(smallest, largest, ranks):
    return 2 ** (ranks.bit_length() // 2)


@mutant(
    "08.factor",
    "You look at the overflow only. If the smallest message falls below 2**-14, float16 loses its bits: None.",
)
def no_lower_limit(smallest, largest, ranks):
    return chosen(smallest, largest, ranks, lowest=0.0)


@mutant(
    "08.factor",
    "You allow messages down to 2**-24. That is the last one that is not zero, with a single bit: between it and "
    "2**-14 precision is lost step by step.",
)
def down_to_the_last(smallest, largest, ranks):
    return chosen(smallest, largest, ranks, lowest=2.0**-24)


@mutant(
    "08.factor",
    "Your factor can exceed the number of ranks. The mean itself does not fit into float16 then: the task wants None.",
)
def beyond_the_ranks(smallest, largest, ranks):
    return chosen(smallest, largest, ranks, most=2**20)


def planned(params, grad_bytes, ranks, gbit, latency, compute, overlap, *, unit=8, passes=2, share=None, floor=True,
            late=True, hidden=True):  # fmt: skip
    """scaling, with the parts that mutants replace."""
    share = (ranks - 1) / ranks if share is None else share
    time = passes * share * params * grad_bytes / (gbit * 1e9 / unit) + late * passes * (ranks - 1) * latency
    exposed = time - overlap * compute if hidden else time
    seconds = compute + (max(0.0, exposed) if floor else exposed)
    return seconds, compute / seconds


@mutant(
    "08.scaling",
    "You took gigabits for gigabytes: eight bits are a byte. Communication takes eight times as long.",
)
def bits_as_bytes(*args):
    return planned(*args, unit=1)


@mutant(
    "08.scaling",
    "You counted one pass around the ring. An all-reduce makes two: reduce-scatter and all-gather.",
)
def one_pass(*args):
    return planned(*args, passes=1)


@mutant(
    "08.scaling",
    "You send two whole buffers. A rank sends (n − 1)/n of them per pass, and a single rank sends nothing.",
)
def whole_buffers(*args):
    return planned(*args, share=1.0)


@mutant(
    "08.scaling",
    "Where all communication is hidden, your step is shorter than its compute time. The part on top is at least 0.",
)
def faster_than_compute(*args):
    return planned(*args, floor=False)


@mutant(
    "08.scaling",
    "The latency is missing. It does not shrink with the chunks: with many ranks 2 (n − 1) messages add up.",
)
def no_latency(*args):
    return planned(*args, late=False)


@mutant("08.scaling", "Nothing is hidden in your step: DDP sends while backward still runs.")
def nothing_hidden(*args):
    return planned(*args, hidden=False)


@mutant(
    "08.checkpoint",
    "You save the random state once. Then all ranks draw the same dropout masks after a restart.",
)
def one_random_state():
    return {**SAVED, "random state": "once"}


@mutant(
    "08.checkpoint",
    "The scaler is missing. After a restart the scale begins at its initial value, and the first steps overflow again, "
    "or vanish.",
)
def scaler_forgotten():
    return {**SAVED, "scaler state": "not at all"}


@mutant(
    "08.checkpoint",
    "You save the scaler per rank. That does no harm, but all of them are equal: they have seen the same reduced "
    "gradients.",
)
def scaler_per_rank():
    return {**SAVED, "scaler state": "per rank"}


@mutant(
    "08.checkpoint",
    "Every rank writes its weights and its optimizer state in your plan. With DDP these are copies: a thousand ranks "
    "write the same file a thousand times.",
)
def everything_per_rank():
    return {**SAVED, "weights": "per rank", "optimizer state": "per rank"}


@mutant(
    "08.checkpoint",
    "You save one shard of the weights. With FSDP2 the ranks hold different parts: all of them are needed.",
)
def one_shard():
    return {**SAVED, "weight shard": "once"}


@mutant(
    "08.checkpoint",
    "You save gradients. After a step they are used up; the next backward makes them anew.",
)
def gradients_saved():
    return {**SAVED, "gradients": "per rank"}
