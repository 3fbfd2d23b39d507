"""Reads the autocast policy of any device out of torch's dispatcher, without that device.

An operation is called with tensors that have a device and a dtype but no data (Spy). The autocast kernel casts them
and calls the operation again, one level below: there the Spy sees which dtypes arrive, and stops. Inference mode
keeps autograd out, so that composite operations arrive whole, and no valid shapes are needed because nothing runs.
"""

import contextlib
import itertools

import torch
from torch.utils import _python_dispatch

from ampedu.policy.kinds import Policy, PolicyError, Rule

CASTS = ("aten::to", "aten::_to_copy")
BANNED_TEXT = "unsafe to autocast"
# A value for each type that a schema may ask for. Nothing is computed from them, but cuDNN's recurrent layers look at
# the number of their weights, and names of dimensions have to look like names.
FILLERS = {"int": 3, "SymInt": 3, "float": 3.0, "number": 3, "bool": False, "str": "dimname::any"}


class _Arrived(Exception):
    """The call has come through autocast. args: the overload, its positional and its keyword arguments."""


class _Spy(torch.Tensor):
    """A 2 × 2 tensor without data. book: the Spy of each dtype, which is what a cast returns."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, dtype, device, book):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 2), dtype=dtype, device=device)

    def __init__(self, dtype, device, book):
        self.book = book

    def __repr__(self):
        return f"_Spy({self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name in CASTS:
            return args[0].book[kwargs["dtype"] if "dtype" in kwargs else args[1]]
        raise _Arrived(func, args, kwargs)


def registered(device: str) -> tuple[str, ...]:
    """Names with overload, such as "mm" or "sum.dim_IntList", of the aten operations that have an autocast kernel."""
    key = f"Autocast{device.upper()}"
    listing = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if listing is not None:
        names = listing(key)
    else:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        names = [name for name in torch._C._dispatch_get_all_op_names() if has(name, key)]
    return tuple(sorted(name.removeprefix("aten::") for name in names if name.startswith("aten::")))


def overload(name: str):
    """The torch.ops.aten overload of a name such as "mm" or "sum.dim_IntList"."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


def rules(device: str, dtype: torch.dtype) -> tuple[dict[str, Rule], dict[str, str]]:
    """({operation: Rule}, {operation that fits no policy: what was seen}) for all registered operations."""
    found, odd = {}, {}
    book = {}
    for kind in (dtype, torch.float16, torch.float32, torch.int64):
        book[kind] = _Spy(kind, device, book)
    with _autocast_on(device, dtype):
        for name in registered(device):
            seen = [_call(name, book, pattern) for pattern in _patterns(dtype)]
            rule = _rule(name, seen, dtype) or _rule_of_flat_weights(name, book)
            if rule is None:
                odd[name] = repr(seen)
            else:
                found[name] = rule
    if not found:
        raise PolicyError(f"torch {torch.__version__} registers no autocast kernel for {device}")
    return found, odd


def _patterns(dtype):
    """The dtypes given to the tensors of a call: all float32, all low, mixed, mixed the other way round."""
    return ((torch.float32,), (dtype,), (dtype, torch.float32), (torch.float32, dtype))


@contextlib.contextmanager
def _autocast_on(device, dtype):
    """Autocast without torch.autocast, which refuses a device that is not there. Keeps the caller's weight cache."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_python_dispatch._disable_current_modes())
        try:
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, dtype)
            yield
        finally:
            torch.set_autocast_enabled(device, before[0])
            torch.set_autocast_dtype(device, before[1])


def _call(name, book, pattern, weights=None):
    """weights: the dtype of lists of tensors, if not that of the pattern; optional tensors are then left out.

    Returns (overload that arrived, dtypes of its floating-point tensors, its dtype argument), or the text of an error.
    """
    operation = overload(name)
    dtypes = itertools.cycle(pattern)
    args, kwargs = [], {}
    for argument in operation._schema.arguments:
        value = _value(argument, book, dtypes) if weights is None else _sparse_value(argument, book, dtypes, weights)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    try:
        operation(*args, **kwargs)
    except _Arrived as arrived:
        target, args, kwargs = arrived.args
        values = [*args, *kwargs.values()]
        tensors = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
        floats = [item.dtype for item in tensors if isinstance(item, torch.Tensor) and item.is_floating_point()]
        asked = [value for value in values if isinstance(value, torch.dtype)]
        return target.name().removeprefix("aten::"), tuple(floats), asked[0] if asked else None
    except Exception as error:
        return str(error)
    return "nothing arrived"


def _value(argument, book, dtypes):
    kind = str(argument.type)
    if kind in ("Tensor", "Optional[Tensor]"):
        return book[next(dtypes)]
    if kind == "List[Tensor]":
        return [book[next(dtypes)], book[next(dtypes)]]
    if kind == "List[Optional[Tensor]]":  # indices: they hold integers
        return [book[torch.int64]]
    if argument.has_default_value():
        return argument.default_value
    if kind.startswith("List["):
        return [FILLERS.get(kind[5:-1])] * 2
    return FILLERS.get(kind)


def _sparse_value(argument, book, dtypes, weights):
    kind = str(argument.type)
    if kind == "List[Tensor]":
        return [book[weights]] * 2
    return None if kind.startswith("Optional") else _value(argument, book, dtypes)


def _rule_of_flat_weights(name, book):
    """The Rule of a recurrent layer of cuDNN, or None.

    Its kernel moves float32 weights into one buffer, which a Spy cannot follow. With float16 weights it has nothing
    to move, and casts the rest: to float16, in a bfloat16 region too.
    """
    seen = _call(name, book, (torch.float32,), weights=torch.float16)
    if not isinstance(seen, str) and set(seen[1]) == {torch.float16}:
        return Rule(Policy.lower_precision, seen[0])
    return None


def _rule(name, seen, low):
    """The Rule that explains what arrived in the four calls of `_patterns`, or None."""
    if all(isinstance(item, str) and BANNED_TEXT in item for item in seen):
        return Rule(Policy.banned, name)
    if any(isinstance(item, str) for item in seen):
        return None
    target, (wide, narrow, *mixed) = seen[0][0], (set(floats) for _, floats, _ in seen)
    asked = {dtype for _, _, dtype in seen}
    single = torch.float32
    if asked == {single} and wide == {single} and narrow == {low}:
        return Rule(Policy.float32_set_dtype, target)
    several = len(seen[0][1]) > 1
    outcomes = {
        Policy.lower_precision: [{low}] * 4,
        Policy.float32: [{single}] * 4,
        Policy.promote_widest: [{single}, {low}, {single}, {single}] if several else None,
    }
    for policy, expected in outcomes.items():
        if [wide, narrow, *mixed] == expected:
            return Rule(policy, target)
    return None
