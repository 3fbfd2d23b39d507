"""A whole batch: collect, prove that grading works here, grade, write. ``grade`` is what the command line calls."""

import contextlib
import dataclasses
import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from ampedu._facts import memory_bytes
from ampedu.exercises import of_stem
from ampedu.grading import canaries, course, expected, ingest, machine, report, results, secret, selftest, similar, slot
from ampedu.grading.pool import Pool, default_jobs, local
from ampedu.grading.results import Canary, ExerciseInfo, LabResult, Run, StudentResult

TIMEOUT, LOCK_TRIES = 180.0, 15


class GradingError(RuntimeError):
    """The batch cannot be graded; the text says why and what to do. No result was written because of it."""


def grade(
    lab, submissions, out, *, secret_file=None, roster=None, jobs=None, sandbox="auto", timeout=TIMEOUT,
    memory=None, checkout=None, progress=None, say=None,
    executor=local, late_again=False,
) -> Run:  # fmt: skip
    """Grade submissions and write OUT/run.json and OUT/results/ID.json; what did not change is taken over.

    lab: "01", a stem, or "all". submissions: a folder, a zip, or one notebook. secret_file: by default the user's own,
    made at first use. roster: a CSV file. jobs: processes. sandbox: "auto", "bwrap" or "none". timeout: seconds for a
    submission. memory: GiB for it; jobs and memory that are not given are made to fit this machine. checkout: the
    course's repository. progress(done, total, Graded or None) is called after each step, say(text) before what takes a
    while. executor: see pool.local. late_again: do not take over what ran out of time. Raises GradingError and the
    errors of course, ingest, secret, sandbox.
    """
    started, began = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    root = course.find(checkout)
    labs = course.labs(root, lab)
    out, submissions = Path(out), Path(submissions)
    _check_out(out, submissions, labs)
    collected = ingest.collect(submissions, roster, [item.stem for item in labs])
    key_file = Path(secret_file) if secret_file else secret.default_path()
    if not secret_file and not key_file.exists():
        secret.make(key_file)
    key = secret.read(key_file)
    hidden = [*course.answer_keys(root), key_file, submissions, out, *([Path(roster)] if roster else [])]
    kind = selftest.choose(sandbox, hidden)
    say = say or (lambda text: None)
    jobs, memory = _fitting(jobs, memory, say)
    with machine.scratch() as scratch, contextlib.ExitStack() as stack:
        settings = slot.Settings(kind, key, secret.secret_id(key), float(timeout), int(memory * 2**30), scratch)
        pool = Pool(lambda count: executor(count, slot.configure, settings), jobs)
        stack.callback(pool.stop)
        with _locked(out):
            machine.tidy()  # after the processes of a run that was killed have ended
            proofs = _prove(pool, labs, root, key, hidden, settings, say)
            graded = _grade_all(pool, out, collected, labs, settings, progress, late_again)
            run = _write(out, labs, collected, graded, proofs, settings, {
                "lab": str(lab), "jobs": jobs, "timeout": float(timeout), "memory": float(memory), "sandbox": sandbox,
                "roster": os.path.abspath(roster) if roster else None, "secret_file": os.path.abspath(key_file),
            }, submissions, began, started)  # fmt: skip
            report.write(out)
    return run


def regrade(out, **changes) -> Run:
    """Grade the submissions of a finished run again, with its options; ``changes`` override them.

    What did not change is taken over, unless it ran out of time, which may have been the machine's fault.
    """
    try:
        run = results.read(Path(out) / "run.json", Run)
    except FileNotFoundError:
        text = f"{out} holds no finished run. Start it: ampedu grade run LAB SUBMISSIONS -o {out}"
        raise GradingError(text) from None
    names = ("roster", "jobs", "timeout", "memory", "sandbox", "secret_file")
    options = {name: run.options[name] for name in names} | {k: v for k, v in changes.items() if v is not None}
    return grade(run.options["lab"], run.submissions, out, late_again=True, **options)


def _fitting(jobs, memory, say):
    try:
        jobs, memory, text = machine.fit(jobs and int(jobs), memory, memory_bytes(), default_jobs())
    except machine.TooMuch as error:
        raise GradingError(str(error)) from None
    if text:
        say(text)
    return jobs, memory


