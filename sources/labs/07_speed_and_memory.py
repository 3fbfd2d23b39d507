# %% [markdown]
# # Lab 7 Speed and memory of a real model
#
# "AMP halves the memory" and "AMP doubles the speed" are sentences about somebody else's model. In this lab you write
# the ledger of yours: each byte has a name, and you predict it before any GPU is rented.
#
# **You will be able to** count what backward keeps, with hooks of your own · write the ledger of a perceptron, a
# transformer block and a convolutional network in three precisions · find the largest batch for a budget · tell from
# how many rows on AMP saves memory · place checkpoints at the least cost · remove a needless float32 tensor · read a
# trace, and say what AMP can gain.
#
# *182 minutes · parts A and B make a good first session · after lesson 7 · runs on every machine*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("This lab counts bytes, on the CPU: its answers are the same on every machine.")

# %% [markdown]
# | part | exercise | difficulty | minutes | points |
# |---|---|---|---|---|
# | A Count | 7.1 Count what backward keeps | ●●○ | 15 | 3 |
# | | 7.2 What stays from step to step | ●○○ | 8 | 1 |
# | B Predict | 7.3 The ledger of a perceptron | ●●○ | 18 | 3 |
# | | 7.4 What a transformer block keeps | ●●● | 25 | 4 |
# | | 7.5 What a convolutional network keeps | ●●○ | 18 | 3 |
# | C Decide | 7.6 The largest batch that fits | ●○○ | 10 | 2 |
# | | 7.7 From how many rows on does AMP save memory? | ●●○ | 12 | 2 |
# | | 7.8 Place checkpoints so that it fits | ●●● | 25 | 4 |
# | D Cure | 7.9 The needless float32 | ●●○ | 15 | 3 |
# | | 7.10 Autopsy of a slow step | ●●○ | 18 | 3 |
# | | 7.11 What AMP can gain at most | ●○○ | 8 | 1 |
# | | 7.12 Choose the cure | ●●○ | 10 | 2 |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. An exercise that you have not begun says so and stops nothing: *Run All* always reaches the
# end. Answers are counts of bytes, and exact.

# %%
import itertools
import math

import torch
import torch.nn.functional as F
from ampedu.exercises import check
from torch import nn

# %% [markdown]
# ## A Count
#
# ### 7.1 Count what backward keeps ●●○ 15 minutes
#
# During the forward pass, autograd keeps the tensors that it will need in backward. Two functions can look at each of
# them: one when it is put away, one when it is taken out again.

# %% tags=["nbval-check-output"]
x = torch.ones(4, 3)
layer = nn.Linear(3, 2)
with torch.autograd.graph.saved_tensors_hooks(lambda t: print("kept:", tuple(t.shape)) or t, lambda t: t):
    y = layer(x).sigmoid().exp()

# %% [markdown]
# A linear layer keeps its input. `sigmoid` and `exp` keep their results.
#
# Memory is held by **storages**. Several tensors may share one: the output of ReLU, which ReLU keeps, is also the input
# that the next layer keeps. It is there once. And a small view keeps the whole storage alive. Count storages:
# `t.untyped_storage()` has `.data_ptr()`, its address, and `.nbytes()`.
#
# Parameters, buffers and the batch are there anyway, whether backward needs them or not. They have rows of their own in
# the ledger, so leave their storages out. A copy of a weight in another dtype is a new storage, and counts.


# %% exercise="07.saved_bytes"
def saved_bytes(model: nn.Module, x: torch.Tensor, dtype: torch.dtype | None = None) -> dict[str, int]:
    """Count the bytes that model(x) keeps for backward, by dtype.

    dtype: None, or the dtype of an autocast region around the call, on the device of x.
    Returns a dict such as {"float32": 4096, "bfloat16": 512}: a name for each dtype that occurs, and the
    bytes of its storages. Each storage counts once and as a whole. Storages of the model's parameters,
    of its buffers and of x do not count.
    """
    ### BEGIN SOLUTION
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), x)}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = str(tensor.dtype).removeprefix("torch."), storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
            output = model(x)
    del output  # until here it kept the graph, and the graph the storages: no address was used twice
    total = {}
    for name, size in found.values():
        total[name] = total.get(name, 0) + size
    return total
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.saved_bytes", saved_bytes)

