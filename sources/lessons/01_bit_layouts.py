# %% [markdown]
# # 1 Bit layouts
#
# A float is a short list of bits and a rule that turns them into a number. Learn the rule once, and you can say
# beforehand which gradient will vanish, which product will become infinite, and which two positions a model cannot tell
# apart.
#
# **You will be able to** decode a bit pattern by hand · compute the limits of a format from two small numbers · predict
# what a conversion rounds to, loses or makes infinite · choose between float16 and bfloat16 and say why · catch six
# false sentences that tutorials repeat.
#
# *45 minutes · after [lesson 0](00_start_here.ipynb) · runs in 10 s on two cores · only 20 minutes? Read 1.1, 1.2, 1.4,
# 1.6 and 1.7*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("The same numbers on every machine; one cell of 1.9 depends on the version of torch.")

# %% [markdown]
# ## 1.1 The same number, three times
#
# Ask three formats for one tenth, and print what they keep.

# %% tags=["nbval-check-output"]
import torch

for dtype in (torch.float32, torch.float16, torch.bfloat16):
    kept = torch.tensor(0.1, dtype=dtype, device=device)
    print(f"{kept.item():.17f}  {dtype}")

# %% [markdown]
# Nobody kept 0.1. Sixteen bits can be set in $2^{16} = 65\,536$ ways, so a 16-bit format is a list of at most 65 536
# numbers. One tenth is on none of the three lists, and each format gave the nearest number that it has. The rest of
# this lesson is about where those numbers lie.
#
# **Binary digits.** In 6.5 the 5 stands for five tenths: each place is worth a tenth of the place to its left. In
# binary each place is worth *half* of the place to its left: …, 4, 2, 1, then ½, ¼, ⅛. So 6.5 = 4 + 2 + ½ is written
# 110.1.
#
# **The exponent.** Scientific notation moves the point until one digit stands before it, and notes how far it moved:
# 6500 is $6.5 \times 10^3$, and $10^3$ is 10 · 10 · 10. Binary does the same with powers of two: 110.1 is $1.101
# \times 2^2$. The 3 and the 2 are the exponents. One less halves the power: $2^2 = 4$, $2^1 = 2$, $2^0 = 1$, then
# $2^{-1}$ = ½, $2^{-2}$ = ¼. So an exponent of 0 moves nothing, and a negative one makes a number small.

# %% tags=["nbval-check-output"]
behind_the_point = 1 / 2 + 0 / 4 + 1 / 8  # .101
print((1 + behind_the_point) * 2**2)

# %% [markdown]
# The digit before the point is always 1, because a binary digit that is not 0 is 1. (Zero is the exception; it gets its
# turn in 1.2.) Nobody needs to store what is always the same. That leaves three fields:
#
# - the **sign**: one bit, 1 for negative;
# - the **exponent**: how far the point moved;
# - the **mantissa**: the bits behind the point. (Some books say *fraction* or *significand*; here, mantissa always
#   means the stored bits.)
#
# From here on the formats have short names: fp32 is float32, fp16 is float16 (in PyTorch also *half*), bf16 is
# bfloat16. tf32 is not a dtype but something that GPUs do with float32; 1.4 comes to it.

# %%
from ampedu.plots import bit_layout

bit_layout(["fp32", "tf32", "bf16", "fp16"])

# %% [markdown]
# One detail is missing. The point moves to the left for small numbers, so exponents can be negative, but the field
# holds only bits. The cure is to add a constant, the **bias**. fp16 has 5 exponent bits and a bias of 15: exponent 2 is
# stored as 2 + 15 = 17, exponent −3 as −3 + 15 = 12.

# %% [markdown]
# ## 1.2 Decode by hand
#
# `view` hands out the same 16 bits as an integer. Nothing is converted.

# %% tags=["nbval-check-output"]
x = torch.tensor(6.5, dtype=torch.float16, device=device)
code = x.view(torch.int16).item()
bits = f"{code:016b}"
print("sign", bits[0], " exponent", bits[1:6], " mantissa", bits[6:])

# %% [markdown]
# Now backwards: exponent field minus bias, mantissa behind a leading 1.

