"""The registry, decode, encode and fields: against the published tables, torch and ml_dtypes, every code."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from ampedu.formats import FORMATS, FloatFormat, UnknownFormatError, decode, encode, fields, get
from tests.unit.peers import NUMPY

# name: bits, e, m, bias, max, min normal, min subnormal, overflow from, inf, NaN codes, finite values, digits, safe.
# From IEEE 754-2019, OCP OFP8 1.0, OCP MX 1.0, the NVIDIA Ampere white paper (tf32) and the README of ml_dtypes.
SPEC = {
    "fp64": (64, 11, 52, 1023, 1.7976931348623157e308, 2.0**-1022, 5e-324, math.inf, True, None, None, 15.95, 15),
    "fp32": (
        32,
        8,
        23,
        127,
        3.4028234663852886e38,
        2.0**-126,
        2.0**-149,
        3.4028235677973366e38,
        True,
        None,
        None,
        7.22,
        6,
    ),
    "tf32": (
        19,
        8,
        10,
        127,
        3.4011621342146535e38,
        2.0**-126,
        2.0**-136,
        3.401992901712019e38,
        True,
        2046,
        None,
        3.31,
        3,
    ),
    "bf16": (16, 8, 7, 127, 3.3895313892515355e38, 2.0**-126, 2.0**-133, 3.39617752923046e38, True, 254, None, 2.41, 2),
    "fp16": (16, 5, 10, 15, 65504.0, 2.0**-14, 2.0**-24, 65520.0, True, 2046, None, 3.31, 3),
    "e4m3fn": (8, 4, 3, 7, 448.0, 2.0**-6, 2.0**-9, 464.0, False, 2, 253, 1.2, 0),
    "e5m2": (8, 5, 2, 15, 57344.0, 2.0**-14, 2.0**-16, 61440.0, True, 6, 247, 0.9, 0),
    "e4m3fnuz": (8, 4, 3, 8, 240.0, 2.0**-7, 2.0**-10, 248.0, False, 1, 255, 1.2, 0),
    "e5m2fnuz": (8, 5, 2, 16, 57344.0, 2.0**-15, 2.0**-17, 61440.0, False, 1, 255, 0.9, 0),
    "e3m4": (8, 3, 4, 3, 15.5, 0.25, 2.0**-6, 15.75, True, 30, 223, 1.51, 1),
    "e8m0": (8, 8, 0, 127, 2.0**127, 2.0**-127, None, 1.5 * 2.0**127, False, 1, 255, 0.3, 0),
    "e3m2": (6, 3, 2, 3, 28.0, 0.25, 0.0625, 30.0, False, 0, 63, 0.9, 0),
    "e2m3": (6, 2, 3, 1, 7.5, 1.0, 0.125, 7.75, False, 0, 63, 1.2, 0),
    "e2m1": (4, 2, 1, 1, 6.0, 1.0, 0.5, 7.0, False, 0, 15, 0.6, 0),
}
TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}


def same(a, b):
    """True where a and b are the same number, sign of zero included, or both NaN."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


def all_codes(name):
    return torch.arange(2 ** get(name).bits)


def peer_values(name):
    """Every code of the format, decoded by numpy and ml_dtypes."""
    codes = np.arange(2 ** get(name).bits).astype(np.uint16 if name in ("fp16", "bf16") else np.uint8)
    with np.errstate(all="ignore"):
        return codes.view(NUMPY[name]).astype(np.float64)


def test_the_registry_holds_the_formats_of_the_course_in_order():
    assert list(FORMATS) == list(SPEC)


@pytest.mark.parametrize("name", SPEC)
def test_derived_numbers_are_those_of_the_published_tables(name):
    f = FORMATS[name]
    bits, e, m, bias, top, normal, subnormal, overflow, inf, nans, finite, digits, guaranteed = SPEC[name]
    assert (f.bits, f.exponent_bits, f.mantissa_bits, f.bias) == (bits, e, m, bias)
    assert (f.max, f.min_normal, f.min_subnormal, f.overflow_threshold) == (top, normal, subnormal, overflow)
    assert (f.eps, f.unit_roundoff, f.has_inf) == (2.0**-m, 2.0 ** -(m + 1), inf)
    assert (round(f.digits, 2), f.guaranteed_digits) == (digits, guaranteed)
    if nans is not None:
        values = decode(all_codes(name), name)
        assert values.isnan().sum() == nans
        assert f.has_nan == (nans > 0)
        if finite is not None:
            assert values[values.isfinite()].unique().numel() == finite