# %% [markdown]
# <details><summary>I count some tensors twice</summary>
#
# Keep a dict from `storage.data_ptr()` to its bytes. A storage that comes again overwrites its own entry.
# </details>
#
# <details><summary>Only the models with slices or halves are wrong</summary>
#
# `t.nbytes` is the size of the view. The whole storage stays in memory: `t.untyped_storage().nbytes()`.
# </details>
#
# <details><summary>BatchNorm, or the first layer, has too many bytes</summary>
#
# `model.buffers()` are the running statistics of BatchNorm. And the first layer keeps `x` itself. Neither counts.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Why not half”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 22 minutes.*

# %% [markdown]
# ### 7.2 What stays from step to step ●○○ 8 minutes
#
# Three policies, from here to the end of the lab:
#
# | name | parameters and batch | what runs |
# |---|---|---|
# | `"fp32"` | float32 | float32 |
# | `"amp"` | float32 | autocast to bfloat16 |
# | `"pure_bf16"` | bfloat16, as after `model.bfloat16()` | bfloat16 |
#
# A gradient has the dtype of its parameter, and so has what torch's optimizers keep. SGD keeps nothing; with momentum
# it keeps one tensor for each parameter that it trains, AdamW two. (AdamW's count of steps is one number for each
# parameter. Leave it out.) Fill in the three rows after the first step.


# %% exercise="07.step_bytes"
def step_bytes(parameters: list[tuple[tuple[int, ...], bool]], optimizer: str, policy: str) -> dict[str, int]:
    """Count the bytes of parameters, gradients and optimizer state.

    parameters: a pair for each parameter: its shape, and whether it is trained. A frozen one has no gradient.
    optimizer: "sgd", "momentum" or "adamw". policy: "fp32", "amp" or "pure_bf16".
    Returns a dict with the keys "parameters", "gradients" and "optimizer state".
    """
    ### BEGIN SOLUTION
    size = 2 if policy == "pure_bf16" else 4
    held = size * sum(math.prod(shape) for shape, _ in parameters)
    trained = size * sum(math.prod(shape) for shape, trained in parameters if trained)
    moments = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer]
    return {"parameters": held, "gradients": trained, "optimizer state": moments * trained}
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.step_bytes", step_bytes)

# %% [markdown]
# <details><summary>Only the cases with AMP are wrong</summary>
#
# Autocast changes no parameter. What dtype has `model.weight` inside the region, and after it?
# </details>
#
# <details><summary>The state is too large</summary>
#
# An optimizer makes its state when it meets a gradient. What has none has no state.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “The fixed part: bytes per parameter”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 12 minutes.*

# %% [markdown]
# ## B Predict
#
# ### 7.3 The ledger of a perceptron ●●○ 18 minutes
#
# Now a whole ledger, before anything runs. The model:

# %%
def perceptron(widths):
    """Linear layers from width to width, with a ReLU between any two of them."""
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


perceptron([784, 256, 10])

# %% [markdown]
# Six rows, each at the moment when it is largest:
#
# - *parameters*, *gradients*, *optimizer state*: as in 7.2, all trained, with AdamW.
# - *weight casts*: autocast casts each weight and each bias once, and keeps the copies in its cache until the region
#   ends.
# - *inputs*: the batch, `rows` × `widths[0]` numbers. Who trains in pure bfloat16 converts it beforehand.
# - *saved activations*: the storages of 7.1, without weight casts. A linear layer keeps its input, ReLU keeps its
#   result. Under autocast, a layer does not keep the batch, but its own copy in bfloat16.


# %% exercise="07.mlp_ledger"
def mlp_ledger(widths: list[int], rows: int, policy: str) -> dict[str, int]:
    """Predict the bytes of a training step of perceptron(widths).

    widths: at least two. rows: of the batch. policy: "fp32", "amp" or "pure_bf16".
    Returns a dict with the keys "parameters", "gradients", "optimizer state", "weight casts", "inputs" and
    "saved activations".
    """
    ### BEGIN SOLUTION
    size, low = (2 if policy == "pure_bf16" else 4), (4 if policy == "fp32" else 2)
    count = sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths))
    copied = widths[0] if policy == "amp" else 0
    return {
        "parameters": size * count,
        "gradients": size * count,
        "optimizer state": 2 * size * count,
        "weight casts": 2 * count if policy == "amp" else 0,
        "inputs": size * rows * widths[0],
        "saved activations": low * rows * (copied + sum(widths[1:-1])),
    }
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.mlp_ledger", mlp_ledger)