# %% tags=["nbval-check-output"]
exponent = int(bits[1:6], 2) - 15
mantissa = int(bits[6:], 2) / 2**10
value = (1 + mantissa) * 2.0**exponent
print(f"(1 + {mantissa}) × 2^{exponent} = {value}")
assert value == 6.5

# %% [markdown]
# This is not PyTorch's private rule. It is the international standard for floats, **IEEE 754**. Python's `struct`
# knows float16 as the letter `e`, and gives the same 16 bits. (`0x` marks a number in base 16, `0b` one in base 2: a
# digit of the first stands for four bits.)

# %% tags=["nbval-check-output"]
import struct

(same_code,) = struct.unpack(">H", struct.pack(">e", 6.5))
print(same_code == code, hex(code))

# %% [markdown]
# **Predict.** Your turn. Decode it in your head or on paper, and commit, before you run the cell after the question.

# %%
from ampedu.widgets import quiz

quiz("01.one")

# %% tags=["nbval-check-output"]
pattern = torch.tensor(0b0_01111_0000000000, dtype=torch.int16, device=device)
print(pattern.view(torch.float16).item())

# %% [markdown]
# **Explain.** Field 15 minus bias 15 is exponent 0, and an empty mantissa leaves the hidden 1: $1.0 \times 2^0$.
#
# ### Two exponents are reserved
#
# With a hidden 1 there is no way to write zero. So two values of the exponent field mean something else:
#
# | exponent field | mantissa | meaning |
# |---|---|---|
# | all zeros | 0 | zero |
# | all zeros | anything else | a **subnormal**: no hidden 1, smallest exponent: $0.m \times 2^{1-\text{bias}}$ |
# | all ones | 0 | infinity |
# | all ones | anything else | NaN, "not a number" |

# %% tags=["nbval-check-output"]
from ampedu.formats import decode, fields

for code in (0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00):
    part = fields(code, "fp16")
    print(f"{code:016b}  {part.kind:9}  {decode(code, 'fp16'):<14.9g}  {part.formula}")

# %% [markdown]
# Read the left column as plain integers: they grow, and so do the values. That holds for all of them, from zero to
# infinity. The next larger float is the next integer, which is why sorting and stepping floats is cheap.

# %% tags=["nbval-check-output"]
codes = torch.arange(0x7C00 + 1, dtype=torch.int16, device=device)  # 0 … infinity
values = codes.view(torch.float16).float()
print(len(codes), "patterns, each larger than the one before:", bool((values.diff() > 0).all()))

# %% [markdown]
# ## 1.3 Turn the bits yourself
#
# Each button is a bit: click it, or use the keys named below the row. You can also type a number, choose another format
# or press a preset. The sentence under the bits says what happened; the table says what two other formats make of the
# same number. (One of them, e4m3fn, has only eight bits; it gets its turn in 1.9.)
#
# Three things to find with the bits alone: the smallest number above zero; what the sign bit does to zero; one third,
# as near as you can get (then type `1/3` to see how near you came). The presets 2049 and 65520 come back in 1.5 and
# 1.7.

# %%
from ampedu.widgets import bit_explorer

bit_explorer("fp16", 0.1, compare=("bf16", "e4m3fn"))

# %% [markdown]
# ## 1.4 Two numbers make a format
#
# Everything about a format by the rules of IEEE 754 follows from how many bits the exponent and the mantissa get.

# %%
import math


def limits(exponent_bits, mantissa_bits):
    """Largest number, smallest normal and subnormal, gap above 1, decimal digits."""
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-mantissa_bits
    return {
        "max": (2 - eps) * 2.0**bias,  # mantissa all ones, largest exponent that is not reserved
        "min_normal": 2.0 ** (1 - bias),
        "min_subnormal": eps * 2.0 ** (1 - bias),
        "eps": eps,
        "digits": (mantissa_bits + 1) * math.log10(2),  # + 1: the hidden bit counts
    }


# %% [markdown]
# PyTorch's own table, `torch.finfo`, must agree.

