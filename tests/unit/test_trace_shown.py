"""The table and the picture say what the trace holds, fold what repeats, and are the same at each run."""

import importlib

import pytest
import torch
from torch import nn

from ampedu.trace import cast_census, trace_dtypes

plots = importlib.import_module("ampedu.plots.trace")


def encoder(layers):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def traced(layers=3, **options):
    torch.manual_seed(0)
    return trace_dtypes(encoder(layers), torch.randn(2, 3, 8), device_policy="cuda", **options)


def test_equal_layers_are_folded_and_unequal_ones_are_not():
    rows = {row.path: row for row in traced(4).rows()}
    # The first layer differs: its input is the model's, and needs no gradient.
    assert {path.split(".")[1] for path in rows if path.startswith("layers")} == {"0", "1–3"}
    assert rows["layers.1–3.norm1"].times == 3 and rows["layers.0.norm1"].times == 1
    assert len(traced(4).rows()) == len(traced(8).rows())


def test_rows_keep_all_arithmetic_and_all_casts():
    trace = traced()
    rows = trace.rows()
    casts = sum(op.cast is not None for op in trace.ops if op.phase == "forward")
    assert sum(len(row.casts) * row.times for row in rows) == casts
    products = sum(op.name == "mm" for op in trace.ops if op.phase == "backward")
    named = sum(number * row.times for row in rows for name, _, number in row.back if name == "mm")
    assert named == products


def test_a_loop_is_folded():
    cell = nn.RNNCell(4, 4)

    def model(x):
        h = torch.zeros(2, 4)
        for step in range(6):
            h = torch.relu(cell(x[:, step], h))
        return h

    rows = trace_dtypes(model, torch.randn(2, 6, 4), device_policy="cuda").rows()
    assert sum(row.times for row in rows) == 12 and len(rows) < 8
    assert all(row.times == 4 for row in rows if row.times > 1)  # the first has the weights' casts, the last no sums


def test_the_table_is_the_same_at_each_run():
    first, second = traced(), traced()
    assert first.table() == second.table() == repr(first)
    assert first._repr_html_() == second._repr_html_()
    assert first.ops == second.ops
    assert "0x" not in first._repr_html_()


def test_the_table_names_calls_dtypes_and_casts():
    text = traced(1).table().splitlines()
    line = next(line for line in text if line.startswith("layers.0.norm1"))
    assert line.split()[1:3] == ["layer_norm", "f32"]
    line = next(line for line in text if line.startswith("layers.0.linear1"))
    assert "2 weights, 1 activation f32→f16" in line and "3 gradients f16→f32" in line
    assert "cuda policy, with real numbers on cpu" in text[0]


def bars(picture):
    found = []
    for patch in picture.figure.axes[0].patches:
        if patch.get_gid():
            found.append((patch.get_gid(), patch.get_width(), patch.get_x()))
    return found


def test_a_bar_is_as_wide_as_its_dtype_and_never_told_by_color_alone():
    trace = traced()
    drawn = bars(trace.picture())
    widths = {(name, width) for name, width, _ in drawn if "end" not in name}
    assert widths == {("float32", plots.WIDE), ("float16", plots.WIDE / 2)}
    wide = sum(name == "float32" for name, _, _ in drawn)
    assert sum(name == "//// end" for name, _, _ in drawn) == wide > 0
    forward = [name for name, _, x in drawn if x == plots.FORWARD]
    expected = [str(row.computes_in).removeprefix("torch.") for row in trace.rows()]
    assert forward == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
def test_pictures_are_small_and_say_what_they_show(dtype):
    picture = traced(dtype=dtype).picture()
    assert len(picture.png()) < 100_000
    if dtype is None:
        assert "without autocast" in picture.alt and "0 casts" in picture.alt
    else:
        assert "In float32: add, layer_norm" in picture.alt and f"In {str(dtype)[6:]}: linear" in picture.alt


def test_cast_letters_and_needless_marks():
    layer = nn.Linear(8, 8)
    trace = trace_dtypes(lambda x: layer(x) + layer(x), torch.randn(2, 8), device_policy="cuda")
    letters = [plots.cast_letters(row.casts, row.hits) for row in trace.rows()]
    assert letters == ["↓2W 1A", "↓1A! =2", ""]
    assert plots.cast_letters(trace.rows()[0].back_casts) == "↑2G"


def test_a_long_trace_is_cut_and_a_part_can_be_drawn():
    widths = range(3, 40)
    model = nn.Sequential(
        *(layer for a in widths for layer in (nn.Linear(a, a + 1), nn.GELU() if a % 2 else nn.Tanh()))
    )
    trace = trace_dtypes(model, torch.randn(2, 3), device_policy="cuda")
    picture = trace.picture()
    assert "more rows are left out" in picture.alt and len(picture.png()) < 100_000
    assert "1 rows" in plots.dtype_trace(trace, module="5").alt
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.dtype_trace(trace, module="none")


def test_a_census_shows_itself():
    census = cast_census(encoder(1), torch.randn(2, 3, 8), device_policy="cuda", backward=False)
    assert "without" in repr(census).splitlines()[0]
    assert census._repr_html_().startswith("<table>")
