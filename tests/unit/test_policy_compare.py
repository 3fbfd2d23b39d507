"""The documented lists beside the policy of the installed torch."""

import pytest
import torch

from ampedu.policy import DEVICES, Policy, Row, compare, comparison, documented_policy, documented_source, probe, stored
from ampedu.policy import summary as summarize
from ampedu.policy.__main__ import main

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    monkeypatch.setattr(stored, "folder", lambda: tmp_path / "store")


def row(device, name) -> Row:
    (found,) = (item for item in compare(device) if item.name == name)
    return found


def test_documented_lists():
    # Numbers of names as the documentation of autocast lists them; "inverse" stands twice in the list for the CPU.
    assert len(documented_policy("cuda")) == 22 + 51 + 10 + 1
    assert len(documented_policy("cpu")) == 20 + 89 + 3
    assert len(documented_policy("xpu")) == 20 + 29 + 6
    assert documented_policy("mps") == {}
    assert documented_policy("cuda")["prelu"] is Policy.lower_precision
    assert "prelu" not in documented_policy("xpu")
    assert documented_policy("cuda")["binary_cross_entropy"] is Policy.banned
    assert {"repository", "path", "commit", "version"} <= set(documented_source())


@pytest.mark.parametrize("device", ["cuda", "cpu", "xpu"])
def test_nearly_all_documented_names_are_found_or_explained(device):
    rows = [item for item in compare(device) if item.documented]
    known = [item for item in rows if item.status == "documented and found" or item.why]
    assert len(known) >= 0.95 * len(rows)
    assert {item.name for item in rows} == set(documented_policy(device))


@pytest.mark.skipif(VERSION != (2, 13), reason="the counts are those of torch 2.13")
@pytest.mark.parametrize(
    ("device", "expected"), [("cuda", (78, 0, 6, 30)), ("cpu", (112, 0, 0, 3)), ("xpu", (50, 0, 5, 55))]
)
def test_counts_and_reasons_of_torch_2_13(device, expected):
    rows = [item for item in compare(device) if item.name != "_cudnn_rnn"]  # only in builds for CUDA
    counts = summarize(rows)
    assert tuple(counts.values())[:4] == expected
    assert counts["explained"] == len(rows) - expected[0]


@pytest.mark.parametrize("device", DEVICES)
def test_every_operation_is_in_exactly_one_place(device):
    rows = compare(device)
    names = [item.name for item in rows]
    assert len(set(names)) == len(names)
    families = {operation.partition(".")[0] for item in rows for operation in item.operations}
    from ampedu.policy import autocast_policy

    assert families == {operation.partition(".")[0] for operation in autocast_policy(device)}


@pytest.mark.parametrize(
    "name",
    ["scaled_dot_product_attention", "einsum", "huber_loss", "logsumexp", "linalg_vecdot", "upsample_bilinear2d"],
)
def test_known_omissions_of_the_documentation(name):
    found = row("cuda", name)
    assert found.status == "found only"
    assert found.why


@pytest.mark.skipif(VERSION < (2, 12), reason="rms_norm came with torch 2.12")
def test_rms_norm():
    assert "2.12" in row("cuda", "rms_norm").why
    assert row("xpu", "rms_norm").found is Policy.float32
    assert "rms_norm" not in {item.name for item in compare("mps")} | {item.name for item in compare("cpu")}


def test_batch_norm_on_mps_only():
    assert row("mps", "batch_norm").found is Policy.float32
    assert "only MPS" in row("mps", "batch_norm").why
    assert all("batch_norm" not in {item.name for item in compare(device)} for device in ("cuda", "cpu", "xpu"))


def test_what_has_no_kernel_is_float32_by_composition():
    composed = [item for item in compare("cuda") if item.status == "documented only"]
    assert {"cross_entropy", "normalize", "softmin", "__rtruediv__", "__rpow__"} <= {item.name for item in composed}
    for item in composed:
        inputs = [(shape, torch.float16) for shape in item.shapes]
        assert probe(item.expression, *inputs) == torch.float32, item.name
        assert item.documented is Policy.float32
    # MPS has no kernel for norm: there the same expression stays in float16.
    normalize = row("cuda", "normalize")
    assert probe(normalize.expression, (normalize.shapes[0], torch.float16), device="mps") == torch.float16


def test_a_contradiction_is_seen(monkeypatch):
    from ampedu.policy import documented

    real = documented.autocast_policy("cuda")
    changed = {**real, "mm": Policy.float32, "novelty": Policy.promote_widest}
    changed.pop("bmm")
    monkeypatch.setattr(documented, "autocast_policy", lambda device: changed)
    assert row("cuda", "mm").status == "contradicted"
    assert row("cuda", "mm").found is Policy.float32
    assert (row("cuda", "bmm").status, row("cuda", "bmm").why) == ("documented only", "")
    assert (row("cuda", "novelty").status, row("cuda", "novelty").why) == ("found only", "")


def test_the_table(capsys):
    assert main(["--compare", "cuda"]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == comparison("cuda")
    assert "documented names found or explained: 84 of 84 (100.0%)" in printed
    assert max(len(line) for line in printed.splitlines()) < 200
    assert main(["--list", "cpu"]) == 0
    assert "operations:" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--compare", "tpu"])
    assert "invalid choice" in capsys.readouterr().err
