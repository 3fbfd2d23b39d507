# %% [markdown]
# # Lab 8 DDP and sharding
#
# What torch does between many GPUs is a handful of sums. Here you write them yourself, on ranks that live in lists, and
# at the end your step runs on two real processes, next to torch's own.
#
# **You will be able to** take a data-parallel step by hand · weight ranks with unequal numbers of tokens · accumulate
# and send once · let shards skip and clip together · pass a sum around a ring · count the bytes of a step · compress
# gradients without losing them · predict how a job scales · say what belongs in a checkpoint.
#
# *149 minutes · part A makes a good first session · after lesson 8 · runs on every machine*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("This lab computes on the CPU: its answers are the same on every machine.")

# %% [markdown]
# | part | exercise | difficulty | minutes | points |
# |---|---|---|---|---|
# | A Replicas | 8.1 The step of DDP by hand | ●●○ | 15 | 3 |
# | | 8.2 A mean over all tokens | ●●○ | 15 | 3 |
# | | 8.3 Accumulate, and send once | ●●● | 20 | 4 |
# | B Shards | 8.4 Skip together | ●●○ | 12 | 3 |
# | | 8.5 One norm for all shards | ●●○ | 10 | 2 |
# | C On the wire | 8.6 All-reduce around a ring | ●●● | 20 | 4 |
# | | 8.7 The ledger of a step | ●●○ | 15 | 3 |
# | | 8.8 Half the bytes | ●●○ | 12 | 3 |
# | | 8.9 Between overflow and zero | ●●○ | 10 | 2 |
# | D Plans | 8.10 A thousand GPUs on paper | ●○○ | 12 | 2 |
# | | 8.11 What goes into the checkpoint? | ●○○ | 8 | 2 |
# | E Two real processes | not graded | | | |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. An exercise that you have not begun says so and stops nothing: *Run All* always reaches the
# end.

# %%
import contextlib

import torch
from ampedu.exercises import check

# %% [markdown]
# ## Ranks in lists
#
# A process that trains is called a **rank**. Real ranks each run the same script, and each sees only its own tensors.
# Here they live in one process: `models[r]` is the model of rank r, `gradients[r]` its gradients. One rule makes this
# honest: *what a rank does depends on its own entry, and on what came through the group.*
#
# The group knows the all-reduce of `torch.distributed`. All ranks hand in a tensor, and all get the sum, or the
# maximum:

# %% tags=["nbval-check-output"]
from ampedu.exercises.ranks import Group

group = Group(3)
tensors = [torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0]), torch.tensor([4.0, 3.0])]
group.all_reduce(tensors)
print([tensor.tolist() for tensor in tensors])
group.all_reduce(tensors, op="max")
print(group.size, "ranks,", len(group.log), "calls:", group.log)

# %% [markdown]
# ## A Replicas
#
# In **data parallel** training (DDP) each rank has a whole model, a whole optimizer and a scaler, and a batch of its
# own. They all start alike. They stay alike, because they all step with the same gradients.
#
# ### 8.1 The step of DDP by hand ●●○ 15 minutes
#
# DDP averages the gradients over the ranks *during backward*, while they are still scaled. No rank has looked for
# infinities by then. If the gradients of one rank are infinite, what do the others see?
#
# This is the forward of one rank:


# %%
def forward(model, batch, loss_fn):
    """The loss of one rank's batch (x, y), computed under autocast to float16."""
    x, y = batch
    with torch.autocast(x.device.type, dtype=torch.float16):
        return loss_fn(model(x), y)


# %% exercise="08.ddp_step"
def ddp_step(models: list, batches: list, loss_fn, optimizers: list, scalers: list, group) -> None:
    """Train one step on all ranks, as DDP with a GradScaler does.

    models, batches, optimizers, scalers: one entry per rank. Old gradients do not count.
    The gradients of each step are the mean over the ranks.
    After the call all models are equal, and so are all scales.
    """
    ### BEGIN SOLUTION
    for model, batch, scaler in zip(models, batches, scalers, strict=True):
        model.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
    for copies in zip(*(model.parameters() for model in models), strict=True):
        gradients = [parameter.grad for parameter in copies]
        group.all_reduce(gradients)
        for gradient in gradients:
            gradient /= group.size
    for optimizer, scaler in zip(optimizers, scalers, strict=True):
        scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.ddp_step", ddp_step)

