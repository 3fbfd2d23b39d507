"""The loss-scale simulator: click steps to make their gradients inf, and see scale and growth tracker follow."""

import dataclasses
import html
import math

from ampedu.plots import scale_history
from ampedu.scaling import LossScale, pattern_of
from ampedu.scaling.rule import number_text
from ampedu.widgets.output import show_explorer

LONGEST = 60  # steps that still fit into one row; loss_scale.js has the same number
HEADINGS = ("step", "gradients", "scale", "next scale", "tracker", "what happened")


def scaler_simulator(pattern="..........x.....x.....x.....x.....x.....", start: LossScale | None = None) -> None:
    """Show what dynamic loss scaling makes of a pattern of overflows; click a step to change it.

    pattern: one sign per step, . for a clean one and x for inf or NaN, or a list of bools; at most 60 steps. start:
    the state before them, ``LossScale(growth_interval=5)`` unless another is given. All of it is computed in the
    browser, by the rule of ``LossScale`` and torch.amp.GradScaler; readers that run no scripts see the picture and
    the table of the first pattern. TypeError, ValueError: no pattern, no steps or too many, a start that is no state.
    """
    start = LossScale(growth_interval=5) if start is None else start
    if not isinstance(start, LossScale):
        raise TypeError(f"start must be a LossScale, not {type(start).__name__}: LossScale(growth_interval=5)")
    if not 0 < start.scale < math.inf:
        raise ValueError(f"the start has the scale {start.scale}: the simulator starts from a positive number")
    steps = pattern_of(pattern)
    if not 1 <= len(steps) <= LONGEST:
        raise ValueError(f"the pattern has {len(steps)} steps: the simulator shows 1 to {LONGEST}")
    rows = start.simulate(steps)
    picture = scale_history(rows, f"Loss scale and growth tracker, growth interval {start.growth_interval}")
    state = {"pattern": "".join(".x"[found_inf] for found_inf in steps), **dataclasses.asdict(start)}
    show_explorer("scaler_simulator", state, _text(rows), picture, _table(rows))


def _cells(row) -> tuple[str, ...]:
    scales = number_text(row.scale_before), number_text(row.scale)
    return str(row.step), "inf or NaN" if row.skipped else "finite", *scales, str(row.tracker), row.event


def _text(rows) -> str:
    return "\n".join(["Loss-scale simulator", *(f"  step {row.step}: {row.event}" for row in rows)])


def _table(rows) -> str:
    cell = 'style="text-align:left;padding-right:1em"'
    titles = "".join(f'<th scope="col" {cell}>{head}</th>' for head in HEADINGS)
    lines = "".join(
        f'<tr><th scope="row" {cell}>{first}</th>'
        + "".join(f"<td {cell}>{html.escape(part)}</td>" for part in rest)
        + "</tr>"
        for first, *rest in map(_cells, rows)
    )
    return f"<details><summary>All steps as a table</summary><table><tr>{titles}</tr>{lines}</table></details>"
