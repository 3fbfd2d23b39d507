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

BLOCK = 1 << 17
RANDOM_BITS = 31
FLOAT32_MAX = float(torch.finfo(torch.float32).max)


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
    else:
        kernel = _Generic(block, target, mode, generator, x.device)
    for start in range(0, count, block):
        kernel(source[start : start + block], result[start : start + block])
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


class _Generic:
    """Round to any (exponent, mantissa) format with the arithmetic of the module's docstring."""

    def __init__(self, block: int, target: Target, mode: str, generator: torch.Generator | None, device: torch.device):
        self.target, self.mode, self.generator = target, mode, generator
        wide = not fits_float32(target)
        self.dtype, self.ints = (torch.float64, torch.int64) if wide else (torch.float32, torch.int32)
        self.exponent_mask = 0x7FF << 52 if wide else 0xFF << 23
        self.precision, self.top = (52, 1023) if wide else (23, 127)
        buffers = 3 if mode == "stochastic" else 2
        self.buffers = torch.empty(buffers, block, dtype=self.dtype, device=device)
        if mode == "stochastic":
            self.threshold, self.random = torch.empty(2, block, dtype=torch.int32, device=device)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        target, n = self.target, x.numel()
        a, b = self.buffers[0, :n], self.buffers[1, :n]
        self._clamp(x, a)
        torch.bitwise_and(a.view(self.ints), self.exponent_mask, out=b.view(self.ints))
        b.clamp_min_(2.0**target.min_exponent)
        if self.mode == "nearest":
            b.mul_(1.5 * 2.0 ** (self.precision - target.mantissa_bits))
            a.add_(b).sub_(b)
        else:
            b.mul_(2.0**-target.mantissa_bits)
            a.abs_().div_(b)
            if self.mode == "toward_zero":
                a.trunc_()
            else:
                self._step_up_by_chance(a)
            a.mul_(b)
        self._overflow(x, a, b)
        if target.unsigned:
            a.masked_fill_(x < 0, math.nan)
        elif target.negative_zero:
            torch.copysign(a, x, out=a)
        else:
            torch.copysign(a, x, out=a).add_(0.0)  # -0 + 0 is +0 in every rounding that torch uses
        out.copy_(a)

    def _clamp(self, x: torch.Tensor, a: torch.Tensor) -> None:
        """Limit x to where the arithmetic is exact; what lies beyond rounds like the limit. NaN stays."""
        target = self.target
        truncates = self.mode == "toward_zero" or target.overflow == "saturate"
        high = target.max if truncates else 2.0 ** (target.max_exponent + 1)
        low = 2.0**target.min_exponent if target.unsigned else -high
        if self.dtype == torch.float32:
            torch.clamp(x, low, high, out=a)
        else:
            a.copy_(x).clamp_(low, high)

    def _step_up_by_chance(self, t: torch.Tensor) -> None:
        """Replace t >= 0 by floor(t) + 1 with probability t - floor(t), cut to RANDOM_BITS bits, else by floor(t)."""
        n = t.numel()
        whole, threshold, random = self.buffers[2, :n], self.threshold[:n], self.random[:n]
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
            # Finite values were cut to the largest one; only an infinite x is left to treat.
            if target.overflow == "nan":
                a.add_(b.copy_(x).mul_(0.0))
            else:
                a.add_(b.copy_(x).abs_().sub_(FLOAT32_MAX).clamp_min_(0.0))
        elif target.next_is_power and target.max_exponent >= 0:
            # Scaled so that the first value beyond max overflows to inf and max does not.
            a.mul_(2.0 ** (self.top - target.max_exponent)).mul_(2.0 ** (target.max_exponent - self.top))
            if target.overflow == "nan":
                a.add_(torch.mul(a, 0.0, out=b))
        else:
            a.masked_fill_(torch.abs(a, out=b) > target.max, math.nan if target.overflow == "nan" else math.inf)


def fits_float32(target: Target) -> bool:
    """True where every constant of the kernels is a normal float32 and x + c keeps the bits that it needs."""
    m, low, high = target.mantissa_bits, target.min_exponent, target.max_exponent
    return m <= 21 and low - m >= -126 and high + 1 + 23 - m <= 126