# %% [markdown]
# <details><summary>The saved activations are about twice too large</summary>
#
# Go through the layers and name the storage that each one keeps. How many are there between two linear layers?
# </details>
#
# <details><summary>Only the first or the last layer is wrong</summary>
#
# Who needs the output of the last layer in backward? No layer of this model. And the batch has a row of its own;
# only its copy in bfloat16 is an activation.
# </details>
#
# <details><summary>All rows are slightly too small</summary>
#
# The biases.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Why not half”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 25 minutes.*

# %% [markdown]
# ### 7.4 What a transformer block keeps ●●● 25 minutes
#
# A block with its attention written out. `x` has the shape (batch, seq, width).


# %%
class Block(nn.Module):
    """A transformer block: attention, then a perceptron with four times the width inside."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        split = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        q, k, v = split  # each (batch, heads, seq, width / heads)
        weights = (q / math.sqrt(q.shape[-1]) @ k.transpose(-2, -1)).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


# %% [markdown]
# | operation | keeps for backward | under AMP on a GPU |
# |---|---|---|
# | `layer_norm` | its input; two statistics for each row, always float32 on a GPU | runs in float32 |
# | `linear` | its input | runs in bfloat16 |
# | `@` | both factors | runs in bfloat16 |
# | `softmax` | its result | runs in float32 |
# | `gelu` | its input | runs in the dtype of its input |
# | `+`, `/` with a number, `transpose`, … | nothing | `+` takes the wider dtype |
#
# Under AMP, the block gets `x` in float32. A tensor that is cast for an operation is a new storage: if the operation
# keeps it, it is the copy that is kept. If another operation keeps the original as well, both are there.
#
# Here, `x` is the output of the block before, so it counts. `q`, `k` and `v` are kept once each, as three tensors
# (`@` makes copies with the heads in front). Weights and their casts do not count.


# %% exercise="07.block_saved"
def block_saved(batch: int, seq: int, width: int, heads: int, policy: str) -> dict[str, int]:
    """Predict the bytes that Block(width, heads) keeps.

    batch, heads: at least 2. policy: "fp32", "amp" or "pure_bf16". Returns a dict with three keys.
    "norms": what the two norms keep. "attention": what is kept from the input of qkv to the input of proj,
    both included. "mlp": what is kept from the input of up to the input of down, both included.
    """
    ### BEGIN SOLUTION
    low, wide = (4 if policy == "fp32" else 2), (2 if policy == "pure_bf16" else 4)
    rows = batch * seq
    weights = batch * heads * seq**2
    copies = 2 if policy == "amp" else 0  # of the float32 weights, for the product with v
    return {
        "norms": 2 * (wide * rows * width + 2 * 4 * rows),
        "attention": low * 5 * rows * width + (wide + copies) * weights,
        "mlp": low * 9 * rows * width,
    }
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.block_saved", block_saved)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Take `fp32` first. Write down the operations of `forward` in order, and beside each what it keeps, with its shape. The
# norms keep 2 × (rows × width + 2 × rows) numbers, if rows is batch × seq.
# </details>
#
# <details><summary>Only the attention under AMP is wrong</summary>
#
# Which dtype does `softmax` give on a GPU, and which one does `weights @ v` take? Each keeps its own.
# </details>
#
# <details><summary>Only the norms under AMP are wrong</summary>
#
# The residual stream `x` is float32: float32 plus bfloat16 is float32. (That is why its two norms keep four bytes for
# each number.)
# </details>
#
# Under AMP, this attention matrix takes *more* than in float32: six bytes instead of four.
# `F.scaled_dot_product_attention` never writes it down, in its fused forms.
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Float32 where you did not want it”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 35 minutes.*

# %% [markdown]
# ### 7.5 What a convolutional network keeps ●●○ 18 minutes
#
# Convolution, BatchNorm, ReLU, and again. Somebody has read that BatchNorm needs float32, and feeds it `x.float()`.


# %%
class Convolutions(nn.Module):
    """Convolutions of 3 × 3 without bias, each with BatchNorm and ReLU; layers: pairs (channels, stride)."""

    def __init__(self, inputs, layers, float_norm=False):
        super().__init__()
        channels = [inputs, *(outputs for outputs, _ in layers)]
        sizes = zip(channels, layers, strict=False)
        self.convs = nn.ModuleList(nn.Conv2d(c, out, 3, stride, 1, bias=False) for c, (out, stride) in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for out, _ in layers)
        self.float_norm = float_norm

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv(x)
            x = F.relu(norm(x.float() if self.float_norm else x))
        return x


# %% [markdown]
# | operation | keeps for backward | under AMP on a GPU |
# |---|---|---|
# | `conv2d` | its input | runs in bfloat16 |
# | `batch_norm` | its input; two statistics for each channel, always float32 on a GPU | keeps the dtype of its input |
# | `relu` | its result | runs in the dtype of its input |
#
# With padding 1, a side of n pixels becomes (n − 1) // stride + 1. The batch, weights, weight casts and running
# statistics do not count; a copy of the batch in bfloat16 does.


# %% exercise="07.cnn_saved"
def cnn_saved(image: tuple, layers: list[tuple[int, int]], policy: str, float_norm: bool = False) -> dict:
    """Predict the bytes that Convolutions keeps.

    image: the shape of the batch, (N, C, H, W). layers: a pair (channels, stride) for each convolution.
    policy: "fp32", "amp" or "pure_bf16". float_norm: whether BatchNorm gets x.float(); only with "amp".
    Returns a dict with the keys "casts" (copies that convolutions make of their inputs), "norm inputs",
    "norm statistics" and "relu outputs".
    """
    ### BEGIN SOLUTION
    number, channels, height, width = image
    low = 4 if policy == "fp32" else 2
    between = 4 if float_norm else low  # what norm and ReLU keep
    saved = dict.fromkeys(("casts", "norm inputs", "norm statistics", "relu outputs"), 0)
    for index, (outputs, stride) in enumerate(layers):
        if policy == "amp" and (index == 0 or float_norm):
            saved["casts"] += low * number * channels * height * width
        channels, height, width = outputs, (height - 1) // stride + 1, (width - 1) // stride + 1
        saved["norm inputs"] += between * number * channels * height * width
        saved["norm statistics"] += 2 * 4 * channels
        saved["relu outputs"] += between * number * channels * height * width
    return saved
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.cnn_saved", cnn_saved)

# %% [markdown]
# <details><summary>There are copies that I do not find</summary>
#
# Under autocast, what dtype has the input of each convolution? The first one gets the batch, in float32. The others get
# what ReLU returns: bfloat16, unless the norm was given float32.
# </details>
#
# <details><summary>The outputs of ReLU count twice in my sum</summary>
#
# ReLU keeps its result, the next convolution keeps its input. If nobody casts in between, that is one storage.
# </details>
#
# Compare the cases with and without `float_norm`. It is not needed: the kernel computes its statistics in float32
# from bfloat16 inputs as well.
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Float32 where you did not want it”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 25 minutes.*

# %% [markdown]
# ## C Decide
#
# ### 7.6 The largest batch that fits ●○○ 10 minutes
#
# A peak has a part that every batch pays, and a part for each sample. Two small measurements give both, and then no
# out-of-memory error is needed to find the limit. (The straight line is a model. It ends where another moment of the
# step becomes the peak, so measure well above the smallest batch.)
#
# Budgets are in GiB, 2³⁰ bytes. Round down to a multiple of 8, which the matrix units like.


# %% exercise="07.largest_batch"
def largest_batch(peaks: dict[int, int], budget_gib: float) -> int:
    """Return the largest multiple of 8 that fits.

    peaks: peak memory in bytes for two batch sizes; a straight line joins them. budget_gib: the
    memory there is, in GiB. Returns 0 if not even 8 samples fit.
    """
    ### BEGIN SOLUTION
    (small, low), (large, high) = sorted(peaks.items())
    each = (high - low) / (large - small)
    fixed = low - small * each
    return max(0, int((budget_gib * 2**30 - fixed) / each) // 8 * 8)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.largest_batch", largest_batch)

# %% [markdown]
# <details><summary>My batches are too small, by a third or more</summary>
#
# Did you divide a peak by its batch size? Weights, gradients and optimizer state do not grow with the batch. The
# difference of the two peaks is what the additional samples cost.
# </details>
#
# <details><summary>They are too small by a few</summary>
#
# 1 GB is 10⁹ bytes, 1 GiB is 2³⁰.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Measuring a peak”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 15 minutes.*

# %% [markdown]
# ### 7.7 From how many rows on does AMP save memory? ●●○ 12 minutes
#
# At the end of the forward pass of `perceptron(widths)`, AMP holds something *more* than float32 does, the weight casts
# and the copy of the batch, and something *less*, the hidden activations. The first is mostly fixed, the second grows
# with the rows. Your ledger from 7.3 knows all of it. From how many rows on does AMP hold less?


# %% exercise="07.break_even"
def break_even(widths: list[int]) -> int | None:
    """Return the least number of rows for which AMP holds less.

    widths: of perceptron(widths), as in 7.3. What is held: the sum of the six rows of its ledger.
    Returns None if AMP never holds fewer.
    """
    ### BEGIN SOLUTION
    count = sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths))
    gain = sum(widths[1:-1]) - widths[0]  # halves of a float32 number, for each row
    return count // gain + 1 if gain > 0 else None
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.break_even", break_even)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Subtract the two ledgers of 7.3 row by row. What is left depends on the number of parameters, and on rows × widths.
# When is the sum positive? (A loop over `rows` with your `mlp_ledger` works too, if it knows when to give up.)
# </details>
#
# <details><summary>I am off by one</summary>
#
# With equal sums, AMP does not hold *fewer*.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “When AMP needs more”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 18 minutes.*

# %% [markdown]
# ### 7.8 Place checkpoints so that it fits ●●● 25 minutes
#
# A checkpointed block keeps only its input. Its inner activations are computed again in backward, when they are needed.
# That costs a second forward pass of the block. So checkpoint as little as the budget allows, and the right blocks.
#
# The blocks run in order, 0, 1, 2, …; block i has an input of `inputs[i]` MiB and keeps `inside[i]` MiB more, unless it
# is checkpointed. Backward goes from the last block to the first. When it comes to block i,
#
# - the inputs of the blocks 0 to i are there,
# - what the blocks *before* i keep inside is there, for those without a checkpoint,
# - the inside of block i itself is there, kept or just recomputed,
# - what belongs to later blocks has been freed.
#
# The peak is the largest of these sums.


# %% exercise="07.place_checkpoints"
def place_checkpoints(inputs: list[int], inside: list[int], cost: list[int], budget: int) -> list[int] | None:
    """Choose the cheapest set of checkpoints that fits.

    inputs, inside: MiB for each block, at most 8 blocks. cost: of recomputing each block. budget: MiB.
    Returns the numbers of the checkpointed blocks. Among all sets with a peak of at most budget, it is the
    one with the smallest sum of costs; there is only one. Returns None if no set fits.
    """
    ### BEGIN SOLUTION
    blocks = range(len(inputs))

    def peak(chosen):
        kept = [0 if i in chosen else inside[i] for i in blocks]
        return max(sum(inputs[: i + 1]) + sum(kept[:i]) + inside[i] for i in blocks)

    subsets = [set(some) for size in range(len(inputs) + 1) for some in itertools.combinations(blocks, size)]
    fitting = [chosen for chosen in subsets if peak(chosen) <= budget]
    return sorted(min(fitting, key=lambda chosen: sum(cost[i] for i in chosen))) if fitting else None
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.place_checkpoints", place_checkpoints)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Write a function `peak(chosen)` first. Then try all sets: eight blocks have 256. `itertools.combinations(range(n), k)`
# gives those with k members.
# </details>
#
# <details><summary>My sets are cheap, but do not fit</summary>
#
# The recomputed inside of block i is in memory while its backward runs, together with all that earlier blocks kept.
# </details>
#
# <details><summary>My sets fit, but are too expensive</summary>
#
# Taking the largest block first is a good guess, not the best set. And does a checkpoint around the *last* block ever
# help?
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “The honest ladder”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 35 minutes.*

# %% [markdown]
# ## D Cure
#
# ### 7.9 The needless float32 ●●○ 15 minutes
#
# A gated layer. Under autocast it could keep less. Here is its code, and what it keeps:


# %%
class Gate(nn.Module):
    """A gated perceptron behind a LayerNorm, with a residual connection."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        h = self.norm(x)
        gate = torch.sigmoid(self.gate(h).float())
        return x + self.down(F.silu(self.up(h)) * gate)