# %% [markdown]
# <details><summary>How do I get at the same parameter of all models?</summary>
#
# `zip(*(model.parameters() for model in models))` gives tuples: the first parameter of all models, then the second one.
# </details>
#
# <details><summary>The ranks move apart, but only in the cases with an overflow</summary>
#
# Who has seen the infinity? A mean with an infinity in it is infinite on every rank, and then every scaler finds it.
# But only if the mean is taken before the scalers look.
# </details>
#
# <details><summary>All updates are too large by the number of ranks</summary>
#
# `group.all_reduce` gives a sum.
# </details>
#
# [Lesson 8](../notebooks/08_ddp_and_sharding.ipynb) does this with real processes.
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 25 minutes.*

# %% [markdown]
# ### 8.2 A mean over all tokens ●●○ 15 minutes
#
# A mean of means is not the mean. DDP averages over ranks, whatever their batches hold: if rank 0 has 10 tokens and
# rank 1 has 1000, a token on rank 0 counts a hundred times as much. Some rank may even have no token at all.
#
# From here on the course takes the place of DDP. `replicas.losses(batches, loss_fn)` gives the losses of all ranks
# under autocast, and `replicas.backward(losses)` runs backward on each and **averages** the gradients. You cannot
# change that division, but you can choose what goes in.


# %% exercise="08.token_step"
def token_step(replicas, batches: list, loss_sum, optimizers: list, scalers: list, group) -> None:
    """Train one step on the mean over all rows of all ranks.

    batches: a pair (x, y) per rank; a row is a token. The ranks have different numbers of them, some none.
    A rank knows only its own number.
    loss_sum: gives the sum over the rows of a batch; 0 for none. optimizers, scalers: one per rank.
    """
    ### BEGIN SOLUTION
    counts = [torch.tensor(float(len(x))) for x, _ in batches]
    group.all_reduce(counts)
    for optimizer in optimizers:
        optimizer.zero_grad()
    losses = replicas.losses(batches, loss_sum)
    shares = [loss * group.size / count for loss, count in zip(losses, counts, strict=True)]
    replicas.backward([scaler.scale(loss) for scaler, loss in zip(scalers, shares, strict=True)])
    for optimizer, scaler in zip(optimizers, scalers, strict=True):
        scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.token_step", token_step)

# %% [markdown]
# <details><summary>The updates are too small by the number of ranks</summary>
#
# You divided the sums by the tokens of all ranks, and DDP divides once more. Multiply by what it will divide by.
# </details>
#
# <details><summary>ZeroDivisionError, or a loss that is NaN</summary>
#
# Does a rank without tokens divide by its own number? Divide by the number of all ranks together.
# </details>
#
# <details><summary>"group used" is False</summary>
#
# A rank that counts the tokens of others looks over their shoulder. Put each count in a tensor and let the group add.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 20 minutes.*

# %% [markdown]
# ### 8.3 Accumulate, and send once ●●● 20 minutes
#
# With accumulation only the last micro-batch of a window has to send: what came before can add up on each rank.
# `with replicas.no_sync():` keeps the passes in its block at home. As in DDP, it is the **forward** pass that decides,
# so `losses` and `backward` both belong in the block.
#
# All batches have the same number of rows. The last window may be smaller. Clip the mean gradient of each window.


