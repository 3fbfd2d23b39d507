"""cuda_policy_on_cpu: torch.autocast("cpu") follows the CUDA policy, and never stays that way."""

import contextlib
import itertools
import signal
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampedu.policy import MissingKernelError, autocast_policy, cuda_policy_on_cpu, on_cpu, probe, stored
from ampedu.policy.calls import call_for, evaluate
from ampedu.policy.kinds import Policy

WIDE = torch.float32
# Operations that exist for GPUs only.
GPU_ONLY = {
    *("cudnn_convolution", "cudnn_convolution_transpose", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"),
    *("_scaled_dot_product_flash_attention", "_cudnn_rnn"),
}
# Losses that are not differentiable with respect to their target.
FIRST_ONLY = {"soft_margin_loss"}
WATCHED = ("mm", "exp", "softmax.int", "avg_pool3d", "addcmul", "cat", "binary_cross_entropy")


def registrations():
    lines = [torch._C._dispatch_dump(f"aten::{name}") for name in WATCHED]
    return [[line for line in text.splitlines() if line.startswith("AutocastCPU")] for text in lines]


@pytest.fixture(autouse=True)
def stock_before_and_after(monkeypatch, tmp_path):
    monkeypatch.setattr(stored, "folder", lambda: tmp_path / "store")
    before = registrations(), torch.clear_autocast_cache, torch.get_autocast_dtype("cpu"), stored.dispatcher
    handler = signal.getsignal(signal.SIGINT)
    yield
    assert before[:3] == (registrations(), torch.clear_autocast_cache, torch.get_autocast_dtype("cpu"))
    assert signal.getsignal(signal.SIGINT) == handler
    assert not on_cpu.is_active()
    assert not on_cpu._active.lock.locked()
    assert on_cpu._active.cache == {}
    half = torch.ones(2, 2, dtype=torch.float16)
    with torch.autocast("cpu"):
        assert half.exp().dtype == torch.float16
        assert (half @ half).dtype == torch.bfloat16
        assert half.softmax(0).dtype == torch.float16


def inputs(call, pattern, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(shape, generator=generator) * 0.8 + 0.1).to(dtype)
        for shape, dtype in zip(call.shapes, itertools.cycle(pattern), strict=False)
    ]


