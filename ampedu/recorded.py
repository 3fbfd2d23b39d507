"""Measurements that this machine may be unable to repeat: recorded elsewhere, and shown with their origin.

A lesson measures, and names what it measured:

    recorded.record("03.matmul", "Time of a matrix product", [{"dtype": "fp16", "ms": 0.21}], device=device)

The result displays itself. When `make gpu-check` runs the lesson on a GPU it keeps the result, with the date and the
command; from there it gets into data/recorded/03.matmul.json. On a machine without a GPU the lesson shows that file:

    recorded.show("03.matmul")

data/recorded/README.md describes the file.
"""

import datetime
import html
import json
import math
import re
from dataclasses import asdict, dataclass
from importlib import resources

from ampedu._display import display

SCHEMA = 1
NAME = re.compile(r"\d\d\.[a-z][a-z0-9_]*")
KEYS = ("schema", "name", "title", "rows", "machine", "device", "versions", "date", "command")
MOST_ROWS = 500
_made: list["Result"] = []  # by this process, until taken()


class RecordError(ValueError):
    """A record is not as it must be; the message names the place and what is wanted."""


@dataclass(frozen=True)
class Result:
    """A table of measurements and where it comes from.

    rows: one dictionary per row, all with the same keys (the column titles, with units). versions: {"python": …,
    "torch": …} and more. date: YYYY-MM-DD. command: what to run for it; empty if it was measured here and now.
    """

    name: str
    title: str
    rows: tuple[dict, ...]
    machine: str
    device: str
    versions: dict[str, str]
    date: str
    command: str = ""

    @property
    def origin(self) -> str:
        """Where and when it was measured, in one sentence."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        if not self.command:
            return f"Measured here: {self.device}, {self.machine}; {versions}."
        where = f"{self.device}, {self.machine}; {versions}"
        return f"Recorded, not measured here: {where}; {self.date}, with `{self.command}`."

    def __repr__(self) -> str:
        lines = [list(self.rows[0]), *([_cell(value) for value in row.values()] for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        table = ("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([self.title, *(line.rstrip() for line in table), self.origin.replace("`", "")])

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in self.rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
            for row in self.rows
        )
        origin = re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(self.origin))
        caption = f"<caption><strong>{html.escape(self.title)}</strong></caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{origin}</p>"


def _cell(value) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show(name: str) -> None:
    """Display the recorded result of this name; say so plainly where none exists. RecordError: no such form of name."""
    result = load(name)
    if result is None:
        print(f"There is no recorded result {name} yet: nobody has sent one in. `make gpu-check` on a GPU makes it.")
    else:
        display(result)


def load(name: str) -> Result | None:
    """The recorded result of this name, or None. RecordError: a malformed name, or a damaged file."""
    file = _folder() / f"{_checked_name(name)}.json"
    if not file.is_file():
        return None
    where = f"ampedu/data/recorded/{file.name}"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{where} is not valid JSON ({error}): restore it from the repository") from None
    result = parse(data, where)
    if result.name != name:
        raise RecordError(f"{where}: name is {result.name!r}; it must be that of the file")
    return result


def names() -> list[str]:
    """The names of all recorded results, sorted."""
    folder = _folder()
    files = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))


def record(name: str, title: str, rows: list[dict], device: str = "auto") -> Result:
    """The result of a measurement made just now on `device`: a table that displays itself, with its machine.

    rows: one dictionary per row, the same keys in each; values are str, bool, int, finite float or None. Column titles
    carry the unit, for example "ms". RecordError says what is wrong. It is stored nowhere: `make gpu-check` collects.
    """
    import torch

    from ampedu.device import this_machine

    machine = this_machine(device)
    words = [machine.name]
    if machine.capability:
        words.append(f"capability {machine.capability}")
    if machine.backend == "cpu":
        words.append(f"{machine.threads} threads" if machine.threads != 1 else "1 thread")
    versions = {"python": machine.python, "torch": machine.torch}
    if machine.backend == "cuda":
        versions["CUDA"] = str(torch.version.cuda)
    data = {
        "schema": SCHEMA,
        "name": name,
        "title": title,
        "rows": rows,
        "machine": ", ".join(words),
        "device": machine.device,
        "versions": versions,
        "date": datetime.date.today().isoformat(),
        "command": "",
    }
    result = parse(data, f"record({name!r})", live=True)
    _made.append(result)
    return result


def taken() -> list[Result]:
    """The results that record() has made in this process since the last call."""
    made = list(_made)
    _made.clear()
    return made


def as_json(result: Result) -> dict:
    """The content of the file of a result."""
    return {"schema": SCHEMA, **asdict(result), "rows": [dict(row) for row in result.rows]}


def parse(data, where: str, live: bool = False) -> Result:
    """The result in the content of a file. `where` names the place in errors; `live` allows an empty command."""
    if not isinstance(data, dict):
        raise RecordError(f"{where}: a record is an object with {', '.join(KEYS)}, not {type(data).__name__}")
    for key in KEYS:
        if key not in data:
            raise RecordError(f"{where}: {key} is missing; a record has {', '.join(KEYS)}")
    if unknown := sorted(set(data) - set(KEYS)):
        raise RecordError(f"{where}: unknown key {unknown[0]!r}; a record has {', '.join(KEYS)}")
    if data["schema"] != SCHEMA:
        raise RecordError(f"{where}: schema is {data['schema']!r}; this version of the course reads schema {SCHEMA}")
    for key in ("name", "title", "machine", "device", "date", *(() if live else ("command",))):
        if not isinstance(data[key], str) or not data[key].strip():
            raise RecordError(f"{where}: {key} must be text, not {data[key]!r}")
    try:
        datetime.datetime.strptime(data["date"], "%Y-%m-%d")
    except ValueError:
        raise RecordError(f"{where}: date must look like 2026-01-31, not {data['date']!r}") from None
    versions = data["versions"]
    if not isinstance(versions, dict) or not {"python", "torch"} <= versions.keys():
        raise RecordError(f"{where}: versions must name at least python and torch")
    if wrong := [key for key, value in versions.items() if not isinstance(value, str) or not value]:
        raise RecordError(f"{where}: the version of {wrong[0]} must be text, not {versions[wrong[0]]!r}")
    _checked_name(data["name"], where)
    rows = _checked_rows(data["rows"], where)
    return Result(rows=rows, **{key: data[key] for key in KEYS if key not in ("schema", "rows")})


def _checked_name(name, where: str = "recorded") -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RecordError(f"{where}: {name!r} is no name of a result; it looks like 03.matmul_time")
    return name


def _checked_rows(rows, where: str) -> tuple[dict, ...]:
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_ROWS:
        raise RecordError(f"{where}: rows must be a list of 1 to {MOST_ROWS} dictionaries")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not row or not all(isinstance(key, str) and key for key in row):
            raise RecordError(f"{where}: row {number} must be a dictionary from column titles to values")
        if list(row) != list(rows[0]):
            raise RecordError(f"{where}: row {number} has the columns {list(row)}, row 1 has {list(rows[0])}")
        for column, value in row.items():
            if value is not None and not isinstance(value, (str, bool, int, float)):
                raise RecordError(
                    f"{where}: row {number}, {column!r}: {type(value).__name__} is not plain; use .item()"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise RecordError(f"{where}: row {number}, {column!r} is {value}; a measurement is finite, or None")
    return tuple(dict(row) for row in rows)


def _folder():
    return resources.files("ampedu") / "data" / "recorded"
