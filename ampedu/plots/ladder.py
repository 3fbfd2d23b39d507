"""A ladder of measures: time and memory of one training step, rung by rung."""

from ampedu.memory.ledger import mib
from ampedu.plots.drawing import PALETTE, Picture, new_figure, styled
from ampedu.timing import unit_of


@styled
def ladder(times, sizes, title: str = "Time and memory of a training step") -> Picture:
    """Draw two bars per rung, from the top: the median time with its quartiles, and the bytes at the step's peak.

    times: {name: ampedu.timing.Timing}, or None for a rung that was not timed; sizes: {the same names: bytes, or None}.
    ValueError: no rung, or names that differ.
    """
    if not times or list(times) != list(sizes):
        raise ValueError(f"times and sizes must name the same rungs: {list(times)} and {list(sizes)}")
    timed = [timing.median for timing in times.values() if timing]
    unit, factor = unit_of(max(timed)) if timed else ("s", 1.0)
    ends = [timing.quartiles[1] * factor for timing in times.values() if timing]
    figure = new_figure(height=1.5 + 0.42 * len(times))
    left, right = figure.subplots(1, 2, sharey=True)
    for y, (name, timing) in enumerate(times.items()):
        size = sizes[name]
        if timing:
            low, high = (quartile * factor for quartile in timing.quartiles)
            middle = timing.median * factor
            left.barh(y, middle, height=0.62, color=PALETTE["blue"], gid=f"{name}: time")
            left.hlines(y, low, high, color="black", linewidth=3)
        left.text(high + 0.02 * max(ends) if timing else 0, y, _time(timing), va="center", size=9)
        if size is not None:
            right.barh(y, size / 2**20, height=0.62, color=PALETTE["sky"], hatch="//", gid=f"{name}: memory")
        right.text((size or 0) / 2**20, y, f" {_size(size)}", va="center", size=9)
    left.set_yticks(range(len(times)), times)
    largest = max((size / 2**20 for size in sizes.values() if size is not None), default=1)
    left.set(ylim=(len(times) - 0.5, -0.5), xlim=(0, 1.5 * max(ends, default=1)), xlabel=f"{unit} per step")
    right.set(xlim=(0, 1.5 * largest), xlabel="MiB at the peak")
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11.5)
    told = "; ".join(f"{name}: {_time(timing)}, {_size(sizes[name])}" for name, timing in times.items())
    return Picture(figure, f"{title}. Two bars for each rung, time with its quartiles and memory. {told}.")


def _time(timing) -> str:
    if not timing:
        return "not timed here"
    unit, factor = unit_of(timing.median)
    return f"{timing.median * factor:.3g} {unit}"


def _size(size) -> str:
    return "not measured here" if size is None else mib(size)
