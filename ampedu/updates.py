"""Does an update change a weight? The sum, rounded into the format that the weight is stored in.

For a weight w of a format with m mantissa bits the neighbors are one gap away; a sum nearer to w than half a gap is
rounded back to w. Relative to a normal w, half a gap is between 2^-(m+2) and 2^-(m+1).
"""

import math
from dataclasses import dataclass

from ampedu import formats


@dataclass(frozen=True)
class Landing:
    """What became of ``weight + update`` in the format ``fmt`` (its name). All numbers are floats.

    weight: the weight as the format holds it. exact: the sum before it is rounded. result: what is stored.
    below, above: the neighbors of the weight. low, high: sums strictly between these two midpoints are rounded back
    to the weight; on a midpoint, the even one of the two wins.
    """

    fmt: str
    weight: float
    update: float
    exact: float
    result: float
    below: float
    above: float
    low: float
    high: float

    @property
    def lands(self) -> bool:
        """Whether the stored weight changes."""
        return self.result != self.weight

    @property
    def ratio(self) -> float:
        """Size of the update relative to the weight; inf for a weight of zero."""
        return abs(self.update / self.weight) if self.weight else math.inf

    @property
    def verdict(self) -> str:
        """One sentence for readers."""
        if not self.update:
            return f"No update: the weight stays {self.weight:.9g}."
        if not self.lands:
            return f"Lost: {self.exact:.9g} is rounded back to {self.weight:.9g}."
        if math.isinf(self.result):
            return f"Overflow: {self.exact:.9g} is beyond the largest {self.fmt} number."
        wanted, got = self.update, self.result - self.weight
        return f"Lands: the weight becomes {self.result:.9g}. It moves by {got:.4g} where {wanted:.4g} was asked for."


def update_lands(weight: float, update: float, fmt) -> Landing:
    """Round a weight into the format, add the update, round the sum, nearest with ties to even.

    weight, update: finite floats. fmt: a name, alias, dtype or FloatFormat with a sign and at most 24 bits of
    precision. The sum is taken in float64 and rounded once. ValueError: a number that is not finite, a weight beyond
    the format's largest number, or a format that cannot be used here (e8m0, fp64).
    """
    fmt = formats.get(fmt)
    check_format(fmt)
    for name, number in (("weight", weight), ("update", update)):
        if not math.isfinite(number):
            raise ValueError(f"the {name} is {number}: give a finite number")
    if abs(weight) > fmt.max:
        raise ValueError(f"the weight {weight} is beyond {fmt.max:g}, the largest {fmt.name} number")
    stored = _rounded(weight, fmt)
    exact = stored + update
    below, above = formats.neighbours(stored, fmt)
    below, above = (-math.inf if below is None else below), (math.inf if above is None else above)
    low, high = stored / 2 + below / 2, stored / 2 + above / 2
    return Landing(fmt.name, stored, float(update), exact, _rounded(exact, fmt), below, above, low, high)


def landing_limits(fmt) -> tuple[float, float]:
    """(always lost, always felt): bounds of |update / weight| for normal weights of a format with m mantissa bits.

    Up to 2^-(m+2) an update is lost, whatever the weight; above 2^-(m+1) it changes the weight. Between the two it
    depends on the mantissa, since the gap is constant within a binade while the weight doubles.
    """
    fmt = formats.get(fmt)
    check_format(fmt)
    return 2.0 ** -(fmt.mantissa_bits + 2), 2.0 ** -(fmt.mantissa_bits + 1)


def check_format(fmt) -> None:
    """ValueError unless sums of weights in this format can be taken in float64 and rounded once."""
    if not fmt.signed or fmt.mantissa_bits > 23:
        reason = "has no sign and no zero" if not fmt.signed else "is what the sum is computed in"
        raise ValueError(f"{fmt.name} cannot be used here, since it {reason}: try bf16, fp16 or fp32")


def _rounded(x: float, fmt) -> float:
    return formats.decode(formats.encode(x, fmt), fmt)
