"""Wrong answers to lab 01 that real people give, each with the message that the check shows."""

import math

import torch

from ampedu.exercises import mutant


def split(code, exponent_bits, mantissa_bits):
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    return code >> (mantissa_bits + exponent_bits), exponent, mantissa


def ieee(code, e, m, bias=None, subnormal=None, inf=math.inf, nan=math.nan):
    """decode, with the parts that mutants replace: the bias, the value of a subnormal fraction, inf and NaN."""
    sign, exponent, mantissa = split(code, e, m)
    bias = 2 ** (e - 1) - 1 if bias is None else bias
    normal = math.ldexp(1 + mantissa / 2**m, exponent - bias)
    if exponent == 0:
        normal = math.ldexp(mantissa / 2**m, 1 - bias) if subnormal is None else subnormal(mantissa / 2**m, bias)
    elif exponent == 2**e - 1 and inf is not None:
        normal = nan if mantissa else inf
    return -normal if sign else normal


def hidden_one(fraction, bias):
    return math.ldexp(1 + fraction, -bias)


@mutant(
    "01.decode",
    "Your numbers all begin with the hidden 1, the tiny ones too. When the exponent field is 0 there is no hidden 1 "
    "(otherwise zero could not be written). Compare the last two rows of the table.",
)
def no_subnormals(code, exponent_bits, mantissa_bits):
    return ieee(code, exponent_bits, mantissa_bits, subnormal=hidden_one)


@mutant(
    "01.decode",
    "Every finite number is half of what it should be. Look at your bias: it is one too large. With 5 exponent bits "
    "it is 15, not 16.",
)
def bias_too_large(code, exponent_bits, mantissa_bits):
    return ieee(code, exponent_bits, mantissa_bits, bias=2 ** (exponent_bits - 1))


@mutant(
    "01.decode",
    "You read an exponent field of all ones as an ordinary exponent. It is reserved: such a code is infinity, or NaN. "
    "See the first two rows of the table.",
)
def all_ones_is_normal(code, exponent_bits, mantissa_bits):
    return ieee(code, exponent_bits, mantissa_bits, inf=None)


@mutant(
    "01.decode",
    "Your subnormal numbers are half of what they should be. The exponent field 0 does not mean the exponent 0 − "
    "bias: subnormal numbers share the exponent of the smallest normal ones, 1 − bias.",
)
def subnormal_exponent_too_small(code, exponent_bits, mantissa_bits):
    return ieee(code, exponent_bits, mantissa_bits, subnormal=lambda fraction, bias: math.ldexp(fraction, -bias))


@mutant(
    "01.decode",
    "You used the last row of the table for every code. Two values of the exponent field have rows of their own: 0 "
    "and all ones.",
)
def last_row_for_every_code(code, exponent_bits, mantissa_bits):
    return ieee(code, exponent_bits, mantissa_bits, inf=None, subnormal=hidden_one)


@mutant(
    "01.decode",
    "Your numbers are too large by a power of two, the same one for the whole format. The exponent field is stored "
    "with a constant added: subtract the bias.",
)
def no_bias(code, exponent_bits, mantissa_bits):
    return ieee(code, exponent_bits, mantissa_bits, bias=0)


@mutant(
    "01.decode",
    "You return infinity for every exponent field of all ones. The mantissa field decides: 0 is infinity, anything "
    "else is NaN.",
)
def nan_is_infinity(code, exponent_bits, mantissa_bits):
    return ieee(code, exponent_bits, mantissa_bits, nan=math.inf)


@mutant(
    "01.decode_e4m3fn",
    "You used the IEEE rule for an exponent field of all ones. In e4m3fn nothing is infinite, and an exponent of 1111 "
    "is an ordinary one, except with the mantissa 111.",
)
def ieee_rules(code):
    return ieee(code, 4, 3)


@mutant(
    "01.decode_e4m3fn",
    "You made NaN of every code whose exponent field is 1111. Only the mantissa 111 is NaN; with the others the "
    "format would end at 240, and it goes on to 448.",
)
def all_ones_is_nan(code):
    return ieee(code, 4, 3, inf=math.nan)


