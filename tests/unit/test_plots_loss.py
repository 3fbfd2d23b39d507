"""Pictures of lesson 2: what they draw, what they say, and that nothing is cut off."""

import io
import math

import pytest
import torch
from PIL import Image

from ampedu import plots

NAN = math.nan
ALL = {
    "landing, lost": lambda: plots.landing(1.0, -1e-4, "bf16"),
    "landing, far out": lambda: plots.landing(0.001, 5.0, "fp16"),
    "landing, negative": lambda: plots.landing(-3.3, -0.5, "e4m3fn"),
    "landing, subnormal": lambda: plots.landing(3e-8, 1e-9, "fp16"),
    "landing, at the edge": lambda: plots.landing(65504.0, 16.0, "fp16"),
    "landing, zero": lambda: plots.landing(0.0, 0.0, "fp32"),
    "landing, small format": lambda: plots.landing(6.0, 1.0, "e2m1"),
    "landing_zones": lambda: plots.landing_zones(["bf16", "fp16", "e4m3fn"]),
    "curves": lambda: plots.curves(
        [1, 2, 4], {"a": [1, NAN, 3.0], "b": [0.0, 2, 4]}, "t", "x", "y", "alt", "log2", "log"
    ),
    "matrices": lambda: plots.matrices({"m": [[0.0, NAN], [1.0, -math.inf]], "n": torch.eye(2)}, "t", "alt", "r", "c"),
}


def lines(picture, gid):
    return [line for axes in picture.figure.axes for line in axes.lines if line.get_gid() == gid]


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_pictures_are_small_readable_and_whole(draw):
    picture = draw()
    png = picture.png()
    assert len(png) <= 40_000  # a lesson has many of them
    assert Image.open(io.BytesIO(png)).size[0] == 900
    canvas = picture.figure.bbox
    for axes in picture.figure.axes:
        for text in [*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label]:
            if text.get_text():
                box = text.get_window_extent()
                assert text.get_fontsize() >= 9
                assert box.x0 >= canvas.x0 - 1 and box.x1 <= canvas.x1 + 1, text.get_text()
                assert box.y0 >= canvas.y0 - 1 and box.y1 <= canvas.y1 + 1, text.get_text()


def test_landing_draws_the_stored_weight_where_torch_puts_it():
    stored = (torch.tensor(0.02).bfloat16().float() - 1e-4).bfloat16().item()
    start = torch.tensor(0.02).bfloat16().item()
    picture = plots.landing(0.02, -1e-4, "bf16")
    (spot,) = lines(picture, "stored")
    assert spot.get_xdata()[0] == (stored - start) / 2.0**-13 == -1.0
    assert "it lands" in picture.figure.axes[0].get_title("left") and "Lands" in picture.alt


def test_landing_of_a_lost_update_stays_on_the_weight():
    picture = plots.landing(1.0, -1e-4, "bf16")
    assert lines(picture, "stored")[0].get_xdata()[0] == 0.0
    assert lines(picture, "ratio")[0].get_xdata()[0] == math.log2(1e-4)
    assert picture.alt == "bf16, weight 1, update -0.0001. Lost: 0.9999 is rounded back to 1."


def test_zones_are_half_a_gap_over_the_weight():
    (line,) = lines(plots.landing_zones(["bf16"]), "bf16")
    for weight, threshold in zip(*line.get_data(), strict=True):
        gap = 2.0 ** (math.floor(math.log2(weight)) - 7)
        assert threshold == gap / 2 / weight
    with pytest.raises(ValueError, match="e8m0"):
        plots.landing_zones(["e8m0"])


def test_curves_leave_gaps_and_mark_what_is_not_finite():
    picture = ALL["curves"]()
    (line,) = lines(picture, "a")
    assert [math.isnan(value) for value in line.get_ydata()] == [False, True, False]
    assert list(lines(picture, "a: inf or NaN")[0].get_xdata()) == [2.0]
    # zero has no place on a logarithmic axis, and is no fault either
    assert math.isnan(lines(picture, "b")[0].get_ydata()[0]) and not lines(picture, "b: inf or NaN")


def test_curves_take_tensors_and_refuse_other_lengths():
    x = torch.arange(3, dtype=torch.float16, requires_grad=True)
    (line,) = lines(plots.curves(x, {"a": x * 2}, "t", "x", "y", "alt"), "a")
    assert list(line.get_ydata()) == [0.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="'a' has 2 values for 3 places"):
        plots.curves([1, 2, 3], {"a": [1, 2]}, "t", "x", "y", "alt")


def test_matrices_write_what_is_not_a_number():
    texts = [text.get_text() for axes in ALL["matrices"]().figure.axes for text in axes.texts]
    assert texts == ["0.00", "NaN", "1.00", "-inf", "1.00", "0.00", "0.00", "1.00"]
