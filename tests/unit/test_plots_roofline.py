"""What is drawn is what is computed: roofs, tile sums, waves; the GPU explorer says only what the table says."""

import importlib
import json
import re

import numpy as np
import pytest

from ampedu.device import gpu_table
from ampedu.roofline import Roofline, of_gpu
from ampedu.tiles import tiling
from ampedu.widgets import gpu_explorer, gpus, output

plots = importlib.import_module("ampedu.plots.roofline")  # the package has a function of that name
ROOF = Roofline("toy", 1e10, {"fp32": 1e11, "bf16": 8e11})


def lines(picture):
    return {line.get_gid(): line for axes in picture.figure.axes for line in axes.lines if line.get_gid()}


def test_roofs_have_a_slope_and_a_ceiling():
    drawn = lines(plots.roofline(ROOF, [("layer", "bf16", 20.0, 1e11)]))
    x, y = drawn["roof bf16"].get_data()
    assert y[0] == pytest.approx(x[0] * 10) and y[-1] == pytest.approx(800)  # GFLOP/s
    assert set(drawn) == {"roof fp32", "roof bf16"}
    assert set(lines(plots.roofline(ROOF, formats=["fp32"]))) == {"roof fp32"}


def test_points_are_numbered_by_name():
    points = [("a", "fp32", 1.0, 1e9), ("a", "bf16", 2.0, 2e9), ("b", "fp32", 50.0, 5e10)]
    picture = plots.roofline(ROOF, points)
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["1", "1", "2"]
    assert "3 measured points of 2 layers" in picture.alt and "ridge at 80" in picture.alt


@pytest.mark.parametrize("step", range(5))
def test_tile_sums_grow_to_the_product(step):
    a, b, c = (np.array(matrix) for matrix in (plots.A, plots.B, plots.C))
    expected = c.copy()
    for k in range(step):
        expected += np.outer(a[:, k], b[k])
    assert np.array_equal(plots.accumulators(step), expected)
    picture = plots.tile_product(step)
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    assert all(str(number) in texts for number in expected.ravel())
    lost = sum(int(np.float16(number)) != number for number in expected.ravel())
    assert f"{lost} of the 16 sums" in picture.alt and f"{16 * step} of 64" in picture.alt


def test_the_last_tile_shows_what_float16_would_lose():
    full = plots.accumulators(4)
    assert np.array_equal(full, np.array(plots.A) @ np.array(plots.B) + np.array(plots.C))
    assert (np.float16(full).astype(float) != full).any()
    with pytest.raises(ValueError, match="steps 0"):
        plots.tile_product(5)


def test_waves_colors_and_hatches():
    picture = plots.waves(tiling(1793, 1793, 108))
    tiles = [p for p in picture.figure.axes[0].patches if p.get_width() == 128]
    colors = [patch.get_facecolor() for patch in tiles]
    assert len(tiles) == 120 and len({*colors}) == 2 and colors.count(colors[0]) == 108
    assert sum(bool(patch.get_hatch()) for patch in tiles) == 8 + 15 - 1  # last column, last row, one corner
    assert "120 tiles in 2 waves" in picture.alt and "45.4%" in picture.alt
    assert "98 tiles in 1 wave on" in plots.waves(tiling(1792, 1792, 108)).alt


def test_useful_work_is_that_of_tiling():
    picture = plots.useful_work(108, [1792, 1793, 4096])
    x, y = picture.figure.axes[0].lines[0].get_data()
    assert list(x) == [1792, 1793, 4096]
    assert list(y) == pytest.approx([100 * tiling(n, n, 108).useful for n in x])


@pytest.mark.parametrize("row", gpu_table()[::6], ids=lambda row: row["name"])
def test_pictures_are_small_and_fit_every_gpu(row):
    picture = plots.roofline(of_gpu(row))
    assert len(picture.png()) < 100_000 and row["name"] in picture.alt


@pytest.mark.parametrize("row", gpu_table(), ids=lambda row: row["name"])
def test_explorer_says_what_the_table_says(row):
    said = gpus.text(row)
    peaks = row["dense_tflops"]
    half = peaks["bf16"] or peaks["fp16_fp32acc"]
    assert f"at most {half / peaks['fp32_nontensor']:.1f}× in products over full float32" in said
    assert ("emulated" in said) == (peaks["bf16"] is None)
    assert ("over TF32" in said) == (peaks["tf32"] is not None)
    html = gpus.facts(row)
    assert row["source"].replace("&", "&amp;").split("'")[0] in html and 'scope="col"' in html
    assert len(re.findall("<tr>", html)) == 1 + len(of_gpu(row).peaks)


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(output, "display_bundle", lambda data, metadata: found.append((data, metadata)))
    return found


def test_explorer_has_a_static_version(shown):
    assert gpu_explorer("T4") is None
    data, metadata = shown[0]
    assert {"text/plain", "text/html", "image/png"} <= set(data) and metadata["image/png"]["alt"]
    assert "bf16 is emulated" in data["text/html"] and "<script" not in data["text/html"]
    json.dumps(data)
    with pytest.raises(ValueError, match="T400"):
        gpu_explorer("T400")


def test_choosing_another_gpu_changes_everything():
    rows = {row["name"]: row for row in gpu_table()}
    first = plots.roofline(of_gpu(rows["T4"]))
    shell = gpus.Shell(rows, "T4", first, output.toolkit())
    before = shell.drawn.image.value
    shell.choice.value = "H100 SXM5"
    assert "H100 SXM5" in shell.facts.value and "989.4" in shell.facts.value
    assert shell.drawn.image.value != before and "H100 SXM5" in shell.drawn.words.value
