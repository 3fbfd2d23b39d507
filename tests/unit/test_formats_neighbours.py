"""Neighbors and ulp: every finite value of the small formats, the edges, math.nextafter and math.ulp."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampedu.formats import FORMATS, decode, neighbours, ulp

SMALL = ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m4", "e8m0", "e3m2", "e2m3", "e2m1"]


def values(name):
    """Sorted finite values of the format, zero once."""
    every = decode(torch.arange(2 ** FORMATS[name].bits), name)
    return sorted(set(every[every.isfinite()].tolist()))


@pytest.mark.parametrize("name", SMALL)
def test_neighbours_of_every_value_and_of_every_midpoint(name):
    line = values(name)
    beyond = math.inf if FORMATS[name].has_inf else None
    for i, x in enumerate(line):
        below = line[i - 1] if i else beyond and -beyond
        assert neighbours(x, name) == (below, line[i + 1] if i + 1 < len(line) else beyond)
        if i:
            assert neighbours((line[i - 1] + x) / 2, name) == (line[i - 1], x)


@pytest.mark.parametrize("name", SMALL)
def test_ulp_is_the_gap_to_the_next_larger_magnitude(name):
    line = [v for v in values(name) if v >= 0]
    for low, high in itertools.pairwise(line):
        assert ulp(low, name) == high - low
        assert ulp((low + high) / 2, name) == high - low
        if FORMATS[name].signed:
            assert ulp(-low, name) == high - low


def test_ulp_at_the_edges():
    assert ulp(65504.0, "fp16") == 32.0
    assert ulp(65520.0, "fp16") == ulp(math.inf, "fp16") == ulp(449.0, "e4m3fn") == math.inf
    assert math.isnan(ulp(math.nan, "fp16"))
    assert ulp(0.0, "fp16") == ulp(-0.0, "fp16") == ulp(1e-30, "fp16") == 2.0**-24
    assert math.isnan(ulp(0.0, "e8m0")) and math.isnan(ulp(-1.0, "e8m0"))
    assert ulp(2.0**-140, "e8m0") == 2.0**-127


def test_ulp_of_a_tensor():
    x = torch.tensor([[1.0, -3.0], [70000.0, 0.0]])
    expected = torch.tensor([[2.0**-10, 2.0**-9], [math.inf, 2.0**-24]], dtype=torch.float64)
    assert torch.equal(ulp(x, "fp16"), expected)
    assert torch.equal(ulp(x.t(), "fp16"), expected.t())


@given(st.floats(allow_nan=False))
def test_fp64_is_python_float(x):
    assert ulp(x, "fp64") == math.ulp(x)
    below, above = neighbours(x, "fp64")
    assert below == (None if x == -math.inf else math.nextafter(x, -math.inf))
    assert above == (None if x == math.inf else math.nextafter(x, math.inf))


@given(st.floats(width=16, allow_nan=False, allow_infinity=False))
def test_fp16_neighbours_are_those_of_numpy(x):
    with np.errstate(all="ignore"):
        expected = (float(np.nextafter(np.float16(x), np.float16(to))) for to in (-np.inf, np.inf))
        assert neighbours(x, "fp16") == tuple(expected)


def test_neighbours_at_the_edges():
    assert neighbours(math.inf, "fp16") == (65504.0, None)
    assert neighbours(-math.inf, "e4m3fn") == (None, -448.0)
    assert neighbours(1e30, "fp16") == (65504.0, math.inf)
    assert neighbours(1e30, "e4m3fn") == (448.0, None)
    assert neighbours(0.0, "e8m0") == neighbours(-5.0, "e8m0") == neighbours(2.0**-128, "e8m0") == (None, 2.0**-127)
    up = neighbours(-(2.0**-24), "fp16")[1]
    assert up == 0 and math.copysign(1.0, up) == -1.0
    assert math.copysign(1.0, neighbours(-(2.0**-10), "e4m3fnuz")[1]) == 1.0
    with pytest.raises(ValueError, match="NaN has no neighbors"):
        neighbours(math.nan, "fp16")
