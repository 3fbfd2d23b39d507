"""Stochastic rounding: unbiased within five standard deviations, reproducible, independent between elements."""

import math
from fractions import Fraction

import pytest
import torch

from ampedu import _rounding
from ampedu.formats import neighbours, round_to

DRAWS = 1 << 20

# A number per row between two values of the format; the last ones are subnormal there, some with small chances.
NUMBERS = [
    *[("fp16", 1.0003), ("bf16", -1.0011), ("tf32", 1234.56), ("e4m3fn", 100.7), ("e5m2", -0.0301)],
    *[("e4m3fnuz", 201.3), ("e5m2fnuz", -3.3), ("e3m4", 9.9), ("e3m2", 0.77), ("e2m3", -5.55), ("e2m1", 4.6)],
    *[("e8m0", 2.6), ("e8m0", 1.3e-38), ("e8m0", 7e-39)],
    *[("fp16", 2.0**-24 * 0.3), ("fp16", -(2.0**-24) * 5.71), ("fp16", 2.0**-24 / 4096), ("bf16", 1.1e-39)],
    *[("tf32", -1.5e-41), ("e4m3fn", 2.0**-9 * 0.01), ("e5m2", 2.0**-16 * 2.6), ("e4m3fnuz", 2.0**-10 * 0.9)],
    *[("e2m1", 0.07), ("e2m1", -0.8), ("e2m3", 2.0**-3 * 3.3), ("e3m2", 0.0625 * 1.99)],
]


def native(x):
    return torch.tensor(x, dtype=torch.float32)


def chance(x, fmt):
    """Return (value nearer to zero, value farther, exact probability of the farther one) for a float32 number x."""
    near, far = sorted(neighbours(x, fmt), key=abs)
    return near, far, (Fraction(x) - Fraction(near)) / (Fraction(far) - Fraction(near))


def deviation(rounding, fmt, x, seed=0):
    """How many standard deviations the count of far results is from what the exact probability expects."""
    x = native(x)
    near, far, p = chance(x.item(), fmt)
    results = rounding(x.expand(DRAWS), fmt, torch.Generator().manual_seed(seed))
    ups = (results == far).sum().item()
    assert ups + (results == near).sum().item() == DRAWS
    return abs(ups - DRAWS * float(p)) / math.sqrt(DRAWS * float(p) * float(1 - p))


def stochastic(x, fmt, generator):
    return round_to(x, fmt, "stochastic", generator=generator)


@pytest.mark.parametrize(("fmt", "x"), NUMBERS)
def test_unbiased(fmt, x):
    assert deviation(stochastic, fmt, x) < 5


@pytest.mark.parametrize(("fmt", "x"), [("fp16", 1.0003), ("e2m1", 4.6), ("fp16", 2.0**-24 / 4096)])
def test_the_bound_catches_wrong_implementations(fmt, x):
    def eight_bits(x, fmt, generator):
        near, far, p = chance(x[0].item(), fmt)
        draw = torch.randint(0, 256, x.shape, generator=generator)
        return torch.where(draw < math.floor(p * 256), far, near)

    assert deviation(lambda x, fmt, generator: round_to(x, fmt), fmt, x) > 5
    assert deviation(lambda x, fmt, generator: round_to(x, fmt, "toward_zero"), fmt, x) > 5
    assert deviation(eight_bits, fmt, x) > 5


def test_the_mean_of_many_is_the_number():
    x = native([0.1, -0.037, 3.3, 0.001])
    mean = round_to(x.expand(200_000, 4), "e4m3fn", "stochastic", generator=torch.Generator().manual_seed(3)).mean(0)
    for got, number in zip(mean.tolist(), x.tolist(), strict=True):
        near, far, p = chance(number, "e4m3fn")
        assert abs(got - number) < 5 * abs(far - near) * math.sqrt(p * (1 - p) / 200_000)
    assert abs(round_to(x, "e4m3fn")[0] - x[0]) > 1e-3


def test_every_chance_of_a_normal_number_is_exact(monkeypatch):
    """With the random word set by hand, the far value comes up exactly where word < probability * 2^31."""
    x = native(1 + 2.0**-3 * (0.5 + 2.0**-20))
    _, far, p = chance(x.item(), "e4m3fn")
    threshold = int(p * 2**31)
    assert Fraction(threshold, 2**31) == p
    for word, expected in ((threshold - 1, far), (threshold, 1.0), (0, far), (2**31 - 1, 1.0)):
        monkeypatch.setattr(torch.Tensor, "random_", lambda self, generator=None, word=word: self.fill_(word))
        assert round_to(x, "e4m3fn", "stochastic").item() == expected


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3fn", "e8m0"])
def test_reproducible_with_a_generator_and_from_the_global_seed(fmt):
    x = torch.linspace(0.1, 9, 2 * _rounding.BLOCK + 77)

    def draw(seed):
        return round_to(x, fmt, "stochastic", generator=torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    generator = torch.Generator().manual_seed(1)
    first = round_to(x, fmt, "stochastic", generator=generator)
    assert not torch.equal(first, round_to(x, fmt, "stochastic", generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        assert torch.equal(round_to(x, fmt, "stochastic"), first)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e2m1"])
def test_elements_and_blocks_are_independent(fmt):
    n = 4 * _rounding.BLOCK
    x = native(1.0 + 2.0**-9 if fmt != "e2m1" else 1.25)
    x = native(1.0 + 2.0**-11) if fmt == "fp16" else native(1.0 + 2.0**-8) if fmt == "bf16" else x
    up = (round_to(x.expand(n), fmt, "stochastic", generator=torch.Generator().manual_seed(5)) > x).double() - 0.5
    for lag in (1, 2, 624, _rounding.BLOCK):
        agreement = (up[lag:] * up[:-lag]).sum() * 4
        assert abs(agreement) < 5 * math.sqrt(n - lag)


def test_between_the_largest_value_and_what_would_follow_it():
    generator = torch.Generator().manual_seed(0)
    x = native(448 + 32 * 0.25).expand(DRAWS)
    over = round_to(x, "e4m3fn", "stochastic", "inf", generator).isnan().sum().item()
    assert abs(over - DRAWS / 4) < 5 * math.sqrt(DRAWS * 3 / 16)
    assert (round_to(x, "e4m3fn", "stochastic", None, generator) == 448).all()
    x = native(-65504 - 24.0).expand(DRAWS)
    y = round_to(x, "fp16", "stochastic", None, generator)
    over = y.isinf().sum().item()
    assert abs(over - DRAWS * 0.75) < 5 * math.sqrt(DRAWS * 3 / 16)
    assert set(y.unique().tolist()) == {-math.inf, -65504.0}
