"""The command line: ``ampedu doctor | exercises | grade | progress | reset``. ``--help`` does not load torch."""

from __future__ import annotations

import argparse
import difflib
import os
import sys

from ampedu import __version__
from ampedu.grading import command

COMMANDS = ("doctor", "exercises", "grade", "progress", "reset")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(prog="ampedu", description="Companion of the course on mixed-precision training.")
    top.add_argument("--version", action="version", version=f"ampedu {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="what this machine can do, what is wrong, and the cure")
    doctor.add_argument("--json", action="store_true", help="the same as JSON")
    doctor.add_argument("--grading", action="store_true", help="instead: does the sandbox for grading hold?")
    commands.add_parser("exercises", help="all exercises: points, minutes, difficulty, claims they settle")
    command.add(commands)
    progress = commands.add_parser("progress", help="what you have passed and answered")
    progress.add_argument("--export", metavar="FILE", help="write it to a file, e.g. for your instructor")
    reset = commands.add_parser("reset", help="restore a lab in work/; your version is kept beside it")
    reset.add_argument("lab", metavar="LAB", help="01 or 01_bit_layouts")
    reset.add_argument("exercise", metavar="EXERCISE", nargs="?", help="only this answer, e.g. 01.decode or decode")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0, 1 for a failure, 2 for a wrong command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"Did you mean: ampedu {near[0]}" if near else f"The commands are: {', '.join(COMMANDS)}."
        print(f"ampedu: there is no command {arguments[0]!r}. {hint}", file=sys.stderr)
        return 2
    top = parser()
    options = top.parse_args(arguments)
    if options.command is None:
        top.print_help()
        return 0
    runs = {"doctor": _doctor, "exercises": _exercises, "grade": _grade, "progress": _progress, "reset": _reset}
    run = runs[options.command]
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; Python must not complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _doctor(options: argparse.Namespace) -> int:
    from ampedu import doctor

    if options.grading:
        return command.doctor()
    return doctor.main(options.json)


def _grade(options: argparse.Namespace) -> int:
    return command.main(options)


def _exercises(options: argparse.Namespace) -> int:
    from ampedu.exercises import table

    rows = [
        (row.id, str(row.points), str(row.minutes), "●" * row.difficulty, " ".join(row.settles), row.title)
        for row in table()
    ]
    print(_aligned([("id", "points", "minutes", "level", "settles", "about"), *rows]))
    return 0


def _progress(options: argparse.Namespace) -> int:
    from ampedu import progress

    if options.export is not None:
        try:
            progress.export(options.export)
        except OSError as error:
            print(f"ampedu: cannot write {options.export}: {error.strerror}. Name another file.", file=sys.stderr)
            return 1
        except ValueError as error:
            print(f"ampedu: {error}. For example: --export progress.json", file=sys.stderr)
            return 1
        print(f"Written to {options.export}")
        return 0
    rows = progress.rows()
    if not rows:
        print("Nothing yet. Answer a quiz in a lesson, or run a check in a lab.")
        return 0
    lines = [(row["id"], row["status"], str(row["points"] or ""), str(row["attempts"])) for row in rows]
    print(_aligned([("id", "status", "points", "tries"), *lines]))
    passed = sum(row["status"] == "passed" for row in rows if row["kind"] == "exercise")
    points = sum(row["points"] for row in rows)
    print(f"{passed} exercise{'s' * (passed != 1)} passed, {points} point{'s' * (points != 1)}.")
    return 0


def _reset(options: argparse.Namespace) -> int:
    from ampedu.reset import ResetError, reset

    try:
        print(reset(options.lab, options.exercise))
    except ResetError as error:
        print(f"ampedu: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"ampedu: {error.filename} cannot be read or written: {error.strerror}. Check who owns work/.",
            file=sys.stderr,
        )
        return 1
    return 0


def _aligned(rows: list[tuple[str, ...]]) -> str:
    """Rows as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
