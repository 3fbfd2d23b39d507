"""The right answers on the cases of a secret, and those of the typical wrong answers: all through the same worker.

They are kept in the user's cache, for one secret, state of the course and set of versions. A file there shows inputs
and right answers, so its folder is closed to others.
"""

import ast
import hashlib
import os
import platform
from pathlib import Path

import torch

from ampedu import __version__
from ampedu.exercises import cells, data, judge, spec
from ampedu.exercises.mutants import Mutant, load_mutants
from ampedu.grading import answers, notebook
from ampedu.grading.course import Lab
from ampedu.grading.sandbox import MOST_PATIENCE, Sandbox

LIMIT = 16 << 20
BUSY = "Is the machine overloaded? Try again with --jobs 1, or when nothing else runs."


class ExpectedError(RuntimeError):
    """The solution or the wrong answers do not behave on these cases; the text names them."""


def versions() -> dict[str, str]:
    """What a result may depend on."""
    import numpy

    return {
        "ampedu": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def source_id(lab: Lab) -> str:
    """A hash of the course's files that the expected answers of a lab depend on, and of the versions."""
    digest = hashlib.sha256(repr(sorted(versions().items())).encode())
    shared = [path for path in sorted(Path(spec.__file__).parent.glob("*.py")) if not path.name.startswith("ex")]
    for path in (lab.solution, lab.mutants, Path(spec.__file__).with_name(f"ex{lab.stem}.py"), *shared):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:24]


def cache_path(lab: Lab, secret: bytes) -> Path:
    """The folder that holds the expected answers of a lab for a secret."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampedu" / "expected"
    key = hashlib.sha256(b"cache/" + secret).hexdigest()[:24]
    return base / f"{lab.stem}-{key}-{source_id(lab)}"


def load(lab: Lab, secret: bytes) -> data.Bundle | None:
    """The expected answers from the cache, or None."""
    try:
        return data.load(lab.stem, cache_path(lab, secret), LIMIT)
    except (data.DataMissing, data.DataDamaged):
        return None


def save(lab: Lab, secret: bytes, items: dict[str, data.ExerciseData]) -> data.Bundle:
    """Write the expected answers to the cache."""
    folder = cache_path(lab, secret)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    bundle = data.Bundle(lab.stem, source_id(lab), judge.torch_version(), items)
    data.save(bundle, folder, LIMIT)
    return bundle


def expect(ex, lab: Lab, secret: bytes, sandbox: Sandbox) -> data.ExerciseData:
    """Observe the solution and the wrong answers of one exercise on its cases. Raises ExpectedError."""
    found = answers.locate(notebook.parse(lab.solution.read_bytes()), [ex]).get(ex.id)
    if found is None:
        raise ExpectedError(f"{lab.solution} holds no answer to {ex.id}. Run `make build`.")
    cases = ex.cases(secret)
    right = _outcomes(ex, "the solution", found.source, found.name, cases, sandbox)
    bad = [o for o in right if judge.kind(o) in ("timeout", "unsupported") or judge.is_stub(ex, o)]
    if bad or any(o.get("error") == "ProcessEnded" for o in right):
        text = judge.describe_outcome(bad[0] if bad else right[-1])
        raise ExpectedError(f"{ex.id}: the solution gives {text}. {BUSY}")
    key = judge.torch_version() if ex.versioned else "any"
    records = []
    for mutant, source in mutants(ex, lab.mutants):
        wrong = _outcomes(ex, f"the wrong answer {mutant.name}", source, mutant.name, cases, sandbox)
        if judge.equal(right, wrong, ex.tolerance):
            raise ExpectedError(
                f"{ex.id}: with this secret the wrong answer {mutant.name} cannot be told from the solution. "
                "Make another secret: ampedu grade make-secret"
            )
        records.append(data.MutantData(mutant.name, mutant.message, {key: wrong}))
    return data.ExerciseData(cases, {key: right}, tuple(records))


def _outcomes(ex, what, source, name, cases, sandbox):
    observed = sandbox.observe(ex, source, name, cases)
    if observed.end == "timeout":  # a loop, or a busy machine, whose answers must not be kept
        observed = sandbox.observe(ex, source, name, cases, slack=MOST_PATIENCE)
    if observed.definition is None or observed.definition:
        text = (observed.definition or {}).get("text", observed.reason)
        raise ExpectedError(f"{ex.id}: {what} cannot be defined in the sandbox: {text}")
    return judge.reduce(ex, cases, observed.outcomes)


def mutants(ex, path: Path) -> list[tuple[Mutant, str]]:
    """The wrong answers to one exercise, each with the source that defines it.

    Two exercises may have wrong answers of one name, so each is taken as it stood when it was defined.
    """
    text = path.read_text(encoding="utf-8")
    places = {}
    for node in ast.parse(text).body:
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) == "mutant":
                places[decorator.args[0].value, node.name] = node.lineno
    found = []
    for item in load_mutants(path):
        if item.exercise == ex.id:
            until = cells.until(text, places[item.exercise, item.name])
            found.append((item, cells.closure([until], item.name)))
    return found
