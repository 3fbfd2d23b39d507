"""The gradient-range explorer: a histogram of magnitudes that a loss scale moves over the ranges of formats."""

import html

from ampedu import formats as known
from ampedu.formats import FORMATS
from ampedu.magnitudes import OUTCOMES, bounds, percent, shares
from ampedu.plots.magnitudes import magnitudes
from ampedu.widgets.output import show_explorer

LARGEST_SCALE, SMALLEST_SCALE = 32, -8  # ends of the slider; range_explorer.js has the same numbers
HEADINGS = ("become zero", "subnormal", "normal", "overflow")


def gradient_range(
    counts: dict[int, int], zeros: int = 0, formats=("fp16", "bf16"), scale_log2: int = 0, label: str = "gradients"
) -> None:
    """Show where values land in formats, and a slider for the loss scale that multiplies all of them.

    counts, zeros: as ``ampedu.magnitudes.exponent_counts`` returns them: {k: how many magnitudes lie in
    [2^k, 2^(k+1))} and how many values are 0. formats: names of formats with a sign and a zero. scale_log2: the scale
    to start from, a power of two from 2^-8 to 2^32. label: what the values are. All of it is computed in the browser;
    readers that run no scripts see the picture and the table of the first scale. UnknownFormatError: unknown format.
    ValueError: a format that cannot hold gradients, a scale beyond the slider's ends, a negative count.
    """
    names = [known.get(name).name for name in ([formats] if isinstance(formats, str) else formats)]
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"the explorer does not know {name}: choose from {', '.join(FORMATS)}")
        bounds(name)
    if scale_log2 != int(scale_log2) or not SMALLEST_SCALE <= scale_log2 <= LARGEST_SCALE:
        ends = f"{SMALLEST_SCALE} to {LARGEST_SCALE}"
        raise ValueError(f"scale_log2 is {scale_log2}: the slider holds whole powers of two, {ends}")
    if zeros < 0 or any(number < 0 for number in counts.values()):
        raise ValueError("a count is negative: pass what exponent_counts(tensor) returned")
    counts, scale_log2 = {int(k): int(number) for k, number in counts.items()}, int(scale_log2)
    state = {
        "counts": {str(k): number for k, number in counts.items()},
        "zeros": int(zeros),
        "formats": names,
        "scale_log2": scale_log2,
        "label": label,
    }
    rows = [(name, [percent(shares(counts, name, scale_log2)[kind]) for kind in OUTCOMES]) for name in names]
    said = f"{label}, scaled by 2^{scale_log2}: {sum(counts.values())} nonzero values; {zeros} more are zero"
    picture = magnitudes(counts, names, scale_log2, label)
    show_explorer("range_explorer", state, _text(said, rows), picture, _table(said, rows))


def _text(said: str, rows) -> str:
    lines = [f"  {name}: {', '.join(map(' '.join, zip(parts, HEADINGS, strict=True)))}" for name, parts in rows]
    return "\n".join([said, *lines])


def _table(said: str, rows) -> str:
    cell = 'style="text-align:left;padding-right:1em"'
    titles = "".join(f'<th scope="col" {cell}>{head}</th>' for head in ("format", *HEADINGS))
    lines = "".join(
        f'<tr><th scope="row" {cell}>{name}</th>' + "".join(f"<td {cell}>{part}</td>" for part in parts) + "</tr>"
        for name, parts in rows
    )
    caption = f'<caption style="text-align:left"><strong>{html.escape(said)}</strong></caption>'
    return f"<table>{caption}<tr>{titles}</tr>{lines}</table>"
