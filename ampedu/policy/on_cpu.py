"""The CUDA policy with real numbers on a CPU: torch.autocast("cpu") is made to follow it, forward and backward."""

import contextlib
import re
import signal
import threading
import warnings

import torch

from ampedu.policy import stored
from ampedu.policy.dispatcher import overload, registered
from ampedu.policy.kinds import Policy, PolicyError, Rule, check_dtype

BANNED_TEXT = (
    "{name} is unsafe to autocast: under the CUDA policy it raises this error. Leave out the sigmoid before it and use "
    "torch.nn.functional.binary_cross_entropy_with_logits, which is safe."
)
# On a GPU whole recurrent layers run in cuDNN, which casts all that they get; the CPU has other operations inside them.
RECURRENT = tuple(f"{kind}.{form}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data"))
# How torch's CPU kernels say that they do not know a dtype.
NOT_IMPLEMENTED = re.compile(r"""["']?(\w+)["']? not implemented for ['"](Half|BFloat16)['"]""")
NO_CPU_KERNEL = re.compile(r"Could not run 'aten::(\w+)' with arguments from the 'CPU' backend")
DTYPE_NAMES = {"Half": "float16", "BFloat16": "bfloat16"}


class MissingKernelError(NotImplementedError):
    """CUDA has this operation in 16 bits, the CPU does not: here there is nothing to run."""


class cuda_policy_on_cpu:
    """Context manager: inside, ``torch.autocast("cpu")`` casts as ``torch.autocast("cuda")`` does on a GPU.

    dtype: what torch.autocast("cpu") casts to if it is not told, as on a GPU float16 unless it is bfloat16. Open
    the autocast regions inside. Backward is as always: it follows the dtypes of the forward pass. The weight cache
    works as torch's does, a stale entry after an in-place change included.

    It changes the whole process: a second thread that enters or runs autocast("cpu") meanwhile gets a RuntimeError.
    The stock policy is back when the outermost block ends, however it ends. Costs: a Python call per listed operation.
    MissingKernelError: an operation has no 16-bit CPU kernel.
    """

    def __init__(self, dtype: torch.dtype = torch.float16):
        self.dtype = check_dtype(dtype)
        self._before: list[torch.dtype] = []

    def __enter__(self):
        depth = len(self._before)
        try:
            with _whole():
                _active.enter()
                self._before.append(torch.get_autocast_dtype("cpu"))
                torch.set_autocast_dtype("cpu", self.dtype)
        except BaseException:  # an interrupt that came meanwhile: Python will not call __exit__
            if len(self._before) > depth:
                self._leave()
            raise
        return self

    def __exit__(self, kind, error, trace):
        self._leave()
        missing = _missing(error)
        if missing is not None:
            raise missing from error
        return False

    def _leave(self):
        with _whole():
            torch.set_autocast_dtype("cpu", self._before.pop())
            _active.leave()


def is_active() -> bool:
    """Whether torch.autocast("cpu") follows the CUDA policy now."""
    return _active.depth > 0


class _Override:
    """The one change of the process: who holds it, how deep, and what has to be undone."""

    def __init__(self):
        self.lock = threading.Lock()
        self.owner = None
        self.depth = 0
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.undo = contextlib.ExitStack()

    def enter(self):
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError('enter cuda_policy_on_cpu before torch.autocast("cpu"), not inside its region')
        me = threading.get_ident()
        if self.owner != me:
            if not self.lock.acquire(blocking=False):
                raise RuntimeError(
                    "another thread is inside cuda_policy_on_cpu. It changes the whole process, so that only one "
                    "thread can use it: leave it there first"
                )
            try:
                self._install()
            except BaseException:
                self._restore()
                raise
            self.owner = me
        self.depth += 1

    def leave(self):
        self.depth -= 1
        if self.depth == 0:
            self._restore()

    def _install(self):
        stored.rules("cpu", torch.float16), stored.rules("cpu", torch.bfloat16)  # read while they are the stock ones
        rules, odd = stored.rules("cuda", torch.float16)
        unclear = [
            name for name in odd if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "CPU")
        ]
        if unclear:
            raise PolicyError(f"torch {torch.__version__} casts these by a rule that is not understood: {unclear}")
        library = torch.library.Library("aten", "IMPL", "AutocastCPU")
        self.undo.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
            for name, rule in rules.items():
                library.impl(name, _kernel(name, rule))
            for name in set(registered("cpu")) - set(rules):
                library.impl(name, torch.library.fallthrough_kernel)
            for name in RECURRENT:
                library.impl(name, _recurrent_kernel(name))
        self._follow_clear()

    def _follow_clear(self):
        """torch.autocast calls torch.clear_autocast_cache at the end of the outermost region: ours goes with it."""
        clear = torch.clear_autocast_cache

        def clear_both():
            self.cache.clear()
            clear()

        self.undo.callback(setattr, torch, "clear_autocast_cache", clear)
        self.undo.callback(self.cache.clear)
        torch.clear_autocast_cache = clear_both

    def _restore(self):
        self.owner, self.depth = None, 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.undo.close()
        finally:
            self.lock.release()