# %% exercise="08.accumulate"
def accumulate(replicas, batches: list, loss_fn, optimizers, scalers, steps: int, max_norm: float) -> None:
    """Train with accumulation, clipping, one all-reduce per window.

    batches: a list of micro-batches; each is a list with a pair (x, y) per rank. Each window of steps
    of them is one step, as if it were one batch; so is a smaller last window. optimizers, scalers: lists.
    loss_fn: a mean over rows. max_norm: for the norm of a model's true gradient.
    """
    ### BEGIN SOLUTION
    for start in range(0, len(batches), steps):
        window = batches[start : start + steps]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for index, batch in enumerate(window):
            last = index == len(window) - 1
            with contextlib.nullcontext() if last else replicas.no_sync():
                losses = replicas.losses(batch, loss_fn)
                scaled = [scaler.scale(loss / len(window)) for scaler, loss in zip(scalers, losses, strict=True)]
                replicas.backward(scaled)
        for model, optimizer, scaler in zip(replicas.models, optimizers, scalers, strict=True):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.accumulate", accumulate)

# %% [markdown]
# <details><summary>The weights are right, and there are too many all-reduces</summary>
#
# Sending early is no mistake of arithmetic, only a waste: the mean of means that are equal already changes nothing.
# Which micro-batches may stay at home?
# </details>
#
# <details><summary>The ranks move apart</summary>
#
# Then some window was never reduced. Is its last micro-batch outside `no_sync`, also if the window is not full?
# </details>
#
# <details><summary>How do I enter a block only sometimes?</summary>
#
# `with contextlib.nullcontext() if last else replicas.no_sync():`
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 30 minutes.*

# %% [markdown]
# ## B Shards
#
# FSDP2 cuts weights, gradients and optimizer state into **shards**: each rank keeps a part of every tensor and never
# sees the gradients of the others. The mean has been taken, but each rank got only its own rows of it. So an
# infinity is on *one* rank, also after the reduction.
#
# ### 8.4 Skip together ●●○ 12 minutes
#
# One rank that skips alone is worse than no scaler: it would go on with a smaller scale and old rows. The ranks must
# agree. torch's `GradScaler` does it for FSDP2 by one number per rank: 1.0 if it has found an infinity or a NaN, else
# 0.0, and a maximum over all ranks. A rank may own no element of a small tensor; it takes part all the same.


# %% exercise="08.sharded_step"
def sharded_step(weights: list, gradients: list, scale: float, rate: float, group) -> list[float]:
    """Take a step with sharded weights, or skip it everywhere.

    weights, gradients: the shards, a 1-D float32 tensor per rank, some of them empty. The gradients
    are scaled by scale, and are the mean already.
    If all gradients are finite, a step of SGD: weights -= rate * true gradient, in place. If not, no
    weight changes.
    Returns the scale that each rank has afterwards: halved if the step was skipped (growth is left out).
    """
    ### BEGIN SOLUTION
    found = [(~gradient.isfinite()).any().float() for gradient in gradients]
    group.all_reduce(found, op="max")
    scales = []
    for weight, gradient, bad in zip(weights, gradients, found, strict=True):
        if bad:
            scales.append(scale / 2)
        else:
            weight -= rate * gradient / scale
            scales.append(scale)
    return scales
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.sharded_step", sharded_step)

# %% [markdown]
# <details><summary>Only the rank with the infinity skips</summary>
#
# Each rank has an opinion. Make it a tensor, and take the maximum over all ranks: `group.all_reduce(found, op="max")`.
# </details>
#
# <details><summary>An error in the case with an empty shard</summary>
#
# The largest element of nothing does not exist. `any()` of nothing is False, and that is what you want.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 20 minutes.*

# %% [markdown]
# ### 8.5 One norm for all shards ●●○ 10 minutes
#
# Clipping wants the norm of the *whole* gradient. If each rank clips by the norm of its own shard, then each shard
# shrinks by another factor, and the update points elsewhere.


# %% exercise="08.clip_shards"
def clip_shards(gradients: list, scale: float, max_norm: float, group) -> list[float]:
    """Unscale sharded gradients and clip them to a global norm.

    gradients: a 1-D float32 tensor per rank, scaled by scale; some may be empty. All are finite, and they
    are changed in place. If the norm of all shards together exceeds max_norm, all shards shrink by the
    same factor, max_norm / norm.
    Returns the true norm before clipping, as each rank found it.
    """
    ### BEGIN SOLUTION
    for gradient in gradients:
        gradient /= scale
    squares = [gradient.square().sum() for gradient in gradients]
    group.all_reduce(squares)
    norms = [square.sqrt().item() for square in squares]
    for gradient, norm in zip(gradients, norms, strict=True):
        gradient *= min(1.0, max_norm / (norm + 1e-6))
    return norms
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.clip_shards", clip_shards)

