"""The ledger against ways to count that share nothing with it: data pointers, the graph, MemTracker, the allocator."""

import weakref

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampedu.memory import Tracker, measure, predict, reconcile
from ampedu.memory.plan import Step, planned, replaced


class Transformer(nn.Module):
    def __init__(self, width=32, layers=2, vocabulary=50, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


def mlp():
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(64, 10)), (torch.randn(128, 64), torch.randint(10, (128,)))


def transformer(dropout=0.0):
    tokens = torch.randint(50, (5, 16))  # 80 rows: no activation has the shape of a weight
    return Transformer(dropout=dropout), (tokens, tokens)


def cnn():
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 5)), (torch.randn(4, 3, 10, 10), torch.randint(5, (4,)))


MODELS = {"mlp": (mlp, "[0-2]"), "transformer": (transformer, True), "cnn": (cnn, ["0", "4"])}
POLICIES = [
    ("fp32", "cuda"),
    ("fp32", "cpu"),
    ("bf16", "cuda"),
    ("bf16", "cpu"),
    ("fp16", "cuda"),
    ("fp16", "cpu"),
    ("pure_bf16", "cuda"),
    ("pure_bf16", "cpu"),
]
QUICK = [("fp32", "cuda", True), ("bf16", "cuda", False), ("fp16", "cpu", True), ("pure_bf16", "cuda", False)]
CASES = [
    pytest.param(model, *policy, kept, marks=() if (*policy, kept) in QUICK else pytest.mark.slow)
    for model in MODELS
    for policy in POLICIES
    for kept in (False, True)
]


def made(name, policy, lists, checkpoint=False, optimizer="adamw"):
    """(model, batch, arguments of predict)."""
    torch.manual_seed(0)
    build, blocks = MODELS[name]
    how = {"policy": policy, "device_policy": lists, "optimizer": optimizer}
    return *build(), how | {"checkpoint": blocks if checkpoint else None}


def real_step(model, batch, how):
    """The step that measure runs, with its optimizer's state made."""
    asked = {"implementation": None, "loss": None, "accumulate": 1} | how
    plan = planned(model, asked.pop("policy"), asked.pop("device_policy"), "cpu", **asked)
    step = Step(plan, *replaced(model, batch, lambda x: x.detach().to(plan_dtype(plan, x), copy=True)))
    step.run()
    return step


def plan_dtype(plan, tensor):
    return torch.bfloat16 if plan.policy == "pure_bf16" and tensor.is_floating_point() else tensor.dtype


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that are alive, by the address of their data, from the first operation that meets them."""

    def __init__(self):
        super().__init__()
        self.alive, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, torch.Tensor):
                self.meet(tensor)
        self.most = max(self.most, sum(self.alive.values()))
        return result

    def meet(self, tensor):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address and address not in self.alive:
            weakref.finalize(storage, self.alive.pop, address, None).atexit = False
        if address:
            self.alive[address] = storage.nbytes()


@pytest.mark.parametrize(("name", "policy", "lists", "checkpoint"), CASES)
def test_prediction_is_the_peak_of_the_tensors_of_a_real_step(name, policy, lists, checkpoint):
    model, batch, how = made(name, policy, lists, checkpoint)
    step = real_step(model, batch, how)
    counted = LiveBytes()
    for tensor in tree_leaves(list(step.tensors().values())):
        counted.meet(tensor)
    with counted:
        step.run()
    assert predict(model, batch, **how).peak == pytest.approx(counted.most, rel=0.005)


@pytest.mark.parametrize(("policy", "lists"), [("fp32", "cpu"), ("bf16", "cuda"), ("fp16", "cpu")])
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_mem_tracker_finds_the_same_peak(name, policy, lists):
    model, batch, how = made(name, policy, lists)
    step = real_step(model, batch, how)
    tracker = MemTracker()
    tracker.track_external(step.model, step.optimizer, *step.inputs, *step.target)
    with tracker:
        step.run()
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert predict(model, batch, **how).peak == pytest.approx(theirs, rel=0.001)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_float32_peak_is_what_the_allocator_counts(name, checkpoint):
    # In 16 bits the CPU's library adds buffers of its own inside products: benchmarks/memory.py measures these.
    model, batch, how = made(name, "fp32", "cpu", checkpoint)
    measured = measure(model, batch, **how)
    assert predict(model, batch, **how).peak == pytest.approx(measured.allocator_peak, rel=0.05)


def graph(loss):
    """The nodes behind a loss."""
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    return seen


@pytest.mark.parametrize(("policy", "lists"), [("fp32", "cuda"), ("bf16", "cuda"), ("bf16", "cpu")])
@pytest.mark.parametrize("name", MODELS)
def test_saved_activations_are_what_the_nodes_of_the_graph_hold(name, policy, lists):
    model, batch, how = made(name, policy, lists)
    losses = []

    def loss(output, target):
        losses.append(nn.functional.cross_entropy(output.flatten(0, -2), target.flatten()))
        return losses[-1]

    step = real_step(model, batch, how | {"loss": loss})
    held = {t.untyped_storage().data_ptr() for t in tree_leaves(list(step.tensors().values()))}
    weights = {
        shape for weight in step.model.parameters() for shape in (weight.shape, weight.shape[::-1]) if len(shape) > 1
    }
    found, casts, losses[:] = {}, {}, []

    def look(*_):
        for node in graph(losses[0]):
            for attribute in dir(node):
                if attribute.startswith("_saved_") and isinstance(value := getattr(node, attribute), torch.Tensor):
                    kept = casts if value.shape in weights else found
                    kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return None

    step.optimizer.zero_grad()
    original = torch.Tensor.backward
    try:
        torch.Tensor.backward = lambda tensor, *args: (look(), original(tensor, *args))
        step.run()
    finally:
        torch.Tensor.backward = original
    activations = sum(size for address, size in found.items() if address not in held)
    weight_casts = sum(size for address, size in casts.items() if address not in held)
    ledger = predict(model, batch, **how)
    assert ledger["saved activations"] == pytest.approx(activations, rel=0.005)
    assert ledger.saved_casts == weight_casts
    assert sum(ledger.by_module.values()) == sum(ledger.by_dtype.values()) == ledger["saved activations"]


def test_measured_rows_are_those_predicted():
    model, batch, how = made("transformer", "bf16", "cuda", True)
    predicted, measured = predict(model, batch, **how), measure(model, batch, **how)
    assert [row.name for row in predicted.rows] == [row.name for row in measured.rows]
    for row in measured.rows:
        assert predicted[row.name] == pytest.approx(row.bytes, rel=0.05), row.name
    assert "+0.00 %" in reconcile(predicted, measured) and "allocator" in reconcile(predicted, measured)


def test_a_forward_pass_without_backward_is_freed_with_its_output():
    net, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4, 8)
    with Tracker(net) as tracker:
        output = net(x)
        assert tracker.total > 0
        del output
        assert tracker.total == 0


def test_tracking_leaves_gradients_of_gradients_alone():
    x = torch.tensor([0.3, 0.7], requires_grad=True)
    with Tracker(nn.Identity()):
        (first,) = torch.autograd.grad(x.sigmoid().exp().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    (right,) = torch.autograd.grad(x.sigmoid().exp().sum(), x, create_graph=True)
    assert torch.equal(second, torch.autograd.grad(right.sum(), x)[0])
