"""Pictures of collected gradients: what their bars say against torch's casts, and that nothing is cut off."""

import io

import pytest
import torch
from PIL import Image
from torch import nn

from ampedu import plots
from ampedu.gradients import GradientRange


@pytest.fixture(scope="module")
def seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 2))
    with GradientRange(model) as found:
        (model(torch.randn(64, 16)).square().mean() * 1e-4).backward()
    return found


def widths(picture, name):
    bars = {patch.get_gid(): patch.get_width() for patch in picture.figure.axes[0].patches}
    return [bars.get(f"{kind} {name}", 0) for kind in ("zero", "subnormal", "normal", "overflow")]


@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**36])
def test_bars_are_the_fractions_of_torchs_casts(seen, scale):
    picture = plots.gradient_layers(seen, "fp16", scale)
    for name, (gradient,) in seen.parameters.items():
        cast = (gradient * scale).half().float().abs()
        small = cast < torch.finfo(torch.float16).smallest_normal
        parts = [cast == 0, small & (cast > 0), ~small & cast.isfinite(), cast.isinf()]
        expected = [100 * int(part.sum()) / int((gradient != 0).sum()) for part in parts]
        expected[0] -= 100 * int((gradient == 0).sum()) / int((gradient != 0).sum())
        assert widths(picture, name) == pytest.approx(expected)
    assert [label.get_text() for label in picture.figure.axes[0].get_yticklabels()] == list(seen.parameters)


def test_modules_are_named_with_their_class(seen):
    picture = plots.gradient_layers(seen, "bf16", of="activations")
    labels = [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]
    assert labels == ["0 Linear", "1 ReLU", "2 Linear"]
    assert "1 ReLU: 0 % zero, 0 % subnormal, 0 % overflow" in picture.alt


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_pictures_are_small_and_whole(seen, scale):
    drawn = [plots.gradient_layers(seen, "fp16", scale), plots.gradient_histogram(seen, ["fp16", "bf16"], scale)]
    for picture in drawn:
        png = picture.png()
        assert len(png) <= 40_000 and Image.open(io.BytesIO(png)).size[0] == 900
        for axes in picture.figure.axes:
            for text in [axes._left_title, axes.xaxis.label, *axes.get_yticklabels()]:
                box = text.get_window_extent()
                assert box.x0 >= -1 and box.x1 <= picture.figure.bbox.x1 + 1, text.get_text()


def test_the_histogram_moves_with_the_scale(seen):
    before, after = (plots.gradient_histogram(seen, "fp16", scale, "parameters") for scale in (1.0, 4.0))
    assert "scaled by 2^0" in before.alt and "scaled by 2^2" in after.alt and "gradients of parameters" in after.alt


def test_what_cannot_be_drawn_is_named(seen):
    with pytest.raises(ValueError, match="whole powers of two"):
        plots.gradient_histogram(seen, "fp16", 3.0)
    with pytest.raises(ValueError, match="choose from parameters, activations"):
        plots.gradient_layers(seen, "fp16", of="weights")
    with pytest.raises(ValueError, match="no gradients of parameters were collected"):
        plots.gradient_layers(GradientRange(nn.Linear(1, 1)))
    many = nn.Sequential(*[nn.Linear(1, 1) for _ in range(41)])
    with GradientRange(many) as found:
        many(torch.ones(1, 1)).sum().backward()
    with pytest.raises(ValueError, match="82 rows are too many"):
        plots.gradient_layers(found)
