"""Lab 04: the shared rules; its solutions against torch's own autocast, probed for CUDA, and against float64."""

import ast
import functools
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ampedu.exercises.casting import EXPRESSIONS, STEPS, BannedLoss, Descent, region, restored, strict_operations, walk
from ampedu.exercises.ex04_autocast import CountCasts
from ampedu.exercises.mutants import load_mutants
from ampedu.policy import autocast_policy, cuda_policy_on_cpu, probe
from tests.labs.common import ROOT, LabTests, lab

STEM = "04_autocast"
SECRETS = [b"public", b"x", b"y", b"z"]
HALVES = (torch.float16, torch.bfloat16)


class TestLab04(LabTests):
    stem = STEM


@functools.cache
def answer(name):
    return lab(STEM).answer(f"04.{name}")


def spec(name):
    return lab(STEM).exercises[f"04.{name}"]


@functools.cache
def mutants():
    return {mutant.name: mutant.answer for mutant in load_mutants(ROOT / "sources" / "mutants" / f"{STEM}.py")}


def by_number(dtypes):
    return {number: name for name, numbers in dtypes.items() for number in numbers}


def test_the_table_of_the_lab_holds_the_twenty_expressions():
    text = "\n".join(cell.source for cell in lab(STEM).script.cells if cell.kind == "markdown")
    table = {int(number): code for number, code in re.findall(r"\| (\d+) \| `([^`]+)` ", text)}
    assert table == {number: expression for number, (expression, _) in EXPRESSIONS.items()}
    assert len(table) == 20


@pytest.mark.parametrize("low", HALVES)
def test_predictions_are_what_the_cuda_policy_gives(low):
    made = "torch.zeros(16, device=device), torch.ones(16, device=device), torch.arange(16, device=device)"
    for number, (text, _) in EXPRESSIONS.items():
        text = text.replace("torch.float16", str(low))
        whole = f"(lambda x, w, h, mean, var, ids: {text})(x, y, x @ y, {made})"
        found = probe(whole, (16, 16), (16, 16), dtype=low)
        expected = by_number(answer("predicted")())[number].replace("float16", str(low).removeprefix("torch."))
        assert str(found) == f"torch.{expected}", text


def test_the_mutant_that_believes_the_cpu_is_what_the_cpu_does():
    x, w = torch.ones(16, 16), torch.ones(16, 16)
    names = {"x": x, "w": w, "F": F, "torch": torch, "ids": torch.arange(16), "mean": w[0], "var": w[0]}
    expected = by_number(mutants()["lists_of_the_cpu"]())
    for number, (text, _) in EXPRESSIONS.items():
        with region("float16"):
            found = eval(text, {**names, "h": x @ w})
        assert str(found.dtype) == f"torch.{expected[number]}", text


def given_lists():
    """POLICY as the cell of the lab defines it."""
    cell = next(cell for cell in lab(STEM).script.cells if cell.source.startswith("LISTS = "))
    lists = ast.literal_eval(ast.parse(cell.source).body[0].value)
    return {name: policy for policy, names in lists.items() for name in names.split()}


def test_the_given_lists_are_torchs():
    registered = {}
    for name, policy in autocast_policy("cuda").items():
        registered.setdefault(name.partition(".")[0], set()).add(policy.name)
    for name, policy in given_lists().items():
        assert registered[name] == {policy}, name


class Seen(TorchDispatchMode):
    """The dtypes of the tensors that reach an operation below autocast."""

    def __init__(self, name):
        super().__init__()
        self.name, self.dtypes = name, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name == f"aten::{self.name}":
            self.dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor)]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("low", HALVES)
@pytest.mark.parametrize(
    ("policy", "name", "call"),
    [
        ("lower_precision", "mm", lambda x, y: torch.mm(x, y)),
        ("float32", "mse_loss", lambda x, y: F.mse_loss(x, y)),
        ("promote_widest", "atan2", lambda x, y: torch.atan2(x, y)),
        (None, "mul.Tensor", lambda x, y: x * y),
    ],
)
def test_input_dtypes_are_those_that_reach_the_operation(policy, name, call, low):
    kinds = [low, torch.float32, torch.float64]
    for pair in [(a, b) for a in kinds for b in kinds]:
        x, y = (torch.ones(2, 2, dtype=dtype) for dtype in pair)
        with cuda_policy_on_cpu(low), torch.autocast("cpu", dtype=low), Seen(name.partition(".")[0]) as seen:
            try:
                call(x, y)
            except RuntimeError:  # the operation refuses the pair: it has been seen all the same
                assert torch.float64 in pair
        if seen.dtypes is not None:
            assert answer("input_dtypes")(policy, list(pair), low) == seen.dtypes, pair
        else:
            assert torch.float64 in pair and len(set(pair)) == 2


