"""The command line of grading: ``ampedu grade run | regrade | export | preview | make-secret``, ``doctor --grading``.

Exit status: 0; 1 if something could not be done; 2 for a wrong command line; 3 if the batch is complete but some
results are "infra", so that the command should be run again.
"""

from __future__ import annotations

import argparse
import sys

from ampedu.grading.export import cli as export

INFRA = 3


def add(commands) -> None:
    """Add ``grade`` to the commands of ``ampedu``; loads nothing heavy."""
    top = commands.add_parser("grade", help="for instructors: grade submitted labs; for learners: preview")
    steps = top.add_subparsers(dest="step", metavar="STEP", required=True)
    run = steps.add_parser("run", help="grade a folder or a zip file of submissions")
    run.add_argument("lab", metavar="LAB", help="01, 01_bit_layouts, or all")
    run.add_argument("submissions", metavar="SUBMISSIONS", help="a folder of notebooks, one folder a student, or a zip")
    run.add_argument("-o", "--out", metavar="OUT", required=True, help="folder for the results")
    run.add_argument("--roster", metavar="CSV", help="columns student_id, and optionally name, file, lms_id")
    _options(run)
    run.set_defaults(sandbox="auto")
    again = steps.add_parser("regrade", help="grade the submissions of a finished run again; only what changed")
    again.add_argument("out", metavar="OUT", help="the folder with its results")
    _options(again)
    look = steps.add_parser("preview", help="for learners: what your notebook gets on the public cases")
    look.add_argument("notebook", metavar="NOTEBOOK")
    look.add_argument("--lab", metavar="LAB", help="01; by default the lab that the notebook answers")
    export.add(steps)
    make = steps.add_parser("make-secret", help="make the secret that the cases are drawn from, once a term")
    make.add_argument("file", metavar="FILE", nargs="?", help="by default the one that `grade run` uses")


def _options(parser):
    parser.add_argument("--secret", metavar="FILE", help="draws the cases; by default your own, made at first use")
    parser.add_argument("--jobs", type=_positive(int), metavar="N", help="processes; default: one a core, if they fit")
    parser.add_argument("--sandbox", choices=("auto", "bwrap", "none"), help="none runs submissions unprotected")
    parser.add_argument("--timeout", type=_positive(float), metavar="S", help="seconds for a submission; default 180")
    parser.add_argument("--memory", type=_positive(float), metavar="GIB", help="for a submission; default 4 if it fits")


def _positive(kind):
    def convert(text):
        value = kind(text)
        if not 0 < value < 1e6:
            raise ValueError
        return value

    convert.__name__ = "positive number"
    return convert


def main(options: argparse.Namespace) -> int:
    """Run one step; the exit status."""
    if options.step == "export":
        return export.main(options)
    from ampedu.exercises import data
    from ampedu.grading import batch, confine, course, ingest, notebook, report, results, secret

    known = (
        batch.GradingError, confine.SandboxError, course.CourseError, data.DataMissing, data.DataDamaged,
        ingest.SubmissionsError, notebook.Unreadable, report.ReportError, results.ResultDamaged, secret.SecretError,
    )  # fmt: skip
    run = {"run": _run, "regrade": _regrade, "preview": _preview, "make-secret": _make_secret}[options.step]
    try:
        return run(options)
    except known as error:
        print(f"ampedu: {error}", file=sys.stderr)
    except OSError as error:
        print(f"ampedu: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("ampedu: stopped. What was graded is kept: run the command again to go on.", file=sys.stderr)
        return 130
    return 1


def _given(options, names):
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _run(options):
    from ampedu.grading import batch

    given = _given(options, ("roster", "jobs", "sandbox", "timeout", "memory"))
    with _Progress() as progress:
        run = batch.grade(
            options.lab, options.submissions, options.out,
            secret_file=options.secret, progress=progress, say=_say, **given,
        )  # fmt: skip
    return _finished(run, options.out)


def _regrade(options):
    from ampedu.grading import batch

    given = _given(options, ("jobs", "sandbox", "timeout", "memory"))
    with _Progress() as progress:
        run = batch.regrade(options.out, secret_file=options.secret, progress=progress, say=_say, **given)
    return _finished(run, options.out)


def _say(text):
    print(text, file=sys.stderr, flush=True)


class _Progress:
    """A bar on a terminal with rich; elsewhere a line for each tenth."""

    def __enter__(self):
        self.bar, self.tenth = None, -1
        _say("Preparing.")
        return self

    def __call__(self, done, total, item):
        if self.bar is None and self.tenth < 0 and sys.stderr.isatty():
            self.bar = _rich_bar(total)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done)
        elif total and 10 * done // total > self.tenth:
            print(f"{done} of {total} graded", file=sys.stderr)
        self.tenth = 10 * done // total if total else 10

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()


