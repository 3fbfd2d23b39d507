"""Runs a model once, forward and backward, under a policy of autocast, and records the dtypes."""

import contextlib
import threading
from dataclasses import replace

import torch

from ampedu.policy import cuda_policy_on_cpu
from ampedu.trace.names import Names
from ampedu.trace.notes import notes
from ampedu.trace.recorder import Recorder, tensors
from ampedu.trace.records import Trace
from ampedu.trace.state import AsBefore

_running = threading.local()


class TraceError(RuntimeError):
    """This model cannot be traced in this way; the message says why and what to do."""


def trace_dtypes(
    model, *inputs, device_policy=None, dtype=torch.float16, loss=None, backward=True, cache_enabled=True
) -> Trace:
    """Run ``model(*inputs)`` once, forward and backward, in one autocast region and record every operation's dtypes.

    model: a module or a function that calls modules. inputs: its arguments; the first tensor says the device.
    device_policy: None for the policy of that device; "cuda" on a CPU runs the CUDA policy with real numbers
    (ampedu.policy.cuda_policy_on_cpu). dtype: to which autocast casts, float16 or bfloat16; None runs without autocast.
    loss: function from the model's output to a scalar tensor, run inside the region; without it, backward starts with
    ones for each floating-point output. backward=False stops after the forward pass.

    The model is left as it was: gradients, buffers and random state are put back. Do not call it inside an autocast
    region or a traced model (TraceError); ValueError for a policy or dtype that cannot be had here.
    It costs about 0.14 ms for each operation: the step of a small transformer takes three times as long
    (benchmarks/trace_overhead.py). Hooks and modes are gone afterwards, also after an exception.
    """
    device = _device(model, inputs)
    policy = _policy(device_policy, device, dtype)
    if getattr(_running, "yes", False):
        raise TraceError("trace_dtypes is running already in this thread: trace the outer model alone")
    if torch.is_autocast_enabled(device):
        raise TraceError("trace_dtypes opens its own autocast region: call it outside of torch.autocast")
    recorder = Recorder(Names(model, tensors(inputs)), dtype, device, policy)
    with contextlib.ExitStack() as stack:
        _running.yes = True
        stack.callback(setattr, _running, "yes", False)
        stack.enter_context(_random_state(device, inputs))
        kept = recorder.kept = stack.enter_context(AsBefore())
        kept.keep(tensors(inputs))
        if isinstance(model, torch.nn.Module):
            kept.keep_module(model)
        if policy == "cuda" and device == "cpu":
            stack.enter_context(cuda_policy_on_cpu(dtype))
        ends = _forward(recorder, model, inputs, loss, cache_enabled)
        kept.keep(_leaves(ends))
        if backward and ends:
            ones = [torch.ones_like(end) for end in ends]
            recorder.phase = "backward"
            with recorder:
                torch.autograd.backward(ends, ones)
        weights = recorder.names.parameters()
        gradients = {name: tensor.grad.dtype for name, tensor in weights if tensor.grad is not None}
    trace = Trace(tuple(recorder.ops), tuple(recorder.modules), gradients, policy, dtype, device, cache_enabled)
    return replace(trace, notes=notes(trace))


def _forward(recorder, model, inputs, loss, cache_enabled):
    """Runs the forward pass in its region; returns the tensors from which backward starts."""
    region = contextlib.nullcontext()
    if recorder.low is not None:
        region = torch.autocast(recorder.device, dtype=recorder.low, cache_enabled=cache_enabled)
    with recorder, region:
        output = model(*inputs)
        if loss is not None:
            recorder.phase = "loss"
            output = loss(output)
            if not isinstance(output, torch.Tensor) or output.numel() != 1:
                raise ValueError("loss must return a tensor with one number: lambda out: out.float().mean()")
    return [tensor for tensor in tensors(output) if tensor.is_floating_point() and tensor.requires_grad]


def _random_state(device, inputs):
    """Context manager that puts the state of the random generators back, of the CPU and of the inputs' GPUs."""
    if device not in ("cuda", "xpu"):
        return torch.random.fork_rng(devices=[])
    indices = {tensor.device.index or 0 for tensor in tensors(inputs) if tensor.device.type == device}
    return torch.random.fork_rng(devices=sorted(indices), device_type=device)


def _leaves(ends):
    """The leaf tensors that backward from these tensors reaches."""
    todo, seen = [end.grad_fn for end in ends if end.grad_fn is not None], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        todo += [following for following, _ in node.next_functions if following is not None]


def _device(model, inputs) -> str:
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    for tensor in (*tensors(inputs), *weights):
        return tensor.device.type
    raise ValueError("give trace_dtypes the tensors that the model needs: trace_dtypes(model, x)")


def _policy(asked, device, dtype) -> str:
    """Whose policy the run follows; ValueError if it cannot be had."""
    if dtype not in (None, torch.float16, torch.bfloat16):
        raise ValueError(f"autocast casts to torch.float16 or torch.bfloat16, not to {dtype!r}; None: no autocast")
    if asked not in (None, device) and (asked, device) != ("cuda", "cpu"):
        possible = "'cpu' or 'cuda'" if device == "cpu" else repr(device)
        raise ValueError(f"a model on {device} can follow the policy of {possible}, not of {asked!r}")
    return "none" if dtype is None else asked or device
