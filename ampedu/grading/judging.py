"""From what a sandbox gave back to points and words: the trusted half. Nothing of a submission runs here."""

import ast
import builtins
import dataclasses

import torch

from ampedu.exercises import judge
from ampedu.exercises.cells import parsed
from ampedu.exercises.limits import TimeLimit, limited
from ampedu.grading.answers import Answer
from ampedu.grading.ingest import shown
from ampedu.grading.results import Difference, ExerciseResult
from ampedu.grading.sandbox import DEFINITION_SECONDS, Observed

JUDGE_SECONDS = 60.0
_KNOWN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
_KNOWN |= {"ForbiddenImport", "OutOfMemoryError", "AcceleratorError", "_LinAlgError", "JSONDecodeError"}
_ENDED = "Its process ended before it had answered."


def missing(ex) -> ExerciseResult:
    """The result of an exercise whose answer no cell defines."""
    text = f"No cell defines {ex.answer}. Was it renamed or deleted?"
    return ExerciseResult(ex.id, ex.title, "missing", 0, ex.points, "ok", text)


def not_run(ex, answer: Answer | None, end: str, message: str) -> ExerciseResult:
    """The result of an exercise that was not run because the submission's time was over, or ("infra") could not be."""
    points = None if end == "infra" else 0
    return ExerciseResult(ex.id, ex.title, "failed", points, ex.points, end, message, **_about(answer))


def judged(ex, item, answer: Answer, observed: Observed) -> ExerciseResult:
    """The result of one exercise. ``item``: data.ExerciseData, with the cases that the answer was observed on."""
    if observed.definition is None and observed.end == "ok":
        observed = dataclasses.replace(observed, definition={"error": "", "text": "", "lines": [], "forbidden": False})
    if observed.definition is None or observed.definition:
        return _undefined(ex, answer, observed)
    try:
        verdict = limited(JUDGE_SECONDS, lambda: judge.verdict(ex, item, observed.outcomes))
    except TimeLimit:
        verdict = judge.Verdict("failed", 0, "The result is so large that it could not be judged.")
    result = ExerciseResult(
        ex.id, ex.title, verdict.status, verdict.points, ex.points, observed.end, verdict.message, verdict.mutant,
        **_about(answer, observed),
    )  # fmt: skip
    first = verdict.difference
    if first is None:
        return result
    texts = [shown(text, 500) for text in (first.call, first.expected, first.got, first.where, first.remark)]
    result = dataclasses.replace(result, difference=Difference(first.case, *texts))
    details = observed.details[first.case]
    if details is not None:
        result = _with_error(result, answer, details)
        if details["forbidden"]:
            return dataclasses.replace(result, message=_forbidden(ex, details["text"]))
    elif observed.end == "crashed":
        result = dataclasses.replace(result, error=shown(observed.reason, 700))
    if observed.reason and verdict.mutant is None:
        return dataclasses.replace(result, message=f"{_reason(observed)} {verdict.message}")
    return result


def _reason(observed):
    """Why it ended, for the student: an answer can spell a secret input in its exit status or signal."""
    return _ENDED if observed.ended else observed.reason


def _about(answer, observed=None):
    if answer is None:
        return {}
    review = list(answer.review)
    if observed is not None and observed.tampered:
        review.append("sent the judge bytes that no honest answer sends")
    return {"rule": answer.rule, "notes": list(answer.notes), "review": review, "answer_sha256": answer.normal}


def _undefined(ex, answer, observed):
    found = observed.definition
    result = ExerciseResult(ex.id, ex.title, "failed", 0, ex.points, observed.end, "", **_about(answer, observed))
    if found is None and observed.end != "timeout":
        text = f"The definition of {ex.answer} ended its process. {_reason(observed)}".strip()
        return dataclasses.replace(result, message=text, end="crashed", error=shown(observed.reason, 700))
    if found is None or "timeout" in found:
        text = f"The definition of {ex.answer} and what it needs did not finish in {DEFINITION_SECONDS:g} s."
        return dataclasses.replace(result, message=text, end="timeout")
    if found["forbidden"]:
        return dataclasses.replace(_with_error(result, answer, found), message=_forbidden(ex, found["text"]))
    result = _with_error(result, answer, found)
    text = f"The definition of {ex.answer} does not run on its own. {result.student_error}".strip()
    return dataclasses.replace(result, message=text)


def _forbidden(ex, text):
    module = next((name for name in ex.forbids if name in text), "a module that holds the answer")
    return f"{ex.id} must be solved without {module}: it holds the answer."


def _with_error(result, answer, details):
    """Both texts of an exception: the whole for the instructor, and what may be shown to the student.

    An answer chooses its exception, and may spell a secret input in its text or its name. So the student gets a name
    from a closed list and a line of the own code; the text appears in `check`, whose cases are public.
    """
    number = details["lines"][-1] if details["lines"] else None
    lines = answer.source.splitlines()
    code = f" In line {number}: {lines[number - 1].strip()}" if number is not None and number <= len(lines) else ""
    name = f"`{details['error']}`" if details["error"] in _KNOWN else "an error of its own class"
    place = _place(answer, number)
    error = shown(f"{details['error']}: {details['text']}{code}", 700)
    student = f"It raised {name}{place}. `check` shows the text of the error on the public cases."
    return dataclasses.replace(result, error=error, student_error=shown(student, 500))


def _place(answer, number):
    """Where the code of the answer stands in its line ``number``: counted from the definition around it, or ""."""
    tree = parsed(answer.source)
    if number not in {getattr(node, "lineno", 0) for node in ast.walk(tree)}:  # an empty line could be a message
        return ""
    for node in tree.body:
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if named and node.lineno <= number <= node.end_lineno:
            return f" in line {number - node.lineno + 1} of `{node.name}`"
    return f" in line {number} of what `{answer.name}` needs"


def single_thread() -> None:
    """The judge computes as the worker does."""
    torch.set_num_threads(1)
