"""What the exercises of a lab are, read from the decorators of its ex file without importing torch."""

import ast
from dataclasses import dataclass

from tools.project import BuildError, Project, parse_python, read_text

REQUIRED = ("answer", "points", "minutes", "difficulty")


@dataclass(frozen=True)
class Spec:
    """The part of an exercise that a lab shows: id, name of the answer, points, minutes, difficulty 1 to 3."""

    id: str
    answer: str
    points: int
    minutes: int
    difficulty: int


def path_of(project: Project, stem: str):
    """The ex file of a stem, whether it exists or not."""
    return project.root / "ampedu" / "exercises" / f"ex{stem}.py"


def read(project: Project, stem: str) -> dict[str, Spec]:
    """Exercises of `stem` by id, in the order of the file. Raises BuildError if it is missing or not literal."""
    path = path_of(project, stem)
    name = project.name(path)
    if not path.exists():
        raise BuildError(f"{name} does not exist; a lab needs the exercises that its checks name.")
    tree = parse_python(read_text(path, name), name)
    specs: dict[str, Spec] = {}
    for node in tree.body:
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "exercise":
                spec = _spec(call, name)
                if spec.id in specs:
                    raise BuildError(f"{name}, line {call.lineno}: exercise {spec.id} is defined twice; rename one.")
                specs[spec.id] = spec
    return specs


def _spec(call: ast.Call, name: str) -> Spec:
    try:
        ident = ast.literal_eval(call.args[0])
        values = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg in REQUIRED}
        return Spec(ident, **values)
    except (IndexError, ValueError, TypeError):
        raise BuildError(
            f"{name}, line {call.lineno}: @exercise needs the id and {', '.join(REQUIRED)} written as plain values."
        ) from None
