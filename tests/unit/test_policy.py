"""The probed autocast policy: counts of torch 2.13, invariants of any version, a second witness, the store on disk."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ampedu.policy import DEVICES, Policy, autocast_policy, dispatcher, header_policy, stored, table, unclassified
from ampedu.policy.kinds import Rule

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# Measured on torch 2.13.0: lower_precision, float32, float32_set_dtype, promote_widest, banned.
COUNTS = {
    "cuda": (35, 59, 13, 11, 1),
    "cpu": (24, 100, 0, 3, 0),
    "mps": (26, 59, 0, 10, 0),
    "xpu": (33, 59, 13, 11, 1),
}


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    monkeypatch.setattr(stored, "folder", lambda: tmp_path / "store")
    monkeypatch.setattr(stored, "_memory", {})


def counts(policy):
    """Without the recurrent layers of cuDNN, which only a build for CUDA registers."""
    found = collections.Counter(kind for name, kind in policy.items() if name != "_cudnn_rnn")
    return tuple(found[kind] for kind in Policy)


@pytest.mark.skipif(VERSION != (2, 13), reason="the counts are those of torch 2.13")
@pytest.mark.parametrize("device", DEVICES)
def test_counts_of_torch_2_13(device):
    assert counts(autocast_policy(device)) == COUNTS[device]


@pytest.mark.parametrize("device", DEVICES)
def test_every_registered_operation_is_classified(device):
    policy = autocast_policy(device)
    key = f"Autocast{device.upper()}"
    names = torch._C._dispatch_get_all_op_names()
    expected = {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}
    assert {f"aten::{name}" for name in policy} == {name for name in expected if name.startswith("aten::")}
    assert unclassified(device) == {}
    assert policy == autocast_policy(device, torch.bfloat16)


@pytest.mark.parametrize("device", DEVICES)
def test_what_holds_on_every_version(device):
    policy = autocast_policy(device)
    assert policy["mm"] == policy["linear"] == policy["conv2d"] == Policy.lower_precision
    assert policy["mse_loss"] == policy["kl_div"] == Policy.float32
    if device in ("cuda", "xpu"):
        assert policy["exp"] == policy["layer_norm"] == Policy.float32
        assert policy["softmax.int"] == policy["norm.Scalar"] == Policy.float32_set_dtype
        assert policy["addcmul"] == policy["index_put"] == Policy.promote_widest
        assert policy["binary_cross_entropy"] is Policy.banned
    else:
        assert Policy.banned not in policy.values()
    assert ("batch_norm" in policy) == (device == "mps")
    assert not {"mean", "sqrt", "sigmoid", "gelu", "embedding", "native_dropout"} & set(policy)


def test_rms_norm_is_on_the_list_since_2_12():
    assert ("rms_norm" in autocast_policy("cuda")) == (VERSION >= (2, 12))


def test_the_header_agrees():
    listed = header_policy()
    if not listed:
        pytest.skip("this torch came without its headers")
    assert len(listed) > 100
    for device in ("cuda", "xpu"):
        policy = autocast_policy(device)
        assert {name: policy.get(name) for name in listed} == listed
    extra = set(autocast_policy("cuda")) - set(listed)
    assert extra - {"_cudnn_rnn"} == {"binary_cross_entropy", "cudnn_convolution", "cudnn_convolution_transpose"}


def test_a_header_in_pieces():
    text = (
        "#define AT_FORALL_LOWER_PRECISION_FP(_) \\\n  _(mm) \\\n  _(conv, input)\n\n"
        "#define AT_FORALL_OTHER(_) \\\n  _(no)\n\n#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(_) \\\n"
        '  _(ADD_NS(norm), \\\n  "norm.Scalar", \\\n  fp32_append_dtype)\n'
    )
    assert header_policy(text) == {
        "mm": Policy.lower_precision,
        "conv.input": Policy.lower_precision,
        "norm.Scalar": Policy.float32_set_dtype,
    }
    assert header_policy("") == {}


def test_norm_runs_as_another_overload():
    assert stored.rules("cuda", torch.float16)[0]["norm.Scalar"].target == "norm.ScalarOpt_dtype"


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cuda:0", torch.float16, "without an index"),
        ("tpu", torch.float16, "cuda, cpu, mps, xpu"),
        (torch.device("cuda"), torch.float16, "is not one of"),
        ("cuda", torch.float32, "torch.float16 or torch.bfloat16"),
        ("cuda", "float16", "torch.float16 or torch.bfloat16"),
    ],
)
def test_wrong_arguments(device, dtype, words):
    with pytest.raises(ValueError, match=words):
        autocast_policy(device, dtype)


def test_probing_leaves_autocast_as_it_was():
    weight = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = weight @ weight
        dispatcher.rules("cpu", torch.float16)
        dispatcher.rules("cuda", torch.float16)
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert (weight @ weight).dtype == first.dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cuda") == torch.float16


def test_probing_inside_modes():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    expected = dispatcher.rules("cuda", torch.float16)
    with Watch() as watch, torch.no_grad():
        assert dispatcher.rules("cuda", torch.float16) == expected
    assert watch.seen == 0


def test_older_torch_without_the_listing(monkeypatch):
    expected = dispatcher.registered("cuda")
    monkeypatch.delattr(torch._C, "_dispatch_get_registrations_for_dispatch_key")
    assert dispatcher.registered("cuda") == expected


def test_an_operation_that_fits_no_policy_is_reported(monkeypatch):
    seen = ("mm", (torch.float64, torch.float32), None)
    monkeypatch.setattr(
        dispatcher, "_call", lambda name, *rest, **options: seen if name == "mm" else "unsafe to autocast"
    )
    found, odd = dispatcher.rules("cuda", torch.float16)
    assert list(odd) == ["mm"]
    assert "mm" not in found


class TestStore:
    def test_is_read_by_the_next_process(self, monkeypatch):
        first = autocast_policy("cuda")
        stored._memory.clear()
        monkeypatch.setattr(dispatcher, "rules", None)
        assert autocast_policy("cuda") == first
        assert torch.__version__ in stored.path().name

    def test_keeps_all_devices(self, monkeypatch):
        expected = {device: autocast_policy(device) for device in DEVICES}
        stored._memory.clear()
        monkeypatch.setattr(dispatcher, "rules", None)
        assert {device: autocast_policy(device) for device in DEVICES} == expected

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "{",
            "[]",
            "null",
            '{"schema": 1}',
            '{"schema": 2, "entries": {"cuda float16": {"mm": ["banned", "mm"]}}}',
            '{"schema": 1, "entries": []}',
            '{"schema": 1, "entries": {"cuda float16": {"mm": ["banned", "mm"]}}}',
            '{"schema": 1, "entries": {"cuda float16": {"mm": ["unheard of", "mm"]}}}',
            '{"schema": 1, "entries": {"cuda float16": 3}}',
        ],
    )
    def test_a_damaged_or_foreign_file_is_ignored_and_replaced(self, content):
        stored.folder().mkdir()
        stored.path().write_text(content)
        assert autocast_policy("cuda")["mm"] is Policy.lower_precision
        assert len(json.loads(stored.path().read_text())["entries"]["cuda float16"]) == len(autocast_policy("cuda"))
        assert [file.name for file in stored.folder().iterdir()] == [stored.path().name]

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "store").write_text("a file")
        assert autocast_policy("cuda")["mm"] is Policy.lower_precision

    def test_a_write_that_fails_leaves_nothing(self, monkeypatch):
        def refuse(*_):
            raise OSError("disk full")

        monkeypatch.setattr(os, "replace", refuse)
        assert autocast_policy("cuda")["mm"] is Policy.lower_precision
        assert list(stored.folder().iterdir()) == []

    def test_what_is_not_understood_is_not_stored(self, monkeypatch):
        rule = {"mm": Rule(Policy.lower_precision, "mm")}
        monkeypatch.setattr(dispatcher, "rules", lambda *_: (rule, {"new_op": "odd"}))
        assert table.autocast_policy("cuda") == {"mm": Policy.lower_precision}
        assert unclassified("cuda") == {"new_op": "odd"}
        assert not stored.path().exists()


def test_the_folder_follows_the_system(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr(sys, "platform", "linux")
    assert stored.folder() == Path("/somewhere/ampedu")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert stored.folder() == Path.home() / "Library" / "Caches" / "ampedu"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert stored.folder() == Path("/local/ampedu/Cache")


def test_a_cold_process_is_silent(tmp_path):
    code = (
        "from ampedu.policy import autocast_policy\n"
        "sizes = [len(autocast_policy(device)) for device in ('cuda', 'cpu', 'mps', 'xpu')]\n"
        "print(min(sizes))"
    )
    environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path), LOCALAPPDATA=str(tmp_path), HOME=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert int(done.stdout) > 50
    assert done.stderr == ""
