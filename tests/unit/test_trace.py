"""The trace against what plain hooks see, and against counts known from torch's rules; the model stays as it was."""

import threading

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from ampedu.policy import cuda_policy_on_cpu
from ampedu.trace import TraceError, cast_census, trace_dtypes

HALF, FULL = torch.float16, torch.float32


class Tied(nn.Module):
    """One layer three times, in place, with a float32 island."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.again = self.layer

    def forward(self, x):
        x = self.again(self.layer(x).relu_())
        with torch.autocast("cpu", enabled=False):
            x = x.float().exp().softmax(-1)
        return self.layer(x)


class Checkpointed(nn.Module):
    def __init__(self, reentrant=False):
        super().__init__()
        self.inner, self.outer, self.reentrant = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8), reentrant

    def forward(self, x):
        return self.outer(checkpoint(self.inner, x, use_reentrant=self.reentrant))


def encoder(dropout=0.0, layers=2):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


MODELS = {
    "encoder": (encoder, (2, 3, 8)),
    "dropout": (lambda: encoder(0.2), (2, 3, 8)),
    "cnn": (cnn, (2, 3, 8, 8)),
    "gru": (lambda: nn.GRU(8, 8), (3, 2, 8)),
    "lstm": (lambda: nn.LSTM(8, 8), (3, 2, 8)),
    "tied": (Tied, (2, 8)),
    "checkpoint": (Checkpointed, (2, 8)),
    "reentrant": (lambda: Checkpointed(True), (2, 8)),
}


def made(name):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    return build(), torch.randn(shape, requires_grad=name == "reentrant")


def first(output):
    return output[0] if isinstance(output, tuple) else output


def plain_run(model, x, seed=1):
    """Outputs' dtypes by module, output and gradients of a run without a trace, seen by ordinary hooks."""
    seen, handles = [], []
    for path, part in model.named_modules():
        handles.append(part.register_forward_hook(lambda m, a, out, path=path: seen.append((path, first(out).dtype))))
    torch.manual_seed(seed)
    with cuda_policy_on_cpu(HALF):
        with torch.autocast("cpu", dtype=HALF):
            output = first(model(x))
        output.backward(torch.ones_like(output))
    for handle in handles:
        handle.remove()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return seen, output.detach(), gradients


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("tied", "checkpoint", "reentrant")])
def test_modules_return_what_forward_hooks_see(name):
    model, x = made(name)
    seen, _, gradients = plain_run(model, x)
    trace = trace_dtypes(model, x, device_policy="cuda")
    assert [(call.path, call.outputs[0]) for call in trace.modules] == seen
    assert trace.gradients == {key: gradient.dtype for key, gradient in gradients.items()}
    assert set(trace.gradients.values()) == {FULL}


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_changes_no_result(name):
    model, x = made(name)
    model.train()
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    _, output, gradients = plain_run(model, x)
    for key, value in model.named_buffers():
        value.copy_(buffers[key])
    outputs, inside, handles = [], {}, []
    for key, weight in model.named_parameters():
        handles.append(
            weight.register_post_accumulate_grad_hook(lambda w, key=key: inside.update({key: w.grad.clone()}))
        )
    torch.manual_seed(1)
    trace = trace_dtypes(lambda x: outputs.append(first(model(x))) or outputs[0], x, device_policy="cuda")
    assert torch.equal(outputs[0], output)
    assert inside.keys() == gradients.keys()
    assert all(torch.equal(inside[key], gradients[key]) for key in gradients)
    assert len(trace.ops) > 5


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_left_as_it_was(name):
    model, x = made(name)
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 3.0)
    kept = [weight.grad for weight in model.parameters()]
    state = torch.get_rng_state()
    trace_dtypes(model, x, device_policy="cuda")
    assert all(weight.grad is gradient for weight, gradient in zip(model.parameters(), kept, strict=True))
    assert all(torch.equal(gradient, torch.full_like(gradient, 3.0)) for gradient in kept)
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)
    assert x.grad is None


@pytest.mark.parametrize("policy", ["cuda", None])
def test_three_uses_of_a_layer_make_five_casts_and_nine_without_the_cache(policy):
    layer = nn.Linear(4, 4)
    census = cast_census(lambda x: layer(x) + layer(x) + layer(x), torch.ones(2, 4), device_policy=policy)
    # Each use casts its input: 3. Weight and bias are cast once, or at each of the 3 uses.
    assert (census.casts, census.casts_without, census.saved) == (5, 9, 4)
    assert (census.cached.cache_hits, census.uncached.cache_hits) == (4, 0)
    assert census.saved_bytes == 2 * (16 + 4) * 2  # two more casts of 16 + 4 numbers of 2 bytes
    assert [op.cast.needless for op in census.cached.autocasts] == ["", "", "", "again", "again"]
    assert "saved 4 casts, 80 B" in repr(census) and "saved 4 casts, 80 B" in census._repr_html_()


