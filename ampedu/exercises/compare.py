"""Comparing an answer with what is expected.

Types, dtypes and shapes strictly, floats within a tolerance, differences in words.

"exact" means the same bits, the sign of zero included; every NaN equals every NaN. A tolerance dict(rtol, atol) means
|got − expected| ≤ atol + rtol·|expected| for floats, NaN only where NaN is expected, and an infinity only where the
same one is.
"""

import math
import struct
from typing import NamedTuple

import torch

LONG_TEXT = 40
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Difference(NamedTuple):
    """The first place where two values differ.

    Where it is (such as "['scale'][2]"), what was expected and got, and a remark.
    """

    where: str
    expected: str
    got: str
    remark: str


def difference(expected, got, tolerance="exact", where="") -> Difference | None:
    """The first difference between two plain values, or None if ``got`` equals ``expected`` within the tolerance.

    tolerance: "exact", dict(rtol=…, atol=…), or a dict of these by key for a dict value (keys not named are exact).
    """
    kind = type(expected)
    if kind is not type(got):
        return Difference(where, show(expected), show(got), _type_remark(expected, got))
    if kind is dict:
        return _dicts(expected, got, tolerance, where)
    if kind is list or kind is tuple:
        for i, (a, b) in enumerate(zip(expected, got, strict=False)):
            if found := difference(a, b, tolerance, f"{where}[{i}]"):
                return found
        if len(expected) != len(got):
            remark = f"the length is {len(got)} instead of {len(expected)}"
            return Difference(where, show(expected), show(got), remark)
        return None
    if kind is torch.Tensor:
        return _tensors(expected, got, tolerance, where)
    if kind is float:
        if _floats_equal(expected, got, tolerance):
            return None
        return Difference(where, *_show_floats(expected, got), _float_remark(expected, got))
    if expected == got:
        return None
    return Difference(where, show(expected), show(got), _text_remark(expected, got) if kind is str else "")


def _dicts(expected, got, tolerance, where):
    missing, extra = [k for k in expected if k not in got], [k for k in got if k not in expected]
    if missing or extra:
        remark = "; ".join(
            f"{word} {names}"
            for word, names in (("missing:", _list(missing)), ("not expected:", _list(extra)))
            if names
        )
        return Difference(where, f"the keys {_list(expected)}", f"the keys {_list(got)}", remark)
    named = isinstance(tolerance, dict) and not set(tolerance) <= {"rtol", "atol"}
    for key in expected:
        part = tolerance.get(key, "exact") if named else tolerance
        if found := difference(expected[key], got[key], part, f"{where}[{key!r}]"):
            return found
    return None


def _list(names):
    return ", ".join(repr(name) for name in names)


def _tensors(expected, got, tolerance, where):
    if expected.dtype != got.dtype or expected.shape != got.shape:
        remark = f"the dtype is {got.dtype} instead of {expected.dtype}" if expected.dtype != got.dtype else ""
        if expected.shape != got.shape:
            shapes = f"the shape is {tuple(got.shape)} instead of {tuple(expected.shape)}"
            remark = f"{remark}; {shapes}" if remark else shapes
        return Difference(where, show(expected), show(got), remark)
    if not (wrong := _mismatch(expected, got, tolerance)).any():
        return None
    index = tuple(int(i) for i in wrong.nonzero()[0])
    a, b = expected[index].item(), got[index].item()
    place = f"{where}[{', '.join(map(str, index))}]" if index else where
    words = _show_floats(a, b) if isinstance(a, float) else (show(a), show(b))
    remark = _float_remark(a, b) if isinstance(a, float) else ""
    if expected.numel() > 1:
        count = f"{int(wrong.sum())} of {expected.numel()} elements differ; this is the first"
        remark = f"{remark}; {count}" if remark else count
    return Difference(place, *words, remark)


def _mismatch(expected, got, tolerance):
    """Boolean tensor: where two tensors of the same dtype and shape differ."""
    if not expected.dtype.is_floating_point:
        return expected != got
    if tolerance == "exact":
        kind = _BITS[expected.element_size()]
        both_nan = expected.double().isnan() & got.double().isnan()
        return (expected.contiguous().view(kind) != got.contiguous().view(kind)) & ~both_nan
    a, b = expected.double(), got.double()
    # What torch.testing.assert_close does for equal dtypes and shapes; importing that takes two seconds.
    return ~torch.isclose(b, a, rtol=tolerance["rtol"], atol=tolerance["atol"], equal_nan=True)