# %% [markdown]
# <details><summary>The norm is too large, but not by much</summary>
#
# Norms do not add up: a triangle with sides 3 and 4 has 5. What does add up?
# </details>
#
# <details><summary>The norm is too large by the scale</summary>
#
# `max_norm` is meant for the true gradient. First unscale, then measure.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 15 minutes.*

# %% [markdown]
# ## C On the wire
#
# ### 8.6 All-reduce around a ring ●●● 20 minutes
#
# How does a sum get to all ranks? If each sent its tensor to all others, each would send *n* − 1 tensors. A ring
# does it with less than two. Each rank only talks to its right neighbor, and each tensor is cut into *n* equal chunks:
#
# 1. **Reduce-scatter**, *n* − 1 rounds. Each rank passes one chunk to the right and *adds* the one that comes in from
#    the left. Then it passes on the one that it has just added to. At the end each rank has one finished chunk.
# 2. **All-gather**, *n* − 1 rounds. Each rank passes its finished chunk to the right and *stores* the one that comes
#    in. Then it passes on the one that it has just stored.
#
# In round 0 of part 1, rank *r* sends chunk *r*. `group.pass_right(messages)` is one round: it takes the message of
# each rank and returns what each received.


# %% exercise="08.ring"
def ring_all_reduce(tensors: list, group) -> None:
    """Replace each tensor by the sum of all, using pass_right.

    tensors: a 1-D tensor per rank, alike in dtype and length, changed in place. The length is a multiple
    of the number of ranks.
    Each rank sends 2 (n - 1) chunks of 1/n of its tensor, and no more.
    """
    ### BEGIN SOLUTION
    n = group.size
    chunks = [tensor.tensor_split(n) for tensor in tensors]
    for step in range(n - 1):
        received = group.pass_right([chunks[rank][(rank - step) % n] for rank in range(n)])
        for rank in range(n):
            chunks[rank][(rank - 1 - step) % n].add_(received[rank])
    for step in range(n - 1):
        received = group.pass_right([chunks[rank][(rank + 1 - step) % n] for rank in range(n)])
        for rank in range(n):
            chunks[rank][(rank - step) % n].copy_(received[rank])
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.ring", ring_all_reduce)

# %% [markdown]
# <details><summary>Which chunk does rank r send in round s?</summary>
#
# In round 0 it sends chunk r and receives chunk r − 1, from its left neighbor. In round 1 it sends what it has just
# received, chunk r − 1. So chunk r − s, modulo n; and it receives chunk r − 1 − s.
# </details>
#
# <details><summary>Which chunk is finished after part 1?</summary>
#
# The one that it received last, in round n − 2: chunk r − 1 − (n − 2), which is r + 1 modulo n.
# </details>
#
# <details><summary>The sums are right and the bytes are not</summary>
#
# Does a message hold one chunk, or the whole tensor? And are there n − 1 rounds in each part?
# </details>
#
# `tensor.tensor_split(n)` gives views: what you add to a chunk, you add to the tensor.
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 30 minutes.*

# %% [markdown]
# ### 8.7 The ledger of a step ●●○ 15 minutes
#
# "AMP halves the traffic of DDP": does it? Count the bytes that a rank hands to collectives in one step (the size of
# the buffers; how often a byte then travels is the ring's affair).
#
# | way | all_reduce | all_gather | reduce_scatter |
# |---|---|---|---|
# | `"ddp"` | the gradients, in their dtype: that of the parameters | | |
# | `"ddp+amp"` | which dtype do gradients have under autocast? | | |
# | `"ddp+fp16 hook"` | the gradients, cast for the wire | | |
# | `"fsdp2"` | | all parameters, in `param_dtype`, twice | the gradients, in `reduce_dtype` |
#
# FSDP2 gathers the parameters for the forward, frees them, and gathers them again for the backward. A frozen parameter
# has no gradient, but its values are needed everywhere. `param_dtype=None` keeps the dtype of the parameters, and
# `reduce_dtype=None` sends the gradients in the dtype that the parameters were gathered in. (Here all modules are
# resharded after the forward, gradients flow through all of them, and no size needs padding.)


