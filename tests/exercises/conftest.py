"""A small lab, 99_fake, made for the tests: exercises, a solution, mutants and expected data in a temporary folder."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

import ampedu.exercises
from ampedu.exercises import arguments, cells, data, judge, mutants, spec

SPEC = '''
import torch
from ampedu.exercises import exercise

@exercise("99.double", answer="double", points=2, minutes=5, difficulty=1, forbids=("ampedu.formats",),
          equivalents=("torch.mul",), settles=("C08",), seconds=0.3)
class Double:
    """Twice a number."""
    tolerance = "exact"
    def cases(self, stream):
        return [{"x": stream.dyadic(1, 3)} for _ in range(6)]
    def run(self, answer, case):
        return answer(case["x"])
    def describe(self, case):
        return f"double({case['x']})"

@exercise("99.scale_all", answer="scale_all", points=3, minutes=5, difficulty=2, seconds=2)
class ScaleAll:
    """Every element times a factor."""
    tolerance = {"scaled": dict(rtol=1e-6, atol=1e-7)}
    def cases(self, stream):
        return [{"x": stream.tensor((2, 3), 0, 2), "factor": 3.0} for _ in range(6)]
    def run(self, answer, case):
        return {"scaled": answer(case["x"], case["factor"]), "count": case["x"].numel()}
    def describe(self, case):
        return f"scale_all(x, {case['factor']})"

@exercise("99.by_version", answer="by_version", points=1, minutes=1, difficulty=1, versioned=True)
class ByVersion:
    """A fact that differs between versions."""
    tolerance = "exact"
    def cases(self, stream):
        return [{"n": n} for n in range(6)]
    def run(self, answer, case):
        return answer(case["n"])
    def describe(self, case):
        return f"by_version({case['n']})"

@exercise("99.counter", answer="Counter", points=1, minutes=1, difficulty=1)
class CounterExercise:
    """A class that counts."""
    tolerance = "exact"
    def cases(self, stream):
        return [{"start": n} for n in range(6)]
    def run(self, answer, case):
        counter = answer(case["start"])
        return [counter.step(), counter.step()]
    def describe(self, case):
        return f"Counter({case['start']})"
'''
SOLUTION = [
    "import torch",
    "def double(x):\n    return x + x",
    "def scale_all(x, factor):\n    return x * factor",
    "def by_version(n):\n    return n + 1",
    "class Counter:\n    def __init__(self, start):\n        self.n = start\n"
    "    def step(self):\n        self.n += 1\n        return self.n",
]
MUTANTS = """
from ampedu.exercises import mutant

@mutant("99.double", "You squared the number. Twice is x + x.")
def squared(x):
    return x * x

@mutant("99.double", "You never stop.")
def endless(x):
    while True:
        pass

@mutant("99.double", "You divided by zero.")
def divided(x):
    return x / 0

@mutant("99.scale_all", "You scaled twice.")
def twice(x, factor):
    return x * factor * factor
"""


def expected_bundle(stem, solution, mutant_path):
    """What the build makes, in this process: one environment is enough for tests of the check."""
    items = {}
    known = mutants.load_mutants(mutant_path)
    for ex in spec.of_stem(stem):
        cases, key = ex.cases(), judge.torch_version() if ex.versioned else "any"
        answer = cells.materialize(cells.closure(solution, ex.answer), ex.answer)
        records = tuple(
            data.MutantData(m.name, m.message, {key: judge.reduce(ex, cases, judge.observe(ex, m.answer, cases))})
            for m in known
            if m.exercise == ex.id
        )
        outcomes = judge.reduce(ex, cases, judge.observe(ex, answer, cases))
        items[ex.id] = data.ExerciseData(cases, {key: outcomes}, records, 0.0, arguments.describe_signature(answer))
    return data.Bundle(stem, "0" * 64, judge.torch_version(), items)


@pytest.fixture(scope="session")
def fake_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    (folder / "ex99_fake.py").write_text(SPEC)
    (folder / "mutants.py").write_text(MUTANTS)
    ampedu.exercises.__path__.append(str(folder))
    data.save(expected_bundle("99_fake", SOLUTION, folder / "mutants.py"), folder)
    yield folder
    ampedu.exercises.__path__.remove(str(folder))
    sys.modules.pop("ampedu.exercises.ex99_fake", None)
    for ex in spec.registered():
        if ex.stem == "99_fake":
            del spec._registry[ex.id]


@pytest.fixture
def fake(fake_folder, tmp_path, monkeypatch):
    """The folder of the fake lab, whose data `check` reads; progress goes to a temporary file."""
    monkeypatch.setattr(data, "DIRECTORY", fake_folder)
    monkeypatch.setenv("AMPEDU_PROGRESS", str(tmp_path / "progress.json"))
    for name in ("AMPEDU_STRICT", "NBGRADER_EXECUTION"):
        monkeypatch.delenv(name, raising=False)
    return fake_folder


@pytest.fixture
def recorded(tmp_path):
    """The progress that the test has recorded so far."""
    return lambda: json.loads((tmp_path / "progress.json").read_text())["exercises"]


@pytest.fixture
def script(tmp_path, monkeypatch, capsys):
    """Run the text of a Python file in this process, as `python file.py` would; returns what it printed."""

    def run(text):
        import importlib.util

        path = tmp_path / f"answers_{len(list(tmp_path.iterdir()))}.py"
        path.write_text("from ampedu.exercises import check\n" + textwrap.dedent(text))
        module_spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(module_spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        monkeypatch.setattr(cells, "recorder", lambda: None)
        module_spec.loader.exec_module(module)
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def data_copy(fake, tmp_path, monkeypatch):
    """A copy of the expected data that the test may damage."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("99_fake.json", "99_fake.safetensors"):
        (folder / name).write_bytes(Path(fake, name).read_bytes())
    monkeypatch.setattr(data, "DIRECTORY", folder)
    return folder
