"""All hostile submissions together, and what grading makes of them.

``python -m tests.grading.hostile [--write FILE]`` grades them in one batch and prints a table; the exit status is 1 if
one of them got what it should not get.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from . import hostile_escapes, hostile_files, hostile_lies, hostile_resources
from .hostile_kit import LAB, MARK, ROOT, Hostile

GROUPS = {
    "lies": hostile_lies.LIST,
    "escapes": hostile_escapes.LIST,
    "resources": hostile_resources.QUICK,
    "long": hostile_resources.LONG,
    "files": hostile_files.LIST,
}


def named(groups=GROUPS) -> dict[str, Hostile]:
    """The submissions of some groups by student id."""
    return {f"{group}-{number:02}": item for group in groups for number, item in enumerate(GROUPS[group])}


def written(folder: Path, items: dict[str, Hostile]) -> Path:
    """A folder of submissions."""
    folder.mkdir(parents=True)
    for id, item in items.items():
        item.make(folder / f"{id}.ipynb")
    return folder


def left() -> list[str]:
    """What a hostile submission has left on this machine: its processes and its files."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, line = (entry / "comm").read_text().strip(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if name == MARK[:15] or MARK.encode() in line.split(b"\0"):
            found.append(f"process {entry.name}")
    places = (
        "/",
        "/tmp",
        "/usr/lib",
        "/var/tmp",
        "/dev",
        "/dev/shm",
        "/home",
        str(Path.home()),
        str(ROOT),
        os.getcwd(),
    )
    return found + [
        f"{place}/{name}" for place in places for name in (MARK, "planted") if os.path.lexists(f"{place}/{name}")
    ]


def wrong(item: Hostile, result) -> str:
    """Why a LabResult is not what this submission must get, or ""."""
    texts = [result.reason, *(text for done in result.exercises for text in (done.message, done.error))]
    flags = [flag for done in result.exercises for flag in done.review]
    if (result.score, result.status) != (item.points, item.status):
        return f"{result.score} points, {result.status}: {' '.join(texts)[:300]}"
    if item.says and not any(item.says in text for text in texts):
        return f"it is not said that {item.says!r}: {' '.join(texts)[:300]}"
    return "no review" if item.review and not flags else ""


def verdicts(items, students) -> dict[str, str]:
    """What is wrong, by id, for all students of a batch; "absent" for who is missing."""
    found = {student.student_id: student.labs[0] for student in students}
    problems = {id: wrong(item, found[id]) if id in found else "absent" for id, item in items.items()}
    return {id: text for id, text in problems.items() if text}


def table(items, students) -> str:
    """A line for each submission: what it is, points, status, and what the student reads."""
    found = {student.student_id: student.labs[0] for student in students}
    rows = []
    for id, item in items.items():
        lab = found[id]
        done = [one for one in lab.exercises if one.verdict not in ("missing", "not started", "passed")]
        text = lab.reason if lab.status == "unreadable" or not done else done[0].message
        flag = "review" if any(one.review for one in lab.exercises) else ""
        rows.append(
            (item.name, f"{lab.score}/{lab.max_score}", lab.status, flag, text if len(text) < 90 else text[:89] + "…")
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows
    )


def main() -> int:
    """Grade all, print the table."""
    from ampedu.grading import grade, results
    from ampedu.grading.sandbox import Sandbox  # noqa: F401  (a missing library fails before anything is written)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="also write the table")
    parser.add_argument("--groups", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ampedu-hostile-batch-") as place:
        items = named(options.groups)
        given, out = written(Path(place, "given"), items), Path(place, "out")
        run = grade(
            LAB, given, out, jobs=2, sandbox="bwrap", memory=1.0, timeout=60.0, secret_file=_secret(Path(place))
        )
        _, students = results.load_run(out)
        problems = verdicts(items, students)
        lines = [
            f"{len(items)} hostile, damaged or oddly treated submissions of {LAB}, graded in one batch: "
            f"{run.seconds:.0f} s, "
            f"sandbox {run.sandbox}, torch {run.versions['torch']}.",
            f"Not as expected: {len(problems)}. Left running or written: {len(left())}.", "",
            table(items, students), *(f"WRONG {id} {items[id].name}: {text}" for id, text in problems.items()),
        ]  # fmt: skip
    text = "\n".join(lines)
    print(text)
    if options.write:
        Path(options.write).write_text(text + "\n", encoding="utf-8")
    return bool(problems or left())


def _secret(place):
    from ampedu.grading import secret

    secret.make(place / "secret")
    return place / "secret"


if __name__ == "__main__":
    sys.exit(main())
