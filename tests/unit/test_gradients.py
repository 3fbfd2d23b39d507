"""Gradients by layer against autograd, and where they land against torch's casts and the whole list of codes."""

import contextlib
import dataclasses
import gc
import math
import weakref

import pytest
import torch
from torch import nn

from ampedu import formats
from ampedu.gradients import GradientRange, landed
from ampedu.magnitudes import OUTCOMES, shares

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "e5m2": torch.float8_e5m2}


def by_casting(values: torch.Tensor, dtype) -> dict[str, float]:
    """Fractions after torch's own cast of float32, over the values that were not 0."""
    values = values[values != 0]
    cast = values.to(dtype).double().abs()
    least = torch.finfo(dtype).smallest_normal
    counts = [(cast == 0), (cast > 0) & (cast < least), (cast >= least) & cast.isfinite(), ~cast.isfinite()]
    return {kind: int(hits.sum()) / len(values) for kind, hits in zip(OUTCOMES, counts, strict=True)}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**-7, 3.0])
def test_fractions_are_those_of_torchs_casts(name, scale):
    generator = torch.Generator().manual_seed(int(scale))
    size = torch.randint(-60, 20, (20_000,), generator=generator).float()
    values = torch.randn(20_000, generator=generator) * 2**size
    assert landed(values, name, scale) == by_casting(values * scale, DTYPES[name])


