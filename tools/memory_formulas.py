"""Writes ampedu/data/memory/transformer.json: what the memory explorer computes with.

    python -m tools.memory_formulas

A prediction is run at a few sizes, with two and with three layers, and what is held after each operation is written
down. Over batch, sequence and width, each row is a polynomial, found by solving for its coefficients; over the depth it
is a straight line, since one layer more repeats the operations of a layer. Operations of the first layer and of
the last one are kept, and of these the moments that are the peak of a step of some size.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampedu.memory.formulas import POLICIES, Transformer, monomials
from ampedu.memory.plan import Step, planned, replaced
from ampedu.memory.tracker import OPTIMIZER, PHASES, ROWS, Tracker

OUT = Path(__file__).parents[1] / "ampedu" / "data" / "memory" / "transformer.json"
SIZES = ((2, 3, 8), (3, 5, 8), (2, 7, 16), (5, 11, 24), (7, 2, 32), (11, 13, 12))
NAMES = tuple(ROWS)


class Log(Tracker):
    """Writes down what is held after each operation, by phase."""

    def __init__(self, model):
        super().__init__(model)
        self.names = {phase: [] for phase in PHASES}
        self.rows = {phase: [] for phase in PHASES}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        # The optimizer's other operations are scalars, one for each parameter.
        if self.phase != OPTIMIZER or "_foreach" in str(func):
            self.names[self.phase].append(str(func))
            self.rows[self.phase].append([self.held[name] for name in NAMES])
        return result


def logged(policy, checkpoint, batch, sequence, width, depth) -> Log:
    """The log of one step on fake tensors."""
    with torch.device("meta"):
        model, tokens = Transformer(width, depth), torch.empty(batch, sequence, dtype=torch.long)
    plan = planned(model, policy, "cuda", "cpu", "adamw", None, checkpoint or None, None, 1)
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor):
        dtype = plan.dtype if plan.dtype is not None and tensor.is_floating_point() else tensor.dtype
        with mode:
            return torch.empty(tensor.shape, dtype=dtype)

    with mode:
        step = Step(plan, *replaced(model, (tokens, tokens), fake))
        step.run()
        log = Log(step.model)
        undo = step.label_gradients(log)
        with log:
            for row, tensors in step.tensors().items():
                log.know(tensors, row)
            step.run(log)
        undo()
    return log


def polynomials(policy, checkpoint, depth):
    """{phase: (names of operations, coefficients [operation, row, monomial])}, exact at every size."""
    logs = [logged(policy, checkpoint, *size, depth) for size in SIZES]
    basis = np.array([monomials(*size) for size in SIZES], dtype=float)
    found = {}
    for phase in PHASES:
        names = logs[0].names[phase]
        if any(log.names[phase] != names for log in logs):
            raise SystemExit(f"{policy}: the operations of {phase} depend on the sizes")
        held = np.array([log.rows[phase] for log in logs], dtype=float)
        flat = held.reshape(len(SIZES), -1)
        coefficients = np.rint(np.linalg.lstsq(basis, flat, rcond=None)[0])
        if not np.array_equal(basis @ coefficients, flat):
            raise SystemExit(f"{policy}: what {phase} holds is no polynomial of these monomials")
        found[phase] = names, coefficients.T.reshape(*held.shape[1:], -1)
    return found


def common(a, b) -> int:
    """Length of the common beginning."""
    return next((k for k, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))


def candidates(policy, checkpoint):
    """[(phase, coefficients [row, monomial and monomial × (depth - 1)])] of the moments that can be the peak."""
    two, three = (polynomials(policy, checkpoint, depth) for depth in (2, 3))
    found = []
    for phase in PHASES:
        (names, low), (more, high) = two[phase], three[phase]
        layer = len(more) - len(names)
        ends = {common(names, more) - layer, len(names) - common(names[::-1], more[::-1]) + layer}
        for end in ends:  # of the first layer; where operations around it look like a layer's, these two differ
            for k in range(len(names)):
                slope = high[k if k < end else k + layer] - low[k]
                found.append((phase, np.concatenate([low[k] - slope, slope], axis=1)))
    found = seen_at(policy, checkpoint, 4, found)
    totals = np.array([rows.sum(axis=0) for _, rows in found])
    return [found[k] for k in sorted(set(np.argmax(steps() @ totals.T, axis=1)))]


def seen_at(policy, checkpoint, depth, moments):
    """Those moments that a deeper model has, too: the others came from operations that do not belong together."""
    size = SIZES[1]
    log, values = logged(policy, checkpoint, *size, depth), np.array(monomials(*size))
    values = np.concatenate([values, (depth - 1) * values])
    known = {(phase, tuple(rows)) for phase in PHASES for rows in log.rows[phase]}
    return [(phase, rows) for phase, rows in moments if (phase, tuple(int(x) for x in rows @ values)) in known]


def steps():
    """[size, monomial and monomial × (depth - 1)] for sizes of all magnitudes, evenly among powers of two."""
    random = np.random.default_rng(0)
    sizes = 2 ** random.uniform(0, [[9, 13, 12, 6]], (200_000, 4))
    rows, width, depth = sizes[:, 0] * sizes[:, 1], 4 * np.ceil(sizes[:, 2] / 4), np.floor(sizes[:, 3])
    once = np.stack([np.ones_like(rows), width, width * width, np.floor(rows), np.floor(rows) * width], axis=1)
    return np.concatenate([once, (depth - 1)[:, None] * once], axis=1)


def main() -> None:
    """Write the file."""
    book = {}
    for policy in POLICIES:
        for checkpoint in (False, True):
            name = f"{policy} checkpointed" if checkpoint else policy
            book[name] = [
                [phase, {NAMES[r]: [int(c) for c in row] for r, row in enumerate(rows) if row.any()}]
                for phase, rows in candidates(policy, checkpoint)
            ]
            print(f"{name}: {len(book[name])} moments", flush=True)
    OUT.parent.mkdir(exist_ok=True)
    lines = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(moment)}" for moment in moments) + "\n ]"
        for name, moments in book.items()
    ]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
