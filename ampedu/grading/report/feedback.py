"""feedback/ID.html: for one student, what passed, what did not and why, and where to read.

Never shown: the first difference and the whole exception (they hold a secret input), and what a person should review.
"""

from __future__ import annotations

from dataclasses import dataclass

from ampedu.grading.report import pages
from ampedu.grading.results import ExerciseResult, LabResult, Run, StudentResult

WORDS = {  # verdict: symbol, words, class in the style sheet
    "passed": ("✓", "Passed", "passed"),
    "failed": ("✗", "Not yet", "failed"),
    "not started": ("○", "Not started", "open"),
    "missing": ("?", "Not found", "open"),
    "not judged": ("–", "Not judged", "open"),
}
INFRA = ("–", "Not graded", "open")
REASONS = {
    "infra": "This could not be graded, and not because of your answers. Your instructor will run it again; until then "
    "it counts neither as points nor as zero.",
    "absent": "Nothing was handed in for this lab.",
}


@dataclass(frozen=True)
class Part:
    """One exercise as the page shows it; code: the student's own exception, or ""."""

    id: str
    title: str
    symbol: str
    word: str
    kind: str
    points: int | None
    max_points: int
    message: str
    recognized: bool
    code: str
    notes: list[str]


def part(item: ExerciseResult) -> Part:
    """What of a result a student may see."""
    infra = item.end == "infra"
    symbol, word, kind = INFRA if infra else WORDS[item.verdict]
    message = REASONS["infra"] if infra else item.message
    code = "" if infra or item.student_error in item.message else item.student_error
    return Part(
        item.id, item.title, symbol, word, kind, item.points, item.max_points, message, item.mutant is not None, code,
        [] if infra else item.notes,
    )  # fmt: skip


def _lab(lab: LabResult) -> dict:
    parts = [part(item) for item in lab.exercises]
    reason = REASONS.get(lab.status, lab.reason)
    begin = next((item for item in parts if item.kind != "passed"), None) if lab.status != "infra" else None
    return {"result": lab, "parts": parts, "reason": reason, "begin": begin}


def render(run: Run, student: StudentResult) -> str:
    """The page of one student."""
    labs = [_lab(lab) for lab in student.labs]
    handed_in = [lab for lab in student.labs if lab.status != "absent"]
    return pages.render(
        "feedback.html",
        student=student,
        labs=labs,
        score=student.score,
        max_score=sum(lab.max_score for lab in handed_in),
        versions=sorted(student.versions.items()),
        sandboxed=run.sandbox != "none",
    )
