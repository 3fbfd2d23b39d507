"""Floating-point formats as bits and values: the registry, decode, encode, neighbours, ulp and rounding.

A format is three numbers and a flavour. With E the exponent field and M the mantissa field of a code,

    E > 0:  value = (-1)^sign * 2^(E - bias) * (1 + M / 2^mantissa_bits)     normal
    E = 0:  value = (-1)^sign * 2^(1 - bias) * (0 + M / 2^mantissa_bits)     zero and subnormal

and the flavour says which codes are special:

    ieee    all-ones exponent: infinity (M = 0) and NaN                                     IEEE 754-2019, 3.4
    fn      no infinity; NaN is all ones in E and M                                         OCP OFP8 1.0, table 1
    fnuz    no infinity, no -0; NaN is the code of -0                                       arXiv:2206.02915
    finite  no infinity, no NaN                                                             OCP MX 1.0, 5.3.2 and 5.3.3
    scale   only powers of two 2^(E - bias): no sign, no zero, no mantissa; NaN is all ones OCP MX 1.0, 5.4.1

Everything here is exact: encode and decode work on float64 bits with integers, and no function rounds twice.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ampedu import _rounding
from ampedu._float_format import FloatFormat

MODES = ("nearest", "stochastic", "toward_zero")
OVERFLOWS = (None, "inf", "saturate")


class UnknownFormatError(KeyError, ValueError):
    """No format has this name. The message lists the names and the closest one."""

    def __str__(self) -> str:
        return str(self.args[0])


_ALL = {
    f.name: f
    for f in (
        FloatFormat("fp64", 11, 52, 1023),
        FloatFormat("fp32", 8, 23, 127),
        FloatFormat("tf32", 8, 10, 127),
        FloatFormat("bf16", 8, 7, 127),
        FloatFormat("fp16", 5, 10, 15),
        FloatFormat("e4m3fn", 4, 3, 7, "fn"),
        FloatFormat("e5m2", 5, 2, 15),
        FloatFormat("e4m3fnuz", 4, 3, 8, "fnuz"),
        FloatFormat("e5m2fnuz", 5, 2, 16, "fnuz"),
        FloatFormat("e3m4", 3, 4, 3),
        FloatFormat("e8m0", 8, 0, 127, "scale"),
        FloatFormat("e3m2", 3, 2, 3, "finite"),
        FloatFormat("e2m3", 2, 3, 1, "finite"),
        FloatFormat("e2m1", 2, 1, 1, "finite"),
    )
}

_ALIASES = {
    **{"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "bfloat16": "bf16"},
    **{"float16": "fp16", "half": "fp16"},
    **{f"fp8_{n}": n for n in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m4")},
    **{f"float8_{n}": n for n in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m4")},
    **{"e8m0fnu": "e8m0", "float8_e8m0fnu": "e8m0", "fp6_e3m2": "e3m2", "float6_e3m2fn": "e3m2"},
    **{"fp6_e2m3": "e2m3", "float6_e2m3fn": "e2m3", "fp4_e2m1": "e2m1", "float4_e2m1fn": "e2m1"},
    **{"float4_e2m1fn_x2": "e2m1"},
}

# Formats of torch whose cast rounds and overflows as round_to does by default, by their parameters.
_NATIVE = {(5, 10, 15, "ieee"): torch.float16, (8, 7, 127, "ieee"): torch.bfloat16}


class Registry(Mapping):
    """Formats by name; a lookup also takes the names that torch, ml_dtypes and the OCP documents use."""

    def __getitem__(self, name: str) -> FloatFormat:
        key = _ALIASES.get(name, name) if isinstance(name, str) else name
        if isinstance(key, str) and key in _ALL:
            return _ALL[key]
        close = difflib.get_close_matches(str(name).lower(), [*_ALL, *_ALIASES], n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownFormatError(f"unknown format {name!r}.{hint} Known formats: {', '.join(_ALL)}")

    def __iter__(self):
        return iter(_ALL)

    def __len__(self):
        return len(_ALL)

    def __repr__(self):
        return f"FORMATS({', '.join(_ALL)})"


FORMATS = Registry()


def get(fmt: "str | FloatFormat | torch.dtype") -> FloatFormat:
    """Return the format that a name, an alias, a torch.dtype or a FloatFormat stands for.

    Raises UnknownFormatError (a KeyError and a ValueError) that lists the names.
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    if isinstance(fmt, torch.dtype):
        return FORMATS[str(fmt).removeprefix("torch.")]
    return FORMATS[fmt]


@dataclass(frozen=True)
class Fields:
    """A code taken apart. ``kind`` is "zero", "subnormal", "normal", "inf" or "nan"; value is a float.

    ``formula`` is the arithmetic that gives the value, for example "(-1)^0 × 2^(15-15) × (1 + 512/1024)".
    """

    sign: int
    exponent: int
    mantissa: int
    kind: str
    value: float
    formula: str


