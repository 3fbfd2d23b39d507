"""Lab 01: the shared rules, and its solutions against torch, numpy and ml_dtypes on every code."""

import functools
import math
import struct

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.labs.common import LabTests, lab

STEM = "01_bit_layouts"
HALVES = [((5, 10), torch.float16), ((8, 7), torch.bfloat16)]
EIGHTS = [((5, 2), ml_dtypes.float8_e5m2), ((4, 3), ml_dtypes.float8_e4m3), ((3, 4), ml_dtypes.float8_e3m4)]


class TestLab01(LabTests):
    stem = STEM


@functools.cache
def answer(name):
    return lab(STEM).answer(f"01.{name}")


def bits(value):
    """A float as bits, every NaN alike."""
    return "nan" if math.isnan(value) else struct.pack("<d", value)


def every_code(dtype):
    """All 65 536 values of a 16-bit dtype as float64, by code."""
    codes = torch.arange(2**16).to(torch.int32).to(torch.int16)
    return codes.view(dtype).double()


def midpoints(dtype):
    """Every tie of a 16-bit dtype, positive and negative; each is exact in float32."""
    values = every_code(dtype)[: 2**15]
    values = values[values.isfinite()]
    ties = (values[1:] + values[:-1]) / 2
    return torch.cat([ties, -ties]).float()


def random_floats(count, bits=32, seed=1):
    """Random bit patterns as finite float32 or float64 values: all magnitudes, all mantissas."""
    patterns = np.random.default_rng(seed).integers(0, 2**bits, count, dtype=np.uint64)
    values = patterns.astype(f"u{bits // 8}").view(f"f{bits // 8}")
    return values[np.isfinite(values)]


@pytest.mark.parametrize(("widths", "dtype"), HALVES)
def test_decode_agrees_with_torch_on_all_16_bit_codes(widths, dtype):
    decode = answer("decode")
    theirs = every_code(dtype).tolist()
    assert all(bits(decode(code, *widths)) == bits(value) for code, value in enumerate(theirs))


@pytest.mark.parametrize(("widths", "dtype"), EIGHTS)
def test_decode_agrees_with_ml_dtypes_on_all_8_bit_codes(widths, dtype):
    theirs = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64).tolist()
    assert [bits(answer("decode")(code, *widths)) for code in range(256)] == [bits(value) for value in theirs]


def test_decode_e4m3fn_agrees_with_torch_on_all_codes():
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist()
    assert [bits(answer("decode_e4m3fn")(code)) for code in range(256)] == [bits(value) for value in theirs]


@pytest.mark.parametrize(("widths", "dtype"), HALVES)
def test_decode_all_agrees_with_torch_bit_for_bit(widths, dtype):
    codes = torch.arange(-(2**15), 2**15).to(torch.int16)
    mine, theirs = answer("decode_all")(codes, *widths), codes.view(dtype).float()
    assert torch.equal(mine.isnan(), theirs.isnan())
    numbers = ~theirs.isnan()
    assert torch.equal(mine[numbers].view(torch.int32), theirs[numbers].view(torch.int32))


@pytest.mark.parametrize(("widths", "dtype"), [((5, 10), np.float16), ((8, 23), np.float32)])
def test_ulp_agrees_with_numpy(widths, dtype):
    ulp = answer("ulp")
    values = np.arange(0x7BFF, dtype=np.uint16).view(np.float16) if dtype is np.float16 else random_floats(20_000)
    values = values[np.abs(values) < np.finfo(dtype).max]
    gaps = np.spacing(np.abs(values)).tolist()
    assert [ulp(value, *widths) for value in values.tolist()] == gaps


def test_ulp_agrees_with_python_for_float64():
    values = [*random_floats(20_000, bits=64).tolist(), 0.0, 5e-324, 2.0**-1022, 1.0, -1.0, 2.0**1023]
    assert [answer("ulp")(value, 11, 52) for value in values] == [math.ulp(value) for value in values]


@pytest.mark.parametrize(
    ("id", "wrong", "words"),
    [
        ("encode", float, "of type float, but a code is an int"),
        ("encode", lambda code: code - 2**60, "is not a code of"),
        ("next_up", torch.tensor, "of type Tensor, but a code is an int"),
        ("decode_all", torch.Tensor.double, "float64 tensor of shape (256, 256) instead of float32 tensor of"),
        ("positions", torch.Tensor.tolist, "the type is list instead of int64 tensor of shape (2, 2800)"),
    ],
)
def test_a_wrong_type_is_named_as_the_learner_sees_it(id, wrong, words):
    right = answer(id)
    verdict = lab(STEM).verdict(f"01.{id}", lambda *arguments: wrong(right(*arguments)))
    assert verdict.status == "failed" and words in verdict.difference.got


def test_next_up_agrees_with_numpy_on_all_fp16_codes():
    codes = np.arange(2**16, dtype=np.uint16)
    values = codes.view(np.float16)
    with np.errstate(all="ignore"):
        theirs = np.nextafter(values, np.float16(np.inf)).view(np.uint16)
    theirs = np.where(np.isnan(values), codes, theirs).tolist()
    assert [answer("next_up")(code, 5, 10) for code in codes.tolist()] == theirs


