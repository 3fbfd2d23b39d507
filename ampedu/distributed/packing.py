"""Arguments and results as JSON files: exact bits, and no pickle that could run code."""

import base64
import os
from pathlib import Path

import torch

from ampedu.exercises import plain
from ampedu.exercises.plain import NotPlain

__all__ = ["NotPlain", "pack", "unpack", "write"]


def pack(value) -> str:
    """Plain data as JSON text; a tensor is its dtype, its shape and its bytes.

    NotPlain: the value holds something else than None, bool, int, float, str, list, tuple, dict or CPU tensors.
    """
    tensors: dict = {}
    node = plain.to_json(plain.freeze(value), tensors)
    return plain.json.dumps({"value": node, "tensors": {name: _coded(t) for name, t in tensors.items()}})


def unpack(text: str):
    """The plain data of JSON text that `pack` made."""
    both = plain.parse(text)
    return plain.from_json(both["value"], {name: _tensor(*coded) for name, coded in both["tensors"].items()})


def _coded(tensor):
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), base64.b64encode(raw).decode("ascii")]


def _tensor(dtype, shape, coded):
    raw = bytearray(base64.b64decode(coded))
    flat = torch.frombuffer(raw, dtype=getattr(torch, dtype)) if raw else torch.empty(0, dtype=getattr(torch, dtype))
    return flat.reshape(shape)


def write(path: Path, text: str) -> None:
    """Write a text file so that a reader sees all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