# %% tags=["nbval-check-output"]
module, x = Gate(64, 256), torch.ones(512, 64)
with torch.autograd.graph.saved_tensors_hooks(lambda t: print(t.dtype, tuple(t.shape)) or t, lambda t: t):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x)

# %% [markdown]
# Weights and casts of weights are in this list as well: look at what has 512 rows. There are two faults. One is a
# float32 tensor that nobody needs. The other follows from the norm, which returns float32 here, as it does under
# autocast on a GPU: **each** operation that wants bfloat16 makes a copy of its own. (The cache is for weights only.)
#
# Repair `forward`, so that as few bytes as possible are kept, without recomputing anything. The norm works on the
# float32 `x`, and the output stays float32: it is the residual stream.


# %% exercise="07.lean_gate"
class LeanGate(Gate):
    """A gated perceptron that keeps no needless bytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, under autocast to bfloat16.

        x: float32, shape (rows, width). Returns a float32 tensor of the same shape, nearly equal to what Gate
        returns, with its gradients.
        """
        ### BEGIN SOLUTION
        h = self.norm(x).bfloat16()
        gate = torch.sigmoid(self.gate(h))
        return x + self.down(F.silu(self.up(h)) * gate)
        ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.lean_gate", LeanGate)

# %% [markdown]
# <details><summary>Which one is needless?</summary>
#
# A gate between 0 and 1 does not need 24 bits. What keeps it in float32, and what happens to the product with it?
# </details>
#
# <details><summary>I removed .float(), and there are still bytes too many</summary>
#
# `self.gate` and `self.up` both get `h`. Look at the list above: is there something with the same shape, twice?
# </details>
#
# <details><summary>The output is bfloat16</summary>
#
# Do not convert `x` itself. float32 plus bfloat16 is float32.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Float32 where you did not want it”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 22 minutes.*

