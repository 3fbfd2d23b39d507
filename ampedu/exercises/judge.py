"""Observing an answer, and the verdict.

``observe`` runs untrusted code and returns plain data; ``verdict`` runs none of it.

The outcome of a case is one of {"value": plain data}, {"error": type name, "text": first line}, {"timeout": seconds}
and {"unsupported": reason}. Two errors are equal if their types are (texts differ between versions); two time-outs
always are.
"""

import copy
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ampedu.exercises import compare, plain
from ampedu.exercises.blocking import blocked
from ampedu.exercises.limits import TimeLimit, limited
from ampedu.exercises.state import neutral, reseed

PATIENCE = 2
STATUSES = ("passed", "failed", "not started", "not judged")


class FirstDifference(NamedTuple):
    """Case number (from 0), the call in words, expected and got in words, where in the value they differ, a remark."""

    case: int
    call: str
    expected: str
    got: str
    where: str
    remark: str


@dataclass(frozen=True)
class Verdict:
    """status: one of STATUSES.

    Points: earned. message: one or two sentences. mutant: its name if one was recognized.
    """

    status: str
    points: int
    message: str
    mutant: str | None = None
    difference: FirstDifference | None = None


def observe(ex, answer, cases, *, threads: int = 1, errors: list | None = None, each=None) -> list[dict]:
    """The outcomes of an answer (a function or class) on all cases: a fresh copy and ``ex.seconds`` for each.

    Runs on ``threads`` torch threads in a neutral state. After PATIENCE time-outs in a row the remaining cases
    are not run and count as timed out. ``errors``, if given, receives the exception of each case, or None;
    ``each(outcome, error)``, if given, is called after each case. KeyboardInterrupt passes through.
    """
    outcomes, late = [], 0
    with neutral(threads), blocked(ex.forbids, ex.id):
        for case in cases:
            if late >= PATIENCE:
                outcome, error = {"timeout": ex.seconds}, None
            else:
                outcome, error = _observe_one(ex, answer, case)
            late = late + 1 if "timeout" in outcome else 0
            outcomes.append(outcome)
            if errors is not None:
                errors.append(error)
            if each is not None:
                each(outcome, error)
    return outcomes


def _observe_one(ex, answer, case):
    own = copy.deepcopy(case)
    reseed()
    try:
        return {"value": limited(ex.seconds, lambda: plain.freeze(ex.run(answer, own)))}, None
    except plain.NotPlain as error:
        return {"unsupported": str(error)}, error
    except TimeLimit:
        return {"timeout": ex.seconds}, None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return {"error": type(error).__name__[:200], "text": first_line(error)}, error


