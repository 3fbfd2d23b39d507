"""Mutants: typical wrong answers, each with the message that a learner who gives it should read."""

import runpy
from pathlib import Path
from typing import Any, NamedTuple

from ampedu.exercises.spec import SpecError

_collected: list["Mutant"] = []


class Mutant(NamedTuple):
    """A wrong answer: the exercise id, its own name, the message, and the function or class."""

    exercise: str
    name: str
    message: str
    answer: Any


def mutant(id: str, message: str):
    """Decorator for a wrong answer to exercise ``id``.

    ``message`` names the misconception and the cure, in one to three sentences.
    """
    if not isinstance(message, str) or not message.strip():
        raise SpecError(f"a mutant of {id} has no message: write what the learner misunderstood and what to do")

    def register(answer):
        _collected.append(Mutant(id, answer.__name__, " ".join(message.split()), answer))
        return answer

    return register


def load_mutants(path) -> list[Mutant]:
    """Run a file of mutants and return them in order. Raises SpecError if two of one exercise share a name."""
    start = len(_collected)
    try:
        runpy.run_path(str(path), run_name=f"mutants_{Path(path).stem}")
        found = _collected[start:]
    finally:
        del _collected[start:]
    seen = set()
    for item in found:
        if (item.exercise, item.name) in seen:
            raise SpecError(f"{Path(path).name}: two mutants of {item.exercise} are named {item.name}: rename one")
        seen.add((item.exercise, item.name))
    return found
