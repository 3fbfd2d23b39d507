import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampedu.exercises.compare import difference, ratio, show
from ampedu.exercises.plain import DTYPES

TOLERANCE = {"rtol": 1e-3, "atol": 1e-6}
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (INF, 1e308), ([INF], [3.0]),
        (torch.tensor([INF]), torch.tensor([1.0])),
        (torch.tensor([1.0, 2.0]), torch.tensor([NAN, NAN])),
        (torch.tensor([1.0, 1.0]), torch.tensor(1.0)),
        (torch.ones(3), torch.ones(3, 1)),
        (torch.ones(3), torch.ones(3, dtype=torch.float64)),
        (torch.ones(3), torch.ones(0)),
        (NAN, 0.0), (0.0, NAN), (INF, -INF),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tolerance", ["exact", TOLERANCE])
def test_the_wrong_answers_that_loose_comparators_accept(expected, got, tolerance):
    assert difference(expected, got, tolerance) is not None
    assert difference(got, expected, tolerance) is not None
    assert ratio(expected, got, tolerance) == INF


def test_exact_is_bit_exact_but_for_nan():
    quiet = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    assert difference(NAN, quiet) is None
    assert difference(torch.tensor([NAN]), -torch.tensor([NAN])) is None
    assert "sign of zero" in difference(0.0, -0.0).remark
    assert "sign of zero" in difference(torch.tensor([0.0]), torch.tensor([-0.0])).remark
    assert difference(0.0, -0.0, TOLERANCE) is None
    assert difference(1.0, math.nextafter(1.0, 2)) is not None


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if dtype.is_floating_point], ids=str)
def test_neighbors_of_every_float_dtype(dtype):
    one = torch.ones(3, dtype=dtype)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    other = one.clone()
    other.view(bits)[1] += 1
    found = difference(one, other)
    assert found.where == "[1]" and "1 of 3 elements differ" in found.remark
    assert difference(one, one.clone()) is None
    assert difference(one, other, {"rtol": 0.26, "atol": 0.0}) is None
    assert difference(one, other, {"rtol": 1e-17, "atol": 0.0}) is not None


def test_the_tolerance_is_relative_to_the_expected_value():
    tolerance = {"rtol": 0.1, "atol": 0.0}
    assert difference(100.0, 110.0, tolerance) is None
    assert difference(100.0, 110.1, tolerance) is not None
    assert difference(110.0, 100.0, tolerance) is None and difference(111.2, 100.0, tolerance) is not None


def test_tolerances_by_name_leave_the_rest_exact():
    tolerance = {"loss": {"rtol": 0.1, "atol": 0.0}}
    a, b = {"loss": 1.0, "n": 1.0}, {"loss": 1.05, "n": 1.0}
    assert difference(a, b, tolerance) is None
    assert difference(a, b | {"n": 1.0 + 1e-15}, tolerance).where == "['n']"


FLOATS = st.sampled_from([0.0, -0.0, 1.0, 1.001, 1.00101, -1.0, 5e-324, 1e-6, 1e308, INF, -INF, NAN]) | st.floats(
    width=32
)


@given(
    st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_tolerance_is_that_of_assert_close(pairs, dtype):
    expected, got = (torch.tensor(column, dtype=torch.float64).to(dtype) for column in zip(*pairs, strict=True))
    try:
        torch.testing.assert_close(got.double(), expected.double(), **TOLERANCE, equal_nan=True)
        close = True
    except AssertionError:
        close = False
    assert (difference(expected, got, TOLERANCE) is None) == close


@pytest.mark.parametrize(
    ("expected", "got", "cure"),
    [
        (1, 1.0, "int(…)"), (1.0, 1, "float(…)"), (True, 1, "bool(…)"), (1, True, "int(…)"),
        ([1], (1,), "list(…)"), ((1,), [1], "tuple(…)"),
        (1.0, torch.tensor(1.0), ".item()"), ([1.0], torch.tensor([1.0]), ".tolist()"),
        (torch.tensor([1.0]), [1.0], "torch.tensor(…)"), (1.0, None, "is a return statement missing?"),
    ],
)  # fmt: skip
def test_types_are_strict_and_the_remark_has_the_cure(expected, got, cure):
    for tolerance in ("exact", TOLERANCE):
        assert difference(expected, got, tolerance).remark.endswith(cure)


def test_the_place_in_nested_containers():
    expected = {"a": [1, (2.0, {"b": torch.tensor([[1, 2], [3, 4]])})]}
    got = {"a": [1, (2.0, {"b": torch.tensor([[1, 2], [3, 5]])})]}
    found = difference(expected, got)
    assert found.where == "['a'][1][1]['b'][1, 1]" and (found.expected, found.got) == ("4", "5")
    assert "missing: 'b'; not expected: 'c'" == difference({"a": 1, "b": 2}, {"a": 1, "c": 2}).remark
    assert difference([1, 2], [1]).remark == "the length is 1 instead of 2"
    dots = "." * 40
    remark = difference(f"{dots}c", f"{dots}x").remark
    assert remark == "the first difference is at character 40: 'x' instead of 'c'"
    assert "length is 40 instead of 41" in difference(f"{dots}c", dots).remark
    assert difference("fp16", "bf16").remark == "", "both are short enough to see it"


def test_a_dtype_or_shape_is_named():
    remark = difference(torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64)).remark
    assert remark == "the dtype is torch.float64 instead of torch.float32; the shape is (3, 2) instead of (2, 3)"


def test_last_digits_are_shown_in_hexadecimal():
    found = difference(0.1, math.nextafter(0.1, 1))
    assert (0.1).hex() in found.expected and math.nextafter(0.1, 1).hex() in found.got
    assert "0x" not in difference(0.1, 0.2).expected


@pytest.mark.parametrize(("a", "b", "words"), [(1.0, 65536.0, "2**16"), (1.0, -1.0, "sign differs"),
(3.0, 0.75, "2**-2"), (1.0, 3.0, "")])  # fmt: skip
def test_the_remark_names_powers_of_two(a, b, words):
    assert words in difference(a, b).remark
    assert bool(words) == bool(difference(a, b).remark)


def test_ratio_counts_in_tolerances():
    tolerance = {"rtol": 0.1, "atol": 1.0}
    assert ratio(10.0, 11.0, tolerance) == pytest.approx(0.5)
    assert ratio(torch.tensor([10.0, 0.0]), torch.tensor([10.0, 3.0]), tolerance) == pytest.approx(3.0)
    assert ratio({"a": [10.0]}, {"a": [12.0]}, {"a": tolerance}) == pytest.approx(1.0)
    assert ratio(1.0, 1.0) == 0 and ratio(NAN, NAN, tolerance) == 0 and ratio(INF, INF, tolerance) == 0
    assert ratio(1, 2, tolerance) == INF and ratio(1.0, 1.5) == INF and ratio(1.0, 1, tolerance) == INF
    assert ratio(0.0, 1.0, {"rtol": 1.0, "atol": 0.0}) == INF


def test_show_is_short():
    assert show(torch.zeros(3, dtype=torch.float16)) == "tensor of float16, shape (3,): [0.0, 0.0, 0.0]"
    assert show(torch.zeros(100)).endswith(", …]") and len(show("x" * 1000)) == 200
    assert show({"a": (1,), "b": [None, True]}) == "{'a': (1,), 'b': [None, True]}"