# %% tags=["nbval-check-output"]
layouts = {"fp32": (8, 23), "tf32": (8, 10), "bf16": (8, 7), "fp16": (5, 10), "e5m2": (5, 2)}
dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "e5m2": torch.float8_e5m2}
for name, dtype in dtypes.items():
    ours, theirs = limits(*layouts[name]), torch.finfo(dtype)
    assert (ours["max"], ours["min_normal"], ours["eps"]) == (theirs.max, theirs.smallest_normal, theirs.eps)
print("torch.finfo agrees on", ", ".join(dtypes))

# %% tags=["nbval-check-output", "C07", "C08"]
from IPython.display import Markdown


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))


head = ["format", "exponent bits", "mantissa bits", "max", "min normal", "min subnormal", "gap above 1", "digits"]
rows = []
for name, (e, m) in layouts.items():
    row = limits(e, m)
    numbers = [f"{row[key]:.5g}" for key in ("max", "min_normal", "min_subnormal", "eps")]
    rows.append([f"**{name}**", e, m, *numbers, f"{row['digits']:.1f}"])
table(head, rows)

# %% [markdown]
# Compare the rows. The exponent bits decide how far a format reaches, up and down: **range**. (The mantissa moves the
# ends only a little.) The mantissa bits decide how fine it is: **precision**. fp16 ends at 65 504 with 3.3 decimal
# digits, bf16 at $3.39 \cdot 10^{38}$ with 2.4.
#
# What is 0.3 of a digit? Only a conversion: 11 binary digits are $11 \cdot \log_{10} 2$ decimal ones. How many can you
# trust? Take every number with $n$ digits, write it into the format, and read it back: how many come back unharmed?

# %% tags=["nbval-check-output", "C08"]
for dtype, digits in ((torch.float16, 3), (torch.float16, 4), (torch.bfloat16, 2), (torch.bfloat16, 3)):
    scale = 10 ** (digits - 1)
    number = torch.arange(scale, 10 * scale, device=device).double() / scale  # 1.00 … 9.99 for three digits
    back = number.float().to(dtype).double()
    unharmed = ((back * scale).round() == (number * scale).round()).sum().item()
    print(f"{dtype}: {digits} digits, {unharmed} of {len(number)} come back")

# %% [markdown]
# Three digits survive in fp16, two in bf16. That holds for normal numbers of any size, since the guarantee is $\lfloor
# m \log_{10} 2 \rfloor$ digits for $m$ mantissa bits. The next digit is sometimes right: never rely on it.
#
# **Predict.** A sentence from a tutorial. The table above holds the answer; so do the bit layouts in 1.1.

# %%
quiz("01.more_range")


# %% tags=["nbval-check-output", "C58"]
def code_of(x, dtype):
    return torch.tensor(x, dtype=dtype, device=device).view(torch.int16).item()


for dtype in (torch.float16, torch.bfloat16):
    count = code_of(2.0, dtype) - code_of(1.0, dtype)
    print(f"{dtype}: {count:4} numbers from 1 up to 2, max {torch.finfo(dtype).max:.4g}")

# %% [markdown]
# **Explain.** The first half is true, the second is false: bf16 has an eighth of fp16's numbers between 1 and 2. Both
# have 16 bits, and what the exponent gets, the mantissa lacks. (From 1 to 2 is a **binade**: the numbers that share one
# exponent. Every binade of normal numbers holds equally many.)

# %% tags=["C07"]
from ampedu.plots import range_precision

range_precision(["fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3fn"])

# %% [markdown]
# Now move the border yourself. Sixteen bits, one for the sign; the slider gives some of the others to the exponent (5:
# fp16, 8: bf16). The width of the bar is the range in binades, its height the numbers in each of them. **The area
# hardly changes**: you pay for range with precision.

# %%
from matplotlib.figure import Figure


def border(exponent_bits):
    mantissa_bits = 15 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.bar(0.5, 2**mantissa_bits, width=2 * bias, color="#0072B2")
    axes.set_xlim(-140, 140)
    axes.set_ylim(0, 2200)
    axes.set_xlabel("exponent (one unit is one binade)")
    axes.set_ylabel("numbers in a binade")
    known = {5: "fp16: ", 8: "bf16: "}.get(exponent_bits, "")
    axes.set_title(f"{known}{2 * bias} binades × {2**mantissa_bits} numbers = {2 * bias * 2**mantissa_bits:,}")
    return figure


