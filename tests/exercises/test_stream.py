import hashlib
import hmac
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampedu.exercises.stream import Stream


def block(label, secret=b"public"):
    return int.from_bytes(hmac.new(secret, label.encode(), hashlib.sha256).digest(), "big")


def test_bits_are_the_leading_bits_of_the_hash():
    stream = Stream(b"public", "01.decode")
    assert stream.bits(8) == block("01.decode/0") >> 248
    assert stream.bits(256) == block("01.decode/1")
    assert stream.bits(300) == ((block("01.decode/2") << 256) | block("01.decode/2#1")) >> 212


def test_known_vectors():
    # Computed once with `printf … | openssl dgst -sha256 -hmac public`.
    first = hmac.new(b"public", b"01.decode/0", hashlib.sha256).hexdigest()
    assert f"{Stream(b'public', '01.decode').bits(256):064x}" == first
    low, high = 3, 12
    assert Stream(b"public", "x").integer(low, high) == low + block("x/0") % 10
    case = Stream(b"public", "x").at(4)
    assert case.name == "x/4" and case.integer(0, 999) == block("x/4/0") % 1000


def test_dyadic_by_hand():
    exponent, mantissa = -3 + block("d/0") % 7, block("d/1") >> 246
    sign = -1 if block("d/2") >> 255 else 1
    assert Stream(b"public", "d").dyadic(-3, 3) == sign * (1024 + mantissa) / 1024 * 2.0**exponent


@given(st.integers(-(10**40), 10**40), st.integers(0, 10**40), st.text(max_size=8))
def test_integer_stays_in_range_and_repeats(low, span, name):
    draws = [Stream(b"s", name).integer(low, low + span) for _ in range(2)]
    assert draws[0] == draws[1] and low <= draws[0] <= low + span


@given(st.binary(min_size=1, max_size=8), st.binary(min_size=1, max_size=8))
def test_secrets_give_different_streams(a, b):
    same = Stream(a, "x").bits(128) == Stream(b, "x").bits(128)
    # HMAC pads short keys with zero bytes.
    assert same == (a.rstrip(b"\0") == b.rstrip(b"\0"))


@given(st.integers(0, 600), st.integers(0, 600))
def test_a_draw_depends_on_its_index_alone(first, other):
    streams = [Stream(b"s", "x"), Stream(b"s", "x")]
    streams[0].bits(first)
    streams[1].dyadic(0, 0, mantissa_bits=0, signed=False)  # two draws
    streams[0].integer(0, other)
    assert streams[0].bits(64) == streams[1].bits(64)


def test_cases_do_not_depend_on_their_order():
    stream = Stream(b"s", "x")
    forward = [stream.at(i).integers(0, 99, 3) for i in range(5)]
    backward = [stream.at(i).integers(0, 99, 3) for i in reversed(range(5))]
    assert forward == backward[::-1]


@given(st.integers(-20, 20), st.integers(0, 10), st.integers(0, 20))
def test_dyadic_is_on_its_grid(low, span, mantissa_bits):
    x = Stream(b"s", f"{low}").dyadic(low, low + span, mantissa_bits)
    assert 2.0**low <= abs(x) < 2.0 ** (low + span + 1)
    assert (x / 2.0 ** (low - mantissa_bits)).is_integer()


def test_integers_are_uniform():
    counts = Counter(Stream(b"s", "uniform").integers(1, 6, 3000))
    assert set(counts) == set(range(1, 7))
    # Five standard deviations of a binomial with n = 3000, p = 1/6.
    assert all(abs(n - 500) < 5 * 20.4 for n in counts.values())


def test_tensor_choice_sample():
    stream = Stream(b"s", "x")
    tensor = stream.tensor((2, 3), -4, 4)
    assert tensor.dtype == torch.float32 and tensor.shape == (2, 3)
    assert torch.equal(tensor, tensor.half().float()), "ten mantissa bits fit float16"
    assert stream.tensor(3, 0, 0).shape == (3,) and stream.tensor((0,), 0, 0).shape == (0,)
    assert stream.choice("abc") in "abc"
    assert sorted(stream.sample(range(10), 10)) == list(range(10))


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.integer(2, 1),
        lambda s: s.bits(-1),
        lambda s: s.choice([]),
        lambda s: s.sample([1], 2),
        lambda s: s.dyadic(3, 2),
        lambda s: s.dyadic(0, 2000),
        lambda s: s.dyadic(0, 1, 53),
        lambda s: s.tensor((2,), 0, 128),
        lambda s: Stream("public", "x"),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ValueError, match=r"\w"):
        call(Stream(b"s", "x"))
