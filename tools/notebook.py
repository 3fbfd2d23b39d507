"""Notebooks as plain dictionaries, written byte for byte as nbformat writes them (whose import is slow)."""

import copy
import json
import os
import tempfile
from pathlib import Path

NOT_SPLIT = ("application/javascript", "image/svg+xml")


def load(path: Path) -> dict:
    """Read a notebook; multi-line strings are joined. Raises ValueError when the file is not a notebook."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ValueError("not a notebook")
    for cell in notebook["cells"]:
        cell["source"] = _join(cell.get("source", ""))
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _join(output["text"])
            for mime, value in output.get("data", {}).items():
                if not mime.endswith("json"):
                    output["data"][mime] = _join(value)
    return notebook


def dumps(notebook: dict) -> str:
    """The notebook as text, long strings as lists of lines, keys sorted."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        cell["source"] = cell["source"].splitlines(True)
        for output in cell.get("outputs", []):
            if isinstance(output.get("text"), str):
                output["text"] = output["text"].splitlines(True)
            for mime, value in output.get("data", {}).items():
                if isinstance(value, str) and (mime.startswith("text/") or mime in NOT_SPLIT):
                    output["data"][mime] = value.splitlines(True)
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False, separators=(",", ": ")) + "\n"


def write_text(path: Path, text: str) -> bool:
    """Write `text` in one step, only if it differs. Returns whether the file changed."""
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> bool:
    """Like `write_text`, for bytes."""
    if path.exists() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".building-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.chmod(temporary, 0o644)  # mkstemp gives 0600, which git would not mind but other users of the checkout would
    os.replace(temporary, path)
    return True


def _join(value):
    return "".join(value) if isinstance(value, list) else value
