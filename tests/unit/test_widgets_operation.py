"""The op explorer, live and static, and the grid of policies."""

import pytest

from ampedu.operations import UnknownOperationError, look_up
from ampedu.plots import policy_grid
from ampedu.policy import Policy
from ampedu.widgets import op_explorer, operation, output
from ampedu.widgets.output import WIDGET_VIEW


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(output, "display_bundle", lambda data, metadata: found.append((data, metadata)))
    return found


def shell(name="softmax"):
    return operation.Shell(name, operation.table(look_up(name)), output.toolkit())


def test_one_output_with_table_text_and_live_view(shown):
    assert op_explorer("nn.LayerNorm") is None
    ((data, _),) = shown
    assert set(data) == {"text/plain", "text/html", WIDGET_VIEW}
    assert "<table>" in data["text/html"] and "<script" not in data["text/html"]
    lines = data["text/plain"].splitlines()
    assert lines[0].startswith("Op explorer: layer_norm: ")
    assert [line.split() for line in lines if line.startswith("cuda ")] == [["cuda", *["float32"] * 5]]
    assert [line.split() for line in lines if line.startswith("cpu ")] == [
        ["cpu", *["not", "listed"] * 3, "float32", "float16"]
    ]
    assert 'probe("F.layer_norm(x, (4,))", (3, 4), device="cuda")' in lines


def test_without_ipywidgets_the_static_version_is_shown(shown, monkeypatch):
    monkeypatch.setattr(operation, "toolkit", lambda: None)
    op_explorer("@")
    assert WIDGET_VIEW not in shown[0][0] and "matmul" in shown[0][0]["text/html"]


def test_an_unknown_operation_raises_in_the_call():
    with pytest.raises(UnknownOperationError, match="softmx"):
        op_explorer("softmx")


def test_typing_a_name_changes_the_table_and_a_wrong_one_recovers():
    live = shell()
    assert "exponentials" in live.table.value
    live.field.value = "nn.BCELoss"
    assert "binary_cross_entropy" in live.table.value and "raises" in live.table.value
    live.field.value = "softmx"
    assert "Do you mean softmax" in live.table.value and "<table" not in live.table.value
    live.field.value = "rms_norm"
    assert "rms_norm" in live.table.value and "<table" in live.table.value
    live.field.value = "<b>"
    assert "<b>" not in live.table.value


def test_notes_name_the_devices_once():
    notes = operation.notes(look_up("rms_norm"))
    assert not notes or (len(notes) == 1 and notes[0].startswith("cuda, xpu: "))


def test_grid_says_in_words_what_it_shows():
    drawn = policy_grid(
        {"mm": {"cuda": Policy.lower_precision, "cpu": "lower_precision"}, "exp": {"cuda": "float32", "cpu": None}}
    )
    assert "mm: 16 bits on all." in drawn.alt
    assert "exp: float32 on cuda, on no list on cpu." in drawn.alt
    texts = [text.get_text() for text in drawn.figure.axes[0].texts]
    assert texts == ["16 bits", "16 bits", "float32", "on no list"]
    assert len(drawn.png()) < 100_000


def test_every_policy_has_a_look():
    policies = {policy.value: {"cuda": policy} for policy in Policy}
    assert len(policy_grid(policies).figure.axes[0].texts) == len(Policy)


@pytest.mark.parametrize("rows", [{}, {"mm": {}}, {"mm": {"cuda": None}, "exp": {"cpu": None}}])
def test_a_grid_without_rows_or_with_different_devices_is_refused(rows):
    with pytest.raises(ValueError, match="same devices"):
        policy_grid(rows)
