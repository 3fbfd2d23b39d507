# %% [markdown]
# # Lab 3 Tensor Cores and when they help
#
# Before you switch a model to 16 bits you can know what it will gain, from a few numbers about the layer and a few
# about the chip. In this lab you write that forecast, and a timer that is worth checking it with.
#
# **You will be able to** tell a GPU that has bf16 from one that emulates it · find the honest peak in a datasheet ·
# compute what a Tensor Core computes, one product at a time · count the work and the traffic of a layer · predict gain
# or no gain · choose sizes that fill the chip · time a GPU without fooling yourself.
#
# *127 minutes · parts A and B make a good first hour · after lesson 3 · runs on every machine*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("The exercises need no GPU: their machines are data. Only the last cells measure this one.")

# %% [markdown]
# | part | exercise | difficulty | minutes | points |
# |---|---|---|---|---|
# | A The chip | 3.1 Does it have bf16? | ●○○ | 8 | 1 |
# | | 3.2 The figure without the asterisk | ●○○ | 10 | 1 |
# | B The unit | 3.3 One tile, D = A × B + C | ●●○ | 15 | 3 |
# | | 3.4 What TF32 rounds | ●●● | 15 | 3 |
# | C The forecast | 3.5 Work and traffic of a layer | ●●○ | 18 | 3 |
# | | 3.6 Which wall is in the way? | ●○○ | 8 | 1 |
# | | 3.7 Gain or no gain? | ●●○ | 15 | 3 |
# | D The fit | 3.8 Pad a vocabulary | ●○○ | 8 | 1 |
# | | 3.9 Tiles and waves | ●●○ | 10 | 2 |
# | E The proof | 3.10 A timer that is right | ●●● | 20 | 4 |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. An exercise that you have not begun says so and stops nothing: *Run All* always reaches the
# end. No check looks at a time that your machine needed.

# %%
import math

import torch
from ampedu.exercises import check

# %% [markdown]
# ## A The chip
#
# ### 3.1 Does it have bf16? ●○○ 8 minutes
#
# You are about to use autocast with `dtype=torch.bfloat16` on somebody else's machine. bf16 *runs* everywhere: where
# the chip cannot multiply it, each operation goes by way of float32, and you gain no speed. Here is what torch and the
# system say about one such machine.

# %%
COLAB = {
    "name": "Tesla T4",
    "backend": "cuda",  # or "rocm" (AMD), or "cpu"
    "capability": (7, 5),  # torch.cuda.get_device_capability(); None for a CPU
    "architecture": None,  # AMD only: gcnArchName, such as "gfx942:sramecc+:xnack-"
    "flags": None,  # CPU only: words such as "avx2 avx512f", separated by blanks
    "is_bf16_supported": True,  # torch.cuda.is_bf16_supported(); None for a CPU
}

# %% [markdown]
# A T4 has no instruction for bf16. It says True because emulation counts, unless you ask with
# `including_emulation=False`. Decide from the hardware instead.
#
# | backend | bf16 is in the hardware |
# |---|---|
# | NVIDIA | from capability 8.0 (Ampere) on |
# | AMD | if the architecture begins with gfx908, gfx90a, gfx94, gfx95, gfx11 or gfx12 |
# | CPU | if one of the flags is avx512_bf16, amx_bf16, bf16 or svebf16 |


# %% exercise="03.native_bf16"
def native_bf16(machine: dict) -> bool:
    """Say whether a machine multiplies bf16 in hardware.

    machine: a dict with the keys of COLAB above. Returns True or False.
    """
    ### BEGIN SOLUTION
    if machine["backend"] == "cuda":
        return machine["capability"] >= (8, 0)
    if machine["backend"] == "rocm":
        return machine["architecture"].startswith(("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"))
    return any(flag in ("avx512_bf16", "amx_bf16", "bf16", "svebf16") for flag in machine["flags"].split())
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.native_bf16", native_bf16)

