"""``ampedu grade export``: the command line of the exports."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path

from ampedu.grading.export import ExportError


def add(steps) -> None:
    """Add ``export`` to the steps of ``ampedu grade``; loads nothing heavy."""
    top = steps.add_parser("export", help="grades for Canvas, Moodle, Gradescope or a spreadsheet")
    top.add_argument("out", metavar="OUT", help="the folder of a finished run")
    kind = top.add_mutually_exclusive_group(required=True)
    kind.add_argument("--canvas", metavar="CSV", help="fill a gradebook exported from Canvas")
    kind.add_argument("--moodle", metavar="CSV", help="fill a grading worksheet downloaded from Moodle")
    kind.add_argument("--gradescope", metavar="DIR", help="write DIR/ID/results.json for each student")
    kind.add_argument("--csv", action="store_true", help="the table of scores, so that a spreadsheet reads all letters")
    top.add_argument("-o", "--output", metavar="FILE", help="the new file; by default in OUT/exports")
    top.add_argument("--lab", metavar="LAB", help="01, or total; by default the only lab of the run")
    top.add_argument("--column", metavar="NAME", help="the column of the grade, if it is not found by itself")
    top.add_argument("--by", metavar="NAME", help="the column with the students' ids, if it is not found by itself")
    top.add_argument("--comments", metavar="NAME", help="Moodle: also write feedback into this column")
    top.add_argument("--roster", metavar="CSV", help="whose lms_id is an id too; by default the roster of the run")
    top.add_argument(
        "--include", metavar="STATUS", action="append", default=[], help="also export timeout, crashed or unreadable"
    )
    top.add_argument("--scale", action="store_true", help="convert to the points that the assignment allows")
    top.add_argument("--overwrite", action="store_true", help="replace grades that stand there already")


def main(options: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    from ampedu.grading import ingest, results

    try:
        return _main(options)
    except FileNotFoundError as error:
        if Path(error.filename or "").name == "run.json":
            text = f"{options.out} holds no finished run. Start it: ampedu grade run LAB SUBMISSIONS -o {options.out}"
            print(f"ampedu: {text}", file=sys.stderr)
        else:
            print(f"ampedu: {error.filename} does not exist. Is the name right?", file=sys.stderr)
    except OSError as error:
        print(f"ampedu: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
    except (ExportError, results.ResultDamaged, ingest.SubmissionsError) as error:
        print(f"ampedu: {error}", file=sys.stderr)
    return 1


def _main(options):
    from ampedu.grading import results
    from ampedu.grading.export import scored
    from ampedu.grading.report import replace, scores

    out = Path(options.out)
    run, students = results.load_run(out)
    if run.sandbox == "none":
        print("UNSANDBOXED: submissions ran unprotected, so none of these grades can be trusted.", file=sys.stderr)
    if options.csv:
        path = _target(options, out / "exports" / "scores.csv")
        replace(path, scores.text(run, students).encode("utf-8-sig"))
        print(f"{path}: {len(students)} students.")
        return 0
    stems = scored.choose(run, options.lab)
    entries = scored.scores(run, students, stems, options.include, _lms_ids(options, run))
    part = stems[0] if len(stems) == 1 else scored.TOTAL
    if options.gradescope:
        return _gradescope(options, entries, out, part)
    return _template(options, entries, stems, out, part)


def _lms_ids(options, run) -> dict[str, str]:
    from ampedu.grading import ingest

    roster = options.roster or run.options.get("roster")
    if not roster:
        return {}
    if not options.roster and not Path(roster).is_file():
        print(f"The roster {roster} of the run is gone: students are matched by their ids only.", file=sys.stderr)
        return {}
    rows = ingest.read_roster(roster)
    return {row["student_id"]: row["lms_id"] for row in rows if row.get("lms_id")}


def _target(options, default, *sources) -> Path:
    path = Path(options.output) if options.output else default
    if any(path.exists() and path.samefile(source) for source in sources):
        raise ExportError(f"{path} is the template itself. Name another file with -o: the download stays as it is.")
    return path


def _template(options, entries, stems, out, part):
    from ampedu.grading.export import canvas, moodle
    from ampedu.grading.report import replace, scrub

    kind = "canvas" if options.canvas else "moodle"
    source = Path(options.canvas or options.moodle)
    target = _target(options, out / "exports" / f"{kind}-{part}.csv", source)
    content, name = source.read_bytes(), source.name
    given = {name: getattr(options, name) for name in ("column", "by", "scale", "overwrite")}
    if kind == "canvas":
        if options.comments:
            raise ExportError("Canvas does not import comments from a gradebook. Leave --comments away.")
        done = canvas.fill(content, name, entries, stems, **given)
    else:
        done = moodle.fill(content, name, entries, comments=options.comments, **given)
    replace(target, done.content)
    print(f"{target}: {_count(len(done.filled), 'grade')} written into the column {done.column!r}.")
    if done.same:
        print(f"{_count(len(done.same), 'grade')} stood there already.")
    if done.kept:
        print(f"{_count(len(done.kept), 'other grade')} stood there and stayed. To replace them, add --overwrite:")
        for entry, old, new in done.kept:
            print(f"  {entry.student_id}: {scrub.text(old, 20)} there, {new} here")
    if done.others:
        print(f"{_count(done.others, 'row')} of the template without a student of this run.")
    _report_left(done.left, target)
    for note in done.notes:
        print(note)
    return 0


def _gradescope(options, entries, out, part):
    from ampedu.grading.export import gradescope

    if options.output:
        raise ExportError("--gradescope names its folder itself. Leave -o away.")
    done, left = gradescope.write(options.gradescope, entries, options.overwrite)
    print(f"{options.gradescope}: {_count(len(done), 'student')}, a results.json for each.")
    _report_left(left, out / "exports" / f"gradescope-{part}")
    return 0


def _report_left(left, target) -> None:
    """A list of the students who got no grade, beside the export; an old one goes away."""
    from ampedu.grading.report import replace, scrub

    path = target.with_name(f"{target.stem}-not-exported.csv")
    if not left:
        path.unlink(missing_ok=True)
        return
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(("student_id", "name", "status", "score", "max_score", "reason"))
    for item in sorted(left, key=lambda item: item.entry.student_id):
        entry = item.entry
        cells = (entry.student_id, entry.name, entry.status, entry.score, entry.max_score, item.reason)
        writer.writerow([scrub.cell(value) for value in cells])
    replace(path, buffer.getvalue().encode("utf-8"))
    print(f"{_count(len(left), 'student')} got no grade; {path} says why.")


def _count(number, word) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
