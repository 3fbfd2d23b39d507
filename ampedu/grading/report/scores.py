"""scores.csv: one row for each student, a column for each exercise."""

from __future__ import annotations

import csv
import io

from ampedu.grading.report import scrub
from ampedu.grading.results import Run, StudentResult

ORDER = ("infra", "unreadable", "crashed", "timeout", "graded")  # the first that occurs names the student's status


def header(run: Run) -> list[str]:
    """The columns: the student, points by exercise, then what each lab's result rests on."""
    labs = [f"{name}_{lab}" for lab in run.labs for name in ("status", "score", "late", "sha256", "graded_at")]
    return [
        "student_id", "name", "status", "score", "max_score", "review", *(info.id for info in run.exercises), *labs,
        "sandboxed", "secret_id", *(f"version_{name}" for name in sorted(run.versions)),
    ]  # fmt: skip


def row(run: Run, student: StudentResult) -> list:
    """The cells of one student, in the order of the header. What was not graded is empty, never 0."""
    labs = {lab.lab: lab for lab in student.labs}
    points = {item.id: item.points for lab in student.labs for item in lab.exercises}
    flags = [f"{item.id}: {reason}" for lab in student.labs for item in lab.exercises for reason in item.review]
    for published, words in ((True, "the published solution"), (False, "other students")):
        groups = [group for group in run.equal if group.published == published and student.student_id in group.students]
        if groups:
            flags.append(f"{', '.join(group.exercise for group in groups)}: equal to {words}")
    cells = [
        student.student_id, student.name, status(student), student.score, sum(lab.max_score for lab in student.labs),
        "; ".join(flags), *(points.get(info.id) for info in run.exercises),
    ]  # fmt: skip
    for stem in run.labs:
        lab = labs.get(stem)
        cells += [lab.status, lab.score, "late" if lab.late else "", lab.sha256, lab.graded_at] if lab else [None] * 5
    sandboxed = all(lab.sandboxed for lab in student.labs if lab.status not in ("absent", "unreadable"))
    cells += ["yes" if sandboxed else "NO", student.secret_id]
    cells += [student.versions.get(name) for name in sorted(run.versions)]
    return [scrub.cell(value) for value in cells]


def status(student: StudentResult) -> str:
    """The status of a student over all labs: the worst one; "absent" if nothing was handed in."""
    found = {lab.status for lab in student.labs}
    return next((name for name in ORDER if name in found), "absent")


def text(run: Run, students: list[StudentResult]) -> str:
    """The whole file."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(header(run))
    writer.writerows(row(run, student) for student in students)
    return buffer.getvalue()
