"""Looking up operations: names as people write them, policies of two versions, results by probing, reasons."""

import json
from importlib import resources

import pytest
import torch

from ampedu import operations
from ampedu.operations import OnDevice, UnknownOperationError, known, look_up, other_version, results
from ampedu.policy import DEVICES, Policy, autocast_policy
from tools.record_policy import ONLY_CUDA_BUILDS

NEW_NORM = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 12)


def on(name, device) -> OnDevice:
    return next(found for found in look_up(name).devices if found.device == device)


@pytest.mark.parametrize(
    "typed, name",
    [
        ("softmax", "softmax"),
        ("F.softmax", "softmax"),
        (" torch.nn.functional.softmax() ", "softmax"),
        ("nn.Softmax", "softmax"),
        ("@", "matmul"),
        ("torch.matmul", "matmul"),
        ("nn.LayerNorm", "layer_norm"),
        ("BatchNorm2d", "batch_norm"),
        ("nn.Conv2d", "conv2d"),
        ("conv1d", "conv1d"),
        ("nn.MSELoss", "mse_loss"),
        ("CrossEntropyLoss", "cross_entropy"),
        ("cross_entropy", "cross_entropy"),
        ("BCELoss", "binary_cross_entropy"),
        ("nn.BCEWithLogitsLoss", "binary_cross_entropy_with_logits"),
        ("F.scaled_dot_product_attention", "scaled_dot_product_attention"),
        ("torch.linalg.multi_dot", "multi_dot"),
        ("nn.GELU", "gelu"),
        ("**", "pow"),
        ("interpolate", "interpolate"),
        ("nn.GRUCell", "gru_cell"),
    ],
)
def test_names_as_people_write_them(typed, name):
    assert look_up(typed).name == name


def test_an_unknown_name_is_told_with_close_ones():
    with pytest.raises(UnknownOperationError, match=r"softmx.*softmax"):
        look_up("softmx")
    for typed in ("", "nn.Transformer"):
        with pytest.raises(UnknownOperationError, match="no operation called"):
            look_up(typed)


def test_everything_known_can_be_looked_up_under_its_own_name():
    assert len(known()) > 150 and list(known()) == sorted(known())
    for name in known():
        operation = look_up(name)
        assert operation.name == name and operation.reason
        assert [found.device for found in operation.devices] == list(DEVICES)


def test_every_listed_operation_is_known():
    families = {name.partition(".")[0] for device in DEVICES for name in autocast_policy(device)}
    covered = {family for name in known() for family in look_up(name).families}
    assert not {family for family in families - covered if not family.startswith("_")}


def test_overloads_of_an_operation_share_a_policy():
    for device in DEVICES:
        found: dict[str, set] = {}
        for name, policy in autocast_policy(device).items():
            found.setdefault(name.partition(".")[0], set()).add(policy)
        assert not {family for family, policies in found.items() if len(policies) > 1}


def test_policies_that_the_documentation_of_torch_states():
    assert on("mm", "cuda").found is Policy.lower_precision and on("mm", "cpu").found is Policy.lower_precision
    assert on("layer_norm", "cuda").found is Policy.float32 and on("layer_norm", "cpu").found is None
    assert on("batch_norm", "cuda") == OnDevice("cuda", None, None, None)
    assert on("BCELoss", "cuda").found is Policy.banned
    assert on("cat", "cpu").found is Policy.promote_widest and on("cat", "cuda").found is None
    for device in DEVICES:
        assert on("gelu", device) == OnDevice(device, None, None, None)


def test_what_is_composed_is_documented_and_has_no_kernel():
    found = on("cross_entropy", "cuda")
    assert found.documented is Policy.float32 and found.found is None and "log_softmax" in found.why
    assert on("cross_entropy", "cpu").found is Policy.float32


def test_two_versions_differ_in_rms_norm_alone():
    assert other_version() != torch.__version__.split("+")[0]
    old_and_new = (None, Policy.float32) if NEW_NORM else (Policy.float32, None)
    found = on("rms_norm", "cuda")
    assert (found.other, found.found) == old_and_new
    differing = {name for name in known() for place in look_up(name).devices if place.found is not place.other}
    if torch.__version__.split("+")[0] in operations._recorded():
        assert differing - ONLY_CUDA_BUILDS == {"rms_norm"}


@pytest.mark.parametrize("installed, other", [("2.11.0", "2.13.0"), ("2.13.0+cpu", "2.11.0"), ("2.12.1", "2.13.0")])
def test_the_other_version_is_the_newest_that_is_not_installed(monkeypatch, installed, other):
    monkeypatch.setattr(torch, "__version__", installed)
    assert other_version() == other


def test_the_record_of_the_installed_version_is_what_is_found_now():
    text = (resources.files("ampedu") / "data" / "autocast_recorded.json").read_text(encoding="utf-8")
    recorded = json.loads(text)
    assert set(recorded["builds"]) == set(recorded["versions"])
    version = torch.__version__.split("+")[0]
    if version not in recorded["versions"]:
        pytest.skip(f"torch {version} is not recorded")
    for device in DEVICES:
        listed = {name: policy for policy, names in recorded["versions"][version][device].items() for name in names}
        found = {name.partition(".")[0]: policy for name, policy in autocast_policy(device).items()}
        assert listed == {name: policy for name, policy in found.items() if name not in ONLY_CUDA_BUILDS}


def test_results_agree_with_the_policies():
    for name in ("mm", "softmax", "gelu", "dot", "mse_loss"):
        operation = look_up(name)
        for found in operation.devices:
            wide, low = results(operation, found.device)
            policy = found.found
            assert wide == ("float16" if policy is Policy.lower_precision else "float32"), (name, found.device)
            float32 = policy in (Policy.float32, Policy.float32_set_dtype)
            assert low == ("float32" if float32 else "float16"), (name, found.device)


def test_results_of_what_raises_and_of_what_cannot_be_asked():
    assert results(look_up("BCELoss"), "cuda") == ("raises", "raises")
    assert results(look_up("linalg_matrix_rank"), "cpu") == ("unknown", "unknown")


def test_every_call_of_an_unlisted_operation_runs_and_follows_its_input():
    for name in operations.UNLISTED:
        assert results(look_up(name), "cuda") == ("float32", "float16"), name


def test_the_code_shown_runs():
    from ampedu.policy import probe

    code = look_up("softmax").code
    assert eval(code, {"probe": probe}) == torch.float32
    assert look_up("linalg_matrix_rank").code == ""


def test_reasons_fit_the_policy():
    assert "products" in look_up("conv2d").reason
    assert "exponentials" in look_up("softmax").reason
    assert "grows" in look_up("exp").reason
    assert "no list" in look_up("gelu").reason
    assert "logits" in look_up("BCELoss").reason