@pytest.mark.parametrize("name", TORCH)
def test_derived_numbers_agree_with_torch_finfo(name):
    f, info = FORMATS[name], torch.finfo(TORCH[name])
    assert (f.bits, f.max, f.min_normal) == (info.bits, info.max, info.tiny)
    if name == "e5m2fnuz":
        # torch reports 0.125; the value after 1.0 is 1.25, as in ml_dtypes.
        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        assert info.eps == 0.125 or (version > (2, 14) and info.eps == 0.25)
        assert f.eps == float(ml_dtypes.finfo(ml_dtypes.float8_e5m2fnuz).eps) == 0.25
    else:
        assert f.eps == info.eps


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("fp64", 2**53),
        ("fp32", 2**24),
        ("fp16", 2048),
        ("bf16", 256),
        ("e4m3fn", 16),
        ("e5m2", 8),
        ("e3m4", 15),
        ("e2m3", 7),
        ("e2m1", 4),
        ("e8m0", 2),
    ],
)
def test_largest_integer_up_to_which_all_are_exact(name, largest):
    f = FORMATS[name]
    assert f.max_exact_integer == largest
    if f.bits <= 16:
        values = set(decode(all_codes(name), name).tolist())
        assert all(float(n) in values for n in range(1, largest + 1))
        assert float(largest + 1) not in values


@pytest.mark.parametrize("name", NUMPY)
def test_decode_every_code_as_numpy_and_ml_dtypes(name):
    assert same(decode(all_codes(name), name).numpy(), peer_values(name)).all()


@pytest.mark.parametrize("name", [n for n in TORCH if FORMATS[n].bits <= 16])
def test_decode_every_code_as_torch(name):
    codes = all_codes(name).to(torch.uint16 if FORMATS[name].bits == 16 else torch.uint8)
    assert same(decode(codes.int(), name).numpy(), codes.view(TORCH[name]).double().numpy()).all()


def test_decode_tf32_is_the_top_19_bits_of_float32():
    codes = torch.arange(2**19)
    as_float32 = (codes << 13).to(torch.uint32).view(torch.float32)
    assert same(decode(codes, "tf32").numpy(), as_float32.double().numpy()).all()


@pytest.mark.parametrize(("name", "ints"), [("fp32", torch.int32), ("fp64", torch.int64)])
def test_decode_and_encode_of_wide_formats_are_the_bits_of_torch(name, ints):
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**63), 2**63 - 1, (100_000,), generator=generator).to(ints)
    edges = torch.tensor([0, 1, 2, -1, torch.iinfo(ints).min, torch.iinfo(ints).max], dtype=ints)
    bits = torch.cat([bits, edges])
    x = bits.view(TORCH[name])
    codes = bits.long() & 2**32 - 1 if name == "fp32" else bits
    assert same(decode(codes, name).numpy(), x.double().numpy()).all()
    number = ~x.isnan()
    assert torch.equal(encode(x, name)[number], codes[number])


@pytest.mark.parametrize("name", SPEC)
def test_encode_gives_back_every_code(name):
    f = FORMATS[name]
    codes = all_codes(name) if f.bits <= 19 else torch.arange(0, 2**31 - 1, 9973) << (f.bits - 31)
    values = decode(codes, f)
    number = ~values.isnan()
    assert torch.equal(encode(values[number], f), codes[number])
    if f.has_nan:
        nan = encode(values[~number], f)
        assert (nan == f.nan_code).all() and math.isnan(decode(f.nan_code, f))


@pytest.mark.parametrize("name", NUMPY)
def test_nan_and_infinity_have_the_codes_of_the_peers(name):
    f = FORMATS[name]
    unsigned = np.uint16 if f.bits == 16 else np.uint8
    if f.has_nan:
        assert f.nan_code in np.array([np.nan, -np.nan], np.float32).astype(NUMPY[name]).view(unsigned)
    if f.has_inf:
        assert f.inf_code == np.array(np.inf).astype(NUMPY[name]).view(unsigned)
    assert decode(f.max_code, f) == f.max


def test_encode_rounds_float64_once():
    # Through float32 the last 1 is lost, the rest is a tie, and the tie goes down: the wrong neighbor.
    x = 1 + 2.0**-11 + 2.0**-40
    assert decode(encode(x, "fp16"), "fp16") == 1 + 2.0**-10
    assert float(torch.tensor(x, dtype=torch.float64).float().half()) == 1.0
    assert decode(encode(-(2.0**-25) - 2.0**-70, "fp16"), "fp16") == -(2.0**-24)


