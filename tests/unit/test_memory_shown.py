"""The ledger as text, picture and explorer; the formulas against predictions; bad arguments are named."""

import pytest
import torch
from torch import nn

from ampedu.memory import LedgerError, measure, predict
from ampedu.memory.formulas import POLICIES, Transformer, transformer_peak
from ampedu.memory.ledger import mib
from ampedu.plots import memory_bars
from ampedu.plots.drawing import Picture
from ampedu.widgets import memory, memory_explorer, output
from ampedu.widgets.output import WIDGET_VIEW

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
X = torch.randn(16, 8)


@pytest.mark.parametrize(
    ("size", "policy", "checkpoint"),
    [
        ((3, 1, 256, 1), "fp32", False),
        ((1, 16, 1024, 5), "bf16", False),
        ((64, 512, 512, 6), "bf16", False),
        ((64, 1024, 1024, 12), "bf16", False),
        ((64, 100, 8, 6), "bf16", True),
        ((8, 1, 1024, 2), "pure_bf16", True),
        ((3, 100, 64, 2), "fp32", True),
    ],
)
def test_formulas_give_the_peak_of_a_prediction(size, policy, checkpoint):
    batch, sequence, width, depth = size
    with torch.device("meta"):
        model, tokens = Transformer(width, depth), torch.empty(batch, sequence, dtype=torch.long)
    ledger = predict(model, (tokens, tokens), policy=policy, checkpoint=checkpoint)
    peak = transformer_peak(*size, policy, checkpoint)
    assert (peak.name, peak.bytes) == (ledger.peak_phase, ledger.peak)
    rows = ledger.moments[ledger.peak_phase].rows
    assert {k: v for k, v in peak.rows.items() if v} == {k: v for k, v in rows.items() if v}


def test_table_and_html_hold_the_same_rows():
    ledger = measure(MODEL, X, policy="bf16")
    text, page = ledger.table(), ledger._repr_mimebundle_()["text/html"]
    for row in ledger.rows:
        assert f"{row.bytes:,}" in text and f"{row.bytes:,}" in page and row.name in page
    assert "Memory of a step, measured: autocast to bfloat16, CUDA policy, adamw (foreach)" in text
    assert "Peak by the allocator" in text and "Peak by the allocator" not in predict(MODEL, X).table()
    assert mib(2**20) == "1.00 MiB" and mib(512) == "512 B"


def test_measuring_leaves_the_model_as_it_was():
    before = {name: value.clone() for name, value in MODEL.state_dict().items()}
    state = torch.get_rng_state()
    measure(MODEL, X), predict(MODEL, X)
    assert all(torch.equal(value, before[name]) for name, value in MODEL.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in MODEL.parameters())


def test_bars_are_as_long_as_their_rows():
    ledgers = {name: predict(MODEL, X, policy=name) for name in ("fp32", "bf16", "pure_bf16")}
    drawn = memory_bars(ledgers)
    assert isinstance(drawn, Picture)
    for name, ledger in ledgers.items():
        patches = [p for p in drawn.figure.axes[0].patches if (p.get_gid() or "").startswith(f"{name}: ")]
        assert sum(p.get_width() for p in patches) * 2**20 == pytest.approx(ledger.peak)
        assert f"{name}, {mib(ledger.peak)}, {ledger.peak_phase}" in drawn.alt
    assert "optimizer step, peak" in ledgers["bf16"].picture().alt
    with pytest.raises(ValueError, match="at least one"):
        memory_bars({})


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(output, "display_bundle", lambda data, metadata: found.append(data))
    return found


def test_explorer_has_a_picture_words_and_a_live_view(shown, monkeypatch):
    memory_explorer()
    assert set(shown[0]) == {"text/plain", "text/html", "image/png", WIDGET_VIEW}
    assert "AMP needs" in shown[0]["text/html"]
    monkeypatch.setattr(memory, "toolkit", lambda: None)
    memory_explorer()
    assert WIDGET_VIEW not in shown[1]


def test_dragging_follows_the_formulas():
    sizes = {"batch": 1, "sequence": 16, "width": 256, "depth": 2}
    live = memory.panel(sizes, False, memory.picture(**sizes, checkpoint=False), output.toolkit())
    before = live.verdict.value
    live.sliders["batch"].value = 256
    live.checkbox.value = True
    assert live.chosen == {**sizes, "batch": 256, "checkpoint": True}
    peaks = [mib(transformer_peak(256, 16, 256, 2, policy, True).bytes) for policy in POLICIES]
    assert all(peak in live.words.value for peak in peaks)
    assert live.verdict.value != before and peaks[0] in live.verdict.value


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x[x.sum(-1) > 0])


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"policy": "half"}, ValueError, "policy is 'half'"),
        ({"device_policy": "tpu"}, ValueError, "device_policy is 'tpu'"),
        ({"optimizer": "lion"}, ValueError, "optimizer is 'lion'"),
        ({"implementation": "fast"}, ValueError, "implementation is 'fast'"),
        ({"accumulate": 0}, ValueError, "micro-batches"),
        ({"checkpoint": True}, ValueError, "no ModuleList"),
        ({"checkpoint": "layers.*"}, ValueError, "the model has 0, 1, 2"),
        ({"loss": 3}, TypeError, "loss must be a function"),
        ({"loss": lambda out: out}, ValueError, "one number"),
        ({"model": 3}, TypeError, "torch.nn.Module"),
        ({"model": nn.ReLU()}, ValueError, "no parameter"),
        ({"model": nn.LazyLinear(3)}, LedgerError, "run the model once"),
        ({"model": Lookup()}, LedgerError, "use measure"),
        ({"batch": "x"}, TypeError, "batch must be"),
    ],
)
def test_bad_arguments_are_named(wrong, kind, words):
    arguments = {"model": MODEL, "batch": X} | wrong
    with pytest.raises(kind, match=words):
        predict(arguments.pop("model"), arguments.pop("batch"), **arguments)


def test_where_it_cannot_run_is_named():
    with torch.autocast("cpu"), pytest.raises(LedgerError, match="call it outside"):
        predict(MODEL, X)
    with pytest.raises(ValueError, match="on cpu and meta"):
        measure(MODEL, X.to("meta"))
    with pytest.raises(ValueError, match="the slider has"):
        memory_explorer(depth=5)
