# %% [markdown]
# # 3 Tensor Cores and when they help
#
# The same switch makes one network several times faster and the next one slower. In this lesson you measure your own
# machine, and then you predict eight layers before you time them.
#
# **You will be able to** time code on a CPU or a GPU without fooling yourself · compute the arithmetic intensity of a
# layer and read a roofline · predict which layers gain from low precision · choose sizes that fill a GPU · say what
# TF32 rounds, and which flag decides.
#
# *45 minutes · after [lesson 1](01_bit_layouts.ipynb) · runs in 15 s on two cores · only 20 minutes? Read 3.1, 3.2,
# 3.4 and 3.5*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
machine = this_machine(device)
machine.card("Times are measured here. A gain is promised only where a matrix unit was found; else it is just printed.")

# %% [markdown]
# ## 3.1 One switch, two outcomes
#
# A **matrix unit** is a circuit that multiplies whole small matrices: Tensor Cores in NVIDIA's GPUs, AMX in some
# Intel CPUs. It reads 16-bit inputs. If your machine has none, you will see what happens then, which is just as good
# to know.
#
# The sizes follow the machine, so that nothing takes long.

# %%
import torch

low_name = "fp16" if device != "cpu" and machine.bf16 != "native" else "bf16"
low = {"fp16": torch.float16, "bf16": torch.bfloat16}[low_name]
unit = low_name in machine.matrix_dtypes  # a matrix unit for this format was found
n = 4096 if device != "cpu" else 1024 if unit else 128

# %% tags=["measured", "C52"]
from ampedu.timing import compare, speedup

torch.manual_seed(seed)
a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
a_low, b_low = a.to(low), b.to(low)
big = compare({"float32": lambda: a @ b, low_name: lambda: a_low @ b_low}, device)
for name, timing in big.items():
    print(f"{n} × {n} times {n} × {n} in {name}: {timing}")

# %% [markdown]
# Each line is a median, with the two quartiles in brackets: half of the samples lie between them. Now the gain.

# %% tags=["measured", "C52"]
gain_big, low_end, high_end = speedup(big["float32"], big[low_name])
found = "matrix unit found" if unit else "no matrix unit: no gain expected"
print(f"float32 time / {low_name} time = {gain_big:.2f} ({low_end:.2f} to {high_end:.2f}); {found}")
assert gain_big > 1.5 or not unit

# %% [markdown]
# **Predict.** The same machine, another workload: a network of twenty small layers, with autocast on.

# %%
from ampedu.widgets import quiz

quiz("03.small_network")

# %%
from torch import nn

network = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)]).to(device)
rows = torch.randn(64, 64, device=device)


def forward(enabled):
    with torch.autocast(torch.device(device).type, dtype=low, enabled=enabled):
        return network(rows)


# %% tags=["measured", "R10", "C01"]
small = compare({"float32": lambda: forward(False), "autocast": lambda: forward(True)}, device)
gain_small = speedup(small["float32"], small["autocast"])[0]
print(f"float32 {small['float32']}\nautocast {small['autocast']}\ngain {gain_small:.2f}, against {gain_big:.2f}")
assert gain_small < gain_big or not unit

# %% [markdown]
# **Explain.** Count what is called. Every operation passes through PyTorch's dispatcher, and a *dispatch mode* can
# look at each of them.

# %%
from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """Counts operations, and the bytes that they read and write. Views move nothing."""

    def __enter__(self):
        self.count, self.bytes = Counter(), 0
        return super().__enter__()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        if not op.is_view:
            self.count[op.overloadpacket.__name__] += 1
            self.bytes += sum(x.nbytes for x in (*args, result) if isinstance(x, torch.Tensor))
        return result


# %% tags=["nbval-check-output", "R10", "R14"]
for enabled in (False, True):
    with Calls() as calls, torch.no_grad():
        forward(enabled)
    print("autocast" if enabled else "float32 ", dict(calls.count))

# %% [markdown]
# Twenty products either way. Autocast adds 41 casts: twenty weights, twenty biases, one input. In a large product a
# cast hardly counts; here, on a GPU, every call costs more than its arithmetic, and on a CPU about as much. "AMP made
# my small model slower" is no bug. The same holds for big models that spend their time elsewhere: in gathers,
# scatters, norms.
#
# **How much can it be?** If products take the share $p$ of the time and become $s$ times faster, everything becomes
# $1 / (1 - p + p/s)$ times faster. Turn it around: which share does a promise need?

# %% tags=["nbval-check-output", "C01", "R14"]
for promised in (2, 3):
    share = (1 - 1 / promised) / (1 - 1 / 8)  # products become 8 times faster
    assert abs(1 / (1 - share + share / 8) - promised) < 1e-12
    print(f"{promised} times faster overall needs products in {share:.0%} of the time")
print(f"products in 30% of the time: {1 / (0.7 + 0.3 / 8):.2f} times faster, and {1 / 0.7:.2f} at the very best")

