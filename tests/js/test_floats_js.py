"""The explorers' number formats against ampedu.formats and exact fractions: all short codes, random long ones, ties."""

import json
import math
import random
import shutil
import subprocess
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from ampedu import formats, static
from ampedu.formats import FORMATS

SHORT = [name for name, fmt in FORMATS.items() if fmt.bits <= 16]
LONG = [name for name in FORMATS if name not in SHORT]
RANDOM_CODES = {"fp32": 100_000, "fp64": 20_000, "tf32": 20_000}
COLUMNS = ["value", "again", "sign", "exponent", "mantissa", "kind", "below", "above", "ulp"]
KINDS = ["zero", "subnormal", "normal", "inf", "nan"]
BINS = range(-160, 140)
NUMPY = {"fp32": np.float32, "fp64": np.float64}

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def all_codes(name):
    fmt = FORMATS[name]
    if name in SHORT:
        return np.arange(2**fmt.bits, dtype=np.uint64)
    last = 2**fmt.bits - 1
    edges = [0, 1, 2, fmt.max_code - 1, fmt.max_code, fmt.inf_code, fmt.nan_code, 2 ** (fmt.bits - 1)]
    edges += [2**fmt.mantissa_bits + d for d in (-1, 0, 1)]
    edges += [edge | 2 ** (fmt.bits - 1) for edge in edges]
    stream = np.random.default_rng(fmt.bits)
    return np.append(stream.integers(0, last, RANDOM_CODES[name], dtype=np.uint64, endpoint=True), np.uint64(edges))


def decoded(name, codes):
    return formats.decode(torch.from_numpy(codes.view(np.int64)), name).numpy()


def random_texts(stream):
    """Decimals, fractions, hex floats and sums of powers of two, with many just beside a tie."""

    def decimal():
        digits = stream.randrange(10 ** stream.randint(1, 40))
        return f"{stream.choice(['', '-'])}{digits}e{stream.randint(-70, 20)}"

    def fraction():
        return f"{stream.randint(-(10**6), 10**6)}/{stream.randint(1, 10**6)}"

    def beside_tie():
        fmt = FORMATS[stream.choice([name for name in FORMATS if name != "fp64"])]
        code = stream.randrange(fmt.max_code)
        tie = (Decimal(formats.decode(code, fmt)) + Decimal(formats.decode(code + 1, fmt))) / 2
        return f"{tie:e} {stream.choice('+-')} 1e-{stream.randint(60, 90)}"

    def binary():
        return math.ldexp(stream.random(), stream.randint(-1074, 1000)).hex()

    def powers():
        return f"{stream.randint(1, 99)}*2^{stream.randint(-40, 20)} + 2^{stream.randint(-60, 10)}"

    makers = [decimal, fraction, beside_tie, binary, powers]
    return [makers[index % len(makers)]() for index in range(10_000)]


def value_of(text):
    """The exact value of one of the texts above, by Python's own parsers."""
    if text.startswith(("0x", "-0x")):
        return Fraction(float.fromhex(text))
    if "*" in text or "^" in text:
        a, b = text.split(" + ")
        times, power = a.split("*2^")
        return int(times) * Fraction(2) ** int(power) + Fraction(2) ** int(b[2:])
    for sign in ("+", "-"):
        if f" {sign} " in text:
            a, b = text.split(f" {sign} ")
            return Fraction(a) + (1 if sign == "+" else -1) * Fraction(b)
    return Fraction(text)


