"""``check``: judge the answer in a notebook cell and show a report."""

import os
import sys
import traceback

from ampedu import progress
from ampedu.exercises import arguments, cells, data, judge, spec
from ampedu.exercises.blocking import ForbiddenImport
from ampedu.exercises.limits import TimeLimit, limited
from ampedu.exercises.locate import NoSource, call_from, locate, own_files, state_variables
from ampedu.exercises.report import Report
from ampedu.exercises.state import captured, neutral, reseed

DEFINITION_SECONDS = 10.0

cells.recorder()


def check(id: str, answer) -> None:
    """Run the public cases of an exercise on an answer (a function or class) and show a report.

    Writes nothing to stderr and returns None. Raises AssertionError with the report's text only when the answer has
    not passed and AMPEDU_STRICT=1 or NBGRADER_EXECUTION is set in the environment. Records the result in the
    learner's progress file.
    """
    report = _report(id, answer, call_from(sys._getframe(1)))
    report.show()
    if report.status in ("passed", "failed", "not started") and report.points:
        progress.record_exercise(id, report.status, spec.load(id).points if report.status == "passed" else 0)
    strict = os.environ.get("AMPEDU_STRICT", "0") not in ("", "0") or os.environ.get("NBGRADER_EXECUTION")
    if strict and report.status != "passed":
        raise AssertionError(repr(report))


def _report(id, answer, call):
    if arguments.swapped(id, answer):
        name = getattr(id, "__name__", "answer")
        return _refusal(answer, f'The arguments are in the wrong order. Write check("{answer}", {name})')
    try:
        ex = spec.load(id)
        bundle = data.load(ex.stem)
    except spec.UnknownExercise as error:
        return _refusal(str(id)[:60], _sentence(error))
    except (data.DataMissing, data.DataDamaged) as error:
        return Report("not judged", ex.id, ex.title, _sentence(error))
    if ex.id not in bundle.exercises:
        return Report(
            "not judged",
            ex.id,
            ex.title,
            f"The expected data of lab {ex.stem} do not hold this exercise: run `make build`.",
        )
    item = bundle.exercises[ex.id]
    if (text := arguments.problem(ex, item.signature, answer)) is not None:
        return Report("failed", ex.id, ex.title, text)
    return _judge(ex, item, answer, call)


def _refusal(id, text):
    return Report("not judged", id, "", text)


def _sentence(error):
    text = str(error)
    return text[:1].upper() + text[1:]


def _judge(ex, item, answer, call):
    report = Report("failed", ex.id, ex.title, "", f"0 of {ex.points} points")
    errors = []
    with captured() as printed:
        try:
            definition, space = _fresh(ex, answer, call)
            subject = space[definition.name]
            variables = state_variables(definition, space, call.scope)
            used = cells.uses(definition.source, ex.equivalents)
            if used:
                report.notes.append(f"uses {', '.join(used)}: an instructor may want to look at it.")
            if files := own_files(definition, answer, call.scope):
                listed = " and ".join(f"`{name}`" for name in files)
                report.notes.append(f"needs {listed}. Grading sees the notebook alone: move what you need into a cell.")
        except NoSource:
            subject, definition, variables = answer, None, []
            report.notes.append("the source of the answer was not found, so the object itself was checked.")
        except _Broken as error:
            report.message, report.trace = str(error), error.trace
            return report
        outcomes = judge.observe(ex, subject, item.cases, errors=errors)
        verdict = judge.verdict(ex, item, outcomes)
        if verdict.status == "failed" and variables and not any(isinstance(error, ForbiddenImport) for error in errors):
            live = judge.verdict(ex, item, judge.observe(ex, answer, item.cases))
            if live.status == "passed":
                verdict = _depends(ex, verdict, variables)
    if verdict.status == "failed" and (text := arguments.belongs_elsewhere(ex, answer)):
        report.notes.append(text)
    report.status, report.message = verdict.status, verdict.message
    report.printed = printed.getvalue()
    if verdict.status in ("passed", "not judged"):
        report.points = f"{verdict.points} of {ex.points} points" if verdict.status == "passed" else ""
    if verdict.difference is not None:
        _explain(report, ex, verdict.difference, outcomes, errors)
    return report


def _depends(ex, verdict, variables):
    names = " and ".join(f"`{name}`" for name in variables)
    text = (
        f"{ex.answer} gives the right results in this notebook, but only because of {names}, which other cells set or "
        "change. Grading takes the definition with its imports and constants alone: "
        f"pass {names} as an argument, or compute it inside {ex.answer}."
    )
    return judge.Verdict("failed", 0, text, None, verdict.difference)


class _Broken(Exception):
    def __init__(self, text, trace=""):
        super().__init__(text)
        self.trace = trace


def _fresh(ex, answer, call):
    definition = locate(ex.id, answer, call)
    try:
        with neutral():
            reseed()
            how = definition.source, definition.name, ex.forbids, ex.id, definition.borrowed
            space = limited(DEFINITION_SECONDS, lambda: cells.namespace(*how))
    except TimeLimit:
        text = (
            f"The definition of {ex.answer} and what it needs did not finish: stopped after {DEFINITION_SECONDS:g} s."
        )
        raise _Broken(text) from None
    except ForbiddenImport as error:
        raise _Broken(f"{error}.") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = (
            f"The definition of {ex.answer} does not run on its own: {type(error).__name__}: {judge.first_line(error)}"
        )
        raise _Broken(text, trace_of(error)) from None
    return definition, space


def _explain(report, ex, first, outcomes, errors):
    where = f" at {first.where}" if first.where else ""
    report.rows = [("case", first.call), (f"expected{where}", first.expected), (f"got{where}", first.got)]
    if first.remark:
        report.rows.append(("", first.remark))
    error = errors[first.case]
    if isinstance(error, ForbiddenImport):
        report.message, report.rows = f"{error}.", report.rows[:1]
    elif "error" in outcomes[first.case]:
        report.trace = trace_of(error)


def trace_of(error: BaseException) -> str:
    """The lines of the learner's own code that led to the error, outermost first, numbered within their function."""
    lines = []
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename.startswith("<answer "):
            entry = traceback.FrameSummary(code.co_filename, number, code.co_name)
            place = (
                f"in {code.co_name}, line {number - code.co_firstlineno + 1}"
                if code.co_name != "<module>"
                else "at the top level"
            )
            lines.append(f"{place}:  {entry.line}")
    if len(lines) > 8:
        lines = [*lines[:4], f"… {len(lines) - 8} more calls …", *lines[-4:]]
    return "\n".join(lines)
