import json
import math
import string
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampedu.exercises import compare, plain


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(list(plain.DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape)
    if dtype == torch.bool:
        flat = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype)
    else:
        raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
        flat = torch.frombuffer(bytearray(raw), dtype=dtype).clone() if count else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | tensors()
keys = st.text(max_size=5) | st.sampled_from(["tuple", "dict", "float", "int", "tensor"])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(keys, inner, max_size=4), max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(values)
def test_round_trip_is_bit_exact(value):
    store = {}
    text = json.dumps(plain.to_json(plain.freeze(value), store), allow_nan=False)
    back = plain.from_json(plain.parse(text), store)
    assert compare.difference(value, back) is None
    assert compare.difference(plain.freeze(value), value) is None


def test_freeze_copies():
    inner = torch.ones(2)
    value = {"a": [inner]}
    frozen = plain.freeze(value)
    inner.zero_()
    value["a"].append(1)
    assert frozen["a"][0].tolist() == [1.0, 1.0] and len(frozen["a"]) == 1


def test_a_tensor_that_requires_grad_is_detached():
    assert not plain.freeze(torch.ones(2, requires_grad=True) * 2).requires_grad


class Sneaky(float):
    def __eq__(self, other):
        return True

    __hash__ = None


class Level(IntEnum):
    ONE = 1


CYCLE = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(2), "numpy array (numpy.ndarray); convert it with torch.from_numpy"),
        (np.float32(1), "numpy scalar (numpy.float32); convert it with .item()"),
        (torch.nn.Parameter(torch.ones(1)), "subclass of torch.Tensor"),
        (Sneaky(1.0), "a subclass of float; convert it with float(…)"),
        (Level.ONE, "a subclass of int; convert it with int(…)"),
        (torch.float16, "a torch.dtype (torch.float16); convert it with str(…)"),
        (torch.Size([1]), "convert it with tuple(…)"),
        ({1, 2}, "convert it with list(…)"),
        ((n for n in [1]), "convert it with list(…)"),
        (len, "were the parentheses of the call forgotten"),
        (1j, "complex"),
        (b"x", "of type bytes"),
        ({1: 2}, "keys must be strings"),
        (torch.ones(2, dtype=torch.complex64), "complex64"),
        (torch.ones(1, device="meta"), "convert it with .cpu()"),
        (torch.ones(2).to_sparse(), "sparse"),
        (CYCLE, "does it contain itself"),
        (1 << 5000, "bits"),
        ("x" * 100_000, "characters"),
        (torch.zeros(1).expand(1 << 23), "too large"),
        ([0] * 200_000, "elements"),
    ],
)
def test_what_is_not_plain_is_refused_with_the_cure(value, words):
    with pytest.raises(plain.NotPlain) as caught:
        plain.freeze({"out": [value]})
    assert (words in str(caught.value) and "['out'][0]" in str(caught.value)) or "more than" in str(caught.value)


def test_deep_nesting_in_values():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(plain.NotPlain, match="levels deep"):
        plain.freeze(deep)


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "1e999",
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        "9" * 5000,
        "{",
        "[1] x",
        b"\xff\xfe[",
        '"\\ud800',
    ],
)
def test_hostile_json_is_refused(text):
    with pytest.raises(plain.NotPlain):
        plain.parse(text)


@pytest.mark.parametrize(
    "node",
    [
        {"tensor": "t9"}, {"tensor": 3}, {"float": "1.5"}, {"float": "Infinity"}, {"int": "12z"},
        {"int": "0x" + "f" * 2000},
        {"tuple": {}}, {"dict": []}, [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],
    ],
)  # fmt: skip
def test_malformed_nodes_are_refused(node):
    with pytest.raises(plain.NotPlain):
        plain.from_json(node, {"t0": torch.ones(1)})


def test_every_printable_text_survives():
    assert plain.from_json(plain.parse(json.dumps(string.printable)), {}) == string.printable