def fields(code: int, fmt) -> Fields:
    """Split a code (an int of fmt.bits bits) into sign, exponent and mantissa fields, with kind, value and formula."""
    fmt = get(fmt)
    value = decode(_one_code(code, fmt), fmt)
    magnitude, sign = code, 0
    if fmt.signed:
        magnitude, sign = code % 2 ** (fmt.bits - 1), code >> (fmt.bits - 1)
    exponent, mantissa = magnitude >> fmt.mantissa_bits, magnitude % 2**fmt.mantissa_bits
    if math.isnan(value):
        kind, formula = "nan", "NaN"
    elif math.isinf(value):
        kind, formula = "inf", f"(-1)^{sign} × ∞"
    elif not fmt.signed:
        kind, formula = "normal", f"2^({exponent}-{fmt.bias})"
    else:
        kind = "normal" if exponent else "subnormal" if mantissa else "zero"
        power = f"2^({exponent or 1}-{fmt.bias})" if fmt.bias >= 0 else f"2^({exponent or 1}+{-fmt.bias})"
        formula = f"(-1)^{sign} × {power} × ({int(exponent > 0)} + {mantissa}/{2**fmt.mantissa_bits})"
    return Fields(sign, exponent, mantissa, kind, value, formula)


def decode(code: "int | torch.Tensor", fmt) -> "float | torch.Tensor":
    """Return the exact value of a code: int -> float, integer tensor of any shape -> float64 tensor of that shape.

    Codes are 0 to 2^bits - 1; a 64-bit code in an int64 tensor is its two's complement. Raises TypeError for codes
    that are no integers and ValueError for codes that the format does not have.
    """
    fmt = get(fmt)
    if not isinstance(code, torch.Tensor):
        code = _one_code(code, fmt)
        return decode(torch.tensor(code - (code >> 63 << 64)), fmt).item()
    if code.dtype.is_floating_point or code.dtype.is_complex or code.dtype == torch.bool:
        raise TypeError(f"decode takes integer codes, got a {code.dtype} tensor: view the bits as integers first")
    code = code.to(torch.int64)
    if fmt.bits < 64 and code.numel() and (code.min() < 0 or code.max() > 2**fmt.bits - 1):
        raise ValueError(f"{fmt.name} codes are 0 to {2**fmt.bits - 1}, got {code.min().item()} to {code.max().item()}")
    m = fmt.mantissa_bits
    magnitude = code & (2 ** (fmt.bits - 1) - 1) if fmt.signed else code
    exponent, mantissa = magnitude >> m, magnitude & (2**m - 1)
    value = ((exponent - fmt.bias + 1023 << 52) | (mantissa << (52 - m))).view(torch.float64)
    if fmt.has_subnormals:
        value = torch.where(exponent > 0, value, mantissa.double() * fmt.min_subnormal)
    if fmt.has_nan and fmt.flavour != "fnuz":
        value = value.masked_fill(magnitude > fmt.max_code, math.nan)
    if fmt.has_inf:
        value = value.masked_fill(magnitude == fmt.inf_code, math.inf)
    if fmt.signed:
        value = torch.where(code >> (fmt.bits - 1) & 1 == 1, -value, value)
    return value.masked_fill(code == fmt.nan_code, math.nan) if fmt.flavour == "fnuz" else value


def encode(x: "float | torch.Tensor", fmt, overflow: str | None = None) -> "int | torch.Tensor":
    """Return the code of the value nearest to x, ties to even: float -> int, floating tensor -> int64 tensor.

    x is taken as float64 (exact for every narrower dtype) and rounded once. A 64-bit code in a tensor is its two's
    complement. ``overflow`` is that of round_to. NaN becomes the one code ``nan_code``; raises ValueError where the
    format has none.
    """
    fmt = get(fmt)
    if not isinstance(x, torch.Tensor):
        return encode(torch.tensor(_one_float(x), dtype=torch.float64), fmt, overflow).item() % 2**fmt.bits
    if not x.dtype.is_floating_point:
        raise TypeError(f"encode takes floating-point values, got a {x.dtype} tensor: use x.double()")
    overflow = _overflow_rule(fmt, overflow)
    bits = x.detach().double().contiguous().view(torch.int64)
    m, low = fmt.mantissa_bits, fmt.min_exponent
    field = bits >> 52 & 0x7FF
    significand = (bits & (1 << 52) - 1) | ((field > 0).long() << 52)
    # x = significand * 2^(field - 1075); one step of the format at x is 2^(exponent - m).
    exponent = (field.clamp_min(1) - 1023).clamp_min(low)
    drop = (exponent - m + 1075 - field.clamp_min(1)).clamp_max(60)
    steps = significand >> drop
    rest, half = significand - (steps << drop), (torch.ones_like(drop) << drop) >> 1
    steps += ((rest > half) | ((rest == half) & (steps & 1 == 1) & (drop > 0))).long()
    code = (exponent - low << m) + steps
    if not fmt.signed:
        code = (code - 1).clamp_min(0)
    special = {"inf": fmt.inf_code, "nan": fmt.nan_code, "saturate": fmt.max_code}[overflow]
    is_nan = (field == 0x7FF) & (bits & (1 << 52) - 1 != 0)
    code = code.masked_fill((code > fmt.max_code) | (field == 0x7FF), special)
    negative = bits < 0
    if fmt.signed:
        keeps_sign = negative & (code != fmt.nan_code) & ((code > 0) | fmt.has_negative_zero)
        code = code | (keeps_sign.long() << (fmt.bits - 1))
    else:
        is_nan |= negative & (bits << 1 != 0)
    if not fmt.has_nan:
        if is_nan.any():
            raise _nan_refused(fmt)
        return code
    return code.masked_fill(is_nan, fmt.nan_code)


