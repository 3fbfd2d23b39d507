"""What grading writes: OUT/run.json (one Run) and OUT/results/ID.json (one StudentResult for each student).

Every text that a submission could have chosen is scrubbed of control and format characters when it enters a result,
but not escaped: who writes HTML or CSV escapes. `ExerciseResult.difference` shows an input that was drawn from the
secret, and the right answer to it: it is for the instructor, and must not reach a student.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path

FORMAT = 1
STATUSES = ("graded", "unreadable", "timeout", "crashed", "infra")
VERDICTS = ("passed", "failed", "not started", "not judged", "missing")
ENDS = ("ok", "timeout", "crashed", "infra")


class ResultDamaged(ValueError):
    """A result file cannot be read; the text names the file, the reason and the cure."""


@dataclass(frozen=True)
class Difference:
    """The first case that differs: its number from 0, the call, expected and got in words, where, and a remark."""

    case: int
    call: str
    expected: str
    got: str
    where: str = ""
    remark: str = ""


@dataclass(frozen=True)
class ExerciseResult:
    """One exercise of one submission.

    verdict: one of VERDICTS; "missing" means that no cell defines the answer. end: one of ENDS, how its process ended;
    "timeout" also if single cases were stopped. points: earned, an int from 0 to max_points, or None if end is "infra".
    message: one to three sentences for the student, free of secret inputs. mutant: name of the wrong answer that it
    equals on all cases, or None. error: the exception of the definition, or of the first case that differs: for the
    instructor. student_error: for the student, who must not read secret inputs out of it: its type from a closed list
    and the number of the line. rule: how the answer was found, "name", "check" or "marker", or "".
    notes: remarks for the student, such as "defined twice". review: reasons why a person should look; they cost no
    points. answer_sha256: hash of the answer's AST (names of cells, comments and layout do not matter), or "".
    """

    id: str
    title: str
    verdict: str
    points: int | None
    max_points: int
    end: str
    message: str
    mutant: str | None = None
    error: str = ""
    student_error: str = ""
    rule: str = ""
    notes: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)
    answer_sha256: str = ""
    difference: Difference | None = None


@dataclass(frozen=True)
class LabResult:
    """One lab of one student.

    lab: the stem, such as "01_bit_layouts". status: one of STATUSES, or "absent" if nothing was handed in. reason: a
    sentence if the status is not "graded". score: points earned; None for "infra" and "absent": never export these as
    a zero. file: the submission's name, scrubbed. sha256: of its bytes, or "" if it could not be read. late: whether
    Canvas marked it so. key: hash of all that the result depends on: same key, same result. seconds: wall time.
    """

    lab: str
    status: str
    score: int | None
    max_score: int
    exercises: list[ExerciseResult] = field(default_factory=list)
    reason: str = ""
    file: str = ""
    sha256: str = ""
    late: bool = False
    notes: list[str] = field(default_factory=list)
    sandboxed: bool = True
    key: str = ""
    graded_at: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class StudentResult:
    """One student: the content of results/ID.json. name: display name if the roster or the LMS gives one, else ""."""

    student_id: str
    name: str
    labs: list[LabResult]
    secret_id: str
    versions: dict[str, str]
    format: int = FORMAT

    @property
    def score(self) -> int | None:
        """The sum over labs that have a score; None if none has, or if one ended in "infra"."""
        scores = [lab.score for lab in self.labs if lab.status != "absent"]
        return sum(scores) if scores and None not in scores else None


@dataclass(frozen=True)
class ExerciseInfo:
    """One column of the table of scores."""

    id: str
    lab: str
    answer: str
    title: str
    max_points: int


@dataclass(frozen=True)
class Equal:
    """Answers that are equal up to names of cells, comments and layout: for review, never a zero.

    students: ids, sorted; one is enough if `published`: then the answer equals the published solution.
    """

    exercise: str
    students: list[str]
    published: bool


@dataclass(frozen=True)
class Canary:
    """One of the known submissions that are graded before each batch: "solution", "blank" or "hostile"."""

    lab: str
    name: str
    expected: int
    score: int | None
    status: str


@dataclass(frozen=True)
class Run:
    """The content of run.json.

    labs: stems. exercises: the columns, in order. students: all ids, sorted; each has a results/ID.json. rejected:
    {"file", "reason"} of files that belong to nobody. counts: lab results by status, "absent" included. sandbox:
    "bwrap" or "none" (unsandboxed). seconds: wall time of the batch. submissions: the folder or zip. regraded, reused:
    submissions that were graded, and those whose results were taken over.
    """

    labs: list[str]
    exercises: list[ExerciseInfo]
    students: list[str]
    rejected: list[dict[str, str]]
    counts: dict[str, int]
    equal: list[Equal]
    canaries: list[Canary]
    secret_id: str
    versions: dict[str, str]
    sandbox: str
    options: dict[str, typing.Any]
    submissions: str
    started_at: str
    seconds: float
    regraded: int
    reused: int
    format: int = FORMAT


def to_json(record) -> str:
    """A Run or StudentResult as JSON text, sorted as declared, ASCII only."""
    return json.dumps(dataclasses.asdict(record), indent=1, allow_nan=False) + "\n"


def from_json(kind, text: str):
    """A Run or StudentResult from its JSON text. Raises ValueError for another format or shape."""
    node = json.loads(text)
    if type(node) is not dict or node.get("format") != FORMAT:
        raise ValueError(f"this is not a result of format {FORMAT}")
    return _build(kind, node)


def _build(kind, node):
    origin = typing.get_origin(kind)
    if origin is list:
        (inner,) = typing.get_args(kind)
        return [_build(inner, item) for item in node]
    if origin in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(kind) if part is not type(None))
        return None if node is None else _build(inner, node)
    if not dataclasses.is_dataclass(kind):
        return node
    hints = typing.get_type_hints(kind)
    if type(node) is not dict or not set(node) <= set(hints):
        raise ValueError(f"this is not a {kind.__name__}")
    try:
        return kind(**{name: _build(hints[name], value) for name, value in node.items()})
    except TypeError as error:
        raise ValueError(f"this is not a {kind.__name__}: {error}") from None


def write(path: Path, record) -> None:
    """Write a record so that a reader, or an interruption, never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(to_json(record))
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def read(path: Path, kind):
    """Read a record. Raises ResultDamaged, naming the cure; FileNotFoundError if there is none."""
    try:
        return from_json(kind, path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise ResultDamaged(f"{path} cannot be read ({error}). Delete it and run the command again.") from None


def result_path(out: Path, student_id: str) -> Path:
    """Where the result of a student stands. Ids are file names: ingest accepts no others."""
    return out / "results" / f"{student_id}.json"


def load_run(out: Path) -> tuple[Run, list[StudentResult]]:
    """The Run of a folder and the results of its students, in order. Raises ResultDamaged or FileNotFoundError."""
    run = read(Path(out) / "run.json", Run)
    return run, [read(result_path(Path(out), id), StudentResult) for id in run.students]
