"""The feedback loop of loss scaling and the history of a scale: what they draw and say, and that nothing is cut off."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from ampedu import plots
from ampedu.scaling import LossScale, ScalerLog

FIVE = LossScale(growth_interval=5)
ALL = {
    "loop": plots.scaler_loop,
    "loop, other constants": lambda: plots.scaler_loop(1.25, 0.125, 100_000),
    "short": lambda: plots.scale_history(FIVE.simulate("x......")),
    "one step": lambda: plots.scale_history(FIVE.simulate(".")),
    "no floor": lambda: plots.scale_history(FIVE.simulate("x" * 170)),
    "long": lambda: plots.scale_history(LossScale().simulate("xx" + "." * 5000 + "x" + "." * 900)),
    "inf": lambda: plots.scale_history(LossScale(math.inf).simulate("x.x")),
}


def patches(picture, gid):
    return [patch for axes in picture.figure.axes for patch in axes.patches if patch.get_gid() == gid]


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_pictures_are_small_readable_and_whole(draw):
    picture = draw()
    png = picture.png()
    assert len(png) <= 40_000
    assert Image.open(io.BytesIO(png)).size[0] == 900
    canvas = picture.figure.bbox
    for axes in picture.figure.axes:
        for text in [*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label]:
            if text.get_text():
                box = text.get_window_extent()
                assert text.get_fontsize() >= 9
                assert box.x0 >= canvas.x0 - 1 and box.x1 <= canvas.x1 + 1, text.get_text()
                assert box.y0 >= canvas.y0 - 1 and box.y1 <= canvas.y1 + 1, text.get_text()


def test_the_loop_holds_the_constants_in_the_picture_and_in_words():
    picture = plots.scaler_loop(3.0, 0.25, 100)
    written = " ".join(text.get_text() for text in picture.figure.axes[0].texts)
    assert all(word in written for word in ("S × 3", "S × 0.25", "100?", "scaler.step(optimizer)"))
    assert "multiplied by 0.25" in picture.alt and "reaches 100, S is multiplied by 3" in picture.alt


def test_the_history_draws_scales_of_the_steps_skips_and_tracker():
    picture = plots.scale_history(FIVE.simulate("x....." + "x"))
    (scale,), (tracker,) = patches(picture, "scale"), patches(picture, "tracker")
    np.testing.assert_array_equal(scale.get_data().values, [16, 15, 15, 15, 15, 15, 16])
    np.testing.assert_array_equal(tracker.get_data().values, [0, 1, 2, 3, 4, 0, 0])
    (skips,) = [line for line in picture.figure.axes[0].lines if line.get_gid() == "skips"]
    assert skips.get_xydata().tolist() == [[0, 16], [6, 16]]
    np.testing.assert_array_equal(patches(picture, "interval")[0].get_data().values, [5] * 7)
    assert picture.alt == (
        "Loss scale over 7 steps, from 65536 to 32768: 2 skipped (after step 0, 6), 1 times grown (after step 5)."
    )


def test_an_interval_far_above_the_tracker_is_left_out():
    picture = plots.scale_history(LossScale().simulate("...."))
    assert patches(picture, "interval") == [] and len(picture.figure.legends[0].get_texts()) == 3


def test_a_log_is_drawn_as_its_rows():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    with ScalerLog(scaler) as log:
        for bad in (1, 0, 0):
            scaler.scale(weight * (math.inf if bad else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert plots.scale_history(log).png() == plots.scale_history(FIVE.simulate("x..")).png()
    assert plots.scale_history(log.rows).png() == plots.scale_history(log).png()


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(ValueError, match="no scaler"):
        plots.scale_history([])
    with pytest.raises(TypeError, match=r"not LossScale: draw LossScale\.simulate"):
        plots.scale_history(FIVE.trace(".."))
    with pytest.raises(TypeError, match="not float"):
        plots.scale_history([65536.0])
