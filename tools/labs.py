"""From the source of a lab to what students get: solutions cut out, nbgrader's metadata, and no leaks."""

import ast
import json
import re
from dataclasses import replace

from tools.percent import Cell, Script
from tools.project import BuildError
from tools.specs import Spec

BEGIN = re.compile(r"^\s*### BEGIN SOLUTION\s*$")
END = re.compile(r"^\s*### END SOLUTION\s*$")
MARKER = re.compile(r"###\s*(BEGIN|END)\s+SOLUTION", re.IGNORECASE)
CHECK = re.compile(r"""^check\(\s*["'](?P<id>[^"']+)["']\s*,\s*(?P<answer>\w+)\s*\)$""")
LEAK_LINES = 3


def blocks(cell: Cell, name: str) -> list[tuple[int, int]]:
    """Marker lines (first, last) of every solution block, as indexes into the cell's lines. Raises if unbalanced."""
    found, begin = [], None
    for n, text in enumerate(cell.source.split("\n")):
        if BEGIN.match(text):
            if begin is not None:
                raise BuildError(f"{name}, line {cell.line + n}: a second ### BEGIN SOLUTION before ### END SOLUTION.")
            begin = n
        elif END.match(text):
            if begin is None:
                raise BuildError(f"{name}, line {cell.line + n}: ### END SOLUTION without ### BEGIN SOLUTION above it.")
            found.append((begin, n))
            begin = None
        elif MARKER.search(text):
            raise BuildError(
                f"{name}, line {cell.line + n}: write the marker alone on its line, as ### BEGIN SOLUTION."
            )
    if begin is not None:
        raise BuildError(f"{name}, line {cell.line + begin}: ### BEGIN SOLUTION without ### END SOLUTION in this cell.")
    return found


def task_of(cell: Cell, answer: str) -> str:
    """First sentence of the docstring of `answer` in the cell, or an empty string."""
    for node in ast.parse(cell.source).body:
        if getattr(node, "name", None) == answer:
            text = " ".join((ast.get_docstring(node) or "").split())
            return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
    return ""


def stub(cell: Cell, answer: str, name: str) -> str:
    """Source of the answer cell with every solution block replaced by `raise NotImplementedError("id: task")`."""
    task = task_of(cell, answer)
    if not task:
        raise BuildError(
            f'{name}, line {cell.line}: "{answer}" needs a docstring here; its first sentence is the task.'
        )
    found = blocks(cell, name)
    if not found:
        raise BuildError(f"{name}, line {cell.line}: exercise {cell.exercise} has no ### BEGIN SOLUTION block.")
    lines = cell.source.split("\n")
    message = json.dumps(f"{cell.exercise}: {task}", ensure_ascii=False)
    for begin, end in reversed(found):
        indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
        if not indent:
            raise BuildError(f"{name}, line {cell.line + begin}: a solution block must stand inside a function.")
        lines[begin : end + 1] = [f"{indent}raise NotImplementedError({message})"]
    text = "\n".join(lines)
    ast.parse(text)
    return text


def check_of(cell: Cell) -> re.Match | None:
    """The match of a check cell (groups id and answer), or None for any other cell."""
    return CHECK.match(cell.source.strip()) if cell.kind == "code" else None


def pair(script: Script, specs: dict[str, Spec], stem: str) -> list[str]:
    """Problems with the pairing: every exercise has exactly one answer cell and one check cell, no other does."""
    problems = []
    answers = [cell for cell in script.cells if cell.exercise]
    checks = [(cell, check_of(cell)) for cell in script.cells if check_of(cell)]
    for cell in script.cells:
        if cell.kind == "code" and not cell.exercise and MARKER.search(cell.source):
            problems.append(
                f'{script.name}, line {cell.line}: a solution block in a cell without exercise="…"; name it.'
            )
    for what, seen in (
        ("answer", [(cell.exercise, cell.line) for cell in answers]),
        ("check", [(match["id"], cell.line) for cell, match in checks]),
    ):
        ids = [ident for ident, _ in seen]
        for ident, line in seen:
            if ident not in specs:
                problems.append(
                    f"{script.name}, line {line}: no exercise {ident} in ex{stem}.py; add it or correct the id."
                )
        for ident in specs:
            if ids.count(ident) != 1:
                problems.append(
                    f"{script.name}: exercise {ident} has {ids.count(ident)} {what} cells; it needs exactly one."
                )
    for cell, match in checks:
        spec = specs.get(match["id"])
        if spec and match["answer"] != spec.answer:
            problems.append(f"{script.name}, line {cell.line}: check the answer {spec.answer}, not {match['answer']}.")
    return problems


def grade_id(ident: str) -> str:
    """nbgrader's id of an exercise, "01-decode" for "01.decode": its schema allows letters, digits, _ and - only."""
    return ident.replace(".", "-", 1)


def nbgrader(ident: str, points: int | None = None) -> dict:
    """nbgrader's metadata, schema 3: of an answer cell, or of a check cell worth `points`."""
    if points is None:
        answer = {"grade": False, "solution": True, "locked": False, "grade_id": f"{grade_id(ident)}-answer"}
        return answer | {"schema_version": 3, "task": False}
    check = {"grade": True, "solution": False, "locked": True, "grade_id": grade_id(ident), "points": points}
    return check | {"schema_version": 3, "task": False}


def leaks(script: Script, sources: list[str]) -> list[str]:
    """Problems: markers, a whole solution, or three of its lines in a row that stand in the cells of a lab."""
    text = "\n".join(_squeeze(source) for source in sources)
    problems = []
    if MARKER.search("\n".join(sources)):
        problems.append(
            f"{script.name}: a solution marker is left in the lab; put both markers inside one answer cell."
        )
    for cell in (cell for cell in script.cells if cell.exercise):
        lines = cell.source.split("\n")
        for begin, end in blocks(cell, script.name):
            body = _squeeze("\n".join(lines[begin + 1 : end])).split("\n")
            runs = [body[n : n + LEAK_LINES] for n in range(max(1, len(body) - LEAK_LINES + 1))]
            for run in runs:
                long_enough = len(run) == LEAK_LINES or len("".join(run)) > 30
                if long_enough and "\n".join(run) in text:
                    problems.append(
                        f"{script.name}, line {cell.line + begin}: the solution of {cell.exercise} also stands "
                        f'in a cell that students see ("{run[0]}"); remove it there.'
                    )
                    break
    return problems


def cut(script: Script, specs: dict[str, Spec]) -> list[Cell]:
    """Cells of the lab: as in the source, with stubs for answers."""
    return [
        replace(cell, source=stub(cell, specs[cell.exercise].answer, script.name)) if cell.exercise else cell
        for cell in script.cells
    ]


def _squeeze(text: str) -> str:
    """Lines without indentation, blank lines and comments."""
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith("#"))