# %%
from ampedu.widgets import slider

alt = "A bar: wide and low with many exponent bits, narrow and high with few. Its area hardly changes."
slider(border, [4, 5, 6, 7, 8], 5, "exponent bits", alt)

# %% [markdown]
# ### Almost float32's range, and exactly float16's precision
#
# Two sentences that you will meet. The first: "bf16 has exactly the range of float32." The exponents are the same, the
# ends are not.

# %% tags=["nbval-check-output", "C09"]
fp32, bf16 = limits(8, 23), limits(8, 7)
print(f"max            {bf16['max']:.4e} against {fp32['max']:.4e}")
print(f"min subnormal  {bf16['min_subnormal']:.1e} against {fp32['min_subnormal']:.1e}")
print("3.4e38 in bf16:", torch.tensor(3.4e38, device=device).bfloat16().item())

# %% [markdown]
# A finite float32 became infinite. It rarely matters in training; it does matter in the sentence.
#
# The second: "TF32 is a 19-bit format with about the accuracy of float32." TF32 is what the Tensor Cores of an NVIDIA
# GPU since Ampere (2020) make of float32 inputs when you allow it; lesson 3 is about them. Ask what $1 + 2^{-12}$
# becomes. (That is less than half a gap above 1: rounding to the nearest and cutting agree.) `FORMATS` is the table
# of 1.4 for all formats of this course; `round_to` rounds a float32 tensor to any of them, and you will see how in
# 1.5.

# %% tags=["nbval-check-output", "C10"]
from ampedu.formats import FORMATS, round_to

x = torch.tensor(1 + 2**-12, device=device)
for name in ("fp32", "tf32", "fp16"):
    print(f"{name}: {round_to(x, name).item()}")
assert FORMATS["tf32"].mantissa_bits == FORMATS["fp16"].mantissa_bits == 10
assert FORMATS["tf32"].exponent_bits == FORMATS["fp32"].exponent_bits == 8

# %% [markdown]
# TF32 has float32's range and float16's precision: 1 + 8 + 10 = 19 bits. And nobody stores it. A tensor stays float32
# in memory, so TF32 saves no bytes; PyTorch has no dtype for it.

# %% tags=["nbval-check-output", "C10"]
floats = sorted({str(d) for d in vars(torch).values() if isinstance(d, torch.dtype) and d.is_floating_point})
print("dtypes for TF32:", [name for name in floats if "tf32" in name or "19" in name])

# %% [markdown]
# ## 1.5 Round to nearest, ties to even
#
# A number that is not on the list goes to the nearest one that is. The gap between neighbors is called an **ulp** (unit
# in the last place), so the error is at most half an ulp. From 2048 to 4096 the ulp of fp16 is 2: the odd numbers lie
# exactly in the middle. Where do they go?

# %% tags=["nbval-check-output"]
odd = torch.tensor([2049.0, 2051.0, 2053.0, 2055.0], device=device)
print(odd.half().tolist())

# %% [markdown]
# Down, up, down, up. A **tie** goes to the neighbor whose last mantissa bit is 0, the even one. If ties always went up,
# every sum would drift upwards. To even, they cancel: over all 1024 ties in this binade the mean error is zero.

# %% tags=["nbval-check-output"]
odd = torch.arange(2049, 4096, 2, device=device).float()
error = odd.half().float() - odd
print("largest", error.abs().max().item(), " mean", error.mean().item())

# %% [markdown]
# Both lists around 2048. At a power of two, the tall marks, the gap doubles; and bf16's gaps are eight times those of
# fp16.

# %%
from ampedu.plots import number_line

number_line(["fp16", "bf16"], 2032, 2096)

# %% [markdown]
# ### bfloat16 is float32, cut and rounded
#
# bf16 has the exponent of float32, so a bf16 is the upper half of a float32. It is tempting to convert by cutting (`>>
# 16` drops 16 bits on the right, `<< 16` puts zeros there). That always rounds toward zero, and it is not what PyTorch
# does:

# %% tags=["nbval-check-output"]
x = torch.tensor([0.1], device=device)
cut = (x.view(torch.int32) >> 16 << 16).view(torch.float32)
print("cut", cut.item(), " nearest", x.bfloat16().item())

# %% [markdown]
# To the nearest takes one addition before the cut: just under half of what will be cut off, plus one if the last bit
# that stays is 1. A carry runs into the exponent by itself, because codes are in the order of their values.


# %%
def to_bfloat16(x):
    """Codes of the nearest bfloat16, ties to even. x: float32 without NaN."""
    bits = x.view(torch.int32)
    last_kept = (bits >> 16) & 1
    return (bits + 0x7FFF + last_kept) >> 16


# %% [markdown]
# Three lines against PyTorch, on a million random numbers of many sizes, and then against `round_to`, which does this
# for every format.

# %% tags=["nbval-check-output"]
torch.manual_seed(seed)
x = torch.randn(1_000_000, device=device) * 2.0 ** torch.randint(-130, 120, (1_000_000,), device=device)
print(torch.equal(to_bfloat16(x).to(torch.int16), x.bfloat16().view(torch.int16)))
print(torch.equal(round_to(x, "bf16"), x.bfloat16().float()))

# %% [markdown]
# ### Rounding twice is not rounding once
#
# Take a number a little above a tie of bf16. Straight to bf16 it goes up. By way of fp16 it first loses the "little
# above", becomes an exact tie, and goes down.

# %% tags=["nbval-check-output"]
x = torch.tensor(1 + 2**-8 + 2**-12, device=device)
print("once ", x.bfloat16().item())
print("twice", x.half().bfloat16().item())

# %% [markdown]
# So never go from one 16-bit format to another: convert from the float32 original.
#
# ## 1.6 The lower edge: subnormals
#
# **Predict.** The smallest positive float16 is $2^{-24} \approx 5.96 \cdot 10^{-8}$, the second row that we decoded in
# 1.2. Gradients do get smaller than that.

# %%
quiz("01.below_smallest")

# %% tags=["nbval-check-output", "C55"]
gradient = torch.tensor([3.1e-8, 2.0**-25, 2.9e-8], device=device)
print(gradient.half().tolist())
assert 2.9e-8 < 2.0**-25 < 3.1e-8

# %% [markdown]
# **Explain.** Rounding goes to the nearest, also here. The two candidates are 0 and $2^{-24}$, and the middle is
# $2^{-25} \approx 2.98 \cdot 10^{-8}$. Above the middle a gradient is rounded *up*, by up to a factor of two; exactly
# in the middle the tie goes to the even one (1.5 has the rule), which is 0. "Everything below $6 \cdot 10^{-8}$
# becomes zero" is wrong by a factor of two.
#
# A second sentence of this kind: "below $6.1 \cdot 10^{-5}$ float16 flushes to zero." That is the smallest *normal*
# number. Below it lie 1023 subnormals.

# %% tags=["nbval-check-output", "C56"]
smallest_normal = limits(5, 10)["min_normal"]
print("smallest normal", smallest_normal, " subnormals", int(((values > 0) & (values < smallest_normal)).sum()))
for exact in (1e-5, 1e-6, 1e-7):
    kept = torch.tensor(exact, device=device).half().item()
    print(f"{exact:.0e} is kept as {kept:.3e}, error {abs(kept - exact) / exact:.2%}")

# %% [markdown]
# Nothing is flushed; it fades. Between all subnormals the gap is the same, so the relative error grows as numbers get
# smaller. The picture shows it for a format small enough to draw: equal steps near zero, then steps that double with
# each binade.

# %% tags=["C56"]
from ampedu.plots import number_line

number_line(["e4m3fn"], 0, 2**-4)

# %% [markdown]
# bf16 has its subnormals too, but its smallest normal number is $1.2 \cdot 10^{-38}$. Gradients hardly ever get there.
# This is why float16 needs loss scaling and bfloat16 as a rule does not: [lesson 5](00_start_here.ipynb#The-map) is
# about that.
#
# ## 1.7 The upper edge: infinity
#
# The largest float16 is 65 504. The next number would be 65 536, so the middle is 65 520.

