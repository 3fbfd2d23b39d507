"""Turns a function of the notebook into bytes for the worker, which is the same Python in another process.

pickle takes what can be imported by name. Here it learns what cannot: functions and classes defined in a notebook go
by their compiled code and the globals that it names, modules by their name, torch's built-in functions by where they
are found. A tensor goes as its shape, strides and dtype, and arrives as a fake tensor on the probed device.
"""

import builtins
import dis
import importlib
import io
import marshal
import pickle
import types

import torch

# Attributes that Python or torch makes for a class; copying them would do harm.
MADE_FOR_CLASS = {
    "__dict__",
    "__weakref__",
    "_backward_cls",
    "_autograd_function_id",
    "_compiled_autograd_backward_state",
}
BUILTIN_HOMES = ("torch", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special")


class CannotShip(TypeError):
    """Something in the function cannot be sent to another process."""


def pack(value) -> bytes:
    """The bytes from which `unpack` makes an equal value. Raises CannotShip, naming what cannot be sent."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, RecursionError, ValueError) as error:
        raise CannotShip(str(error)) from error
    return buffer.getvalue()


def unpack(data: bytes, tensor=None):
    """The value that was packed. tensor(shape, strides, dtype, module or None) makes each tensor in it."""
    return _Unpickler(io.BytesIO(data), tensor).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), tuple(value.stride()), value.dtype
        return None

    def reducer_override(self, value):
        if isinstance(value, types.ModuleType):
            return _module, (value.__name__,)
        if isinstance(value, types.FunctionType) and not _importable(value):
            return _function(value)
        if isinstance(value, type) and not _importable(value):
            return _class(value)
        if isinstance(value, torch._ops.OpOverloadPacket):
            return _operator, (value._qualified_op_name, None)
        if isinstance(value, torch._ops.OpOverload):
            return _operator, (value._schema.name, value._overloadname)
        if isinstance(value, types.BuiltinFunctionType) and (home := _home(value)):
            return _attribute, home
        if isinstance(value, (classmethod, staticmethod)):
            return type(value), (value.__func__,)
        if isinstance(value, property):
            return property, (value.fget, value.fset, value.fdel, value.__doc__)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream, tensor):
        super().__init__(stream)
        self.tensor = tensor

    def persistent_load(self, description):
        return self.tensor(*description)


def _importable(value):
    """Whether the worker finds the same thing by module and name. It does not know the main module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module in (None, "__main__", "__mp_main__") or "<locals>" in name or "<lambda>" in name:
        return False
    try:
        home = importlib.import_module(module)
        return _attribute(module, name) is value and bool(getattr(home, "__spec__", None) or module == "builtins")
    except (ImportError, AttributeError):
        return False


def _home(value):
    for module in BUILTIN_HOMES:
        if getattr(importlib.import_module(module), value.__name__, None) is value:
            return module, value.__name__
    return None


def _attribute(module, name):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _module(name):
    """A module by its name; torch.ops and what is below it cannot be imported, only reached."""
    try:
        return importlib.import_module(name)
    except ImportError:
        top, _, rest = name.partition(".")
        return _attribute(top, rest)


def _operator(name, overload):
    space, _, name = name.partition("::")
    packet = getattr(getattr(torch.ops, space), name)
    return packet if overload is None else getattr(packet, overload)


def _function(function):
    cells = function.__closure__ or ()
    names = _global_names(function.__code__)
    state = {
        "globals": {name: function.__globals__[name] for name in names if name in function.__globals__},
        "cells": [cell.cell_contents for cell in cells],
        "defaults": function.__defaults__,
        "keyword_defaults": function.__kwdefaults__,
    }
    make = (marshal.dumps(function.__code__), function.__name__, len(cells))
    return _empty_function, make, state, None, None, _fill_function


def _global_names(code):
    """Names that the code and the functions inside it read from the global namespace."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _empty_function(code, name, cells):
    space = {"__builtins__": builtins, "__name__": "__notebook__"}
    return types.FunctionType(marshal.loads(code), space, name, None, tuple(types.CellType() for _ in range(cells)))


def _fill_function(function, state):
    function.__globals__.update(state["globals"])
    for cell, content in zip(function.__closure__ or (), state["cells"], strict=True):
        cell.cell_contents = content
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["keyword_defaults"]


def _class(value):
    state = {name: item for name, item in vars(value).items() if name not in MADE_FOR_CLASS}
    slots = state.pop("__slots__", None)
    if slots is not None:
        raise CannotShip(f"the class {value.__name__} has __slots__")
    return _empty_class, (type(value), value.__name__, value.__bases__), state, None, None, _fill_class


def _empty_class(meta, name, bases):
    return types.new_class(name, bases, {"metaclass": meta}, lambda space: space.update(__module__="__notebook__"))


def _fill_class(value, state):
    for name, item in state.items():
        if name != "__module__":
            setattr(value, name, item)
