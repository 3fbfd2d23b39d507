"""Lab 07: the shared rules; its solutions against hooks, real optimizers, models under CUDA's policy, brute force."""

import contextlib
import copy
import functools
import itertools
import math

import pytest
import torch
from torch import nn

from ampedu.exercises.small_models import MODELS
from ampedu.exercises.traces import TRACES
from ampedu.policy import cuda_policy_on_cpu
from tests.labs.common import LabTests, lab

STEM = "07_speed_and_memory"
SECRETS = [b"public", b"x", b"y", b"z"]
CAST = {"ToCopyBackward0", "TBackward0", "ViewBackward0", "UnsafeViewBackward0", "TransposeBackward0"}


class TestLab07(LabTests):
    stem = STEM


@functools.cache
def answer(name):
    return lab(STEM).answer(f"07.{name}")


def spec(name):
    return lab(STEM).exercises[f"07.{name}"]


def given(name):
    """A class or function that the lab shows, such as Block."""
    from ampedu.exercises import cells

    source = cells.closure(lab(STEM).definitions(), name)
    return cells.materialize(source, name, (), "07.given")


def is_weight_cast(tensor):
    """Whether a tensor is a parameter in another dtype, or a view of such a copy."""
    node, copied = tensor.grad_fn, False
    while node is not None and type(node).__name__ in CAST:
        copied |= type(node).__name__ == "ToCopyBackward0"
        (node, _), = node.next_functions  # fmt: skip
    return copied and type(node).__name__ == "AccumulateGrad"


def saved(model, x, policy, known=()):
    """Tensors that backward keeps, one for each storage: of no parameter, no buffer, no weight cast, none of `known`.

    The model and x are converted for pure_bf16; amp is bfloat16 under the policy of CUDA.
    """
    if policy == "pure_bf16":
        model = copy.deepcopy(model).bfloat16()
    held = [*model.parameters(), *model.buffers(), *known]
    taken = {tensor.untyped_storage()._cdata for tensor in held}
    found, alive = {}, []

    def pack(tensor):
        alive.append(tensor)
        key = tensor.untyped_storage()._cdata
        if key not in taken and not is_weight_cast(tensor):
            found.setdefault(key, tensor)
        return tensor

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))
        if policy == "amp":
            stack.enter_context(cuda_policy_on_cpu())
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        output = model(x)
    assert output.requires_grad
    return list(found.values())


def size(tensors):
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


# --- 7.1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_saved_bytes_counts_the_storages_of_the_graph(kind, dtype):
    """Another way to the same storages: walk the graph and read what its nodes have saved."""
    model = MODELS[kind](5, 12)
    x = torch.rand((4, 5, 8, 8) if "pooling" in kind else (4, 5))
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        output = model(x)
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), x)}
    nodes, seen, total, alive = [output.grad_fn], set(), {}, []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [previous for previous, _ in node.next_functions]
        for name in dir(node):
            value = getattr(node, name) if name.startswith("_saved_") else None
            if isinstance(value, torch.Tensor):
                alive.append(value)
                storage = value.untyped_storage()
                if storage.data_ptr() not in known:
                    known.add(storage.data_ptr())
                    short = str(value.dtype).removeprefix("torch.")
                    total[short] = total.get(short, 0) + storage.nbytes()
    assert answer("saved_bytes")(model, x, dtype) == total


# --- 7.2 ---------------------------------------------------------------------------------------------------------

MAKERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.1),
}


@pytest.mark.parametrize("optimizer", MAKERS)
@pytest.mark.parametrize("policy", ["fp32", "amp", "pure_bf16"])
def test_step_bytes_are_those_of_a_real_step(optimizer, policy):
    model = nn.Sequential(nn.Linear(7, 11), nn.ReLU(), nn.Linear(11, 3))
    model[0].bias.requires_grad_(False)
    x = torch.rand(5, 7)
    if policy == "pure_bf16":
        model, x = model.bfloat16(), x.bfloat16()
    made = MAKERS[optimizer](model.parameters())
    for _ in range(2):
        made.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=policy == "amp"):
            loss = model(x).float().sum()
        loss.backward()
        made.step()
    state = [t for entry in made.state.values() for t in entry.values() if isinstance(t, torch.Tensor) and t.dim()]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    real = {"parameters": size(model.parameters()), "gradients": size(grads), "optimizer state": size(state)}
    parameters = [(tuple(p.shape), p.requires_grad) for p in model.parameters()]
    assert answer("step_bytes")(parameters, optimizer, policy) == real