def _floats_equal(expected, got, tolerance):
    if tolerance == "exact":
        return struct.pack("<d", expected) == struct.pack("<d", got) or (math.isnan(expected) and math.isnan(got))
    pair = (torch.tensor(x, dtype=torch.float64) for x in (expected, got))
    return not _mismatch(*pair, tolerance).any()


def ratio(expected, got, tolerance="exact") -> float:
    """How far apart two plain values are in units of the tolerance.

    0.0 if bit-equal, inf for any difference that has no size.

    For floats max |got − expected| / (atol + rtol·|expected|). Types, shapes, exact outputs, NaN and infinities have
    no size.
    """
    if difference(expected, got, "exact") is None:
        return 0.0
    kind = type(expected)
    if kind is not type(got):
        return math.inf
    if kind is dict and list(expected) and set(expected) == set(got):
        named = isinstance(tolerance, dict) and not set(tolerance) <= {"rtol", "atol"}
        return max(ratio(expected[k], got[k], tolerance.get(k, "exact") if named else tolerance) for k in expected)
    if kind in (list, tuple) and len(expected) == len(got):
        return max(ratio(a, b, tolerance) for a, b in zip(expected, got, strict=True))
    if tolerance == "exact" or kind not in (float, torch.Tensor):
        return math.inf
    if kind is torch.Tensor and (
        expected.dtype != got.dtype or expected.shape != got.shape or not expected.is_floating_point()
    ):
        return math.inf
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (expected, got))
    gap = (b - a).abs() / (tolerance["atol"] + tolerance["rtol"] * a.abs())
    same = (a == b) | (a.isnan() & b.isnan())
    return float(torch.where(same, 0.0, gap).nan_to_num(nan=math.inf, posinf=math.inf).max())


def show(value, limit: int = 200) -> str:
    """A short text for a plain value: its repr, tensors with dtype and shape, cut after ``limit`` characters."""
    if type(value) is torch.Tensor:
        flat = value.flatten()[:8].tolist()
        dots = ", …" if value.numel() > 8 else ""
        body = repr(flat[0]) if value.dim() == 0 else f"[{', '.join(map(repr, flat))}{dots}]"
        text = f"tensor of {str(value.dtype).removeprefix('torch.')}, shape {tuple(value.shape)}: {body}"
    elif type(value) in (list, tuple, dict):
        text = _show_container(value, limit)
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _show_container(value, limit):
    if type(value) is dict:
        return "{" + ", ".join(f"{k!r}: {show(v, limit)}" for k, v in value.items()) + "}"
    inside = ", ".join(show(item, limit) for item in value)
    if type(value) is list:
        return f"[{inside}]"
    return f"({inside},)" if len(value) == 1 else f"({inside})"


def _show_floats(expected, got):
    """Both floats; with their hexadecimal form as well where they agree in the first six digits."""
    if math.isfinite(expected) and math.isfinite(got) and f"{expected:.6g}" == f"{got:.6g}":
        return tuple(f"{x!r} (in hexadecimal {x.hex()})" for x in (expected, got))
    return repr(expected), repr(got)


def _float_remark(expected, got):
    if expected == got == 0.0:
        return "the sign of zero differs"
    if math.isfinite(expected) and math.isfinite(got) and expected and got:
        if expected == -got:
            return "the sign differs"
        quotient = got / expected
        if math.isfinite(quotient) and quotient > 0 and math.frexp(quotient)[0] == 0.5:
            power = math.frexp(quotient)[1] - 1
            return f"the factor between them is 2**{power}" if quotient != 1 else ""
    return ""


def _type_remark(expected, got):
    names = [f"{'an' if type(x).__name__[0] in 'aeiou' else 'a'} {type(x).__name__}" for x in (expected, got)]
    names = [name.replace("a NoneType", "None").replace("a Tensor", "a torch.Tensor") for name in names]
    text = f"the type is {names[1]} instead of {names[0]}"
    pair = type(expected), type(got)
    if got is None:
        return text + ": is a return statement missing?"
    if pair[1] is torch.Tensor and pair[0] in (int, float, bool):
        return text + ": convert it with .item()"
    if pair[1] is torch.Tensor and pair[0] is list:
        return text + ": convert it with .tolist()"
    if pair[0] is torch.Tensor:
        return text + ": convert it with torch.tensor(…)"
    if pair[0] in (int, float, bool, str, list, tuple) and pair[1] in (int, float, bool, list, tuple):
        return text + f": convert it with {pair[0].__name__}(…)"
    return text


def _text_remark(expected, got):
    if max(len(expected), len(got)) <= LONG_TEXT:  # the eye finds the difference
        return ""
    for i, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return f"the first difference is at character {i}: {b!r} instead of {a!r}"
    return f"the length is {len(got)} instead of {len(expected)} characters"
