"""Which score of which student is exported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ampedu.grading.export import ExportError
from ampedu.grading.results import LabResult, Run, StudentResult

_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")
TOTAL = "total"
ALLOWED = ("timeout", "crashed", "unreadable")  # exported only on demand: "infra" and "absent" have no score at all


@dataclass(frozen=True)
class Scored:
    """A student with what is exported. score: None if nothing is; then ``reason`` says why. labs: what it rests on.

    keys: what an LMS may call the student: the id, and the roster's lms_id.
    """

    student_id: str
    name: str
    score: int | None
    max_score: int
    status: str
    reason: str
    labs: list[LabResult]
    keys: tuple[str, ...]


def choose(run: Run, lab: str | None) -> list[str]:
    """The stems that ``lab`` means: a stem, its number, "total", or None for the only lab. Raises ExportError."""
    known = ", ".join(stem[:2] for stem in run.labs)
    if lab is None:
        if len(run.labs) == 1:
            return list(run.labs)
        text = f"this run holds the labs {known}."
        raise ExportError(f"{text} Choose one, for example --lab {run.labs[0][:2]}, or --lab total.")
    if lab == TOTAL:
        return list(run.labs)
    found = [stem for stem in run.labs if lab == stem or (lab.isdigit() and stem[:2] == lab.zfill(2))]
    if not found:
        raise ExportError(f"this run holds no lab {lab!r}. It holds {known}; --lab total is their sum.")
    return found


def scores(
    run: Run, students: list[StudentResult], stems: list[str], include=(), lms_ids: dict[str, str] | None = None
) -> list[Scored]:
    """One entry for each student.

    A score is exported if every lab that was handed in has the status "graded" or one in ``include``. max_score is over
    all of ``stems``. lms_ids: student id to the LMS's.
    """
    good = {"graded", *include}
    if not good <= {"graded", *ALLOWED}:
        raise ExportError(f"--include takes {', '.join(ALLOWED)}: nothing else has a score.")
    points = {stem: sum(info.max_points for info in run.exercises if info.lab == stem) for stem in stems}
    entries = []
    for student in students:
        labs = [lab for lab in student.labs if lab.lab in points]
        handed_in = [lab for lab in labs if lab.status != "absent"]
        bad = [lab for lab in handed_in if lab.status not in good or lab.score is None]
        score = sum(lab.score for lab in handed_in) if handed_in and not bad else None
        status = bad[0].status if bad else "graded" if handed_in else "absent"
        reason = bad[0].reason if bad else "" if handed_in else "Nothing was handed in."
        keys = [student.student_id, *([lms_ids[student.student_id]] if student.student_id in (lms_ids or {}) else [])]
        entries.append(
            Scored(student.student_id, student.name, score, sum(points.values()), status, reason, labs, tuple(keys))
        )
    return entries


def number(text: str) -> Fraction | None:
    """The number in a cell, with decimal point or comma; None if it holds none."""
    text = text.strip().replace(",", ".")
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def grade(entry: Scored, points: Fraction, comma: bool) -> str:
    """The score on a scale that ends at ``points``, rounded half up to two decimals; with a decimal comma on demand."""
    value = Fraction(entry.score) * points / entry.max_score
    cents = (200 * value.numerator + value.denominator) // (2 * value.denominator)
    text = f"{cents // 100}.{cents % 100:02}"
    return text.replace(".", ",") if comma else text


def check_scale(entries: list[Scored], points: Fraction | None, column: str, scale: bool) -> Fraction:
    """The points that a full score gets in ``column``, which allows ``points``. Raises ExportError if they disagree."""
    most = entries[0].max_score if entries else 0
    if points is None:
        if scale:
            raise ExportError(f"the template does not say how many points {column!r} allows. Leave --scale away.")
        return Fraction(most)
    if points <= 0:
        raise ExportError(f"{column!r} allows no points. Give the assignment {most} points in the LMS.")
    if entries and points != most and not scale:
        text = f"{column!r} allows {float(points):g} points, and these labs have {most}."
        raise ExportError(f"{text} Give the assignment {most} points in the LMS and download again, or add --scale.")
    return points
