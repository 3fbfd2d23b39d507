"""What the build needs: outcomes of solution and mutants, spread over environments, and the tolerance rules."""

from dataclasses import replace

import pytest
import torch

from ampedu.exercises import buildlib, data, judge, load, worker

SOLUTION = [
    "import torch\nfrom ampedu.exercises import check",
    "raise RuntimeError('cells are read, not run')",
    "def double(x):\n    return x + x",
    "def scale_all(x, factor):\n    return x * factor",
    "def by_version(n):\n    return n + torch.get_num_threads() * 0 + 1",
    "class Counter:\n    def __init__(self, start):\n        self.n = start\n"
    "    def step(self):\n        self.n += 1\n        return self.n",
    "check('99.double', double)",
]


def values(*numbers):
    return [{"value": {"scaled": torch.tensor(float(n)), "count": 1}} for n in numbers]


def test_make_expected_in_real_environments(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(buildlib, "ENVIRONMENTS", buildlib.ENVIRONMENTS[:2])
    bundle = buildlib.make_expected("99_fake", SOLUTION, fake / "mutants.py")
    data.save(bundle, tmp_path)
    item = data.load("99_fake", tmp_path).exercises["99.double"]
    cases = load("99.double").cases()
    assert item.cases == cases and item.expected == {"any": [{"value": 2 * case["x"]} for case in cases]}
    assert [m.name for m in item.mutants] == ["squared", "endless", "divided"]
    assert item.mutants[0].outcomes["any"] == [{"value": case["x"] ** 2} for case in cases]
    assert item.mutants[1].outcomes["any"] == [{"timeout": 0.3}] * 6
    assert item.mutants[2].outcomes["any"][0] == {"error": "ZeroDivisionError", "text": "float division by zero"}
    assert item.signature == {"kind": "function", "text": "(x)", "required": 1, "positional": 1}
    assert bundle.exercises["99.counter"].signature["kind"] == "class"
    assert list(bundle.exercises["99.by_version"].expected) == [judge.torch_version()]
    assert bundle.source == buildlib.source_hash("99_fake", SOLUTION, fake / "mutants.py")
    assert bundle.source != buildlib.source_hash("99_fake", SOLUTION[1:], fake / "mutants.py")
    assert bundle.source != buildlib.source_hash("99_fake", SOLUTION, fake / "ex99_fake.py")


def test_a_lab_without_a_solution_is_refused_by_name(fake):
    job = {"stem": "99_fake", "spec": str(fake / "ex99_fake.py"), "cells": SOLUTION[3:], "threads": 1, "mutants": None}
    with pytest.raises(SystemExit, match=r"99\.double: the solution double cannot be defined: LookupError"):
        worker.observe_lab(job)


def test_the_tolerance_must_cover_eight_times_the_spread(fake):
    ex = load("99.scale_all")  # rtol 1e-6, atol 1e-7
    near, far = 1.0 + 1.2e-7, 1.0 + 1.8e-7
    good = {"a": values(1.0), "b": values(near)}
    assert buildlib.tolerance_covers(ex, good) == []
    assert buildlib.spread(ex, good) == pytest.approx(1.19e-7 / 1.1e-6, rel=0.02)
    (problem,) = buildlib.tolerance_covers(ex, {"a": values(1.0), "b": values(1.0), "c": values(far)})
    assert "99.scale_all: from 'a' to 'c' the solution moves by 0.217 × the tolerance" in problem
    (problem,) = buildlib.tolerance_covers(ex, {"a": values(1.0), "b": [{"timeout": 2.0}]})
    assert "the solution differs on case 0" in problem
    exact = replace(ex, tolerance="exact")
    assert buildlib.tolerance_covers(exact, good) and not buildlib.tolerance_covers(
        exact, {"a": values(1), "b": values(1)}
    )


def test_mutants_must_differ_by_a_hundred_tolerances_on_some_case(fake):
    ex = load("99.scale_all")
    expected = values(1.0, 1.0)
    far, other = values(1.0, 1.0 + 2e-4), values(1.0 + 2e-4, 1.0)
    assert buildlib.mutants_distinct(ex, expected, {"far": far, "other": other}) == []
    (problem,) = buildlib.mutants_distinct(ex, expected, {"close": values(1.0, 1.0 + 1e-4)})
    assert "99.scale_all: the mutant close and the solution differ by only 90.9" in problem
    problems = buildlib.mutants_distinct(ex, expected, {"far": far, "twin": far, "same": expected})
    assert len(problems) == 2 and "the mutant twin and the mutant far" in problems[1]
    errors = {"raises": [{"error": "ValueError", "text": "a"}] * 2, "hangs": [{"timeout": 1.0}] * 2}
    assert buildlib.mutants_distinct(ex, expected, errors) == []
    errors["also"] = [{"error": "ValueError", "text": "b"}] * 2
    assert len(buildlib.mutants_distinct(ex, expected, errors)) == 1


def test_reduce_failures_are_outcomes(fake, monkeypatch):
    ex = load("99.double")
    monkeypatch.setattr(type(ex.spec), "reduce", lambda self, case, raw: raw + 1, raising=False)
    cases = ex.cases()
    got = judge.reduce(ex, cases, [{"value": "text"}, {"value": 1.0}, *[{"timeout": 1.0}] * 4])
    assert got[0] == {"unsupported": "the value 'text' cannot be evaluated (TypeError)"}
    assert got[1:3] == [{"value": 2.0}, {"timeout": 1.0}]


def test_outcomes_must_match_the_cases(fake):
    ex, item = load("99.double"), data.load("99_fake").exercises["99.double"]
    with pytest.raises(ValueError, match=r"99\.double: 1 outcomes for 6 cases"):
        judge.verdict(ex, item, [{"value": 1.0}])
    assert judge.verdict(ex, item, [{"error": "ZeroDivisionError", "text": "another text"}] * 6).mutant == "divided"
    assert judge.verdict(ex, item, [{"timeout": 9.0}] * 6).mutant == "endless"


def test_impatience_ends_a_series_of_time_outs(fake):
    ex, calls = load("99.double"), []

    def double(x):
        calls.append(x)
        while True:
            pass

    assert judge.observe(ex, double, ex.cases()) == [{"timeout": 0.3}] * 6
    assert len(calls) == judge.PATIENCE
