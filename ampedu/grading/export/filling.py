"""Write grades into the matched rows of a template, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from ampedu.grading.export import ExportError
from ampedu.grading.export.csvfile import CsvFile
from ampedu.grading.export.matching import Filled, Left, match
from ampedu.grading.export.scored import Scored, grade, number


def fill(
    file: CsvFile,
    name: str,
    places: list[int],
    keys: dict[str, dict[int, str]],
    column: int,
    entries: list[Scored],
    points: Fraction,
    *,
    comma: bool = False,
    overwrite: bool = False,
    fixed: Callable[[str], str] = lambda text: "",
    comments: tuple[int, Callable[[Scored], str]] | None = None,
) -> Filled:
    """Fill ``column`` of the rows ``places``.

    keys: see matching.match. points: what a full score is worth. comma: decimal comma. fixed: says of a cell why it
    must stay as it is, or "". comments: another column and its text for a student. Raises ExportError, naming the line,
    if a row is too short.
    """
    needed = max([column, *([comments[0]] if comments else [])])
    for row in places:
        if len(file.rows[row].cells) <= needed:
            text = f"{name}, line {file.rows[row].line}: {len(file.rows[row].cells)} cells, fewer than the header has."
            raise ExportError(f"{text} Download it again.")
    chosen, left = match(file, places, keys, entries)
    result = Filled(file.content, file.rows[0].cells[column].text, left=left)
    changes = {}
    for entry in entries:
        if entry.student_id not in chosen:
            continue
        row = chosen[entry.student_id]
        old = file.rows[row].cells[column].text.strip()
        reason = f"{entry.status}: {entry.reason}" if entry.score is None else fixed(old)
        if reason:
            result.left.append(Left(entry, reason))
            continue
        if number(old) == number(new := grade(entry, points, comma)):
            result.same.append(entry)
        elif old and not overwrite:
            result.kept.append((entry, old, new))
            continue
        else:
            changes[row, column] = new
            result.filled.append(entry)
        if comments and (overwrite or not file.rows[row].cells[comments[0]].text.strip()):
            changes[row, comments[0]] = comments[1](entry)
    result.others = len(places) - len(set(chosen.values()))
    result.content = file.filled(changes)
    return result


def column_named(header: list[str], wanted: str, name: str) -> int:
    """The column with this header. Raises ExportError, listing the columns."""
    found = [place for place, text in enumerate(header) if text.strip() == wanted.strip()]
    if len(found) != 1:
        many = "is there more than once" if found else "is not there"
        raise ExportError(f"{name}: the column {wanted!r} {many}. The columns are: {listed(header)}.")
    return found[0]


def listed(header: list[str]) -> str:
    """Column names for a message: scrubbed, quoted, at most 30."""
    from ampedu.grading.report import scrub

    more = ", …" if len(header) > 30 else ""
    return ", ".join(f'"{scrub.text(text, 60)}"' for text in header[:30]) + more
