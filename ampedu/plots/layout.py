"""The bits of one or more formats as boxes to scale: sign, exponent, mantissa."""

from collections.abc import Sequence

from matplotlib.patches import Patch, Rectangle

from ampedu import formats
from ampedu.plots.drawing import FIELD_COLORS, Picture, new_figure, styled

LETTERS = {"sign": "S", "exponent": "E", "mantissa": "M"}


def field_widths(fmt) -> dict[str, int]:
    """Bits of each field of a format, from the most significant down; a field without bits is left out."""
    sign = fmt.bits - fmt.exponent_bits - fmt.mantissa_bits
    widths = {"sign": sign, "exponent": fmt.exponent_bits, "mantissa": fmt.mantissa_bits}
    return {name: width for name, width in widths.items() if width}


def as_names(names) -> list:
    """A list of formats from one name or several; an empty list is refused."""
    listed = [names] if isinstance(names, str) or not isinstance(names, Sequence) else list(names)
    if not listed:
        raise ValueError("name at least one format, for example bit_layout(['fp16', 'bf16'])")
    return [formats.get(name) for name in listed]


@styled
def bit_layout(names, values=None) -> Picture:
    """Draw one row per format: its sign, exponent and mantissa boxes, to scale.

    names: a format name or a sequence of them. values: None, one real number for all rows, or one per row; with a
    value, the boxes hold the bits of the value rounded to that format, and the row says what it became.
    Unknown format: UnknownFormatError.
    """
    rows = as_names(names)
    numbers = _per_row(values, len(rows))
    widest = max(fmt.bits for fmt in rows)
    beside = widest <= 32  # wider rows take the whole width, and what they hold is said below them
    figure = new_figure(height=0.75 + 0.72 * len(rows))
    axes = figure.add_subplot()
    told = []
    for row, (fmt, value) in enumerate(zip(rows, numbers, strict=True)):
        letters = "".join(LETTERS[name] * width for name, width in field_widths(fmt).items())
        bits = letters if value is None else format(int(formats.encode(value, fmt)), f"0{fmt.bits}b")
        _draw_row(axes, -row, fmt, bits, size=10 if beside else 9)
        told.append(_words(fmt, None if value is None else (value, bits)))
        note = f"{fmt.bits} bits" if value is None else f"= {formats.decode(int(bits, 2), fmt)!r}"
        axes.text(-0.012 * widest, -row, fmt.name, ha="right", va="center", weight="bold", size=10.5)
        if fmt.bits <= 32:
            axes.text(fmt.bits + 0.012 * widest, -row, note, ha="left", va="center", size=9.5)
        else:
            axes.text(widest, -row - 0.3, note, ha="right", va="top", size=9.5)
    room = 1 if not beside else 1.12 if values is None else 1.42
    axes.set(xlim=(-0.05, widest * room + 0.05), ylim=(0.6 - len(rows), 0.48))
    axes.axis("off")
    axes.set_title(_title(rows, numbers))
    handles = [
        Patch(facecolor=color, edgecolor="black", label=f"{LETTERS[name]}: {name}")
        for name, color in FIELD_COLORS.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False)
    return Picture(figure, "Bit layouts. " + " ".join(told))


def _per_row(values, count: int) -> list:
    if values is None or isinstance(values, (int, float)):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count} formats: give one number, or one per format")
    return list(values)


def _draw_row(axes, y: float, fmt, bits: str, size: float) -> None:
    start = 0
    for name, width in field_widths(fmt).items():
        axes.add_patch(
            Rectangle((start, y - 0.25), width, 0.5, facecolor=FIELD_COLORS[name], edgecolor="black", linewidth=1.2)
        )
        for index in range(width):
            axes.text(start + index + 0.5, y - 0.02, bits[start + index], ha="center", va="center", size=size)
        axes.text(start + width / 2, y - 0.3, str(width), ha="center", va="top", size=9)
        start += width


def _title(rows, numbers) -> str:
    values = {repr(value) for value in numbers}
    if values == {"None"}:
        return "Bit layouts: one letter is one bit" if len(rows) > 1 else f"Bit layout of {rows[0].name}"
    return f"The bits of {values.pop()}" if len(values) == 1 else "The bits of a value in each format"


def _words(fmt, encoded) -> str:
    parts = ", ".join(f"{width} {name}" for name, width in field_widths(fmt).items())
    if encoded is None:
        return f"{fmt.name}: {parts} bits."
    value, bits = encoded
    split, start = [], 0
    for width in field_widths(fmt).values():
        split.append(bits[start : start + width])
        start += width
    return f"{fmt.name} ({parts} bits) holds {value!r} as {' '.join(split)}."
