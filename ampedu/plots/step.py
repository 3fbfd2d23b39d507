"""Figure F2: one correct AMP training step, with the dtype on every edge."""

import torch
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from ampedu.plots.drawing import PALETTE, Picture, new_figure, styled

WIDE, TALL = 1.9, 0.84  # of a box, in the drawing's units
COLUMNS = (1.1, 3.9, 6.7, 9.5)
ROWS = (6.3, 4.75, 3.2, 1.55)
FULL = {"color": PALETTE["blue"], "linestyle": "-", "linewidth": 2}
HALF = {"color": PALETTE["vermillion"], "linestyle": (0, (4, 1.5)), "linewidth": 2}

# key: (column, row, first line, second line)
COMMON = {
    "x": (0, 0, "input batch", "float32"),
    "cast": (1, 0, "cast", "weights cached"),
    "matmul": (2, 0, "matmuls", "linear, conv, @"),
    "loss": (3, 0, "softmax, loss", "up to float32"),
    "w": (0, 1, "parameters", "always float32"),
    "grad": (0, 2, ".grad", "always float32"),
    "cast_b": (1, 2, "cast", "backward"),
    "matmul_b": (2, 2, "matmuls", "backward"),
    "loss_b": (3, 2, "softmax, loss", "backward"),
}
WITH_SCALER = {
    "scale": (3, 1, "scaler.scale", "loss × scale"),
    "unscale": (0, 3, "scaler.unscale_", "÷ scale, inf?"),
    "clip": (1, 3, "clip_grad_norm_", "true units"),
    "step": (2, 3, "scaler.step", "skips inf, NaN"),
    "update": (3, 3, "scaler.update", "after each step"),
}
WITHOUT_SCALER = {"clip": (0, 3, "clip_grad_norm_", "true units"), "step": (1, 3, "optimizer.step", "float32")}

# (from, to, dtype of what flows: 32 or 16, what flows, "" where the boxes say it)
FORWARD = [("x", "cast", 32, ""), ("cast", "matmul", 16, ""), ("matmul", "loss", 16, "")]
BACKWARD = [("loss_b", "matmul_b", 16, ""), ("matmul_b", "cast_b", 16, ""), ("cast_b", "grad", 32, "")]
STEP = [("loss", "scale", 32, "loss"), ("scale", "loss_b", 32, "scaled loss")]
STEP += [("grad", "unscale", 32, "scaled"), ("unscale", "clip", 32, ""), ("clip", "step", 32, "")]
PLAIN_STEP = [("loss", "loss_b", 32, "loss"), ("grad", "clip", 32, ""), ("clip", "step", 32, "")]


def edges(scaled: bool) -> list[tuple[str, str, int, str]]:
    """The edges of the step as (from, to, 16 or 32, what flows); the weights' two edges are routed apart."""
    return [*FORWARD, ("w", "cast", 32, ""), *(STEP if scaled else PLAIN_STEP), *BACKWARD, ("step", "w", 32, "")]


@styled
def amp_step(dtype="fp16", seen=None) -> Picture:
    """Draw one correct AMP training step of float32 parameters under autocast, the dtype written on every edge.

    dtype: "fp16" (with a gradient scaler) or "bf16" (without; bfloat16 has float32's range), or the torch dtype.
    seen: {(from, to): torch.dtype} of a real step, drawn instead of what a correct one has (ampedu.trace.step_edges
    gives those up to "grad"). Gradients flow back in the dtypes of the forward pass; .grad has its parameter's dtype.
    ValueError: another dtype than these two, or edges of the figure that are missing in seen.
    """
    half = _low_precision(dtype)
    scaled = half == "float16"
    flows = {(start, end): "float32" if width == 32 else half for start, end, width, _ in edges(scaled)}
    if seen is not None:
        missing = [f"{start} to {end}" for start, end in flows if (start, end) not in seen]
        if missing:
            raise ValueError(f"no dtype is given for {', '.join(missing)}: seen needs every edge of the figure")
        flows = {edge: str(seen[edge]).removeprefix("torch.") for edge in flows}
    boxes = {**COMMON, **(WITH_SCALER if scaled else WITHOUT_SCALER)}
    figure = new_figure(height=5.6)
    axes = figure.add_subplot()
    axes.set(xlim=(-0.2, 11.0), ylim=(0.3, 7.15))
    axes.axis("off")
    _region(axes, ROWS[0], f"with torch.autocast(device, dtype=torch.{half}):")
    _region(axes, ROWS[2], "scaler.scale(loss).backward()" if scaled else "loss.backward()")
    for column, row, first, second in boxes.values():
        _box(axes, COLUMNS[column], ROWS[row], first, second)
    for start, end, _, what in edges(scaled):
        name = flows[start, end]
        label = f"{what}\n{name}" if what else name
        _edge(axes, boxes, start, end, HALF if name == half else FULL, label)
    if scaled:
        path = [(10.48, 1.55), (10.85, 1.55), (10.85, 4.75), (10.48, 4.75)]
        _route(axes, path, {"color": "0.35", "linestyle": ":", "linewidth": 1.6})
        axes.text(10.78, 2.3, "next scale", size=9, ha="right", va="center")
    handles = [Line2D([], [], **FULL, label="float32"), Line2D([], [], **HALF, label=half)]
    axes.legend(handles=handles, loc="center", bbox_to_anchor=(0.56, 0.645), ncols=2, frameon=False, handlelength=3)
    if seen is None:
        axes.set_title(f"One correct AMP step with {half}: the dtype on every edge")
        return Picture(figure, _words(half, scaled))
    axes.set_title(f"One AMP step with {half} as it ran: the dtype on every edge")
    listed = "; ".join(f"from {boxes[start][2]} to {boxes[end][2]} {name}" for (start, end), name in flows.items())
    return Picture(figure, f"Diagram of one training step with the dtypes that were seen: {listed}.")


