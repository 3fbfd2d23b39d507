"""Pictures of speed: the roofline, one tile product step by step, and the waves of tiles on a GPU."""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ampedu.plots.drawing import LINES, PALETTE, Picture, new_figure, styled

ORDER = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
A = ((50, 3, 7, 11), (2, 60, 5, 1), (9, 4, 45, 8), (6, 12, 10, 52))
B = ((41, 8, 3, 5), (7, 39, 2, 10), (1, 6, 57, 4), (12, 5, 9, 43))
C = ((1, 0, 0, 2), (0, 1, 0, 0), (3, 0, 1, 0), (0, 0, 0, 1))


@styled
def roofline(roof, points=(), formats=None) -> Picture:
    """Draw the roofs of a device, one per format, and measured points below them, log-log.

    roof: an ampedu.roofline.Roofline. points: (name, format, FLOP per byte, FLOP/s) each; the same name is drawn with
    the same number. formats: which roofs to draw, by default all.
    """
    formats = [name for name in ORDER if name in (formats or roof.peaks) and name in roof.peaks]
    figure = new_figure(height=4.6)
    axes = figure.add_subplot()
    inner = [x for *_, x, _ in points if x > 0] + [roof.ridge(name) for name in formats]
    low, high = min(0.1, *inner) / 2, max(1000, *inner) * 2
    grid = np.geomspace(low, high, 400)
    drawn = {}
    for name in formats:
        color, dash, marker = LINES[ORDER.index(name) % len(LINES)]
        drawn[name] = (color, marker)
        roofs = [roof.attainable(x, name) / 1e9 for x in grid]
        axes.plot(grid, roofs, color=color, linestyle=dash, linewidth=2, gid=f"roof {name}")
        axes.plot(roof.ridge(name), roof.peaks[name] / 1e9, marker="|", markersize=16, color=color)
    names = list(dict.fromkeys(name for name, *_ in points))
    for name, fmt, x, speed in points:
        color, marker = drawn[fmt]
        axes.plot(x, speed / 1e9, marker=marker, color=color, markersize=7, linestyle="none", markeredgecolor="white")
        number = str(names.index(name) + 1)
        axes.annotate(number, (x, speed / 1e9), xytext=(5, 3), textcoords="offset points", size=9)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_xlabel("arithmetic intensity in FLOP per byte")
    axes.set_ylabel("speed in GFLOP/s")
    axes.grid(alpha=0.3)
    axes.set_title(f"Roofline of {roof.name}: {_round(roof.bandwidth / 1e9)} GB/s")
    handles = [_handle(name, f"{name}: peak {_speed(roof.peaks[name])}") for name in formats]
    handles += [Line2D([], [], linestyle="none", label=f"{n + 1} {name}") for n, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, handlelength=2.2)
    told = "; ".join(f"{n} peak {_speed(roof.peaks[n])}, ridge at {roof.ridge(n):.3g} FLOP/byte" for n in formats)
    dots = f" {len(points)} measured points of {len(names)} layers." if points else ""
    return Picture(figure, f"Roofline of {roof.name}, bandwidth {_round(roof.bandwidth / 1e9)} GB/s: {told}.{dots}")


def _handle(name: str, label: str) -> Line2D:
    color, dash, marker = LINES[ORDER.index(name) % len(LINES)]
    return Line2D([], [], color=color, linestyle=dash, marker=marker, linewidth=2, label=label)


def _round(number: float) -> str:
    return f"{number:,.3g}" if number < 1000 else f"{round(number):,}"


def _speed(flops: float) -> str:
    return f"{_round(flops / 1e12)} TFLOP/s" if flops >= 1e12 else f"{_round(flops / 1e9)} GFLOP/s"


def accumulators(step: int) -> np.ndarray:
    """D after `step` of the four steps of D = A × B + C; float64, whole numbers, exact."""
    a, b, c = (np.array(matrix, dtype=float) for matrix in (A, B, C))
    return a[:, :step] @ b[:step] + c


@styled
def tile_product(step: int) -> Picture:
    """Draw D = A × B + C for one 4 × 4 tile after `step` of its four steps (0 to 4).

    Step k adds column k of A times row k of B: 16 multiply-adds. Inputs are float16; the sums are float32. A sum
    that float16 could not hold has a thick frame.
    """
    if step not in range(5):
        raise ValueError(f"step is {step!r}: a 4 × 4 tile has the steps 0 (nothing added yet) to 4")
    figure = new_figure(height=3.4)
    axes = figure.add_subplot()
    axes.set(xlim=(-0.2, 17.4), ylim=(-1.3, 5.2), aspect="equal")
    axes.axis("off")
    now = step - 1  # column of A and row of B that were added last
    _matrix(axes, 0, A, "A, float16", lambda row, column: column == now)
    _matrix(axes, 5.6, B, "B, float16", lambda row, column: row == now)
    sums = accumulators(step)
    lost = np.float16(sums).astype(float) != sums
    _matrix(axes, 11.2, sums, "D, starts as C: float32", lambda row, column: step > 0, lost, wide=1.4)
    for x, sign in ((4.8, "×"), (10.4, "→")):
        axes.text(x, 2, sign, ha="center", va="center", size=16)
    done = f"Step {step} of 4: {16 * step} of 64 multiply-adds done"
    how = f"column {step} of A times row {step} of B was added" if step else "nothing added yet"
    axes.set_title(done)
    frame = "; thick frame: float16 could not hold this sum" if lost.any() else ""
    axes.text(8.4, -0.9, how + frame, ha="center", va="center", size=10)
    held = f"{int(lost.sum())} of the 16 sums do not fit into float16."
    return Picture(figure, f"D = A × B + C for a 4 × 4 tile. {done}, {how}. {held}")


