"""``python -m ampedu.exercises.worker FOLDER``: observe a lab's solution and mutants as FOLDER/job.json says.

Writes FOLDER/out.json and FOLDER/out.safetensors. Used by buildlib, which sets the environment that the observation
is made in.
"""

import importlib.util
import json
import sys
from pathlib import Path

from ampedu.exercises import arguments, cells, judge, plain, spec
from ampedu.exercises.mutants import load_mutants
from ampedu.exercises.state import captured


def observe_lab(job: dict) -> dict:
    """The raw outcomes that buildlib.observe_in describes.

    ``job``: stem, spec (path), cells, threads, mutants (path or None).
    """
    exercises = _exercises(job["stem"], job["spec"])
    result = {"solution": {}, "mutants": {}, "signatures": {}}
    cases = {ex.id: ex.cases() for ex in exercises}
    for ex in exercises:
        try:
            answer = cells.materialize(cells.closure(job["cells"], ex.answer), ex.answer, ex.forbids, ex.id)
        except Exception as error:
            raise SystemExit(
                f"{ex.id}: the solution {ex.answer} cannot be defined: {type(error).__name__}: {error}"
            ) from error
        result["signatures"][ex.id] = arguments.describe_signature(answer)
        result["solution"][ex.id] = judge.observe(ex, answer, cases[ex.id], threads=job["threads"])
    known = {ex.id: ex for ex in exercises}
    for item in load_mutants(job["mutants"]) if job["mutants"] else []:
        if item.exercise in known:
            outcomes = judge.observe(known[item.exercise], item.answer, cases[item.exercise], threads=job["threads"])
            result["mutants"][f"{item.exercise} {item.name}"] = outcomes
    return result


def _exercises(stem, path):
    name = f"{spec.__package__}.ex{stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    module_spec.loader.exec_module(module)
    return [ex for ex in spec.registered() if ex.stem == stem]


def main(folder: str) -> None:
    """Do the job in ``folder``."""
    from safetensors.torch import save

    job = json.loads(Path(folder, "job.json").read_text(encoding="utf-8"))
    with captured():
        result = observe_lab(job)
    tensors = {}
    text = json.dumps(plain.to_json(plain.freeze(result), tensors), allow_nan=False)
    Path(folder, "out.json").write_text(text, encoding="utf-8")
    Path(folder, "out.safetensors").write_bytes(save(tensors))


if __name__ == "__main__":
    main(sys.argv[1])
