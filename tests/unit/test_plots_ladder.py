"""The ladder's picture: bars as long as what was measured, and a rung that was not measured says so."""

import io

import pytest
from PIL import Image

from ampedu.plots import ladder
from ampedu.timing import Timing

TIMES = {"float32": Timing((0.010, 0.020, 0.030), 1), "+ autocast": Timing((0.005, 0.005, 0.005), 1), "+ compile": None}
SIZES = {"float32": 4 * 2**20, "+ autocast": 3 * 2**20, "+ compile": None}


def width(picture, gid):
    return [bar.get_width() for axes in picture.figure.axes for bar in axes.patches if bar.get_gid() == gid]


def test_bars_are_medians_and_bytes_in_one_unit():
    picture = ladder(TIMES, SIZES)
    assert width(picture, "float32: time") == pytest.approx([20])
    assert width(picture, "+ autocast: time") == pytest.approx([5])
    assert width(picture, "+ autocast: memory") == [3.0]
    assert width(picture, "+ compile: time") == width(picture, "+ compile: memory") == []
    assert "float32: 20 ms, 4.00 MiB" in picture.alt
    assert "+ compile: not timed here, not measured here" in picture.alt


def test_nothing_is_cut_off():
    picture = ladder(TIMES, SIZES, "t")
    assert Image.open(io.BytesIO(picture.png())).size[0] == 900
    canvas = picture.figure.bbox
    for axes in picture.figure.axes:
        for text in [*axes.texts, *axes.get_yticklabels()]:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= canvas.x1, text.get_text()


def test_a_ladder_of_which_nothing_was_timed_is_drawn():
    assert "not timed here" in ladder({"a": None}, {"a": 5}).alt


@pytest.mark.parametrize("times", [{}, {"other": None}])
def test_rungs_must_agree(times):
    with pytest.raises(ValueError, match="the same rungs"):
        ladder(times, {"a": 1})
