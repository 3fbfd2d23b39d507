"""The gradients that ``GradientRange`` collected: as a histogram over a format's range, and layer by layer."""

import math

from matplotlib.patches import Patch

from ampedu import formats
from ampedu.gradients import KINDS, GradientRange, landed
from ampedu.magnitudes import OUTCOMES, percent
from ampedu.plots.drawing import Picture, new_figure, styled
from ampedu.plots.magnitudes import LOOKS, magnitudes

MOST_LAYERS = 40  # rows that still fit on a screen


def gradient_histogram(seen: GradientRange, formats="fp16", scale: float = 1.0, of: str | None = None) -> Picture:
    """Draw the collected gradients by power of two, multiplied by a loss scale, over the ranges of formats.

    seen: what was collected. formats: a name or several. scale: a power of two. of: "parameters", "activations" or
    both (None). ValueError: another scale, for a bin moves by whole powers of two; nothing collected.
    """
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5:
        raise ValueError(f"the scale is {scale}: the histogram moves by whole powers of two, such as 2.0**10")
    counts, _ = seen.counts(of)
    return magnitudes(counts, formats, exponent - 1, "gradients" if of is None else f"gradients of {of}")


@styled
def gradient_layers(seen: GradientRange, fmt="fp16", scale: float = 1.0, of: str = "parameters") -> Picture:
    """Draw, for each parameter or module, the fractions of its gradients by what a format makes of them.

    Each bar holds the values that were not 0, counted exactly by ``gradients.landed``. seen: what was collected. scale:
    the loss scale. of: "parameters" or "activations". ValueError: nothing collected, or more than 40 rows.
    """
    if of not in KINDS:
        raise ValueError(f"{of!r} is not collected: choose from {', '.join(KINDS)}")
    rows = {name: landed(tensors, fmt, scale) for name, tensors in getattr(seen, of).items()}
    if not rows:
        raise ValueError(f"no gradients of {of} were collected: did forward and backward run inside the block?")
    if len(rows) > MOST_LAYERS:
        raise ValueError(f"{len(rows)} rows are too many to read: collect from a part of the model, such as model[0]")
    figure = new_figure(height=1.5 + 0.28 * len(rows))
    axes = figure.add_subplot()
    for row, (name, parts) in enumerate(rows.items()):
        start = 0.0
        for kind in (kind for kind in OUTCOMES if parts[kind]):
            axes.barh(row, 100 * parts[kind], left=100 * start, height=0.72, gid=f"{kind} {name}", **LOOKS[kind])
            start += parts[kind]
    axes.set_yticks(range(len(rows)), [_label(seen, name, of) for name in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, 100), xlabel="percent of the nonzero gradients")
    name = formats.get(fmt).name
    by = "" if scale == 1 else f" times {_scale_text(scale)}"
    axes.set_title(f"Gradients of {of}{by}, stored in {name}")
    handles = [Patch(label=kind, **look) for kind, look in LOOKS.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False)
    told = "; ".join(
        f"{_label(seen, row, of)}: {percent(parts['zero'])} zero, {percent(parts['subnormal'])} subnormal, "
        f"{percent(parts['overflow'])} overflow"
        for row, parts in rows.items()
    )
    return Picture(figure, f"Where gradients of {of}{_plain(scale)} land in {name}. {told}.")


def _label(seen, name: str, of: str) -> str:
    """A parameter's name, or a module's with its class."""
    if of == "parameters":
        return name
    return f"{name} {type(seen.model.get_submodule(name)).__name__}".strip()


def _scale_text(scale: float) -> str:
    mantissa, exponent = math.frexp(scale)
    return rf"$2^{{{exponent - 1}}}$" if mantissa == 0.5 else f"{scale:g}"


def _plain(scale: float) -> str:
    return "" if scale == 1 else f", multiplied by {scale:g},"