# %% [markdown]
# ## 3.2 Autopsy of a benchmark
#
# Here is how tutorials find out how fast a step is. There are at least five faults. Find them before you read on.


# %%
def time_per_step(model, loader, clock):
    start = clock()
    for step, batch in enumerate(loader):
        if step == 100:
            break
        model(batch)
    return (clock() - start) / 100


# %% [markdown]
# To see exactly how wrong it is we need a machine whose true speed is known. So build one: a toy GPU with a clock of
# its own. A call only puts work into a queue, and returns; that is how real GPUs behave. The work takes 10 ms, the
# call 20 µs, and the very first work takes a whole second, because kernels must be loaded and chosen.


# %%
class ToyGpu:
    def __init__(self):
        self.now, self.done_at, self.work_seconds = 0.0, 0.0, 1.0

    def clock(self):
        return self.now

    def work(self, batch=None):
        self.now += 20e-6
        self.done_at = max(self.done_at, self.now) + self.work_seconds
        self.work_seconds = 0.010

    def synchronize(self):
        self.now = max(self.now, self.done_at)


# %% [markdown]
# **Predict.** The loader has ten batches. True time: 10 ms.

# %%
quiz("03.broken_timer")

# %% tags=["nbval-check-output", "C35"]
loader = range(10)
gpu = ToyGpu()
reported = time_per_step(gpu.work, loader, gpu.clock)
print(f"{reported * 1e6:.1f} µs, {0.010 / reported:.0f} times too fast")

# %% [markdown]
# **Explain.** It is 5000 times too fast. Repair one fault at a time, and watch the number.

# %% tags=["nbval-check-output", "C35"]
gpu, steps = ToyGpu(), 0
for _batch in loader:
    gpu.work()
    steps += 1
print(f"1. divide by the steps that were made: {gpu.clock() / steps * 1e6:8.1f} µs")
gpu.synchronize()
print(f"2. wait until the work is done:        {gpu.clock() / steps * 1e6:8.1f} µs")
start = gpu.clock()  # the GPU is warm now, and idle
for _batch in loader:
    gpu.work()
gpu.synchronize()
print(f"3. warm up first, then start:          {(gpu.clock() - start) / steps * 1e6:8.1f} µs")

# %% [markdown]
# The last number is right: 10 ms, and a call of 20 µs shared by ten steps. Two faults cannot be seen with one number:
#
# - **4. No repeats.** One number says nothing about its own spread. Take several samples, report the median and the
#   quartiles, and alternate the variants, so that a busy minute hits all of them.
# - **5. One model for all variants.** A training benchmark changes what it measures. The second variant starts from
#   the weights that the first has left.

# %% tags=["nbval-check-output", "C35"]
torch.manual_seed(seed)
model, x = nn.Linear(8, 1).to(device), torch.randn(64, 8, device=device)
start_weight = model.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(x).square().mean().backward()  # variant 1 makes its first step
optimizer.step()
print("variant 2 starts where variant 1 started:", torch.equal(model.weight, start_weight))

# %% [markdown]
# A sixth is not in the code: a model that is too small to gain, as in 3.1, timed as if it stood for all.
#
# `ampedu.timing` does all of it: `measure` for one function, `compare` for several in turns. On a CPU it uses one
# thread, and counts CPU time, so that other programs disturb less. It takes any clock, and any function that waits,
# so it can time the toy GPU.

# %% tags=["nbval-check-output", "C35"]
from ampedu.timing import measure

gpu = ToyGpu()
timing = measure(gpu.work, clock=gpu.clock, synchronize=gpu.synchronize, min_seconds=0.2)
print(f"{timing.median * 1e3:.2f} ms, spread {timing.spread:.1%}, {len(timing.samples)} samples")
assert abs(timing.median / 0.01002 - 1) < 1e-6

# %% [markdown]
# Now the repaired benchmark for real: one training step, wide enough to have something to gain, a fresh copy of the
# model for each variant.

# %%
import copy

width = n // 2 if unit else 64
wide = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
inputs = torch.randn(width, width, device=device)


def training_step(enabled):
    own = copy.deepcopy(wide)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, dtype=low, enabled=enabled):
            loss = own(inputs).square().mean()
        loss.backward()
        optimizer.step()

    return step


# %% tags=["measured", "C01", "C35"]
steps = compare({"float32": training_step(False), "autocast": training_step(True)}, device)
gain = speedup(steps["float32"], steps["autocast"])
print(f"float32 {steps['float32']}\nautocast {steps['autocast']}")
print(f"gain {gain[0]:.2f} ({gain[1]:.2f} to {gain[2]:.2f})\n" + steps["float32"].note)

# %% [markdown]
# (float16 would need a `GradScaler` to train, as lesson 5 shows; for the time it hardly matters.)
#
# ## 3.3 Inside the matrix unit
#
# The unit holds a small tile of the result, $D = A \times B + C$. Move the slider. Each step adds one column of $A$
# times one row of $B$, and touches every number of the tile. After four steps the 4 × 4 product is complete: 64
# multiply-adds.