# %% exercise="08.bytes"
def step_bytes(parameters: list, way: str, param_dtype=None, reduce_dtype=None) -> dict[str, int]:
    """Count the bytes that a rank hands to collectives in a step.

    parameters: torch.nn.Parameter, on the meta device: shapes and dtypes without data.
    way: "ddp", "ddp+amp", "ddp+fp16 hook" or "fsdp2".
    param_dtype, reduce_dtype: the policy of "fsdp2", torch dtypes or None.
    Returns a dict with the keys "all_reduce", "all_gather" and "reduce_scatter".
    """
    ### BEGIN SOLUTION
    trained = [p for p in parameters if p.requires_grad]
    if way == "fsdp2":
        gathered = sum(p.numel() * (param_dtype or p.dtype).itemsize for p in parameters)
        reduced = sum(p.numel() * (reduce_dtype or param_dtype or p.dtype).itemsize for p in trained)
        return {"all_reduce": 0, "all_gather": 2 * gathered, "reduce_scatter": reduced}
    on_wire = torch.float16 if way == "ddp+fp16 hook" else None
    total = sum(p.numel() * (on_wire or p.dtype).itemsize for p in trained)
    return {"all_reduce": total, "all_gather": 0, "reduce_scatter": 0}
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.bytes", step_bytes)

# %% [markdown]
# <details><summary>How many bytes has an element?</summary>
#
# `torch.float16.itemsize` is 2. A parameter has `numel()`, `dtype` and `requires_grad`.
# </details>
#
# <details><summary>Only "ddp+amp" is wrong</summary>
#
# Autocast makes float16 copies of the weights for the products. The gradient of such a copy is cast back on its way
# to the parameter: `parameter.grad.dtype` is the parameter's.
# </details>
#
# <details><summary>Only one case of "fsdp2" is wrong</summary>
#
# The one with a `param_dtype` and no `reduce_dtype`? Then gradients are summed in the low precision, unasked.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 20 minutes.*

# %% [markdown]
# ### 8.8 Half the bytes ●●○ 12 minutes
#
# A communication hook may send the gradients in float16. Now the *sum* is a float16 number, and the gradients are
# scaled ones. The mean may fit where the sum does not: so divide by a `factor` first, and by the rest afterwards.
#
# > message = (gradient / `factor`), cast to float16
# >
# > mean = (sum of the messages, as float32) / (n / `factor`)
#
# The order matters at both ends. What does not fit into float16 before the division does not come back after it.


# %% exercise="08.compressed"
def compressed_mean(gradients: list, factor: int, group) -> None:
    """Replace each gradient by the mean, sent in float16.

    gradients: a 1-D float32 tensor per rank. They stay float32, and are changed in place.
    factor: divides the gradients before they are cast. There is one all-reduce, of float16 tensors.
    """
    ### BEGIN SOLUTION
    messages = [(gradient / factor).half() for gradient in gradients]
    group.all_reduce(messages)
    for gradient, message in zip(gradients, messages, strict=True):
        gradient.copy_(message.float() / (group.size / factor))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.compressed", compressed_mean)

# %% [markdown]
# <details><summary>Infinity in the case with the largest gradients</summary>
#
# Which comes first, the cast or the division? (torch's own `fp16_compress_hook` casts first, and divides by all ranks
# in float16.)
# </details>
#
# <details><summary>Zero, or few digits, in the cases with the smallest gradients</summary>
#
# Do you divide in float16? First make the sum float32, then divide it by what is left.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 20 minutes.*

