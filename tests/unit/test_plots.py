"""Pictures: what every one of them must have, and the data that are drawn in them."""

import io
import math
import subprocess
import sys

import matplotlib
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from ampedu import plots
from ampedu.formats import UnknownFormatError
from ampedu.plots.drawing import FIELD_COLORS

ALL = {
    "bit_layout": lambda: plots.bit_layout(["fp32", "bf16", "fp16", "e4m3fn", "e2m1", "e8m0"]),
    "bit_layout of a value": lambda: plots.bit_layout(["fp32", "bf16", "fp16"], 0.1),
    "bit_layout of 64 bits": lambda: plots.bit_layout(["fp64", "fp16"], -1 / 3),
    "number_line": lambda: plots.number_line(["e2m1", "e4m3fn", "e5m2"], -6, 6),
    "number_line, shaded": lambda: plots.number_line(["fp16", "fp32"], 0, 4),
    "density": lambda: plots.density(["fp32", "bf16", "fp16", "e4m3fn", "e5m2"]),
    "range_precision": lambda: plots.range_precision(),
    "step_scaling": lambda: plots.step_scaling(1e9, 100, 0.5, 2 / 3, 5e-6),
    "step_scaling, slow link": lambda: plots.step_scaling(7e10, 10, 0.02, 0.0, 5e-5),
    "amp_step, fp16": lambda: plots.amp_step("fp16"),
    "amp_step, bf16": lambda: plots.amp_step(torch.bfloat16),
}
TORCH = {
    "fp16": (torch.float16, torch.int16),
    "bf16": (torch.bfloat16, torch.int16),
    "e4m3fn": (torch.float8_e4m3fn, torch.uint8),
    "e5m2": (torch.float8_e5m2, torch.uint8),
}


def torch_values(name):
    """Every finite value of a format, by torch, ascending."""
    dtype, integer = TORCH[name]
    info = torch.iinfo(integer)
    codes = torch.arange(info.min, info.max + 1).to(integer)
    values = codes.view(dtype).double()
    return torch.unique(values[values.isfinite()])


def artists(picture, kind, gid=None):
    return [a for axes in picture.figure.axes for a in axes.findobj(kind) if gid is None or a.get_gid() == gid]


def shown_texts(figure):
    """Texts that a reader sees: no tick labels of hidden axes or outside their limits."""
    figure.canvas.draw()
    found = [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        found += [*axes.texts, axes._left_title, *(axes.get_legend().get_texts() if axes.get_legend() else [])]
        if axes.axison:
            for index, axis in enumerate((axes.xaxis, axes.yaxis)):
                low, high = sorted(axis.get_view_interval())
                labels = axis.get_ticklabels()
                found += [axis.label, *(label for label in labels if low <= label.get_position()[index] <= high)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_every_picture_is_small_and_as_wide_as_a_notebook(draw):
    png = draw().png()
    assert len(png) <= 100_000
    width, height = Image.open(io.BytesIO(png)).size
    assert width == 900 and 150 <= height <= 800


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_the_same_call_gives_the_same_bytes_whatever_style_the_notebook_set(draw):
    before = draw().png()
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "savefig.dpi": 50, "lines.linewidth": 9}):
        assert draw().png() == before


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_the_same_picture_gives_the_same_bytes_each_time(draw):
    drawn = draw()
    assert drawn.png() == drawn.png() == drawn.png()


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_text_is_at_least_nine_points(draw):
    texts = shown_texts(draw().figure)
    assert texts and min(t.get_fontsize() for t in texts) >= 9


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_no_text_is_cut_off(draw):
    figure = draw().figure
    canvas = figure.bbox
    for text in shown_texts(figure):
        box = text.get_window_extent()
        assert box.x0 >= canvas.x0 - 1 and box.x1 <= canvas.x1 + 1, text.get_text()
        assert box.y0 >= canvas.y0 - 1 and box.y1 <= canvas.y1 + 1, text.get_text()


@pytest.mark.parametrize("name", ["bit_layout", "number_line", "density", "range_precision"])
def test_axes_carry_titles_and_alt_names_every_format(name):
    picture = ALL[name]()
    assert all(axes.get_title(loc="left") for axes in picture.figure.axes)
    assert all(fmt in picture.alt for fmt in ("e4m3fn", "e5m2" if name != "bit_layout" else "e8m0"))


