"""Quiz questions: from sources/quizzes/*.toml, validated, to the JSON that ampedu ships."""

import json
import re
import tomllib
from pathlib import Path

from tools.project import BuildError, Project, read_text

ID = re.compile(r"quiz/(\d\d)\.[a-z][a-z0-9_]*")
KINDS = ("predict", "quiz")
OPTIONS = range(2, 7)
KEYS = {"id", "kind", "text", "option"}
OPTION_KEYS = {"text", "correct", "reason"}


def sources(project: Project) -> list[Path]:
    """All quiz files, sorted."""
    return sorted((project.root / "sources" / "quizzes").glob("*.toml"))


def target(project: Project, source: Path) -> Path:
    """The JSON file made from `source`."""
    return project.root / "ampedu" / "data" / "quizzes" / f"{source.stem}.json"


def render(project: Project, source: Path) -> str:
    """Text of the JSON file. Raises BuildError with one problem a line."""
    name = project.name(source)
    try:
        table = tomllib.loads(read_text(source, name))
    except tomllib.TOMLDecodeError as error:
        raise BuildError(f"{name}: {error}; correct the TOML.") from None
    questions = _tables(table.get("question"))
    problems = [f'{name}: unknown table "{key}"; write [[question]].' for key in table if key != "question"]
    if not questions:
        problems.append(f"{name}: no [[question]]; write one or delete the file.")
    seen: set[str] = set()
    for question in questions:
        ident = str(question.get("id", "(no id)"))
        problems += [f"{name}, {ident}: {problem}" for problem in _problems(question, source.stem[:2], seen)]
        seen.add(ident)
    if problems:
        raise BuildError("\n".join(problems))
    made = [
        {
            "id": question["id"],
            "kind": question["kind"],
            "text": question["text"].strip(),
            "options": [
                {"text": option["text"].strip(), "correct": option["correct"], "reason": option["reason"].strip()}
                for option in question["option"]
            ],
        }
        for question in questions
    ]
    return json.dumps({"stem": source.stem, "questions": made}, indent=1, ensure_ascii=False) + "\n"


def _problems(question: dict, number: str, seen: set[str]) -> list[str]:
    """What is wrong with one question; `number` is the lesson's, `seen` the ids before it."""
    problems = []
    ident, options = question.get("id"), _tables(question.get("option"))
    match = ID.fullmatch(ident) if isinstance(ident, str) else None
    if not match or match[1] != number:
        problems.append(f'the id must be of the form "quiz/{number}.snake_case".')
    if ident in seen:
        problems.append("this id is used twice; rename one.")
    if question.get("kind") not in KINDS:
        problems.append(f"kind must be one of {', '.join(KINDS)}.")
    if not _is_text(question.get("text")):
        problems.append("the question has no text.")
    if len(options) not in OPTIONS:
        problems.append(f"it has {len(options)} options; write {OPTIONS[0]} to {OPTIONS[-1]}.")
    right = sum(option.get("correct") is True for option in options)
    if right != 1:
        problems.append(f"{right} options are correct; exactly one must be.")
    texts = [option.get("text") for option in options]
    for n, option in enumerate(options, 1):
        if not _is_text(option.get("text")):
            problems.append(f"option {n} has no text.")
        elif texts.count(option["text"]) > 1:
            problems.append(f'option {n} repeats "{option["text"]}".')
        if not _is_text(option.get("reason")):
            problems.append(f"option {n} has no reason; say why it is right or wrong.")
        if not isinstance(option.get("correct"), bool):
            problems.append(f"option {n} needs correct = true or correct = false.")
        problems += [f'option {n} has an unknown key "{key}".' for key in sorted(set(option) - OPTION_KEYS)]
    problems += [f'unknown key "{key}".' for key in sorted(set(question) - KEYS)]
    return problems


def ids(project: Project) -> dict[str, str]:
    """Every valid question id and the quiz file that defines it; broken files are left to `render`."""
    found = {}
    for source in sources(project):
        try:
            questions = json.loads(render(project, source))["questions"]
        except BuildError:
            continue
        found |= {question["id"]: project.name(source) for question in questions}
    return found


def _tables(value) -> list[dict]:
    """`value` if it is an array of tables, as [[question]] gives; else an empty list."""
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else []


def _is_text(value) -> bool:
    return isinstance(value, str) and bool(value.strip())