def test_adamw_has_sixteen_bytes_for_each_parameter_with_amp_as_without():
    sums = {p: sum(answer("step_bytes")([((1000,), True)], "adamw", p).values()) for p in ("fp32", "amp", "pure_bf16")}
    assert sums == {"fp32": 16000, "amp": 16000, "pure_bf16": 8000}


# --- 7.3 and 7.7 -------------------------------------------------------------------------------------------------


def cast_bytes(model, x):
    """The bytes of all copies of parameters that autocast makes, those of biases too."""
    copies = {}

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in parameters:
                copies[args[0].untyped_storage()._cdata] = result
            return result

    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    with cuda_policy_on_cpu(), torch.autocast("cpu", dtype=torch.bfloat16), Watch():
        model(x)
    return size(copies.values())


@pytest.mark.parametrize("policy", ["fp32", "amp", "pure_bf16"])
@pytest.mark.parametrize("widths", [[9, 5], [6, 17, 4], [30, 8, 21, 13, 2]])
def test_the_ledger_of_a_perceptron_is_the_real_one(policy, widths):
    rows, model = 7, given("perceptron")(widths)
    x = torch.rand(rows, widths[0])
    if policy == "pure_bf16":
        x = x.bfloat16()
    ledger = answer("mlp_ledger")(widths, rows, policy)
    assert ledger["saved activations"] == size(saved(model, x, policy, known=[x]))
    assert ledger["inputs"] == x.nbytes
    assert ledger["weight casts"] == (cast_bytes(model, x) if policy == "amp" else 0)
    parameters = [(tuple(p.shape), True) for p in model.parameters()]
    assert answer("step_bytes")(parameters, "adamw", policy).items() <= ledger.items()


@pytest.mark.parametrize("secret", SECRETS)
def test_break_even_is_where_the_ledgers_cross(secret):
    found = []
    for case in spec("break_even").cases(secret):
        def held(rows, policy, widths=case["widths"]):
            return sum(answer("mlp_ledger")(widths, rows, policy).values())

        rows = answer("break_even")(case["widths"])
        found.append(rows)
        if rows is None:
            assert all(held(n, "amp") >= held(n, "fp32") for n in (1, 100, 10**6))
        else:
            assert held(rows, "amp") < held(rows, "fp32") and held(rows - 1, "amp") >= held(rows - 1, "fp32")
    assert found[-2] is None and None not in found[:-2]
    *_, exact = spec("break_even").cases(secret)
    equal = [sum(answer("mlp_ledger")(exact["widths"], found[-1] - 1, policy).values()) for policy in ("amp", "fp32")]
    assert equal[0] == equal[1]


# --- 7.4 and 7.5 -------------------------------------------------------------------------------------------------


def statistics_on_gpu(tensors, shapes):
    """Bytes to add for the statistics of norms in pure bfloat16: the CPU keeps them in bfloat16, a GPU in float32."""
    return sum(t.nbytes for t in tensors if t.dtype == torch.bfloat16 and tuple(t.shape) in shapes)


@pytest.mark.parametrize("policy", ["fp32", "amp", "pure_bf16"])
@pytest.mark.parametrize("sizes", [(2, 16, 32, 4), (3, 21, 24, 3), (2, 5, 16, 2)])
def test_a_transformer_block_keeps_what_was_predicted(policy, sizes):
    batch, seq, width, heads = sizes
    x = torch.rand(batch, seq, width).to(torch.bfloat16 if policy == "pure_bf16" else torch.float32)
    found = saved(given("Block")(width, heads), x.requires_grad_(), policy)
    counted = size(found) + statistics_on_gpu(found, {(batch, seq, 1)})
    assert sum(answer("block_saved")(*sizes, policy).values()) == counted