@mutant(
    "01.decode_e4m3fn",
    "Your numbers all begin with the hidden 1, the tiny ones too. An exponent field of 0 has no hidden 1 here either, "
    "and its exponent is 1 − 7.",
)
def no_subnormals_in_e4m3fn(code):
    value = ieee(code, 4, 3, inf=None, subnormal=hidden_one)
    return math.nan if code & 0x7F == 0x7F else value


@mutant(
    "01.decode_e4m3fn",
    "One of the two NaN codes came out as a number. NaN has a sign bit too: compare the exponent and mantissa fields, "
    "not the whole code.",
)
def one_nan_only(code):
    return math.nan if code == 0x7F else ieee(code, 4, 3, inf=None)


@mutant(
    "01.decode_e4m3fn",
    "You have ±480 where NaN should be. The format gave up infinity but kept NaN: the exponent 1111 with the mantissa "
    "111.",
)
def no_nan(code):
    return ieee(code, 4, 3, inf=None)


def all_ieee(codes, e, m, mask=True, hidden=True, special=True, nan=math.nan):
    """decode_all, with the steps that mutants leave out."""
    sign, exponent, mantissa = split(codes.int() & 0xFFFF if mask else codes.int(), e, m)
    bias = 2 ** (e - 1) - 1
    magnitude = torch.ldexp(1 + mantissa / 2**m, exponent - bias)
    if hidden:
        magnitude = torch.where(exponent == 0, mantissa / 2**m * 2.0 ** (1 - bias), magnitude)
    if special:
        magnitude = torch.where(exponent == 2**e - 1, torch.where(mantissa == 0, math.inf, nan), magnitude)
    return torch.where(sign == 1, -magnitude, magnitude)


@mutant(
    "01.decode_all",
    "All your numbers are positive. Shifting a negative integer to the right copies its sign bit, so your sign field "
    "is −1, not 1. Print it, then make the codes non-negative before you split them.",
)
def sign_extension(codes, exponent_bits, mantissa_bits):
    return all_ieee(codes, exponent_bits, mantissa_bits, mask=False)


@mutant(
    "01.decode_all",
    "The hidden 1 is in front of your subnormal numbers and zeros too. Compute a second tensor without it and choose "
    "between the two where the exponent field is 0.",
)
def all_hidden_one(codes, exponent_bits, mantissa_bits):
    return all_ieee(codes, exponent_bits, mantissa_bits, hidden=False)


@mutant(
    "01.decode_all",
    "The codes with an exponent field of all ones went through the formula for normal numbers. Replace them at the "
    "end, by infinity or NaN.",
)
def all_ones_forgotten(codes, exponent_bits, mantissa_bits):
    return all_ieee(codes, exponent_bits, mantissa_bits, special=False)


@mutant(
    "01.decode_all",
    "Your NaN codes became infinity. Where the exponent field is all ones, look at the mantissa field: only 0 is "
    "infinity.",
)
def all_nan_is_infinity(codes, exponent_bits, mantissa_bits):
    return all_ieee(codes, exponent_bits, mantissa_bits, nan=math.inf)


def exponent_of(x):
    return math.frexp(x)[1] - 1


@mutant(
    "01.ulp",
    "At a power of two you returned the gap below it, which is half as wide. The ulp is the gap on the side away from "
    "zero: a power of two is the first number of its binade, not the last of the one before.",
)
def gap_below(x, exponent_bits, mantissa_bits):
    lowest = 2 - 2 ** (exponent_bits - 1)
    fraction, exponent = math.frexp(x)
    exponent = exponent - 1 - (abs(fraction) == 0.5) if x else lowest
    return 2.0 ** (max(exponent, lowest) - mantissa_bits)


@mutant(
    "01.ulp",
    "Your gap is twice as wide as it should be. math.frexp returns a fraction from 0.5 up to 1, so its exponent is "
    "one more than the one of 1.xxx × 2^n.",
)
def frexp_exponent(x, exponent_bits, mantissa_bits):
    lowest = 2 - 2 ** (exponent_bits - 1)
    return 2.0 ** (max(math.frexp(x)[1], lowest) - mantissa_bits) if x else 2.0 ** (lowest - mantissa_bits)