def callable_operations():
    """{operation: (Policy, Call)}, without those for named tensors, which torch 2.13 does not have any more."""
    found = {name: (kind, call_for(name)) for name, kind in autocast_policy("cuda").items() if name not in GPU_ONLY}
    absent = {name for name, (_, call) in found.items() if call is None}
    assert all("dimname" in name.lower() or ".names_" in name for name in absent)
    return {name: found[name] for name in found.keys() - absent}


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_every_operation_follows_the_cuda_policy(low):
    expected = {
        Policy.lower_precision: {(WIDE,): low, (low,): low, (low, WIDE): low},
        Policy.float32: {(WIDE,): WIDE, (low,): WIDE, (low, WIDE): WIDE},
        Policy.float32_set_dtype: {(WIDE,): WIDE, (low,): WIDE},
        Policy.promote_widest: {(WIDE,): WIDE, (low,): low, (low, WIDE): WIDE, (WIDE, low): WIDE},
    }
    wrong = {}
    with cuda_policy_on_cpu(low):
        for name, (kind, call) in callable_operations().items():
            if kind is Policy.banned:
                with torch.autocast("cpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
                    evaluate(call.expression, inputs(call, (WIDE,)))
                continue
            for pattern, dtype in expected[kind].items():
                with torch.autocast("cpu"):
                    seen = evaluate(call.expression, inputs(call, pattern)).dtype
                if seen != dtype:
                    wrong[name, pattern] = seen
    assert wrong == {}


@pytest.mark.parametrize("name", sorted(GPU_ONLY - {"_cudnn_rnn"}))
def test_what_only_a_gpu_has_says_so(name):
    call = call_for(name)
    with cuda_policy_on_cpu(), torch.autocast("cpu"), pytest.raises(MissingKernelError, match="GPUs only"):
        evaluate(call.expression, inputs(call, (WIDE,)))


def test_operations_of_the_cpu_policy_alone_are_left_alone():
    policy = autocast_policy("cuda")
    with cuda_policy_on_cpu():
        assert not {"fft_fft", "linalg_inv", "cat", "quantile.scalar", "cross_entropy_loss"} & set(policy)
        with torch.autocast("cpu"):
            half, single = torch.ones(4, dtype=torch.float16), torch.ones(4)
            with pytest.raises(RuntimeError):
                torch.quantile(half, 0.5)
            assert torch.cat([half, single]).dtype == WIDE
            assert F.cross_entropy(torch.ones(2, 3).half(), torch.tensor([0, 1])).dtype == WIDE
            assert torch.ones(4, dtype=torch.float64).exp().dtype == torch.float64
            assert (
                torch.ones(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64)
            ).dtype == torch.float64


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.half().mean(),
        lambda x: F.gelu(x.half()),
        lambda x: (x.half() - 1).norm(),
        lambda x: x.half().norm(dim=1),
        lambda x: torch.linalg.norm(x.half()),
        lambda x: F.normalize(x.half()),
        lambda x: F.softmin(x.half(), 1),
        lambda x: x.half().softmax(1, torch.float16),
        lambda x: x.half().softmax(1, dtype=torch.float16),
        lambda x: x.half().sum(dtype=torch.float16),
        lambda x: x.half().cumsum(0, dtype=torch.float64),
        lambda x: 1 / x.half(),
        lambda x: 2 ** x.half(),
        lambda x: x.half() ** 0.5,
        lambda x: x.half().exp_(),
        lambda x: torch.mm(x, x, out=torch.empty_like(x)),
        lambda x: F.layer_norm(x.half(), (4,)),
        lambda x: F.batch_norm(x.half(), None, None, training=True),
        lambda x: x.long().sum(),
        lambda x: x.to(torch.complex64).sum(),
        lambda x: (x.double() @ x.double()).norm(),
        lambda x: torch.addcmul(x.half(), x, x.half()),
        lambda x: nn.TransformerEncoderLayer(4, 2, 8, device=x.device)(x),
        lambda x: nn.LSTM(4, 4, device=x.device)(x)[0],
        lambda x: nn.GRU(4, 4, device=x.device)(x)[0],
        lambda x: nn.MultiheadAttention(4, 2, device=x.device)(x, x, x),
        lambda x: torch.utils.checkpoint.checkpoint(torch.matmul, x, x, use_reentrant=False),
    ],
)
def test_the_same_dtypes_as_on_fake_cuda(fn):
    expected = probe(fn, (4, 4))
    with cuda_policy_on_cpu(), torch.autocast("cpu"):
        result = fn(torch.rand(4, 4) + 0.5)
    seen = tuple(item.dtype for item in result) if isinstance(result, tuple) else result.dtype
    assert seen == expected


@pytest.mark.parametrize(("low", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.06)])
def test_gradients_of_every_operation(low, tolerance):
    wrong = {}
    with cuda_policy_on_cpu(low):
        for name, (kind, call) in callable_operations().items():
            if kind is Policy.banned:
                continue
            gradients = []
            for dtype in (torch.float64, WIDE):
                # Values that the low format holds, so that only the computation differs.
                leaves = [leaf.to(low).to(dtype) for leaf in inputs(call, (WIDE,))]
                for leaf in leaves[: 1 if name in FIRST_ONLY else None]:
                    leaf.requires_grad_()
                with torch.autocast("cpu", enabled=dtype == WIDE):
                    value = evaluate(call.expression, leaves)
                    loss = (value.to(dtype) * torch.linspace(0.5, 1, value.numel(), dtype=dtype).view_as(value)).sum()
                gradients.append(
                    torch.autograd.grad(loss, [leaf for leaf in leaves if leaf.requires_grad], allow_unused=True)
                )
                if dtype == WIDE:
                    assert all(gradient is None or gradient.dtype == WIDE for gradient in gradients[1]), name
            limit = 2e-4 if kind not in (Policy.lower_precision,) else tolerance
            for reference, gradient in zip(*gradients, strict=True):
                assert (reference is None) == (gradient is None), name
                if reference is not None:
                    error = (gradient.double() - reference).norm() / reference.norm().clamp_min(1e-9)
                    if not error <= limit:
                        wrong[name] = error.item()
    assert wrong == {}


@pytest.mark.parametrize(("low", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.06)])
def test_gradients_of_a_transformer(low, tolerance):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x = torch.randn(4, 8, 16)
    with cuda_policy_on_cpu(low):
        with torch.autocast("cpu"):
            loss = model(x).square().mean()
        assert loss.dtype == WIDE
        loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    assert {gradient.dtype for gradient in gradients.values()} == {WIDE}
    model = model.double()
    model.zero_grad()
    model(x.double()).square().mean().backward()
    total = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    ours = torch.cat([gradients[name].flatten().double() for name, _ in model.named_parameters()])
    assert (ours - total).norm() <= tolerance * total.norm()
    assert torch.cosine_similarity(ours, total, dim=0) > 0.999