# %% [markdown]
# ### 7.10 Autopsy of a slow step ●●○ 18 minutes
#
# A profiler lists every call with its start and its duration, in µs. Calls contain calls: `aten::linear` contains
# `aten::addmm`, which does the work. So durations must not simply be added. The **self time** of a call is its duration
# without the calls directly inside it.

# %%
KINDS = {
    "aten::mm": "matmul", "aten::addmm": "matmul", "aten::bmm": "matmul",
    "aten::to": "casts", "aten::_to_copy": "casts", "aten::copy_": "casts",
    "DataLoader.__next__": "data", "Optimizer.step": "optimizer",
}  # fmt: skip
EVENTS = [
    {"name": "aten::linear", "start": 0, "duration": 50},
    {"name": "aten::to", "start": 5, "duration": 10},
    {"name": "aten::copy_", "start": 7, "duration": 6},
    {"name": "aten::addmm", "start": 20, "duration": 25},
    {"name": "aten::gelu", "start": 60, "duration": 20},
]

# %% [markdown]
# Here, matmul has 25 µs, casts have 10, *other* has 15 + 20, and of a step of 90 µs, 20 are *idle*: between calls, and
# after the last one. *other* is everything with a name that is not in KINDS.


# %% exercise="07.autopsy"
def autopsy(events: list[dict], total: int) -> tuple[dict[str, int], str]:
    """Say where the time of a step went.

    events: as EVENTS, in any order, in one thread: two of them are one inside the other, or apart. No two
    start together. total: µs of the step; it begins with the first event.
    Returns (times, largest): the µs of "matmul", "casts", "data", "optimizer", "other" and "idle", which
    add up to total, and the name of the largest.
    """
    ### BEGIN SOLUTION
    times = dict.fromkeys(("matmul", "casts", "data", "optimizer", "other"), 0)
    times["idle"] = total
    open_calls = []
    for event in sorted(events, key=lambda event: event["start"]):
        while open_calls and event["start"] >= open_calls[-1][0]:
            open_calls.pop()
        around = open_calls[-1][1] if open_calls else "idle"
        kind = KINDS.get(event["name"], "other")
        times[kind] += event["duration"]
        times[around] -= event["duration"]
        open_calls.append((event["start"] + event["duration"], kind))
    return times, max(times, key=times.get)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.autopsy", autopsy)