@mutant(
    "01.ulp",
    "Your gap goes on shrinking below the smallest normal number. Down there all numbers are subnormal and equally "
    "spaced: the exponent has a floor.",
)
def no_floor(x, exponent_bits, mantissa_bits):
    lowest = 2 - 2 ** (exponent_bits - 1)
    return 2.0 ** ((exponent_of(x) if x else lowest) - mantissa_bits)


@mutant(
    "01.ulp",
    "Just below a power of two your gap is twice as wide as it should be. There math.log2 rounds up to a whole number. "
    "math.frexp is exact: it reads the exponent field.",
)
def log2_rounds(x, exponent_bits, mantissa_bits):
    lowest = 2 - 2 ** (exponent_bits - 1)
    return 2.0 ** ((max(math.floor(math.log2(abs(x))), lowest) if x else lowest) - mantissa_bits)


@mutant(
    "01.ulp",
    "You rounded x to the format first. Just below a power of two that takes it to the next binade, where the gap is "
    "twice as wide. Asked for is the gap in which x itself lies.",
)
def rounded_first(x, exponent_bits, mantissa_bits):
    lowest = 2 - 2 ** (exponent_bits - 1)
    gap = 2.0 ** ((max(exponent_of(x), lowest) if x else lowest) - mantissa_bits)
    nearest = round(x / gap) * gap
    return 2.0 ** ((max(exponent_of(nearest), lowest) if nearest else lowest) - mantissa_bits)


@mutant(
    "01.ulp",
    "You multiplied |x| by the gap at 1. Gaps do not grow with every number: they are the same in a whole binade and "
    "jump at powers of two. Replace |x| by the power of two at or below it, and mind the floor.",
)
def epsilon_times_x(x, exponent_bits, mantissa_bits):
    return abs(x) * 2.0**-mantissa_bits


@mutant(
    "01.ulp",
    "Everything is right but zero. math.frexp(0.0) is (0.0, 0), which looks like the exponent of 0.5. Zero stands "
    "among the subnormal numbers.",
)
def zero_like_a_half(x, exponent_bits, mantissa_bits):
    return 2.0 ** (max(exponent_of(x), 2 - 2 ** (exponent_bits - 1)) - mantissa_bits)


def step(code, e, m, negative=-1, from_minus_zero=1, stop=True):
    """next_up, with the parts that mutants replace."""
    sign_bit, infinity = 1 << (e + m), (2**e - 1) << m
    if stop and (code % sign_bit > infinity or code == infinity):
        return code
    if code == sign_bit:
        return from_minus_zero
    return code + negative if code & sign_bit else code + 1


@mutant(
    "01.next_up",
    "Your negative numbers walk away from zero. The bits after the sign are a magnitude: for a negative number to "
    "become larger, it must shrink.",
)
def always_plus_one(code, exponent_bits, mantissa_bits):
    return step(code, exponent_bits, mantissa_bits, negative=1)


@mutant(
    "01.next_up",
    "You step from −0.0 to +0.0. They are the same number, so that is no step up. The next larger number is the "
    "smallest positive one.",
)
def minus_zero_to_zero(code, exponent_bits, mantissa_bits):
    return step(code, exponent_bits, mantissa_bits, from_minus_zero=0)


@mutant(
    "01.next_up",
    "Subtracting 1 from the code of −0.0 borrows from the sign bit: you land on a positive NaN. Both zeros need the "
    "same answer.",
)
def minus_zero_borrows(code, exponent_bits, mantissa_bits):
    return step(code, exponent_bits, mantissa_bits, from_minus_zero=(1 << (exponent_bits + mantissa_bits)) - 1)


@mutant(
    "01.next_up",
    "You also step on from infinity and from NaN. The code after infinity is a NaN, which is no number at all. Return "
    "these codes unchanged.",
)
def past_infinity(code, exponent_bits, mantissa_bits):
    return step(code, exponent_bits, mantissa_bits, stop=False)


def range_limit(e, m):
    return int((2 - 2.0**-m) * 2.0 ** (2 ** (e - 1) - 1))


@mutant(
    "01.largest_integer",
    "You stopped one power of two early. The hidden 1 counts as a digit too: with m mantissa bits an integer may have "
    "m + 1 binary digits.",
)
def hidden_one_forgotten(exponent_bits, mantissa_bits):
    return min(2**mantissa_bits, range_limit(exponent_bits, mantissa_bits))


