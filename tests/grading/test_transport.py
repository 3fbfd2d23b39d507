"""Frames that cross the wall of the sandbox, honest and forged."""

import itertools
import json
import os

import pytest
import torch

from ampedu.exercises import compare, plain
from ampedu.grading import transport

HEADER = transport.HEADER


def frame(text, binary=b""):
    body = text if isinstance(text, bytes) else json.dumps(text).encode()
    return HEADER.pack(len(body), len(binary)), body + binary


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, True, "x", (2.5, float("inf"), -0.0), {"a": [2**80, -1]}],
        {"t": torch.tensor([1.5, float("nan")]), "b": torch.tensor([[True]]), "h": torch.ones(2, dtype=torch.bfloat16)},
        [0.1, 5e-324, 1.7976931348623157e308],
    ],
)
def test_round_trip_is_exact(value):
    content = transport.pack(value)
    header, body = content[: HEADER.size], content[HEADER.size :]
    assert transport.length(header) == len(body)
    assert compare.difference(value, transport.unpack(header, body)) is None


def test_through_a_pipe():
    read, write = os.pipe()
    transport.send(write, {"x": 1})
    os.close(write)
    assert transport.receive(read) == {"x": 1}
    with pytest.raises(EOFError):
        transport.receive(read)
    os.close(read)


def test_announced_sizes_are_capped():
    for text, binary in ((transport.MAX_JSON + 1, 0), (0, transport.MAX_TENSORS + 1), (2**64 - 1, 0)):
        with pytest.raises(ValueError, match="too large"):
            transport.length(HEADER.pack(text, binary))


FORGED = {
    "no JSON": b"{",
    "NaN": b"[NaN]",
    "huge number": b"[1e999]",
    "many digits": b"[" + b"9" * 5000 + b"]",
    "same key twice": b'{"a": 1, "a": 2}',
    "deep": b"[" * 100_000,
    "tensor that is not there": b'{"tensor": "t0"}',
    "odd float": b'{"float": "1e5"}',
    "wide int": b'{"int": "0x' + b"f" * 2000 + b'"}',
    "not UTF-8": b'"\xff"',
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_json_is_a_value_error(name):
    with pytest.raises(ValueError):
        transport.unpack(*frame(FORGED[name]))


@pytest.mark.parametrize("entry", [
    {"dtype": "O", "shape": [1], "data_offsets": [0, 8]},
    {"dtype": "F32", "shape": [2**20] * 6, "data_offsets": [0, 0]},
    {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**62]},
    {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [2**40, 0], "data_offsets": [0, 0]},
])  # fmt: skip
def test_forged_tensors_are_a_value_error(entry):
    header = json.dumps({"t0": entry}).encode()
    binary = len(header).to_bytes(8, "little") + header + bytes(4)
    with pytest.raises(ValueError):
        transport.unpack(*frame({"tensor": "t0"}, binary))


def test_no_empty_tensor_is_frozen_that_cannot_be_read():
    sent = refused = 0
    for shape in itertools.product((0, 3, 2**11, 2**22, 2**40), repeat=3):
        if 0 not in shape:
            continue
        try:
            value = torch.empty(shape, dtype=torch.float16)
            value = plain.freeze(value)
        except (plain.NotPlain, RuntimeError):  # RuntimeError: no tensor has such a shape
            refused += 1
            continue
        content = transport.pack(value)
        assert transport.unpack(content[: HEADER.size], content[HEADER.size :]).shape == shape
        sent += 1
    assert sent > 10 and refused > 10


@pytest.mark.parametrize("value", [["x" * 60_000] * 100, torch.zeros(plain.MAX_ELEMENTS, dtype=torch.float64)])
def test_what_is_too_large_is_refused_by_the_sender(tmp_path, value):
    path = tmp_path / "sent"
    with open(path, "wb") as file:
        send = transport.Sender(file.fileno())
        for _ in range(4):
            send({"outcome": {"value": value}})
    content, outcomes = path.read_bytes(), []
    assert len(content) < transport.MAX_UNIT
    while content:
        header, content = content[: HEADER.size], content[HEADER.size :]
        size = transport.length(header)  # raises past the caps
        outcomes.append(transport.unpack(header, content[:size])["outcome"])
        content = content[size:]
    assert len(outcomes) == 4 and "unsupported" in outcomes[-1]