def test_encode_of_scalars_and_64_bit_codes():
    assert encode(1.0, "fp64") == 0x3FF0_0000_0000_0000
    assert encode(-0.0, "fp64") == 1 << 63 == encode(torch.tensor(-0.0), "fp64").item() % 2**64
    assert math.copysign(1.0, decode(1 << 63, "fp64")) == -1.0
    assert encode(1, "fp16") == encode(np.float32(1), "fp16") == 0x3C00
    assert encode(-0.0, "e4m3fnuz") == 0
    assert encode(0.0, "e8m0") == encode(-0.0, "e8m0") == 0
    assert encode(-1.0, "e8m0") == 0xFF


def test_a_63_bit_format():
    wide = FloatFormat("wide", 10, 52)
    assert [decode(encode(x, wide), wide) for x in (0.0, -1.5, 1e300)] == [0.0, -1.5, math.inf]
    assert encode(-0.0, wide) == 1 << 62


@pytest.mark.parametrize(
    ("name", "rule", "expected"),
    [
        ("fp16", None, 0x7C00),
        ("fp16", "inf", 0x7C00),
        ("fp16", "saturate", 0x7BFF),
        ("e4m3fn", None, 0x7E),
        ("e4m3fn", "inf", 0x7F),
        ("e4m3fnuz", None, 0x80),
        ("e4m3fnuz", "saturate", 0x7F),
        ("e8m0", None, 0xFF),
        ("e8m0", "saturate", 0xFE),
        ("e2m1", None, 0x7),
        ("e2m1", "saturate", 0x7),
    ],
)
def test_encode_overflow(name, rule, expected):
    big = FORMATS[name].overflow_threshold * 1.25
    assert encode(big, name, rule) == encode(math.inf, name, rule) == expected


def test_shapes_and_views():
    x = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    assert encode(x.t(), "fp16").shape == decode(encode(x.t(), "fp16"), "fp16").shape == (4, 3)
    assert torch.equal(decode(encode(x.t(), "fp16"), "fp16"), x.t())
    assert (
        encode(torch.empty(0, 2), "bf16").shape == decode(torch.empty(0, 2, dtype=torch.int64), "bf16").shape == (0, 2)
    )
    assert encode(torch.tensor(1.0), "bf16").shape == ()


def formula_value(text):
    return eval(text.replace("^", "**").replace("×", "*").replace("∞", "float('inf')"))


@pytest.mark.parametrize("name", [n for n in SPEC if FORMATS[n].bits <= 8] + ["fp16", "fp64"])
def test_the_formula_of_every_code_computes_its_value(name):
    f = FORMATS[name]
    codes = range(2**f.bits) if f.bits <= 8 else range(0, 2**f.bits, 2**f.bits // 301)
    for code in codes:
        parts = fields(code, f)
        if parts.kind == "nan":
            assert parts.formula == "NaN" and math.isnan(parts.value)
            continue
        assert same(formula_value(parts.formula), parts.value) and same(parts.value, decode(code, f))
        signed = f.flavour != "scale"
        glued = ((parts.sign << f.exponent_bits if signed else 0) + parts.exponent << f.mantissa_bits) + parts.mantissa
        assert glued == code


def test_fields_by_example():
    half = fields(0b0_01111_1000000000, "fp16")
    assert (half.sign, half.exponent, half.mantissa, half.kind, half.value) == (0, 15, 512, "normal", 1.5)
    assert half.formula == "(-1)^0 × 2^(15-15) × (1 + 512/1024)"
    assert fields(1, "fp16").formula == "(-1)^0 × 2^(1-15) × (0 + 1/1024)"
    kinds = {0x0000: "zero", 0x8000: "zero", 0x0001: "subnormal", 0x0400: "normal", 0xFC00: "inf", 0x7C01: "nan"}
    assert {code: fields(code, "fp16").kind for code in kinds} == kinds
    assert fields(0, "e8m0").kind == "normal" and fields(127, "e8m0").formula == "2^(127-127)"
    assert fields(0x80, "e4m3fnuz").kind == "nan"
    assert fields(0b1_01_0, FloatFormat("tiny", 2, 1, -2)).formula == "(-1)^1 × 2^(1+2) × (1 + 0/2)"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("float16", "fp16"),
        ("half", "fp16"),
        ("fp8_e4m3fn", "e4m3fn"),
        ("float8_e4m3fn", "e4m3fn"),
        ("e8m0fnu", "e8m0"),
        ("fp6_e3m2", "e3m2"),
        ("fp4_e2m1", "e2m1"),
        ("float6_e2m3fn", "e2m3"),
        ("fp8_e3m4", "e3m4"),
        *((dtype, name) for name, dtype in TORCH.items()),
        (torch.float8_e8m0fnu, "e8m0"),
    ],
)
def test_aliases_and_dtypes(alias, name):
    assert get(alias) is FORMATS[name]
    if isinstance(alias, str):
        assert FORMATS[alias] is FORMATS[name] and alias in FORMATS