@mutant(
    "01.largest_integer",
    "You found the integer with all mantissa bits set. The next integer is a power of two, so it is in the format as "
    "well. The first loss comes after it.",
)
def all_bits_set(exponent_bits, mantissa_bits):
    return min(2 ** (mantissa_bits + 1) - 1, range_limit(exponent_bits, mantissa_bits))


@mutant(
    "01.largest_integer",
    "Right, as long as the format is wide enough. With few exponent bits the largest finite number comes first, and "
    "no integer beyond it is in the format.",
)
def range_ignored(exponent_bits, mantissa_bits):
    return 2 ** (mantissa_bits + 1)


@mutant(
    "01.largest_integer",
    "That is the largest finite number. It is an integer in most formats, but many integers below it are missing. "
    "Where does the gap first exceed 1?",
)
def largest_finite(exponent_bits, mantissa_bits):
    return range_limit(exponent_bits, mantissa_bits)


def code_of(x, e, m, to_integer=round, beyond=None, flush=False, carry=True, negative=None):
    """encode, with the parts that mutants replace; beyond(|x|, code) has the last word on the code."""
    infinity = (2**e - 1) << m
    if math.isnan(x):
        return infinity + (1 << (m - 1))
    negative = math.copysign(1, x) < 0 if negative is None else negative
    sign = negative << (e + m)
    lowest = 2 - 2 ** (e - 1)
    if math.isinf(x):
        magnitude = infinity
    elif x == 0 or (flush and abs(x) < 2.0**lowest):
        magnitude = 0
    else:
        exponent = max(exponent_of(x), lowest)
        steps = to_integer(math.ldexp(abs(x), m - exponent))
        if not carry and steps == 2 ** (m + 1):
            steps = 2**m
        magnitude = min(((exponent - lowest) << m) + steps, infinity)
    return sign + (beyond(abs(x), magnitude) if beyond else magnitude)


@mutant(
    "01.encode",
    "You cut the extra digits off: your numbers are never larger in magnitude than the input, often one step too "
    "small. Rounding must look at what it cuts. Take the nearest integer, not int(…) or //.",
)
def truncates(x, exponent_bits, mantissa_bits):
    return code_of(x, exponent_bits, mantissa_bits, to_integer=int)


@mutant(
    "01.encode",
    "You round every tie up in magnitude. When two numbers are equally near, take the one whose last bit is 0. Adding "
    "0.5 and cutting cannot do that.",
)
def ties_away(x, exponent_bits, mantissa_bits):
    return code_of(x, exponent_bits, mantissa_bits, to_integer=lambda steps: math.floor(steps + 0.5))


@mutant(
    "01.encode",
    "You made every number below the smallest normal one zero. The format goes on below it: there are the subnormal "
    "numbers, with the exponent field 0 and without the hidden 1.",
)
def flushes(x, exponent_bits, mantissa_bits):
    return code_of(x, exponent_bits, mantissa_bits, flush=True)


@mutant(
    "01.encode",
    "Numbers just below a power of two came out half as large. The mantissa was full, rounding made it overflow, and "
    "the exponent field did not take the carry.",
)
def carry_lost(x, exponent_bits, mantissa_bits):
    return code_of(x, exponent_bits, mantissa_bits, carry=False)


@mutant(
    "01.encode",
    "You stop at the largest finite number. An IEEE-like format has an infinity, and what is too large becomes "
    "infinity.",
)
def saturates(x, exponent_bits, mantissa_bits):
    infinity = (2**exponent_bits - 1) << mantissa_bits
    return code_of(x, exponent_bits, mantissa_bits, beyond=lambda size, code: min(code, infinity - (size < math.inf)))


@mutant(
    "01.encode",
    "You send everything above the largest finite number to infinity. A number that is only a little larger rounds "
    "down to it: for fp16, 65519 becomes 65504 and 65520 becomes infinity. Round first, then compare.",
)
def overflows_early(x, exponent_bits, mantissa_bits):
    largest = (2 - 2.0**-mantissa_bits) * 2.0 ** (2 ** (exponent_bits - 1) - 1)
    infinity = (2**exponent_bits - 1) << mantissa_bits
    return code_of(x, exponent_bits, mantissa_bits, beyond=lambda size, code: infinity if size > largest else code)


