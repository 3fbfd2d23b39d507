"""The step explorer and its picture."""

import pytest

from ampedu.distributed import step_time
from ampedu.plots import step_scaling
from ampedu.widgets import distributed, output, step_explorer
from ampedu.widgets.output import WIDGET_VIEW


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(output, "display_bundle", lambda data, metadata: found.append((data, metadata)))
    return found


def test_one_output_with_picture_words_and_live_view(shown):
    assert step_explorer() is None
    ((data, metadata),) = shown
    assert set(data) == {"text/plain", "text/html", "image/png", WIDGET_VIEW}
    assert "On 1024 GPUs" in data["text/html"] and "<script" not in data["text/html"]
    assert metadata["image/png"]["alt"].startswith("Time of a step")


def test_without_ipywidgets_the_static_version_is_shown(shown, monkeypatch):
    monkeypatch.setattr(distributed, "toolkit", lambda: None)
    step_explorer(bandwidth=10)
    assert WIDGET_VIEW not in shown[0][0] and "image/png" in shown[0][0]


def test_every_control_redraws_the_picture_and_the_verdict():
    numbers = {"parameters": 1e9, "bandwidth": 100, "compute": 500, "latency": 0}
    live = distributed.panel(numbers, True, distributed.picture(**numbers, overlap=True), output.toolkit())
    for name, value in (("latency", 50), ("parameters", 7e9), ("bandwidth", 10), ("compute", 20)):
        before = live.image.value, live.verdict.value
        live.sliders[name].value = value
        assert live.image.value != before[0] and live.verdict.value != before[1], name
    before = live.image.value
    live.checkbox.value = False
    assert live.image.value != before


def test_hidden_communication_gains_nothing_from_small_gradients():
    said = distributed.verdict(parameters=1e7, bandwidth=3600, compute=5000, latency=0, overlap=True)
    assert "would gain nothing" in said
    said = distributed.verdict(parameters=1e9, bandwidth=100, compute=500, latency=0, overlap=False)
    # 2 · 1023/1024 · 4 GB at 12.5 GB/s: 639 ms, half of which 16-bit gradients save, of 1139 ms.
    assert "waits 639 ms" in said and "28% shorter" in said


def test_the_picture_draws_the_formula_and_says_it():
    drawn = step_scaling(10**9, 100, 0.5, overlap=0.5, latency=1e-5)
    lines = drawn.figure.axes[0].lines
    for line, size in zip(lines, (4, 2), strict=True):
        for ranks, milliseconds in zip(line.get_xdata(), line.get_ydata(), strict=True):
            wanted = step_time(10**9, size, int(ranks), 12.5e9, 0.5, 0.5, 1e-5).total
            assert milliseconds == pytest.approx(1e3 * wanted)
    assert "1 B parameters" in drawn.alt and "latency 10 µs" in drawn.alt


def test_numbers_without_a_place_on_the_slider_are_refused(shown):
    with pytest.raises(ValueError, match="bandwidth is 7: the slider has 10, 25"):
        step_explorer(bandwidth=7)
    assert shown == []
