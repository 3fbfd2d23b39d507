"""Canvas: fill one assignment of the gradebook's CSV export, so that it can be imported again.

The format is that of Canvas's gradebook_exporter.rb and gradebook_importer.rb: fixed English headers in every language;
"Student" or "LastName", "FirstName", then "ID", optional SIS columns, "Section", custom columns, then assignments with
their number in parentheses, then read-only totals. Rows before the students: "Manual Posting" (optional) and "Points
Possible". Comma with decimal point or semicolon with either.
"""

from __future__ import annotations

import re

from ampedu.grading.export import ExportError, csvfile, filling, scored
from ampedu.grading.export.matching import Filled
from ampedu.grading.export.scored import Scored

KEYS = ("ID", "SIS User ID", "SIS Login ID", "Integration ID")
_ASSIGNMENT = re.compile(r"(?P<title>.*\S)\s*\((?P<id>\d+)\)\s*", re.DOTALL)
_STAYS = {
    "EX": "The student is excused in Canvas.",
    "N/A": "The assignment is not assigned to this student in Canvas, which would drop the grade.",
}


def fill(
    content: bytes, name: str, entries: list[Scored], stems: list[str], *, column: str | None = None,
    by: str | None = None, scale: bool = False, overwrite: bool = False,
) -> Filled:  # fmt: skip
    """Fill the template ``content`` (``name`` is for messages).

    column: the assignment, "Lab 1" or "Lab 1 (12345)"; by default the one whose title holds "lab" and the lab's number,
    or its stem. by: the column that holds the ids; by default any of KEYS. Raises ExportError.
    """
    file = csvfile.parse(content, name)
    header = [text.strip() for text in file.rows[0].texts]
    if "ID" not in header[:3] or not {"Student", "LastName"} & set(header[:1]):
        raise ExportError(
            f"{name} is not a gradebook of Canvas: its first columns are {filling.listed(header[:3])}, not Student and "
            "ID. In Canvas: Grades, Export, Export Entire Gradebook."
        )
    place = _assignment(header, name, stems, column)
    students, possible = _students(file, header, place)
    if possible and "read only" in possible:
        raise ExportError(f"{name}: {header[place]!r} is read-only. Choose an assignment with --column.")
    points = scored.number(possible or "")
    columns = [filling.column_named(header, by, name)] if by else [header.index(key) for key in KEYS if key in header]
    keys = {header[key]: {row: _text(file, row, key) for row in students} for key in columns}
    full = scored.check_scale(entries, points, header[place], scale)
    comma = points is not None and "," in possible
    return filling.fill(
        file, name, students, keys, place, entries, full, comma=comma, overwrite=overwrite,
        fixed=lambda text: _STAYS.get(text.upper(), ""),
    )  # fmt: skip


def _text(file, row, column):
    cells = file.rows[row].cells
    return cells[column].text if column < len(cells) else ""


def _assignment(header, name, stems, column):
    titles = {place: found["title"] for place, text in enumerate(header) if (found := _ASSIGNMENT.fullmatch(text))}
    if column is not None:
        found = [place for place, title in titles.items() if column.strip() in (title, header[place])]
    elif len(stems) == 1:
        number = int(stems[0][:2])
        wanted = re.compile(rf"\blab(oratory)?\W*0*{number}\b|{re.escape(stems[0])}", re.IGNORECASE)
        found = [place for place, title in titles.items() if wanted.search(title)]
    else:
        found = []
    if len(found) == 1:
        return found[0]
    wanted = f"of the name {column!r}" if column is not None else "that is clearly meant"
    count = "more than one assignment" if found else "no assignment"
    raise ExportError(
        f"{name} has {count} {wanted}. Its assignments are: {filling.listed([header[place] for place in titles])}. "
        'Choose one: --column "NAME (NUMBER)".'
    )


def _students(file, header, place):
    """The rows of students, and the cell of "Points Possible" for the column, or None."""
    students, possible = [], None
    section = header.index("Section") + 1 if "Section" in header else 1
    for number, row in enumerate(file.rows[1:], 1):
        texts = row.texts
        if "Points Possible" in texts[0]:
            possible = texts[place] if place < len(texts) else None
        elif any(text.strip() for text in texts[:section]):  # else the row that says "Manual Posting"
            students.append(number)
    return students, possible
