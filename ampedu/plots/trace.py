"""A dtype trace as a picture: one row per call, forward and backward side by side, a bar as wide as the dtype."""

from collections import Counter
from itertools import accumulate

import torch
from matplotlib.patches import Patch, Rectangle

from ampedu.plots.drawing import PALETTE, Picture, new_figure, styled
from ampedu.trace.records import short

WIDE, END = 21.0, 2.2  # of 32 bits, in the drawing's units, of which the whole is 100 wide; of the patterned end
FORWARD, BACKWARD = 39.0, 77.0  # left edges of the bars
NAME, OPS = 27, 17  # characters that fit in a module's name, and in a bar of 32 bits
MOST = 48  # lines
STYLES = {  # width and pattern repeat what color says, and the dtype is written on the bar
    torch.float64: (PALETTE["purple"], "xxxx"),
    torch.float32: (PALETTE["sky"], "////"),
    torch.float16: (PALETTE["orange"], ""),
    torch.bfloat16: (PALETTE["green"], ""),
}
OTHER = (PALETTE["yellow"], "")
LETTERS = {"weight": "W", "buffer": "W", "gradient": "G"}


@styled
def dtype_trace(trace, title: str | None = None, module: str = "") -> Picture:
    """Draw an ampedu.trace.Trace: rows are its folded calls in order; a bar's width is the dtype's number of bits.

    module: draw only what happens below this path. Left of a bar stand the casts that come before it. ValueError
    if nothing is to be drawn. What is beyond the 48th line is left out, which the picture says: draw a module then.
    """
    rows = [row for row in trace.rows() if not module or row.path == module or row.path.startswith(f"{module}.")]
    if not rows:
        raise ValueError(f"nothing to draw: no recorded operation below {module!r}" if module else "the trace is empty")
    ends = list(accumulate(_lines(row) for row in rows))
    left_out = sum(end > MOST for end in ends)
    rows = rows[: len(rows) - left_out]
    lines = ends[len(rows) - 1]
    figure = new_figure(height=1.35 + 0.205 * (lines + 1))
    axes = figure.add_subplot()
    axes.set(xlim=(0, 100), ylim=(lines - 0.3, -1.6))
    axes.axis("off")
    for x, text in ((0, "module"), (FORWARD, "forward"), (BACKWARD, "backward")):
        axes.text(x, -1.0, text, weight="bold", size=9.5, va="center")
    for x in (FORWARD, BACKWARD):
        axes.text(x - 0.8, -1.0, "casts", size=8.5, va="center", ha="right", color="0.25")
    before, y = None, 0
    for row in rows:
        name = _path(row)
        if name != before:
            axes.plot([0, 100], [y - 0.5, y - 0.5], color="0.8", linewidth=0.6, zorder=0)
            axes.text(0, y, name if len(name) <= NAME else "…" + name[1 - NAME :], size=8, va="center")
            before = name
        _casts(axes, FORWARD, y, row.casts, row.hits)
        label = row.forward_dtypes.replace(" ", "")
        times = f" ×{row.times}" if row.times > 1 else ""
        _bar(axes, FORWARD, y, row.computes_in, f"{_short(row.call)}{times}", label)
        _casts(axes, BACKWARD, y, row.back_casts)
        for line, dtype in enumerate(row.back_dtypes):
            _bar(axes, BACKWARD, y + line, dtype, _operations(row, dtype), short(dtype))
        y += _lines(row)
    if left_out:
        axes.text(0, lines - 0.4, f"… and {left_out} more rows", size=8.5, va="top")
    axes.set_title(title or _title(trace))
    _legend(figure, trace, rows)
    return Picture(figure, _words(trace, rows, left_out))


def _title(trace) -> str:
    if trace.dtype is None:
        return "Dtypes without autocast"
    policy = {"cuda": "CUDA"}.get(trace.policy, trace.policy.upper())
    return f"Dtypes under autocast to {_name(trace.dtype)}, {policy} policy"


