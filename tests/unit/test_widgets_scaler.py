"""The loss-scale simulator from Python: its outputs, its state, and what it refuses."""

import json
import re
import sys

import pytest

from ampedu.scaling import LossScale
from ampedu.widgets import output, scaler_simulator
from ampedu.widgets.output import WIDGET_VIEW


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(output, "display_bundle", lambda data, metadata: found.append((data, metadata)))
    return found


def test_one_output_with_live_and_static_versions(shown):
    assert scaler_simulator("x..", LossScale(8.0, growth_interval=2)) is None
    ((data, metadata),) = shown
    assert set(data) == {"text/plain", "text/html", "image/png", WIDGET_VIEW}
    state = json.loads(re.search(r"^const state = (.*);$", data["text/html"], re.MULTILINE)[1])
    constants = {"growth_tracker": 0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2}
    assert state == {"pattern": "x..", "scale": 8.0, **constants}
    assert data["text/plain"].split("\n") == [
        "Loss-scale simulator",
        "  step 0: inf or NaN found: step skipped, scale 8 → 4",
        "  step 1: clean step 1 of 2: scale stays 4",
        "  step 2: clean step 2 of 2: scale 4 → 8, the count starts again",
    ]
    assert metadata["image/png"]["alt"].startswith("Loss scale over 3 steps, from 8 to 8: 1 skipped")
    assert data["text/html"].count("<tr>") == 4 and "inf or NaN found" in data["text/html"]
    widget = sys.modules["ipywidgets"].widgets.widget._instances[data[WIDGET_VIEW]["model_id"]]
    assert repr(widget) == "ScalerSimulator(pattern='x..', scale=8.0, growth_interval=2)"
    assert (widget.growth_factor, widget.backoff_factor, widget.growth_tracker) == (2.0, 0.5, 0)


def test_without_arguments_it_shows_the_sawtooth(shown):
    scaler_simulator()
    scaler_simulator([False] * 10 + ([True] + [False] * 5) * 5)
    assert shown[0][0]["text/plain"] == shown[1][0]["text/plain"]
    assert "step 10: inf or NaN found: step skipped, scale 262144 → 131072" in shown[0][0]["text/plain"]


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        (("",), ValueError, "has 0 steps"),
        (("." * 61,), ValueError, "has 61 steps: the simulator shows 1 to 60"),
        (("..y",), ValueError, "unknown sign 'y'"),
        ((7,), TypeError, "not int"),
        (("..", 65536.0), TypeError, r"LossScale, not float"),
        (("..", LossScale(0.0)), ValueError, "starts from a positive number"),
        (("..", LossScale(float("inf"))), ValueError, "starts from a positive number"),
    ],
)
def test_wrong_calls_are_named(shown, arguments, error, words):
    with pytest.raises(error, match=words):
        scaler_simulator(*arguments)
    assert shown == []
