"""Plain data: the closed list of types that cases and outcomes are made of, and their JSON form.

Plain are None, bool, int, float, str, list, tuple, dict with str keys, and dense CPU tensors of the dtypes in DTYPES.
Types are tested by ``type(x) is``: a subclass could lie in its comparison operators. In JSON a tuple is {"tuple":
[…]}, a non-finite float {"float": "nan"}, a wide int {"int": "0x…"}, and a tensor {"tensor": NAME}, where NAME is a
key of a separate mapping of tensors. A dict that looks like one of these is {"dict": {…}}.
"""

import json
import math
import types

import torch

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MAX_DEPTH, MAX_NODES, MAX_TEXT, MAX_INT_BITS = 16, 100_000, 65_536, 4_096
MAX_TENSORS, MAX_ELEMENTS, MAX_DIMS = 4_096, 1 << 22, 16
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_SAFE_INT = 1 << 53
_TAGS = ("tuple", "dict", "float", "int", "tensor")


class NotPlain(ValueError):
    """A value outside the closed list; the text says where it is, what it is, and how to convert it."""


def freeze(value):
    """A deep copy of plain data.

    Tensors detached and contiguous. Raises NotPlain for anything else, and past the size caps.
    """
    return _freeze(value, "the value", 0, _Budget())


def _freeze(value, where, depth, budget):
    budget.node(where, depth)
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise NotPlain(f"{where} is an int of {value.bit_length()} bits; at most {MAX_INT_BITS} are allowed")
        return value
    if kind is str:
        if len(value) > MAX_TEXT:
            raise NotPlain(f"{where} is a string of {len(value)} characters; at most {MAX_TEXT} are allowed")
        return value
    if kind is list or kind is tuple:
        return kind([_freeze(item, f"{where}[{i}]", depth + 1, budget) for i, item in enumerate(value)])
    if kind is dict:
        return {_key(key, where): _freeze(item, f"{where}[{key!r}]", depth + 1, budget) for key, item in value.items()}
    if kind is torch.Tensor:
        return _freeze_tensor(value, where, budget)
    raise NotPlain(f"{where} is {_cure(value)}")


def _key(key, where):
    if type(key) is not str or len(key) > MAX_TEXT:
        raise NotPlain(f"{where} is a dict with the key {key!r:.40} of type {type(key).__name__}; keys must be strings")
    return key


def _freeze_tensor(value, where, budget):
    if value.layout is not torch.strided or value.is_quantized:
        raise NotPlain(f"{where} is a sparse or quantized tensor; convert it with .to_dense() or .dequantize()")
    if value.device.type != "cpu":
        raise NotPlain(
            f"{where} is a tensor on the device {value.device}; checks run on the CPU: convert it with .cpu()"
        )
    if value.dtype not in DTYPES.values():
        raise NotPlain(f"{where} is a tensor of dtype {value.dtype}; convert it with .to(…) to a real or integer dtype")
    budget.tensor(where, value.shape)
    return value.detach().clone(memory_format=torch.contiguous_format)


class _Budget:
    def __init__(self):
        self.nodes = self.tensors = self.elements = 0

    def node(self, where, depth):
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise NotPlain(f"{where[:60]}… is nested more than {MAX_DEPTH} levels deep (does it contain itself?)")
        if self.nodes > MAX_NODES:
            raise NotPlain(f"the value has more than {MAX_NODES} elements")

    def tensor(self, where, shape):
        self.tensors += 1
        self.elements += math.prod(shape)
        # The dimensions of an empty tensor count too: it takes no memory, but no file could hold every such shape.
        largest = max(self.elements, math.prod(size or 1 for size in shape))
        if self.tensors > MAX_TENSORS or largest > MAX_ELEMENTS or len(shape) > MAX_DIMS:
            raise NotPlain(
                f"{where} is too large: at most {MAX_TENSORS} tensors, {MAX_ELEMENTS} elements, {MAX_DIMS} dimensions"
            )


