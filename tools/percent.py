"""Read percent scripts (`# %%` cells) with the line number of every cell, so that an error can name its line."""

import ast
import hashlib
import io
import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

from tools.project import BuildError, read_text

HEADER = re.compile(r"^# %%(?:\s+(?P<rest>.*?))?\s*$")
OPTION = re.compile(r"""(\w+)\s*=\s*(\[[^\]]*\]|"[^"]*"|'[^']*')""")
OPTIONS = ("tags", "exercise")
MAGIC = re.compile(r"^\s*(%|!)")


@dataclass(frozen=True)
class Cell:
    """One cell of a script. `line` is the line of the file that holds the first line of `source` (from 1)."""

    kind: str
    source: str
    line: int
    tags: tuple[str, ...] = ()
    exercise: str | None = None


@dataclass(frozen=True)
class Script:
    """A percent script: its cells and the SHA-256 of its text."""

    name: str
    cells: tuple[Cell, ...] = field(repr=False)
    sha256: str


def lines_inside_strings(text: str) -> set[int]:
    """Lines (from 1) that continue a multi-line string: a `# %%` there is text. Empty if the file is not Python."""
    inside = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                inside.update(range(token.start[0] + 1, token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):
        return set()
    return inside


def parse(text: str, name: str) -> Script:
    """Cells of a percent script. `name` is used in messages. Raises BuildError that names the line."""
    lines = text.split("\n")
    inside = lines_inside_strings(text)
    headers = [n for n, line in enumerate(lines, 1) if HEADER.match(line) and n not in inside]
    if not headers:
        raise BuildError(f"{name} has no cells; start it with '# %% [markdown]'.")
    first = headers[0]
    stray = next((n for n, line in enumerate(lines[: first - 1], 1) if line.strip()), None)
    if stray is not None:
        raise BuildError(f"{name}, line {stray}: text before the first cell; start the file with '# %% [markdown]'.")
    cells = []
    for start, end in zip(headers, [*headers[1:], len(lines) + 1], strict=True):
        cells.append(_cell(lines, start, end, name))
    cells = [cell for cell in cells if cell.source]
    return Script(name, tuple(cells), hashlib.sha256(text.encode()).hexdigest())


def read(path: Path, name: str) -> Script:
    """`parse` the file at `path`."""
    return parse(read_text(path, name).replace("\r\n", "\n"), name)


def _cell(lines: list[str], start: int, end: int, name: str) -> Cell:
    kind, tags, exercise = _options(HEADER.match(lines[start - 1])["rest"] or "", start, name)
    body = lines[start : end - 1]
    line = start + 1
    while body and not body[0].strip():
        body.pop(0)
        line += 1
    while body and not body[-1].strip():
        body.pop()
    if kind == "markdown":
        body = [_uncomment(text, line + n, name) for n, text in enumerate(body)]
    else:
        _must_compile(body, line, name)
    return Cell(kind, "\n".join(body).strip("\n"), line, tags, exercise)


def _options(rest: str, line: int, name: str) -> tuple[str, tuple[str, ...], str | None]:
    """Kind, tags and exercise id of the header text `[markdown] tags=["C07"]`."""
    kind = "code"
    if rest.startswith("[markdown]"):
        kind, rest = "markdown", rest[len("[markdown]") :].strip()
    options = {key: ast.literal_eval(value) for key, value in OPTION.findall(rest)}
    unknown = OPTION.sub("", rest).strip() or next((key for key in options if key not in OPTIONS), "")
    if unknown:
        raise BuildError(
            f'{name}, line {line}: unknown cell option "{unknown}"; write tags=["…"] or exercise="NN.name".'
        )
    tags = options.get("tags", [])
    if not isinstance(tags, list):
        raise BuildError(f'{name}, line {line}: tags must be a list, as in tags=["measured"].')
    return kind, tuple(tags), options.get("exercise")


def _uncomment(text: str, line: int, name: str) -> str:
    if text.startswith("# "):
        return text[2:]
    if text.strip() in ("#", ""):
        return ""
    raise BuildError(f"{name}, line {line}: a line of a markdown cell must start with '# '; did you forget '# %%'?")


def _must_compile(body: list[str], line: int, name: str) -> None:
    """Refuse Python that cannot be parsed; magics are left to IPython."""
    if body and body[0].startswith("%%"):
        return
    code = "\n".join("pass" if MAGIC.match(text) else text for text in body)
    try:
        ast.parse(code)
    except SyntaxError as error:
        at = line + (error.lineno or 1) - 1
        raise BuildError(f"{name}, line {at}: {error.msg}; correct the Python of this cell.") from None