def _rich_bar(total):
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    bar = Progress(*Progress.get_default_columns(), console=Console(stderr=True))
    bar.add_task("Grading", total=total)
    bar.start()
    return bar


def _finished(run, out):
    from pathlib import Path

    from ampedu.grading import results

    _, students = results.load_run(Path(out))
    print(summary(run, students))
    if run.counts.get("timeout"):
        print(f"On a quieter machine, what ran out of time gets another chance: ampedu grade regrade {out}")
    print(f"Written to {out}: scores.csv, class.html, feedback/ and results/.")
    return INFRA if run.counts.get("infra") else 0


def summary(run, students) -> str:
    """A short account of a run in plain lines: counts, each exercise, and what a person should look at."""
    counts = ", ".join(f"{number} {status}" for status, number in run.counts.items())
    how = f"{run.regraded} graded, {run.reused} taken over, {run.seconds:.0f} s"
    lines = [f"{len(students)} students: {counts}. {how}."]
    if run.sandbox == "none":
        lines.append("UNSANDBOXED: submissions ran unprotected, so none of these results can be trusted.")
    done = {}
    for item in (item for student in students for lab in student.labs for item in lab.exercises):
        done.setdefault(item.id, []).append(item)
    width = max(len(info.id) for info in run.exercises)
    for info in run.exercises:
        found = done.get(info.id, [])
        passed = sum(item.verdict == "passed" for item in found)
        review = sum(bool(item.review) for item in found)
        lines.append(
            f"  {info.id:<{width}}  {passed:>4} of {len(found)} passed" + (f", {review} to review" if review else "")
        )
    for student in students:
        for lab in student.labs:
            if lab.status not in ("graded", "absent"):
                lines.append(f"  {student.student_id}: {lab.status}. {lab.reason}")
    if run.equal:
        exercises = sorted({group.exercise for group in run.equal})
        who = {student for group in run.equal for student in group.students}
        text = f"  answers of {len(who)} students equal the published solution or another student's, in "
        where = ", ".join(exercises) if len(exercises) < 12 else f"{len(exercises)} exercises"
        lines.append(f"{text}{where}: class.html lists them")
    lines += [f"  not read: {item['file']}. {item['reason']}" for item in run.rejected]
    return "\n".join(lines)


def _preview(options):
    from ampedu.grading.preview import preview

    result = preview(options.notebook, options.lab)
    for item in result.exercises:
        mark = {"passed": "✓", "not started": "○"}.get(item.verdict, "✗")
        print(f"{mark} {item.id}: {item.points} of {item.max_points} points. {item.message}")
        for note in item.notes:
            print(f"    {note}")
        if item.error:
            print(f"    {item.error}")
        if item.difference:
            print(f"    {item.difference.call}: expected {item.difference.expected}, got {item.difference.got}")
    print(f"{result.lab}: {result.score} of {result.max_score} points on the public cases. Grading uses others.")
    return 0


def _make_secret(options):
    from pathlib import Path

    from ampedu.grading import secret

    path = Path(options.file) if options.file else secret.default_path()
    print(f"{path} holds a new secret with the id {secret.make(path)}. Keep it out of every repository.")
    return 0


def doctor() -> int:
    """Print what the sandbox is made of here and whether it keeps its promises; 1 if it does not."""
    from ampedu.grading import selftest

    rows, good = selftest.report()
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{'OK' if row.ok else 'FAILED':<8}{row.name:<{width}}  {row.text}")
    print("Submissions can be graded here." if good else "Submissions cannot be graded safely here: see above.")
    return 0 if good else 1
