"""The bit explorer: a number, its bits, what they mean, and what other formats make of the same number."""

import math

from ampedu import formats
from ampedu.formats import FORMATS
from ampedu.plots import bit_layout
from ampedu.widgets import bits
from ampedu.widgets.output import show_explorer

MOST_COMPARED = 3  # rows that still fit on a screen; state.js has the same number


def bit_explorer(format: str = "fp16", value: float = 0.1, compare=()) -> None:
    """Show the bits of a number: flip them, or type a number, a code in hex, or bits; see what they mean.

    format: name of a format of ``FORMATS``. value: the real number to start from. compare: at most three names of
    formats that round the same number below it. All of it is computed in the browser, so it works while the kernel
    is busy, and in a stored notebook or an exported page without one. Readers that run no scripts see the picture and
    the table of the first value. UnknownFormatError: unknown format. ValueError: a format of one's own, too many
    formats to compare, NaN in a format that has none.
    """
    name = _registered(format)
    others = [_registered(other) for other in ([compare] if isinstance(compare, str) else compare)]
    others = [other for other in dict.fromkeys(others) if other != name]
    if len(others) > MOST_COMPARED:
        raise ValueError(f"compare names {len(others)} formats, {', '.join(others)}: choose at most {MOST_COMPARED}")
    fmt, number = FORMATS[name], float(value)
    code = int(formats.encode(number, fmt))
    # The picture has a row per format that can hold the value; a format without NaN cannot show one.
    rows = [name, *(other for other in others if not math.isnan(number) or FORMATS[other].has_nan)]
    state = {"format": name, "value": repr(number), "code": "", "compare": others}
    plain = bits.text(number, code, fmt, others)
    show_explorer("bit_explorer", state, plain, bit_layout(rows, number), bits.table(number, code, fmt, others))


def _registered(format) -> str:
    """Name of a format that the browser knows too."""
    fmt = formats.get(format)
    if FORMATS.get(fmt.name) != fmt:
        known = ", ".join(FORMATS)
        raise ValueError(f"the bit explorer does not know {fmt.name}, a format of your own: choose one of {known}")
    return fmt.name
