"""Gradescope: DIR/ID/results.json for each student, as an autograder leaves it in /autograder/results/results.json."""

from __future__ import annotations

import json
from pathlib import Path

from ampedu.grading.export import ExportError
from ampedu.grading.export.matching import Left
from ampedu.grading.export.scored import Scored
from ampedu.grading.report import feedback, replace, scrub


def record(entry: Scored) -> dict:
    """The content of results.json. Everything in it may be seen by the student, so it holds what feedback holds."""
    return {
        "score": entry.score,
        "output": "\n".join(
            scrub.text(f"{lab.lab}: {lab.reason or f'{lab.score} of {lab.max_score} points.'}") for lab in entry.labs
        ),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(feedback.part(item)) for lab in entry.labs for item in lab.exercises],
        "extra_data": {
            "labs": [
                {"lab": lab.lab, "status": lab.status, "sha256": lab.sha256, "sandboxed": lab.sandboxed}
                for lab in entry.labs
            ]
        },
    }


def _test(part: feedback.Part) -> dict:
    lines = [part.message, *([part.code] if part.code else []), *part.notes]
    return {
        "name": scrub.text(f"{part.id}: {part.title}"),
        "number": part.id,
        "score": part.points,
        "max_score": part.max_points,
        "status": "passed" if part.kind == "passed" else "failed",
        "output": "\n".join(scrub.text(line) for line in lines),
        "output_format": "text",
        "visibility": "visible",
    }


def write(folder, entries: list[Scored], overwrite: bool = False) -> tuple[list[Scored], list[Left]]:
    """Write the files; returns the students with and without one. Raises ExportError if ``folder`` is in use."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder} is a file. Name a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ExportError(f"{folder} is not empty. Name a new folder, or add --overwrite.")
    done, left = [], []
    for entry in entries:
        path = folder / entry.student_id / "results.json"
        if entry.score is None:
            path.unlink(missing_ok=True)  # of an earlier export: what has no score now must not keep an old one
            left.append(Left(entry, f"{entry.status}: {entry.reason}"))
        else:
            text = json.dumps(record(entry), indent=1, ensure_ascii=True, allow_nan=False)
            replace(path, (text + "\n").encode("ascii"))
            done.append(entry)
    return done, left