# %% [markdown]
# <details><summary>My times add up to more than the step</summary>
#
# The 10 µs of `aten::to` are also a part of the 50 µs of `aten::linear`. Give every µs to the innermost call.
# </details>
#
# <details><summary>How do I find the call around an event?</summary>
#
# Sort by start, and keep a list of open calls. Before an event, remove those from its end that have ended. What is then
# last in the list is the call around it. If there is none, the event takes its time from *idle*.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Autopsy of a slowdown”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 25 minutes.*

# %% [markdown]
# ### 7.11 What AMP can gain at most ●○○ 8 minutes
#
# AMP makes products faster, by a large factor, and kernels that move memory, by a small one. It does nothing for the
# rest, and it adds casts. Amdahl's law: what is not made faster sets the limit.


# %% exercise="07.gain"
def gain(times: dict[str, float], factors: dict[str, float], added: float) -> tuple[float, float]:
    """Predict the speed-up of a step, and its limit.

    times: µs by kind, as in 7.10. factors: how many times as fast each kind becomes; the others stay as
    they are. added: µs of new casts.
    Returns (speed-up, limit). The speed-up is the old time of the step divided by the new one. The limit is
    the speed-up if all kinds in `factors` took no time at all, and no casts were added.
    """
    ### BEGIN SOLUTION
    before = sum(times.values())
    after = sum(time / factors.get(kind, 1) for kind, time in times.items()) + added
    rest = sum(time for kind, time in times.items() if kind not in factors)
    return before / after, before / rest
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.gain", gain)