def first_line(error) -> str:
    """The first line of an exception's text, at most 500 characters; never raises."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = ["(the text of this exception cannot be shown)"]
    return lines[0][:500] if lines else ""


def reduce(ex, cases, outcomes) -> list[dict]:
    """Raw outcomes to canonical ones by the exercise's ``reduce``; a value it cannot take becomes "unsupported".

    A ``reduce`` that raises NotPlain says why in words.
    """
    with neutral():
        return [_reduce_one(ex, case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]


def _reduce_one(ex, case, outcome):
    if "value" not in outcome:
        return outcome
    try:
        return {"value": plain.freeze(ex.reduce(copy.deepcopy(case), copy.deepcopy(outcome["value"])))}
    except plain.NotPlain as error:
        return {"unsupported": str(error)}
    except Exception as error:
        reason = f"the value {compare.show(outcome['value'], 100)} cannot be evaluated ({type(error).__name__})"
        return {"unsupported": reason}


def kind(outcome) -> str:
    """ "value", "error", "timeout" or "unsupported"."""
    return next(name for name in ("value", "error", "timeout", "unsupported") if name in outcome)


def outcome_difference(expected, got, tolerance) -> compare.Difference | None:
    """The difference between two outcomes of one case, or None."""
    if kind(expected) == kind(got) == "value":
        return compare.difference(expected["value"], got["value"], tolerance)
    if kind(expected) == kind(got) and (kind(got) == "timeout" or expected[kind(got)] == got[kind(got)]):
        return None
    return compare.Difference("", describe_outcome(expected), describe_outcome(got), "")


def outcome_ratio(expected, got, tolerance) -> float:
    """The distance between two outcomes of one case in units of the tolerance (compare.ratio); inf if unlike."""
    if kind(expected) == kind(got) == "value":
        return compare.ratio(expected["value"], got["value"], tolerance)
    return 0.0 if outcome_difference(expected, got, tolerance) is None else float("inf")


def equal(expected, got, tolerance) -> bool:
    """Whether two lists of outcomes agree on all cases."""
    pairs = zip(expected, got, strict=True)
    return all(outcome_difference(a, b, tolerance) is None for a, b in pairs)


def describe_outcome(outcome) -> str:
    """An outcome in words."""
    if "value" in outcome:
        return compare.show(outcome["value"])
    if "error" in outcome:
        return f"{outcome['error']}: {outcome['text']}" if outcome.get("text") else outcome["error"]
    if "timeout" in outcome:
        return f"no result: stopped after {outcome['timeout']:g} s"
    return f"no usable result: {outcome['unsupported']}"


def is_stub(ex, outcome) -> bool:
    """Whether this outcome is the untouched stub: a NotImplementedError that names the exercise."""
    return outcome.get("error") == "NotImplementedError" and outcome.get("text", "").startswith(ex.id)


def torch_version() -> str:
    """ "major.minor" of the running torch."""
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def verdict(ex, data, outcomes, version: str | None = None) -> Verdict:
    """Judge raw outcomes on ``data.cases`` (data.ExerciseData) against its expected outcomes and its mutants.

    version: torch "major.minor" that the outcomes come from, by default the running one; for versioned exercises only.
    """
    if len(outcomes) != len(data.cases):
        raise ValueError(f"{ex.id}: {len(outcomes)} outcomes for {len(data.cases)} cases")
    if all(is_stub(ex, outcome) for outcome in outcomes):
        return Verdict(
            "not started", 0, f"{ex.answer} is still the stub. Replace the line that raises NotImplementedError."
        )
    key = (version or torch_version()) if ex.versioned else "any"
    if key not in data.expected:
        known = ", ".join(data.expected) or "none"
        return Verdict(
            "not judged",
            0,
            f"The right answer depends on the torch version. It is known for torch {known}; this is torch {key}.",
        )
    got = reduce(ex, data.cases, outcomes)
    expected = data.expected[key]
    if equal(expected, got, ex.tolerance):
        return Verdict("passed", ex.points, f"All {len(got)} cases agree.")
    first = _first(ex, data.cases, expected, got)
    for mutant in data.mutants:
        if key in mutant.outcomes and equal(mutant.outcomes[key], got, ex.tolerance):
            return Verdict("failed", 0, mutant.message, mutant.name, first)
    wrong = sum(outcome_difference(a, b, ex.tolerance) is not None for a, b in zip(expected, got, strict=True))
    return Verdict("failed", 0, _summary(ex, got, wrong), None, first)


def _summary(ex, got, wrong):
    not_run = max(0, len(list(itertools.takewhile(lambda outcome: "timeout" in outcome, reversed(got)))) - PATIENCE)
    text = f"{wrong - not_run} of {len(got) - not_run} cases differ."
    if not_run:
        text += f" The other {not_run} were not run, because {PATIENCE} in a row ran out of time."
    if any(is_stub(ex, outcome) for outcome in got):
        text += f" A part of {ex.answer} is still the stub."
    return text


def _first(ex, cases, expected, got):
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        if found := outcome_difference(a, b, ex.tolerance):
            return FirstDifference(
                i, ex.describe(copy.deepcopy(cases[i])), found.expected, found.got, found.where, found.remark
            )
    raise AssertionError("called only when some outcome differs")
