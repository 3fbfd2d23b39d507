"""Where the answer passed to ``check`` is defined.

Under which name, in which cells or file, with which notebook variables.
"""

import ast
import inspect
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ampedu.exercises import cells, compare, plain

CHECKED = "checked_answer"


class NoSource(LookupError):
    """The source of the answer cannot be found, for example because it was typed into a plain Python prompt."""


@dataclass
class Definition:
    """source and name as ``cells.materialize`` takes them; borrowed: plain constants taken from the live namespace."""

    source: str
    name: str
    borrowed: dict
    closure: cells.Closure


class Call(NamedTuple):
    """Where check was called: the global namespace, the line, and the line that the cell or file has come to."""

    scope: dict
    line: int
    reached: int | None


def call_from(frame) -> Call:
    """The Call for the frame that called check."""
    top = frame
    while top is not None and not (top.f_locals is top.f_globals is frame.f_globals):
        top = top.f_back
    return Call(frame.f_globals, frame.f_lineno, top.f_lineno if top else None)


def locate(id: str, answer, call: Call) -> Definition:
    """The definition of a live answer, as it was when check was called. Raises NoSource."""
    shell = cells.recorder()
    sources = list(shell.cells) if shell else _file_sources(answer, call.scope)
    current = -1 if shell else 0
    argument = _argument(id, sources[current], call.line) if sources else None
    if sources and call.reached is not None:
        sources[current] = cells.until(sources[current], call.reached)
    name, expression = _name(answer, argument, call.scope)
    if expression is not None:
        sources = [*sources, f"{CHECKED} = {expression}"]
        name = CHECKED
    return _complete(sources, name, call.scope)


def _file_sources(answer, scope):
    files = [getattr(sys.modules.get(getattr(answer, "__module__", None)), "__file__", None), scope.get("__file__")]
    sources = []
    for file in dict.fromkeys(files[::-1]):
        if file and file.endswith(".py") and Path(file).is_file():
            sources.append(Path(file).read_text(encoding="utf-8"))
    return sources


def _name(answer, argument, scope):
    """The variable that holds the answer, or the expression in the call of check if it is not a variable."""
    if isinstance(argument, ast.Name) and scope.get(argument.id) is answer:
        return argument.id, None
    own = getattr(answer, "__name__", None)
    if own and scope.get(own) is answer:
        return own, None
    for name, value in scope.items():
        if value is answer and not name.startswith("_"):
            return name, None
    if argument is not None and not isinstance(argument, ast.Name):
        return None, ast.unparse(argument)
    return own, None


def _argument(id, source, line):
    """The second argument of the call check(id, …) that is running; the nearest one if line numbers have moved."""
    found = []
    for node in cells.calls(source, "check"):
        arguments = [*node.args, *(word.value for word in node.keywords if word.arg == "answer")]
        if len(arguments) == 2 and isinstance(arguments[0], ast.Constant) and arguments[0].value == id:
            found.append((abs(node.lineno - line), arguments[1]))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _complete(sources, name, scope):
    """Analyze; what no recorded cell binds (cells that ran unseen) is taken from the live namespace if it can be."""
    if not name:
        raise NoSource("the answer has no name")
    borrowed, asked = {}, set()
    while True:
        try:
            found = cells.analyze(sources, name)
            wanted = found.missing - found.unkept - asked - borrowed.keys()
        except LookupError:
            found, wanted = None, {name} - asked
        wanted = {item for item in wanted if item in scope}
        if not wanted:
            break
        for item in sorted(wanted):
            asked.add(item)
            if (text := _live_source(item, scope[item])) is not None:
                sources = [text, *sources]
            elif item != name:
                try:
                    borrowed[item] = plain.freeze(scope[item])
                except plain.NotPlain:
                    continue
    if found is None:
        raise NoSource(f"no cell or file defines {name}")
    return Definition(found.source, name, borrowed, found)


def _live_source(name, value):
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != "__main__" else None
    if not isinstance(value, (types.FunctionType, type)):
        return None
    module = sys.modules.get(value.__module__)
    if value.__module__ != "__main__" and getattr(module, value.__name__, None) is value:
        return f"from {value.__module__} import {value.__name__} as {name}"
    try:
        text = inspect.cleandoc("\n" + inspect.getsource(value))
    except (OSError, TypeError):
        return None
    defined = value.__name__
    if not defined.isidentifier():
        return None
    return text if defined == name else f"{text}\n{name} = {defined}"


def own_files(definition: Definition, answer, scope: dict) -> list[str]:
    """Names of the learner's own Python files that a notebook's answer comes from or imports; grading has none."""
    if "__file__" in scope:
        return []
    roots = cells.imported(definition.source) - {"ampedu"}
    files = {getattr(sys.modules.get(root), "__file__", None) for root in roots}
    files.add(getattr(getattr(answer, "__code__", None), "co_filename", None))
    paths = (Path(file) for file in files if file and file.endswith(".py"))
    return sorted(p.name for p in paths if Path.cwd() in p.parents and "site-packages" not in p.parts)


def state_variables(definition: Definition, space: dict, scope: dict) -> list[str]:
    """Notebook variables that the definition needs and that are not constants.

    Absent from it, or changed by other cells since.
    """
    names = {name for name in definition.closure.missing if name in scope and name not in definition.borrowed}
    both = definition.closure.names & scope.keys() & space.keys()
    return sorted(names | {name for name in both if not _same(space[name], scope[name])})


def _same(fresh, live):
    """Whether a variable holds what its definition gives; True for functions, classes and what cannot be compared."""
    if isinstance(fresh, (types.ModuleType, types.FunctionType, type)):
        return True
    try:
        return compare.difference(plain.freeze(fresh), plain.freeze(live)) is None
    except plain.NotPlain:
        pass
    try:
        return type(fresh) is type(live) and (bool(fresh == live) or vars(fresh) == vars(live))
    except Exception:
        return not isinstance(fresh, (dict, list, set, tuple))