# %% [markdown]
# <details><summary>My speed-ups are too large</summary>
#
# Speed-ups cannot be averaged, times can be added. Compute the new time of each kind, add them, add the casts. Then
# divide.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “Where the time of a step goes”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 12 minutes.*

# %% [markdown]
# ### 7.12 Choose the cure ●●○ 10 minutes
#
# Seven complaints, nine answers. No complaint has two, and two answers are not needed.
#
# 1. "A small model, 32 rows. The trace shows hundreds of kernels of 5 µs with gaps between them, and with AMP it got
#    slower."
# 2. "I call `torch.compile(model)` and nothing else. The kernels in the trace are still float32."
# 3. "`nvidia-smi` says 20 GiB, and `torch.cuda.max_memory_allocated` says 9. There is a leak."
# 4. "Out of memory, under AMP. The ledger: parameters 22 %, gradients 22 %, AdamW's state 44 %, saved activations
#    12 %."
# 5. "Out of memory, under AMP, also with the smallest batch I can use. Saved activations are 85 %, nearly all of them
#    bfloat16."
# 6. "The GPU is idle 70 % of each step, while `DataLoader.__next__` runs."
# 7. "Under AMP, half of the saved bytes are float32. All of them are made by one module that calls `.float()`, because
#    its author did not trust bfloat16."
#
# - **A** Put the step into an autocast region: nothing else changes the dtypes.
# - **B** Checkpoint some blocks.
# - **C** Fewer bytes for each parameter: an optimizer with less state, or its state spread over several GPUs.
# - **D** More rows, or CUDA graphs: the work is too small, not too precise.
# - **E** Nothing: the allocator keeps freed blocks for later, and the context takes memory, too.
# - **F** Load ahead, with more workers.
# - **G** Take the conversion out, and compare the loss.
# - **H** A larger loss scale.
# - **I** Call `torch.cuda.empty_cache()` after each step.


# %% exercise="07.cures"
def cures() -> str:
    """Name the answer to each complaint.

    Returns a string of seven letters, for the complaints 1 to 7 in order, such as "ABCDEFG".
    """
    ### BEGIN SOLUTION
    return "DAECBFG"
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("07.cures", cures)

# %% [markdown]
# <details><summary>4 and 5 look alike</summary>
#
# Both are out of memory. Say for each cure which row of the ledger it makes smaller. Then look for the largest row.
# </details>
#
# *Background: [lesson 7](../notebooks/07_speed_and_memory.ipynb), “What to take away”. Read
# [the solution](../solutions/07_speed_and_memory.ipynb) after 15 minutes.*

# %% [markdown]
# ## What you built
#
# A ledger, and a counter that can prove it wrong. The cells below run *your* functions. A cell whose exercise is not
# finished says which one it waits for.
#
# First, prediction against hooks. `saved_bytes` also sees the weight casts that backward keeps: those of every layer
# but the first, whose input needs no gradient.

# %% tags=["nbval-check-output"]
from ampedu.exercises import needs

widths, rows = [784, 512, 256, 10], 128
with needs("07.saved_bytes", "07.mlp_ledger"):
    for policy, dtype in (("fp32", None), ("amp", torch.bfloat16)):
        counted = saved_bytes(perceptron(widths), torch.ones(rows, widths[0]), dtype)
        casts = 2 * sum(a * b for a, b in itertools.pairwise(widths[1:])) if dtype else 0
        predicted = mlp_ledger(widths, rows, policy)["saved activations"]
        print(f"{policy:5} predicted {predicted:7}  counted {sum(counted.values()) - casts:7}  with casts {counted}")
        assert predicted == sum(counted.values()) - casts

# %% [markdown]
# The block, under the policy of CUDA, whose operations run on the CPU here:

# %% tags=["nbval-check-output"]
from ampedu.policy import cuda_policy_on_cpu

with needs("07.saved_bytes", "07.block_saved"), cuda_policy_on_cpu():
    block, x = Block(width=64, heads=4), torch.ones(4, 128, 64)
    weights = 2 * sum(p.numel() for p in block.parameters() if p.dim() == 2)
    for policy, dtype in (("fp32", None), ("amp", torch.bfloat16)):
        counted = sum(saved_bytes(block, x, dtype).values()) - (weights if dtype else -x.nbytes)
        counted += x.nbytes if dtype else 0  # the block before would have made x, so it counts
        predicted = block_saved(4, 128, 64, 4, policy)
        print(f"{policy:5} predicted {sum(predicted.values()):8}  counted {counted:8}  {predicted}")
        assert counted == sum(predicted.values())

