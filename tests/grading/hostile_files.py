"""Files that are no good notebooks, or only look bad: damaged, dangerous to open, badly named, changed by an editor.

The second half must keep its points: what an editor did to a notebook is not the student's fault.
"""

import json
import os

from .hostile_kit import BLANK, DECODE, MOST, SOLUTION, Hostile, content, ipynb, notebook_of, right

_GOOD = right("01.decode")
_WHOLE = json.loads(SOLUTION.read_bytes())


def _changed(change):
    """The solution with every cell changed by a function that returns a list of cells."""
    cells = [new for cell in json.loads(SOLUTION.read_bytes())["cells"] for new in change(cell)]
    return content(json.dumps({**_WHOLE, "cells": cells}).encode())


def _sparse(path):
    with open(path, "wb") as file:
        file.truncate(300 << 20)


def _bare(cell):
    return [{"cell_type": cell["cell_type"], "source": "".join(cell["source"])}]


def _renamed(cell):
    return [{**cell, "id": "same", "metadata": {"tags": ["x"], "nbgrader": {"grade": True, "points": 99}}}]


_UNREADABLE = [
    ("a link to the solution", lambda path: path.symlink_to(SOLUTION), "link"),
    ("a link to /etc/shadow", lambda path: path.symlink_to("/etc/shadow"), "link"),
    ("a link to itself", lambda path: path.symlink_to(path.name), "link"),
    ("a FIFO", lambda path: os.mkfifo(path), "regular file"),
    ("a folder", lambda path: path.mkdir(), "regular file"),
    ("a sparse file of 300 MiB", _sparse, "20 MiB"),
    ("an empty file", content(b""), "empty"),
    ("truncated JSON", content(SOLUTION.read_bytes()[:5000]), "damaged"),
    ("deep JSON", content(b"[" * 1_000_000), "damaged"),
    ("deep JSON in the metadata", content(b'{"metadata": ' + b'{"a":' * 100_000), "damaged"),
    ("a list", content(b"[1, 2]"), "not a notebook"),
    ("binary noise", content(bytes(range(256)) * 100), "damaged"),
    ("an old format", content(json.dumps({"worksheets": [], "nbformat": 3}).encode()), "old format"),
    ("cells that are no list", content(b'{"cells": {"a": 1}, "nbformat": 4}'), "not a notebook"),
    ("a web page", content(b"<html>please log in</html>"), "damaged"),
]
UNREADABLE = [Hostile(name, make, 0, "unreadable", says) for name, make, says in _UNREADABLE]
ZERO = [
    Hostile("the blank lab", content(BLANK.read_bytes())),
    Hostile("no cells", content(ipynb([]))),
    Hostile(
        "cells of wrong types",
        content(b'{"cells": [1, null, [], {"cell_type": 7}, {"cell_type": "code", "source": 3}]}'),
    ),
    Hostile("the answer deleted", notebook_of("import math", "x = 1")),
    Hostile("the answer made by exec at the top", notebook_of(f"exec({_GOOD!r})")),
    Hostile("the answer in a string", notebook_of(f"decode = {_GOOD!r}")),
    Hostile(
        "an answer of a megabyte", notebook_of(f"def decode(*a):\n    return {'[0, ' * 3 + '0, ' * 400_000 + ']]]'}")
    ),
    Hostile("a cell of 8000 elif", notebook_of("def decode(x):\n    if x: pass\n" + "    elif x: pass\n" * 8000)),
    Hostile("a chain of 60 000 attributes", notebook_of("def decode(x):\n    return x" + ".y" * 60_000)),
    Hostile("nested lambdas", notebook_of("def decode(x): return " + "lambda: " * 20_000 + "1")),
    Hostile("lone surrogates in the source", notebook_of("def decode(*a): return '\ud800'")),
    Hostile("null bytes in the source", notebook_of("def decode(*a):\n    return '\0'")),
    Hostile(
        "bidi and control characters",
        notebook_of("def decode(*a):\n    raise ValueError('\u202e\x1b[2J=cmd|<script>')"),
    ),
    Hostile(
        "keys that stand twice",
        content(b'{"cells": [], "nbformat": 4, "cells": [{"cell_type": "code", "source": "x"}]}'),
    ),
]
KEEP = [
    Hostile("the solution", content(SOLUTION.read_bytes()), MOST),
    Hostile(
        "a byte order mark and CRLF", content(b"\xef\xbb\xbf" + SOLUTION.read_bytes().replace(b"\\n", b"\\r\\n")), MOST
    ),
    Hostile("all metadata, ids and outputs stripped", _changed(_bare), MOST),
    Hostile("the same id and forged metadata in all cells", _changed(_renamed), MOST),
    Hostile("all cells duplicated", _changed(lambda cell: [cell, cell]), MOST),
    Hostile("all text cells deleted", _changed(lambda cell: [cell] if cell["cell_type"] == "code" else []), MOST),
    Hostile(
        "code cells made Markdown",
        _changed(
            lambda cell: [{**cell, "cell_type": "markdown"}] if "### BEGIN" in "".join(cell["source"]) else [cell]
        ),
        MOST,
    ),
    Hostile(
        "noise on stderr, warnings, magics",
        notebook_of(
            "%matplotlib inline\n!pip install x\nimport warnings",
            _GOOD,
            "import sys; sys.stderr.write('x'); warnings.warn('y'); 1 / 0",
            "def decode (",
            "%%bash\nrm -rf /",
        ),
        DECODE,
    ),
    Hostile(
        "a broken cell and an endless one", notebook_of(_GOOD, "while True: pass", "def (:", "raise SystemExit"), DECODE
    ),
    Hostile("defined twice, the last one counts", notebook_of("def decode(*a): return 0.0", _GOOD), DECODE),
    Hostile(
        "renamed, found by its check",
        notebook_of(_GOOD.replace("def decode(", "def mine("), 'check("01.decode", mine)'),
        DECODE,
    ),
    Hostile("a comment with half an emoji", notebook_of("# \u202e\U0001f600 \ud83d\n" + _GOOD), DECODE),
    Hostile("an old minor version without ids", notebook_of(_GOOD, nbformat_minor=0), DECODE),
    Hostile("a thousand other cells", notebook_of(*["x = 1"] * 1000, _GOOD), DECODE),
]
LIST = [*UNREADABLE, *ZERO, *KEEP]
# Names that a file system takes and a table, a page or a path must not believe.
NAMES = [
    "=cmd|'/c calc'!A1",
    "+1+1",
    "@SUM(A1)",
    "-2+3",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "..",
    "...",
    " ",
    "~",
    "$(id)",
    "a\nb",
    "\x1b[2J",
    "C:\\x",
    "..\\..\\x",
    "%2e%2e%2f",
    "nul",
    "Ann",
    "ann",
    "ANN",
    "\u00e9",
    "e\u0301",
    "x" * 240,
    "--help",
    "\U0001f600" * 50,
    "a b",
    "'; drop table students; --",
    "file.ipynb",
    ".hidden",
]
