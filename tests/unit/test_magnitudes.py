"""Histograms in powers of two against exact arithmetic, and shares of outcomes against torch's own casts."""

import math

import pytest
import torch

from ampedu.formats import FORMATS
from ampedu.magnitudes import OUTCOMES, bounds, exponent_counts, outcome, percent, shares
from ampedu.plots.magnitudes import magnitudes

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "e5m2": torch.float8_e5m2, "fp32": torch.float32}


def test_bins_are_exact_at_their_edges():
    values = [1.0, math.nextafter(2, 0), 2.0, -2.0, 3.999, 4.0, 0.0, -0.0, math.nextafter(1, 0)]
    assert exponent_counts(torch.tensor(values, dtype=torch.float64)) == ({-1: 1, 0: 2, 1: 3, 2: 1}, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_power_of_two_of_a_dtype_is_a_bin_subnormal_ones_too(dtype):
    info = torch.finfo(dtype)
    low, high = math.frexp(info.smallest_normal * info.eps)[1] - 1, math.frexp(info.max)[1] - 1
    values = torch.tensor([2.0**k for k in range(low, high + 1)], dtype=torch.float64).to(dtype)
    assert exponent_counts(values) == (dict.fromkeys(range(low, high + 1), 1), 0)


def test_several_tensors_of_any_shape_are_counted_together():
    parts = torch.ones(2, 3), torch.full((), 5.0, dtype=torch.float16, requires_grad=True), torch.zeros(4)
    assert exponent_counts(*parts, torch.empty(0)) == ({0: 6, 2: 1}, 4)


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="at least one tensor"):
        exponent_counts()
    with pytest.raises(ValueError, match=r"2 of 3 values are inf or NaN .* tensor\[tensor.isfinite\(\)\]"):
        exponent_counts(torch.tensor([1.0, math.inf, math.nan]))
    with pytest.raises(TypeError, match=r"not a tensor of torch\.int64"):
        exponent_counts(torch.arange(3))
    with pytest.raises(TypeError, match="not list"):
        exponent_counts([1.0])


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("scale", [0, 12, 24])
def test_shares_agree_with_casts_by_torch(name, scale):
    generator = torch.Generator().manual_seed(scale)
    # 1.0625 to 1.5 within each binade: no ties, and nothing beyond the largest value in the last bin.
    exponent = torch.randint(-45, 3, (4000,), generator=generator).double()
    values = (1.0625 + torch.rand(4000, generator=generator).double() * 0.4375) * 2**exponent
    cast = (values * 2.0**scale).float().to(DTYPES[name]).double()
    least = torch.finfo(DTYPES[name]).smallest_normal
    expected = {
        "zero": (cast == 0).double().mean().item(),
        "subnormal": ((cast != 0) & (values * 2.0**scale < least)).double().mean().item(),
        "overflow": cast.isinf().double().mean().item(),
    }
    found = shares(exponent_counts(values)[0], name, scale)
    assert {kind: found[kind] for kind in expected} == pytest.approx(expected, abs=1e-12)
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.has_subnormals])
def test_the_four_outcomes_follow_each_other(name):
    seen = [outcome(k, name) for k in range(-1100, 1100)]
    assert list(dict.fromkeys(seen)) == list(OUTCOMES)
    assert seen.count("normal") == bounds(name)[2] - bounds(name)[1] + 1


def test_a_format_without_zero_holds_no_gradients():
    with pytest.raises(ValueError, match="e8m0 has no sign and no zero"):
        shares({0: 1}, "e8m0")


def test_an_empty_histogram_has_no_shares():
    assert shares({}, "fp16") == dict.fromkeys(OUTCOMES, 0)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 %"), (1, "100 %"), (1e-6, "< 0.01 %"), (1 - 1e-6, "> 99.99 %"), (0.25, "25.0 %"), (0.005, "0.50 %")],
)
def test_percentages(fraction, text):
    assert percent(fraction) == text


def test_the_picture_tells_the_same_in_words_and_stays_small():
    drawn = magnitudes({-26: 10, -20: 60, -10: 30}, ["fp16", "e5m2"], 4, "updates")
    assert "fp16, scaled by 2^4: 0 % become zero, 70.0 % are subnormal, 0 % overflow." in drawn.alt
    assert "e5m2, scaled by 2^4: 10.0 % become zero" in drawn.alt
    bars = drawn.figure.axes[0].patches
    assert [(bar.get_x(), bar.get_height()) for bar in bars] == [(-22, 10), (-16, 60), (-6, 30)]
    assert drawn.figure.axes[0].get_title(loc="left") == "Updates, multiplied by $2^{4}$"
    assert len(drawn.png()) < 100_000
