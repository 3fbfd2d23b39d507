"""Plain curves and small matrices, with what is not a number made visible instead of left out."""

import math
import textwrap

import torch

from ampedu.plots.drawing import LINES, PALETTE, Picture, new_figure, styled

CROSSES = 60  # more of them merge into a bar
TITLE, LEGEND = 66, 100  # characters that fit into a line of the title, and of the legend


@styled
def curves(x, series, title: str, xlabel: str, ylabel: str, alt: str, xscale="linear", yscale="linear") -> Picture:
    """Draw one line per series against x; values that are infinite or NaN become crosses on the lower edge.

    x: n numbers. series: {label: n numbers}; on a logarithmic axis ("log", "log2") zero counts as not drawable and is
    left out. Raises ValueError where a series is not as long as x.
    """
    x = _numbers(x)
    figure = new_figure(height=3.4)
    axes = figure.add_subplot()
    for index, (label, values) in enumerate(series.items()):
        values = _numbers(values)
        if len(values) != len(x):
            raise ValueError(f"{label!r} has {len(values)} values for {len(x)} places on the x-axis: give one for each")
        color, dash, marker = LINES[index % len(LINES)]
        drawn = [v if math.isfinite(v) and (v > 0 or yscale == "linear") else math.nan for v in values]
        markers = {"marker": marker, "markersize": 5, "markevery": max(1, len(x) // 12)}
        if not all(map(math.isnan, drawn)):
            axes.plot(x, drawn, color=color, linestyle=dash, linewidth=2, label=label, gid=label, **markers)
        broken = [a for a, v in zip(x, values, strict=True) if not math.isfinite(v)]
        broken = broken[:: len(broken) // CROSSES + 1]
        if broken:
            # In axes coordinates, so that crosses lie on the edge whatever the scale.
            where = axes.get_xaxis_transform()
            style = {"color": color, "marker": "x", "linestyle": "none", "clip_on": False, "zorder": 5}
            name = f"{label}: inf or NaN"
            axes.plot(broken, [0.02 + 0.05 * index] * len(broken), transform=where, label=name, gid=name, **style)
    for axis, scale in ((axes.set_xscale, xscale), (axes.set_yscale, yscale)):
        axis("log", base=2) if scale == "log2" else axis(scale)
    axes.set(title=textwrap.fill(title, TITLE), xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, LEGEND // max(len(label) + 7 for label in labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return Picture(figure, alt)


@styled
def matrices(panels, title: str, alt: str, rows: str = "", columns: str = "") -> Picture:
    """Draw small matrices side by side with their numbers; NaN and infinity are hatched and named.

    panels: {label: matrix of shape (r, c)}, values between 0 and 1 give the shade. rows, columns: names of the axes.
    """
    shapes = [torch.as_tensor(matrix).shape for matrix in panels.values()]
    side = min(2.2, 6.6 / len(panels))  # inches of a panel; cells are square
    figure = new_figure(height=1.2 + side * max(high / wide for high, wide in shapes))
    spots = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (label, matrix) in zip(spots, panels.items(), strict=True):
        values = torch.as_tensor(matrix).detach().double().cpu()
        shade = values.nan_to_num(0.0, 0.0, 0.0).clamp(0, 1)
        axes.imshow(shade, cmap="Blues", vmin=0, vmax=1.8)
        for row, column in ((r, c) for r in range(values.shape[0]) for c in range(values.shape[1])):
            value = values[row, column].item()
            text = f"{value:.2f}" if math.isfinite(value) else "NaN" if math.isnan(value) else f"{value}"
            axes.text(column, row, text, ha="center", va="center", size=9.5)
            if not math.isfinite(value):
                box = {"facecolor": "none", "edgecolor": PALETTE["vermillion"], "hatch": "//", "linewidth": 1.5}
                axes.axvspan(column - 0.5, column + 0.5, *_share(row, values.shape[0]), **box)
        axes.set_title(label, fontsize=10)
        axes.set(xlabel=columns, xticks=range(values.shape[1]), yticks=range(values.shape[0]))
    spots[0].set_ylabel(rows)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return Picture(figure, alt)


def _share(row: int, count: int) -> tuple[float, float]:
    """Lower and upper end of a row as shares of the height; row 0 is on top."""
    return 1 - (row + 1) / count, 1 - row / count


def _numbers(values) -> list[float]:
    return torch.as_tensor(values).detach().double().cpu().tolist()
