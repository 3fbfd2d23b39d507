"""What an exercise is: the ``exercise`` decorator, the registry, and look-up by id or by lab.

An exercise holds no reference answer. The lab with the stem NN_name has its exercises in the module exNN_name of this
package.
"""

import difflib
import importlib
import inspect
import numbers
import pkgutil
import re
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ampedu.exercises.plain import NotPlain, freeze
from ampedu.exercises.stream import PUBLIC, Stream

_ID = re.compile(r"\d\d\.[a-z][a-z0-9_]*")
_MODULE = re.compile(r"ex(\d\d_[a-z0-9_]+)")
_SETTLES = re.compile(r"[CR]\d\d+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
MIN_CASES = 6
_registry: dict[str, "Exercise"] = {}


class SpecError(ValueError):
    """An exercise file contradicts the rules; the text names the exercise and the cure."""


class UnknownExercise(LookupError):
    """No exercise has this id; the text lists near names."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: its metadata and the four functions of its specification (cases, run, reduce, describe)."""

    id: str
    stem: str
    answer: str
    title: str
    points: int
    minutes: int
    difficulty: int
    forbids: tuple[str, ...]
    equivalents: tuple[str, ...]
    settles: tuple[str, ...]
    seconds: float
    versioned: bool
    tolerance: Any
    spec: Any = field(repr=False)

    def cases(self, secret: bytes = PUBLIC) -> list[dict]:
        """The inputs drawn from Stream(secret, id): at least six dicts of plain data. Raises SpecError otherwise."""
        cases = self.spec.cases(Stream(secret, self.id))
        if type(cases) is not list or len(cases) < MIN_CASES or any(type(case) is not dict for case in cases):
            raise SpecError(f"exercise {self.id}: cases(stream) must return a list of at least {MIN_CASES} dicts")
        try:
            return freeze(cases)
        except NotPlain as error:
            raise SpecError(f"exercise {self.id}: cases must be plain data, but {error}") from None

    def run(self, answer, case: dict):
        """Raw observations of the answer on one case."""
        return self.spec.run(answer, case)

    def reduce(self, case: dict, raw):
        """Canonical values from raw observations, computed in the trusted process; by default the same values."""
        return self.spec.reduce(case, raw) if hasattr(self.spec, "reduce") else raw

    def describe(self, case: dict) -> str:
        """The call of one case in words."""
        return str(self.spec.describe(case))


def exercise(
    id, *, answer, points, minutes, difficulty, forbids=(), equivalents=(), settles=(), seconds=2.0, versioned=False
):
    """Class decorator that registers an exercise.

    id: "NN.snake_case". answer: the name of the function or class that the learner writes. points ≥ 1. minutes ≥ 1.
    difficulty: 1, 2 or 3. forbids: modules that would be the answer key, blocked on import. equivalents: dotted names
    that do the task for the learner; their use is reported for review, never zeroed. settles: rows such as "C08".
    seconds: time limit per case. versioned: expected outcomes differ between torch versions and are stored per
    "major.minor". The class has a docstring, ``tolerance`` ("exact", dict(rtol=…, atol=…), or one of these per key of
    a dict outcome), cases(stream), run(answer, case), describe(case), and optionally reduce(case, raw). Raises
    SpecError, naming the exercise and what to change.
    """

    def register(cls):
        made = _make(
            cls,
            id,
            answer,
            points,
            minutes,
            difficulty,
            _names(id, "forbids", forbids),
            _names(id, "equivalents", equivalents),
            _names(id, "settles", settles),
            seconds,
            versioned,
        )
        old = _registry.get(id)
        if old and (type(old.spec).__module__, type(old.spec).__qualname__) != (cls.__module__, cls.__qualname__):
            raise SpecError(
                f"exercise {id} is defined twice, as {type(old.spec).__qualname__} and {cls.__qualname__}: rename one"
            )
        for other in _registry.values():
            if other.stem == made.stem and other.answer == answer and other.id != id:
                raise SpecError(f"exercises {other.id} and {id} have the same answer name {answer!r}: rename one")
        _registry[id] = made
        return cls

    return register


def _names(id, what, value):
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise SpecError(f'exercise {id}: {what} must be a tuple of strings, for example {what}=("torch.finfo",)')
    return tuple(value)


def _make(cls, id, answer, points, minutes, difficulty, forbids, equivalents, settles, seconds, versioned):
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise SpecError(f"exercise id {id!r} is not of the form NN.snake_case, for example '01.decode'")
    doc = inspect.getdoc(cls) if cls.__doc__ else ""
    rules = [
        (isinstance(answer, str) and answer.isidentifier(), f"answer={answer!r} is not a Python name"),
        (type(points) is int and points >= 1, f"points={points!r} must be a whole number of at least 1"),
        (type(minutes) is int and minutes >= 1, f"minutes={minutes!r} must be a whole number of at least 1"),
        (difficulty in (1, 2, 3), f"difficulty={difficulty!r} must be 1, 2 or 3"),
        (isinstance(seconds, numbers.Real) and 0 < seconds <= 60, f"seconds={seconds!r} must lie in (0, 60]"),
        (type(versioned) is bool, f"versioned={versioned!r} must be True or False"),
        (bool(doc), "the class needs a docstring whose first line says what the exercise is about"),
        (
            all(_DOTTED.fullmatch(name) for name in forbids + equivalents),
            "forbids and equivalents must hold dotted names",
        ),
        (all(_SETTLES.fullmatch(row) for row in settles), f"settles={settles!r} must hold rows such as 'C08' or 'R02'"),
        (hasattr(cls, "tolerance"), 'the class needs tolerance = "exact" or dict(rtol=…, atol=…)'),
    ]
    rules += [
        (callable(getattr(cls, name, None)), f"the class needs the method {name}")
        for name in ("cases", "run", "describe")
    ]
    for good, text in rules:
        if not good:
            raise SpecError(f"exercise {id}: {text}")
    _check_tolerance(id, cls.tolerance)
    module = _MODULE.fullmatch(cls.__module__.rpartition(".")[2])
    stem = module.group(1) if module else f"{id[:2]}_{cls.__module__.rpartition('.')[2]}"
    if stem[:2] != id[:2]:
        raise SpecError(f"exercise {id} stands in the file of lab {stem}: its id must start with {stem[:2]}")
    return Exercise(
        id,
        stem,
        answer,
        doc.splitlines()[0],
        points,
        minutes,
        difficulty,
        forbids,
        equivalents,
        settles,
        float(seconds),
        versioned,
        cls.tolerance,
        cls(),
    )


def _check_tolerance(id, tolerance):
    if tolerance == "exact":
        return
    if isinstance(tolerance, dict) and tolerance:
        if set(tolerance) <= {"rtol", "atol"}:
            good = len(tolerance) == 2 and all(
                isinstance(x, numbers.Real) and 0 <= x < 1e300 for x in tolerance.values()
            )
            if good and any(tolerance.values()):
                return
        elif all(isinstance(name, str) for name in tolerance):
            for name, part in tolerance.items():
                if isinstance(part, dict) and not set(part) <= {"rtol", "atol"}:
                    raise SpecError(f'exercise {id}: tolerance[{name!r}] must be "exact" or dict(rtol=…, atol=…)')
                _check_tolerance(id, part)
            return
    raise SpecError(f'exercise {id}: tolerance must be "exact", dict(rtol=…, atol=…) or one of these per output name')


def registered() -> tuple[Exercise, ...]:
    """All exercises whose files have been imported so far."""
    return tuple(_registry.values())


def stems() -> tuple[str, ...]:
    """The stems that have an exercise file, in order."""
    package = sys.modules[__package__]
    found = (_MODULE.fullmatch(module.name) for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted({match.group(1) for match in found if match}))


def of_stem(stem: str) -> tuple[Exercise, ...]:
    """The exercises of one lab in the order of their definition.

    Raises UnknownExercise for a stem without an exercise file.
    """
    if stem not in stems():
        raise UnknownExercise(f"no lab {stem!r} has exercises. {_near(stem, stems())}")
    importlib.import_module(f"{__package__}.ex{stem}")
    return tuple(ex for ex in _registry.values() if ex.stem == stem)


def load(id: str) -> Exercise:
    """The exercise with this id. Raises UnknownExercise, which lists near names."""
    if not isinstance(id, str):
        raise UnknownExercise(f"an exercise id is a string such as '01.decode', not {type(id).__name__}")
    for stem in stems():
        if id[:2] == stem[:2]:
            of_stem(stem)
    if id not in _registry:
        known = [ex.id for stem in stems() for ex in of_stem(stem)]
        raise UnknownExercise(f"there is no exercise {id!r:.60}. {_near(id, known)}")
    return _registry[id]


def _near(name, known):
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if not near and len(known) <= 12:
        near = known
    return f"Did you mean {' or '.join(near)}?" if near else "The command `ampedu exercises` lists them all."


class Row(NamedTuple):
    """One row of the table of exercises."""

    id: str
    title: str
    points: int
    minutes: int
    difficulty: int
    settles: tuple[str, ...]


def table() -> list[Row]:
    """All exercises of all labs, in order: id, title, points, minutes, difficulty, settled rows."""
    rows = (ex for stem in stems() for ex in of_stem(stem))
    return [Row(ex.id, ex.title, ex.points, ex.minutes, ex.difficulty, ex.settles) for ex in rows]
