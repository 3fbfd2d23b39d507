"""Making the expected data of a lab.

Run the solution and the mutants, measure the spread, prove the tolerance rules.

The build calls ``make_expected(stem, lab_cells, mutants_path)`` and gives the result to ``data.save``. Each
environment is a subprocess ``python -m ampedu.exercises.worker``; the reference is the first one.
"""

import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ampedu.exercises import data, judge, plain, stream
from ampedu.exercises.mutants import load_mutants
from ampedu.exercises.spec import Exercise, of_stem

SPREAD_MARGIN = 8
MUTANT_MARGIN = 100
_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


class BuildError(Exception):
    """The expected data cannot be made; the text lists every problem found."""


class Environment(NamedTuple):
    """Where the solution is observed: number of torch threads and variables that hide newer CPU instructions."""

    name: str
    threads: int
    variables: dict[str, str]


ENVIRONMENTS = (
    Environment("1 thread", 1, {}),
    Environment("2 threads, no AVX512 or AMX", 2, _AVX2),
    Environment("2 threads", 2, {}),
    Environment("1 thread, no AVX512 or AMX", 1, _AVX2),
)


def source_hash(stem: str, lab_cells: list[str], mutants_path) -> str:
    """SHA-256 (hexadecimal) over everything that the expected data depend on.

    Spec file, lab code cells, mutants, input stream.
    """
    module = sys.modules[type(of_stem(stem)[0].spec).__module__]
    parts = [Path(module.__file__).read_text(encoding="utf-8"), Path(mutants_path).read_text(encoding="utf-8")]
    parts += [inspect.getsource(stream), str(data.FORMAT), *lab_cells]
    digest = hashlib.sha256()
    for part in parts:
        block = part.replace("\r\n", "\n").encode()
        digest.update(len(block).to_bytes(8, "big") + block)
    return digest.hexdigest()


def make_expected(stem: str, lab_cells: list[str], mutants_path) -> data.Bundle:
    """The expected data of a lab.

    lab_cells: the sources of the lab's code cells with their solutions, in order; they are read, not run as a whole:
    only what each answer needs is. mutants_path: the file of mutants. Takes one to four subprocesses, about 5 s each.
    Raises BuildError listing every problem: a solution that fails, a tolerance that is too tight, mutants that are
    not distinct.
    """
    exercises = of_stem(stem)
    cases = {ex.id: ex.cases() for ex in exercises}
    mutants = load_mutants(mutants_path)
    known = {ex.id for ex in exercises}
    problems = [
        f"{Path(mutants_path).name}: the mutant {m.name} names {m.exercise!r}, which is not in this lab"
        for m in mutants
        if m.exercise not in known
    ]
    exact = all(ex.tolerance == "exact" for ex in exercises)
    runs = [
        observe_in(env, stem, lab_cells, mutants_path if i == 0 else None)
        for i, env in enumerate(ENVIRONMENTS[: 2 if exact else 4])
    ]
    items = {}
    for ex in exercises:
        names = [m for m in mutants if m.exercise == ex.id]
        items[ex.id], found = _item(ex, cases[ex.id], names, runs)
        problems += found
    if problems:
        raise BuildError("\n".join(problems))
    return data.Bundle(stem, source_hash(stem, lab_cells, mutants_path), judge.torch_version(), items)


def _item(ex, cases, mutants, runs):
    by_environment = {}
    for env, run in zip(ENVIRONMENTS, runs, strict=False):
        by_environment[env.name] = judge.reduce(ex, cases, run["solution"][ex.id])
    expected = next(iter(by_environment.values()))
    outcomes = {m.name: judge.reduce(ex, cases, runs[0]["mutants"][f"{ex.id} {m.name}"]) for m in mutants}
    problems = [
        f"{ex.id}: the solution gives {judge.describe_outcome(o)} on {ex.describe(case)}"
        for case, o in zip(cases, expected, strict=True)
        if judge.kind(o) in ("timeout", "unsupported") or judge.is_stub(ex, o)
    ]
    problems += tolerance_covers(ex, by_environment) + mutants_distinct(ex, expected, outcomes)
    key = judge.torch_version() if ex.versioned else "any"
    records = tuple(data.MutantData(m.name, m.message, {key: outcomes[m.name]}) for m in mutants)
    signature = runs[0]["signatures"][ex.id]
    return data.ExerciseData(cases, {key: expected}, records, spread(ex, by_environment), signature), problems


