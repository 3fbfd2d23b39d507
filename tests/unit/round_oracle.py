"""Rounding by the book, with fractions only: what the tests of ampedu.formats compare against. Imports no ampedu."""

import math
from fractions import Fraction


def top(e, m, bias, flavour):
    """Return the largest finite value of the format as a Fraction."""
    last = Fraction(2) ** ((2**e - 1 - bias) - (flavour in ("ieee", "scale")))
    missing = {"ieee": 1, "fn": 2, "fnuz": 1, "finite": 1, "scale": 2**m}[flavour]
    return last * (2 - Fraction(missing, 2**m))


def round_fraction(x, e, m, bias, flavour, mode="nearest", overflow=None):
    """Return x (a float) rounded to the format as a float; mode "nearest" or "toward_zero"."""
    negative = math.copysign(1.0, x) < 0
    if math.isnan(x) or (flavour == "scale" and x < 0):
        return math.nan
    biggest = top(e, m, bias, flavour)
    infinite = math.isinf(x)
    if not infinite:
        a = Fraction(abs(x))
        low = 1 - bias if flavour != "scale" else -bias
        if flavour == "scale":
            a = max(a, Fraction(2) ** low)
        exponent = low
        if a:
            exponent = a.numerator.bit_length() - a.denominator.bit_length()
            exponent -= Fraction(2) ** exponent > a
        step = Fraction(2) ** (max(exponent, low) - m)
        n, rest = divmod(a, step)
        if mode == "nearest" and (2 * rest > step or (2 * rest == step and n % 2 == 1)):
            n += 1
        value = n * step
        if mode == "toward_zero":
            value = min(value, biggest)
    if infinite or value > biggest:
        if overflow == "saturate" or (overflow is None and flavour in ("fn", "finite")):
            value = biggest
        else:
            return math.copysign(math.inf, x) if flavour == "ieee" else math.nan
    result = float(value)
    return -result if negative and flavour != "scale" and (flavour != "fnuz" or value) else result