# %% [markdown]
# ### 8.9 Between overflow and zero ●●○ 10 minutes
#
# Which factor? The larger it is, the smaller the messages: below 2⁻¹⁴ float16 loses bits. The smaller it is, the larger
# the sum: above 65504 there is only infinity. Two limits, and nothing says that there is room between them.


# %% exercise="08.factor"
def predivide_factor(smallest: float, largest: float, ranks: int) -> int | None:
    """Choose the factor of 8.8.

    smallest, largest: magnitudes between which all gradients lie that matter. ranks: a power of two.
    Returns the smallest power of two from 1 to ranks with which no sum over the ranks can exceed 65504,
    if every message is at least 2**-14 then; else None.
    """
    ### BEGIN SOLUTION
    factor = 1
    while factor <= ranks:
        if ranks * largest / factor <= 65504:
            return factor if smallest / factor >= 2.0**-14 else None
        factor *= 2
    return None
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.factor", predivide_factor)

# %% [markdown]
# <details><summary>The factor is too small</summary>
#
# One message fits. Do `ranks` of them, added up, if all are as large as the largest?
# </details>
#
# <details><summary>When is it None?</summary>
#
# If even the factor `ranks` lets the sum overflow: then the mean itself may not fit. Or if the factor that avoids the
# overflow makes the smallest message smaller than 2⁻¹⁴. Then send bfloat16, or take a smaller loss scale.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 15 minutes.*

# %% [markdown]
# ## D Plans
#
# ### 8.10 A thousand GPUs on paper ●○○ 12 minutes
#
# A step on *n* GPUs computes as long as on one, and the gradients travel. Around a ring, with B bytes of gradients,
# a bandwidth of b bytes per second and *l* seconds of latency per message:
#
# > communication = 2 (n − 1) · l + 2 (n − 1) / n · B / b
#
# DDP starts to send while backward still runs, and so a part of the compute time hides communication, at most
# `overlap` · `compute`. What does not fit beside it comes on top. The **efficiency** is the share of the step in
# which the GPU computes.
#
# Networks are sold in gigabits.


# %% exercise="08.scaling"
def scaling(params, grad_bytes, ranks, gbit, latency, compute, overlap) -> tuple[float, float]:
    """Predict a data-parallel step.

    params: number of gradients, grad_bytes bytes each. gbit: bandwidth of a rank's link in 10**9 bits
    per second. latency: seconds per message. compute: seconds. overlap: share of compute, from 0 to 1.
    Returns a pair: seconds per step, efficiency.
    """
    ### BEGIN SOLUTION
    bandwidth = gbit * 1e9 / 8
    communication = 2 * (ranks - 1) * (latency + params * grad_bytes / ranks / bandwidth)
    seconds = compute + max(0.0, communication - overlap * compute)
    return seconds, compute / seconds
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.scaling", scaling)

# %% [markdown]
# <details><summary>The step is much too fast</summary>
#
# A byte has eight bits.
# </details>
#
# <details><summary>The step is shorter than compute</summary>
#
# Communication that is hidden completely does not make the GPU faster: the part on top is at least 0.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 15 minutes.*

# %% [markdown]
# ### 8.11 What goes into the checkpoint? ●○○ 8 minutes
#
# A job of many ranks is stopped after a step and started again. It shall go on as if nothing had happened. What is
# saved `"once"` (one copy serves all ranks), what `"per rank"`, and what `"not at all"`?
#
# | state | |
# |---|---|
# | `"weights"` | of the model, DDP |
# | `"optimizer state"` | the moments of Adam, DDP |
# | `"scaler state"` | scale and growth tracker |
# | `"scheduler state"` | of the learning rate |
# | `"epoch"` | for `sampler.set_epoch` |
# | `"random state"` | of torch, for dropout |
# | `"shuffle buffer"` | of each rank's own stream of data: what it has read and not yet used |
# | `"error feedback"` | of a compression hook: what rounding took from this rank's messages, to be sent later |
# | `"weight shard"` | FSDP2, if each rank writes what it holds |
# | `"gradients"` | after the step |
# | `"autocast copies"` | of the weights in float16 |
# | `"buckets"` | DDP's buffers for messages |


