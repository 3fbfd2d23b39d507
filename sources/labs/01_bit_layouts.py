# %% [markdown]
# # Lab 1 Bit layouts
#
# A floating-point number is a row of bits and a rule. In this lab you write the rule yourself, in both directions, and
# then use what you know to repair two bugs of real training runs and to choose formats.
#
# **You will be able to** decode any bit pattern by hand · say how far away the next number is · round exactly as the
# hardware does · tell an overflow that becomes infinity from one that saturates · keep positions and masks out of
# trouble · choose a format from three numbers.
#
# *125 minutes · parts A and B make a good first hour · after lesson 1 · runs on every machine*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("Everything in this lab is exact: the same bits on every machine.")

# %% [markdown]
# | part | exercise | difficulty | minutes | points |
# |---|---|---|---|---|
# | A Read | 1.1 A number from its bits | ●○○ | 10 | 2 |
# | | 1.2 The format that gave up infinity | ●○○ | 8 | 1 |
# | | 1.3 All 65 536 codes at once | ●●○ | 15 | 2 |
# | B Gaps | 1.4 How far is the next number? | ●●○ | 10 | 2 |
# | | 1.5 One step up | ●●○ | 10 | 2 |
# | | 1.6 How far can you count? | ●○○ | 8 | 1 |
# | C Round | 1.7 From a number to its code | ●●● | 25 | 4 |
# | | 1.8 Round a whole tensor | ●●● | 15 | 3 |
# | D Use | 1.9 Positions that repeat | ●○○ | 6 | 1 |
# | | 1.10 A mask for every dtype | ●○○ | 6 | 1 |
# | | 1.11 Choose the format | ●●○ | 12 | 2 |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. (If your cell ended in an error, the check still sees the version before.) An exercise that
# you have not begun says so and stops nothing: *Run All* always reaches the end.

# %%
import math

import torch
from ampedu.exercises import check

# %% [markdown]
# ## A Read
#
# A floating-point number is scientific notation in base two: 6 is 1.5 × 2². The computer stores it as a **code**, a
# whole number whose bits form three fields. One bit is the **sign**. The **exponent** bits hold the 2 of 2², plus a
# constant, the *bias*, so that no exponent is stored with a minus sign. The **mantissa** bits hold the .5 of 1.5. The 1
# in front, the *hidden 1*, is not stored: it is always there, with one exception that you will meet below.
#
# A worked example: two tools cut the fields out. `>>` drops bits on the right, `&` keeps the bits that you ask for.


# %%
def split(code, exponent_bits, mantissa_bits):
    """Sign, exponent field and mantissa field of a code, as whole numbers."""
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = code >> (mantissa_bits + exponent_bits)
    return sign, exponent, mantissa


# %% [markdown]
# The fp16 code below has the sign 0, the exponent field 01111 and the mantissa field 1000000000. (Python ignores the
# underscores.)

# %% tags=["nbval-check-output"]
split(0b0_01111_1000000000, exponent_bits=5, mantissa_bits=10)

# %% [markdown]
# ### 1.1 A number from its bits ●○○ 10 minutes
#
# Turn a code into its value. The rule is the one of the IEEE 754 standard, and it works for any number of exponent and
# mantissa bits. $E$ and $M$ are the two fields, read as whole numbers; $e$ and $m$ are their widths in bits; the bias
# is $2^{e-1} - 1$.
#
# | exponent field | mantissa field | value |
# |---|---|---|
# | all ones | 0 | infinity |
# | all ones | not 0 | NaN, "not a number" |
# | 0 | any | $\frac{M}{2^m} \times 2^{1 - \text{bias}}$: zero or a *subnormal* number |
# | in between | any | $(1 + \frac{M}{2^m}) \times 2^{E - \text{bias}}$: a *normal* number |
#
# If the sign bit is 1, the value is negative. So there are two zeros, and `-0.0` is one of them.