def spread(ex: Exercise, observations_by_environment: dict[str, list[dict]]) -> float:
    """The largest distance of any environment from the first, over all cases, in units of the tolerance."""
    first, *others = observations_by_environment.values()
    ratios = [judge.outcome_ratio(a, b, ex.tolerance) for other in others for a, b in zip(first, other, strict=True)]
    return max(ratios, default=0.0)


def tolerance_covers(ex: Exercise, observations_by_environment: dict[str, list[dict]]) -> list[str]:
    """Problems with rule 2: the tolerance must be at least 8 times the solution's spread over environments.

    observations_by_environment: reduced outcomes by environment name, the reference first. [] if all is well.
    """
    first, *others = observations_by_environment
    reference, problems = observations_by_environment[first], []
    for name in others:
        for i, (a, b) in enumerate(zip(reference, observations_by_environment[name], strict=True)):
            size = judge.outcome_ratio(a, b, ex.tolerance)
            if size * SPREAD_MARGIN > 1:
                how = (
                    "differs"
                    if size == float("inf")
                    else f"moves by {size:.3g} × the tolerance; at most 1/{SPREAD_MARGIN} is allowed"
                )
                problems.append(f"{ex.id}: from {first!r} to {name!r} the solution {how} on case {i}")
                break
    return problems


def mutants_distinct(ex: Exercise, expected: list[dict], mutants: dict[str, list[dict]]) -> list[str]:
    """Problems with rule 3.

    Some case must tell each mutant from the solution, and from each other mutant, by 100 × the tolerance.

    mutants: reduced outcomes by mutant name. [] if all is well.
    """
    named = [("the solution", expected), *((f"the mutant {name}", outcomes) for name, outcomes in mutants.items())]
    problems = []
    for i, (name_a, a) in enumerate(named):
        for name_b, b in named[i + 1 :]:
            size = max(judge.outcome_ratio(x, y, ex.tolerance) for x, y in zip(a, b, strict=True))
            if size < MUTANT_MARGIN:
                problems.append(
                    f"{ex.id}: {name_b} and {name_a} differ by only {size:.3g} × the tolerance on every case; "
                    f"at least {MUTANT_MARGIN} is needed on one: add a case that tells them apart"
                )
    return problems


def observe_in(env: Environment, stem: str, lab_cells: list[str], mutants_path=None) -> dict:
    """Observe the solution (and the mutants, if given) in a subprocess.

    Returns {"solution": {id: raw outcomes}, "mutants": {"id name": raw outcomes}, "signatures": {id: …}}. Raises
    BuildError.
    """
    module = sys.modules[type(of_stem(stem)[0].spec).__module__]
    job = {
        "stem": stem,
        "spec": str(module.__file__),
        "cells": lab_cells,
        "threads": env.threads,
        "mutants": str(mutants_path) if mutants_path else None,
    }
    variables = {
        **os.environ,
        **env.variables,
        "OMP_NUM_THREADS": str(env.threads),
        "MKL_NUM_THREADS": str(env.threads),
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "ampedu.exercises.worker", folder]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise BuildError(
                f"{stem}: observing the solution ({env.name}) failed: {lines[-1] if lines else done.returncode}"
            )
        from ampedu.exercises.tensorfile import read_tensors

        tensors = read_tensors(Path(folder, "out.safetensors").read_bytes())
        return plain.from_json(plain.parse(Path(folder, "out.json").read_bytes()), tensors)