def neighbours(x: float, fmt) -> tuple[float | None, float | None]:
    """Return (below, above): the largest value of the format below x and the smallest above it, never x itself.

    IEEE 754-2019, 5.3.1 (nextDown, nextUp): the neighbor above ``max`` is inf where the format has it. None stands
    where no neighbor exists. From the smallest negative value, the neighbor above is -0.0 where the format has it.
    Raises ValueError for NaN.
    """
    fmt, x = get(fmt), _one_float(x)
    if math.isnan(x):
        raise ValueError("NaN has no neighbors")
    below, above = _around(abs(x), fmt)
    if x > 0 or not fmt.signed:
        return (below, above) if x >= 0 else (None, fmt.min_normal)
    if x == 0:
        return -above, above
    return None if above is None else -above, 0.0 if below == 0 and not fmt.has_negative_zero else -below


def _around(a: float, fmt: FloatFormat) -> tuple[float | None, float | None]:
    """Values of the format just below and just above a >= 0; None where none is (below 0 as well)."""
    if a > fmt.max:
        return fmt.max, math.inf if fmt.has_inf and a < math.inf else None
    if a < fmt.min_normal and not fmt.has_subnormals:
        return None, fmt.min_normal
    m, low = fmt.mantissa_bits, fmt.min_exponent
    exponent = max(math.frexp(a)[1] - 1, low) if a else low
    steps = math.ldexp(a, m - exponent)
    code = (exponent - low << m) + math.floor(steps) - (not fmt.signed)
    exact = steps == math.floor(steps)
    below, above = code - exact, code + 1
    return (
        decode(below, fmt) if below >= 0 else None,
        decode(above, fmt) if above <= fmt.max_code else math.inf if fmt.has_inf else None,
    )


def ulp(x: "float | torch.Tensor", fmt) -> "float | torch.Tensor":
    """Return the unit in the last place at x: the gap from |x| to the next larger magnitude. float64, shape of x.

    The edges are those of Python's math.ulp: at zero the smallest positive value, at ``max`` the gap below the
    (missing) next value, that is 2^(max_exponent - mantissa_bits); beyond ``max`` and at inf, inf; NaN at NaN. For an x
    between two values it is their gap. In a scale format zero and negative numbers give NaN.
    """
    fmt = get(fmt)
    if not isinstance(x, torch.Tensor):
        return ulp(torch.tensor(_one_float(x), dtype=torch.float64), fmt).item()
    a = x.detach().double().abs()
    exponent = ((a.contiguous().view(torch.int64) >> 52) - 1023).clamp_min(fmt.min_exponent) - fmt.mantissa_bits
    gap = torch.ldexp(torch.ones_like(a), exponent)
    gap = gap.masked_fill(a > fmt.max, math.inf).masked_fill(a.isnan(), math.nan)
    return gap if fmt.signed else gap.masked_fill(x.detach() <= 0, math.nan)