# %% tags=["C05"]
from ampedu.plots import tile_product
from ampedu.widgets import slider

alt = "Three 4 × 4 matrices: A and B in float16, and the float32 sums that grow with each step."
slider(tile_product, [0, 1, 2, 3, 4], 2, "step", alt)

# %% [markdown]
# "A Tensor Core does $D = AB + C$ on 4 × 4 matrices in one cycle." True for the first generation, as *throughput*: 64
# multiply-adds per clock, one tile leaves per clock although each takes longer. From the third generation on they do
# more. Check it: SMs (the GPU's processors) × Tensor Cores in each × multiply-adds × 2 operations × clock must give
# the datasheet's peak. FLOP is short for floating-point operation; a TFLOP/s is $10^{12}$ of them per second.

# %% tags=["nbval-check-output", "C05"]
from ampedu.device import TENSOR_CORES, gpu_table

table = {row["name"]: row for row in gpu_table()}
chips = {  # Tensor Cores per SM, multiply-adds per core and clock, boost clock in GHz (NVIDIA's whitepapers)
    "V100 SXM2": (8, 4 * 4 * 4, 1.53),
    "T4": (8, 64, 1.59),
    "A100 SXM4 40GB": (4, 256, 1.41),
    "H100 SXM5": (4, 512, 1.83),
}
for name, (cores, fma, ghz) in chips.items():
    peak, printed = table[name]["sms"] * cores * fma * 2 * ghz / 1e3, table[name]["dense_tflops"]["fp16_fp32acc"]
    print(f"{name:15} {fma:4} multiply-adds per clock: {peak:6.1f} TFLOP/s; datasheet {printed}")
    assert abs(peak / printed - 1) < 0.01

# %% [markdown]
# Two things make it *mixed* precision. The inputs are 16 bits wide, and **the products are exact**: 11 binary digits
# times 11 make at most 22, and float32 has 24. Try all of them.

# %% tags=["nbval-check-output", "C05"]
mantissas = torch.arange(1024, 2048, device=device).float()  # all float16 mantissas, with the hidden 1, as integers
products = mantissas[:, None] * mantissas
exact = torch.arange(1024, 2048, device=device)
print(f"{products.numel()} products, all exact: {torch.equal(products.long(), exact[:, None] * exact)}")

# %% [markdown]
# And **the sums are float32**. How much that matters you can see with numbers that need no rounding at all.
#
# **Predict.** A dot product of 4096 ones with 4096 ones, inputs in float16. One unit adds up in float32, one in
# float16.

# %%
quiz("03.accumulate")

# %% tags=["nbval-check-output", "C05"]
from ampedu.formats import round_to

sums = {"fp32": torch.zeros(()), "fp16": torch.zeros(())}
for _ in range(4096):
    sums = {name: round_to(total + 1.0 * 1.0, name) for name, total in sums.items()}
print({name: total.item() for name, total in sums.items()})
ones = torch.ones(1, 4096, dtype=torch.float16, device=device)
print("torch, float16 in and out:", (ones @ ones.T).item())

# %% [markdown]
# **Explain.** From 2048 on, float16's numbers lie 2 apart, so 2048 + 1 is a tie and falls back (lesson 2 has more).
# PyTorch's product says 4096: it adds up wider, and rounds once at the end. GeForce cards can add in float16 at twice
# the speed, which is where some advertised numbers come from.
#
# ### Generations
#
# What the Tensor Cores of each generation multiply, by *compute capability*: the version number of an NVIDIA GPU,
# which `torch.cuda.get_device_capability()` tells you. Before 7.0 there are none: on a P100 (6.0) autocast works and
# saves memory, but there is no matrix unit to gain speed from.

# %% tags=["nbval-check-output", "C06", "C51", "R11"]
for capability in ((3, 5), (6, 0), *TENSOR_CORES):
    generation, formats = TENSOR_CORES.get(capability, ("none", ()))
    names = [row["name"] for row in gpu_table() if row["capability"] == "{}.{}".format(*capability)]
    print("{}.{}".format(*capability), f"generation {generation}: {', '.join(formats)}", names[:2])

# %% [markdown]
# Pick a GPU. Look for three things: how much 16 bits gain over float32 and over TF32; what a GeForce gains from TF32;
# where the ridge lies, which 3.4 explains.

# %% tags=["C06", "C52"]
from ampedu.widgets import gpu_explorer

gpu_explorer("A100 SXM4 80GB")

# %% [markdown]
# "16-bit products are 2 to 8 times faster" is a sentence without a baseline. Over all GPUs in the table:

# %% tags=["nbval-check-output", "C52"]
peaks = [row["dense_tflops"] for row in gpu_table()]
over_fp32 = [p["fp16_fp32acc"] / p["fp32_nontensor"] for p in peaks]
over_tf32 = [p["fp16_fp32acc"] / p["tf32"] for p in peaks if p["tf32"]]
print(f"over float32: {min(over_fp32):.1f} to {max(over_fp32):.1f}")
print(f"over TF32:    {min(over_tf32):.1f} to {max(over_tf32):.1f}")
geforce = table["RTX 4090"]["dense_tflops"]
print(f"RTX 4090, sums in float16 over sums in float32: {geforce['fp16_fp16acc'] / geforce['fp16_fp32acc']:.1f}")

# %% [markdown]
# One more trap. Datasheets print the largest number that they can defend.

# %%
quiz("03.datasheet")

# %% tags=["nbval-check-output"]
advertised = {"H100 SXM5": ("bf16", 1979), "A100 SXM4 80GB": ("bf16", 624), "L4": ("bf16", 242)}
for name, (fmt, number) in advertised.items():
    dense = table[name]["dense_tflops"][fmt]
    print(f"{name:14} {fmt}: {number} printed, {dense} dense, ratio {number / dense:.2f}")

# %% [markdown]
# ## 3.4 Intensity and the roofline
#
# A layer does two things: it computes, and it moves bytes. Its **arithmetic intensity** is how many operations it
# does per byte. Multiplying $m \times k$ by $k \times n$ takes $2mnk$ operations, a multiplication and an addition
# each, and moves at least $mk + kn + mn$ numbers.

# %% tags=["nbval-check-output"]
from ampedu.roofline import flops_bytes

m = k = 1024
by_hand = (2 * m * k * 1024, (m * k + k * 1024 + m * 1024) * 4)
print(by_hand, flops_bytes("matmul", [(m, k), (k, 1024)], "fp32") == by_hand)

# %% [markdown]
# Eight layers, n = 1024, in two formats:


# %%
def eight_layers(n):
    side = n // 32 + 2
    return {
        "product": ("linear", [(n, n), (n, n)]),
        "one row": ("linear", [(1, n), (n, n)]),
        "tiny product": ("linear", [(64, 64), (64, 64)]),
        "convolution": ("conv2d", [(8, 64, side, side), (64, 64, 3, 3)]),
        "attention scores": ("matmul", [(8, n // 2, 64), (8, 64, n // 2)]),
        "softmax": ("softmax", [(n, n)]),
        "layer norm": ("layer_norm", [(n, n)]),
        "addition": ("add", [(n, n), (n, n)]),
    }


# %% tags=["nbval-check-output"]
for name, (op, shapes) in eight_layers(1024).items():
    full, half = (flops_bytes(op, shapes, dtype) for dtype in ("fp32", "bf16"))
    print(f"{name:17} {full.intensity:7.2f} FLOP per byte in fp32, {half.intensity:7.2f} in bf16")
    assert full.bytes == 2 * half.bytes

# %% [markdown]
# A machine has two speeds to match: the **peak** of its arithmetic, and the **bandwidth** of its memory. Their
# quotient is the **ridge**, in operations per byte. A layer left of the ridge waits for memory, and then 16 bits can
# give at most a factor of two, because half the bytes are moved. A layer right of it waits for arithmetic, and there
# a matrix unit shows what it can.
#
# And there is a third limit: a call takes some time, however small it is. Measure all three on your machine:

# %% tags=["measured"]
from ampedu.roofline import roofline

roof = roofline(device)
print(f"memory {roof.bandwidth / 1e9:.1f} GB/s (a copy)")
for name, peak in roof.peaks.items():
    print(f"{name}: {peak / 1e9:8.0f} GFLOP/s, ridge {roof.ridge(name):6.1f}, call {roof.overheads[name] * 1e6:.1f} µs")

# %% [markdown]
# These are not datasheet numbers. They are what PyTorch reaches here in a large product, on one thread if this is a
# CPU. (Where you see 16-bit speeds far *below* float32, PyTorch has no fast code for the format on this processor.)
#
# ### Does autocast halve the traffic?
#
# "Low precision halves the memory traffic." Count the bytes of one layer that is limited by memory: a single row
# through `Linear(1024, 1024)`, as when a language model writes one token.

# %%
layer = nn.Linear(1024, 1024, bias=False).to(device)
row = torch.randn(1, 1024, device=device)
converted = copy.deepcopy(layer).to(low)


def traffic(call):
    with Calls() as calls, torch.no_grad():
        call()
    return calls.bytes, dict(calls.count)


def with_autocast():
    with torch.autocast(torch.device(device).type, dtype=low):
        layer(row)


# %% tags=["nbval-check-output", "C03", "R12"]
variants = {"float32": lambda: layer(row), "autocast": with_autocast, "cast once": lambda: converted(row.to(low))}
moved = {name: traffic(call) for name, call in variants.items()}
for name, (size, calls) in moved.items():
    print(f"{name:9} {size / moved['float32'][0]:.2f} × the bytes, {calls}")

# %% [markdown]
# Autocast **doubles** the traffic of this layer: it reads the float32 weight (4 bytes), writes a 16-bit copy (2), and
# reads that again (2), in every region that is opened. The copy pays off only if it is used for many rows. So for
# inference convert the model once, and the bytes are halved. The same holds in training for everything that stays
# float32: parameters, gradients, the optimizer's step.
#
# ## 3.5 Eight layers: predict, then measure
#
# Which of the eight become **more than twice as fast** in 16 bits, on your machine? Two is the border on purpose:
# moving fewer bytes can give two at most, so more needs a matrix unit. You have the intensities and the ridges. Write
# `True` or `False`, then go on.

# %%
guess = {
    "product": None,
    "one row": None,
    "tiny product": None,
    "convolution": None,
    "attention scores": None,
    "softmax": None,
    "layer norm": None,
    "addition": None,
}

# %% [markdown]
# The roofline's own prediction: for each format the longest of arithmetic, memory and overhead, then the quotient.
# (Softmax, norm and addition do not run on a matrix unit: their arithmetic counts at float32's speed.)

# %% tags=["measured"]
layers = eight_layers(n)
predicted = {name: roof.gain(op, shapes, low_name) for name, (op, shapes) in layers.items()}
for name, (op, shapes) in layers.items():
    limits = [roof.limit(op, shapes, dtype) for dtype in ("fp32", low_name)]
    print(f"{name:17} limited by {limits[0]:10} in fp32, {limits[1]:10} in {low_name}: gain {predicted[name]:.2f}")

# %%
import torch.nn.functional as F

run = {"linear": F.linear, "conv2d": F.conv2d, "matmul": torch.matmul, "add": torch.add}
run["softmax"] = lambda x: F.softmax(x, -1)
run["layer_norm"] = lambda x: F.layer_norm(x, x.shape[-1:])


def time_layer(op, shapes):
    full = [torch.randn(shape, device=device) for shape in shapes]
    half = [x.to(low) for x in full]
    calls = {"fp32": lambda: run[op](*full), low_name: lambda: run[op](*half)}
    return compare(calls, device, min_seconds=0.06, max_samples=30)


# %% tags=["measured", "C01", "C52"]
timings = {name: time_layer(op, shapes) for name, (op, shapes) in layers.items()}
gains = {name: speedup(times["fp32"], times[low_name]) for name, times in timings.items()}
for name, (gain, low_end, high_end) in gains.items():
    times = timings[name]
    print(f"{name:17} {gain:5.2f} ({low_end:.2f} to {high_end:.2f})   {times['fp32']} → {times[low_name]}")

# %% tags=["measured"]
from ampedu import plots

points = []
for name, (op, shapes) in layers.items():
    for fmt in ("fp32", low_name):
        work = flops_bytes(op, shapes, fmt)
        points.append((name, fmt, work.intensity, work.flops / timings[name][fmt].median))
plots.roofline(roof, points, ("fp32", low_name))

# %% [markdown]
# Your score, and the roofline's:

# %% tags=["measured"]
truth = {name: gain[0] > 2 for name, gain in gains.items()}
answered = [name for name in guess if guess[name] is not None]
print(f"you: {sum(guess[name] == truth[name] for name in answered)} of {len(answered)} answered")
print(f"roofline: {sum((predicted[name] > 2) == truth[name] for name in truth)} of {len(truth)}")
print("more than twice as fast:", [name for name in truth if truth[name]] or "none; no matrix unit, no such gain")
assert gains["product"][0] > 1.5 or not unit

# %% [markdown]
# **Explain.** Look at where the points lie. With a matrix unit, the layers far to the right of the float32 ridge
# gain, and they gain the more, the more they compute per byte. The layers on the slope can gain two at best, and
# often gain less. In 16 bits the tiny product lies far below its roof: the call itself takes the time. (A point may
# lie a little above the slope, if its tensors fit into the cache.)
#
# A roofline is a ceiling and not a forecast. What it is good for is to know *beforehand* where there is nothing to
# win. And a busy machine can spoil any measurement: look at the quartiles before you believe a gain.
#
# ### A format can be slow for no reason of its own
#
# Reports of "bfloat16 is four times slower than float32" in convolutions were about missing kernels in one version of
# a library. No theory predicts that. Measure all formats, and write the versions next to the result. (cuDNN is NVIDIA's
# library for convolutions.)

# %% tags=["measured", "R15"]
image, kernel = (torch.randn(shape, device=device) for shape in layers["convolution"][1])
casts = {str(d): (image.to(d), kernel.to(d)) for d in (torch.float32, torch.bfloat16, torch.float16)}
convolutions = {name: lambda x=x, w=w: F.conv2d(x, w) for name, (x, w) in casts.items()}
for name, timing in compare(convolutions, device, min_seconds=0.05, max_samples=10).items():
    print(f"{name:15} {timing}")
print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version() if device != "cpu" else "not used")

# %% [markdown]
# ## 3.6 Sizes that fit
#
# A GPU cuts the result into **tiles**, for example of 256 × 128, and gives each tile to one of its SMs. Nothing is
# smaller than a tile, and all SMs start together: a **wave**. On a machine with 108 SMs (A100), 1792 × 1792 makes 7 ×
# 14 = 98 tiles, which is one wave.
#
# **Predict.** One more row and one more column.

# %%
quiz("03.one_more")

# %% tags=["nbval-check-output"]
from ampedu.tiles import padded, tiling

for size in (1792, 1793):
    cut = tiling(size, size, processors=table["A100 SXM4 80GB"]["sms"])
    print(f"{size}: {cut.tiles} tiles, {cut.waves} wave(s), {cut.useful:.1%} useful work")
    assert abs(cut.useful - size**2 / (cut.waves * 108 * 256 * 128)) < 1e-12

# %% [markdown]
# **Explain.** *Useful work* is the number of wanted results divided by the number that the waves have room for: waves
# × SMs × 256 × 128. The last row and column of tiles are nearly empty: 82 % of the results in the tiles are wanted.
# The second wave has 12 tiles for 108 SMs: 56 % of the places of both waves are taken. Together: 45 %. The product
# takes two waves instead of one.

# %% tags=["nbval-check-output"]
print(f"{cut.in_tiles:.1%} × {cut.in_waves:.1%} = {cut.useful:.1%}; tiles in the last wave: {cut.tiles - 108}")

# %%
alt = "The result matrix cut into tiles; color shows the wave, hatching the tiles that stick out."
slider(lambda n: plots.waves(tiling(n, n, 108)), [1536, 1792, 1793, 2048, 2560, 2561], 1793, "size", alt)

# %%
plots.useful_work(108, range(256, 6145, 16))

# %% [markdown]
# The larger the product, the less a wave more matters. (Libraries have several tile sizes and choose among them, so
# real curves are smoother. The teeth are real.) On a GPU the next cell measures it; elsewhere it shows a recorded
# run, if there is one.

# %% tags=["measured", "recorded-only"]
from ampedu import recorded

if torch.device(device).type == "cuda":
    times = {}
    for size in (1792, 1793, 1920, 2048):
        x = torch.randn(size, size, device=device, dtype=low)
        times[size] = measure(lambda x=x: x @ x, device)
    table_rows = [{"size": size, "µs": t.median * 1e6, "spread": t.spread} for size, t in times.items()]
    result = recorded.record("03.waves", f"Square products in {low_name}", table_rows, device=device)
    print(result)
else:
    recorded.show("03.waves")

# %% [markdown]
# ### Multiples of eight
#
# Tensor Cores read rows in pieces of 16 bytes: eight 16-bit numbers. Sizes that are multiples of 8 (on an A100 best
# of 64) keep them busy. The classic case is a vocabulary. GPT-2 has 50 257 tokens, an odd number.

# %% tags=["nbval-check-output", "R13"]
from ampedu.tiles import multiple_for

vocabulary = padded(50257, 64)
print(50257 % multiple_for(16), vocabulary, f"{vocabulary - 50257} more rows, {vocabulary / 50257 - 1:.2%}")
print("tiles:", tiling(4096, 50257, 108).tiles, "before,", tiling(4096, vocabulary, 108).tiles, "after")
assert multiple_for(16) == 8 and multiple_for(16, 128) == 64

# %% [markdown]
# Padding costs 47 rows that no token uses, 0.09 %, and not one tile. How much it gains depends on the GPU and on the
# library: since version 11 of cuBLAS, NVIDIA's for products, odd sizes use the Tensor Cores too, less well. Reports
# range from nothing to a lot: measure.
#
# 8-bit formats are stricter: their kernels *refuse* sizes that do not fit. Transformer Engine, NVIDIA's library for
# fp8, wants the product of all dimensions but the last divisible by 8 (by 16 in backward), and the last one by 16:

# %% tags=["nbval-check-output", "R08"]
for shape in ((896, 712), (1, 256), (896, 720)):
    ok = shape[0] % 8 == 0 and shape[1] % multiple_for(8) == 0
    print(shape, "fits" if ok else f"refused; pad to ({padded(shape[0], 8)}, {padded(shape[1], 16)})")

# %% [markdown]
# And 8 bits need large products even more than 16 do. Before it multiplies, an fp8 layer reads each input to find its
# largest value (2 bytes per number), reads it again and writes it in 8 bits (2 + 1). On an H100, by its datasheet:

# %% tags=["nbval-check-output", "R09"]
from ampedu.roofline import of_gpu

h100 = of_gpu(table["H100 SXM5"])
for size in (1024, 8192):
    saved = 2 * size**3 * (1 / h100.peaks["fp16"] - 1 / h100.peaks["fp8"])
    conversion = 2 * size**2 * 5 / h100.bandwidth
    print(f"{size}: at most {saved * 1e6:6.1f} µs saved, {conversion * 1e6:6.1f} µs to convert")

# %% [markdown]
# ## 3.7 TF32: float32 outside, ten mantissa bits inside
#
# TF32 needs no autocast and no cast: when a flag allows it, the Tensor Cores of an Ampere or newer GPU round float32
# inputs on their way in. What does that do to a product? Round the inputs ourselves, exactly:

# %% tags=["C10"]
torch.manual_seed(seed)
x, y = torch.randn(256, 256), torch.randn(256, 256)  # on the CPU
exact = x.double() @ y.double()
errors = {}
for name in ("fp32", "tf32", "fp16", "bf16"):
    product = round_to(x, name).double() @ round_to(y, name).double()  # inputs rounded, nothing else
    errors[name] = ((product - exact).abs().max() / exact.abs().max()).item()
print({name: f"{error:.0e}" for name, error in errors.items()})
assert errors["fp32"] == 0 and 0.5 < errors["tf32"] / errors["fp16"] < 2 and errors["bf16"] > 4 * errors["tf32"]

# %% [markdown]
# TF32 makes float16's error, because it keeps float16's ten mantissa bits. (We round to nearest. Cutting the bits off
# doubles the largest error of an input, and in a sum of equal signs it adds up.) "Nearly float32's accuracy" is
# false; a full float32 product errs, by its sums alone, far less:

# %% tags=["C10"]
rounded_sums = ((x @ y - exact).abs().max() / exact.abs().max()).item()
print(f"float32: {rounded_sums:.0e}, TF32: {errors['tf32']:.0e}")
assert errors["tf32"] > 50 * rounded_sums

# %% [markdown]
# ### On or off by default?
#
# You will read both. Ask the flags. For matrix products it is off, for convolutions and RNNs in cuDNN it is on:

# %% tags=["measured", "C62"]
flags = {"products": torch.backends.cuda.matmul, "convolutions": torch.backends.cudnn.conv}
print({name: flag.fp32_precision for name, flag in flags.items()}, "('none' and 'ieee': full float32)")
print("on this device, TF32 in products:", "possible" if machine.tf32 == "yes" else f"no hardware for it ({device})")

# %% [markdown]
# Convolutions are often fed the same shapes again and again. `cudnn.benchmark = True` lets cuDNN try its algorithms
# once per shape and keep the fastest; with shapes that change it tries again each time. It is off by default.

# %% tags=["measured", "recorded-only", "C39"]
print("cudnn.benchmark:", torch.backends.cudnn.benchmark)
if torch.device(device).type == "cuda":
    found = {}
    for chosen in (False, True):
        torch.backends.cudnn.benchmark = chosen
        found[chosen] = measure(lambda: F.conv2d(image, kernel), device).median * 1e6
    torch.backends.cudnn.benchmark = False
    table_rows = [{"cudnn.benchmark": chosen, "µs": time} for chosen, time in found.items()]
    print(recorded.record("03.cudnn_benchmark", "One convolution in float32", table_rows, device=device))
else:
    recorded.show("03.cudnn_benchmark")

# %% [markdown]
# ### Two APIs, one trap
#
# The old way is `allow_tf32 = True` or `torch.set_float32_matmul_precision("high")`. The new way is `fp32_precision =
# "tf32"`, one flag per backend and operation. They share state, up to a point:


# %%
def read(action):
    try:
        return action()
    except RuntimeError as error:
        return f"RuntimeError, {'mix of the legacy and new APIs' in str(error)}"


def states():
    matmul = torch.backends.cuda.matmul
    return {"fp32_precision": matmul.fp32_precision, "allow_tf32": read(lambda: matmul.allow_tf32)}


before = [torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision]
before_old = torch.get_float32_matmul_precision()

# %% tags=["nbval-check-output", "C38", "R102"]
torch.set_float32_matmul_precision("high")
print("old API alone:", states())
torch.set_float32_matmul_precision("highest")
torch.backends.cuda.matmul.fp32_precision = "tf32"
print("then the new: ", states())

# %% [markdown]
# One assignment by the new API, and *reading* the old flag raises: the two disagree, and PyTorch will not guess. Any
# library that only looks at `allow_tf32` fails then. So use one API in the whole program, and read `fp32_precision`,
# which never raises. Put the flags back as they were:

# %% tags=["nbval-check-output", "C38", "R102"]
torch.set_float32_matmul_precision(before_old)
torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before
print("old flag readable again:", states()["allow_tf32"] in (True, False))

# %% [markdown]
# ### The same switch on a CPU
#
# oneDNN, which multiplies on CPUs, has such a flag as well, with bfloat16 in the place of TF32. If your CPU has AMX,
# this is the effect live: float32 tensors in, float32 tensors out, and in between 8 binary digits.

# %% tags=["measured"]
flag = torch.backends.mkldnn.matmul
on_cpu = this_machine("cpu")
rounded = round_to(x, "bf16").double() @ round_to(y, "bf16").double()
flag.fp32_precision = "bf16"
product = (x @ y).double()
flag.fp32_precision = before[1]
size = exact.abs().max().item()
from_exact, from_rounded = ((product - other).abs().max().item() / size for other in (exact, rounded))
print(f"distance to the exact product {from_exact:.0e}, to the product of rounded inputs {from_rounded:.0e}")
assert "AMX" not in on_cpu.matrix_units or from_rounded < from_exact / 50

# %% [markdown]
# With AMX the result is the product of the *rounded* inputs, up to the rounding of float32 sums. Elsewhere the two
# distances tell whether the flag did anything: if not, the first is the small one.
#
# ## 3.8 Has this GPU bfloat16?
#
# **Predict.** A free Colab notebook runs on a T4, capability 7.5, with Tensor Cores of the second generation.

# %%
quiz("03.native_bf16")

# %% [markdown]
# We have no T4 here, but PyTorch's function is Python code that asks three questions. Answer them as a T4 would (it
# can *hold* bfloat16 tensors), and let the function conclude.

# %%
from types import SimpleNamespace
from unittest import mock


def on_a(major):
    answers = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda _=None: SimpleNamespace(major=major),
        "_check_bf16_tensor_supported": lambda _: True,
    }
    with mock.patch.multiple(torch.cuda, **answers), mock.patch.multiple(torch.version, cuda="13.0", hip=None):
        return torch.cuda.is_bf16_supported(), torch.cuda.is_bf16_supported(including_emulation=False)


# %% tags=["nbval-check-output", "C14", "C44", "R16", "R17"]
for gpu, major in {"V100": 7, "T4": 7, "A100": 8}.items():
    default, native = on_a(major)
    print(f"{gpu}: is_bf16_supported() {default}, including_emulation=False {native}")

# %% [markdown]
# **Explain.** The default counts *emulation*: PyTorch converts to float32, computes, converts back. `autocast("cuda",
# dtype=torch.bfloat16)` asks the same lenient question. Years ago it refused with "Current CUDA Device does not
# support bfloat16"; today a T4 or a V100 just runs slowly, and says nothing. So the sentence "bf16 on Volta falls
# back to float32" is half true: the tensors are bfloat16, the work is float32's and more. Ask
# `including_emulation=False`, or for a capability of at least 8.0. (That they are slow is from public reports; it was
# not run here.) `ampedu` does so:

# %% tags=["measured", "C14"]
print(machine.name, "→ bf16:", machine.bf16, "· matrix units:", machine.matrix_units or "none", machine.matrix_dtypes)

# %% [markdown]
# ### The GPUs that turn float16 into NaN
#
# GeForce GTX 1650 and 1660 say capability 7.5 and have no Tensor Cores. In many reports their float16 convolutions
# give NaN where every other GPU is fine. Training there means `enabled=False`. Before a long run on an unknown GPU,
# compare one layer with float32:


# %%
def half_is_sound(device):
    """Whether a float16 convolution on this device agrees with float32, to 1 % of the largest value."""
    torch.manual_seed(0)
    image, kernel = torch.randn(2, 16, 16, 16), torch.randn(16, 16, 3, 3) / 12
    right = F.conv2d(image, kernel)
    half = F.conv2d(image.half().to(device), kernel.half().to(device)).float().cpu()
    return bool(((half - right).abs().max() < 0.01 * right.abs().max()).item())


# %% tags=["nbval-check-output", "R18"]
print("float16 convolutions are sound:", half_is_sound(device))

# %% [markdown]
# (A NaN compares as false, so it is caught.)
#
# ## What to take away
#
# - A gain of more than two needs a matrix unit, and work that is limited by arithmetic. Memory-bound layers gain two at
#   most, small layers lose: casts and calls dominate.
# - Compute the intensity, compare it with the ridge, *then* measure: warm up, wait for the device, repeat, alternate,
#   report median and spread.
# - Products of float16 inputs are exact in float32 (of bfloat16 too, within float32's range), and the sums are float32.
#   That is the "mixed" in the unit.
# - Ask against which baseline. Over TF32, 16 bits gain two; over float32 up to thirty. And ask whether it is dense.
# - Multiples of 8, better 64. One row too many can cost a wave.
# - TF32 has float16's precision. Use one API for its flags.
# - A T4 says that it supports bfloat16. It emulates it.
#
# **Now you:** [lab 3](../labs/03_tensor_cores.ipynb). You write the timer, the roofline and the wave count.
#
# **Primary sources.** [Williams, Waterman, Patterson 2009][roofline]: the roofline model · [NVIDIA, Matrix
# Multiplication Background][matmul]: tiles, waves, alignment · [NVIDIA V100][volta] and [A100 whitepapers][ampere]:
# Tensor Cores, TF32 · [torch.utils.benchmark][benchmark] · [torch.backends][backends]: float32 precision
#
# [roofline]: https://doi.org/10.1145/1498765.1498785
# [matmul]: https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
# [volta]: https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf
# [ampere]: https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf
# [benchmark]: https://docs.pytorch.org/docs/stable/benchmark_utils.html
# [backends]: https://docs.pytorch.org/docs/stable/backends.html
