"""Color pictures side by side: what is drawn is what was given."""

import numpy as np
import pytest
import torch

from ampedu.plots import images


def drawn(picture):
    return [np.asarray(axes.images[0].get_array()) for axes in picture.figure.axes]


def test_colors_arrive_pixel_by_pixel():
    a, b = torch.rand(4, 5, 3), torch.zeros(2, 2, 3, dtype=torch.float16)
    picture = images({"a": a, "b": b}, title="Two", alt="Two pictures.")
    first, second = drawn(picture)
    assert np.array_equal(first, a.numpy()) and second.shape == (2, 2, 3) and not second.any()
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == ["a", "b"]
    assert picture.alt == "Two pictures."


def test_what_is_no_color_is_clipped_or_white():
    values = torch.tensor([[[-1.0, 0.5, 2.0], [torch.nan, torch.inf, -torch.inf]]])
    (colors,) = drawn(images({"x": values}, title="t", alt="One picture."))
    assert colors.tolist() == [[[0.0, 0.5, 1.0], [1.0, 1.0, 1.0]]]


def test_low_precision_and_gradients_are_no_obstacle():
    values = torch.full((2, 2, 3), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert (drawn(images({"x": values}, title="t", alt="One picture."))[0] == 0.5).all()


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 1), (16, 3)])
def test_another_shape_is_named(shape):
    with pytest.raises(ValueError, match=r"'x' has shape .* \(height, width, 3\)"):
        images({"x": torch.zeros(shape)}, title="t", alt="One picture.")


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one picture"):
        images({}, title="t", alt="Nothing.")