@mutant(
    "01.encode",
    "Two roundings are not one. Your number passed through float32 first (a float32 tensor, or a struct with format "
    "f); there it became a tie that it was not. Compute with the Python float itself.",
)
def through_float32(x, exponent_bits, mantissa_bits):
    return code_of(torch.tensor(x, dtype=torch.float32).item(), exponent_bits, mantissa_bits)


@mutant(
    "01.encode",
    "The sign of −0.0 got lost. −0.0 < 0 is False in Python, because both zeros are equal; math.copysign sees the "
    "sign.",
)
def minus_zero_lost(x, exponent_bits, mantissa_bits):
    return code_of(x, exponent_bits, mantissa_bits, negative=x < 0)


def rounded_to(x, e, m, largest, overflow, nearest=torch.round, floor=True, early=False, keep_inf=False):
    """quantize, with the parts that mutants replace."""
    wide = x.double()
    exponent = torch.frexp(wide).exponent - 1
    exponent = exponent.clamp(min=2 - 2 ** (e - 1)) if floor else exponent
    gap = torch.ldexp(torch.ones_like(wide), exponent - m)
    result = nearest(wide / gap) * gap
    too_large = (wide if early else result).abs() > largest
    limit = largest if overflow == "saturate" else math.inf
    result = torch.where(too_large, limit * wide.sign(), result)
    return (torch.where(wide.isinf(), wide, result) if keep_inf else result).float()


@mutant(
    "01.quantize",
    "You round ties away from zero. Adding 0.5 and cutting does that; torch.round takes the even neighbor.",
)
def tensor_ties_away(x, exponent_bits, mantissa_bits, largest, overflow):
    return rounded_to(
        x, exponent_bits, mantissa_bits, largest, overflow, nearest=lambda q: q.sign() * (q.abs() + 0.5).floor()
    )


@mutant(
    "01.quantize",
    "You rounded in the wrong direction: cutting (trunc) always goes toward zero. Take the nearest number.",
)
def tensor_truncates(x, exponent_bits, mantissa_bits, largest, overflow):
    return rounded_to(x, exponent_bits, mantissa_bits, largest, overflow, nearest=torch.trunc)


@mutant(
    "01.quantize",
    "Your tiny numbers keep all their mantissa bits. Below the smallest normal number the gap stays the same: the "
    "exponent needs a floor.",
)
def tensor_no_floor(x, exponent_bits, mantissa_bits, largest, overflow):
    return rounded_to(x, exponent_bits, mantissa_bits, largest, overflow, floor=False)


@mutant(
    "01.quantize",
    "You compared with the largest number before rounding. What is only a quarter of a gap above it rounds down to it "
    "and does not overflow.",
)
def compares_early(x, exponent_bits, mantissa_bits, largest, overflow):
    return rounded_to(x, exponent_bits, mantissa_bits, largest, overflow, early=True)


@mutant(
    "01.quantize",
    "Infinity survived in a format that saturates. It has no code for infinity: an infinite input becomes the largest "
    "number as well.",
)
def infinity_survives(x, exponent_bits, mantissa_bits, largest, overflow):
    return rounded_to(x, exponent_bits, mantissa_bits, largest, overflow, keep_inf=True)


@mutant(
    "01.positions",
    "You converted at the end. cumsum had already rounded its sums to the dtype of the mask, and what is lost there "
    "does not come back. Convert the mask before you count.",
)
def converts_at_the_end(mask):
    return (mask.cumsum(dim=-1).long() - 1).masked_fill(mask == 0, 0)


@mutant(
    "01.positions",
    "You counted correctly and then returned the positions in the dtype of the mask, which rounds them again. "
    "Positions are integers: return int64.",
)
def back_to_the_dtype(mask):
    return (mask.long().cumsum(dim=-1) - 1).masked_fill(mask == 0, 0).to(mask.dtype)


@mutant(
    "01.positions",
    "Padding has no position of its own, but yours has. Left padding gives −1, and padding further right repeats the "
    "token before it. Write 0 there.",
)
def padding_counted(mask):
    return mask.long().cumsum(dim=-1) - 1


