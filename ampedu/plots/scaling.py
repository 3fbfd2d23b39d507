"""Figure F3, the feedback loop of dynamic loss scaling, and the history of a scale: simulated or of a live run."""

import math

from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle
from matplotlib.ticker import MaxNLocator

from ampedu.plots.drawing import PALETTE, Picture, new_figure, powers_of_two, styled
from ampedu.scaling import LossScale, Row, ScalerLog
from ampedu.scaling.rule import number_text

CLEAN = {"color": PALETTE["blue"], "linestyle": "-", "linewidth": 2}
INF = {"color": PALETTE["vermillion"], "linestyle": (0, (4, 1.5)), "linewidth": 2}
WIDE, TALL = 2.6, 0.86  # of a box, in the drawing's units
LEFT, MIDDLE, RIGHT = 2.4, 5.75, 9.1
BACKWARD, CHECK, COUNT, GROW = 6.55, 4.75, 2.75, 1.15  # heights of the rows
LANES = [  # (bottom, top, left end of the words, what the learner's loop calls)
    (5.95, 7.45, 0.6, "scaler.scale(loss).backward()"),
    (3.8, 5.75, 0.6, "scaler.step(optimizer)"),
    (0.2, 3.6, 4.7, "scaler.update()"),
]


@styled
def scaler_loop(growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000) -> Picture:
    """Draw dynamic loss scaling as a state machine: what an iteration does to the scale S and the growth tracker.

    The constants stand in the picture; without arguments they are those of torch.amp.GradScaler.
    """
    figure = new_figure(height=5.6)
    axes = figure.add_subplot()
    axes.set(xlim=(-0.1, 11.1), ylim=(-0.2, 7.5))
    axes.axis("off")
    for low, high, start, code in LANES:
        lane = Rectangle((0.45, low), 10.1, high - low, facecolor="0.93", edgecolor="0.5", linestyle=":", zorder=0)
        axes.add_patch(lane)
        axes.text(start, high - 0.12, code, size=9, family="DejaVu Sans Mono", va="top")
    _box(axes, MIDDLE, BACKWARD, "backward", "every gradient × S")
    _box(axes, LEFT, CHECK, "optimizer.step()", "the weights move")
    _box(axes, RIGHT, CHECK, "no step", "the weights stay")
    _box(axes, LEFT, COUNT, "tracker + 1", "one more clean step")
    _box(axes, RIGHT, COUNT, f"S × {backoff_factor:g}", "tracker = 0")
    _box(axes, MIDDLE, GROW, f"S × {growth_factor:g}", "tracker = 0")
    _question(axes, MIDDLE, CHECK, "inf or NaN in\nany gradient?")
    _question(axes, LEFT, GROW, f"tracker =\n{growth_interval}?")
    side, end = WIDE / 2, TALL / 2
    _route(axes, [(MIDDLE, BACKWARD - end), (MIDDLE, CHECK + 0.68)], {**CLEAN, "color": "black"})
    _route(axes, [(MIDDLE - side, CHECK), (LEFT + side, CHECK)], CLEAN, "no")
    _route(axes, [(MIDDLE + side, CHECK), (RIGHT - side, CHECK)], INF, "yes")
    _route(axes, [(LEFT, CHECK - end), (LEFT, COUNT + end)], CLEAN)
    _route(axes, [(RIGHT, CHECK - end), (RIGHT, COUNT + end)], INF)
    _route(axes, [(LEFT, COUNT - end), (LEFT, GROW + 0.68)], CLEAN)
    _route(axes, [(LEFT + side, GROW), (MIDDLE - side, GROW)], CLEAN, "yes")
    rail = [(0.15, GROW), (0.15, BACKWARD), (MIDDLE - side, BACKWARD)]
    _route(axes, [(LEFT - side, GROW), *rail], CLEAN)
    axes.text(0.78, GROW + 0.1, "no", size=9.5, ha="center", va="bottom", weight="bold")
    axes.text(0.6, BACKWARD + 0.1, "same S", size=9.5, ha="left", va="bottom")
    _route(axes, [(RIGHT + side, COUNT), (10.8, COUNT), (10.8, BACKWARD), (MIDDLE + side, BACKWARD)], INF)
    axes.text(10.45, BACKWARD + 0.1, "smaller S", size=9.5, ha="right", va="bottom")
    axes.text(10.45, GROW + 0.1, "larger S", size=9.5, ha="right", va="bottom")
    _route(axes, [(MIDDLE + side, GROW), (10.98, GROW), (10.98, 7.3), (MIDDLE, 7.3), (MIDDLE, BACKWARD + end)], CLEAN)
    handles = [Line2D([], [], **CLEAN, label="clean step"), Line2D([], [], **INF, label="inf or NaN found")]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, handlelength=3)
    axes.set_title("Dynamic loss scaling: what one iteration does to the scale S")
    return Picture(figure, _words(growth_factor, backoff_factor, growth_interval))


def _words(growth: float, backoff: float, interval: int) -> str:
    return (
        "State machine of dynamic loss scaling. The loss is multiplied by the scale S, so that every gradient "
        "is S times too large. If any gradient is inf or NaN, the optimizer does not step, S is multiplied by "
        f"{backoff:g} and the growth tracker becomes 0. If not, the optimizer steps and the tracker counts one more; "
        f"when it reaches {interval}, S is multiplied by {growth:g} and the tracker becomes 0, else S stays. "
        "The next iteration starts with that S."
    )