def round_to(
    x: torch.Tensor,
    fmt,
    mode: str = "nearest",
    overflow: str | None = None,
    generator: torch.Generator | None = None,
    straight_through: bool = False,
) -> torch.Tensor:
    """Round every element of a float32 tensor to a value of the format; returns a new float32 tensor, shape of x.

    mode
        "nearest": ties to even. "toward_zero": the largest magnitude that is not above |x|. "stochastic": up with
        probability (x - below) / (above - below), cut to a multiple of 2^-31 (31 random bits per element): the expected
        value is x, exactly for normal x and less than 2^-31 steps nearer to zero for subnormal x.
    overflow
        What a magnitude becomes that rounds beyond ``max``, and what infinity becomes. None: infinity where the format
        has it; e4m3fn, e3m2, e2m3 and e2m1 (and flavours fn and finite) saturate; fnuz and scale formats give NaN.
        "inf": infinity, else NaN, else ValueError. "saturate": the largest value (OFP8 1.0, 5.2.1, saturating mode).
        Toward zero, a finite x never overflows: it becomes ``max`` (IEEE 754-2019, 7.4); only infinity is treated so.
        Stochastic rounding acts as if the exponent had no limit, so between ``max`` and the value that would follow it,
        x overflows with the usual probability (the order of IEEE P3109: round to precision, then treat overflow).
    generator
        Source of the random bits, on the device of x; None is torch's own.
    straight_through
        True: the gradient passes unchanged, as if no rounding were there. False: the result carries no gradient.

    Signed zero is kept (fnuz has no -0). NaN stays NaN, or raises ValueError where the format has none. A scale format
    (e8m0) takes zero and what is too small to its smallest value, and negative numbers to NaN. fp32 and fp64 hold every
    float32: the result is a copy, save that "saturate" takes infinity to the largest float32.

    Raises TypeError for anything but a float32 tensor, ValueError for an unknown mode or overflow, or for a format with
    values that float32 cannot hold.
    """
    fmt = get(fmt)
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        found = f"a {x.dtype} tensor" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(
            f"round_to takes a float32 tensor, got {found}: use x.float() where that is exact, "
            f"or decode(encode(x, fmt), fmt), which rounds float64 once"
        )
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    rule = _overflow_rule(fmt, overflow)
    if straight_through:
        return _StraightThrough.apply(x, fmt, mode, rule, generator)
    return _round(x.detach(), fmt, mode, rule, generator)


def _round(x: torch.Tensor, fmt: FloatFormat, mode: str, rule: str, generator) -> torch.Tensor:
    m, low, high = fmt.mantissa_bits, fmt.min_exponent, fmt.max_exponent
    if fmt.has_inf and m >= 23 and low - m <= -149 and high >= 127:
        limit = _rounding.FLOAT32_MAX
        return x.clamp(-limit, limit) if rule == "saturate" else x.clone()
    if m > 23 or low - m < (-149 if fmt.signed else -127) or fmt.max > _rounding.FLOAT32_MAX:
        raise ValueError(
            f"round_to computes in float32, whose range or precision is too small for {fmt.name}: "
            f"use decode(encode(x, fmt), fmt), which is exact in float64"
        )
    target = _rounding.Target(
        mantissa_bits=m,
        min_exponent=low,
        max_exponent=high,
        max=fmt.max,
        next_is_power=fmt.max_code % 2**m == 2**m - 1,
        overflow=rule,
        negative_zero=fmt.has_negative_zero,
        unsigned=not fmt.signed,
        refuses_nan=not fmt.has_nan,
        native=_NATIVE.get((fmt.exponent_bits, m, fmt.bias, fmt.flavour)),
    )
    try:
        with torch.no_grad():
            return _rounding.round_blocks(x, target, mode, generator)
    except _rounding.NanRefused:
        raise _nan_refused(fmt) from None


class _StraightThrough(torch.autograd.Function):
    """Rounding whose gradient is that of the identity (Bengio et al., arXiv:1308.3432)."""

    @staticmethod
    def forward(ctx, x, *how):
        return _round(x, *how)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None, None, None


def _overflow_rule(fmt: FloatFormat, overflow: str | None) -> str:
    """What becomes of overflow: "inf", "nan" or "saturate"."""
    if overflow not in OVERFLOWS:
        raise ValueError(f'overflow must be None, "inf" or "saturate", got {overflow!r}')
    if overflow is None:
        return {"ieee": "inf", "fn": "saturate", "finite": "saturate", "fnuz": "nan", "scale": "nan"}[fmt.flavour]
    if overflow == "inf" and not fmt.has_nan:
        raise ValueError(f'{fmt.name} has neither infinity nor NaN to show an overflow: use overflow="saturate"')
    return "nan" if overflow == "inf" and not fmt.has_inf else overflow


def _nan_refused(fmt: FloatFormat) -> ValueError:
    return ValueError(f"{fmt.name} has no code for NaN: replace NaN first, for example by torch.nan_to_num")


def _one_code(code: int, fmt: FloatFormat) -> int:
    if isinstance(code, bool) or not hasattr(code, "__index__"):
        raise TypeError(f"a code is an integer, got {code!r} of type {type(code).__name__}")
    code = code.__index__()
    if not 0 <= code < 2**fmt.bits:
        raise ValueError(f"{fmt.name} codes are 0 to {2**fmt.bits - 1}, got {code}")
    return code


def _one_float(x: float) -> float:
    value = float(x)
    if isinstance(x, int) and value != x:
        raise ValueError(f"the integer {x} is no float64 value: rounding it first would round twice")
    return value