# %% [markdown]
# **Predict** before you run the next cell: the same block with a sequence of 2048. Does AMP halve what it keeps?

# %% tags=["nbval-check-output"]
with needs("07.block_saved"):
    for seq in (128, 512, 2048):
        wide, mixed = (sum(block_saved(8, seq, 768, 12, policy).values()) for policy in ("fp32", "amp"))
        print(f"sequence {seq:5}: {wide / 2**20:7.0f} MiB in fp32, {mixed / 2**20:7.0f} under AMP: {mixed / wide:.2f}")
    assert mixed > wide

# %% [markdown]
# The matrix of weights grows with the square of the sequence, and under AMP it has six bytes for each number. Written
# out like this, attention makes AMP the *larger* one.
#
# Next, the rows that AMP needs before it saves anything, for perceptrons with two hidden layers:

# %% tags=["nbval-check-output"]
with needs("07.break_even"):
    for width in (64, 256, 1024, 4096):
        needed = break_even([784, width, width, 10])
        print(f"784, {width}, {width}, 10:", "never" if needed is None else f"from {needed} rows on")

# %% [markdown]
# Where it says *never*, the copy of the batch is at least as large as what the hidden layers save.
#
# Your repair, at a size that counts. Its bytes, by dtype:

# %% tags=["nbval-check-output"]
with needs("07.saved_bytes", "07.lean_gate"):
    for kind in (Gate, LeanGate):
        counted = saved_bytes(kind(64, 256), torch.ones(8192, 64), torch.bfloat16)
        print(f"{kind.__name__:8}", {name: f"{size / 2**20:.1f} MiB" for name, size in counted.items()})

# %% [markdown]
# And checkpoints for eight equal blocks: more of them as the budget falls.

# %% tags=["nbval-check-output"]
with needs("07.place_checkpoints"):
    for budget in (1000, 800, 600, 400, 240, 200):
        chosen = place_checkpoints([10] * 8, [110] * 8, [64 + 2.0**-i for i in range(8)], budget)
        print(f"{budget:5} MiB: checkpoint", "nothing that would fit" if chosen is None else chosen)

# %% [markdown]
# Last, two real traces: the forward pass of a small model on this machine, without autocast and with it. Times differ
# from run to run, so look at the shares. (The profiler costs time as well, most of it where calls are short.)


# %%
from ampedu.profiling import silent
from torch.profiler import profile


def one_step(model, x, dtype):
    """The events of one forward pass, as EVENTS has them, and its duration in µs."""
    profiler = profile()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is not None):
        model(x)  # warm up
        with silent():
            profiler.start()
        model(x)
        with silent():
            profiler.stop()
    calls = [event for event in profiler.events() if event.name.startswith("aten::")]
    spans = [(event.name, event.time_range.start, event.time_range.end) for event in calls]
    spans.sort(key=lambda span: (span[1], -span[2]))  # if two start together, the outer one comes first
    events = [{"name": name, "start": start, "duration": end - start} for name, start, end in spans]
    return events, max(end for _, _, end in spans) - spans[0][1]


# %% tags=["measured"]
with needs("07.autopsy"):
    model, x = perceptron([64] * 20), torch.ones(16, 64)
    one_step(model, x, None)  # the first profile of a process loads the profiler, too
    for dtype in (None, torch.bfloat16):
        times, largest = autopsy(*one_step(model, x, dtype))
        whole = sum(times.values())
        shares = ", ".join(f"{kind} {time / whole:.0%}" for kind, time in times.items() if time)
        print(f"{dtype!s:15} {shares}; most: {largest}")

# %% [markdown]
# **Sources.** [Saved-tensor hooks](https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors) ·
# [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html) · Chen et al., [Training deep nets with
# sublinear memory cost](https://arxiv.org/abs/1604.06174): checkpoints · Korthikanti et al., [Reducing activation
# recomputation in large transformer models](https://arxiv.org/abs/2205.05198): the same count for a large model, and
# which parts are worth recomputing · [Understanding CUDA memory
# usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html) · [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html).
#
# Back to [lesson 7](../notebooks/07_speed_and_memory.ipynb), or on to lesson 8, where the ledger is spread over several
# machines.