@pytest.mark.parametrize("name", ["tied", "gru", "encoder", "cnn"])
def test_hits_are_the_casts_that_the_cache_saves(name):
    model, x = made(name)
    census = cast_census(lambda x: first(model(first(model(x)) if name != "cnn" else x)), x, device_policy="cuda")
    assert census.cached.cache_hits == census.saved
    assert census.uncached.cache_hits == 0
    assert census.saved > 0 or name == "cnn"


def test_calls_are_named_under_a_default_device_too():
    torch.set_default_device("cpu")
    try:
        trace = trace_dtypes(lambda x: x.half().float(), torch.randn(2, 8))
    finally:
        torch.set_default_device(None)
    assert {op.cast.by for op in trace.casts} == {"explicit"}


def test_float32_operations_of_the_cuda_policy_are_float32_in_the_trace():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8))
    x = torch.randn(2, 8)
    trace = trace_dtypes(model, x, device_policy="cuda")
    expected = {"linear": HALF, "layer_norm": FULL, "softmax": FULL}
    assert {op.call: op.result for op in trace.select("forward") if op.computes} == expected
    assert [[op.module for op in island] for island in trace.islands] == [["1"], ["3"]]
    stock = trace_dtypes(model, x)
    assert {op.result for op in stock.select("forward") if op.computes} == {HALF}  # the CPU lists neither
    assert stock.policy == "cpu" and not stock.islands


def test_casts_are_told_apart():
    layer = nn.Linear(8, 8)

    def model(x):
        y = layer(x)
        with torch.autocast("cpu", enabled=False):
            z = y.float().exp()
        return layer(z) + z.half().float().half()

    trace = trace_dtypes(model, torch.randn(2, 8), device_policy="cuda")
    casts = [op.cast for op in trace.casts if op.phase == "forward"]
    assert [(cast.by, cast.kind, cast.name, cast.needless) for cast in casts] == [
        ("autocast", "input", "", ""),
        ("autocast", "weight", "Linear.weight", ""),
        ("autocast", "weight", "Linear.bias", ""),
        ("explicit", "activation", "", ""),
        ("autocast", "activation", "", ""),
        ("explicit", "activation", "", "again"),  # z to float16, as the cast before it
        ("explicit", "activation", "", "back"),
        ("explicit", "activation", "", "back"),
    ]
    later = [op for op in trace.casts if op.phase == "backward"]
    assert {op.cast.by for op in later} == {"backward"}
    assert {op.cast.name for op in later if op.cast.name} == {"Linear.weight", "Linear.bias"}
    sizes = [op.cast.bytes for op in trace.casts][:3]
    assert sizes == [16 * 2, 64 * 2, 8 * 2]


def test_attention_with_dropout_casts_inside_the_kernel_not_by_autocast():
    model, x = made("dropout")
    trace = trace_dtypes(model, x, device_policy="cuda")
    inside = [op for op in trace.select("forward") if op.call == "scaled_dot_product_attention" and op.cast]
    # It is a lower-precision operation: autocast casts to float16 only, and its inputs are float16 already.
    assert inside and all(op.cast.by == "kernel" for op in inside if op.cast.target == FULL)
    assert any("one kernel" in note for note in trace.notes)


def test_backward_belongs_to_the_module_of_the_forward_operation():
    model, x = made("encoder")
    trace = trace_dtypes(model, x, device_policy="cuda")
    for op in trace.select("backward", name="mm"):
        assert trace.ops[op.of].call == "linear" and trace.ops[op.of].module == op.module
        assert op.result == HALF
    by_module = {op.module for op in trace.select("backward", name="mm")}
    inner = ("self_attn", "linear1", "linear2")
    assert by_module == {f"layers.{number}.{part}" for number in (0, 1) for part in inner}
    norms = trace.select("backward", name="native_layer_norm_backward")
    assert [op.module for op in norms] == ["layers.1.norm2", "layers.1.norm1", "layers.0.norm2", "layers.0.norm1"]
    assert {op.result for op in norms} == {FULL}
    ends = [op.module for op in trace.ops if op.node == "AccumulateGrad"]
    assert set(ends) == {path.rpartition(".")[0] for path, _ in model.named_parameters()}


def test_what_checkpointing_runs_again_is_marked():
    model, x = made("checkpoint")
    trace = trace_dtypes(model, x, device_policy="cuda")
    again = [op for op in trace.ops if op.recomputed and op.computes]
    assert [(op.phase, op.module, op.call) for op in again] == [
        ("backward", "inner.0", "linear"),
        ("backward", "inner.1", "relu"),
    ]


