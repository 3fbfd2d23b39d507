"""From the results of a run to what people read: scores.csv, feedback/ID.html and class.html."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ampedu.grading import results


class ReportError(RuntimeError):
    """A report cannot be written; the text says why and the cure."""


def write(out) -> list[Path]:
    """Write all reports of a finished run into its folder; the files, in the order scores, class, feedback.

    Pages of students who are not in the run any more are removed. Raises ReportError, results.ResultDamaged, and
    FileNotFoundError without a run.
    """
    from ampedu.grading.report import class_report, feedback, scores

    out = Path(out)
    run, students = results.load_run(out)
    pages = {out / "scores.csv": scores.text(run, students)}
    replace(out / "scores.csv", pages[out / "scores.csv"].encode("utf-8"))
    try:
        pages[out / "class.html"] = class_report.render(run, students)
    except ImportError as error:
        cure = f"pip install 'ampedu[grade]', then: ampedu grade regrade {out}"
        raise ReportError(f"the results and scores.csv are written, but pages need {error.name}. {cure}") from None
    folder = out / "feedback"
    for student in students:
        pages[folder / f"{student.student_id}.html"] = feedback.render(run, student)
    folder.mkdir(exist_ok=True)
    for path, text in pages.items():
        replace(path, text.encode("utf-8"))
    for path in folder.glob("*.html"):
        if path not in pages:
            path.unlink()
    return list(pages)


def replace(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or an interruption, never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
