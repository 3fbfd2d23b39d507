"""A strict reader of safetensors bytes (format.

8-byte length, JSON header, data), for programs without the safetensors library.
"""

import torch

from ampedu.exercises.plain import DTYPES, MAX_DIMS, MAX_ELEMENTS, MAX_TENSORS, parse

MAX_HEADER = 1 << 20


def read_tensors(content: bytes) -> dict[str, torch.Tensor]:
    """The named tensors of a safetensors file.

    Raises ValueError, saying what is wrong, for anything but a well-formed file.

    Offsets must tile the data without gap, overlap or rest; dtypes must be in plain.DTYPES; sizes are capped.
    """
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(MAX_HEADER, len(content) - 8):
        raise ValueError("the header length of the tensor file does not fit the file")
    header, body = parse(content[8 : 8 + size]), content[8 + size :]
    if type(header) is not dict or len(header) > MAX_TENSORS + 1:
        raise ValueError("the header of the tensor file is not an object of at most 4096 tensors")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    tensors, spans = {}, []
    for name, entry in entries.items():
        tensors[name], span = _read_one(name, entry, body)
        spans.append(span)
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            raise ValueError("the tensors in the tensor file overlap or leave a gap")
        end = stop
    if end != len(body):
        raise ValueError("the tensor file has bytes that belong to no tensor")
    return tensors


def _read_one(name, entry, body):
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of tensor {name!r:.40} is malformed")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(dtype) is not str or dtype not in DTYPES:
        raise ValueError(f"tensor {name!r:.40} has the dtype {dtype!r:.20}, which is not allowed")
    numbers = type(shape) is list and type(offsets) is list and all(type(n) is int and n >= 0 for n in shape + offsets)
    if not numbers or len(offsets) != 2 or len(shape) > MAX_DIMS:
        raise ValueError(f"tensor {name!r:.40} has a malformed shape or offsets")
    count = 1
    for n in shape:
        count *= n
        if n > MAX_ELEMENTS or count > MAX_ELEMENTS:
            raise ValueError(f"tensor {name!r:.40} is too large")
    start, stop = offsets
    width = DTYPES[dtype].itemsize
    if not 0 <= start <= stop <= len(body) or stop - start != count * width:
        raise ValueError(f"tensor {name!r:.40}: the byte count does not match dtype and shape")
    data = bytearray(body[start:stop])
    if dtype == "BOOL" and any(byte > 1 for byte in data):
        raise ValueError(f"tensor {name!r:.40} has a bool that is neither 0 nor 1")
    flat = torch.frombuffer(data, dtype=DTYPES[dtype]) if count else torch.empty(0, dtype=DTYPES[dtype])
    return flat.clone().reshape(shape), (start, stop)