# %% exercise="08.checkpoint"
def checkpoint_plan() -> dict[str, str]:
    """Say how each kind of state is saved.

    Returns a dict with the twelve names above; each value is "once", "per rank" or "not at all".
    """
    ### BEGIN SOLUTION
    return {
        "weights": "once",
        "optimizer state": "once",
        "scaler state": "once",
        "scheduler state": "once",
        "epoch": "once",
        "random state": "per rank",
        "shuffle buffer": "per rank",
        "error feedback": "per rank",
        "weight shard": "per rank",
        "gradients": "not at all",
        "autocast copies": "not at all",
        "buckets": "not at all",
    }
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("08.checkpoint", checkpoint_plan)

# %% [markdown]
# <details><summary>How can I tell?</summary>
#
# Ask two questions. Does the next step make it anew from the rest? Then not at all. Is it equal on all ranks? Then
# once.
# </details>
#
# *Read [the solution](../solutions/08_ddp_and_sharding.ipynb) after 12 minutes.*

# %% [markdown]
# ## E Two real processes
#
# *Not graded.* Your `ddp_step` now runs on two processes with the `gloo` backend. On each of them the lists have
# **one** entry, that of this rank, and `group.all_reduce` is `torch.distributed.all_reduce`. If your code goes through
# the lists, nothing has to change. If it counts with `range(group.size)`, it asks for a rank that lives elsewhere;
# change that.
#
# Beside it, the same processes train with torch's `DistributedDataParallel`. There are three batches of two rows for
# each rank, and the second one overflows on rank 1 only. Before you run it: which ranks skip?

# %%
from ampedu.exercises import needs
from ampedu.exercises.two_ranks import on_two_processes

# %%
results = []
with needs("08.ddp_step"):
    results = on_two_processes(ddp_step)
    for rank, seen in enumerate(results):
        print(f"rank {rank} by hand: moved {seen['hand']['moved']}, scales {seen['hand']['scales']}")
        print(f"rank {rank} by DDP:  moved {seen['ddp']['moved']}, scales {seen['ddp']['scales']}")
    for seen in results:
        assert seen["hand"] == seen["ddp"] == results[0]["ddp"], "this differs from DDP"

# %% [markdown]
# The scales are those after each batch, in units of the first one. An infinity of one rank has halved both.
#
# How many bytes did DDP send? The ledger of the course counts what its all-reduces are given, in the run above. Yours
# predicts it:

# %%
with needs("08.bytes", "08.ddp_step"):
    predicted = step_bytes([torch.nn.Parameter(torch.empty(1, 2, device="meta"))], "ddp+amp")["all_reduce"]
    for rank, seen in enumerate(results):
        print(f"rank {rank}: {seen['bytes']} bytes per step, in {seen['dtypes']}; predicted {predicted}")
        assert seen["bytes"] == predicted, "your ledger and the measurement differ"

# %% [markdown]
# And what you cannot run here: a model of a billion parameters at 100 gigabits per second, on paper. A step computes
# for 300 ms, backward can hide communication beside two thirds of that, and a message has 10 µs of latency.

# %%
with needs("08.scaling"):
    for ranks in (8, 64, 1024):
        shares = [scaling(10**9, size, ranks, 100, 1e-5, 0.3, 2 / 3)[1] for size in (4, 2)]
        print(f"{ranks:5} GPUs: efficiency {shares[0]:.0%} with float32 gradients, {shares[1]:.0%} with float16")
    assert shares[0] < shares[1]

# %% [markdown]
# **Sources.** [DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html) and [its communication
# hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html) ·
# [FSDP2](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) · Patarasuk and Yuan 2009, [*Bandwidth
# optimal all-reduce algorithms for clusters of workstations*](https://doi.org/10.1016/j.jpdc.2008.09.002).
#
# Back to [lesson 8](../notebooks/08_ddp_and_sharding.ipynb), or on to lesson 9, where training breaks.