# %% [markdown]
# <details><summary>How do I compare two version numbers?</summary>
#
# Python compares tuples from the left: `(7, 5) >= (8, 0)` is False and `(10, 0) >= (8, 0)` is True.
# </details>
#
# <details><summary>The AMD cards are wrong</summary>
#
# Does your code look at `capability` there? AMD fills it in too, with the number of the architecture. Use
# `architecture`, and remember that its text goes on after a colon. `"text".startswith(("te", "ab"))` takes a tuple.
# </details>
#
# *Read 3.1 in [the solution](../solutions/03_tensor_cores.ipynb) after 12 minutes.*

# %% [markdown]
# ### 3.2 The figure without the asterisk ●○○ 10 minutes
#
# A datasheet of the A100 prints 19.5, 156, 312 and 624 TFLOP/s. Which one is the peak for bf16? A footnote knows:
# "with sparsity". Such a figure counts multiplications by zeros that the chip skips, if half of your weights are zero
# in a fixed pattern. Yours are not.
#
# Compute the dense peak yourself, and take the printed figure that comes nearest. A GPU has `sms` streaming
# multiprocessors (SMs); each has `cores` Tensor Cores; each of these finishes `fmas` fused multiply-adds per clock, and
# the clock ticks `ghz` × 10⁹ times a second. (In the first Tensor Core, of Volta, `fmas` is 64: the products of two
# 4 × 4 tiles, 4 × 4 × 4. That is how many it finishes per clock, not how long one takes.)


# %% exercise="03.dense_peak"
def dense_peak(printed: list[float], sms: int, cores: int, fmas: int, ghz: float) -> float:
    """Return the dense peak among the printed figures.

    printed: figures of a datasheet in TFLOP/s (10 ** 12 operations per second), in any order.
    A fused multiply-add counts as two operations. Returns the element of `printed` that is
    nearest to what the Tensor Cores can do.
    """
    ### BEGIN SOLUTION
    product = 2 * fmas * cores * sms * ghz / 1000
    return min(printed, key=lambda figure: abs(figure - product))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.dense_peak", dense_peak)

# %% [markdown]
# <details><summary>How do I pick the nearest element of a list?</summary>
#
# `min(figures, key=lambda figure: abs(figure - goal))`.
# </details>
#
# <details><summary>I am off by a factor of two or of a thousand</summary>
#
# Do it for the A100: 108 SMs, 4 cores, 256 multiply-adds, 1.41 GHz. You should find 311.9 TFLOP/s. GHz are 10⁹, TFLOP/s
# are 10¹².
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 15 minutes.*

# %% [markdown]
# ## B The unit
#
# ### 3.3 One tile, D = A × B + C ●●○ 15 minutes
#
# A Tensor Core takes two small tiles of 16-bit numbers, A and B, and a tile C. Its multipliers keep every bit of a
# product, and the sum is kept in an **accumulator**, which starts with C. The accumulator is float32, or float16 if the
# program asks for that. The example shows what the difference is about.

# %% tags=["nbval-check-output"]
half = torch.tensor(2048.0, dtype=torch.float16)
print("float16:", (half + 1).item(), "   float32:", (half.float() + 1).item())

# %% [markdown]
# Compute a tile. Go through the inner dimension, k = 0, 1, 2, …, and add one product at a time to every element of the
# sum. (A real unit adds several at once, in an order that is not documented; the idea is the same.)


# %% exercise="03.tensor_core"
def tensor_core(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, accumulate: torch.dtype) -> torch.Tensor:
    """Compute D = A × B + C as a Tensor Core does.

    a: float16, shape (m, k). b: float16, shape (k, n). c: float32, shape (m, n); its numbers are
    exact in float16 too. accumulate: torch.float32 or torch.float16.
    The sum starts with c. After each of the k additions it is rounded to `accumulate`; the
    products are not rounded at all. Returns D in the dtype `accumulate`.
    """
    ### BEGIN SOLUTION
    total = c.to(accumulate)
    for k in range(a.shape[1]):
        product = a[:, k, None].double() * b[k].double()  # float64 has room for it, and for the sum before rounding
        total = (total.double() + product).to(accumulate)
    return total
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.tensor_core", tensor_core)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Column k of A and row k of B make one product for each element of D: `a[:, k, None] * b[k]` has the shape (m, n). What
# dtype must the two have, so that this product keeps all its bits?
# </details>
#
# <details><summary>Only the cases with float16 are wrong</summary>
#
# Where do you round? Once at the end is not the same as after every addition. And C must be in the sum from the start.
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 20 minutes.*