def _box(axes, x, y, first, second) -> None:
    style = {"boxstyle": "round,pad=0,rounding_size=0.1", "facecolor": "white", "edgecolor": "black", "linewidth": 1.1}
    axes.add_patch(FancyBboxPatch((x - WIDE / 2, y - TALL / 2), WIDE, TALL, **style))
    axes.text(x, y + 0.17, first, ha="center", va="center", size=10, weight="bold")
    axes.text(x, y - 0.19, second, ha="center", va="center", size=9.2)


def _question(axes, x, y, text) -> None:
    corners = [(x - WIDE / 2, y), (x, y + 0.68), (x + WIDE / 2, y), (x, y - 0.68)]
    axes.add_patch(Polygon(corners, facecolor="white", edgecolor="black", linewidth=1.1))
    axes.text(x, y, text, ha="center", va="center", size=9.2, linespacing=1.1)


def _route(axes, points, style, word="") -> None:
    """A line through points with an arrow head at the end, and a word above its only stretch."""
    *before, last, end = points
    if before:
        axes.plot(*zip(*before, last, strict=True), solid_capstyle="butt", **style)
    axes.add_patch(FancyArrowPatch(last, end, arrowstyle="-|>", mutation_scale=13, shrinkA=0, shrinkB=0, **style))
    if word:
        x, y = (last[0] + end[0]) / 2, last[1] + 0.1
        axes.text(x, y, word, size=9.5, ha="center", va="bottom", weight="bold")


@styled
def scale_history(rows, title: str = "Loss scale and growth tracker") -> Picture:
    """Draw the scale, the skipped steps and the growth tracker over the steps.

    rows: a ``ScalerLog``, or the rows of one or of ``LossScale.simulate``. The upper line is the scale that the step
    was made with; a cross marks a skipped one. Below: the tracker after the step, and the interval that it counts to.
    ValueError: no rows yet.
    """
    rows = rows_of(rows)
    figure = new_figure(height=4.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    steps = [row.step for row in rows]
    scales = [_log2(row.scale_before) for row in rows]
    edges = [steps[0] - 0.5, *(step + 0.5 for step in steps)]
    upper.stairs(scales, edges, baseline=None, gid="scale", **CLEAN)
    skipped = [(row.step, _log2(row.scale_before)) for row in rows if row.skipped]
    if skipped:
        cross = {"marker": "X", "markersize": 9, "color": PALETTE["vermillion"], "markeredgecolor": "white"}
        upper.plot(*zip(*skipped, strict=True), linestyle="none", clip_on=False, gid="skips", **cross)
    known = [scale for scale in scales if math.isfinite(scale)] or [0]
    low, high = math.floor(min(known)) - 1, math.ceil(max(known)) + 1
    upper.set(ylim=(low, high), ylabel="scale", title=title)
    step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128) if (high - low) / s <= 6)
    powers_of_two(upper.yaxis, range(-(-low // step) * step, high + 1, step))
    upper.grid(axis="y", alpha=0.3)
    trackers = [row.tracker for row in rows]
    lower.stairs(trackers, edges, fill=True, facecolor=PALETTE["sky"], edgecolor=PALETTE["blue"], gid="tracker")
    intervals = [row.growth_interval for row in rows]
    if max(intervals) <= 4 * max(1, *trackers):
        lower.stairs(intervals, edges, baseline=None, color="black", linestyle=":", linewidth=1.6, gid="interval")
    lower.set(ylabel="growth tracker", xlabel="step", xlim=(edges[0], edges[-1]))
    lower.set_ylim(bottom=0)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    lower.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    handles = [
        Line2D([], [], **CLEAN, label="scale of the step"),
        Line2D([], [], linestyle="none", marker="X", markersize=9, color=PALETTE["vermillion"], label="skipped step"),
        Line2D([], [], color=PALETTE["sky"], linewidth=6, label="clean steps in a row"),
    ]
    if max(intervals) <= 4 * max(1, *trackers):
        handles.append(Line2D([], [], color="black", linestyle=":", linewidth=1.6, label="growth interval"))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False)
    return Picture(figure, _told(rows))


def rows_of(rows) -> list[Row]:
    """The rows of a ScalerLog, or a list of them as it is."""
    rows = list(rows.rows if isinstance(rows, ScalerLog) else rows)
    wrong = [row for row in rows if not isinstance(row, Row)]
    if wrong:
        hint = ": draw LossScale.simulate(pattern)" if isinstance(wrong[0], LossScale) else ""
        raise TypeError(f"scale_history draws a ScalerLog or its rows, not {type(wrong[0]).__name__}{hint}")
    if not rows:
        raise ValueError("there is nothing to draw: no scaler.update() was recorded")
    return rows


def _log2(scale: float) -> float:
    return math.log2(scale) if 0 < scale < math.inf else math.nan


def _told(rows) -> str:
    skips = [row.step for row in rows if row.skipped]
    grown = [row.step for row in rows if row.scale > row.scale_before]
    first, last = number_text(rows[0].scale_before), number_text(rows[-1].scale)
    return (
        f"Loss scale over {len(rows)} steps, from {first} to {last}: {len(skips)} skipped{_where(skips)}, "
        f"{len(grown)} times grown{_where(grown)}."
    )


def _where(steps) -> str:
    return f" (after step {', '.join(map(str, steps[:10]))}{', …' if len(steps) > 10 else ''})" if steps else ""