def _check_out(out, submissions, labs):
    if out.exists() and not out.is_dir():
        raise GradingError(f"{out} is a file. Name a folder.")
    inside, source = out.resolve(), submissions.resolve()
    if inside == source or source in inside.parents or inside in source.parents:
        raise GradingError(f"{out} and {submissions} must not lie in each other. Name another folder with -o.")
    if out.is_dir() and any(out.iterdir()) and not ((out / "run.json").exists() or (out / "results").is_dir()):
        raise GradingError(f"{out} is not empty and holds no results. Name a new folder with -o.")
    if (out / "run.json").exists():
        before = results.read(out / "run.json", Run).labs
        if before != [lab.stem for lab in labs]:
            raise GradingError(f"{out} holds results of {', '.join(before)}. Name another folder with -o.")


@contextlib.contextmanager
def _locked(out):
    """One batch at a time writes into a folder."""
    import fcntl

    (out / "results").mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as file:
        for attempt in range(LOCK_TRIES):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if attempt + 1 == LOCK_TRIES:
                    text = f"another run is writing to {out}. Wait for it, or name another folder."
                    raise GradingError(text) from None
                time.sleep(0.2)  # the processes of a run that was killed take a moment to end
        yield
    (out / ".lock").unlink(missing_ok=True)


def _old(out, id, late_again):
    try:
        labs = results.read(results.result_path(out, id), StudentResult).labs
    except (FileNotFoundError, results.ResultDamaged):
        return []
    return [lab for lab in labs if not (late_again and lab.status == "timeout")]


def _prove(pool, labs, root, key, hidden, settings, say) -> list[Canary]:
    """The sandbox keeps its promises, and known submissions get known points. Raises GradingError."""
    if settings.kind == "bwrap":
        ((_, seen),) = pool.each(slot.probe, [(labs[0].stem, selftest.source(hidden))])
        failed = [row for row in selftest.rows(_value(seen)) if not row.ok]
        if failed:
            text = "; ".join(f"{row.name}: {row.text}" for row in failed)
            raise GradingError(f"the sandbox does not protect this machine: {text}. See ampedu doctor --grading.")
    for lab in labs:
        if expected.load(lab, key) is None:
            say(f"Computing the expected answers of {lab.stem}; they are kept for this secret.")
            ids = [ex.id for ex in of_stem(lab.stem)]
            items = {}
            for index, item in pool.each(slot.expect, [(lab, id) for id in ids]):
                items[ids[index]] = _value(item)
            expected.save(lab, key, {id: items[id] for id in ids})
    say("Grading the known submissions first.")
    chosen = {lab: canaries.submissions(lab, root, settings.scratch) for lab in labs}
    proofs = [proof for lab, birds in chosen.items() for proof in _canaries(pool, lab, birds)]
    return sorted(proofs, key=lambda proof: (proof.lab, proof.name))


def _canaries(pool, lab, chosen):
    """Grade the known submissions of a lab; those that the machine was too busy for once more, one after the other."""
    found = [_value(item) for _, item in sorted(pool.each(slot.grade, [(bird, [lab], []) for *_, bird in chosen]))]
    for (name, points, bird), item in zip(chosen, found, strict=True):
        result = item.result
        if result.score != points and result.status in ("timeout", "infra"):
            ((_, item),) = pool.each(slot.grade, [(bird, [lab], [])])
            result = _value(item).result
        if result.score != points:
            raise GradingError(_surprise(lab, name, points, result))
        yield Canary(lab.stem, name, points, result.score, result.status)


def _value(item):
    if isinstance(item, Exception):
        raise GradingError(str(item)) from item
    return item


def _surprise(lab, name, points, found):
    bad = [item for item in found.exercises if (item.points or 0) != (item.max_points if points else 0)]
    why = f" {bad[0].id}: {bad[0].message or bad[0].error}" if bad else f" {found.reason}"
    why += f" {expected.BUSY}" if found.status in ("timeout", "infra") else ""
    return (
        f"before the batch, the {name} notebook of {lab.stem} got {found.score} points instead of {points}, "
        f"so grading here cannot be trusted and was not started.{why}"
    )


