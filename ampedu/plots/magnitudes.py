"""A histogram of magnitudes in powers of two over the ranges of formats: what a loss scale moves."""

from matplotlib.patches import Patch

from ampedu.magnitudes import OUTCOMES, bounds, outcome, percent, shares
from ampedu.plots.drawing import PALETTE, Picture, new_figure, powers_of_two, styled
from ampedu.plots.layout import as_names

LOOKS = {  # the hatching says the same as the color
    "zero": {"facecolor": "0.85", "hatch": "..", "edgecolor": "0.35"},
    "subnormal": {"facecolor": "white", "hatch": "////", "edgecolor": PALETTE["blue"]},
    "normal": {"facecolor": PALETTE["sky"], "edgecolor": PALETTE["blue"]},
    "overflow": {"facecolor": "white", "hatch": "xxxx", "edgecolor": PALETTE["vermillion"]},
}


@styled
def magnitudes(counts: dict[int, int], formats, scale_log2: int = 0, label: str = "gradients") -> Picture:
    """Draw how many values lie in each [2^k, 2^(k+1)), times 2^scale_log2, and what each format makes of them.

    counts: {k: number}, as ``exponent_counts`` returns it. formats: a name or several; the bars show what the first
    one does. label: what the values are.
    """
    rows = as_names(formats)
    first = rows[0]
    bins = [k + scale_log2 for k in counts]
    low, high = min([-28, *bins]) - 4, max([17, *bins]) + 3
    figure = new_figure(height=3.2 + 0.3 * len(rows))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[5, 0.3 + len(rows)])
    for k, number in zip(bins, counts.values(), strict=True):
        upper.bar(k, number, width=1, align="edge", **LOOKS[outcome(k, first)])
    upper.set(ylabel="values", title=_title(scale_log2, label))
    upper.set_ylim(bottom=0)
    for row, fmt in enumerate(rows):
        edges = [low, *bounds(fmt)[:2], bounds(fmt)[2] + 1, high]
        for kind, start, end in zip(OUTCOMES, edges, edges[1:], strict=False):
            start, end = max(start, low), min(end, high)
            if start < end:
                lower.barh(-row, end - start, left=start, height=0.6, **LOOKS[kind])
    lower.set_yticks([-row for row in range(len(rows))], [fmt.name for fmt in rows])
    lower.set(xlim=(low, high), xlabel="magnitude after scaling (powers of two)")
    powers_of_two(lower.xaxis, [k for k in range(low, high + 1) if k % 8 == 0])
    handles = [Patch(label=kind, **look) for kind, look in LOOKS.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False)
    told = " ".join(_told(counts, fmt, scale_log2) for fmt in rows)
    return Picture(figure, f"Histogram of the magnitudes of {label} over the ranges of formats. {told}")


def _title(scale_log2: int, label: str) -> str:
    return f"{label[:1].upper()}{label[1:]}" + (f", multiplied by $2^{{{scale_log2}}}$" if scale_log2 else "")


def _told(counts: dict[int, int], fmt, scale_log2: int) -> str:
    part = shares(counts, fmt, scale_log2)
    words = {"zero": "become zero", "subnormal": "are subnormal", "overflow": "overflow"}
    listed = ", ".join(f"{percent(part[kind])} {word}" for kind, word in words.items())
    return f"{fmt.name}, scaled by 2^{scale_log2}: {listed}."
