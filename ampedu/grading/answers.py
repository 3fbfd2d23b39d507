"""Where the answers are in a submitted notebook, whatever an editor or a student did to its cells.

By the name of the answer over the syntax trees of all cells, the last definition wins; else by the call of ``check``
that names the exercise; else by a comment that names it. Never by metadata, ids or position.
"""

import ast
import functools
import hashlib
import re
from dataclasses import dataclass, field

from ampedu.exercises import cells as definitions
from ampedu.exercises import plain
from ampedu.exercises.locate import CHECKED
from ampedu.grading.notebook import Notebook

_LIKE_CODE = re.compile(r"\s*(async def|def|class)\s+\w+|\s*@\w")
MUCH = 1 << 18  # characters of code; a lab has a tenth
_HIDDEN = ("exec", "eval", "compile", "__import__")


@dataclass(frozen=True)
class Answer:
    """source: everything that the definition needs, as ``cells.materialize`` takes it. name: what it calls the answer.

    rule: "name", "check" or "marker". notes: for the student. review: for the instructor. normal: hash of the syntax
    tree without docstrings. nodes: its size.
    """

    source: str
    name: str
    rule: str
    notes: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)
    normal: str = ""
    nodes: int = 0


def code_of(notebook: Notebook) -> tuple[list[str], list[bool]]:
    """The sources that count as code, and for each whether its cell had another type: a definition made Markdown."""
    chosen = [cell for cell in notebook.cells if cell.kind == "code" or _LIKE_CODE.match(cell.source)]
    return [cell.source for cell in chosen], [cell.kind != "code" for cell in chosen]


def locate(notebook: Notebook, exercises) -> dict[str, Answer]:
    """The answers by exercise id; an exercise without one, or with one of more than 64 kB, is absent."""
    sources, changed = code_of(notebook)
    found = {}
    for ex in exercises:
        try:
            answer = _locate_one(ex, sources, changed)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            answer = None  # a tree that the compiler refuses defines nothing
        if answer is not None and len(answer.source) <= plain.MAX_TEXT:
            found[ex.id] = answer
    _tree.cache_clear()
    if sum(map(len, sources)) > MUCH:
        definitions.forget()
    return found


def _locate_one(ex, sources, changed):
    candidates = []
    for rule, more, name in (("name", [], ex.answer), *_by_check(ex, sources), *_by_marker(ex, sources)):
        source = _source(ex, [*sources, *more], name)
        if source is not None:
            candidates.append((rule, source, name))
    if not candidates:
        return None
    # An untouched stub beside an answer that was renamed: take the answer.
    rule, source, name = next((c for c in candidates if not _is_stub(ex, c[1])), candidates[0])
    tree = ast.parse(source)
    notes, review = [], []
    times = sum(_defines(text, name) for text in sources)
    if times > 1:
        notes.append(f"{name} is defined {times} times: the last definition counts.")
    if any(flag and _defines(text, name) for text, flag in zip(sources, changed, strict=True)):
        notes.append(f"A definition of {name} stands in a cell that is not a code cell. It was read all the same.")
    if rule == "check":
        notes.append(f"{ex.answer} was found under another name, in the call of check.")
    if rule == "marker":
        notes.append(f"{ex.answer} was not found; {name} was taken, whose cell names the exercise.")
    if used := definitions.uses(source, ex.equivalents):
        review.append(f"uses {', '.join(used)}")
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if hidden := [word for word in _HIDDEN if word in called]:
        review.append(f"uses {', '.join(hidden)}")
    normal, nodes = normalized(tree)
    return Answer(source, name, rule, notes, review, normal, nodes)


def _source(ex, sources, name):
    """What ``name`` needs: as it was at the last check of the exercise, unless the answer was defined again since."""
    try:
        whole = definitions.analyze(sources, name)
    except LookupError:
        return None
    checks = [i for i, text in enumerate(sources) if _checks(ex, text)]
    if checks and not any(_defines(text, name) for text in sources[checks[-1] + 1 :]):
        try:
            part = definitions.analyze(sources[: checks[-1] + 1], name)
        except LookupError:
            return whole.source
        if part.missing <= whole.missing:
            return part.source
    return whole.source


@functools.lru_cache(maxsize=256)
def _tree(text):
    return definitions.parsed(text)


def _defines(text, name):
    if name not in text:
        return False
    for node in _tree(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return True
    return False


def _checks(ex, text):
    """The arguments of check(id, answer) for this exercise in a cell."""
    found = []
    if "check" not in text:
        return found
    for node in ast.walk(_tree(text)):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", None) == "check"):
            continue
        arguments = [*node.args, *(word.value for word in node.keywords if word.arg == "answer")]
        if len(arguments) == 2 and isinstance(arguments[0], ast.Constant) and arguments[0].value == ex.id:
            found.append(arguments[1])
    return found


def _by_check(ex, sources):
    for text in reversed(sources):
        for argument in reversed(_checks(ex, text)):
            if isinstance(argument, ast.Name):
                if argument.id != ex.answer:
                    yield "check", [], argument.id
            else:
                yield "check", [f"{CHECKED} = {ast.unparse(argument)}"], CHECKED


def _by_marker(ex, sources):
    marker = re.compile(rf"^\s*#.*(?<![\w.]){re.escape(ex.id)}(?![\w.])", re.MULTILINE)
    for text in reversed(sources):
        if ex.id in text and marker.search(text):
            for node in reversed(_tree(text).body):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name != ex.answer:
                    yield "marker", [], node.name


def _is_stub(ex, source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = node.exc.args[0]
            if isinstance(text, ast.Constant) and str(text.value).startswith(f"{ex.id}:"):
                return True
    return False


def normalized(tree) -> tuple[str, int]:
    """SHA-256 of a syntax tree without docstrings, comments and layout; the number of its nodes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                node.body = body[1:]
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest(), sum(1 for _ in ast.walk(tree))