class Casts(TorchDispatchMode):
    """Counts the casts of tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name in ("aten::_to_copy", "aten::to")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("cache", "expected"), [(True, 5), (False, 9)])
def test_three_uses_of_one_layer(cache, expected):
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with cuda_policy_on_cpu(), Casts() as casts, torch.autocast("cpu", cache_enabled=cache):
        for _ in range(3):
            layer(x)
    assert casts.count == expected


def story(steps, cache):
    """What happens to one layer, step by step: the number of casts, and values that show which weights were used."""
    torch.manual_seed(0)
    layer, x, seen = nn.Linear(4, 4), torch.ones(2, 4), []
    region = None
    with Casts() as casts, contextlib.ExitStack() as stack:
        for step in steps:
            if step == "region":
                stack.close()
                region = stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache))
            elif step == "use":
                seen.append(layer(x).float().sum().item())
            elif step == "no_grad":
                with torch.no_grad():
                    seen.append(layer(x).float().sum().item())
            elif step == "inference":
                with torch.inference_mode():
                    seen.append(layer(x).float().sum().item())
            elif step == "nested":
                with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
                    seen.append(layer(x).float().sum().item())
            elif step == "other dtype":
                with torch.autocast("cpu", dtype=torch.float16, cache_enabled=cache):
                    seen.append(layer(x).float().sum().item())
            elif step == "disabled":
                with torch.autocast("cpu", enabled=False):
                    seen.append(layer(x).float().sum().item())
            elif step == "change":
                with torch.no_grad():
                    layer.weight.add_(1)
            elif step == "clear":
                torch.clear_autocast_cache()
            elif step == "backward":
                result = layer(x)
                with torch.autocast("cpu", enabled=False):  # sum, in the backward of the bias, is a matter of policy
                    result.backward(torch.ones_like(result))
                seen.append(layer.weight.grad.sum().item())
            seen.append(casts.count)
    assert region is not None
    return seen


STORIES = [
    ["region", "use", "use", "region", "use"],
    ["region", "use", "change", "use", "region", "use"],
    ["region", "no_grad", "use", "backward", "use"],
    ["region", "use", "nested", "use", "region", "nested", "use"],
    ["region", "use", "disabled", "use"],
    ["region", "use", "clear", "use", "change", "clear", "use"],
    ["region", "inference", "inference"],
    ["region", "backward", "backward", "change", "backward"],
]


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("steps", STORIES, ids="-".join)
def test_the_weight_cache_behaves_as_torchs(steps, cache):
    stock = story(steps, cache)
    with cuda_policy_on_cpu():
        assert story(steps, cache) == stock


def test_a_region_of_another_dtype_reuses_casts_as_torch_does():
    steps = ["region", "use", "other dtype", "use"]
    try:
        stock = story(steps, True)
    except RuntimeError as error:
        stock = type(error)
    with cuda_policy_on_cpu():
        try:
            ours = story(steps, True)
        except RuntimeError as error:
            ours = type(error)
    assert ours == stock


def test_default_dtype_of_regions():
    x = torch.ones(2, 2)
    with cuda_policy_on_cpu():
        with torch.autocast("cpu"):
            assert (x @ x).dtype == torch.float16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
        with cuda_policy_on_cpu(torch.bfloat16), torch.autocast("cpu"):
            assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu"):
            assert (x @ x).dtype == torch.float16
            assert x.half().exp().dtype == WIDE
        assert (x @ x).dtype == WIDE


def test_nesting_keeps_the_policy_until_the_outermost_ends():
    half = torch.ones(2, dtype=torch.float16)
    outer = cuda_policy_on_cpu()
    with outer, outer:
        with cuda_policy_on_cpu():
            pass
        with torch.autocast("cpu"):
            assert half.exp().dtype == WIDE
    assert not on_cpu.is_active()


def test_the_stock_policy_is_still_what_autocast_policy_says():
    stock = autocast_policy("cpu")
    stored._memory.clear()
    with cuda_policy_on_cpu():
        assert autocast_policy("cpu") == stock


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_restores(error):
    with pytest.raises(error), cuda_policy_on_cpu(), torch.autocast("cpu"):
        raise error


def at_call(monkeypatch, number, action):
    """Has the call of Library.impl with this number do something first."""
    real, calls = torch.library.Library.impl, itertools.count()

    def impl(self, *args, **kwargs):
        if next(calls) == number:
            action()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.library.Library, "impl", impl)


@pytest.mark.parametrize("number", [0, 7, 150])
def test_an_interrupt_while_it_is_installed(monkeypatch, number):
    at_call(monkeypatch, number, lambda: signal.raise_signal(signal.SIGINT))
    entered = False
    with pytest.raises(KeyboardInterrupt), cuda_policy_on_cpu():
        entered = True
    assert not entered


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_while_it_is_installed(monkeypatch, error):
    def fail():
        raise error("no")

    at_call(monkeypatch, 20, fail)
    with pytest.raises(error), cuda_policy_on_cpu():
        pass
    monkeypatch.undo()
    with cuda_policy_on_cpu():
        assert on_cpu.is_active()


def test_an_interrupt_while_it_is_removed(monkeypatch):
    real = torch.library.Library._destroy

    def destroy(self):
        signal.raise_signal(signal.SIGINT)
        real(self)

    monkeypatch.setattr(torch.library.Library, "_destroy", destroy)
    with pytest.raises(KeyboardInterrupt), cuda_policy_on_cpu():
        pass


def test_a_real_interrupt_in_the_block():
    with pytest.raises(KeyboardInterrupt), cuda_policy_on_cpu(), torch.autocast("cpu"):
        signal.raise_signal(signal.SIGINT)
        torch.ones(2).exp()


def in_thread(function):
    found = []

    def run():
        try:
            found.append(function())
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_second_thread_is_refused():
    def enter():
        with cuda_policy_on_cpu():
            return "entered"

    def use():
        with torch.autocast("cpu"):
            return torch.ones(2).exp()

    with cuda_policy_on_cpu():
        assert "another thread is inside" in str(in_thread(enter))
        assert "another thread is inside" in str(in_thread(use))
        assert in_thread(lambda: torch.ones(2).exp().dtype) == WIDE
        with torch.autocast("cpu"):
            assert torch.ones(2, dtype=torch.float16).exp().dtype == WIDE
    assert in_thread(enter) == "entered"
    assert in_thread(use).dtype == WIDE


def test_not_inside_a_region():
    with torch.autocast("cpu"), pytest.raises(RuntimeError, match="not inside its region"), cuda_policy_on_cpu():
        pass
    with cuda_policy_on_cpu(), torch.autocast("cpu"):
        with pytest.raises(RuntimeError, match="not inside its region"), cuda_policy_on_cpu():
            pass
        assert torch.ones(2, dtype=torch.float16).exp().dtype == WIDE


def test_wrong_dtype():
    with pytest.raises(ValueError, match="Use torch"):
        cuda_policy_on_cpu(torch.float32)


def test_mixed_low_dtypes_raise_as_on_a_gpu():
    half, brain = torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.bfloat16)
    with cuda_policy_on_cpu(), torch.autocast("cpu"), pytest.raises(RuntimeError, match="Unexpected floating"):
        torch.dot(half, brain)


def test_a_missing_half_kernel_says_which_and_what_to_do():
    with pytest.raises(MissingKernelError) as caught, cuda_policy_on_cpu(), torch.autocast("cpu"):
        F.avg_pool3d(torch.ones(1, 1, 2, 2, 2).half(), 2)
    assert "avg_pool3d" in str(caught.value)
    assert "float16" in str(caught.value)
    assert "bfloat16" in str(caught.value)
    assert "probe" in str(caught.value)
    assert isinstance(caught.value, NotImplementedError)
    assert caught.value.__cause__ is not None


def test_a_missing_half_kernel_of_a_listed_operation(monkeypatch):
    error = RuntimeError("\"addmv_impl_cpu\" not implemented for 'Half'")
    assert "kernel for addmv (addmv_impl_cpu)" in str(on_cpu._missing(error, "addmv"))
    assert on_cpu._missing(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "mm") is None
    assert on_cpu._missing(ValueError("not implemented for 'Half'")) is None


def test_other_errors_pass_unchanged():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), cuda_policy_on_cpu(), torch.autocast("cpu"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))


def test_no_warning_and_no_output(recwarn, capfd):
    with cuda_policy_on_cpu(), torch.autocast("cpu"):
        nn.Linear(2, 2)(torch.ones(2, 2)).sum().backward()
    assert list(recwarn) == []
    assert capfd.readouterr() == ("", "")
