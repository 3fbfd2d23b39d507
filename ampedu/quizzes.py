"""Quiz questions: loading and checking.

A question is committed to before its answer is shown, so every option carries a reason. The build turns
sources/quizzes/STEM.toml into ampedu/data/quizzes/STEM.json; notebooks read the JSON with `find`.
"""

import difflib
import importlib.resources
import json
import re
from dataclasses import dataclass

KINDS = ("predict", "quiz")
ID = re.compile(r"quiz/\d\d\.[a-z][a-z0-9_]*")


class QuizError(ValueError):
    """A quiz file that cannot be used, or a question that does not exist; the message names it and the cure."""


@dataclass(frozen=True)
class Option:
    """One answer that can be chosen, and why it is right or wrong."""

    text: str
    correct: bool
    reason: str


@dataclass(frozen=True)
class Question:
    """One question. kind: "predict" (before a cell runs) or "quiz"; texts are in the markdown of ampedu._quiz_text."""

    id: str
    kind: str
    text: str
    options: tuple[Option, ...]

    @property
    def correct(self) -> int:
        """Index of the right option."""
        return next(index for index, option in enumerate(self.options) if option.correct)


def validate(data, where: str) -> tuple[Question, ...]:
    """Questions from the data of a quiz file. QuizError names the file, the question and the cure."""
    if not isinstance(data, dict) or not isinstance(data.get("questions"), list) or not data["questions"]:
        raise QuizError(f"{where}: no questions; a quiz file holds at least one")
    stem = data.get("stem")
    if not isinstance(stem, str) or not re.fullmatch(r"\d\d_[a-z0-9_]+", stem):
        raise QuizError(f"{where}: the stem must look like 01_bit_layouts, not {stem!r}")
    questions = tuple(_question(raw, where, number) for number, raw in enumerate(data["questions"], 1))
    seen = set()
    for question in questions:
        if question.id in seen:
            raise QuizError(f"{where}: two questions are called {question.id}; give one another id")
        if not question.id.startswith(f"quiz/{stem[:2]}."):
            raise QuizError(f"{where}: {question.id} must start with quiz/{stem[:2]}. like its file")
        seen.add(question.id)
    return questions


def _question(raw, where: str, number: int) -> Question:
    name = raw.get("id") if isinstance(raw, dict) else None
    here = f"{where}, {name or f'question {number}'}"
    if not isinstance(raw, dict):
        raise QuizError(f"{here}: a question is a table, not {raw!r}")
    _only(raw, {"id", "kind", "text", "options"}, here)
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise QuizError(f"{here}: the id must look like quiz/01.more_range, not {name!r}")
    if raw.get("kind") not in KINDS:
        raise QuizError(f"{here}: kind must be one of {', '.join(KINDS)}, not {raw.get('kind')!r}")
    options = raw.get("options")
    if not isinstance(options, list) or len(options) < 2:
        raise QuizError(f"{here}: give at least two options")
    parsed = tuple(_option(option, f"{here}, option {index}") for index, option in enumerate(options, 1))
    if sum(option.correct for option in parsed) != 1:
        raise QuizError(f"{here}: exactly one option must be correct, here {sum(o.correct for o in parsed)} are")
    if len({option.text for option in parsed}) != len(parsed):
        raise QuizError(f"{here}: two options have the same text")
    return Question(name, raw["kind"], _text(raw, "text", here), parsed)


def _option(raw, here: str) -> Option:
    if not isinstance(raw, dict):
        raise QuizError(f"{here}: an option is a table with text, correct and reason, not {raw!r}")
    _only(raw, {"text", "correct", "reason"}, here)
    if not isinstance(raw.get("correct"), bool):
        raise QuizError(f"{here}: correct must be true or false, not {raw.get('correct')!r}")
    return Option(_text(raw, "text", here), raw["correct"], _text(raw, "reason", here))


def _text(raw: dict, key: str, here: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value.strip():
        raise QuizError(f"{here}: {key} is missing or empty" + ("; every option needs one" if key == "reason" else ""))
    for mark in ("`", "$", "**"):
        if value.count(mark) % 2:
            raise QuizError(f"{here}: a {mark} in its {key} is opened and not closed")
    return value.strip()


def _only(raw: dict, keys: set, here: str) -> None:
    extra = sorted(set(raw) - keys)
    if extra:
        raise QuizError(f"{here}: unknown key {extra[0]!r}; known are {', '.join(sorted(keys))}")


def _folder():
    return importlib.resources.files("ampedu") / "data" / "quizzes"


def stems() -> list[str]:
    """Stems that have a quiz file, sorted."""
    folder = _folder()
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def load(stem: str) -> tuple[Question, ...]:
    """The questions of one lesson, checked. QuizError if the file is missing or broken."""
    where = f"ampedu/data/quizzes/{stem}.json"
    if stem not in stems():
        raise QuizError(f"{where} does not exist: run `make build`, or install ampedu again. {_known(stems())}")
    try:
        data = json.loads((_folder() / f"{stem}.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise QuizError(f"{where} is not valid JSON ({error}): run `make build`, or install ampedu again") from None
    return validate(data, where)


def find(name: str) -> Question:
    """The question with this id; "01.more_range" is short for "quiz/01.more_range". QuizError names close ids."""
    wanted = name if str(name).startswith("quiz/") else f"quiz/{name}"
    if not ID.fullmatch(wanted):
        raise QuizError(f"{name!r} is no quiz id: an id looks like 01.more_range")
    prefix = wanted[len("quiz/") :][:2]
    questions = [question for stem in stems() if stem[:2] == prefix for question in load(stem)]
    for question in questions:
        if question.id == wanted:
            return question
    ids = [question.id for question in questions] or [f"{stem[:2]}.…" for stem in stems()]
    close = difflib.get_close_matches(wanted, ids, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise QuizError(f"no question is called {wanted}.{hint} {_known(ids)}")


def _known(names: list[str]) -> str:
    return f"Known: {', '.join(names)}." if names else "No quiz file is installed: run `make build`."