def test_shared_modules_have_the_path_that_is_called():
    model, x = made("tied")
    trace = trace_dtypes(model, x, device_policy="cuda")
    assert [call.path for call in trace.modules] == ["layer", "layer", "layer", ""]  # torch registers one of two names


def left_behind():
    return (
        len(hooks._global_forward_hooks),
        len(hooks._global_forward_pre_hooks),
        len(_get_current_dispatch_mode_stack()),
        torch.set_autocast_enabled,
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
    )


def test_an_exception_leaves_nothing_behind():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x):
            self.norm(self.layer(x))
            raise KeyError("in the middle")

    before, model = left_behind(), Fails()
    with pytest.raises(KeyError, match="in the middle"):
        trace_dtypes(model, torch.randn(4, 8), device_policy="cuda")
    assert left_behind() == before
    assert torch.equal(model.norm.running_mean, torch.zeros(8)) and model.norm.num_batches_tracked == 0
    assert trace_dtypes(nn.Linear(8, 8), torch.randn(4, 8)).policy == "cpu"  # the next one works
    assert left_behind() == before


def test_nested_use_and_open_regions_are_refused():
    layer, x = nn.Linear(4, 4), torch.ones(1, 4)
    with pytest.raises(TraceError, match="running already"):
        trace_dtypes(lambda x: trace_dtypes(layer, x), x)
    with pytest.raises(TraceError, match="outside of"), torch.autocast("cpu"):
        trace_dtypes(layer, x)
    with cuda_policy_on_cpu(HALF):
        assert trace_dtypes(nn.Sequential(layer, nn.Softmax(-1)), x, device_policy="cuda").islands == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device_policy": "mps"}, "'cpu' or 'cuda'"),
        ({"dtype": torch.float64}, "None: no autocast"),
        ({"loss": list}, "one n"),
    ],
)
def test_bad_arguments_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        trace_dtypes(nn.Linear(4, 4), torch.ones(1, 4), **options)


def test_without_autocast_nothing_is_cast_and_the_fast_path_stays():
    model = encoder().eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        trace = trace_dtypes(model, x, dtype=None)
    assert trace.casts == () and trace.dtype is None and trace.policy == "none"
    assert {op.name for op in trace.ops if op.computes} == {"_transformer_encoder_layer_fwd"}


def test_other_threads_are_not_recorded():
    other, started, stop = nn.Linear(2, 2), threading.Event(), threading.Event()

    def busy():
        while not stop.is_set():
            other(torch.ones(1, 2))
            started.set()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        started.wait()
        trace = trace_dtypes(encoder(), torch.randn(2, 3, 8))
    finally:
        stop.set()
        thread.join()
    assert all("Linear" not in call.path for call in trace.modules)


def test_the_loss_is_part_of_the_trace():
    target = torch.tensor([0, 1])
    trace = trace_dtypes(
        nn.Linear(8, 3),
        torch.randn(2, 8),
        device_policy="cuda",
        loss=lambda out: nn.functional.cross_entropy(out, target),
    )
    # cross_entropy asks log_softmax for its logits' dtype, which autocast respects, on a GPU too.
    assert {op.name: op.result for op in trace.select("loss", "loss") if op.computes} == {
        "_log_softmax": HALF,
        "nll_loss_forward": FULL,
    }
    assert trace_dtypes(nn.Linear(8, 3), torch.randn(2, 8), backward=False).select("backward") == ()


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.seen.append((func.name().removeprefix("aten::").split(".")[0], first(result).dtype))
        return result


LOSSES = {
    "softmax": lambda x: torch.softmax(x, -1),
    "cross_entropy": lambda x: nn.functional.cross_entropy(x, torch.zeros(2, device=x.device, dtype=torch.int64)),
    "mse": lambda x: nn.functional.mse_loss(x, torch.ones_like(x)),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (3,)),
    "sum": lambda x: x.sum(),
    "product": lambda x: x @ x.t(),
    "mean": lambda x: x.mean(),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_operations_are_those_of_the_dispatcher_for_cuda(name, dtype):
    function = LOSSES[name]
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(2, 3, device="cuda", dtype=dtype)
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            with Names() as real:
                function(x)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.clear_autocast_cache()
    trace = trace_dtypes(function, torch.ones(2, 3, dtype=dtype), device_policy="cuda", dtype=dtype, backward=False)
    left_out = ("detach", "zeros", "ones_like", "t", "empty")
    expected = [entry for entry in real.seen if entry[0] not in left_out]
    # fused marks the copies that only the CPU makes
    found = [(op.name, op.result) for op in trace.ops if op.name not in left_out and not (op.cast and op.cast.fused)]
    assert found == expected
    assert any(op.cast and op.cast.fused for op in trace.ops) == ((name, dtype) == ("softmax", HALF))
