"""Histograms in powers of two, and where their values land in a format once a loss scale has multiplied them.

Bin k counts the magnitudes in [2^k, 2^(k+1)): the exponent of a float, and the unit in which a loss scale moves.
"""

import math

import torch

from ampedu import formats

OUTCOMES = ("zero", "subnormal", "normal", "overflow")


def exponent_counts(*tensors: torch.Tensor) -> tuple[dict[int, int], int]:
    """(counts, zeros) of all elements: how many magnitudes lie in [2^k, 2^(k+1)) for each k, and how many are 0.

    tensors: of any floating-point dtype, shape and device. Bins are exact, subnormal numbers included, since frexp
    reads the exponent and every dtype widens to float64 without rounding. counts has its keys in order and no empty
    bins. TypeError: not a floating-point tensor. ValueError: no tensor, or inf and NaN, which have no bin.
    """
    if not tensors:
        raise ValueError("exponent_counts needs at least one tensor, for example exponent_counts(weight.grad)")
    found: dict[int, int] = {}
    zeros = 0
    for tensor in tensors:
        values = _as_float64(tensor)
        nonzero = values[values != 0]
        zeros += values.numel() - nonzero.numel()
        bins, numbers = torch.unique(torch.frexp(nonzero).exponent - 1, return_counts=True)
        for k, number in zip(bins.tolist(), numbers.tolist(), strict=True):
            found[k] = found.get(k, 0) + number
    return dict(sorted(found.items())), zeros


def _as_float64(tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        kind = f"a tensor of {tensor.dtype}" if isinstance(tensor, torch.Tensor) else f"{type(tensor).__name__}"
        raise TypeError(f"exponent_counts takes floating-point tensors, not {kind}")
    values = tensor.detach().flatten().to("cpu").double()  # a GPU may lack float64
    wrong = int((~values.isfinite()).sum())
    if wrong:
        cure = "count the finite ones, tensor[tensor.isfinite()]"
        raise ValueError(f"{wrong} of {values.numel()} values are inf or NaN and have no bin: {cure}")
    return values


def bounds(fmt) -> tuple[int, int, int]:
    """(first subnormal bin, first normal bin, last normal bin) of a format that has zero and a sign.

    A value from half of the smallest subnormal number on rounds up to it, so the first subnormal bin starts there.
    """
    fmt = formats.get(fmt)
    if not fmt.has_subnormals:
        raise ValueError(f"{fmt.name} has no sign and no zero, so it cannot hold gradients: choose another format")
    return fmt.min_exponent - fmt.mantissa_bits - 1, fmt.min_exponent, fmt.max_exponent


def outcome(k: int, fmt) -> str:
    """What a format makes of the magnitudes of bin k: one of ``OUTCOMES``.

    Bins count as a whole: in the first subnormal bin only the value 2^k itself, a tie, goes to zero, and the last
    normal bin may hold a few values above the largest number of the format.
    """
    subnormal, normal, last = bounds(fmt)
    return "zero" if k < subnormal else "subnormal" if k < normal else "normal" if k <= last else "overflow"


def shares(counts: dict[int, int], fmt, scale_log2: int = 0) -> dict[str, float]:
    """Fractions of the nonzero values by outcome after multiplication by 2^scale_log2; all 0 without values."""
    found = dict.fromkeys(OUTCOMES, 0)
    for k, number in counts.items():
        found[outcome(k + scale_log2, fmt)] += number
    total = sum(counts.values()) or 1
    return {name: number / total for name, number in found.items()}


def percent(fraction: float) -> str:
    """A fraction as percent: 0 and 100 only where nothing, or everything, is meant."""
    if fraction in (0, 1):
        return f"{100 * fraction:.0f} %"
    if fraction < 0.0001:
        return "< 0.01 %"
    if fraction > 0.9999:
        return "> 99.99 %"
    value = 100 * fraction
    digits = 2 if value < 1 or value > 99 else 1
    # Halves go up, as in the browser.
    return f"{math.floor(value * 10**digits + 0.5) / 10**digits:.{digits}f} %"
