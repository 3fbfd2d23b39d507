"""Properties of rounding for formats of any size, against fractions."""

import math
from fractions import Fraction

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ampedu.formats import FloatFormat, decode, encode, neighbours, round_to, ulp
from tests.unit.round_oracle import round_fraction

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def formats(draw, widest=8, most=23):
    """Formats whose values are float32 values (the default), of every flavour and many biases."""
    flavour = draw(st.sampled_from(["ieee", "ieee", "fn", "fnuz", "finite", "scale"]))
    e = draw(st.integers(2, widest))
    m = 0 if flavour == "scale" else draw(st.integers(1, most))
    bias = 2 ** (e - 1) - 1 + draw(st.integers(-3, 8))
    if widest == 8:
        lowest = -127 - -bias if flavour == "scale" else -149 + m - (1 - bias)
        reserved = flavour in ("ieee", "scale")
        assume(lowest <= 0 and 2**e - 1 - reserved - bias <= 127)
    else:
        assume(1 - bias >= -1021 and 2**e - 1 - bias <= 1023)
    return FloatFormat("drawn", e, m, bias, flavour)


@st.composite
def numbers_near(draw, fmt):
    """float32 numbers, half of them where the format has something to decide."""
    if draw(st.booleans()):
        return draw(FLOAT32)
    code = draw(st.integers(0, fmt.max_code))
    x = (
        decode(code, fmt) * draw(st.sampled_from([1.0, 1.0, 0.5, 1.5, 1.25]))
        + draw(st.sampled_from([0, 1, 2, 3])) * (fmt.min_subnormal or 0.0) / 2
    )
    x = torch.tensor(x).item() if abs(x) < 3.4e38 else 0.0
    return math.copysign(x, draw(st.sampled_from([1, -1])))


@st.composite
def cases(draw):
    fmt = draw(formats())
    return fmt, draw(numbers_near(fmt))


def rounded(x, fmt, mode="nearest", **how):
    return round_to(torch.tensor(x), fmt, mode, **how).item()


def same(a, b):
    return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (math.isnan(a) and math.isnan(b))


@given(cases(), st.sampled_from(["nearest", "toward_zero"]), st.sampled_from([None, "saturate"]))
def test_any_format_rounds_as_fractions_do(case, mode, overflow):
    fmt, x = case
    exact = round_fraction(x, fmt.exponent_bits, fmt.mantissa_bits, fmt.bias, fmt.flavour, mode, overflow)
    assert same(rounded(x, fmt, mode, overflow=overflow), exact)
    if mode == "nearest":
        code = encode(x, fmt, overflow)
        assert same(decode(code, fmt), exact)


@given(formats(widest=11, most=52), st.floats(allow_nan=False))
def test_encode_of_float64_rounds_as_fractions_do(fmt, x):
    exact = round_fraction(x, fmt.exponent_bits, fmt.mantissa_bits, fmt.bias, fmt.flavour)
    assert same(decode(encode(x, fmt), fmt), exact)


@given(cases())
def test_nearest_is_nearest(case):
    fmt, x = case
    y = rounded(x, fmt)
    assume(abs(x) <= fmt.max and math.isfinite(y))
    below, above = neighbours(x, fmt)
    error = abs(Fraction(y) - Fraction(x))
    for other in (below, above):
        if other is not None and math.isfinite(other):
            assert error <= abs(Fraction(other) - Fraction(x))
    if fmt.signed:
        assert 2 * error <= Fraction(ulp(x, fmt))


@given(cases(), FLOAT32, st.sampled_from(["nearest", "toward_zero"]))
def test_monotone_idempotent_and_symmetric(case, other, mode):
    fmt, x = case
    y, z = rounded(x, fmt, mode, overflow="saturate"), rounded(other, fmt, mode, overflow="saturate")
    if not math.isnan(y):
        assert rounded(y, fmt, mode) == y
    if not math.isnan(y) and not math.isnan(z) and x <= other:
        assert y <= z
    if fmt.signed:
        assert rounded(-x, fmt, mode, overflow="saturate") == -y


@given(cases())
def test_toward_zero_never_grows_and_is_the_neighbor_below(case):
    fmt, x = case
    assume(fmt.signed)
    y = rounded(x, fmt, "toward_zero")
    assert abs(y) <= abs(x)
    if y != x:
        assert abs(y) == neighbours(abs(x), fmt)[0]


@given(cases(), st.integers(0, 2**31))
def test_stochastic_gives_one_of_the_two_neighbors(case, seed):
    fmt, x = case
    assume(x >= 0 or fmt.signed)
    y = rounded(x, fmt, "stochastic", overflow="saturate", generator=torch.Generator().manual_seed(seed))
    if round_fraction(x, fmt.exponent_bits, fmt.mantissa_bits, fmt.bias, fmt.flavour, overflow="saturate") == x:
        assert y == x
    elif abs(x) > fmt.max:
        assert y == math.copysign(fmt.max, x)
    else:
        assert y in neighbours(x, fmt)