# %% exercise="01.decode"
def decode(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """Return the value of a code in an IEEE-like format.

    code: a whole number from 0 to 2 ** (1 + exponent_bits + mantissa_bits) - 1. Returns a Python
    float. Subnormal numbers, -0.0, infinities of both signs and NaN follow the table.
    """
    ### BEGIN SOLUTION
    sign, exponent, mantissa = split(code, exponent_bits, mantissa_bits)
    bias = 2 ** (exponent_bits - 1) - 1
    fraction = mantissa / 2**mantissa_bits
    if exponent == 2**exponent_bits - 1:
        magnitude = math.nan if mantissa else math.inf
    elif exponent == 0:
        magnitude = fraction * 2.0 ** (1 - bias)
    else:
        magnitude = (1 + fraction) * 2.0 ** (exponent - bias)
    return -magnitude if sign else magnitude
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.decode", decode)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Call `split` first. Then take the fp16 code above to the table, on paper: E = 15 and M = 512. Which row is it? You
# should find 1.5.
# </details>
#
# <details><summary>Ordinary numbers are right, the tiny ones are wrong</summary>
#
# Compare the two last rows of the table. Two things differ: is there a 1 in front of the fraction, and what is the
# exponent?
# </details>
#
# *Still stuck after 15 minutes? Read 1.1 in [the solution](../solutions/01_bit_layouts.ipynb), close it, and write it
# from memory.*

# %% [markdown]
# ### 1.2 The format that gave up infinity ●○○ 8 minutes
#
# With 8 bits there are only 256 codes, and infinity and NaN would take 16 of them. The format **e4m3fn** (4 exponent
# bits, 3 mantissa bits, bias 7) changes one rule. It has no infinity. Of the codes whose exponent field is all ones,
# only those with the mantissa field 111 are NaN; the others are normal numbers. (`fn` stands for finite, with NaN.)


# %% exercise="01.decode_e4m3fn"
def decode_e4m3fn(code: int) -> float:
    """Return the value of an e4m3fn code.

    code: a whole number from 0 to 255. Returns a Python float; both signs of zero, subnormal
    numbers and NaN included.
    """
    ### BEGIN SOLUTION
    sign, exponent, mantissa = split(code, 4, 3)
    if (exponent, mantissa) == (0b1111, 0b111):
        return math.nan
    if exponent == 0:
        magnitude = mantissa / 8 * 2.0**-6
    else:
        magnitude = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if sign else magnitude
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.decode_e4m3fn", decode_e4m3fn)

# %% [markdown]
# <details><summary>What is the largest value now?</summary>
#
# The largest code that is not NaN has the exponent field 1111 and the mantissa field 110. Put it into the last row of
# the table.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 12 minutes.*

# %% [markdown]
# ### 1.3 All 65 536 codes at once ●●○ 15 minutes
#
# A 16-bit format has 65 536 codes. Decode them all with tensor operations, without a loop over the codes. (A loop that
# is right passes too, if it ends in time.) The widths vary, but they always add up to 15, and there are never more than
# 8 exponent bits, so that float32 holds every value.
#
# One thing is as in real life: torch looks at 16 bits as a *signed* integer, `x.view(torch.int16)`. Half of the codes
# are negative.


# %% exercise="01.decode_all"
def decode_all(codes: torch.Tensor, exponent_bits: int, mantissa_bits: int) -> torch.Tensor:
    """Decode a tensor of 16-bit codes of an IEEE-like format.

    codes: int16 tensor of any shape, values from -32768 to 32767: the bits of the code, read as a
    signed integer. Returns a float32 tensor of the same shape. Special values as in `decode`; any
    NaN will do.
    """
    ### BEGIN SOLUTION
    bits = codes.int() & 0xFFFF
    sign, exponent, mantissa = split(bits, exponent_bits, mantissa_bits)
    bias = 2 ** (exponent_bits - 1) - 1
    fraction = mantissa / 2**mantissa_bits
    subnormal = fraction * 2.0 ** (1 - bias)
    normal = torch.ldexp(1 + fraction, exponent - bias)
    special = torch.where(mantissa == 0, math.inf, math.nan)
    magnitude = torch.where(exponent == 0, subnormal, normal)
    magnitude = torch.where(exponent == 2**exponent_bits - 1, special, magnitude)
    return torch.where(sign == 1, -magnitude, magnitude)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.decode_all", decode_all)

# %% [markdown]
# <details><summary>Integers to negative integer powers are not allowed</summary>
#
# An integer tensor as a power of an integer stays an integer. `torch.ldexp(y, n)` gives $y \times 2^n$ for an integer
# tensor `n`.
# </details>
#
# <details><summary>Every negative number is wrong</summary>
#
# Print `torch.tensor([-1], dtype=torch.int16) >> 10`. The sign bit is copied into the freed places. Make the codes
# non-negative first: convert to a wider integer type, then keep 16 bits.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 20 minutes.*

# %% [markdown]
# ## B Gaps
#
# Codes are evenly spaced; values are not. Look at two formats of 6 bits before you compute
# anything.

# %%
from ampedu.plots import number_line

number_line(["e3m2", "e2m3"], 0, 8)

# %% [markdown]
# From one power of two to the next (a **binade**) the numbers stand at equal distances. Each binade has twice the
# distance of the one before. Toward zero this comes to an end: the subnormal numbers keep the distance of the first
# binade.
#
# ### 1.4 How far is the next number? ●●○ 10 minutes
#
# The distance between neighbors is called **ulp**, a unit in the last place. At a power of two the gaps below and
# above differ: here the ulp is the gap *above*, away from zero. For a value between two numbers of the format, it is
# the gap in which the value lies.


# %% exercise="01.ulp"
def ulp(x: float, exponent_bits: int, mantissa_bits: int) -> float:
    """Return the gap above |x| in an IEEE-like format.

    x: a finite float, no larger in magnitude than the largest number of the format; it need not
    be a number of the format. At the largest number itself, return the gap of its binade. At
    zero, return the smallest positive number.
    """
    ### BEGIN SOLUTION
    lowest = 2 - 2 ** (exponent_bits - 1)
    exponent = math.frexp(x)[1] - 1 if x else lowest
    return 2.0 ** (max(exponent, lowest) - mantissa_bits)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.ulp", ulp)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Between 1 and 2 the gap is $2^{-m}$, with $m$ mantissa bits. What is it between 2 and 4, and between 4 and 8? So you
# need the largest power of two that is not above |x|. `math.frexp` finds its exponent without rounding.
# </details>
#
# <details><summary>I am off by a factor of two everywhere</summary>
#
# `math.frexp(8.0)` is `(0.5, 4)`: it writes 8 as 0.5 × 2⁴, the standard writes it as 1.0 × 2³. Which exponent do you
# need?
# </details>
#
# <details><summary>My gap is too small near zero</summary>
#
# The lowest exponent of a normal number is 1 − bias. The subnormal numbers below it keep the gap of that binade.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 15 minutes.*

# %% [markdown]
# ### 1.5 One step up ●●○ 10 minutes
#
# Go from a code to the code of the next *larger* number. You need no fractions and no powers. That is what the layout
# was designed for: among the positive numbers, the next code is the next number, across every change of exponent.


# %% exercise="01.next_up"
def next_up(code: int, exponent_bits: int, mantissa_bits: int) -> int:
    """Return the code of the next larger number.

    The format is IEEE-like. After the largest finite number comes infinity. Infinity and NaN have
    no successor: return their code unchanged. Both zeros are the same number and have the same
    successor. From the negative number nearest to zero, return the code of -0.0, as IEEE 754 does.
    """
    ### BEGIN SOLUTION
    sign_bit = 1 << (exponent_bits + mantissa_bits)
    infinity = (2**exponent_bits - 1) << mantissa_bits
    magnitude = code % sign_bit
    if magnitude > infinity or code == infinity:
        return code
    if magnitude == 0:
        return 1
    return code - 1 if code & sign_bit else code + 1
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.next_up", next_up)

# %% [markdown]
# <details><summary>Negative numbers go the wrong way</summary>
#
# The bits after the sign are a magnitude. If a negative number becomes larger, does its magnitude grow or shrink?
# </details>
#
# <details><summary>The step from a zero is wrong</summary>
#
# Decode the code that you return for −0.0. Is it larger than zero?
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 15 minutes.*

# %% [markdown]
# ### 1.6 How far can you count? ●○○ 8 minutes
#
# Start at 0 and count: 0, 1, 2, 3, … Every format loses some integer sooner or later: the gap grows beyond 1, or the
# range ends. Find the last integer before the first loss.


# %% exercise="01.largest_integer"
def largest_integer(exponent_bits: int, mantissa_bits: int) -> int:
    """Return the last integer before the first loss.

    That is the largest n such that an IEEE-like format holds every integer from 0 to n exactly.
    Some formats run out of range before they run out of precision: their largest finite number
    bounds n.
    """
    ### BEGIN SOLUTION
    bias = 2 ** (exponent_bits - 1) - 1
    largest = (2 - 2.0**-mantissa_bits) * 2.0**bias
    return min(2 ** (mantissa_bits + 1), int(largest))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.largest_integer", largest_integer)

# %% [markdown]
# <details><summary>My answer is half of the right one, or one less than it</summary>
#
# In which binade is the gap exactly 1? Count to its end. Is the power of two that comes next a number of the format?
# And the integer after that?
# </details>
#
# <details><summary>A format with few exponent bits is wrong</summary>
#
# What is the largest finite number with 3 exponent bits and 4 mantissa bits? It is not an integer.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 12 minutes.*

# %% [markdown]
# ## C Round
#
# Most numbers are not in the format. The hardware then takes the nearest one, unless told otherwise. If two are equally
# near, it takes the one whose last mantissa bit is 0. This is **round to nearest, ties to even**. Python's `round` does
# the same with integers.

# %% tags=["nbval-check-output"]
[round(x) for x in (0.5, 1.5, 2.5, 2.500001, -3.5)]

# %% [markdown]
# To see it at work, change the number below and run the cell again. Try 65519, 65520, 1e-7 and 3e-8, and watch fp16.

# %%
from ampedu.plots import bit_layout

bit_layout(["fp32", "bf16", "fp16", "e5m2"], values=0.1)

# %% [markdown]
# ### 1.7 From a number to its code ●●● 25 minutes
#
# The heart of the lab. Take a Python float, which has 52 mantissa bits, and return the code of the nearest number of
# the format. Round once, straight from the float that you are given.
#
# A magnitude that is too large becomes infinity. "Too large" is decided by rounding too: continue the top binade
# beyond the largest finite number by one more step. What rounds to that step, or beyond, becomes infinity; what rounds
# below it stays finite.


# %% exercise="01.encode"
def encode(x: float, exponent_bits: int, mantissa_bits: int) -> int:
    """Return the code of the number nearest to x, ties to even.

    x: any Python float. The format is IEEE-like; its subnormal numbers, zeros and infinities are
    all in use, and the sign of x is kept. For NaN return the code with sign 0, an exponent field
    of ones, and only the first mantissa bit set.
    """
    ### BEGIN SOLUTION
    infinity = (2**exponent_bits - 1) << mantissa_bits
    if math.isnan(x):
        return infinity + (1 << (mantissa_bits - 1))
    sign = (math.copysign(1, x) < 0) << (exponent_bits + mantissa_bits)
    if math.isinf(x):
        return sign + infinity
    lowest = 2 - 2 ** (exponent_bits - 1)
    exponent = max(math.frexp(x)[1] - 1, lowest) if x else lowest
    steps = round(math.ldexp(abs(x), mantissa_bits - exponent))  # |x| in units of the gap: exact, then one rounding
    code = ((exponent - lowest) << mantissa_bits) + steps  # a carry out of the mantissa lands in the exponent
    return sign + min(code, infinity)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.encode", encode)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Measure |x| in gaps: divide it by the ulp that you computed in 1.4. Because that is a power of two, the division is
# exact. Round the quotient to an integer. That integer is the mantissa field, plus $2^m$ if the number is normal.
# </details>
#
# <details><summary>Numbers just below a power of two are wrong</summary>
#
# Rounding can give $2^{m+1}$ steps: the mantissa is full and carries over. What happens if you *add* the steps to the
# exponent field, shifted into its place, instead of cutting them to $m$ bits?
# </details>
#
# <details><summary>Only one number is wrong, by one bit</summary>
#
# Did the number pass through another format on its way, such as a float32 tensor? Two roundings are not one.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 35 minutes. Then close it and write yours
# again: this one is worth it.*

# %% [markdown]
# ### 1.8 Round a whole tensor ●●● 15 minutes
#
# Often you want the rounded *values*, not the codes: that is how low precision is simulated on hardware that lacks it.
# Two endings are in use for what is too large. fp16, bf16 and e5m2 have an infinity and go there. e4m3fn and fp4 have
# none; the usual conversion **saturates**: it stops at the largest number, for an infinite input too.
#
# The largest number is given to you, since it does not always follow from the widths (e4m3fn: 448).


# %% exercise="01.quantize"
def quantize(
    x: torch.Tensor,
    exponent_bits: int,
    mantissa_bits: int,
    largest: float,
    overflow: str,
) -> torch.Tensor:
    """Round every element to a format: nearest, ties to even.

    x: float32 tensor of any shape.
    exponent_bits, mantissa_bits: at most 8 and 10; the bias is 2 ** (exponent_bits - 1) - 1.
    largest: the largest number of the format. overflow: "inf" or "saturate", for what is still
    larger than that after rounding as if there were no upper limit.
    Returns a float32 tensor of the same shape. NaN stays NaN. The sign of a zero is not judged.
    """
    ### BEGIN SOLUTION
    wide = x.double()  # here neither the gap nor the quotient can overflow or become subnormal
    lowest = 2 - 2 ** (exponent_bits - 1)
    exponent = (torch.frexp(wide).exponent - 1).clamp(min=lowest)
    gap = torch.ldexp(torch.ones_like(wide), exponent - mantissa_bits)
    rounded = (wide / gap).round() * gap
    limit = largest if overflow == "saturate" else math.inf
    rounded = torch.where(rounded.abs() > largest, limit * rounded.sign(), rounded)
    return rounded.float()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.quantize", quantize)

# %% [markdown]
# <details><summary>Which tensor operation gives me the exponent?</summary>
#
# `torch.frexp(x).exponent`, with the same offset by one as `math.frexp`. `torch.round` rounds ties to even.
# `torch.ldexp` multiplies by a power of two.
# </details>
#
# <details><summary>A number a little above the largest one is wrong</summary>
#
# Round first, compare afterwards. 65519 is larger than 65504, yet it rounds to it.
# </details>
#
# <details><summary>I get infinity or NaN for tiny bf16 numbers</summary>
#
# $2^{133}$ does not fit in float32. Compute in float64, and convert back at the end.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 20 minutes.*

# %% [markdown]
# ## D Use
#
# ### 1.9 Positions that repeat ●○○ 6 minutes
#
# Language models number the tokens of each row: 0, 1, 2, … A mask holds 1 for a token and 0 for padding, and whoever
# wrote this function counted the ones. The model runs in bfloat16, and so does its mask.


# %%
def broken_positions(mask):
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


# %% tags=["nbval-check-output"]
row = torch.ones(1, 2048, dtype=torch.bfloat16)
broken_positions(row).unique().numel()

# %% [markdown]
# 2048 tokens share 577 positions, and there was no error. To the model, most neighbors in the second half of a long
# text stand in the same place. You know from 1.6 where this begins. Repair it.


# %% exercise="01.positions"
def positions(mask: torch.Tensor) -> torch.Tensor:
    """Number the tokens of each row from 0.

    mask: tensor of shape (rows, length) and any dtype, 1 for a token, 0 for padding; padding may
    stand anywhere. Returns an int64 tensor of the same shape: the number of tokens before this
    one in its row; 0 at padding.
    """
    ### BEGIN SOLUTION
    token = mask.bool()
    return (token.long().cumsum(dim=-1) - 1).masked_fill(~token, 0)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.positions", positions)

# %% [markdown]
# <details><summary>I convert to integers and positions still repeat</summary>
#
# Where do you convert? What was rounded before that line stays rounded.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 10 minutes.*

# %% [markdown]
# ### 1.10 A mask for every dtype ●○○ 6 minutes
#
# Attention hides a score by writing a huge negative number over it. If the number does not fit, the same overflow ends
# in two ways. `fill_`, `masked_fill`, `full` and `clamp` check a Python number against the range of the dtype and
# raise. `where`, arithmetic and `x[0] = …` do not check, and give infinity in silence.

# %% tags=["nbval-check-output"]
half = torch.zeros(2, dtype=torch.float16)
try:
    half.fill_(-1e9)
except RuntimeError:
    print("fill_: RuntimeError")
print("where:", torch.where(half == 0, -1e9, half))

# %% [markdown]
# Neither is what you want: one stops the program, and a row full of −∞ makes softmax return NaN. Write the most
# negative *finite* number of the dtype that you were given. torch knows it.


# %% exercise="01.mask_scores"
def mask_scores(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Hide scores behind the most negative finite number.

    scores: float16, bfloat16, float32 or float64 tensor, left as it is.
    hidden: bool tensor of the same shape, True where a score must not count.
    Returns a new tensor with the dtype of `scores`; hidden scores are its most negative finite number.
    """
    ### BEGIN SOLUTION
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.mask_scores", mask_scores)

# %% [markdown]
# <details><summary>value cannot be converted to type … without overflow</summary>
#
# Your constant does not fit in one of the dtypes. Look up `torch.finfo` and ask it about the dtype that came in.
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 10 minutes.*

# %% [markdown]
# ### 1.11 Choose the format ●●○ 12 minutes
#
# Three numbers decide: the **largest** magnitude that must not overflow, the **smallest** magnitude that must still
# have full precision (so it must be a normal number), and the coarsest relative **step** between neighbors that you
# can accept. The relative step just above a power of two is $2^{-m}$; it is nowhere coarser among the normal numbers.
# Here are the formats that memory can hold, with their bits, exponent bits, mantissa bits and largest number.

# %%
CANDIDATES = {
    "fp64": (64, 11, 52, torch.finfo(torch.float64).max),
    "fp32": (32, 8, 23, torch.finfo(torch.float32).max),
    "bf16": (16, 8, 7, torch.finfo(torch.bfloat16).max),
    "fp16": (16, 5, 10, 65504.0),
    "e5m2": (8, 5, 2, 57344.0),
    "e4m3fn": (8, 4, 3, 448.0),
}


# %% exercise="01.choose_format"
def choose_format(largest: float, smallest: float, step: float) -> str | None:
    """Return the name of the narrowest candidate that fits.

    largest, smallest: positive magnitudes.
    step: the coarsest relative gap that is acceptable; a format's is 2 ** -mantissa_bits.
    If two candidates of the same width fit, return the name of the one with more mantissa bits.
    If none fits, return None.
    """
    ### BEGIN SOLUTION
    fitting = []
    for name, (bits, exponent_bits, mantissa_bits, top) in CANDIDATES.items():
        smallest_normal = 2.0 ** (2 - 2 ** (exponent_bits - 1))
        if largest <= top and smallest >= smallest_normal and 2.0**-mantissa_bits <= step:
            fitting.append((bits, -mantissa_bits, name))
    return min(fitting)[-1] if fitting else None
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.choose_format", choose_format)

# %% [markdown]
# <details><summary>I chose fp16 and bf16 is right</summary>
#
# fp16 holds 10⁻⁶, but as a subnormal number: with a few bits only. Which of the three demands is that?
# </details>
#
# *Read [the solution](../solutions/01_bit_layouts.ipynb) after 16 minutes.*

# %% [markdown]
# ## What you built
#
# A number format, complete, in both directions. The cells below run *your* functions. A cell whose exercise is not
# finished says which one it waits for.
#
# First, one tenth in five formats. None of them holds it.

# %% tags=["nbval-check-output"]
from ampedu.exercises import needs

widths = {"fp64": (11, 52), "fp32": (8, 23), "fp16": (5, 10), "bf16": (8, 7), "e5m2": (5, 2)}
with needs("01.encode", "01.decode", "01.ulp"):
    for name, (e, m) in widths.items():
        nearest = decode(encode(0.1, e, m), e, m)
        print(f"{name}: {nearest:.20f}, one ulp is {ulp(0.1, e, m):.1e}")

# %% [markdown]
# Next, torch as the judge: every fp16 code that exists, and a hundred thousand random numbers rounded to bf16.

# %% tags=["nbval-check-output"]
codes = torch.arange(-(2**15), 2**15).to(torch.int16)
with needs("01.decode_all"):
    mine, theirs = decode_all(codes, 5, 10), codes.view(torch.float16).float()
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    print(f"{same.sum().item()} of {codes.numel()} codes agree with torch")

# %% tags=["nbval-check-output"]
sample = torch.randn(100_000, generator=torch.Generator().manual_seed(seed))
with needs("01.quantize"):
    mine, theirs = quantize(sample, 8, 7, 3.3895313892515355e38, "inf"), sample.bfloat16().float()
    print(f"{(mine == theirs).sum().item()} of {len(sample)} rounded numbers agree with torch")

# %% [markdown]
# Last, eight situations. The demands (largest, smallest, step) are examples; your own model has its own. **Predict**
# the eight answers before you run the cells.

# %%
SITUATIONS = {
    "activations behind a layer norm, for an 8-bit matmul": (20, 0.05, 0.15),
    "their gradients, scaled, for an 8-bit matmul": (20_000, 3e-4, 0.3),
    "activations of a vision model": (2_000, 1e-3, 1e-3),
    "attention scores with a peak of 200 000": (2e5, 1e-2, 1e-2),
    "gradients without loss scaling": (10, 1e-9, 1e-2),
    "weights that move by one part in a million": (30, 1e-6, 1e-6),
    "token positions up to 100 000": (1e5, 1, 1e-5),
    "squared distances in a galaxy, in square meters": (1e42, 1, 1e-6),
}

# %% tags=["nbval-check-output"]
with needs("01.choose_format"):
    for situation, demands in SITUATIONS.items():
        print(f"{situation:54} {choose_format(*demands)}")

# %% [markdown]
# **Sources.** [IEEE 754-2019](https://doi.org/10.1109/IEEESTD.2019.8766229), the standard: formats in clause 3,
# rounding in clause 4, nextUp in clause 5 · [OCP 8-bit floating point specification
# 1.0](https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1):
# e4m3 and e5m2 with saturation · [FP8 formats for deep learning](https://arxiv.org/abs/2209.05433): why e4m3 gave up
# infinity · [torch.finfo](https://docs.pytorch.org/docs/stable/type_info.html).
#
# Back to [lesson 1](../notebooks/01_bit_layouts.ipynb), or on to [lesson
# 2](../notebooks/02_where_precision_is_lost.ipynb), where these roundings add up.