def test_the_parts_of_a_block_are_what_its_modules_keep():
    """Norms by their shape, attention weights by theirs; in fp32, the perceptron is all that is four times as wide."""
    batch, seq, width, heads = 2, 16, 32, 4
    found = saved(given("Block")(width, heads), torch.rand(batch, seq, width, requires_grad=True), "amp")
    predicted = answer("block_saved")(batch, seq, width, heads, "amp")
    weights = [t for t in found if t.numel() == batch * heads * seq**2]
    assert sorted(t.element_size() for t in weights) == [2, 4]
    norms = [t for t in found if t.dtype == torch.float32 and t.numel() in (batch * seq, batch * seq * width)]
    assert predicted["norms"] == size(norms)
    wide = [t for t in found if t.numel() == 4 * batch * seq * width]
    assert predicted["mlp"] == size(wide) + 2 * batch * seq * width


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_statistics_of_norms_are_float32_on_a_gpu(norm):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        x, w = (torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((4, 8), (8,)))
        if norm == "layer":
            _, *statistics = torch.native_layer_norm(x, [8], w, w, 1e-5)
        else:
            _, *statistics = torch.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
        assert [t.dtype for t in statistics] == [torch.float32] * 2


@pytest.mark.parametrize("policy", ["fp32", "amp", "pure_bf16"])
@pytest.mark.parametrize("image", [(2, 3, 9, 11), (3, 1, 12, 8)])
@pytest.mark.parametrize("layers", [[(4, 2)], [(6, 1), (5, 2), (7, 2)]])
def test_a_convolutional_network_keeps_what_was_predicted(policy, image, layers):
    for wide in (False, True) if policy == "amp" else (False,):
        x = torch.rand(image).to(torch.bfloat16 if policy == "pure_bf16" else torch.float32)
        found = saved(given("Convolutions")(image[1], layers, wide), x, policy, known=[x])
        counted = size(found) + statistics_on_gpu(found, {(channels,) for channels, _ in layers})
        predicted = answer("cnn_saved")(image, layers, policy, wide)
        assert sum(predicted.values()) == counted
        if policy == "amp":
            copies = [t for t in found if t.grad_fn is None or type(t.grad_fn).__name__ == "ToCopyBackward0"]
            copies = [t for t in copies if t.dtype == torch.bfloat16]
            assert predicted["casts"] == size(copies)


# --- 7.6 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
def test_largest_batch_by_trying(secret):
    for case in spec("largest_batch").cases(secret):
        (small, low), (large, high) = case["peaks"]

        def peak(batch, small=small, low=low, large=large, high=high):
            return low + (high - low) * (batch - small) // (large - small)

        budget = case["budget"] * 2**30
        best = max((n for n in range(8, 2000, 8) if peak(n) <= budget), default=0)
        assert answer("largest_batch")(dict(case["peaks"]), case["budget"]) == best
        room = (budget - peak(best)) / (peak(1) - peak(0))
        assert best == 0 or 1.9 < room < 6.1, "too near to a multiple of 8"


# --- 7.8 ---------------------------------------------------------------------------------------------------------


def timeline(inputs, inside, chosen):
    """The peak by a simulation of one step: allocate and free, block by block."""
    held, peak = 0, 0
    for i in range(len(inputs)):
        held += inputs[i] + (0 if i in chosen else inside[i])
        peak = max(peak, held)
    for i in reversed(range(len(inputs))):
        held += inside[i] if i in chosen else 0
        peak = max(peak, held)
        held -= inputs[i] + inside[i]
    assert held == 0
    return peak


@pytest.mark.parametrize("secret", SECRETS)
def test_checkpoints_are_the_cheapest_that_fit_and_no_others_cost_the_same(secret):
    sizes = []
    for case in spec("place_checkpoints").cases(secret):
        inputs, inside, cost, budget = case.values()
        sums = {}
        for bits in itertools.product((0, 1), repeat=len(inputs)):
            chosen = [i for i, bit in enumerate(bits) if bit]
            total = sum(cost[i] for i in chosen)
            assert total not in sums, "two sets have the same cost"
            sums[total] = chosen if timeline(inputs, inside, chosen) <= budget else None
        fitting = [(total, chosen) for total, chosen in sums.items() if chosen is not None]
        best = min(fitting)[1] if fitting else None
        assert answer("place_checkpoints")(inputs, inside, cost, budget) == best
        assert best is None or len(inputs) - 1 not in best, "the last block never pays"
        sizes.append(None if best is None else len(best))
    assert sizes[0] == 0 and None in sizes and max(n for n in sizes if n is not None) >= 2