# %% tags=["nbval-check-output"]
edge = torch.tensor([65504.0, 65519.99, 65520.0], device=device)
print(edge.half().tolist())
assert (65504 + 65536) / 2 == 65520

# %% [markdown]
# Below the middle, back to 65 504. In the middle the even neighbor would be 65 536, which does not exist: infinity
# takes its place.
#
# **Predict.** The same edge, reached by a product.

# %%
quiz("01.ten_thousand_squared")

# %% tags=["nbval-check-output", "C57"]
a = torch.tensor(10_000.0, dtype=torch.float16, device=device)
square = a * a
print(square.item(), " is NaN:", square.isnan().item())

# %% [markdown]
# **Explain.** $10^8$ is too large, so it is infinite. That is not NaN: infinity still has a place in the order, above
# all numbers. NaN comes one step later, when infinity is subtracted from itself, divided by itself or multiplied by
# zero. In a log you see the NaN; the culprit is the infinity before it.

# %% tags=["nbval-check-output", "C57"]
print((square - square).item(), (square * 0).item(), (square / square).item())
print("1 / infinity =", (1 / square).item())

# %% [markdown]
# ### The same overflow, with and without an error
#
# $-10^9$ is a popular constant for masks. It does not fit into float16, but whether you are told depends on the
# function.


# %%
def attempt(action, *arguments):
    try:
        return action(*arguments).tolist()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def assign(x, value):
    x[0] = value
    return x


# %% tags=["R04"]
x = torch.ones(2, dtype=torch.float16)  # on the CPU: where the line runs is an implementation detail
mask = x > 0
calls = {
    "x.fill_(v)": lambda v: x.clone().fill_(v),
    "torch.full((2,), v, dtype=x.dtype)": lambda v: torch.full((2,), v, dtype=x.dtype),
    "x.clamp(min=v)": lambda v: x.clamp(min=v),
    "x.masked_fill(mask, v)": lambda v: x.masked_fill(mask, v),
    "torch.where(mask, v, x)": lambda v: torch.where(mask, v, x),
    "x[0] = v": lambda v: assign(x.clone(), v),
    "torch.tensor([v], dtype=x.dtype)": lambda v: torch.tensor([v], dtype=x.dtype),
    "x * v": lambda v: x * v,
}
results = {call: attempt(action, -1e9) for call, action in calls.items()}
assert [isinstance(result, str) for result in results.values()] == [True] * 4 + [False] * 4
table(["v = -1e9", "result"], [[f"`{call}`", result] for call, result in results.items()])

# %% [markdown]
# The first four compare the Python number with the range of the dtype before they use it. The last four convert it or
# compute with it, and follow IEEE 754: infinity. There are finer surprises. A number that would fit after rounding is
# refused; and on a CPU, `full` and `fill_` skip the check if the tensor has a single element.

# %% tags=["R04"]
print(torch.tensor([65510.0, 65510.0]).half().tolist())
print(attempt(lambda: torch.full((2,), 65510.0, dtype=torch.float16)))
print(attempt(lambda: torch.full((1,), -1e9, dtype=torch.float16)))

# %% [markdown]
# The cure for masks works for every dtype: `torch.finfo(x.dtype).min`.
#
# ## 1.8 Whole numbers
#
# **Predict.** Floats hold whole numbers too: positions of tokens, indices, labels, time steps. All of them?

# %%
quiz("01.positions")

# %% tags=["nbval-check-output", "R02"]
positions = torch.arange(2048, device=device)
print(positions.bfloat16().float().unique().numel())
print(positions[254:262].bfloat16().tolist())

# %% [markdown]
# **Explain.** Seven mantissa bits and the hidden one make 8 binary digits: enough for all $2^8$ whole numbers below
# 256, and 256 itself is a power of two. From there on the ulp is 2, from 512 on it is 4. That leaves the 257 numbers 0
# … 256, and 128 for each of the three doublings up to 2048: 257 + 3 · 128 = 641.

