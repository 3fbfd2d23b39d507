"""round_to, nearest and toward zero: against torch, ml_dtypes and exact arithmetic, on millions of bit patterns."""

import math

import numpy as np
import pytest
import torch

from ampedu import _rounding
from ampedu.formats import FORMATS, MODES, FloatFormat, decode, encode, round_to
from tests.unit.peers import NUMPY
from tests.unit.round_oracle import round_fraction, top

TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
NARROW = [name for name in FORMATS if name not in ("fp64", "fp32")]
TORCH_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


@pytest.fixture(scope="module")
def patterns():
    """Two million random float32 bit patterns, a third NaN-free by nature, and the edges of float32."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2_000_000,), generator=generator).to(torch.int32)
    edges = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-149), 2.0**-126, 3.4028235e38])
    return torch.cat([bits.view(torch.float32), edges])


def inputs(patterns, name):
    return patterns if FORMATS[name].has_nan else patterns[~patterns.isnan()]


def differ(a, b):
    """Where float32 tensors a and b differ, signs of zero included; NaN equals NaN."""
    return ~(((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan()))


def ties(name):
    """Every midpoint of two consecutive magnitudes (at most 40 000), with the value that ties-to-even gives it."""
    f = FORMATS[name]
    codes = torch.arange(f.max_code)
    if f.max_code > 40_000:
        codes = torch.cat([codes[:: f.max_code // 38_000], codes[:1000], codes[-1000:]])
    low, high = decode(codes, f), decode(codes + 1, f)
    middle = (low + high) / 2
    assert torch.equal(middle.float().double(), middle)
    even = torch.where(codes % 2 == 0, low, high)
    return middle.float(), even.float()


@pytest.mark.parametrize("name", NUMPY)
def test_nearest_on_random_bit_patterns_as_numpy_and_ml_dtypes(patterns, name):
    x = inputs(patterns, name)
    with np.errstate(all="ignore"):
        peer = torch.from_numpy(x.numpy().astype(NUMPY[name]).astype(np.float32))
    ours = round_to(x, name)
    bad = differ(ours, peer)
    if name == "e4m3fn":
        # ml_dtypes gives NaN beyond 464 and for infinity where we saturate.
        assert torch.equal(bad, (x.abs() > 464) & ~x.isnan())
        assert peer[bad].isnan().all() and (ours[bad].abs() == 448).all()
        assert not differ(round_to(x, name, overflow="inf"), peer).any()
    elif name == "e8m0":
        # ml_dtypes gives NaN for zero, and takes all between 2^-127 and 2^-126 up, where float32 is subnormal.
        below = (x > 2.0**-127) & (x < 1.5 * 2.0**-127)
        assert torch.equal(bad, below | (x == 0)) and below.sum() > 100
        assert (ours[bad] == 2.0**-127).all()
    else:
        assert not bad.any()


@pytest.mark.parametrize("name", TORCH)
def test_nearest_on_random_bit_patterns_as_torch_casts(patterns, name):
    peer = patterns.to(TORCH[name]).float()
    if name == "e4m3fn" and TORCH_VERSION < (2, 12):
        # Before 2.12 torch gave NaN beyond 464.
        assert not differ(round_to(patterns, name, overflow="inf"), peer).any()
    else:
        assert not differ(round_to(patterns, name), peer).any()


def test_torch_e8m0_drops_the_sign():
    x = torch.tensor([-1.0, -3.0, 0.0, 3.0, 2.5, 1.5 * 2.0**127, math.inf])
    peer = x.to(torch.float8_e8m0fnu).float()
    ours = round_to(x, "e8m0")
    assert peer[:2].tolist() == [1.0, 4.0] and ours[:2].isnan().all()
    assert not differ(ours[2:], peer[2:]).any()


@pytest.mark.parametrize("mode", ["nearest", "toward_zero"])
@pytest.mark.parametrize("name", NARROW)
def test_random_bit_patterns_in_float64_arithmetic(patterns, name, mode):
    """The third opinion, and the only one for tf32: x / step is exact in float64, np.rint and np.trunc round it."""
    f = FORMATS[name]
    x = inputs(patterns, name)[:500_000].double().numpy()
    low = f.bias * -1 if name == "e8m0" else 1 - f.bias
    biggest = float(top(f.exponent_bits, f.mantissa_bits, f.bias, f.flavour))
    a = np.maximum(np.abs(x), 2.0**low) if name == "e8m0" else np.abs(x)
    finite = np.isfinite(a)
    with np.errstate(all="ignore"):
        step = 2.0 ** (np.maximum(np.frexp(np.where(finite, a, 1.0))[1] - 1, low) - f.mantissa_bits)
        r = (np.rint if mode == "nearest" else np.trunc)(a / step) * step
    if mode == "toward_zero":
        r = np.where(finite, np.minimum(r, biggest), r)
    over = {"ieee": np.inf, "fn": biggest, "finite": biggest, "fnuz": np.nan, "scale": np.nan}[f.flavour]
    r = np.where(r > biggest, over, r)
    r = np.where(x < 0, np.nan, r) if name == "e8m0" else np.copysign(r, x)
    r = r + 0.0 if f.flavour == "fnuz" else r
    assert not differ(round_to(torch.from_numpy(x).float(), name, mode), torch.from_numpy(r).float()).any()


@pytest.mark.parametrize("mode", ["nearest", "toward_zero"])
@pytest.mark.parametrize("name", NARROW)
def test_random_bit_patterns_in_fractions(patterns, name, mode):
    f = FORMATS[name]
    x = inputs(patterns, name)[-1000:]
    exact = [round_fraction(v, f.exponent_bits, f.mantissa_bits, f.bias, f.flavour, mode) for v in x.tolist()]
    assert not differ(round_to(x, name, mode), torch.tensor(exact, dtype=torch.float32)).any()


@pytest.mark.parametrize("name", [n for n in NARROW if n != "e8m0"])
def test_ties_go_to_the_even_code(name):
    middle, even = ties(name)
    assert not differ(round_to(middle, name), even).any()
    if FORMATS[name].flavour != "fnuz":
        assert not differ(round_to(-middle, name), -even).any()
    assert torch.equal(decode(encode(middle, name), name).float(), even)
    # Next to a tie there is none: one float32 step decides.
    down, up = torch.nextafter(middle, torch.tensor(0.0)), torch.nextafter(middle, torch.tensor(math.inf))
    f = FORMATS[name]
    for probe in (down, up):
        assert torch.equal(round_to(probe, name).double(), decode(encode(probe, name), f))
    assert (round_to(up, name) > round_to(down, name)).all()


def test_e8m0_ties_go_up():
    k = torch.arange(-126, 127).double()
    assert torch.equal(round_to((1.5 * 2.0**k).float(), "e8m0"), (2.0 ** (k + 1)).float())


@pytest.mark.parametrize("name", NARROW)
def test_every_value_of_the_format_stays(name):
    f = FORMATS[name]
    values = decode(torch.arange(2**f.bits), f).float()
    values = values if f.has_nan else values[~values.isnan()]
    for mode in MODES:
        for overflow in (None, "saturate"):
            kept = values[values.isfinite()] if overflow or not f.has_inf else values
            assert not differ(round_to(kept, name, mode, overflow), kept).any()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("mode", MODES)
def test_overflow_rules(name, mode):
    f = FORMATS[name]
    biggest = torch.tensor(f.max)
    big = torch.tensor([f.overflow_threshold * 1.25 if f.max < 1e38 else math.inf, math.inf])
    big = torch.cat([big, -big]) if f.signed else big
    special = {"ieee": math.inf, "fn": f.max, "finite": f.max, "fnuz": math.nan, "scale": math.nan}[f.flavour]

    def expected(value):
        result = torch.copysign(torch.full_like(big, value), big)
        # Toward zero, only infinity overflows.
        return torch.where(big.isinf() | (mode != "toward_zero"), result, torch.copysign(biggest, big))

    assert not differ(round_to(big, name, mode), expected(special)).any()
    assert not differ(round_to(big, name, mode, "saturate"), expected(f.max)).any()
    if f.has_nan:
        assert not differ(round_to(big, name, mode, "inf"), expected(math.inf if f.has_inf else math.nan)).any()
    else:
        with pytest.raises(ValueError, match=f"{name} has neither infinity nor NaN to show an overflow"):
            round_to(torch.ones(1), name, mode, "inf")


@pytest.mark.parametrize(
    ("name", "edge", "at", "below"),
    [
        ("fp16", 65520.0, math.inf, 65504.0),
        ("e5m2", 61440.0, math.inf, 57344.0),
        ("e4m3fn", 464.0, 448.0, 448.0),
        ("e4m3fnuz", 248.0, math.nan, 240.0),
        ("e5m2fnuz", 61440.0, math.nan, 57344.0),
        ("e3m4", 15.75, math.inf, 15.5),
        ("e2m1", 7.0, 6.0, 6.0),
        ("bf16", 3.39617752923046e38, math.inf, 3.3895313892515355e38),
        ("tf32", 3.401992901712019e38, math.inf, 3.4011621342146535e38),
        ("e8m0", 1.5 * 2.0**127, math.nan, 2.0**127),
    ],
)
def test_the_overflow_edge(name, edge, at, below):
    x = torch.tensor([edge, math.nextafter(edge, 0)])
    x[1] = torch.nextafter(x[0], torch.tensor(0.0))
    assert not differ(round_to(x, name), torch.tensor([at, below])).any()
    if name == "e4m3fn":
        over = torch.nextafter(x[:1], torch.tensor(math.inf))
        assert round_to(over, name, overflow="inf").isnan().all() and round_to(x[:1], name, overflow="inf") == 448


@pytest.mark.parametrize("mode", MODES)
def test_signed_zero_and_tiny_numbers(mode):
    x = torch.tensor([0.0, -0.0, 2.0**-149, -(2.0**-149)])
    for name in NARROW:
        if name != "e8m0":
            y = round_to(x, name, mode)
            assert (y == 0).all()
            assert y.signbit().tolist() == ([False] * 4 if "fnuz" in name else [False, True, False, True])
    assert (round_to(x[:2], "e8m0", mode) == 2.0**-127).all()
    assert round_to(x[3:], "e8m0", mode).isnan().all()


@pytest.mark.parametrize("mode", MODES)
def test_nan(mode):
    x = torch.tensor([1.0, math.nan, -math.nan])
    x = torch.cat([x, torch.tensor([0x7F800001, -1, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)])
    for name in FORMATS:
        if FORMATS[name].has_nan:
            for overflow in (None, "inf", "saturate"):
                assert round_to(x, name, mode, overflow).isnan().tolist() == [False] + [True] * 5
        else:
            with pytest.raises(ValueError, match=f"{name} has no code for NaN: replace NaN first"):
                round_to(x, name, mode)


def test_the_cheap_test_for_nan_is_not_fooled_by_infinite_sums():
    wide = FloatFormat("wide", 8, 3, 128, "finite")
    x = torch.tensor([wide.max, wide.max, -wide.max, -wide.max]).repeat(100_000)
    assert torch.equal(round_to(x, wide), x)
    x[-1] = math.nan
    with pytest.raises(ValueError, match="wide has no code for NaN"):
        round_to(x, wide)


@pytest.mark.parametrize("mode", MODES)
def test_fp32_and_fp64_copy(patterns, mode):
    x = patterns[:1000]
    for name in ("fp32", "fp64"):
        y = round_to(x, name, mode)
        assert not differ(y, x).any() and y.data_ptr() != x.data_ptr()
    assert round_to(torch.tensor([-math.inf]), "fp64", mode, "saturate").item() == -torch.finfo(torch.float32).max


@pytest.mark.parametrize("mode", ["nearest", "toward_zero"])
@pytest.mark.parametrize("name", ["fp16", "tf32", "e4m3fn", "e4m3fnuz", "e2m1", "e8m0"])
def test_shapes_strides_blocks_and_untouched_inputs(name, mode):
    x = torch.linspace(-9, 9, 2 * _rounding.BLOCK + 8)
    before = x.clone()
    whole = round_to(x, name, mode)
    assert torch.equal(x, before)
    cut = torch.cat([round_to(part, name, mode) for part in x.split(9973)])
    assert not differ(whole, cut).any()
    grid = x.view(2, -1, 2)
    for view in (grid.transpose(0, 2), grid[:, ::3], grid[1, 5, 1], grid[:0], x.expand(2, -1)):
        y = round_to(view, name, mode)
        assert y.shape == view.shape
        assert not differ(y, round_to(view.clone(memory_format=torch.contiguous_format), name, mode)).any()
    assert not differ(round_to(grid.transpose(0, 2), name, mode), whole.view(grid.shape).transpose(0, 2)).any()
    assert torch.equal(x, before)


def test_both_arithmetics_agree(patterns, monkeypatch):
    narrow = [n for n in NARROW if n not in ("bf16", "fp16", "tf32", "e8m0")]
    results = {(n, m): round_to(inputs(patterns, n)[-200_000:], n, m) for n in narrow for m in MODES[::2]}
    monkeypatch.setattr(_rounding, "fits_float32", lambda target: False)
    for (n, m), result in results.items():
        assert not differ(round_to(inputs(patterns, n)[-200_000:], n, m), result).any()


def test_straight_through_gradient():
    x = torch.tensor([0.3, -7.7, 1e6, -0.0], requires_grad=True)
    weight = torch.tensor([1.0, -2.0, 3.0, 0.5])
    y = round_to(x, "e4m3fn", straight_through=True)
    assert y.tolist() == round_to(x.detach(), "e4m3fn").tolist() and y.requires_grad
    (y * weight).sum().backward()
    assert torch.equal(x.grad, weight)
    assert not round_to(x, "e4m3fn").requires_grad
    stochastic = round_to(x, "fp16", "stochastic", straight_through=True)
    (gradient,) = torch.autograd.grad(stochastic.sum(), x)
    assert torch.equal(gradient, torch.ones(4))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: round_to(0.1, "fp16"), TypeError, "round_to takes a float32 tensor, got float"),
        (
            lambda: round_to(torch.ones(2).double(), "fp16"),
            TypeError,
            "got a torch.float64 tensor: use x.float() where",
        ),
        (lambda: round_to(torch.ones(2).half(), "fp16"), TypeError, "got a torch.float16 tensor"),
        (lambda: round_to(torch.ones(2).int(), "fp16"), TypeError, "got a torch.int32 tensor"),
        (lambda: round_to(torch.ones(2), "fp17"), ValueError, "unknown format 'fp17'"),
        (
            lambda: round_to(torch.ones(2), "fp16", "up"),
            ValueError,
            "mode must be one of nearest, stochastic, toward_zero",
        ),
        (
            lambda: round_to(torch.ones(2), "fp16", overflow="nan"),
            ValueError,
            'overflow must be None, "inf" or "saturate"',
        ),
        (
            lambda: round_to(torch.ones(2), FloatFormat("wide", 9, 10)),
            ValueError,
            "float32, whose range or precision is",
        ),
        (lambda: round_to(torch.ones(2), FloatFormat("fine", 5, 30)), ValueError, "use decode(encode(x, fmt), fmt)"),
        (lambda: round_to(torch.ones(2), FloatFormat("low", 4, 0, 140, "scale")), ValueError, "is too small for low"),
    ],
)
def test_failures_say_what_is_wrong(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