@pytest.mark.parametrize("chosen", [[], [1], [0, 2], [0, 1, 2], [3]])
def test_a_real_checkpointed_block_keeps_its_input_alone(chosen):
    """What is alive at the end of the forward pass, in torch: blocks of three functions that keep their results."""
    from torch.utils.checkpoint import checkpoint

    from ampedu.memory.tracker import Tracker

    blocks = [nn.Sequential(nn.Sigmoid(), nn.Tanh(), nn.Sigmoid()) for _ in range(4)]
    x = torch.rand(8, 16, requires_grad=True)
    with Tracker(nn.Identity()) as tracker:
        y = x
        for i, block in enumerate(blocks):
            keeps = {"use_reentrant": False, "preserve_rng_state": False}
            y = checkpoint(block, y, **keeps) if i in chosen else block(y)
        alive = tracker.total
    results = {(i, k) for i in range(4) for k in range(3) if i not in chosen}
    kept_inputs = {(i - 1, 2) for i in chosen if i}  # the batch x was there before
    assert alive == len(results | kept_inputs | {(3, 2)}) * x.nbytes and y.requires_grad


# --- 7.9 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 16, 40), (33, 64, 96)])
def test_the_lean_gate_keeps_less_on_the_cpu_as_under_the_policy_of_cuda(shape):
    rows, width, hidden = shape
    torch.manual_seed(1)
    gate, lean = given("Gate")(width, hidden), answer("lean_gate")(width, hidden)
    lean.load_state_dict(gate.state_dict())
    x = torch.randn(rows, width)
    results = {}
    for name, module in (("gate", gate), ("lean", lean)):
        cuda = size(saved(module, x, "amp", known=[x]))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            counted = sum(answer("saved_bytes")(module, x, torch.bfloat16).values())
            results[name] = module(x)
        assert counted == cuda + 2 * 3 * width * hidden
        results[f"{name} bytes"] = cuda
    assert results["gate bytes"] - results["lean bytes"] == 2 * rows * width + 2 * rows * hidden
    assert results["lean"].dtype == torch.float32
    torch.testing.assert_close(results["lean"], results["gate"], rtol=0.02, atol=0.02)


# --- 7.10 and 7.11 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
def test_the_autopsy_gives_each_microsecond_to_the_innermost_call(secret):
    kinds = {
        "aten::addmm": "matmul", "aten::to": "casts", "aten::copy_": "casts", "DataLoader.__next__": "data",
        "Optimizer.step": "optimizer",
    }  # fmt: skip
    for dominant, case in zip(TRACES, spec("autopsy").cases(secret), strict=True):
        first = min(start for _, start, _ in case["events"])
        times = dict.fromkeys(("matmul", "casts", "data", "optimizer", "other", "idle"), 0)
        for moment in range(first, first + case["total"]):
            around = [(length, name) for name, start, length in case["events"] if start <= moment < start + length]
            times[kinds.get(min(around)[1], "other") if around else "idle"] += 1
        events = [dict(zip(("name", "start", "duration"), event, strict=True)) for event in case["events"]]
        assert answer("autopsy")(events, case["total"]) == (times, dominant)
        second = sorted(times.values())[-2]
        assert times[dominant] > 1.3 * second, "not clear enough"


def test_the_speed_up_of_a_step_by_hand():
    times = {"matmul": 80.0, "other": 15.0, "idle": 5.0}
    assert answer("gain")(times, {"matmul": 8.0}, 10.0) == (100 / 40, 5.0)
    assert answer("gain")(times, {"matmul": 8.0, "other": 1.5}, 0.0) == (100 / 25, 20.0)


@pytest.mark.parametrize("secret", SECRETS)
def test_some_steps_gain_and_some_lose(secret):
    speeds = [answer("gain")(c["times"], c["factors"], c["added"])[0] for c in spec("gain").cases(secret)]
    assert min(speeds) < 1 < max(speeds)
    for case, speed in zip(spec("gain").cases(secret), speeds, strict=True):
        assert speed < answer("gain")(case["times"], case["factors"], case["added"])[1] and math.isfinite(speed)


# --- 7.12 --------------------------------------------------------------------------------------------------------


def test_every_complaint_has_a_cure_of_its_own():
    letters = answer("cures")()
    assert len(set(letters)) == len(letters) == len(spec("cures").spec.LOOK) == 7
    text = "\n".join(cell.source for cell in lab(STEM).script.cells if cell.kind == "markdown")
    assert "Seven complaints, nine answers." in text
    assert all(f"- **{letter}** " in text for letter in "ABCDEFGHI") and "- **J** " not in text