@pytest.mark.parametrize("name", ["number_line", "density", "range_precision"])
def test_axes_say_what_they_measure(name):
    picture = ALL[name]()
    assert any(axes.get_xlabel() for axes in picture.figure.axes)
    assert name == "number_line" or all(axes.get_ylabel() for axes in picture.figure.axes)


def test_a_picture_displays_as_png_html_and_text():
    picture = plots.picture(Figure(figsize=(2, 1)), alt='Loss "falls" & stays')
    data, metadata = picture._repr_mimebundle_()
    assert set(data) == {"image/png", "text/html", "text/plain"}
    assert data["text/plain"] == 'Figure: Loss "falls" & stays'
    assert 'alt="Loss &quot;falls&quot; &amp; stays"' in data["text/html"]
    assert f"base64,{data['image/png']}" in data["text/html"]
    assert metadata == {"image/png": {"alt": picture.alt}}
    assert "0x" not in repr(picture)


@pytest.mark.parametrize("alt", ["", "  ", None])
def test_a_picture_without_alt_text_is_refused(alt):
    with pytest.raises(ValueError, match="alt text"):
        plots.picture(Figure(), alt)


def test_a_picture_of_something_else_is_refused():
    with pytest.raises(TypeError, match="matplotlib Figure, not list"):
        plots.picture([], "nothing")


def test_a_pyplot_figure_is_not_shown_twice():
    code = (
        "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt; from ampedu.plots import picture\n"
        "figure, axes = plt.subplots(); axes.plot([1, 2]); p = picture(figure, 'A line')\n"
        "assert plt.get_fignums() == []; assert len(p.png()) > 500"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_drawing_never_starts_pyplot():
    code = (
        "import sys; from ampedu.plots import density; density('fp16').png(); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


# bit_layout


@pytest.mark.parametrize(
    ("name", "widths"), [("fp32", [1, 8, 23]), ("fp16", [1, 5, 10]), ("e4m3fn", [1, 4, 3]), ("e8m0", [8])]
)
def test_boxes_are_to_scale(name, widths):
    boxes = artists(plots.bit_layout(name), Rectangle)
    colors = {matplotlib.colors.to_rgba(color) for color in FIELD_COLORS.values()}
    fields = [box for box in boxes if box.get_facecolor() in colors]
    assert [box.get_width() for box in fields] == widths
    assert [box.get_x() for box in fields] == [sum(widths[:i]) for i in range(len(widths))]


@pytest.mark.parametrize("value", [0.1, -2.0, 65504.0, 6e-8])
def test_the_bits_drawn_are_torchs(value):
    code = torch.tensor(value, dtype=torch.float64).half().view(torch.int16).item() % 2**16
    texts = [t.get_text() for t in artists(plots.bit_layout("fp16", value), Text)]
    drawn = "".join(t for t in texts if t in ("0", "1") and len(t) == 1)
    assert f"{code:016b}"[1:6] in drawn and f"{code:016b}"[6:] in drawn


def test_letters_say_the_fields_where_there_is_no_value():
    texts = [t.get_text() for t in artists(plots.bit_layout("e4m3fn"), Text)]
    assert [texts.count(letter) for letter in "SEM"] == [1, 4, 3]


def test_one_value_per_format():
    picture = plots.bit_layout(["fp16", "bf16"], [1.0, 2.0])
    assert "fp16 (1 sign, 5 exponent, 10 mantissa bits) holds 1.0 as 0 01111 0000000000." in picture.alt
    assert "holds 2.0 as 0 10000000 0000000." in picture.alt


def test_wrong_calls_of_bit_layout():
    with pytest.raises(ValueError, match="3 values for 2 formats"):
        plots.bit_layout(["fp16", "bf16"], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="at least one format"):
        plots.bit_layout([])
    with pytest.raises(UnknownFormatError, match="fp17"):
        plots.bit_layout("fp17")


# number_line


def test_e2m1_has_fifteen_ticks():
    picture = plots.number_line("e2m1", -6, 6)
    (ticks,) = artists(picture, LineCollection, "values of e2m1")
    drawn = [segment[0][0] for segment in ticks.get_segments()]
    half = [0.5, 1, 1.5, 2, 3, 4, 6]  # OCP MX 1.0, table 6
    assert drawn == [-x for x in reversed(half)] + [0.0] + half
    (marks,) = artists(picture, LineCollection, "binades of e2m1")
    assert sorted(segment[0][0] for segment in marks.get_segments()) == [-4, -2, -1, 1, 2, 4]


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize(
    ("low", "high"), [(-6, 6), (0, 1), (0.1, 0.3), (-3, -0.2), (-0.5, 0), (250, 300), (1e30, 1e31)]
)
def test_counts_and_values_are_torchs(name, low, high):
    from ampedu.formats import get
    from ampedu.plots.line import count_between, values_between

    values = torch_values(name)
    expected = values[(values >= low) & (values <= high)]
    assert count_between(get(name), low, high) == len(expected)
    assert torch.equal(values_between(get(name), low, high), expected)


def test_counts_of_float32_come_from_its_bits():
    from ampedu.formats import get
    from ampedu.plots.line import count_between

    four = torch.tensor(4.0).view(torch.int32).item()
    assert count_between(get("fp32"), 0.0, 4.0) == four + 1
    assert count_between(get("fp32"), -4.0, 4.0) == 2 * four + 1


def test_e8m0_has_powers_of_two_only():
    picture = plots.number_line("e8m0", -1, 8)
    (ticks,) = artists(picture, LineCollection, "values of e8m0")
    drawn = [segment[0][0] for segment in ticks.get_segments()]
    assert drawn == [2.0**e for e in range(-127, 4)]


def test_rows_too_dense_for_ticks_are_shaded_darker_near_zero():
    picture = plots.number_line("fp16", 0, 4)
    assert not artists(picture, LineCollection, "values of fp16")
    shades = sorted((box.get_x(), box.get_alpha()) for box in artists(picture, Rectangle) if box.get_alpha())
    depths = [alpha for _, alpha in shades]
    assert len(depths) > 5 and depths == sorted(depths, reverse=True) and depths[0] > depths[-1]
    assert "17409 values" in picture.alt


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (0, math.inf), (math.nan, 1)])
def test_bounds_that_make_no_line_are_refused(low, high):
    with pytest.raises(ValueError, match="two finite bounds"):
        plots.number_line("fp16", low, high)