@pytest.mark.parametrize("secret", SECRETS)
def test_own_autocast_is_torchs_on_secret_models(secret):
    steps = set()
    for case in spec("own_autocast").cases(secret):
        low = getattr(torch, case["low"])
        steps |= set(case["program"])
        with torch.no_grad(), cuda_policy_on_cpu(low), torch.autocast("cpu", dtype=low):
            theirs = walk(case["program"], spec("own_autocast").spec.constants(case), low)
        mine = spec("own_autocast").run(answer("own_autocast"), case)
        assert mine == theirs
    assert steps == set(STEPS), "a step occurs in no model"


def test_own_autocast_trains_with_gradients_in_float32():
    mode, layer = answer("own_autocast")(torch.bfloat16), torch.nn.Linear(8, 4)
    with mode:
        hidden = layer(torch.ones(2, 8))
        hidden.retain_grad()
        loss = F.mse_loss(hidden, torch.zeros(2, 4))
    loss.backward()
    assert (hidden.grad.dtype, layer.weight.grad.dtype) == (torch.bfloat16, torch.float32)
    assert (torch.ones(2, 8) @ layer.weight.T).dtype == torch.float32, "the mode is still on"


class Copies(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def real_tensors():
    """A tensor of each kind of CountCasts."""
    found = {}
    for name, (dtype, grad, leaf) in CountCasts.KINDS.items():
        tensor = torch.ones(2, 2, dtype=getattr(torch, dtype), requires_grad=grad)
        found[name] = tensor if leaf else tensor * 1
        assert (found[name].requires_grad, found[name].is_leaf or leaf) == (grad, leaf)
    return found


@pytest.mark.parametrize("secret", SECRETS)
def test_casts_are_counted_as_torch_makes_them(secret):
    calls = {2: torch.mm, 3: torch.addmm}
    for case in spec("count_casts").cases(secret):
        tensors, stack = real_tensors(), []
        with restored(), Copies() as copies:
            for event in case["events"]:
                if event == "enter":
                    stack.append(torch.autocast("cpu", dtype=torch.float16, cache_enabled=case["cache_enabled"]))
                    stack[-1].__enter__()
                elif event == "leave":
                    stack.pop().__exit__(None, None, None)
                elif stack:  # outside, mixed dtypes would raise, and nothing is cast
                    calls[len(event)](*(tensors[name] for name in event))
        assert spec("count_casts").run(answer("count_casts"), case) == copies.number, case["events"]


@pytest.mark.parametrize("low", [None, "float16", "bfloat16"])
def test_the_island_computes_in_float32(low):
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(5, 7, generator=generator), torch.randn(7, 3, generator=generator)
    with region(low):
        got = answer("in_float32")(torch.mm, x, w)
        if low:
            assert (x @ w).dtype == getattr(torch, low), "the region does not go on"
    torch.testing.assert_close(got.double(), x.double() @ w.double(), rtol=1e-5, atol=1e-6)
    assert got.dtype == torch.float32


@pytest.mark.parametrize("low", [None, "float16", "bfloat16"])
def test_clipped_product_against_float64(low):
    generator = torch.Generator().manual_seed(2)
    x, w = (torch.randn(s, generator=generator).requires_grad_() for s in ((6, 5), (5, 4)))
    grad = 3 * torch.randn(6, 4, generator=generator)
    with region(low):
        y = answer("clipped_product")(x, w)
    y.backward(grad.to(y.dtype))
    clipped = grad.double().clamp(-1, 1)
    close = functools.partial(torch.testing.assert_close, rtol=0, atol=0.05 if low else 1e-5)
    close(y.double(), x.double() @ w.double())
    close(x.grad.double(), clipped @ w.double().T)
    close(w.grad.double(), x.double().T @ clipped)
    assert y.dtype == (getattr(torch, low) if low else torch.float32)


@pytest.mark.parametrize("secret", SECRETS)
def test_clipped_cases_are_exact_in_their_dtype_and_not_in_bfloat16(secret):
    for case in spec("clipped_product").cases(secret):
        low, x = getattr(torch, case["low"] or "float32"), torch.tensor(case["x"], dtype=torch.float64)
        assert torch.equal(x.to(low).double(), x)
        assert torch.equal(x.bfloat16().double(), x) is (low == torch.bfloat16)


def test_names_of_custom_operations_are_never_used_twice():
    with strict_operations(["f"]) as first:
        torch.library.register_autocast(f"{first}::f", "cpu", torch.bfloat16)
        with region("bfloat16"):
            assert getattr(torch.ops, first).f(torch.ones(2), torch.ones(2).half()).dtype == torch.bfloat16
    with strict_operations(["f"]) as second, region("bfloat16"):
        assert getattr(torch.ops, second).f(torch.ones(2), torch.ones(2)).dtype == torch.float32
        with pytest.raises(RuntimeError, match="same dtype"):
            getattr(torch.ops, second).f(torch.ones(2), torch.ones(2).half())
    assert first != second and not hasattr(getattr(torch.ops, second), "f")


def test_no_answer_leaves_autocast_on_or_off():
    for name in ("in_float32", "yes_no_loss", "train"):
        for mutant in lab(STEM).mutants:
            if mutant.exercise == f"04.{name}":
                lab(STEM).verdict(mutant.exercise, mutant.answer)
                assert not torch.is_autocast_enabled("cpu"), mutant.name
                assert torch.is_autocast_cache_enabled() and torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_the_banned_loss_is_refused_in_a_region_and_nowhere_else():
    p, y = torch.full((3,), 0.5), torch.ones(3)
    for call in (F.binary_cross_entropy, torch.nn.BCELoss()):
        with region("bfloat16"), BannedLoss(), pytest.raises(RuntimeError, match="unsafe to autocast"):
            call(p, y)
        with BannedLoss():
            assert call(p, y) > 0.6
    with region("bfloat16"), BannedLoss():
        F.binary_cross_entropy_with_logits(p, y)
    with pytest.raises(RuntimeError, match="unsafe to autocast"), cuda_policy_on_cpu(), torch.autocast("cpu"):
        F.binary_cross_entropy(p, y)


def test_yes_no_loss_against_float64():
    logits = torch.tensor([[-80.0], [-3.0], [0.0], [2.5], [80.0]])
    for targets in (torch.zeros(5, 1), torch.ones(5, 1)):
        x, y = logits.double(), targets.double()
        exact = (torch.log1p((-x.abs()).exp()) + x.clamp(min=0) - x * y).mean()
        torch.testing.assert_close(answer("yes_no_loss")(logits.half(), targets).double(), exact, rtol=1e-6, atol=0)


def test_put_rows_adds_each_value_of_a_row_that_occurs_twice():
    buffer = torch.zeros(3, 2)
    answer("put_rows")(buffer, torch.tensor([1, 1, 2]), torch.tensor([[1.0, 2], [3, 4], [5, 6]]).bfloat16(), add=True)
    assert buffer.tolist() == [[0, 0], [4, 6], [5, 6]]
    answer("put_rows")(buffer, torch.tensor([0]), torch.tensor([[7.0, 8]]).half(), add=False)
    assert buffer.tolist() == [[7, 8], [4, 6], [5, 6]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_to_numpy_keeps_what_numpy_knows(dtype):
    got = answer("to_numpy")(torch.ones(3).to(dtype))
    assert got.dtype == np.dtype(str(dtype).removeprefix("torch."))


def test_to_numpy_holds_every_bfloat16_number():
    codes = torch.arange(2**16).to(torch.int32).to(torch.int16)
    got = answer("to_numpy")(codes.view(torch.bfloat16).requires_grad_())
    upper = got.view(np.uint32) >> 16
    nan = np.isnan(got)
    assert got.dtype == np.float32 and (upper[~nan] == codes.numpy().view(np.uint16)[~nan]).all() and nan.sum() == 254


@pytest.mark.parametrize("low", [None, "float16", "bfloat16"])
def test_graph_layer_against_float64(low):
    generator = torch.Generator().manual_seed(3)
    adjacency = torch.randn(6, 6, generator=generator) * (torch.rand(6, 6, generator=generator) < 0.4)
    features, weight = torch.randn(6, 4, generator=generator), torch.randn(4, 3, generator=generator)
    with region(low):
        got = answer("graph_layer")(adjacency.to_sparse_csr(), features, weight)
    exact = adjacency.double() @ features.double() @ weight.double()
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=0.1 if low else 1e-5)
    assert got.dtype == (getattr(torch, low) if low else torch.float32)


def test_descent_is_sgd():
    model = torch.nn.Linear(2, 1, bias=False)
    other = torch.nn.Linear(2, 1, bias=False)
    other.load_state_dict(model.state_dict())
    mine = Descent(model.weight, 0.125, 0.5)
    theirs = torch.optim.SGD(other.parameters(), lr=0.125, momentum=0.5)
    batches = [(torch.ones(3, 2) * k, torch.ones(3, 1)) for k in (1.0, 0.5, 0.25)]
    losses = [answer("train")(m, o, batches) for m, o in ((model, mine), (other, theirs))]
    assert losses[0] == losses[1] and losses[0][0] != losses[0][1]
    torch.testing.assert_close(model.weight, other.weight)


def by_the_mode_of_input_dtypes():
    """MyAutocast written with the answer to 4.2, and with pytree instead of the helpers."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_leaves, tree_map

    policies = given_lists()

    class MyAutocast(TorchFunctionMode):
        def __init__(self, dtype):
            super().__init__()
            self.low = dtype

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            policy = policies.get(func.__name__)
            if policy == "banned":
                raise RuntimeError
            if policy == "float32_set_dtype":
                policy = None if kwargs.get("dtype") else "float32"
            if "out" in kwargs:
                policy = None
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            new = iter(answer("input_dtypes")(policy, [x.dtype for x in tensors], self.low))
            args, kwargs = tree_map(lambda x: x.to(next(new)) if isinstance(x, torch.Tensor) else x, (args, kwargs))
            return func(*args, **kwargs)

    return MyAutocast


def clipped_by_hand(x, w):
    """The casts written out, without decorators."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            y = x @ w
            ctx.save_for_backward(x.to(y.dtype), w.to(y.dtype))
            return y

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad.clamp(-1, 1) @ w.T, x.T @ grad.clamp(-1, 1)

    return Product.apply(x, w)


def train_clearing_the_cache(model, optimizer, batches):
    losses = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            torch.clear_autocast_cache()
            losses.append(loss)
    return losses


def island_by_decorator(function, *tensors):
    @torch.autocast("cpu", enabled=False)
    def run():
        return function(*(t if t.dtype in (torch.int64, torch.bool) else t.to(torch.float32) for t in tensors))

    return run()


OTHER_RIGHT_ANSWERS = {
    "own_autocast": by_the_mode_of_input_dtypes(),
    "clipped_product": clipped_by_hand,
    "train": train_clearing_the_cache,
    "in_float32": island_by_decorator,
    "yes_no_loss": lambda logits, targets: torch.nn.BCEWithLogitsLoss()(logits, targets).float(),
    "to_numpy": lambda x: x.detach().to(torch.float32 if x.dtype == torch.bfloat16 else x.dtype).numpy(),
    "put_rows": lambda buffer, rows, values, add: buffer.index_put_((rows,), values.to(buffer.dtype), accumulate=add),
    "predicted": lambda: {
        "float64": (20,), "float32": [19, 18, 15, 12, 10, 8, 6, 4, 2],
        "float16": [1, 3, 5, 7, 9, 11, 13, 14, 16, 17],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_RIGHT_ANSWERS)
def test_other_right_answers_pass_too(name):
    assert lab(STEM).verdict(f"04.{name}", OTHER_RIGHT_ANSWERS[name]).status == "passed"


def test_a_miss_comes_with_its_reason():
    wrong = {"float16": list(range(1, 20)), "float64": [20]}
    verdict = lab(STEM).verdict("04.predicted", lambda: wrong)
    assert "add is on no list" in verdict.difference.call


def test_dtypes_as_keys_are_explained():
    verdict = lab(STEM).verdict("04.predicted", lambda: {torch.float16: [1]})
    assert verdict.status == "failed" and "keys must be strings" in verdict.difference.got