def _name(dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _path(row) -> str:
    return f"{row.path or '(model)'}{' again' if row.phase == 'recomputed' else ''}"


def _short(call: str) -> str:
    return {"scaled_dot_product_attention": "sdpa"}.get(call, call)


def _lines(row) -> int:
    """A row is as high as its backward has dtypes."""
    return max(1, len(row.back_dtypes))


def _operations(row, dtype) -> str:
    """Names of what backward computes in a dtype."""
    names = [f"{name} ×{number}" if number > 1 else name for name, kind, number in row.back if kind == dtype]
    text = ", ".join(names)
    text = "backward" if len(names) == 1 and "backward" in text else text
    return text if len(text) <= OPS else text[: OPS - 1] + "…"


def _bar(axes, x, y, dtype, text, label) -> None:
    if dtype is None:
        return
    color, hatch = STYLES.get(dtype, OTHER)
    wide = WIDE * min(dtype.itemsize, 4) / 4
    axes.add_patch(Rectangle((x, y - 0.4), wide, 0.8, facecolor=color, linewidth=0, gid=_name(dtype)))
    if hatch:  # at the end only: a pattern under text makes it hard to read
        end = {"facecolor": color, "edgecolor": "black", "linewidth": 0, "hatch": hatch, "gid": f"{hatch} end"}
        axes.add_patch(Rectangle((x + wide - END, y - 0.4), END, 0.8, **end))
    axes.text(x + 0.5, y, f"{label}  {text}", size=8, va="center")


def _casts(axes, x, y, casts, hits=0) -> None:
    """The casts before a call in few letters, right of which the bar begins."""
    text = cast_letters(casts, hits)
    bad = any(cast.needless for cast in casts)
    style = {"color": PALETTE["vermillion"], "weight": "bold"} if bad else {"color": "black"}
    if text:
        axes.text(x - 0.8, y, text, size=7.6, va="center", ha="right", **style)


def cast_letters(casts, hits=0) -> str:
    """For example "↓2W 1A" or "↑1A! =2": arrows to fewer or more bits, W weights, = from the cache, ! needless."""
    counted = Counter()
    for cast in casts:
        bits = cast.target.itemsize - cast.source.itemsize
        counted["↓" if bits < 0 else "↑" if bits else "→", LETTERS.get(cast.kind, "A")] += 1
    parts = []
    for arrow in dict.fromkeys(arrow for arrow, _ in counted):
        kinds = [f"{counted[arrow, letter]}{letter}" for letter in "WAG" if counted[arrow, letter]]
        parts.append(arrow + " ".join(kinds))
    text = " ".join(parts) + "!" * any(cast.needless for cast in casts)
    return f"{text} ={hits}".strip() if hits else text


def _legend(figure, trace, rows) -> None:
    used = {dtype for row in rows for dtype in (row.computes_in, *row.back_dtypes)}
    handles = [
        Patch(
            facecolor=color,
            hatch=hatch,
            edgecolor="black",
            linewidth=0,
            label=f"{_name(dtype)}, {dtype.itemsize * 8} bits wide",
        )
        for dtype, (color, hatch) in STYLES.items()
        if dtype in used
    ]
    key = (
        "casts: ↓ to fewer bits, ↑ to more; W weights, A activations, G gradients; = from the weight cache; ! needless"
    )
    legend = figure.legend(handles=handles, title=key, loc="outside lower left", ncols=4, frameon=False)
    legend.set_alignment("left")
    legend.get_title().set_fontsize(8.5)
    legend.get_title().set_color("0.15")


def _words(trace, rows, left_out) -> str:
    """The picture in words: what is float32 and what is not, and where casts are."""
    parts = [f"{_title(trace)}: {len(rows)} rows, a row per call, forward and backward side by side."]
    for dtype in dict.fromkeys(row.computes_in for row in rows if row.result):
        names = list(dict.fromkeys(_short(row.call) for row in rows if row.computes_in == dtype))
        parts.append(f"In {_name(dtype)}: {', '.join(names)}.")
    casts = [cast for row in rows for cast in row.casts * row.times]
    weights = sum(cast.kind == "weight" for cast in casts)
    needless = sum(bool(cast.needless) for cast in casts)
    parts.append(f"Forward: {len(casts)} casts, {weights} of weights, {needless} needless.")
    parts.append(f"Backward: {sum(len(row.back_casts) * row.times for row in rows)} casts.")
    if left_out:
        parts.append(f"{left_out} more rows are left out.")
    return " ".join(parts)
