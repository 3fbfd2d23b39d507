"""What the worker does with an expression: runs it on fake tensors, which have a device, a shape and a dtype only.

A fake CUDA tensor that requires gradients ends the process at the first operation on a machine without CUDA. The
dtype of a result does not depend on gradients, so here nothing comes to require them: Parameter gives a plain tensor,
requires_grad_() returns the tensor unchanged.
"""

import ctypes
import sys
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from ampedu.policy import shipping
from ampedu.policy.calls import evaluate

# c10/core/impl/DeviceGuardImplInterface.h: one entry per c10::DeviceType, of which these are some.
GUARD_TABLE = "_ZN3c104impl26device_guard_impl_registryE"
GUARDS = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13, "meta": 14}

library = torch.library.Library("aten", "IMPL", "Meta")


class _WithoutGradients(TorchFunctionMode):
    """Drops every request that a tensor require gradients."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.requires_grad_:
            return args[0]
        if func is torch.Tensor.requires_grad.__set__:
            return None
        if kwargs.get("requires_grad"):
            kwargs["requires_grad"] = False
        return func(*args, **kwargs)


def prepare() -> None:
    """Changes torch in this process so that autocast regions open for devices that are not there."""
    torch.set_num_threads(1)

    def parameter(cls, data=None, requires_grad=True):
        data = torch.empty(0) if data is None else data.detach()
        data._is_param = True  # what isinstance(data, torch.nn.Parameter) looks at
        return data

    torch.nn.Parameter.__new__ = parameter
    _let_absent_devices_pass()
    _add_missing_shapes()
    # Asking a driver before a fork would spoil CUDA for the child, and fake tensors need none.
    torch.cuda.is_available = lambda: False
    torch.backends.cudnn.enabled = False
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    with FakeTensorMode():  # loads what it needs, before the first fork
        torch.empty(2, 2).mm(torch.empty(2, 2))


def _let_absent_devices_pass() -> None:
    """Makes C++ code that switches to a device find one that does nothing, as it does for the CPU.

    Without it, indexing, contiguous() and others fail for a kind of device that this build of torch does not know.
    The table is private to torch: where it is not found, or not as expected, those expressions raise ProbeError.
    """
    name = {"win32": "c10.dll", "darwin": "libc10.dylib"}.get(sys.platform, "libc10.so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
        guards = (ctypes.c_void_p * (max(GUARDS.values()) + 1)).in_dll(library, GUARD_TABLE)
    except (OSError, ValueError):
        return
    if not (guards[GUARDS["cpu"]] and guards[GUARDS["meta"]]):
        return
    for index in GUARDS.values():
        if not guards[index]:
            guards[index] = guards[GUARDS["cpu"]]


def _add_missing_shapes() -> None:
    """Operations of a GPU that fake tensors cannot run because torch does not say what comes out of them."""

    def gru_cell(input_gates, hidden_gates, hidden, input_bias=None, hidden_bias=None):
        return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], 5 * hidden.shape[1])

    def convolution(input, weight, padding, stride, dilation, groups, *_):
        return torch.ops.aten.convolution(input, weight, None, stride, padding, dilation, False, [0], groups)

    def transposed(input, weight, padding, output_padding, stride, dilation, groups, *_):
        return torch.ops.aten.convolution(input, weight, None, stride, padding, dilation, True, output_padding, groups)

    shapes = {
        "_thnn_fused_gru_cell": gru_cell,
        "_use_cudnn_ctc_loss.Tensor": lambda *_: False,
        "cudnn_convolution": convolution,
        "cudnn_convolution_transpose": transposed,
        "_mps_convolution": lambda input, weight, bias, *rest: convolution(input, weight, *rest),
    }
    for name, function in shapes.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, function)


def run(payload: bytes, device: str, dtype: torch.dtype):
    """The dtypes in the result of the packed (function or text, inputs) under autocast; inputs as (shape, dtype)."""
    with FakeTensorMode(), torch.no_grad(), _WithoutGradients(), torch.autocast(device, dtype):
        with torch.autocast(device, enabled=False):

            def tensor(shape, strides, kind):
                return torch.empty_strided(shape, strides, dtype=kind, device=device)

            function, inputs = shipping.unpack(payload, tensor)
            tensors = [torch.empty(shape, dtype=kind, device=device) for shape, kind in inputs]
        return dtypes(evaluate(function, tensors, device) if isinstance(function, str) else function(*tensors))


def dtypes(result):
    """A tensor becomes its dtype; tuples, lists and dicts of tensors become tuples, lists and dicts of dtypes."""
    if isinstance(result, torch.Tensor):
        return result.dtype
    if isinstance(result, torch.dtype):
        return result
    if isinstance(result, (tuple, list)):
        items = [dtypes(item) for item in result]
        return items if isinstance(result, list) else tuple(items)
    if isinstance(result, dict):
        return {key: dtypes(item) for key, item in result.items()}
    if result is None or isinstance(result, (bool, int, float, str)):
        return result
    raise TypeError(f"the result is a {type(result).__name__}, not a tensor, nor a tuple, list or dict of tensors")