# %% tags=["nbval-check-output", "R02"]
number = torch.arange(4096, device=device).float()
for dtype in (torch.bfloat16, torch.float16):
    lost = number[number.to(dtype).float() != number]
    print(f"{dtype}: the first whole number that is lost is {int(lost[0])}")
print("257 + 3 · 128 =", 257 + 3 * 128)

# %% [markdown]
# Up to 256 and 2048 every whole number is exact; beyond, only some. `model.to(torch.bfloat16)` converts every
# floating-point buffer too, and some models keep positions or frequencies in one. Keep those in float32, and positions,
# labels and indices in an integer dtype. Lab 1 has such a bug for you to repair.
#
# ## 1.9 Eight bits and fewer
#
# With so few bits, every pattern is precious. These formats differ in what they give up.

# %% tags=["nbval-check-output"]
small = ["e5m2", "e4m3fn", "e4m3fnuz", "e3m2", "e2m3", "e2m1", "e8m0"]
rows = []
for name in small:
    f = FORMATS[name]
    finite = sum(math.isfinite(decode(code, name)) for code in range(2**f.bits))
    special = ["yes" if has else "no" for has in (f.has_inf, f.has_nan)]
    rows.append([f"**{name}**", f.bits, finite, f"{f.max:.5g}", f"{f.eps:.4g}", *special])
table(["format", "bits", "finite patterns", "max", "gap above 1", "infinity", "NaN"], rows)

# %% [markdown]
# - **e5m2** is a small fp16, with all the rules of 1.2. It is meant for gradients, which need range.
# - **e4m3fn** ("fn": *finite, with NaN*) uses the top exponent for ordinary numbers. It has no infinity, and NaN only
#   where all bits but the sign are ones. The rule of 1.4 would end it at 240; it ends at 448. It is meant for weights
#   and activations. **e4m3fnuz** ("uz": *unsigned zero*) is the cousin on some AMD GPUs.
# - **e3m2**, **e2m3** and **e2m1** have no infinity and no NaN at all. e2m1, better known as FP4, is a list that you
#   can learn by heart.
# - **e8m0** has no sign, no mantissa and no zero: only powers of two. It is not for values, but for the *scale* that a
#   block of 32 values shares.

# %% tags=["nbval-check-output"]
print("e4m3, by the rule of 1.4:", limits(4, 3)["max"], " e4m3fn:", FORMATS["e4m3fn"].max)
print("FP4:", [decode(code, "e2m1") for code in range(8)])

# %% [markdown]
# What does a format without infinity do with a number that is too large? It can **saturate** (stop at its maximum) or
# answer NaN. For e4m3fn PyTorch changed its mind: up to 2.11 the conversion gave NaN, since 2.12 it saturates, even
# from infinity. This cell tells you which one you have.

# %% tags=["R07"]
too_large = torch.tensor([448.0, 465.0, 10_000.0, math.inf])  # on the CPU
kept = too_large.to(torch.float8_e4m3fn).float()
saturates = torch.__version__ >= (2, 12)
expected = [448.0] * 4 if saturates else [448.0, math.nan, math.nan, math.nan]
torch.testing.assert_close(kept, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)
print(f"torch {'since 2.12' if saturates else 'before 2.12'}: {kept.tolist()}")

# %% tags=["nbval-check-output", "R07"]
print("e5m2:", torch.tensor([57344.0, 61439.0, 61440.0, math.inf]).to(torch.float8_e5m2).float().tolist())

# %% [markdown]
# e5m2 has an infinity and uses it. None of this is harmless: saturation goes on with a wrong number, infinity and NaN
# spread. So divide by a scale *before* the conversion; lesson 11 shows how.
#
# ## 1.10 If you knew all this
#
# Three facts that surprise people who read floats for a living.
#
# **How many NaNs are there?** Count the patterns that are not equal to themselves.

# %% tags=["nbval-check-output"]
patterns = torch.arange(65536).to(torch.int16)
for dtype in (torch.float16, torch.bfloat16):
    v = patterns.view(dtype)
    print(f"{dtype}: {(v != v).sum().item()}")