def _low_precision(dtype) -> str:
    names = {"fp16": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16"}
    key = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    if key not in names:
        raise ValueError(f"autocast trains in fp16 or bf16, not in {dtype}: amp_step('fp16') or amp_step('bf16')")
    return names[key]


def _region(axes, y, code) -> None:
    area = Rectangle((2.86, y - 0.52), 7.68, 1.26, facecolor="0.92", edgecolor="0.5", linestyle=":", zorder=0)
    axes.add_patch(area)
    axes.text(2.95, y + 0.51, code, size=9, family="DejaVu Sans Mono")


def _box(axes, x, y, first, second) -> None:
    style = {"boxstyle": "round,pad=0,rounding_size=0.1", "facecolor": "white", "edgecolor": "black", "linewidth": 1.1}
    axes.add_patch(FancyBboxPatch((x - WIDE / 2, y - TALL / 2), WIDE, TALL, **style))
    axes.text(x, y + 0.16, first, ha="center", va="center", size=9.2, weight="bold")
    axes.text(x, y - 0.18, second, ha="center", va="center", size=9)


def _edge(axes, boxes, start, end, style, label) -> None:
    (x0, y0), (x1, y1) = ((COLUMNS[boxes[key][0]], ROWS[boxes[key][1]]) for key in (start, end))
    if (start, end) == ("w", "cast"):
        _route(axes, [(x0 + WIDE / 2, y0), (x1, y0), (x1, y1 - TALL / 2)], style)
        axes.text(x1 - 0.75, y0 + 0.1, label, size=9, ha="center", va="bottom")
    elif (start, end) == ("step", "w"):
        _route(axes, [(x0, y0 - TALL / 2), (x0, 0.62), (-0.12, 0.62), (-0.12, y1), (x1 - WIDE / 2, y1)], style)
        axes.text(x0 / 2, 0.68, f"new parameter values, {label}", size=9, ha="center", va="bottom")
    elif y0 == y1:
        side = WIDE / 2 if x1 > x0 else -WIDE / 2
        _route(axes, [(x0 + side, y0), (x1 - side, y1)], style)
        axes.text((x0 + x1) / 2, y0 + 0.1, label, size=9, ha="center", va="bottom")
    else:
        _route(axes, [(x0, y0 - TALL / 2), (x1, y1 + TALL / 2)], style)
        right = x0 > COLUMNS[1]  # the label stands on the inner side
        x, side = (x0 - 0.1, "right") if right else (x0 + 0.1, "left")
        y = (y0 + y1) / 2 + (0.16 if right else 0)
        axes.text(x, y, label.replace("\n", ", "), size=9, ha=side, va="center")


def _route(axes, points, style) -> None:
    """A line through points with an arrow head at the end."""
    *before, last, end = points
    if before:
        axes.plot(*zip(*before, last, strict=True), solid_capstyle="butt", **style)
    arrow = FancyArrowPatch(last, end, arrowstyle="-|>", mutation_scale=13, shrinkA=0, shrinkB=0, **style)
    axes.add_patch(arrow)


def _words(half: str, scaled: bool) -> str:
    parts = [
        "Diagram of one training step.",
        f"Float32 parameters and inputs are cast to {half} inside autocast; matmuls run in {half};",
        "softmax and loss run in float32.",
        "The float32 loss is multiplied by the scale." if scaled else "The float32 loss needs no scale.",
        f"Backward runs the matmuls' gradients in {half} and the cast's backward gives float32 gradients"
        + (", still scaled." if scaled else "."),
        "Then, all in float32: scaler.unscale_, clip_grad_norm_, scaler.step, scaler.update."
        if scaled
        else "Then, all in float32: clip_grad_norm_ and optimizer.step.",
    ]
    return " ".join(parts)
