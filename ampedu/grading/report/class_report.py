"""class.html: for the instructor, what to teach again tomorrow, and what a person should look at."""

from __future__ import annotations

from ampedu.grading.report import class_data, pages
from ampedu.grading.results import STATUSES, Run, StudentResult

TOP, COMMON = 3, 12
_LEFT, _RIGHT, _HEIGHT, _FOOT = 0.0, 100.0, 150, 22


def render(run: Run, students: list[StudentResult]) -> str:
    """The page for a run."""
    data = class_data.collect(run, students)
    names = {student.student_id: student for student in students}
    counts = [(status, run.counts[status]) for status in (*STATUSES, "absent") if run.counts.get(status)]
    return pages.render(
        "class.html",
        run=run,
        data=data,
        students=students,
        counts=counts,
        top=data.misconceptions[:TOP],
        common=data.misconceptions[:COMMON],
        rare=data.misconceptions[COMMON:],
        histograms=[(item, histogram(item)) for item in data.distributions],
        names=names,
        equal=equal(run),
        versions=sorted(run.versions.items()),
    )


def equal(run: Run) -> list[tuple[bool, list[str], list[str]]]:
    """Equal answers by who gave them: whether to the published solution (then one student), students, exercises."""
    found = {}
    for group in run.equal:
        for students in [(id,) for id in group.students] if group.published else [tuple(group.students)]:
            found.setdefault((group.published, students), []).append(group.exercise)
    rows = [(published, list(students), sorted(exercises)) for (published, students), exercises in found.items()]
    return sorted(rows, key=lambda row: (not row[0], -len(row[2]), row[1]))


def histogram(item: class_data.Distribution) -> dict:
    """Geometry of a histogram: percent across, pixels down, so that it fits a phone and its text keeps its size."""
    most = max((bar.count for bar in item.bars), default=0)
    step = (_RIGHT - _LEFT) / max(1, len(item.bars))
    room = _HEIGHT - 18
    drawn = []
    for place, bar in enumerate(item.bars):
        height = round(room * bar.count / most, 1) if most else 0
        label = str(bar.first) if bar.first == bar.last else f"{bar.first}–{bar.last}"
        drawn.append({
            "x": round(_LEFT + place * step + 0.08 * step, 3), "width": round(0.84 * step, 3),
            "middle": round(_LEFT + (place + 0.5) * step, 3), "y": round(_HEIGHT - height, 1), "height": height,
            "label": label, "count": bar.count, "full": bar.first == item.max_score and item.max_score > 0,
        })  # fmt: skip
    filled = [bar for bar in drawn if bar["count"]]
    words = ", ".join(f"{bar['label']} points: {bar['count']}" for bar in filled) or "no scores yet"
    return {"bars": drawn, "height": _HEIGHT + _FOOT, "base": _HEIGHT, "words": words}
