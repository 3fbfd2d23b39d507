"""The update explorer: live and static, and that it follows what is dragged."""

import pytest

from ampedu.plots import landing as draw_landing
from ampedu.widgets import landing, output, update_explorer
from ampedu.widgets.output import WIDGET_VIEW


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(output, "display_bundle", lambda data, metadata: found.append((data, metadata)))
    return found


def shell(fmt="bf16", weight=1.0, update=-1e-4):
    first = draw_landing(weight, update, fmt)
    return landing.Shell(landing.FORMATS[fmt], weight, update, first, output.toolkit())


def test_one_output_with_picture_words_and_live_view(shown):
    assert update_explorer("bf16", 1.0, -1e-4) is None
    ((data, metadata),) = shown
    assert set(data) == {"text/plain", "text/html", "image/png", WIDGET_VIEW}
    assert "Lost: 0.9999 is rounded back to 1." in data["text/html"] and "<script" not in data["text/html"]
    assert data["text/plain"].startswith("Update explorer (bf16, weight 1")
    assert metadata["image/png"]["alt"].startswith("bf16")


def test_without_ipywidgets_the_static_version_is_shown(shown, monkeypatch):
    monkeypatch.setattr(landing, "toolkit", lambda: None)
    update_explorer()
    assert WIDGET_VIEW not in shown[0][0] and "image/png" in shown[0][0]


def test_dragging_redraws_the_picture_and_the_verdict():
    live = shell()
    before = live.image.value
    assert "Lost" in live.verdict.value
    live.weight.value = 2.0**-6
    assert live.image.value != before
    assert "Lands" in live.verdict.value and "weight 0.015625" in live.words.value


def test_format_and_sign_count():
    live = shell(update=-3e-3)
    assert "Lands" in live.verdict.value  # below 1.0 the neighbor is half as far away as above
    live.sign.value = 1
    assert "Lost" in live.verdict.value
    live.format.value = "fp16"
    assert "Lands" in live.verdict.value


def test_a_weight_beyond_a_small_format_is_told_and_recovers():
    live = shell(weight=2.0**7)
    live.format.value = "e2m1"
    assert "largest e2m1 number" in live.verdict.value and "largest e2m1 number" in live.words.value
    live.format.value = "bf16"
    assert "Lost" in live.verdict.value


def test_every_format_offered_can_be_drawn():
    live = shell(weight=0.5)
    assert {"bf16", "fp16", "fp32", "e4m3fn", "e2m1"} <= set(live.format.options)
    assert not {"e8m0", "fp64"} & set(live.format.options)
    for name in live.format.options:
        live.format.value = name
        assert "Error" not in live.words.value, name


@pytest.mark.parametrize(
    "arguments, word",
    [
        ({"weight": 0.0}, "weight is 0.0"),
        ({"weight": 1e6}, "weight is"),
        ({"update": 0.0}, "update is 0.0"),
        ({"format": "e8m0"}, "e8m0"),
        ({"format": "fp15"}, "unknown format"),
    ],
)
def test_bad_arguments_are_named(arguments, word):
    with pytest.raises(ValueError, match=word):
        update_explorer(**arguments)