def rounded_once(x, fmt):
    """Round a fraction to a multiple of the format's step at x; Python rounds fractions to nearest, ties to even."""
    exponent = fmt.min_exponent
    if x:
        exponent = x.numerator.bit_length() - x.denominator.bit_length()
        exponent = max(exponent - (abs(x) < Fraction(2) ** exponent), fmt.min_exponent)
    step = Fraction(2) ** (exponent - fmt.mantissa_bits)
    result = round(abs(x) / step) * step
    magnitude = float(result) if result < 2**1024 else math.inf
    return -magnitude if x < 0 else magnitude


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run of node over everything that the tests below compare."""
    folder = tmp_path_factory.mktemp("floats")
    source = static.folder()
    for name in ("floats", "numerals", "histogram"):
        text = (source / f"{name}.js").read_text(encoding="utf-8")
        (folder / f"{name}.mjs").write_text(text.replace('.js";', '.mjs";'), encoding="utf-8")
    codes = {name: all_codes(name) for name in FORMATS}
    for name, array in codes.items():
        (folder / f"{name}.codes").write_bytes(array.tobytes())
    stream = random.Random(7)
    request = {
        "codes": list(FORMATS),
        "texts": random_texts(stream),
        "ties": {name: [tie for _, tie in ties(name)] for name in SHORT},
        "samples": [
            (name, str(code))
            for name in FORMATS
            for code in (codes[name] if FORMATS[name].bits <= 8 else stream.sample(codes[name].tolist(), 300))
        ],
        "errors": ["", "abc", "1/0", "1..2", "2^0.5", "1e999999", "2^99999999", "0^-1", "1 2", "1/"],
        "codeErrors": [("fp16", "0x10000"), ("fp16", "12"), ("e2m1", "0101"), ("fp16", "0b0_01011_1001100110")],
        "outcomes": [name for name in FORMATS if name not in ("e8m0", "fp64")],
        "bins": list(BINS),
    }
    (folder / "request.json").write_text(json.dumps(request))
    script = __file__.replace("test_floats_js.py", "floats_run.mjs")
    done = subprocess.run(["node", script, str(folder)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    tables = {}
    for name in FORMATS:
        rows = np.frombuffer((folder / f"{name}.out").read_bytes(), dtype=np.float64).reshape(-1, len(COLUMNS))
        tables[name] = dict(zip(COLUMNS, rows.T, strict=True))
    return codes, tables, request, json.loads((folder / "response.json").read_text())


def ties(name):
    """(code below, midpoint) between all neighboring finite values of a short format, and the overflow threshold."""
    fmt = FORMATS[name]
    values = decoded(name, np.arange(fmt.max_code + 1, dtype=np.uint64))
    middle = (values[:-1] + values[1:]) / 2
    return [*enumerate(middle.tolist()), (fmt.max_code, fmt.overflow_threshold)]


def test_the_registry_is_the_one_of_python(ran):
    *_, response = ran
    names = {
        "exponentBits": "exponent_bits",
        "mantissaBits": "mantissa_bits",
        "bias": "bias",
        "bits": "bits",
        "flavor": "flavour",
        "hasInf": "has_inf",
        "hasNaN": "has_nan",
        "minExponent": "min_exponent",
    }
    assert list(response["registry"]) == list(FORMATS)
    for name, entry in response["registry"].items():
        assert {js: entry[js] for js in names} == {js: getattr(FORMATS[name], py) for js, py in names.items()}, name
        for js, py in {"maxCode": "max_code", "infCode": "inf_code", "nanCode": "nan_code"}.items():
            expected = getattr(FORMATS[name], py)
            assert entry[js] == (None if expected is None else str(expected)), (name, js)


@pytest.mark.parametrize("name", FORMATS)
def test_decode_and_kinds(ran, name):
    codes, tables, *_ = ran
    expected = decoded(name, codes[name])
    got = tables[name]["value"]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected) & ~np.isnan(expected))
    size = np.abs(expected)
    kinds = np.select(
        [np.isnan(expected), np.isinf(expected), size == 0, size < FORMATS[name].min_normal],
        [KINDS.index("nan"), KINDS.index("inf"), KINDS.index("zero"), KINDS.index("subnormal")],
        KINDS.index("normal"),
    )
    np.testing.assert_array_equal(tables[name]["kind"], kinds)


@pytest.mark.parametrize("name", FORMATS)
def test_encode_undoes_decode(ran, name):
    codes, tables, *_ = ran
    fmt, table = FORMATS[name], tables[name]
    number = ~np.isnan(table["value"])
    # Codes above 2^53 come back as rounded numbers, so 64-bit codes are compared with the same rounding.
    np.testing.assert_array_equal(table["again"][number], codes[name][number].astype(np.float64))
    if fmt.has_nan:
        assert (table["again"][~number] == float(fmt.nan_code)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_fields_put_together_are_the_code(ran, name):
    codes, tables, *_ = ran
    fmt, table = FORMATS[name], tables[name]
    sign, exponent, mantissa = (table[field].astype(np.uint64) for field in ("sign", "exponent", "mantissa"))
    shift = np.uint64(fmt.exponent_bits + fmt.mantissa_bits)
    np.testing.assert_array_equal((sign << shift) | (exponent << np.uint64(fmt.mantissa_bits)) | mantissa, codes[name])
    assert (table["mantissa"] < 2**fmt.mantissa_bits).all() and (table["exponent"] < 2**fmt.exponent_bits).all()


@pytest.mark.parametrize("name", SHORT)
def test_neighbors_are_the_next_values_in_the_sorted_list(ran, name):
    codes, tables, *_ = ran
    values = decoded(name, codes[name])
    line = np.unique(values[~np.isnan(values)])
    number = ~np.isnan(values)
    at = np.searchsorted(line, values[number])
    fence = np.concatenate([[np.nan], line, [np.nan]])
    np.testing.assert_array_equal(tables[name]["below"][number], fence[at])
    np.testing.assert_array_equal(tables[name]["above"][number], fence[at + 2])
    assert np.isnan(tables[name]["below"][~number]).all()


@pytest.mark.parametrize("name", NUMPY)
def test_neighbors_of_long_formats_are_those_of_nextafter(ran, name):
    _, tables, *_ = ran
    table, kind = tables[name], NUMPY[name]
    inner = np.isfinite(table["value"])
    value = table["value"][inner].astype(kind)
    with np.errstate(over="ignore", under="ignore"):  # numpy reports subnormal and infinite results
        np.testing.assert_array_equal(table["below"][inner], np.nextafter(value, kind(-np.inf)).astype(np.float64))
        np.testing.assert_array_equal(table["above"][inner], np.nextafter(value, kind(np.inf)).astype(np.float64))


@pytest.mark.parametrize("name", FORMATS)
def test_neighbors_and_ulp_are_those_of_python(ran, name):
    _, tables, *_ = ran
    table = tables[name]
    finite = np.flatnonzero(np.isfinite(table["value"]))
    expected = formats.ulp(torch.from_numpy(table["value"][finite].copy()), name).numpy()
    np.testing.assert_array_equal(table["ulp"][finite], expected)
    for index in finite[:: max(1, len(finite) // 100)]:
        pair = formats.neighbours(float(table["value"][index]), name)
        got = [None if math.isnan(table[side][index]) else table[side][index] for side in ("below", "above")]
        assert got == list(pair), (name, table["value"][index])


@pytest.mark.parametrize("name", SHORT)
def test_every_tie_goes_to_the_even_code(ran, name):
    *_, response = ran
    fmt = FORMATS[name]
    # From code to code the last bit alternates, so the even one of two neighbors is the one with an even mantissa.
    even = [code + code % 2 for code, _ in ties(name)]
    if name == "e8m0":  # 1.5 × 2^k: without a mantissa the step count 1.5 goes to 2, that is up
        even = [code + 1 for code, _ in ties(name)]
    overflow = {"ieee": fmt.inf_code, "fnuz": fmt.nan_code, "scale": fmt.nan_code}.get(fmt.flavour, fmt.max_code)
    assert response["ties"][name] == [code if code <= fmt.max_code else overflow for code in even]


def test_typed_numbers_are_rounded_once(ran):
    _, _, request, response = ran
    exact = [value_of(text) for text in request["texts"]]
    for column, (name, fmt) in enumerate(FORMATS.items()):
        nearest = torch.tensor([rounded_once(x, fmt) for x in exact], dtype=torch.float64)
        expected = formats.encode(nearest, name).numpy().view(np.uint64).tolist()
        if name == "e8m0":  # also what rounds to −0 on the way is negative
            expected = [fmt.nan_code if x < 0 else code for x, code in zip(exact, expected, strict=True)]
        got = [int(row[column]) for row in response["rounded"]]
        wrong = [(text, g, e) for text, g, e in zip(request["texts"], got, expected, strict=True) if g != e]
        assert not wrong, (name, len(wrong), wrong[:3])


def test_written_numbers(ran):
    _, _, request, response = ran
    for (name, code), written in zip(request["samples"], response["written"], strict=True):
        parts = formats.fields(int(code), name)
        if not math.isfinite(parts.value):
            assert written["formula"] is None and written["exact"] in ("NaN", "+∞", "−∞")
            continue
        exact = written["exact"].replace("−", "-")
        assert Fraction(exact) == Fraction(parts.value), (name, code)
        assert exact.startswith("-") == (math.copysign(1, parts.value) < 0)
        assert float.fromhex(written["hex"]) == parts.value
        assert "0p" not in written["hex"].removeprefix("0x").removeprefix("-0x") or parts.value == 0
        assert float(written["approximate"].replace("−", "-")) == pytest.approx(parts.value, rel=5e-5, abs=0)
        plain = written["formula"].replace("−", "-").replace(" - ", "-")
        assert plain == parts.formula, (name, code)


def test_what_cannot_be_read_is_said(ran):
    _, _, request, response = ran
    for text, answer in zip(request["errors"], response["errors"], strict=True):
        assert answer.startswith("SyntaxError: "), (text, answer)
    too_long, no_prefix, good_bits, good_binary = response["codeErrors"]
    assert "more than 16 bits" in too_long and "0x0000 to 0xffff" in no_prefix
    assert (good_bits, good_binary) == ("5", str(0x2E66))


def test_outcome_of_a_bin_is_that_of_the_values_in_it(ran):
    *_, response = ran
    for name, outcomes in response["outcomes"].items():
        fmt = FORMATS[name]
        # Just above each bin's lower end: the end itself may be a tie, and the top bin is normal as a whole.
        x = torch.tensor([math.ldexp(1 + 2**-20, k) for k in BINS], dtype=torch.float64)
        value = formats.decode(formats.encode(x, name), name)
        kinds = np.select(
            [x >= fmt.overflow_threshold, value == 0, value < fmt.min_normal],
            ["overflow", "zero", "subnormal"],
            "normal",
        )
        assert [outcomes[str(k)] for k in BINS] == kinds.tolist(), name
    assert response["shares"] == {"zero": 0.125, "subnormal": 0.125, "normal": 0.625, "overflow": 0.125}