@pytest.mark.parametrize(("wrong", "hint"), [("fp1 6", "fp16"), ("e4m3", "e4m3fn"), ("bfloat_16", "bfloat16")])
def test_an_unknown_format_names_the_known_ones(wrong, hint):
    with pytest.raises(UnknownFormatError) as caught:
        get(wrong)
    assert f"unknown format '{wrong}'. Did you mean '{hint}'?" in str(caught.value)
    assert all(name in str(caught.value) for name in SPEC)
    assert isinstance(caught.value, KeyError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("wrong", [torch.int8, 16, None])
def test_what_is_no_format_is_an_unknown_format(wrong):
    with pytest.raises(UnknownFormatError, match="unknown format"):
        decode(0, wrong)
    assert "nonsense" not in FORMATS


def test_a_format_of_your_own():
    mine = FloatFormat("e3m3", 3, 3)
    assert (mine.bias, mine.bits, mine.max, mine.min_subnormal) == (3, 7, 15.0, 2.0**-5)
    assert decode(encode(0.3, mine), mine) == 0.3125
    with pytest.raises(AttributeError):
        mine.bias = 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((0, 3), "exponent_bits must be 1 to 11, got 0"),
        ((12, 3), "exponent_bits must be 1 to 11, got 12"),
        ((4, 0), "mantissa_bits must be 1 to 52, got 0"),
        ((4, 53), "mantissa_bits must be 1 to 52, got 53"),
        ((4, 3.0), "mantissa_bits must be an integer, got 3.0"),
        ((True, 3), "exponent_bits must be an integer, got True"),
        ((4, 3, 7, "ocp"), "flavour must be one of ieee, fn, fnuz, finite, scale, got 'ocp'"),
        ((1, 3), "needs at least 2 exponent bits"),
        ((8, 1, 127, "scale"), "a scale format has no mantissa"),
        ((11, 52, 1023, "fn"), "leave the range of float64"),
        ((4, 3, 2000), "leave the range of float64"),
    ],
)
def test_numbers_that_make_no_format_are_refused(arguments, problem):
    with pytest.raises(ValueError, match=r"format 'mine'") as caught:
        FloatFormat("mine", *arguments)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: decode(256, "e4m3fn"), ValueError, "e4m3fn codes are 0 to 255, got 256"),
        (lambda: decode(-1, "fp16"), ValueError, "fp16 codes are 0 to 65535, got -1"),
        (lambda: decode(1.0, "fp16"), TypeError, "a code is an integer, got 1.0 of type float"),
        (lambda: decode(True, "fp16"), TypeError, "a code is an integer, got True"),
        (lambda: decode(torch.ones(2), "fp16"), TypeError, "decode takes integer codes, got a torch.float32 tensor"),
        (lambda: decode(torch.tensor([0, 16]), "e2m1"), ValueError, "e2m1 codes are 0 to 15, got 0 to 16"),
        (lambda: fields(300, "e5m2"), ValueError, "e5m2 codes are 0 to 255, got 300"),
        (lambda: encode(torch.ones(2, dtype=torch.int64), "fp16"), TypeError, "got a torch.int64 tensor: use x.double"),
        (lambda: encode(math.nan, "e2m1"), ValueError, "e2m1 has no code for NaN"),
        (lambda: encode(1.0, "e2m1", "inf"), ValueError, "e2m1 has neither infinity nor NaN"),
        (lambda: encode(1.0, "fp16", "clip"), ValueError, "overflow must be None"),
        (lambda: encode(2**53 + 1, "fp64"), ValueError, "rounding it first would round twice"),
    ],
)
def test_failures_say_what_is_wrong(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
