"""A submitted notebook as plain JSON: opened so that no file can hang or redirect us, read up to a size.

Nothing but the kind and the source of cells is looked at: metadata, ids, outputs and the number of cells change with
every editor, and a student can write them.
"""

import errno
import json
import os
import stat
from typing import NamedTuple

MAX_BYTES, MAX_CELLS, MAX_CELL, MAX_CODE = 20 << 20, 10_000, 1 << 18, 2 << 20
BROKEN = "The file is damaged: it is not valid JSON ({}). Open the notebook, save it, and hand it in again."


class Unreadable(ValueError):
    """A submission that cannot be graded; the text says why and what to do, in words for the student."""


class Cell(NamedTuple):
    """kind: "code", "markdown" or "raw". source: the text."""

    kind: str
    source: str


class Notebook(NamedTuple):
    """The cells in order, and remarks about cells that had to be left out."""

    cells: list[Cell]
    notes: list[str]


def read_file(path) -> bytes:
    """The bytes of a submitted file. Raises Unreadable for links, pipes, devices, folders, and past 20 MiB."""
    try:
        # O_NONBLOCK: opening a FIFO waits for a writer otherwise.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise Unreadable("This is a link to another file. Hand in the notebook itself.") from None
        raise Unreadable(f"The file cannot be opened ({error.strerror}).") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Unreadable("This is not a regular file. Hand in the notebook itself.")
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > MAX_BYTES:
            raise Unreadable(too_large())
        return capped(file)


def capped(file) -> bytes:
    """The bytes of an open binary file, whatever size it claims. Raises Unreadable past 20 MiB."""
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise Unreadable(too_large())
    return content


def too_large() -> str:
    """The sentence for a file past the cap."""
    return f"The file has more than {MAX_BYTES >> 20} MiB. Clear the outputs of the notebook and hand it in again."


def parse(content: bytes) -> Notebook:
    """The notebook in these bytes: any nbformat 4, with or without BOM. Raises Unreadable."""
    if not content.strip():
        raise Unreadable("The file is empty. Save the notebook and hand it in again.")
    try:
        node = json.loads(content.decode("utf-8-sig", errors="replace"), parse_int=_integer)
    except RecursionError:
        raise Unreadable(BROKEN.format("it is nested too deeply")) from None
    except (ValueError, MemoryError) as error:
        raise Unreadable(BROKEN.format(str(error)[:80])) from None
    if type(node) is not dict or type(node.get("cells")) is not list:
        raise Unreadable(_not_a_notebook(node))
    if type(node.get("nbformat", 4)) is int and node.get("nbformat", 4) < 4:
        raise Unreadable("The notebook has an old format. Open it in Jupyter, save it, and hand it in again.")
    cells, skipped, left = [], 0, MAX_CODE
    for item in node["cells"][:MAX_CELLS]:
        cell = _cell(item)
        if cell is None or len(cell.source) > min(MAX_CELL, left):
            skipped += 1
            continue
        left -= len(cell.source) if cell.kind == "code" else 0
        cells.append(cell)
    skipped += max(0, len(node["cells"]) - MAX_CELLS)
    return Notebook(cells, [f"{skipped} cells were too long or damaged and were not read."] if skipped else [])


def _integer(text):
    return int(text) if len(text) <= 20 else 0


def _not_a_notebook(node):
    if type(node) is dict and "worksheets" in node:
        return "The notebook has an old format. Open it in Jupyter, save it, and hand it in again."
    return "This is not a notebook: it has no list of cells. Hand in the .ipynb file of the lab."


def _cell(item):
    if type(item) is not dict or item.get("cell_type") not in ("code", "markdown", "raw"):
        return None
    source = item.get("source", "")
    if type(source) is list and all(type(line) is str for line in source):
        source = "".join(source)
    if type(source) is not str:
        return None
    return Cell(item["cell_type"], source.encode("utf-8", "replace").decode())  # a lone surrogate is no code