# %% [markdown]
# ### 3.4 What TF32 rounds ●●● 15 minutes
#
# TF32 lets Tensor Cores work on float32 matrices. Their numbers stay float32 in memory, 23 mantissa bits and all. On
# the way into the unit each one is rounded to **10 mantissa bits**; the 8 exponent bits stay. What happens inside you
# know: exact products, a wide sum.
#
# To see what the rounding alone does, let the sum be wider than any hardware's: multiply and add in float64. No number
# in the check lies halfway between two TF32 numbers, so you may break ties as you like.


# %% exercise="03.tf32_matmul"
def tf32_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply two float32 matrices as TF32 does.

    a: float32, shape (m, k). b: float32, shape (k, n). All numbers are finite and normal.
    Each is first rounded to the nearest number with 10 mantissa bits and 8 exponent bits.
    Returns the product as a float64 tensor, computed in float64.
    """

    ### BEGIN SOLUTION
    def rounded(x):
        bits = x.view(torch.int32) + (1 << 12)  # half of the gap; a carry goes into the exponent, where it belongs
        return ((bits >> 13) << 13).view(torch.float32).double()

    return rounded(a) @ rounded(b)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.tf32_matmul", tf32_matmul)

# %% [markdown]
# <details><summary>There is no torch.tf32</summary>
#
# Right: no tensor has this dtype. Two ways lead there. With bits: `x.view(torch.int32)` shows them, and 13 of the 23
# mantissa bits have to go, after rounding. With arithmetic: measure x in gaps of its binade, as in lab 1
# (`torch.frexp`, `torch.ldexp`, `torch.round`).
# </details>
#
# <details><summary>My numbers are slightly too small in magnitude</summary>
#
# Clearing 13 bits rounds toward zero. Add half of the gap first: the highest of the 13 bits.
# </details>
#
# <details><summary>Huge numbers become infinity</summary>
#
# Did they pass through float16? It has the same 10 mantissa bits, but 5 exponent bits instead of 8.
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 20 minutes.*

# %% [markdown]
# ## C The forecast
#
# ### 3.5 Work and traffic of a layer ●●○ 18 minutes
#
# Two counts say most about the speed of a layer. **FLOPs** are its floating-point operations; a multiply-add is two of
# them. **Traffic** is the bytes that must move between memory and chip at the very least: every input is read once, the
# output is written once. Biases are left out.
#
# | op | shapes | output | operations for each element of the output |
# |---|---|---|---|
# | matmul | (…, m, k), (…, k, n) | (…, m, n) | 2 k |
# | linear | (…, k), weight (n, k) | (…, n) | 2 k |
# | conv2d | (N, C, H, W), weight (O, C, h, w) | (N, O, H′, W′) | 2 C h w |
# | relu | one shape | the same | 1 |
# | add | two equal shapes | the same | 1 |
#
# The dots stand for any number of dimensions, also none. H′ is (H + 2 · padding − h) // stride + 1, and W′ likewise.


# %% exercise="03.flops_bytes"
def flops_bytes(op: str, shapes: list[tuple], size: int, stride: int = 1, padding: int = 0) -> tuple:
    """Count the operations and the bytes of one forward call.

    op, shapes: a row of the table. size: bytes of one element, the same for all tensors.
    stride, padding: of conv2d, the same in both directions.
    Returns the two counts, (FLOPs, bytes).
    """
    ### BEGIN SOLUTION
    first, second = shapes[0], shapes[-1]
    if op == "matmul":
        output, each = (*first[:-1], second[-1]), 2 * first[-1]
    elif op == "linear":
        output, each = (*first[:-1], second[0]), 2 * first[-1]
    elif op == "conv2d":
        sides = [(x + 2 * padding - k) // stride + 1 for x, k in zip(first[2:], second[2:], strict=True)]
        output, each = (first[0], second[0], *sides), 2 * math.prod(second[1:])
    else:
        output, each = first, 1
    elements = sum(math.prod(shape) for shape in [*shapes, output])
    return each * math.prod(output), size * elements
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.flops_bytes", flops_bytes)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Write the shape of the output first, for each op. `math.prod(shape)` is its number of elements. The operations are
# that number times the last column of the table; the bytes are all elements of all tensors, the output among them,
# times `size`.
# </details>
#
# <details><summary>Some of the products are wrong</summary>
#
# Those with more than two dimensions, or with a weight? Every dimension in front of the last one counts as rows. And
# torch stores the weight of a linear layer as (outputs, inputs).
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 25 minutes.*

# %% [markdown]
# ### 3.6 Which wall is in the way? ●○○ 8 minutes
#
# Divide the two counts: the **arithmetic intensity** is how many operations a byte of traffic pays for. Divide the two
# speeds of a chip, operations per second by bytes per second: the **ridge** is how many operations it can do while a
# byte arrives. If the layer's intensity is below the ridge, the arithmetic units wait for memory; if it is above,
# memory waits for them.


# %% exercise="03.bound"
def bound(flops: int, moved: int, peak: float, bandwidth: float) -> tuple[float, str]:
    """Return the intensity of a layer and what limits it.

    flops: operations. moved: bytes. peak: TFLOP/s (10 ** 12 operations per second).
    bandwidth: GB/s (10 ** 9 bytes per second).
    Returns (operations per byte, "compute" or "memory").
    """
    ### BEGIN SOLUTION
    ridge = peak * 1e12 / (bandwidth * 1e9)
    intensity = flops / moved
    return intensity, "compute" if intensity > ridge else "memory"
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.bound", bound)

# %% [markdown]
# <details><summary>Everything is compute-bound</summary>
#
# Compute the ridge of the A100 on paper: 312 TFLOP/s by 1555 GB/s is about 200 operations per byte, not 0.2.
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 12 minutes.*

# %% [markdown]
# ### 3.7 Gain or no gain? ●●○ 15 minutes
#
# Now the forecast. A chip computes, moves data, and gets its next call ready, all at the same time. So a call takes the
# longest of three times: the arithmetic, the traffic, and the **overhead** that every call has, however small. Between
# float32 and 16 bits the peak changes, an element shrinks from 4 bytes to 2, and the overhead stays.
#
# One more cost is easy to forget. Where autocast meets float32 weights and inputs, it reads them (4 bytes each) and
# writes them in 16 bits (2 bytes each) before the layer can begin. This **cast** is a call of its own, with the same
# overhead and no arithmetic.

# %%
MACHINES = {  # dense peaks in TFLOP/s, bandwidth in GB/s, from datasheets; overhead in microseconds: assumed
    "T4": {"fp32": 8.1, "16-bit": 65.0, "bandwidth": 320.0, "overhead": 5.0},
    "A100": {"fp32": 19.5, "16-bit": 312.0, "bandwidth": 1555.0, "overhead": 5.0},
    "RTX 4090": {"fp32": 82.6, "16-bit": 165.2, "bandwidth": 1008.0, "overhead": 4.0},
}


# %% exercise="03.predicted_gain"
def predicted_gain(flops: int, elements: int, cast: int, machine: dict) -> tuple[float, str]:
    """Predict what a layer gains from 16 bits.

    flops: operations. elements: of all tensors that the layer reads or writes.
    cast: how many elements must be cast from float32 first; 0 means that there is no cast.
    machine: a row of MACHINES.
    Returns (time in float32 / time in 16 bits, verdict). The time in 16 bits includes the cast.
    The verdict is "gain" if the ratio is at least 1.5, else "no gain".
    """
    ### BEGIN SOLUTION
    bandwidth, overhead = machine["bandwidth"] * 1e9, machine["overhead"] * 1e-6
    slow = max(flops / (machine["fp32"] * 1e12), 4 * elements / bandwidth, overhead)
    fast = max(flops / (machine["16-bit"] * 1e12), 2 * elements / bandwidth, overhead)
    if cast:
        fast += max(6 * cast / bandwidth, overhead)
    return slow / fast, "gain" if slow / fast >= 1.5 else "no gain"
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.predicted_gain", predicted_gain)

# %% [markdown]
# <details><summary>My ratios are near 1 everywhere, or gigantic</summary>
#
# Look at the units: TFLOP/s are 10¹², GB/s are 10⁹, a microsecond is 10⁻⁶ s. Convert each when you take it out of
# `machine`.
# </details>
#
# <details><summary>Only the small layers are wrong</summary>
#
# They take no time to compute. What is left is the overhead of a call, once for the layer and once more for a cast.
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 20 minutes.*

# %% [markdown]
# ## D The fit
#
# ### 3.8 Pad a vocabulary ●○○ 8 minutes
#
# Tensor Cores work best if the sizes of a matrix fill whole lines of memory: 16 bytes on most GPUs, 128 bytes on the
# A100. In bf16 that is a multiple of 8 or of 64 elements. The vocabulary of GPT-2 has 50257 entries, and the last layer
# of the model has as many columns. So one adds a few columns that nobody uses.
#
# The bits of an element in memory: fp64 64, tf32 32 (it is stored as float32), fp16 and bf16 16, fp8 and int8 8.


# %% exercise="03.pad"
def pad(size: int, dtype: str, line: int) -> int:
    """Return the smallest size that fills whole lines.

    size: number of elements. dtype: "fp64", "tf32", "fp16", "bf16", "fp8" or "int8".
    line: bytes of a line, 16 or 128. Returns a multiple of the elements in a line, at least `size`.
    """
    ### BEGIN SOLUTION
    bits = {"fp64": 64, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}
    multiple = line * 8 // bits[dtype]
    return -(-size // multiple) * multiple
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.pad", pad)

# %% [markdown]
# <details><summary>How do I round up to a multiple?</summary>
#
# `-(-7 // 4)` is 2: `//` rounds down, and on the negative side down is up. Then multiply by 4.
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 12 minutes.*

# %% [markdown]
# ### 3.9 Tiles and waves ●●○ 10 minutes
#
# A GPU cuts the result of a matrix product into **tiles**, say 256 rows by 128 columns. Each tile is the work of one
# SM. A ragged edge costs whole tiles. If there are more tiles than SMs, they go in **waves**; while the last wave runs,
# the SMs without a tile are idle.


# %% exercise="03.waves"
def waves(m: int, n: int, sms: int, tile: tuple[int, int] = (256, 128)) -> tuple[int, int, float]:
    """Count the tiles and waves of a product with m × n results.

    sms: how many tiles run at the same time. tile: rows and columns of a tile.
    Returns (tiles, waves, useful share). The useful share is m × n, divided by the results that
    all SMs could have computed in these waves.
    """
    ### BEGIN SOLUTION
    tiles = -(-m // tile[0]) * -(-n // tile[1])
    rounds = -(-tiles // sms)
    return tiles, rounds, m * n / (rounds * sms * tile[0] * tile[1])
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.waves", waves)

# %% [markdown]
# <details><summary>What should I find for 1793 × 1793 on an A100?</summary>
#
# 1793 rows are 7 tiles of 256 and one row: 8 rows of tiles. 1793 columns are 15 columns of tiles. 120 tiles on 108 SMs
# take two waves, and in the second one 96 SMs are idle.
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 15 minutes.*

# %% [markdown]
# ## E The proof
#
# ### 3.10 A timer that is right ●●● 20 minutes
#
# A forecast wants a measurement, and a measurement on a GPU goes wrong in silence. A call returns before its work is
# done: the GPU has a queue. The first calls are slow. And now and then somebody else uses the machine.
#
# Your timer gets three functions. `run()` starts the work. `synchronize()` waits until all work is done. `clock()` is
# the time in seconds. The check hands you a *simulated* device with a clock of its own, and looks at the order of your
# calls: no second of a real machine is judged.


# %% exercise="03.time_call"
def time_call(run, synchronize, clock, warmup: int, repeats: int) -> tuple[float, float, float]:
    """Return the median, fastest and slowest time of run().

    run, synchronize, clock: functions without arguments, as above.
    warmup: how many calls come first and do not count. repeats: how many calls are timed, each
    on its own; an odd number. The device is idle whenever you read the clock.
    Returns three times of one call, in seconds.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        run()
    samples = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        run()
        synchronize()
        samples.append(clock() - start)
    samples.sort()
    return samples[repeats // 2], samples[0], samples[-1]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("03.time_call", time_call)

# %% [markdown]
# <details><summary>My times are far too short</summary>
#
# `run` only puts work into the queue. What must happen between it and the second reading of the clock?
# </details>
#
# <details><summary>Only the slowest time is wrong</summary>
#
# What is still in the queue when you read the clock for the very first time?
# </details>
#
# <details><summary>The median is too large</summary>
#
# Is it the median, or the mean? And are the calls of the warm-up among your samples?
# </details>
#
# *Read [the solution](../solutions/03_tensor_cores.ipynb) after 30 minutes, and write the loop again from memory: you
# will need it all your life.*

# %% [markdown]
# ## What you built
#
# A forecast and a way to check it. The cells below run *your* functions. A cell whose exercise is not finished says
# which one it waits for.
#
# First, the unit. The sum of 4096 ones, with the two accumulators:

# %% tags=["nbval-check-output"]
from ampedu.exercises import needs

ones, zero = torch.ones(1, 4096, dtype=torch.float16), torch.zeros(1, 1)
with needs("03.tensor_core"):
    for accumulate in (torch.float32, torch.float16):
        print(accumulate, tensor_core(ones, ones.T, zero, accumulate).item())

# %% [markdown]
# Next, what TF32 costs: √3 × √3 with factors in float32, rounded to TF32, and rounded to bf16. Which digits are right?

# %% tags=["nbval-check-output"]
x = torch.tensor([[3.0]]).sqrt()
with needs("03.tf32_matmul"):
    print(f"float32 {(x.double() @ x.double()).item():.7f}")
    print(f"TF32    {tf32_matmul(x, x).item():.7f}")
    print(f"bf16    {(x.bfloat16().double() @ x.bfloat16().double()).item():.7f}")

# %% [markdown]
# The vocabulary of GPT-2 with its padding, in every dtype:

# %% tags=["nbval-check-output"]
with needs("03.pad"):
    for dtype in ("fp64", "tf32", "bf16", "fp8"):
        print(f"{dtype}: {pad(50257, dtype, 16)} for lines of 16 bytes, {pad(50257, dtype, 128)} for 128")

# %% [markdown]
# How much of a GPU a square product uses, from 512 to 6144 rows: the saw of tiles and waves. A few rows more can cost a
# whole wave.

# %%
SMS = {"T4": 40, "H100": 132}

# %%
from ampedu.plots import curves

saw, rows = None, range(512, 6145, 32)
alt = "Useful share of two GPUs against the size of a product: saws that rise from 20 and 6 percent toward 100"
with needs("03.waves"):
    shares = {f"{name}, {sms} SMs": [100 * waves(m, m, sms)[2] for m in rows] for name, sms in SMS.items()}
    saw = curves(rows, shares, "Large products fill the chip", "rows and columns", "useful share in %", alt)
saw

# %% [markdown]
# Now eight layers of real models, in the form that your functions take. **Predict** before you run the cell below:
# which of them gain on which GPU, if every input and weight has to be cast?

# %%
LAYERS = {
    "linear, 4096 to 4096, 4096 tokens": ("linear", [(4096, 4096), (4096, 4096)]),
    "the same, one token": ("linear", [(1, 4096), (4096, 4096)]),
    "linear, 64 to 64, 32 rows": ("linear", [(32, 64), (64, 64)]),
    "vocabulary, 768 to 50257, 1024 tokens": ("linear", [(1024, 768), (50257, 768)]),
    "attention scores, 16 heads of 128": ("matmul", [(16, 1024, 128), (16, 128, 1024)]),
    "conv 3 × 3, 256 channels, 64 images": ("conv2d", [(64, 256, 16, 16), (256, 256, 3, 3)]),
    "conv 1 × 1, 16 channels, 64 images": ("conv2d", [(64, 16, 64, 64), (16, 16, 1, 1)]),
    "residual add": ("add", [(4096, 4096), (4096, 4096)]),
}


# %%
def forecast(op, shapes, machine, cast):
    """Your forecast for a layer whose inputs are all cast, or none of them."""
    flops, elements = flops_bytes(op, shapes, size=1)
    return predicted_gain(flops, elements, cast * sum(math.prod(shape) for shape in shapes), machine)


def forecasts(cast):
    print(f"{'':38}" + "".join(f"{name:>18}" for name in MACHINES))
    for layer, (op, shapes) in LAYERS.items():
        gains = [forecast(op, shapes, machine, cast) for machine in MACHINES.values()]
        print(f"{layer:38}" + "".join(f"{gain:8.2f} {verdict:>9}" for gain, verdict in gains))


# %% tags=["nbval-check-output"]
with needs("03.flops_bytes", "03.predicted_gain"):
    forecasts(cast=True)

# %% [markdown]
# The same with tensors that are in 16 bits already. Which rows change their verdict, and why?

# %% tags=["nbval-check-output"]
with needs("03.flops_bytes", "03.predicted_gain"):
    forecasts(cast=False)

# %% [markdown]
# Last, this machine: your timer and your counts draw its roofline, with one thread if it is a CPU. A roof is a limit,
# so take the fastest of nine calls here, not the median. First the bandwidth, from a copy that reads and writes half a
# gibibyte on a GPU, an eighth of that on a CPU.

# %% tags=["measured"]
import time

from ampedu.timing import one_thread, synchronizer

gpu, synchronize = device != "cpu", synchronizer(device)
bandwidth = None
with needs("03.time_call"), one_thread():
    source = torch.ones(2**27 if gpu else 2**24, device=device)
    target = torch.empty_like(source)
    fastest = time_call(lambda: target.copy_(source), synchronize, time.perf_counter, warmup=3, repeats=9)[1]
    bandwidth = 2 * source.nbytes / fastest
    print(f"{bandwidth / 1e9:.1f} GB/s")

# %% [markdown]
# Then square products in two formats, as large as 50 ms for a product allow.


# %%
def measured(size, dtype):
    """(operations per byte, operations per second) of a square product on this machine."""
    a = torch.ones(size, size, device=device, dtype=dtype)
    fastest = time_call(lambda: a @ a, synchronize, time.perf_counter, warmup=3, repeats=9)[1]
    flops, moved = flops_bytes("matmul", [(size, size), (size, size)], size=a.element_size())
    return flops / moved, flops / fastest


# %% tags=["measured"]
formats, points = {"fp32": torch.float32, "bf16": torch.bfloat16}, []
with needs("03.time_call", "03.flops_bytes"), one_thread():
    for name, dtype in formats.items():
        speed = math.inf
        for size in (256, 512, 1024, 2048, 4096) if gpu else (64, 128, 256, 512, 1024):
            if 2 * size**3 / speed > 0.05:
                break
            intensity, speed = measured(size, dtype)
            points.append((f"{size} × {size}", name, intensity, speed))
            print(f"{name} {size:5} × {size:<5} {intensity:6.1f} FLOP per byte {speed / 1e9:9.1f} GFLOP/s")

# %% [markdown]
# The best product in each format is the height of its roof. If the card at the top names no unit for bf16, do not
# expect that roof to be the higher one. A small matrix stays in the cache of the chip, which is faster than its memory:
# such a point may lie above the slope.

# %% tags=["measured"]
from ampedu.plots import roofline
from ampedu.roofline import Roofline

mine = None
if points and bandwidth:
    peaks = {name: max(speed for _, form, _, speed in points if form == name) for name in formats}
    mine = roofline(Roofline("this machine", bandwidth, peaks), points)
mine

# %% [markdown]
# **Sources.** [Roofline](https://doi.org/10.1145/1498765.1498785): Williams, Waterman and Patterson, 2009 · [NVIDIA,
# Matrix Multiplication Background](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html):
# alignment, tiles and waves · [Ampere in
# depth](https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/): Tensor Cores, TF32, sparsity ·
# [torch.cuda.is_bf16_supported](https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_bf16_supported.html) ·
# [asynchronous execution](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution): why a timer has
# to wait.
#
# Back to [lesson 3](../notebooks/03_tensor_cores.ipynb), or on to lesson 4, where torch chooses the format for each
# operation.
