"""A made-up finished run: every status, verdict and flag occurs, and names that try to break pages and tables.

``python -m tests.grading.demo FOLDER`` writes one and its reports, to be looked at.
"""

import dataclasses
import random
import sys
from collections import Counter
from pathlib import Path

from ampedu.exercises import data, of_stem
from ampedu.grading import results
from ampedu.grading.results import (
    Canary,
    Difference,
    Equal,
    ExerciseInfo,
    ExerciseResult,
    LabResult,
    Run,
    StudentResult,
)

SECRET = "s3cret-1.2345e-7"  # stands in every text that no student may see
VERSIONS = {"ampedu": "0.1.0", "python": "3.11.2", "torch": "2.13.0"}
NAMES = [
    "Ada Lovelace", "=cmd|'/c calc'!A1", "<script>alert(1)</script>", "\u202egnp.exe", "Zoë Müller-Lüdenscheidt",
    "+1+1", "@SUM(A1)", 'O"Brien, Pat', "李小龙", "محمد", "a" * 255, "-2+3", "\u2028line",
    "Z\u0335\u0336\u0337\u0338\u0334\u0321\u0322algo",
]  # fmt: skip


def _exercise(ex, known, rng, skill):
    chance = skill - 0.13 * ex.difficulty
    shared = (ex.id, ex.title)
    if rng.random() < chance:
        return ExerciseResult(*shared, "passed", ex.points, ex.points, "ok", "All 8 cases agree.", rule="name")
    kind = rng.choices(("mutant", "other", "error", "not started", "missing"), (6, 2, 1, 1, 0.5))[0]
    secret = Difference(2, f"f({SECRET})", f"right {SECRET}", f"wrong {SECRET}", "", f"differs at {SECRET}")
    if kind == "mutant" and known:
        mutant = rng.choices(known, range(len(known), 0, -1))[0]
        return ExerciseResult(*shared, "failed", 0, ex.points, "ok", mutant.message, mutant.name, rule="name",
                              error=f"ValueError: {SECRET}", difference=secret)  # fmt: skip
    if kind in ("not started", "missing"):
        text = f"{ex.answer} is still the stub." if kind == "not started" else f"No cell defines {ex.answer}."
        return ExerciseResult(*shared, kind, 0, ex.points, "ok", text)
    words = f"It raised `ValueError` in line 3 of `{ex.answer}`. <img src=x onerror=alert(1)> \u202e"
    return ExerciseResult(
        *shared, "failed", 0, ex.points, "ok", "3 of 8 cases differ.", error=f"ValueError: {SECRET}",
        student_error=words if kind == "error" else "", rule="name", difference=secret,
        notes=[f"{ex.answer} is defined 2 times: the last definition counts."],
    )  # fmt: skip


def _lab(stem, mutants, rng, kind, number):
    exercises = of_stem(stem)
    most = sum(ex.points for ex in exercises)
    shared = {"file": f"{stem}-{number}.ipynb", "sha256": f"{number:064x}", "graded_at": "2026-11-29T20:00:00+00:00"}
    if kind == "absent":
        return LabResult(stem, "absent", None, most, reason="Nothing was handed in.")
    if kind == "unreadable":
        return LabResult(stem, "unreadable", 0, most, reason="This is not a notebook: `<b>` \u202e.", **shared)
    skill = rng.uniform(0.35, 1.25)
    done = [_exercise(ex, mutants.get(ex.id, []), rng, skill) for ex in exercises]
    if kind in ("timeout", "crashed"):
        ex = exercises[0]
        done[0] = ExerciseResult(ex.id, ex.title, "failed", 0, ex.points, kind, "6 of 8 cases differ.", rule="name")
    if kind == "infra":
        ex = exercises[-1]
        done[-1] = ExerciseResult(ex.id, ex.title, "failed", None, ex.points, "infra", f"The sandbox failed: {SECRET}")
    if number % 9 == 4:
        done[0] = dataclasses.replace(done[0], review=["uses torch.finfo"])
    score = None if kind == "infra" else sum(item.points for item in done)
    reasons = {
        "timeout": f"Ran out of time: {done[0].id}.",
        "crashed": f"Ended its process: {done[0].id}.",
        "infra": f"Could not be graded for a reason that is not the student's: {done[-1].id}.",
    }
    reason = reasons.get(kind, "")
    return LabResult(stem, kind, score, most, done, reason, late=number % 11 == 3, seconds=1.5, key="k", **shared)


def batch(students=30, labs=("01_bit_layouts",), seed=0, sandbox="bwrap") -> tuple[Run, list[StudentResult]]:
    """A run with so many students; ids are s01, s02, …"""
    rng = random.Random(seed)
    mutants = {id: item.mutants for stem in labs for id, item in data.load(stem).exercises.items()}
    kinds = {2: "unreadable", 5: "timeout", 8: "crashed", 12: "infra", 15: "absent"}
    made = []
    for number in range(students):
        name = NAMES[number] if number < len(NAMES) else f"Student {number}"
        done = [_lab(stem, mutants, rng, kinds.get(number, "graded"), number) for stem in labs]
        made.append(StudentResult(f"s{number:02}", name, done, "0123456789ab", VERSIONS))
    infos = [ExerciseInfo(ex.id, stem, ex.answer, ex.title, ex.points) for stem in labs for ex in of_stem(stem)]
    ids = [student.student_id for student in made]
    equal = [Equal(infos[-1].id, ids[:3], False), Equal(infos[0].id, ids[3:4], True)] if students > 3 else []
    run = Run(
        list(labs), infos, ids, [{"file": "../../etc/passwd\\u202e", "reason": "It is not a notebook (.ipynb)."}],
        dict(Counter(lab.status for student in made for lab in student.labs)), equal,
        [Canary(labs[0], "solution", 14, 14, "graded")], "0123456789ab", VERSIONS, sandbox, {"roster": None},
        "/submissions", "2026-11-29T20:00:00+00:00", 61.5, students, 0,
    )  # fmt: skip
    return run, made


def write(out: Path, *args, **kwargs) -> tuple[Run, list[StudentResult]]:
    """Write a run's results into a folder, as grading does."""
    run, students = batch(*args, **kwargs)
    results.write(out / "run.json", run)
    for student in students:
        results.write(results.result_path(out, student.student_id), student)
    return run, students


if __name__ == "__main__":
    from ampedu.grading import report

    write(Path(sys.argv[1]))
    report.write(sys.argv[1])
