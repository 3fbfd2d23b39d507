"""Which call in Python code led to an operation: found from the running frames, so that nothing has to be wrapped."""

import ast
import functools
import linecache
import sys
import textwrap
from itertools import islice

import torch

EXPLICIT = frozenset(("to", "float", "half", "bfloat16", "double", "type", "type_as", "astype"))
# Between the call and the recorder: torch's modes, a default device, and the kernels of cuda_policy_on_cpu.
BETWEEN = ("/torch/utils/_python_dispatch.py", "/torch/_ops.py", "/torch/_compile.py", "/torch/_dynamo/")
BETWEEN += (
    "/torch/utils/_device.py",
    "/torch/overrides.py",
    "/torch/library.py",
    "/torch/_library/",
    "/ampedu/policy/on_cpu.py",
    "/ampedu/trace/",
)


def caller():
    """The frame whose call is being carried out; None if there is no Python below."""
    frame = sys._getframe(1)
    while frame is not None and any(part in _path(frame.f_code.co_filename) for part in BETWEEN):
        frame = frame.f_back
    return frame


@functools.lru_cache(maxsize=4096)
def _path(filename: str) -> str:
    return filename.replace("\\", "/")


@functools.lru_cache(maxsize=4096)
def called(code, instruction: int) -> str:
    """Name of the function that `code` calls at a byte offset; "" for an operator, or if the source is not there."""
    line, end_line, column, end_column = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if None in (line, end_line, column, end_column):
        return ""
    lines = [linecache.getline(code.co_filename, number) for number in range(line, end_line + 1)]
    if not all(lines):
        return ""
    # Columns count bytes of UTF-8.
    lines = [text.encode() for text in lines]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    try:
        call = ast.parse(textwrap.dedent(b"".join(lines).decode()), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(call, ast.Call):
        return ""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_operation(name: str) -> bool:
    """Whether torch has an operation of this name; a variable that holds a function has not."""
    return bool(name) and hasattr(torch.ops.aten, name)
