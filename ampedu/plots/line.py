"""The number line: every value that a format can hold, between two bounds."""

import itertools
import math

import torch
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from ampedu import formats
from ampedu.plots.drawing import PALETTE, Picture, new_figure, styled
from ampedu.plots.layout import as_names

MOST_TICKS = 300  # more ticks than this in a row of 900 pixels merge into a block
MOST_LISTED = 1 << 17


def count_between(fmt, low: float, high: float) -> int:
    """How many different finite values of a format lie in [low, high]; -0 and +0 count once."""
    return sum(last - first + 1 for first, last, _ in _code_ranges(fmt, low, high))


def values_between(fmt, low: float, high: float) -> torch.Tensor:
    """The different finite values of a format in [low, high], ascending, as float64."""
    if count_between(fmt, low, high) > MOST_LISTED:
        raise ValueError(f"{fmt.name} has more than {MOST_LISTED} values in [{low}, {high}]: narrow the bounds")
    parts = []
    for first, last, sign in _code_ranges(fmt, low, high):
        magnitudes = formats.decode(torch.arange(first, last + 1, dtype=torch.int64), fmt)
        parts.append(sign * magnitudes)
    return torch.unique(torch.cat(parts)) if parts else torch.empty(0, dtype=torch.float64)


def _code_ranges(fmt, low: float, high: float) -> list[tuple[int, int, int]]:
    """Ranges (first, last, sign) of codes of magnitudes: codes of one sign ascend with the magnitude."""
    ranges = []
    if high >= 0:
        ranges.append((*_magnitude_codes(fmt, max(low, 0.0), high), 1))
    if low < 0 and fmt.signed:
        smallest = max(-high, fmt.min_subnormal)  # zero belongs to the other half
        ranges.append((*_magnitude_codes(fmt, smallest, -low), -1))
    return [(first, last, sign) for first, last, sign in ranges if first <= last]


def _magnitude_codes(fmt, low: float, high: float) -> tuple[int, int]:
    top, bottom = min(high, fmt.max), 0.0 if fmt.has_zero else fmt.min_normal
    if low > top or high < bottom:
        return 1, 0
    first = int(formats.encode(max(low, bottom), fmt))
    last = int(formats.encode(top, fmt))
    first += formats.decode(first, fmt) < low
    last -= formats.decode(last, fmt) > top
    return first, last


@styled
def number_line(names, low: float, high: float) -> Picture:
    """Draw every representable value in [low, high] as a tick, one row per format; taller marks are powers of two.

    Where ticks would merge (more than 300 in a row), each binade, the interval from one power of two to the next, is
    shaded by its density instead: darker means that more values share the same length.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"number_line needs two finite bounds with low < high, not {low} and {high}")
    rows = as_names(names)
    figure = new_figure(height=1.05 + 0.62 * len(rows))
    axes = figure.add_subplot()
    told, shaded = [], False
    for row, fmt in enumerate(rows):
        count = count_between(fmt, low, high)
        shaded |= count > MOST_TICKS
        if count <= MOST_TICKS:
            _ticks(axes, -row, values_between(fmt, low, high), fmt.name)
        else:
            _shades(axes, -row, fmt, low, high)
        _binade_marks(axes, -row, fmt, low, high)
        told.append(f"{fmt.name} has {count} values there.")
        axes.text(high + 0.01 * (high - low), -row, f"{count:,}\nvalues", ha="left", va="center", size=9)
    margin = 0.004 * (high - low)
    axes.set(xlim=(low - margin, high + margin), ylim=(0.55 - len(rows), 0.55))
    axes.set_xlabel("value (linear scale)" + ("; where ticks would merge: darker means denser" if shaded else ""))
    axes.set_yticks([-row for row in range(len(rows))], [fmt.name for fmt in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_title(f"Values that exist between {low:g} and {high:g} (tall marks: powers of two)")
    alt = f"Number line from {low:g} to {high:g}. " + " ".join(told)
    return Picture(figure, alt + " The gap between neighbors doubles at every power of two.")


def _ticks(axes, y, values, name) -> None:
    segments = [[(value, y - 0.16), (value, y + 0.16)] for value in values.tolist()]
    axes.add_collection(LineCollection(segments, colors=PALETTE["blue"], linewidths=1.1, gid=f"values of {name}"))


def _shades(axes, y, fmt, low, high) -> None:
    edges = _binade_edges(fmt, low, high)
    bounds = sorted({low, *edges, high, *([0.0] if low < 0 < high else [])})
    spans = [(a, b, count_between(fmt, a, b) / (b - a)) for a, b in itertools.pairwise(bounds)]
    densities = [math.log2(density) for _, _, density in spans if density]
    least, most = min(densities), max(densities)
    for a, b, density in spans:
        if density:
            depth = 1.0 if most == least else 0.15 + 0.85 * (math.log2(density) - least) / (most - least)
            axes.add_patch(Rectangle((a, y - 0.16), b - a, 0.32, color=PALETTE["blue"], alpha=depth, linewidth=0))


def _binade_edges(fmt, low, high) -> list[float]:
    """Powers of two in (low, high) from the smallest binade that is wide enough to see."""
    finest = max(math.log2((high - low) / 150), math.log2(fmt.min_normal))
    coarsest = math.log2(min(max(abs(low), abs(high)), fmt.max))
    powers = [2.0**e for e in range(math.ceil(finest), math.floor(coarsest) + 1)]
    return [edge for power in powers for edge in (-power, power) if low <= edge <= high]


def _binade_marks(axes, y, fmt, low, high) -> None:
    edges = [edge for edge in _binade_edges(fmt, low, high) if edge > 0 or fmt.signed]
    segments = [[(edge, y - 0.32), (edge, y + 0.32)] for edge in edges]
    axes.add_collection(LineCollection(segments, colors="black", linewidths=1.4, gid=f"binades of {fmt.name}"))