_active = _Override()


@contextlib.contextmanager
def _whole():
    """Puts off an interrupt (Ctrl-C, the stop button) until the block is done, so that nothing is left half changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, caught = signal.getsignal(signal.SIGINT), []
    if before is None:  # a handler that Python did not install and cannot put back
        yield
        return
    signal.signal(signal.SIGINT, lambda *received: caught.append(received))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)


def _kernel(name: str, rule: Rule):
    """The function that the dispatcher calls for one operation under autocast("cpu")."""
    operation = overload(rule.target)
    dtype_argument = any(argument.name == "dtype" for argument in operation._schema.arguments)
    autocast_off = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    defaults = [argument.default_value for argument in overload(name)._schema.arguments if not argument.kwarg_only]

    def kernel(*args, **kwargs):
        if threading.get_ident() != _active.owner:
            raise RuntimeError(f"{name}: another thread is inside cuda_policy_on_cpu, which changes the whole process")
        with torch._C._ExcludeDispatchKeyGuard(autocast_off):
            if rule.policy is Policy.banned:
                raise RuntimeError(BANNED_TEXT.format(name=name))
            if rule.policy is Policy.float32_set_dtype:
                if rule.target != name:  # norm: another overload, which takes all arguments and a dtype
                    args = (*args, *defaults[len(args) :])
                    kwargs["dtype"] = torch.float32 if _casts(args[0]) else args[0].dtype
                elif dtype_argument and _casts(args[0]):
                    _set_dtype(operation, args, kwargs)
                return operation(*args, **kwargs)
            to = _target(rule.policy, [*args, *kwargs.values()])
            args = [_cast(value, to) for value in args]
            kwargs = {key: _cast(value, to) for key, value in kwargs.items()}
            try:
                return operation(*args, **kwargs)
            except RuntimeError as error:
                missing = _missing(error, name)
                if missing is None:
                    raise
                raise missing from error

    return kernel


def _recurrent_kernel(name: str):
    """Like `_kernel`, and without oneDNN, whose recurrent layers do not know float16 on every CPU."""
    kernel = _kernel(name, Rule(Policy.lower_precision, name))

    def without_onednn(*args, **kwargs):
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return kernel(*args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(before)

    return without_onednn


def _set_dtype(operation, args, kwargs):
    """Asks for a float32 result unless the caller asked for another dtype."""
    names = [argument.name for argument in operation._schema.arguments]
    given = args[names.index("dtype")] if names.index("dtype") < len(args) else kwargs.get("dtype")
    if given is None:
        kwargs["dtype"] = torch.float32


def _casts(value) -> bool:
    """Whether autocast casts this value: a floating-point CPU tensor that is not float64."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.device.type == "cpu"
        and value.dtype != torch.float64
    )


def _tensors(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif _casts(value):
            yield value


def _target(policy, values) -> torch.dtype:
    """The dtype to which a call casts, as ATen/autocast_mode.h computes it."""
    low = torch.get_autocast_dtype("cpu")
    if policy is Policy.lower_precision:
        return low
    if policy is Policy.float32:
        return torch.float32
    dtypes = {tensor.dtype for tensor in _tensors(values)}
    if dtypes - {low, torch.float32}:
        raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return torch.float32 if torch.float32 in dtypes else low


def _cast(value, to):
    if isinstance(value, (list, tuple)):
        return [_cast(item, to) for item in value]
    if not _casts(value) or value.dtype == to:
        return value
    keep = (
        to == torch.get_autocast_dtype("cpu")
        and value.dtype == torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )
    return _kept_cast(value, to) if keep else value.to(to)


def _kept_cast(weight, to):
    """The cast of a weight, from the cache if it is there. It has a graph even if it is first needed under no_grad."""
    found = _active.cache.get(id(weight))
    if found is None:
        with torch.enable_grad():
            found = _active.cache[id(weight)] = (weight, weight.to(to))
    return found[1]


def _missing(error, name="") -> MissingKernelError | None:
    """The error that says what to do if the CPU lacks a kernel; None for any other error."""
    if not isinstance(error, RuntimeError) or isinstance(error, MissingKernelError):
        return None
    ways = "run this on a GPU, or ask ampedu.policy.probe for its dtype"
    absent = NO_CPU_KERNEL.match(str(error))
    if absent is not None:
        return MissingKernelError(f"{absent[1]} exists on GPUs only: {ways}.")
    found = NOT_IMPLEMENTED.search(str(error))
    if found is None:
        return None
    kernel, dtype = found[1], DTYPE_NAMES[found[2]]
    other = "bfloat16" if dtype == "float16" else "float16"
    return MissingKernelError(
        f"the CPU has no {dtype} kernel for {name or kernel} ({kernel}), a GPU has: {ways}; "
        f"or try cuda_policy_on_cpu(torch.{other}); or give it float32 inputs in a region with enabled=False."
    )
