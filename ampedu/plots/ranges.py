"""Range against precision: two pictures of what a format spends its bits on."""

import math

from matplotlib.lines import Line2D

from ampedu.plots.drawing import LINES, Picture, new_figure, powers_of_two, styled
from ampedu.plots.layout import as_names


def binades(fmt) -> list[tuple[int, int, int]]:
    """(exponent, number of positive values, exponent of the gap) of every binade [2^e, 2^(e+1)) of a format.

    The values of a binade are counted up to the format's largest number, which may end inside it.
    """
    top = fmt.max_exponent
    rows = []
    for exponent in range(_least_exponent(fmt), top + 1):
        gap = max(exponent, fmt.min_exponent) - fmt.mantissa_bits
        count = 2 ** (exponent - gap) if exponent < top else int(math.ldexp(fmt.max, -gap)) - 2 ** (exponent - gap) + 1
        rows.append((exponent, count, gap))
    return rows


def _least_exponent(fmt) -> int:
    return fmt.min_exponent - (fmt.mantissa_bits if fmt.has_subnormals else 0)


@styled
def density(names) -> Picture:
    """Draw, against the magnitude, how many values each binade holds and how far neighbors are apart (log-log).

    A binade is the interval from one power of two to the next. Values per binade show the relative precision, gaps
    the absolute one.
    """
    rows = as_names(names)
    figure = new_figure(height=5.0)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for index, fmt in enumerate(rows):
        color, dash, marker = LINES[index % len(LINES)]
        data = binades(fmt)
        edges = [exponent for exponent, _, _ in data] + [data[-1][0] + 1]
        style = {"color": color, "linestyle": dash, "linewidth": 2, "label": fmt.name}
        ends = {"color": color, "marker": marker, "linestyle": "none", "markersize": 6}
        for axes, values in ((upper, [math.log2(count) for _, count, _ in data]), (lower, [gap for *_, gap in data])):
            axes.plot(edges, values + values[-1:], drawstyle="steps-post", gid=fmt.name, **style)
            axes.plot([edges[0], edges[-1]], [values[0], values[-1]], **ends)
    upper.set(ylabel="values per binade", title="As numbers grow, a binade holds as many values as before …")
    lower.set(ylabel="gap between neighbors", title="… so the gap between neighbors doubles with every binade")
    lower.set_xlabel("magnitude of the number (powers of two; flat gaps on the left: subnormals)")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        low, high = axes.get_ylim()
        powers_of_two(axes.yaxis, _round_steps(low, high, 6))
    powers_of_two(lower.xaxis, _round_steps(*lower.get_xlim(), 9))
    figure.legend(*upper.get_legend_handles_labels(), loc="outside right center", frameon=False)
    told = " ".join(
        f"{fmt.name}: {2**fmt.mantissa_bits} values per normal binade, gaps from 2^{binades(fmt)[0][2]} "
        f"to 2^{binades(fmt)[-1][2]}."
        for fmt in rows
    )
    return Picture(figure, "Values per binade and gap between neighbors against magnitude. " + told)


def _round_steps(low: float, high: float, most: int) -> list[int]:
    step = next(s for s in (1, 2, 4, 5, 8, 10, 16, 20, 32, 64, 128, 256, 512) if (high - low) / s <= most)
    first = math.ceil(low / step) * step
    return list(range(first, math.floor(high) + 1, step))


@styled
def range_precision(names=("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3fn", "e2m1")) -> Picture:
    """Draw each format as a bar: its length is the range in powers of two, its height the precision in bits.

    Thick: normal numbers. Thin and dashed: subnormal numbers, which lose one bit of precision per binade. Formats of
    equal precision stand side by side, so that both are seen.
    """
    rows = as_names(names)
    figure = new_figure(height=4.4)
    axes = figure.add_subplot()
    for index, fmt in enumerate(rows):
        _profile(axes, fmt, LINES[index % len(LINES)][0], _dodge(index, rows))
    left = min(_least_exponent(fmt) for fmt in rows)
    right = max(fmt.max_exponent for fmt in rows) + 1
    precisions = sorted({fmt.mantissa_bits + 1 for fmt in rows})
    axes.set(xlim=(left - 0.02 * (right - left), right + 0.2 * (right - left)))
    axes.set(ylim=(-0.25, math.log2(precisions[-1]) + 0.45))
    axes.set_yticks([math.log2(bits) for bits in [1, *precisions]], [str(bits) for bits in [1, *precisions]])
    axes.set_ylabel("precision in bits, mantissa + 1\n(higher: finer)")
    axes.set_xlabel("magnitude, powers of two (longer: wider range)")
    powers_of_two(axes.xaxis, _round_steps(left, right, 9))
    axes.grid(axis="x", alpha=0.3)
    axes.set_title("Exponent bits buy range (length), mantissa bits buy precision (height)")
    handles = [
        Line2D([], [], color="0.35", linewidth=6, solid_capstyle="butt", label="normal numbers"),
        Line2D([], [], color="0.35", linewidth=2, linestyle=(0, (2, 1)), label="subnormal numbers"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False)
    told = " ".join(
        f"{fmt.name}: 2^{_least_exponent(fmt)} to 2^{fmt.max_exponent}, {fmt.mantissa_bits + 1} bits." for fmt in rows
    )
    return Picture(figure, "Range and precision of formats, subnormals included. " + told)


def _dodge(index: int, rows) -> float:
    ties = [i for i, fmt in enumerate(rows) if fmt.mantissa_bits == rows[index].mantissa_bits]
    return 0.26 * ((len(ties) - 1) / 2 - ties.index(index))


def _profile(axes, fmt, color: str, shift: float) -> None:
    bits = fmt.mantissa_bits + 1
    least, normal, end = _least_exponent(fmt), fmt.min_exponent, fmt.max_exponent + 1
    height = math.log2(bits) + shift
    axes.plot([normal, end], [height] * 2, color=color, linewidth=6, solid_capstyle="butt", gid=f"normal {fmt.name}")
    if least < normal:
        exponents = list(range(least, normal + 1))
        heights = [math.log2(exponent - least + 1) + shift for exponent in exponents]
        style = {"color": color, "linewidth": 2, "linestyle": (0, (2, 1)), "gid": f"subnormal {fmt.name}"}
        axes.plot(exponents, heights, **style)
    axes.annotate(
        f"{fmt.name}: {bits} bits", (end, height), xytext=(5, 0), textcoords="offset points", va="center", size=9.5
    )
