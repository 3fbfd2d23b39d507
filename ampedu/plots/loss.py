"""Pictures of a lost update: one sum on the number line, and the threshold of every weight."""

import math

from ampedu import formats
from ampedu.plots.drawing import LINES, PALETTE, Picture, new_figure, styled
from ampedu.plots.layout import as_names
from ampedu.updates import check_format, landing_limits, update_lands

GAPS = 3.5  # gaps to each side of the weight that are drawn


@styled
def landing(weight: float, update: float, fmt) -> Picture:
    """Draw a weight among its neighbors, the update as an arrow, and where the rounded sum ends up.

    Above: the number line around the weight; sums in the shaded part are rounded back to the weight. Below: the size
    of the update relative to the weight, between "always lost" and "always felt". Arguments as in update_lands.
    """
    result, fmt = update_lands(weight, update, fmt), formats.get(fmt)
    figure = new_figure(height=3.4)
    line, scale = figure.subplots(2, 1, height_ratios=[2.2, 1])
    _around(line, result, fmt)
    _zones(scale, result, fmt)
    sign = "−" if result.update < 0 else "+"
    line.set_title(f"{fmt.name}: {result.weight:.6g} {sign} {abs(result.update):.3g}  →  {_short(result)}")
    told = f"{fmt.name}, weight {result.weight:.9g}, update {result.update:.4g}. {result.verdict}"
    return Picture(figure, told)


def _short(result) -> str:
    if result.lands:
        return f"{result.result:.6g}: it lands"
    return f"{result.result:.6g}: " + ("lost" if result.update else "no update")


def _around(axes, result, fmt) -> None:
    gap = formats.ulp(result.weight, fmt)
    left, right = -GAPS, GAPS

    def place(value: float) -> float:  # in gaps from the weight: offsets of a large weight would be unreadable
        return (value - result.weight) / gap

    low, high = max(place(result.low), left), min(place(result.high), right)
    axes.axvspan(low, high, color=PALETTE["yellow"], alpha=0.5, gid="rounds back", linewidth=0)
    ticks = [place(value) for value in _values(result.weight, fmt, gap)]
    axes.vlines(ticks, -0.35, 0.35, color="0.35", linewidth=1.5)
    axes.axhline(0, color="0.35", linewidth=1)
    for value, name, height in ((result.weight, "weight", -0.8), (result.result, "stored", 0.95)):
        spot = min(max(place(value), left), right)
        color, marker = (PALETTE["blue"], "o") if name == "weight" else (PALETTE["vermillion"], "s")
        size = 11 if name == "weight" else 6
        axes.plot([spot], [0], color=color, marker=marker, markersize=size, linestyle="none", gid=name, zorder=4)
        shift = 0.0 if name == "weight" else min(max(spot, left + 1), right - 1)
        text = f"{name} {value:.9g}" + ("" if spot == place(value) else "  (further out)")
        axes.annotate(text, (shift, height), ha="center", va="center", size=9.5, color=color)
    tip = min(max(place(result.exact), left), right)
    axes.annotate(
        "", (tip, 0.6), (0, 0.6), arrowprops={"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "linewidth": 2}
    )
    if abs(tip) < 0.15:  # an arrow that short is only its head
        axes.vlines([tip], 0.45, 0.75, color="black", linewidth=2)
    axes.set(xlim=(left - 0.2, right + 0.2), ylim=(-1.1, 1.25), yticks=[])
    axes.set_xlabel(f"distance from the weight in gaps of {gap:.3g} (shaded: rounded back to the weight)")


def _values(weight: float, fmt, gap: float) -> list[float]:
    found = [weight]
    for side in (0, 1):
        value = weight
        while True:
            value = formats.neighbours(value, fmt)[side]
            if value is None or math.isinf(value) or abs(value - weight) > GAPS * gap:
                break
            found.append(value)
    return found


def _zones(axes, result, fmt) -> None:
    lost, felt = (math.log2(limit) for limit in landing_limits(fmt))
    left, right = lost - 7, felt + 7
    for start, end, color, text in (
        (left, lost, PALETTE["yellow"], "always lost"),
        (lost, felt, "#FFFFFF", "?"),
        (felt, right, PALETTE["sky"], "always felt"),
    ):
        axes.axvspan(start, end, color=color, alpha=0.5, linewidth=0)
        axes.text((start + end) / 2, 0.78, text, ha="center", va="center", size=9.5)
    ratio = math.log2(result.ratio) if 0 < result.ratio < math.inf else (left if not result.ratio else right)
    spot = min(max(ratio, left), right)
    axes.plot([spot], [0.3], color="black", marker="v", markersize=9, linestyle="none", gid="ratio")
    marks = list(range(math.ceil(left), math.floor(right) + 1, 2))
    axes.set(xlim=(left - 0.5, right + 0.5), ylim=(0, 1.1), yticks=[])
    axes.set_xticks(marks, [rf"$2^{{{mark}}}$" for mark in marks])
    # Near zero the gap no longer shrinks with the weight.
    note = "?: depends on the mantissa" if abs(result.weight) >= fmt.min_normal else "zones are for normal weights only"
    axes.set_xlabel(f"size of the update relative to the weight ({note})")


@styled
def landing_zones(names=("bf16", "fp16")) -> Picture:
    """Draw, for weights over three binades, the smallest relative update that can change each (log-log).

    A binade is the interval from one power of two to the next. The threshold of a weight is half the gap to its next
    larger neighbor, over the weight; it falls within a binade and jumps at each power of two.
    """
    rows = as_names(names)
    figure = new_figure(height=3.4)
    axes = figure.add_subplot()
    told = []
    for index, fmt in enumerate(rows):
        check_format(fmt)
        color, dash, _ = LINES[index % len(LINES)]
        lost, felt = landing_limits(fmt)
        weights = [2.0 ** (step / 64) for step in range(-64, 129)]
        thresholds = [formats.ulp(weight, fmt) / 2 / weight for weight in weights]
        axes.axhspan(lost, felt, color=color, alpha=0.15, linewidth=0)
        axes.plot(weights, thresholds, color=color, linestyle=dash, linewidth=2, label=fmt.name, gid=fmt.name)
        axes.text(4.1, math.sqrt(lost * felt), fmt.name, va="center", size=10, color=color)
        told.append(f"{fmt.name}: between 2^{math.log2(lost):g} and 2^{math.log2(felt):g}.")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(title="Below the line an update is lost, above it the weight moves", xlabel="weight", xlim=(0.5, 4.6))
    axes.set_ylabel("update / weight")
    axes.grid(alpha=0.3)
    return Picture(figure, "Smallest relative update that changes a weight: a sawtooth. " + " ".join(told))
