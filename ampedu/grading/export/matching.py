"""Which row of an LMS's file belongs to which student, and what is written there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ampedu.grading.export.csvfile import CsvFile
from ampedu.grading.export.scored import Scored


@dataclass(frozen=True)
class Left:
    """A student who got no grade in the file, and why."""

    entry: Scored
    reason: str


@dataclass
class Filled:
    """What filling a template came to.

    content: the new file. filled: students with a grade written. same: students whose grade stood there already. kept:
    students with another grade there, and both. left: students without. others: rows that no student of the run belongs
    to. notes: sentences for the instructor.
    """

    content: bytes
    column: str
    filled: list[Scored] = field(default_factory=list)
    same: list[Scored] = field(default_factory=list)
    kept: list[tuple[Scored, str, str]] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    others: int = 0
    notes: list[str] = field(default_factory=list)


def match(file: CsvFile, places: list[int], keys: dict[str, dict[int, str]], entries: list[Scored]):
    """Rows by student, and the students that have none or not a clear one.

    places: the rows of students. keys: by the name of a key column, the key in each row. A student matches by any of
    its names in any key column; different rows, or a row that two students match, match nobody. Returns
    ({student_id: row}, [Left]).
    """
    index = defaultdict(lambda: defaultdict(list))
    for column, by_row in keys.items():
        for row in places:
            if by_row.get(row):
                index[by_row[row].strip().casefold()][row].append(column)
    chosen, left = {}, []
    for entry in entries:
        found = {}
        for key in entry.keys:
            for row, columns in index.get(key.casefold(), {}).items():
                found.setdefault(row, columns[0])
        if len(found) == 1:
            chosen[entry.student_id] = next(iter(found))
        elif entry.score is None:
            left.append(Left(entry, f"{entry.status}: {entry.reason}"))
        elif found:
            where = " and ".join(f"line {file.rows[row].line} ({column})" for row, column in sorted(found.items()))
            left.append(Left(entry, f"The id stands in {where}. Say which column counts with --by."))
        else:
            left.append(Left(entry, f"The id is in no row, in none of the columns {', '.join(keys)}."))
    owners = defaultdict(list)
    for id, row in chosen.items():
        owners[row].append(id)
    by_id = {entry.student_id: entry for entry in entries}
    for row, ids in owners.items():
        if len(ids) > 1:
            for id in ids:
                del chosen[id]
                others = ", ".join(other for other in ids if other != id)
                left.append(Left(by_id[id], f"Line {file.rows[row].line} belongs to {others} just as well."))
    return chosen, left
