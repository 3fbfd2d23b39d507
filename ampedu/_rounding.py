"""Rounding kernels: float32 tensors to any small binary format, with plain numbers for arguments.

``ampedu.formats.round_to`` is the function to call; this file only holds its arithmetic. One step of a format at x is
q = 2^(max(exponent of x, min_exponent) - mantissa_bits). The kernels work with these exact facts of binary arithmetic:

- nearest: with c = 1.5 * 2^(P - mantissa_bits) * max(2^exponent(x), 2^min_exponent), where P is the number of mantissa
  bits of the arithmetic (23 or 52), the sum x + c has unit q, so (x + c) - c is x rounded to a multiple of q, ties to
  even. No second rounding happens anywhere, subnormals included.
- toward zero and stochastic: x / q is exact (q is a power of two), so its integer part and its fraction are exact.

The arithmetic is float32 where every constant above fits, else float64. On the CPU a long tensor is worked through in
blocks that stay in the cache, with in-place operations only: that is what makes it about as fast as one copy.
"""

import math
from dataclasses import dataclass

import torch

BLOCK = 1 << 16
RANDOM_BITS = 31
FLOAT32_MAX = float(torch.finfo(torch.float32).max)


class NanRefused(ValueError):
    """NaN was to be rounded to a format without NaN."""


@dataclass(frozen=True)
class Target:
    """What a kernel must know of a format: exponents are of the value 2^e, ``max`` is the largest finite value.

    ``overflow`` is what a result beyond ``max`` becomes: "inf", "nan" or "saturate".
    ``next_is_power`` says that the value after ``max`` would be the power of two 2^(max_exponent + 1).
    """

    mantissa_bits: int
    min_exponent: int
    max_exponent: int
    max: float
    next_is_power: bool
    overflow: str
    negative_zero: bool
    unsigned: bool
    refuses_nan: bool
    native: torch.dtype | None


def round_blocks(x: torch.Tensor, target: Target, mode: str, generator: torch.Generator | None) -> torch.Tensor:
    """Return a new contiguous float32 tensor of the shape of ``x`` with every element rounded; ``x`` is only read."""
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    source, result = x.contiguous().reshape(-1), out.view(-1)
    count = source.numel()
    block = min(count, BLOCK) if x.device.type == "cpu" else count
    if not count:
        return out
    if mode == "nearest" and target.native is not None:
        kernel = _Native(block, target, x.device)
    elif (
        (target.min_exponent, target.max_exponent) == (-126, 127) and target.next_is_power and target.overflow != "nan"
    ):
        kernel = _Aligned(block, target, mode, generator, x.device)
    elif target.unsigned:
        kernel = _PowersOfTwo(block, target, mode, generator, x.device)
    else:
        kernel = _Generic(block, target, mode, generator, x.device)
    total = 0.0
    for start in range(0, count, block):
        part = result[start : start + block]
        kernel(source[start : start + block], part)
        if target.refuses_nan:
            total = total + part.sum()
    # A sum is NaN if a term is, and seldom else (inf - inf): far cheaper than a test of every element.
    if target.refuses_nan and math.isnan(total) and x.isnan().any():
        raise NanRefused
    return out


class _Native:
    """Round by torch's own cast to ``target.native``, whose overflow goes to inf."""

    def __init__(self, block: int, target: Target, device: torch.device):
        self.target = target
        self.small = torch.empty(block, dtype=target.native, device=device)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        small = self.small[: x.numel()]
        if self.target.overflow == "saturate":
            torch.clamp(x, -self.target.max, self.target.max, out=out)
            x = out
        small.copy_(x)
        out.copy_(small)


class _Aligned:
    """Round to a format with the exponents of float32 by integer arithmetic on the bits: only low bits are dropped."""

    def __init__(self, block: int, target: Target, mode: str, generator: torch.Generator | None, device: torch.device):
        self.target, self.mode, self.generator = target, mode, generator
        self.drop = 23 - target.mantissa_bits
        self.buffer = torch.empty(block, dtype=torch.int32, device=device)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        limit = self.target.max if self.target.overflow == "saturate" else math.inf
        bits, extra = out.view(torch.int32), self.buffer[: x.numel()]
        torch.clamp(x, -limit, limit, out=out)
        if self.mode == "nearest":
            # Half a step less one, plus one where the last kept bit is odd: a tie carries only to an even result.
            torch.bitwise_right_shift(bits, self.drop, out=extra).bitwise_and_(1).add_((1 << self.drop - 1) - 1)
            bits.add_(extra)
        elif self.mode == "stochastic":
            bits.add_(extra.random_(generator=self.generator).bitwise_and_((1 << self.drop) - 1))
        bits.bitwise_and_(-1 << self.drop)
        # The bits of NaN may have become infinity: 0 * x is NaN again, and a zero of the same sign for all else.
        nan = extra.view(torch.float32)
        out.add_(torch.clamp(x, -FLOAT32_MAX, FLOAT32_MAX, out=nan).mul_(0.0))


