"""The parameters of a floating-point format, and what follows from them: largest value, smallest steps, precision."""

import math
from dataclasses import dataclass

FLAVOURS = ("ieee", "fn", "fnuz", "finite", "scale")


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format of at most 64 bits whose values are all float64 values.

    ``bias`` defaults to 2^(exponent_bits - 1) - 1. Raises ValueError for numbers that make no format.
    Sizes are in bits, values in float64, exponents are those of 2.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None
    flavour: str = "ieee"

    def __post_init__(self):
        def refuse(problem: str):
            raise ValueError(f"format {self.name!r}: {problem}")

        if self.flavour not in FLAVOURS:
            refuse(f"flavour must be one of {', '.join(FLAVOURS)}, got {self.flavour!r}")
        for field in ("exponent_bits", "mantissa_bits", "bias"):
            number = getattr(self, field)
            if number is None and field == "bias":
                object.__setattr__(self, "bias", 2 ** (self.exponent_bits - 1) - 1)
            elif not isinstance(number, int) or isinstance(number, bool):
                refuse(f"{field} must be an integer, got {number!r}")
            elif field == "exponent_bits" and not 1 <= number <= 11:
                refuse(f"exponent_bits must be 1 to 11, got {number}")
        if self.flavour == "scale" and self.mantissa_bits != 0:
            refuse(f"a scale format has no mantissa: mantissa_bits must be 0, got {self.mantissa_bits}")
        if self.flavour != "scale" and not 1 <= self.mantissa_bits <= 52:
            refuse(f"mantissa_bits must be 1 to 52, got {self.mantissa_bits}")
        if self.flavour == "ieee" and self.exponent_bits < 2:
            refuse("flavour ieee needs at least 2 exponent bits: one exponent code is spent on infinity and NaN")
        if self.min_exponent < -1022 or self.max_exponent > 1023:
            refuse(
                f"normal exponents {self.min_exponent} to {self.max_exponent} leave the range of float64 "
                f"(-1022 to 1023): choose another bias or fewer exponent bits"
            )

    @property
    def signed(self) -> bool:
        return self.flavour != "scale"

    @property
    def bits(self) -> int:
        return self.signed + self.exponent_bits + self.mantissa_bits

    @property
    def has_inf(self) -> bool:
        return self.flavour == "ieee"

    @property
    def has_nan(self) -> bool:
        return self.flavour != "finite"

    @property
    def has_zero(self) -> bool:
        return self.flavour != "scale"

    @property
    def has_negative_zero(self) -> bool:
        return self.flavour not in ("fnuz", "scale")

    @property
    def has_subnormals(self) -> bool:
        return self.flavour != "scale"

    @property
    def max_code(self) -> int:
        """Code of the largest finite value."""
        all_ones = 2 ** (self.exponent_bits + self.mantissa_bits) - 1
        reserved = {"ieee": 2**self.mantissa_bits, "fn": 1, "scale": 1, "fnuz": 0, "finite": 0}
        return all_ones - reserved[self.flavour]

    @property
    def inf_code(self) -> int | None:
        """Code of +infinity; None where the format has none."""
        return self.max_code + 1 if self.has_inf else None

    @property
    def nan_code(self) -> int | None:
        """Code that encode gives for NaN; None where the format has none. IEEE: the positive quiet NaN."""
        if self.flavour == "finite":
            return None
        if self.flavour == "fnuz":
            return 2 ** (self.bits - 1)
        return self.max_code + 1 + (2 ** (self.mantissa_bits - 1) if self.has_inf else 0)

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value."""
        return 1 - self.bias if self.has_subnormals else -self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value."""
        return (self.max_code >> self.mantissa_bits) - self.bias

    @property
    def max(self) -> float:
        """Largest finite value."""
        fraction = self.max_code % 2**self.mantissa_bits
        return math.ldexp(2**self.mantissa_bits + fraction, self.max_exponent - self.mantissa_bits)

    @property
    def min_normal(self) -> float:
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float | None:
        """Smallest positive subnormal value; None where the format has no subnormals."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits) if self.has_subnormals else None

    @property
    def eps(self) -> float:
        """Gap between 1 and the next larger value (also where 1 itself lies outside the range)."""
        return 2.0**-self.mantissa_bits

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest in the normal range: eps / 2."""
        return self.eps / 2

    @property
    def digits(self) -> float:
        """Precision in decimal digits: (mantissa_bits + 1) * log10(2)."""
        return (self.mantissa_bits + 1) * math.log10(2)

    @property
    def guaranteed_digits(self) -> int:
        """Decimal digits that survive decimal -> format -> decimal: floor(mantissa_bits * log10(2)), C's FLT_DIG."""
        return math.floor(self.mantissa_bits * math.log10(2))

    @property
    def overflow_threshold(self) -> float:
        """Midpoint of ``max`` and the value that would follow it: where rounding to nearest starts to overflow.

        At the midpoint itself the tie goes to the even neighbor: overflow, except in e4m3fn-like formats (max is even).
        inf for fp64, whose threshold is no float64.
        """
        half = 2.0 ** (self.max_exponent - self.mantissa_bits - 1)
        return self.max + half

    @property
    def max_exact_integer(self) -> int:
        """Largest n such that every integer 1..n is a value of the format; 0 where 1 is none."""
        smallest = self.min_subnormal if self.has_subnormals else self.min_normal
        return min(2 ** (self.mantissa_bits + 1), math.floor(self.max)) if smallest <= 1.0 else 0