for name in ("e4m3fn", "e4m3fnuz", "e2m1"):
    v = [decode(code, name) for code in range(2 ** FORMATS[name].bits)]
    print(f"{name}: {sum(x != x for x in v)}")

# %% [markdown]
# fp16 spends 2046 of its 65 536 patterns on NaN, about every thirty-second; bf16 only 254, because a NaN is a full
# exponent with any mantissa but zero, and bf16 has fewer mantissas. The fnuz formats have a single NaN, and it sits
# where −0 would be:

# %% tags=["nbval-check-output"]
print(f"fp16   {decode(0x8000, 'fp16')}\ne4m3fn {decode(0x80, 'e4m3fn')}\nfnuz   {decode(0x80, 'e4m3fnuz')}")

# %% [markdown]
# **PyTorch itself rounds twice.** Its half types are built from float32, so a float64 passes through float32 on its
# way. Compare with the exact answer: `encode` goes from float64 to the code in one step.

# %% tags=["nbval-check-output"]
from ampedu.formats import encode

x = 1 + 2**-8 + 2**-30  # a little above a tie of bf16, by less than float32 can see
print("nearest bfloat16:", decode(encode(x, "bf16"), "bf16"))
print("torch           :", torch.tensor(x, dtype=torch.float64).bfloat16().item())

# %% [markdown]
# **Cutting is biased, rounding is not.** On random numbers between 1 and 2, cutting float32 to bf16 loses a little more
# than a quarter of a percent on average. Rounding to nearest makes errors too, but on average they cancel.

# %%
torch.manual_seed(seed)
x = 1 + torch.rand(1_000_000, device=device)  # one binade
cut = (x.view(torch.int32) >> 16 << 16).view(torch.float32)
loss_by_cut = ((x - cut) / x).double().mean().item()
loss_by_rounding = ((x - round_to(x, "bf16")) / x).double().mean().item()
print(f"cut {loss_by_cut:.4%}, rounded {abs(loss_by_rounding):.4%}")
assert 0.0025 < loss_by_cut < 0.0029 and abs(loss_by_rounding) < 1e-4

# %% [markdown]
# ## What to take away
#
# - A float is sign, exponent, mantissa: $(-1)^s \times 1.m \times 2^{\text{field} - \text{bias}}$. All-zero and all-one
#   exponents are special.
# - Exponent bits buy range, mantissa bits buy precision, and 16 bits do not buy both. fp16: 65 504 and 3 digits. bf16:
#   $3.4 \cdot 10^{38}$ and 2 digits.
# - Rounding goes to the nearest, ties to even, down to the subnormals: float16 cuts to zero at $2^{-25}$, not at
#   $2^{-24}$ or $2^{-14}$.
# - Overflow gives infinity. NaN is what happens next. Some functions raise instead, and e4m3fn saturates (since torch
#   2.12).
# - bf16 counts to 256, fp16 to 2048. Positions and indices do not belong there.
# - TF32 is float16's precision with float32's range, computed with but never stored.
#
# One last question before the lab.

# %%
quiz("01.tf32")

# %% [markdown]
# **Now you:** [lab 1](../labs/01_bit_layouts.ipynb). You write the decoder and the encoder for any format, and a check
# compares them with all 65 536 patterns of float16.
#
# **Primary sources.** [IEEE 754-2019][ieee]: float16, float32, rounding, subnormals · [OCP OFP8, revision 1.0][ofp8]:
# e4m3 and e5m2 · [OCP Microscaling (MX), v1.0][mx]: FP6, FP4, e8m0 · [NVIDIA Ampere whitepaper][ampere]: TF32 ·
# [Kalamkar et al. 2019][kalamkar]: training with bfloat16 · [torch.finfo][finfo] and [torch.dtype][dtype]
#
# [ieee]: https://doi.org/10.1109/IEEESTD.2019.8766229
# [ofp8]: https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1
# [mx]: https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
# [ampere]: https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf
# [kalamkar]: https://arxiv.org/abs/1905.12322
# [finfo]: https://docs.pytorch.org/docs/stable/type_info.html
# [dtype]: https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-dtype