@mutant(
    "01.mask_scores",
    "−1e9 does not fit in float16, whose largest number is 65504, so masked_fill refuses it. Ask torch.finfo for the "
    "limit of the dtype that came in.",
)
def minus_a_billion(scores, hidden):
    return scores.masked_fill(hidden, -1e9)


@mutant(
    "01.mask_scores",
    "You wrote float32's limit in every dtype. Only float32 and float64 hold it: bfloat16 has the same exponents, but "
    "fewer mantissa bits, so even its largest number is a little smaller.",
)
def float32_limit(scores, hidden):
    return scores.masked_fill(hidden, torch.finfo(torch.float32).min)


@mutant(
    "01.mask_scores",
    "Minus infinity is legal, but a row that is hidden altogether then has only −∞, and its softmax is NaN. The most "
    "negative finite number is wanted.",
)
def minus_infinity(scores, hidden):
    return scores.masked_fill(hidden, -math.inf)


@mutant(
    "01.mask_scores",
    "You wrote float16's limit in every dtype. It fits, but in bfloat16 or float32 a real score can lie below −65504, "
    "and then the hidden ones win.",
)
def one_limit_for_all(scores, hidden):
    return scores.masked_fill(hidden, torch.finfo(torch.float16).min)


@mutant(
    "01.mask_scores",
    "The result is right, but the caller's scores changed too. A method whose name ends in an underscore works in "
    "place; use the one without it.",
)
def in_place(scores, hidden):
    return scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)


CANDIDATES = {
    "fp64": (64, 11, 52, torch.finfo(torch.float64).max),
    "fp32": (32, 8, 23, torch.finfo(torch.float32).max),
    "bf16": (16, 8, 7, torch.finfo(torch.bfloat16).max),
    "fp16": (16, 5, 10, 65504.0),
    "e5m2": (8, 5, 2, 57344.0),
    "e4m3fn": (8, 4, 3, 448.0),
}


def chosen(largest, smallest, step, floor=lambda e, m: 2.0 ** (2 - 2 ** (e - 1)), key=lambda bits, m: (bits, -m)):
    """choose_format, with the parts that mutants replace: the smallest number that counts, and the preference."""
    fitting = [
        (*key(bits, m), name)
        for name, (bits, e, m, top) in CANDIDATES.items()
        if largest <= top and smallest >= floor(e, m) and 2.0**-m <= step
    ]
    return min(fitting)[-1] if fitting else None


@mutant(
    "01.choose_format",
    "You looked at overflow and precision, not at the small end. A format whose smallest normal number is larger than "
    "`smallest` loses it, or most of its bits.",
)
def small_end_ignored(largest, smallest, step):
    return chosen(largest, smallest, step, floor=lambda e, m: 0.0)


@mutant(
    "01.choose_format",
    "You refused formats that just suffice. A magnitude equal to the largest number does not overflow, and a step "
    "equal to the coarsest acceptable one is acceptable: compare with <= and >=.",
)
def limits_refused(largest, smallest, step):
    return chosen(math.nextafter(largest, math.inf), math.nextafter(smallest, 0), math.nextafter(step, 0))


@mutant(
    "01.choose_format",
    "You accepted subnormal numbers at the small end. They exist, but with fewer bits the smaller they are: the "
    "demanded step does not hold there. `smallest` must be a normal number.",
)
def subnormals_accepted(largest, smallest, step):
    return chosen(largest, smallest, step, floor=lambda e, m: 2.0 ** (2 - 2 ** (e - 1) - m))


@mutant(
    "01.choose_format",
    "Between two formats of the same width you took the one with more range. Both have range enough here; the spare "
    "bits are worth more in the mantissa.",
)
def range_preferred(largest, smallest, step):
    return chosen(largest, smallest, step, key=lambda bits, m: (bits, m))


@mutant(
    "01.choose_format",
    "You took a format that fits, not the narrowest one. Memory and bandwidth are paid by the bit: compare the widths "
    "of all that fit.",
)
def first_that_fits(largest, smallest, step):
    return chosen(largest, smallest, step, key=lambda bits, m: (-bits, -m))