def test_every_half_and_every_middle_between_two():
    codes = torch.arange(0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = codes.float()
    middles = (values[:-1] + values[1:]) / 2
    beyond = torch.tensor([65519.99, 65520.0, 65536.0, math.inf, math.nan])
    assert landed(values, "fp16") == {"zero": 0, "subnormal": 1023 / 31743, "normal": 30720 / 31743, "overflow": 0}
    above, below = (torch.nextafter(middles, middles * factor) for factor in (2, 0))
    for each in (middles, -middles, above, below, beyond):
        assert landed(each, "fp16") == by_casting(each, torch.float16)
    assert landed(beyond, "fp16")["overflow"] == 4 / 5


SHORT = [name for name, fmt in formats.FORMATS.items() if fmt.has_subnormals and fmt.bits <= 16]


@pytest.mark.parametrize("name", SHORT)
def test_a_format_holds_its_own_values(name):
    fmt = formats.get(name)
    codes = torch.arange(1, fmt.max_code + 1)
    found = landed(formats.decode(codes, name), name)
    small = 2**fmt.mantissa_bits - 1
    normal = (len(codes) - small) / len(codes)
    assert found == {"zero": 0, "subnormal": small / len(codes), "normal": normal, "overflow": 0}
    far = torch.tensor([2.0 * fmt.overflow_threshold, fmt.min_subnormal / 2, -fmt.min_subnormal * 0.75])
    assert landed(far.double(), name) == {"zero": 1 / 3, "subnormal": 1 / 3, "normal": 0, "overflow": 1 / 3}


def test_a_histogram_counts_the_last_bin_whole_and_this_does_not():
    values = torch.tensor([65519.0, 65521.0])
    assert landed(values, "fp16")["overflow"] == 0.5 and shares({15: 2}, "fp16")["overflow"] == 0


def test_what_is_counted():
    parts = [torch.tensor([0.0, 1.0]), torch.tensor([1e-9, 0.0], dtype=torch.float64), torch.ones(1).half()]
    assert landed(parts, "fp16") == {"zero": 1 / 3, "subnormal": 0, "normal": 2 / 3, "overflow": 0}
    assert landed(parts, "fp16", count_zeros=True)["zero"] == 3 / 5
    scaled = landed(iter(parts), torch.float16, scale=2.0**15)
    assert scaled == {"zero": 0, "subnormal": 1 / 3, "normal": 2 / 3, "overflow": 0}
    assert landed(torch.zeros(3), "fp16") == dict.fromkeys(OUTCOMES, 0)
    assert landed(torch.zeros(3), "fp16", count_zeros=True)["zero"] == 1


@pytest.mark.parametrize(
    "tensors, options, error, words",
    [
        ([], {}, ValueError, "did backward"),
        (torch.arange(3), {}, TypeError, r"not a tensor of torch\.int64"),
        ([None], {}, TypeError, "not NoneType"),
        ({"w": torch.ones(1)}, {}, TypeError, "not dict"),
        (torch.ones(1), {"scale": 0.0}, ValueError, "loss scale is positive"),
        (torch.ones(1), {"scale": math.nan}, ValueError, "loss scale is positive"),
        (torch.ones(1), {"fmt": "e8m0"}, ValueError, "cannot hold gradients"),
    ],
)
def test_what_cannot_be_counted_is_named(tensors, options, error, words):
    with pytest.raises(error, match=words):
        landed(tensors, **{"fmt": "fp16", **options})


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    note: str = ""


class Nested(nn.Module):
    """Returns what models return: tuples in dictionaries, a dataclass, things that are no tensors."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.second = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)
        self.recurrent, self.head = nn.LSTM(8, 4, batch_first=True), Head()

    def forward(self, x):
        hidden = self.second(self.act(self.first(x)))
        out, (h, c) = self.recurrent(hidden)
        return {"answer": self.head(out), "states": [h, (c, None)], "index": hidden.argmax(-1), "extra": hidden * 2}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return Answer(self.linear(x), "two classes")


def loss_of(out):
    return out["answer"].logits.square().sum() + out["states"][1][0].sum() + out["extra"].sin().sum()


def test_gradients_of_nested_outputs_are_those_of_autograd():
    torch.manual_seed(0)
    model, x = Nested(), torch.randn(2, 3, 4)
    with GradientRange(model) as seen:
        out = model(x)
        logits, cell = out["answer"].logits, out["states"][1][0]
        out["extra"].retain_grad(), logits.retain_grad(), cell.retain_grad()
        loss_of(out).backward()
    assert list(seen.activations) == ["", "first", "act", "second", "recurrent", "head.linear"]
    assert torch.equal(seen.activations["head.linear"][0], logits.grad)
    assert torch.equal(seen.activations[""][0], out["extra"].grad)
    assert any(torch.equal(each, cell.grad) for each in seen.activations["recurrent"])
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert set(seen.parameters) == set(expected)
    assert all(torch.equal(seen.parameters[name][0], expected[name]) for name in expected)


@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1)])
def test_an_in_place_module_and_the_one_before_it(shape):
    # With three dimensions a Linear returns a view, whose node an in-place operation cuts out of the graph.
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(inplace=True))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    with GradientRange(model) as seen:
        (model(torch.ones(shape)) * torch.tensor([3.0, 5.0])).sum().backward()
    assert {name: [each.tolist() for each in found] for name, found in seen.activations.items()} == {
        "0": [torch.tensor([3.0, 0.0]).expand(*shape[:-1], 2).tolist()],
        "1": [torch.tensor([3.0, 5.0]).expand(*shape[:-1], 2).tolist()],
    }


class Transposed(nn.Module):
    def forward(self, x):
        return x.mul(2).transpose(0, 1)


def test_a_transposed_view_that_is_changed_in_place_and_one_that_is_not():
    x = torch.ones(2, 3, requires_grad=True)
    weight = torch.arange(6.0).reshape(3, 2)
    for change in (True, False):
        model = Transposed()
        with GradientRange(model) as seen:
            out = model(x)
            out = out.mul_(10) if change else out
            (out * weight).sum().backward()
        (found,) = seen.activations[""]
        assert torch.equal(found, weight * (10 if change else 1))


def test_a_view_of_something_that_others_use_counts_its_own_gradient_only():
    model = nn.Sequential(nn.Flatten())
    made = torch.ones(2, 2, 2, requires_grad=True).mul(1)
    with GradientRange(model) as seen:
        (model(made).sum() + 5 * made.sum()).backward()
    assert torch.equal(seen.activations["0"][0], torch.ones(2, 4)) and len(seen.activations["0"]) == 1


def trained(collect: bool):
    torch.manual_seed(0)
    model, x = Nested(), torch.randn(2, 3, 4)
    optimizer = torch.optim.Adam(model.parameters())
    seen = GradientRange(model)
    for _ in range(3):
        optimizer.zero_grad()
        with seen if collect else contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(x))
            loss.backward()
        optimizer.step()
    return [loss, *model.state_dict().values()], seen


def test_collecting_changes_nothing():
    (plain, _), (watched, seen) = trained(False), trained(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert len(seen.activations["first"]) == 3 and seen.activations["first"][0].dtype == torch.bfloat16


def test_nothing_stays_behind_and_late_gradients_are_not_collected():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
    with pytest.raises(ZeroDivisionError), GradientRange(model) as seen:
        out = model(torch.ones(1, 2))
        raise ZeroDivisionError
    out.sum().backward()
    assert seen.activations == seen.parameters == {}
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    with GradientRange(model) as seen:
        model(torch.ones(1, 2)).sum().backward()
    kept = weakref.ref(out)
    del out
    gc.collect()
    assert kept() is None
    assert not any(tensor.requires_grad for tensor in seen.tensors())


def test_accumulated_and_shared_and_frozen():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, shared, nn.Linear(2, 1))
    model[2].weight.requires_grad_(False)
    with GradientRange(model) as seen:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
    assert [len(seen.activations[name]) for name in ("0", "2")] == [4, 2]
    first, second = seen.parameters["0.weight"]
    assert torch.allclose(second, 2 * first), ".grad as it stood: the sum so far"
    assert "2.weight" not in seen.parameters and len(seen.parameters["2.bias"]) == 2


def test_a_sparse_gradient_counts_by_its_values():
    model = nn.Embedding(5, 2, sparse=True)
    with GradientRange(model) as seen:
        model(torch.tensor([1, 1, 3])).sum().backward()
    assert torch.equal(seen.parameters["weight"][0], torch.tensor([[2.0, 2.0], [1.0, 1.0]]))


def test_checkpointed_layers():
    from torch.utils.checkpoint import checkpoint

    inner, outer = nn.Linear(2, 2), nn.Linear(2, 1)
    model = nn.ModuleList([inner, outer])
    with GradientRange(model) as seen:
        outer(checkpoint(inner, torch.ones(1, 2), use_reentrant=False)).sum().backward()
    assert [len(seen.activations[name]) for name in ("0", "1")] == [1, 1]
    assert torch.equal(seen.activations["0"][0], outer.weight.detach())


def test_a_second_derivative():
    model = nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    x = torch.ones(1, 2, requires_grad=True)
    with GradientRange(model) as seen:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
    assert torch.equal(seen.parameters["0.weight"][0], model[0].weight.grad)


def test_counts_and_fractions_of_what_was_collected():
    model = nn.Linear(1, 1, bias=False)
    with GradientRange(model) as seen:
        (model(torch.tensor([[2.0**-20]])) * 2.0**-8).sum().backward()
    assert seen.counts("parameters") == ({-28: 1}, 0) and seen.counts("activations") == ({-8: 1}, 0)
    assert seen.counts() == ({-28: 1, -8: 1}, 0)
    assert seen.landed("fp16", of="parameters") == {"zero": 1, "subnormal": 0, "normal": 0, "overflow": 0}
    assert seen.landed("fp16", scale=2.0**16, of="parameters")["normal"] == 1
    assert seen.landed("fp16")["zero"] == 0.5
    with pytest.raises(ValueError, match="choose from parameters, activations"):
        seen.counts("weights")
    with pytest.raises(ValueError, match="did backward"):
        GradientRange(model).counts()
    with pytest.raises(TypeError, match="not Tensor"):
        GradientRange(torch.ones(1))
    with seen, pytest.raises(RuntimeError, match="make a second one"):
        seen.__enter__()
