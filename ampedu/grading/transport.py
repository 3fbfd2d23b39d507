"""What crosses the wall of the sandbox: frames of JSON and safetensors, and nothing that has to be unpickled.

A frame is two little-endian 64-bit lengths, JSON text (plain.to_json), and a safetensors file with its tensors. Used on
both sides; only `unpack` meets untrusted bytes.
"""

import json
import os
import struct

from ampedu.exercises import plain
from ampedu.exercises.tensorfile import read_tensors

HEADER = struct.Struct("<QQ")
MAX_JSON, MAX_TENSORS = 4 << 20, 40 << 20  # plain.MAX_ELEMENTS float64 numbers take 32 MiB
MAX_UNIT = 96 << 20  # what the judge reads of one unit
MAX_SENT = 80 << 20  # what a worker sends of values, so that there is room for the rest


def pack(value) -> bytes:
    """A frame that holds plain data. Needs the safetensors library."""
    from safetensors.torch import save

    tensors = {}
    text = json.dumps(plain.to_json(plain.freeze(value), tensors), allow_nan=False).encode()
    binary = save(tensors) if tensors else b""
    return HEADER.pack(len(text), len(binary)) + text + binary


def length(header: bytes) -> int:
    """How many bytes follow this header. Raises ValueError past the caps."""
    text, binary = HEADER.unpack(header)
    if text > MAX_JSON or binary > MAX_TENSORS:
        raise ValueError("a frame is too large")
    return text + binary


def unpack(header: bytes, body: bytes):
    """The plain data of a frame. Raises ValueError, saying what is wrong, for anything malformed."""
    text, _ = HEADER.unpack(header)
    try:
        tensors = read_tensors(body[text:]) if len(body) > text else {}
    except RuntimeError as error:  # a shape without elements whose strides do not fit into 64 bits
        raise ValueError(f"a tensor is malformed: {error}") from None
    return plain.from_json(plain.parse(body[:text]), tensors)


def send(fd: int, value) -> None:
    """Write one frame to a file descriptor."""
    _write(fd, pack(value))


class Sender:
    """Writes the frames of one unit, and a refusal in place of an outcome that the judge would not read to its end."""

    def __init__(self, fd: int):
        self.fd, self.left = fd, MAX_SENT

    def __call__(self, value) -> None:
        """Write one frame."""
        content = pack(value)
        text, binary = HEADER.unpack(content[: HEADER.size])
        if text > MAX_JSON or binary > MAX_TENSORS or len(content) > self.left:
            content = pack({"outcome": {"unsupported": "the value, or all values together, are too large"}})
        self.left = max(0, self.left - len(content))
        _write(self.fd, content)


def _write(fd, content):
    content = memoryview(content)
    while content:
        content = content[os.write(fd, content) :]


def receive(fd: int):
    """Read one frame that is known to be whole and honest, such as a job."""
    header = _exactly(fd, HEADER.size)
    return unpack(header, _exactly(fd, sum(HEADER.unpack(header))))


def _exactly(fd, count):
    parts = []
    while count:
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise EOFError("the frame ends too early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
