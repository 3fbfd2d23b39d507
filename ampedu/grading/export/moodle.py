"""Moodle: fill the grading worksheet of an assignment ("Download grading worksheet"), so that it can be uploaded.

The format is that of Moodle's mod/assign: gradingtable.php writes it, feedback/offline/importgradeslib.php reads it.
All headers are in the language of the site, so columns are found by what stands in them: "Identifier" holds one word
and a number, the grade stands left of the maximum, which is the same number in every row.
"""

from __future__ import annotations

import html
import re

from ampedu.grading.export import ExportError, csvfile, filling, scored
from ampedu.grading.export.matching import Filled
from ampedu.grading.export.scored import Scored

_IDENTIFIER = re.compile(r"(\D*[^\W\d_]\D*)(\d+)")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


def fill(
    content: bytes, name: str, entries: list[Scored], *, column: str | None = None, by: str | None = None,
    comments: str | None = None, scale: bool = False, overwrite: bool = False,
) -> Filled:  # fmt: skip
    """Fill the worksheet ``content`` (``name`` is for messages).

    column: the header of the grade, comments: that of the feedback comments, which are left alone by default, by: that
    of a column with the ids; by default identifier and email addresses are tried. Raises ExportError.
    """
    file = csvfile.parse(content, name)
    header = [text.strip() for text in file.rows[0].texts]
    rows = list(range(1, len(file.rows)))
    if not rows:
        raise ExportError(f"{name} has a header and no students. Does the assignment have participants?")
    for row in rows:
        if len(file.rows[row].cells) != len(header):
            where, number = f"{name}, line {file.rows[row].line}", len(file.rows[row].cells)
            raise ExportError(f"{where}: {number} cells, but the header has {len(header)}. Download it again.")
    columns = [[file.rows[row].cells[place].text.strip() for row in rows] for place in range(len(header))]
    grade = _grade(header, columns, name, column)
    most = _same(columns[grade + 1]) if grade + 1 < len(header) else None
    points = scored.number(most) if most else None
    full = scored.check_scale(entries, points, header[grade], scale)
    text = None
    if comments is not None:
        text = (filling.column_named(header, comments, name), comment)
    result = filling.fill(
        file, name, rows, _keys(header, columns, rows, name, by), grade, entries, full,
        comma=bool(most) and "," in most, overwrite=overwrite, comments=text,
    )  # fmt: skip
    result.notes.append("Moodle skips a row that was changed there after the download: upload this file soon.")
    return result


def comment(entry: Scored) -> str:
    """The feedback comments of a student: HTML, without secret inputs, on one line."""
    from ampedu.grading.report import feedback, scrub

    parts = [feedback.part(item) for lab in entry.labs for item in lab.exercises]
    lines = [
        f"{part.id}: {part.points} of {part.max_points}. {part.message}" for part in parts if part.kind != "passed"
    ]
    if not lines and entry.labs:
        lines = ["All answers passed."] if parts else [lab.reason for lab in entry.labs if lab.reason]
    return "<br>".join(html.escape(scrub.text(line)) for line in lines)


def _same(column):
    """The text of all cells, if it is the same."""
    return column[0] if len(set(column)) == 1 else None


def _is_points(column):
    value = scored.number(_same(column) or "")
    return value is not None and value > 0


def _grade(header, columns, name, wanted):
    if wanted is not None:
        return filling.column_named(header, wanted, name)
    found = [
        place
        for place, following in enumerate(columns[1:])
        if _is_points(following) and all(not text or scored.number(text) is not None for text in columns[place])
    ]
    if len(found) == 1:
        return found[0]
    raise ExportError(
        f"{name}: the column of the grade is not clear. It stands left of the maximum grade in a grading worksheet "
        "(In Moodle: View all submissions, Download grading worksheet; the assignment must be graded with points). "
        f"Name it with --column. The columns are: {filling.listed(header)}."
    )


def _keys(header, columns, rows, name, by):
    if by is not None:
        chosen = [filling.column_named(header, by, name)]
    else:
        chosen = [place for place in range(len(header)) if _numbers(columns[place]) or _emails(columns[place])]
        # Later columns may hold links or dates that look alike: the identifier comes first, then names and addresses.
        first = next((place for place in chosen if _numbers(columns[place])), None)
        chosen = [place for place in chosen if place == first or _emails(columns[place])]
    if not chosen:
        raise ExportError(
            f"{name}: no column holds identifiers or email addresses. Name one with --by. "
            f"The columns are: {filling.listed(header)}."
        )
    keys = {}
    for place in chosen:
        texts = _numbers(columns[place]) or columns[place]
        keys[header[place]] = dict(zip(rows, texts, strict=True))
    return keys


def _numbers(column):
    """The numbers of a column such as "Participant 12": the same word in every cell, then digits. Else []."""
    found = [_IDENTIFIER.fullmatch(text) for text in column]
    if None in found or len({match[1] for match in found}) != 1:
        return []
    return [match[2] for match in found]


def _emails(column):
    return any(column) and all(not text or _EMAIL.fullmatch(text) for text in column)