def _matrix(axes, left, values, title, active, thick=None, wide=1.0) -> None:
    for row in range(4):
        for column in range(4):
            x, y = left + column * wide, 3 - row
            color = PALETTE["sky"] if active(row, column) else "white"
            strong = thick is not None and thick[row][column]
            style = {"facecolor": color, "edgecolor": "black", "linewidth": 2.6 if strong else 0.8}
            axes.add_patch(Rectangle((x, y), wide, 1, zorder=3 if strong else 2, **style))
            axes.text(x + wide / 2, y + 0.5, f"{int(values[row][column])}", ha="center", va="center", size=10, zorder=4)
    axes.text(left + 2 * wide, 4.3, title, ha="center", va="bottom", size=10, weight="bold")


@styled
def waves(cut) -> Picture:
    """Draw the result matrix cut into tiles, colored by the wave in which a GPU computes them.

    cut: an ampedu.tiles.Tiling. Hatched: tiles that stick out over the edge and compute results that nobody wants.
    """
    rows, columns = -(-cut.m // cut.tile[0]), -(-cut.n // cut.tile[1])
    figure = new_figure(height=3.9)
    axes = figure.add_subplot()
    colors = [PALETTE[name] for name in ("sky", "orange", "green", "purple", "yellow", "blue")]
    for index in range(rows * columns):
        row, column = divmod(index, columns)
        ragged = (row + 1) * cut.tile[0] > cut.m or (column + 1) * cut.tile[1] > cut.n
        corner = (column * cut.tile[1], row * cut.tile[0])
        style = {"facecolor": colors[index // cut.processors % 6], "edgecolor": "black", "linewidth": 0.8}
        patch = Rectangle(corner, cut.tile[1], cut.tile[0], hatch="///" if ragged else None, **style)
        axes.add_patch(patch)
    axes.add_patch(Rectangle((0, 0), cut.n, cut.m, fill=False, linewidth=2.5, edgecolor=PALETTE["vermillion"]))
    axes.set(xlim=(0, columns * cut.tile[1]), ylim=(rows * cut.tile[0], 0), aspect="equal")
    axes.set(xlabel="columns of the result", ylabel="rows of the result")
    numbers = f"{_count(cut.tiles, 'tile')} in {_count(cut.waves, 'wave')} on {cut.processors} SMs"
    short = f"{_count(cut.tiles, 'tile')}, {_count(cut.waves, 'wave')}, {cut.useful:.0%} useful work"
    axes.set_title(f"{cut.m} × {cut.n} on {cut.processors} SMs: {short}")
    handles = [Rectangle((0, 0), 1, 1, color=colors[n % 6], label=f"wave {n + 1}") for n in range(min(cut.waves, 6))]
    handles.append(Rectangle((0, 0), 1, 1, fill=False, hatch="///", label="sticks out"))
    handles.append(Line2D([], [], color=PALETTE["vermillion"], linewidth=2.5, label="wanted results"))
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    last = cut.tiles - (cut.waves - 1) * cut.processors
    return Picture(
        figure,
        f"A result of {cut.m} × {cut.n} in tiles of {cut.tile[0]} × {cut.tile[1]}: {numbers}, the last wave has "
        f"{_count(last, 'tile')}. {cut.useful:.1%} of the computed places hold wanted results.",
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


@styled
def useful_work(processors: int, sizes, tile=(256, 128)) -> Picture:
    """Draw the share of useful work of square products against their size, for a GPU with that many SMs."""
    from ampedu.tiles import tiling

    sizes = list(sizes)
    shares = [tiling(n, n, processors, tile).useful for n in sizes]
    figure = new_figure(height=3.2)
    axes = figure.add_subplot()
    axes.plot(sizes, [100 * share for share in shares], color=PALETTE["blue"], linewidth=1.5)
    axes.set(xlabel="size n of an n × n result", ylabel="useful work in %", ylim=(0, 103))
    axes.set_xlim(sizes[0], sizes[-1])
    axes.grid(alpha=0.3)
    axes.set_title(f"Each fall is a new wave: useful work on {processors} SMs, tiles of {tile[0]} × {tile[1]}")
    return Picture(
        figure,
        f"Useful work against the size of a square product, from {sizes[0]} to {sizes[-1]}: a saw-tooth between "
        f"{min(shares):.0%} and {max(shares):.0%} whose teeth get smaller as the size grows.",
    )