def _cure(value):
    kind = type(value)
    if kind is types.CoroutineType:
        value.close()  # else Python warns on stderr that it was never awaited
        return "a coroutine: write `def`, not `async def`"
    if kind is types.GeneratorType:
        return "a generator: use `return`, not `yield`, or convert it with list(…)"
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ == "numpy":
        if kind.__name__ == "ndarray":
            return "a numpy array (numpy.ndarray); convert it with torch.from_numpy(…), or with .tolist() for a list"
        return f"a numpy scalar ({name}); convert it with .item()"
    if isinstance(value, torch.Tensor):
        return f"a subclass of torch.Tensor ({name}); convert it with .detach().clone().as_subclass(torch.Tensor)"
    if kind is torch.dtype:
        return f"a torch.dtype ({value}); convert it with str(…)"
    if kind is torch.Size:
        return "a torch.Size; convert it with tuple(…)"
    if kind is complex:
        return "a complex number; convert it to a pair of floats"
    if kind in (set, frozenset, range) or hasattr(value, "__next__"):
        return f"of type {name}; convert it with list(…)"
    for base in (bool, int, float, str, list, tuple, dict):
        if isinstance(value, base):
            return f"of type {name}, a subclass of {base.__name__}; convert it with {base.__name__}(…)"
    if callable(value):
        return f"of type {name}: a function or class, not its result (were the parentheses of the call forgotten?)"
    return f"of type {name}; convert it to int, float, str, bool, None, list, tuple, dict or torch.Tensor"


def to_json(value, tensors: dict):
    """The JSON form of plain data. Tensors are added to the mapping ``tensors`` under new names "t0", "t1", …"""
    kind = type(value)
    if kind is int:
        return value if abs(value) < _SAFE_INT else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is list:
        return [to_json(item, tensors) for item in value]
    if kind is tuple:
        return {"tuple": [to_json(item, tensors) for item in value]}
    if kind is dict:
        body = {key: to_json(item, tensors) for key, item in value.items()}
        return {"dict": body} if len(body) == 1 and set(body) <= set(_TAGS) else body
    if kind is torch.Tensor:
        name = f"t{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    return value


def from_json(node, tensors):
    """Plain data from its JSON form; NotPlain for any other shape. Tensors come from the mapping ``tensors``."""
    return freeze(_decode(node, tensors, 0))


def _decode(node, tensors, depth):
    if depth > 2 * MAX_DEPTH:
        raise NotPlain("the JSON text is nested too deeply")
    if type(node) is list:
        return [_decode(item, tensors, depth + 1) for item in node]
    if type(node) is not dict:
        return node
    if len(node) != 1 or not set(node) <= set(_TAGS):
        return {key: _decode(item, tensors, depth + 1) for key, item in node.items()}
    ((tag, body),) = node.items()
    if tag == "tuple" and type(body) is list:
        return tuple(_decode(item, tensors, depth + 1) for item in body)
    if tag == "dict" and type(body) is dict:
        return {key: _decode(item, tensors, depth + 1) for key, item in body.items()}
    if tag == "float" and type(body) is str and body in _NON_FINITE:
        return _NON_FINITE[body]
    if tag == "int" and type(body) is str and len(body) <= MAX_INT_BITS // 4 + 3:
        try:
            return int(body, 16)
        except ValueError:
            raise NotPlain(f"{body!r:.40} is not a hexadecimal int") from None
    if tag == "tensor" and type(body) is str and body in tensors:
        return tensors[body]
    raise NotPlain(f"the JSON object {{{tag!r:.20}: …}} is not plain data, or names a tensor that is missing")


def parse(text: str | bytes):
    """JSON text to Python objects, strictly.

    No NaN or Infinity, no overflowing number, no duplicate key, no endless int.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float, parse_int=_int, object_pairs_hook=_unique)
    except RecursionError:
        raise NotPlain("the JSON text is nested too deeply") from None
    except NotPlain:
        raise
    except ValueError as error:
        raise NotPlain(f"not valid JSON: {error}") from None


def _refuse(constant):
    raise NotPlain(f"{constant} is not valid JSON")


def _float(text):
    value = float(text)
    if not math.isfinite(value):
        raise NotPlain(f"the number {text:.40} is out of range")
    return value


def _int(text):
    if len(text) > 20:
        raise NotPlain(f"an int of {len(text)} digits is out of range")
    return int(text)


def _unique(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        raise NotPlain("a JSON object has the same key twice")
    return result