def _grade_all(pool, out, collected, labs, settings, progress, late_again):
    """Grade, and keep each student's results as soon as they are there: after an interruption they are taken over."""
    # Those of one lab together: a sandbox is for one lab.
    submissions = sorted(collected.submissions, key=lambda item: slot.named(item, labs).stem)
    old = {id: _old(out, id, late_again) for id in {item.student_id for item in submissions}}
    waiting = Counter(item.student_id for item in submissions)
    total, graded = len(submissions), []
    if progress:
        progress(0, total, None)
    for index, item in pool.each(slot.grade, [(item, labs, old[item.student_id]) for item in submissions]):
        if isinstance(item, Exception):
            item = _lost(submissions[index], labs, item)
        graded.append(item)
        id = item.submission.student_id
        waiting[id] -= 1
        if not waiting[id]:
            own = [other for other in graded if other.submission.student_id == id]
            (student,) = _students(labs, dataclasses.replace(collected, names={}), own, settings)
            results.write(results.result_path(out, id), student)
        if progress:
            progress(len(graded), total, item)
    return graded


def _lost(submission, labs, error):
    lab = slot.named(submission, labs).stem
    most = sum(ex.points for ex in of_stem(lab))
    reason = f"Could not be graded for a reason that is not the student's ({type(error).__name__}: {error})."
    return slot.Graded(submission, lab, LabResult(lab, "infra", None, most, reason=ingest.shown(reason, 400),
                                                  file=submission.shown, late=submission.late), {}, False)  # fmt: skip


def _write(out, labs, collected, graded, proofs, settings, options, submissions, began, started) -> Run:
    students = _students(labs, collected, graded, settings)
    for student in students:
        results.write(results.result_path(out, student.student_id), student)
    known = {student.student_id for student in students}
    for path in (out / "results").glob("*.json"):
        if path.stem not in known:
            path.unlink()  # of a submission that is not there any more
    solutions = {id: tree for lab in labs for id, tree in similar.published(lab).items()}
    idle = {
        (student.student_id, item.id)
        for student in students for lab in student.labs for item in lab.exercises
        if item.verdict in ("not started", "missing")
    }  # fmt: skip
    reused = sum(item.reused for item in graded)
    run = Run(
        labs=[lab.stem for lab in labs],
        exercises=[
            ExerciseInfo(ex.id, lab.stem, ex.answer, ex.title, ex.points) for lab in labs for ex in of_stem(lab.stem)
        ],
        students=[student.student_id for student in students],
        rejected=collected.rejected,
        counts=dict(sorted(Counter(lab.status for student in students for lab in student.labs).items())),
        equal=similar.groups(graded, solutions, idle),
        canaries=proofs,
        secret_id=settings.secret_id,
        versions=expected.versions(),
        sandbox=settings.kind,
        options=options,
        submissions=str(submissions.resolve()),
        started_at=began,
        seconds=round(time.monotonic() - started, 2),
        regraded=len(graded) - reused,
        reused=reused,
    )
    results.write(out / "run.json", run)
    return run


def _students(labs, collected, graded, settings) -> list[StudentResult]:
    """One record for each student: of several notebooks for a lab one counts, and what is absent is said."""
    names, handed_in = dict(collected.names), {}
    for item in graded:
        id = item.submission.student_id
        names[id] = names.get(id) or item.submission.name
        handed_in.setdefault((id, item.lab), []).append(item)
    return [
        StudentResult(
            id, names[id], [_of_lab(lab.stem, handed_in.get((id, lab.stem), [])) for lab in labs],
            settings.secret_id, expected.versions(),
        )
        for id in sorted(names)
    ]  # fmt: skip


def _of_lab(stem, items) -> LabResult:
    if not items:
        return LabResult(stem, "absent", None, sum(ex.points for ex in of_stem(stem)), reason="Nothing was handed in.")
    items = sorted(items, key=_preference)
    best = items[-1].result
    if len(items) > 1:
        text = f"{len(items)} files were handed in for this lab. The one that counts is {best.file}."
        best = dataclasses.replace(best, notes=[*best.notes, text])
    return best


def _preference(item):
    """The later attempt counts; before that, what can be read, and what has more answers."""
    return item.result.status != "unreadable", item.submission.attempt, len(item.trees), item.submission.shown