class _Generic:
    """Round to any (exponent, mantissa) format with the arithmetic of the module's docstring."""

    def __init__(self, block: int, target: Target, mode: str, generator: torch.Generator | None, device: torch.device):
        self.target, self.mode, self.generator = target, mode, generator
        self.wide = not target.unsigned and not fits_float32(target)
        self.dtype, self.ints = (torch.float64, torch.int64) if self.wide else (torch.float32, torch.int32)
        self.exponent_mask = 0x7FF << 52 if self.wide else 0xFF << 23
        self.precision, self.top = (52, 1023) if self.wide else (23, 127)
        self.buffers = torch.empty(2 + self.wide, block, dtype=self.dtype, device=device)
        if mode == "stochastic":
            self.integers = torch.empty(2, block, dtype=torch.int32, device=device)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        target, n = self.target, x.numel()
        a, b, c = self.buffers[2, :n] if self.wide else out, self.buffers[0, :n], self.buffers[1, :n]
        self._clamp(x, a)
        torch.bitwise_and(a.view(self.ints), self.exponent_mask, out=b.view(self.ints))
        b.clamp_min_(2.0**target.min_exponent)
        if self.mode == "nearest":
            b.mul_(1.5 * 2.0 ** (self.precision - target.mantissa_bits))
            a.add_(b).sub_(b)
        else:
            b.mul_(2.0**-target.mantissa_bits)
            a.div_(b)
            if self.mode == "toward_zero":
                a.trunc_()
            else:
                self._step_up_by_chance(a.abs_(), c)
            a.mul_(b)
        self._overflow(x, a, b)
        if target.negative_zero and self.mode != "toward_zero":
            torch.copysign(a, x, out=a)
        elif not target.negative_zero:
            if self.mode == "stochastic":
                torch.copysign(a, x, out=a)
            if self.mode != "nearest":
                a.add_(0.0)  # -0 + 0 is +0
        if self.wide:
            out.copy_(a)

    def _clamp(self, x: torch.Tensor, a: torch.Tensor) -> None:
        """Limit x to where the arithmetic is exact; what lies beyond rounds like the limit. NaN stays."""
        target = self.target
        truncates = self.mode == "toward_zero" or target.overflow == "saturate"
        high = target.max if truncates else 2.0 ** (target.max_exponent + 1)
        if self.wide:
            a.copy_(x).clamp_(-high, high)
        else:
            torch.clamp(x, -high, high, out=a)

    def _step_up_by_chance(self, t: torch.Tensor, whole: torch.Tensor) -> None:
        """Replace t >= 0 by floor(t) + 1 with probability t - floor(t), cut to RANDOM_BITS bits, else by floor(t)."""
        threshold, random = self.integers[:, : t.numel()]
        torch.floor(t, out=whole)
        t.sub_(whole).mul_(2.0**RANDOM_BITS)
        threshold.copy_(t)
        random.random_(generator=self.generator)
        # The sign bit of random - threshold is the event random < threshold; shifted down it is -1 or 0.
        random.sub_(threshold).bitwise_right_shift_(31)
        torch.sub(whole, t.copy_(random), out=t)

    def _overflow(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """Turn every result beyond the largest value into what ``target.overflow`` says; b is scratch space."""
        target = self.target
        if target.overflow == "saturate":
            return
        if self.mode == "toward_zero":
            # Finite values were cut to the largest one; only an infinite x is left to treat. Signed zeros stay.
            b.copy_(x)
            if target.overflow == "nan":
                a.add_(b.mul_(0.0))
            else:
                a.sub_(b.clamp_(-FLOAT32_MAX, FLOAT32_MAX).sub_(x))
        elif target.next_is_power and target.max_exponent >= 0:
            # Scaled so that the first value beyond max overflows to inf and max does not.
            a.mul_(2.0 ** (self.top - target.max_exponent)).mul_(2.0 ** (target.max_exponent - self.top))
            if target.overflow == "nan":
                a.add_(torch.mul(a, 0.0, out=b))
        else:
            a.masked_fill_(torch.abs(a, out=b) > target.max, math.nan if target.overflow == "nan" else math.inf)


class _PowersOfTwo(_Generic):
    """Round to a scale format: 2^k for whole k, no zero, no sign. Needs min_exponent >= -127."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        target, n = self.target, x.numel()
        b, c = self.buffers[0, :n], self.buffers[1, :n]
        low, high = 2.0**target.min_exponent, math.inf
        if self.mode == "toward_zero" or target.overflow == "saturate":
            high = target.max
        # Negative numbers become NaN below; their magnitude keeps the arithmetic away from slow subnormals.
        torch.abs(x, out=out).clamp_(low, high)
        torch.bitwise_and(out.view(self.ints), self.exponent_mask, out=b.view(self.ints))
        out.div_(b.clamp_min_(low))
        # out is now in [1, 2), or NaN for NaN and infinity.
        if self.mode == "nearest":
            out.add_(0.5)
        if self.mode == "stochastic":
            self._step_up_by_chance(out, c)
        else:
            out.floor_()
        out.mul_(b)
        self._overflow(x, out, b)
        # The sign bit, spread over the word, is the NaN of all ones where x is negative; x + 0 takes the sign from -0.
        spread = torch.add(x, 0.0, out=b).view(self.ints).bitwise_right_shift_(31)
        out.view(self.ints).bitwise_or_(spread)


def fits_float32(target: Target) -> bool:
    """True where every constant of the kernels is a normal float32 and x + c keeps the bits that it needs."""
    m, low, high = target.mantissa_bits, target.min_exponent, target.max_exponent
    return m <= 21 and low - m >= -126 and high + 1 + 23 - m <= 126