@pytest.mark.parametrize(
    ("widths", "dtype"),
    [((5, 10), np.float16), ((8, 7), ml_dtypes.bfloat16), ((4, 7), None), *EIGHTS],
)
def test_largest_integer_by_counting(widths, dtype):
    if (
        dtype is None
    ):  # range and precision end together here: 255 is the largest number, 256 would be the precision's limit
        counted = 255
    else:
        integers = np.arange(1, 4096)
        with np.errstate(all="ignore"):
            kept = integers.astype(np.float32).astype(dtype).astype(np.float32) == integers
        counted = int(integers[~kept][0]) - 1
    assert answer("largest_integer")(*widths) == counted


def encoded(values, widths):
    encode = answer("encode")
    return [encode(value, *widths) for value in values]


@pytest.mark.parametrize(("widths", "dtype"), HALVES)
def test_encode_agrees_with_torch_on_every_tie_and_100_000_random_numbers(widths, dtype):
    values = torch.cat([midpoints(dtype), torch.from_numpy(random_floats(100_000)), every_code(dtype).float()])
    values = values[~values.isnan()]
    theirs = (values.to(dtype).view(torch.int16).int() & 0xFFFF).tolist()
    assert encoded(values.tolist(), widths) == theirs


def test_encode_rounds_once_from_float64():
    random = np.random.default_rng(2)
    values = np.ldexp(random.random(100_000) + 0.5, random.integers(-30, 18, 100_000))
    ties = midpoints(torch.float16).double().numpy()
    values = np.concatenate([values, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40)])
    with np.errstate(over="ignore"):
        assert encoded(values.tolist(), (5, 10)) == values.astype(np.float16).view(np.uint16).tolist()


def test_encode_agrees_with_numpy_for_float32():
    values = random_floats(100_000, bits=64, seed=4)
    with np.errstate(over="ignore", under="ignore"):
        assert encoded(values.tolist(), (8, 23)) == values.astype(np.float32).view(np.uint32).tolist()


def test_encode_of_nan_and_signed_zero():
    assert encoded([math.nan, -math.nan, 0.0, -0.0], (5, 10)) == [0x7E00, 0x7E00, 0x0000, 0x8000]


def quantized(values, widths, largest, overflow):
    return answer("quantize")(values, *widths, largest, overflow)


@pytest.mark.parametrize(("widths", "dtype"), [*HALVES, ((5, 2), torch.float8_e5m2)])
def test_quantize_agrees_with_torch(widths, dtype):
    special = torch.tensor([math.inf, -math.inf, 0.0, -0.0, 61439.0, 61440.0, 65519.0, 65520.0, -65520.0])
    ties = midpoints(torch.float16 if dtype.itemsize == 1 else dtype)
    values = torch.cat([special, ties, torch.from_numpy(random_floats(100_000))])
    values = torch.cat([values, torch.linspace(-3, 3, 9999), torch.tensor([math.nan])])
    torch.testing.assert_close(
        quantized(values, widths, torch.finfo(dtype).max, "inf"),
        values.to(dtype).float(),
        rtol=0,
        atol=0,
        equal_nan=True,
    )


@pytest.mark.parametrize(
    ("widths", "dtype", "largest"),
    [
        ((4, 3), ml_dtypes.float8_e4m3fn, 448.0),
        ((3, 2), ml_dtypes.float6_e3m2fn, 28.0),
        ((2, 3), ml_dtypes.float6_e2m3fn, 7.5),
        ((2, 1), ml_dtypes.float4_e2m1fn, 6.0),
    ],
)
def test_quantize_agrees_with_ml_dtypes_and_saturates(widths, dtype, largest):
    inside = torch.linspace(-largest, largest, 2**16 + 1)  # a power of two of steps: all ties are among them
    theirs = torch.from_numpy(inside.numpy().astype(dtype).astype(np.float32))
    assert torch.equal(quantized(inside, widths, largest, "saturate"), theirs)
    beyond = torch.tensor([largest * 1.01, -largest * 2, 3e38, math.inf, -math.inf])
    assert torch.equal(quantized(beyond, widths, largest, "saturate"), largest * beyond.sign())
    assert quantized(torch.tensor([math.nan]), widths, largest, "saturate").isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.bool, torch.int64])
def test_positions_of_a_long_row_are_all_different(dtype):
    mask = torch.ones(2, 5000, dtype=dtype)
    mask[1, :7] = 0
    found = answer("positions")(mask)
    assert torch.equal(found[0], torch.arange(5000))
    assert torch.equal(found[1], torch.cat([torch.zeros(7, dtype=torch.int64), torch.arange(4993)]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_row_of_hidden_scores_survives_softmax(dtype):
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(dtype)
    masked = answer("mask_scores")(scores, torch.tensor([[True, True], [False, True]]))
    assert masked.dtype == dtype
    assert torch.equal(masked.softmax(-1), torch.tensor([[0.5, 0.5], [1.0, 0.0]]).to(dtype))


@pytest.mark.parametrize("secret", [b"public", b"x", b"y", b"z"])
def test_choices_are_what_a_reader_of_the_table_would_choose(secret):
    wanted = ["e4m3fn", "e5m2", "e5m2", "fp16", "fp16", "bf16", "bf16", "bf16", "fp32", "fp64", None]
    # at the limits of e4m3fn, e5m2 and fp16; then largest, smallest and step one after the other just beyond them
    wanted += ["e4m3fn", "fp16", "fp16", "fp16", "e5m2", "fp16", "bf16", "fp16", "fp16", "fp32", "fp32", "fp32"]
    cases = lab(STEM).exercises["01.choose_format"].cases(secret)
    assert [answer("choose_format")(**case) for case in cases] == wanted