# density and range_precision


@pytest.mark.parametrize("name", TORCH)
def test_density_draws_torchs_gaps_and_counts(name):
    picture = plots.density([name])
    upper, lower = picture.figure.axes
    (counts,) = [line for line in upper.lines if line.get_gid() == name]
    (gaps,) = [line for line in lower.lines if line.get_gid() == name]
    values = torch_values(name)
    values = values[values > 0]
    exponents = torch.log2(values).floor().long()
    for exponent, count, gap in zip(
        counts.get_xdata()[:-1], counts.get_ydata()[:-1], gaps.get_ydata()[:-1], strict=True
    ):
        inside = values[exponents == exponent]
        assert len(inside) == round(2**count)
        assert len(inside) == 1 or (inside[1:] - inside[:-1]).unique().tolist() == [2.0**gap]


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2"])
def test_range_and_precision_are_those_of_finfo(name):
    info = torch.finfo(TORCH[name][0])
    picture = plots.range_precision([name])
    (normal,) = [line for line in picture.figure.axes[0].lines if line.get_gid() == f"normal {name}"]
    (subnormal,) = [line for line in picture.figure.axes[0].lines if line.get_gid() == f"subnormal {name}"]
    assert list(normal.get_xdata()) == [math.log2(info.smallest_normal), math.floor(math.log2(info.max)) + 1]
    assert normal.get_ydata()[0] == pytest.approx(math.log2(1 - math.log2(info.eps)))
    least = torch_values(name)
    assert subnormal.get_xdata()[0] == math.log2(least[least > 0].min())
    assert subnormal.get_ydata()[0] == 0  # one bit is left


def test_formats_of_equal_precision_do_not_hide_each_other():
    lines = plots.range_precision(["tf32", "fp16"]).figure.axes[0].lines
    heights = {line.get_ydata()[0] for line in lines if str(line.get_gid()).startswith("normal")}
    assert len(heights) == 2
