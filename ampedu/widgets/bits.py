"""What the bit explorer says where scripts do not run: pure functions from a code to rows of text."""

import html
import math
import re
from decimal import Decimal

from ampedu import formats
from ampedu.plots.layout import field_widths

LONGEST = 60  # decimal digits that are shown before the middle is left out


def bit_string(code: int, fmt) -> str:
    """The bits of a code from the most significant down, without spaces."""
    return format(code, f"0{fmt.bits}b")


def grouped(code: int, fmt) -> str:
    """The bits of a code, a space between sign, exponent and mantissa."""
    bits, parts = bit_string(code, fmt), []
    for width in field_widths(fmt).values():
        parts.append(bits[:width])
        bits = bits[width:]
    return " ".join(parts)


def exact_decimal(x: float) -> str:
    """The exact decimal value of a float; of very long ones the middle is left out, and the count of digits said."""
    if not math.isfinite(x):
        return str(x)
    number = Decimal(x)
    digits = len(number.as_tuple().digits)
    text = f"{number:f}" if -7 <= number.adjusted() < 21 else f"{number:e}"
    if digits <= LONGEST:
        return text
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa[:24]}…{mantissa[-8:]}" + (f"e{exponent}" if exponent else "") + f" ({digits} digits)"


def hex_float(x: float) -> str:
    """A float in C's hex notation without trailing zeros, for example 0x1.998p-4."""
    return re.sub(r"\.?0+p", "p", x.hex()) if math.isfinite(x) else str(x)


def rows(code: int, fmt) -> list[tuple[str, str]]:
    """What a code means, as (heading, text)."""
    parts = formats.fields(code, fmt)
    value = parts.value
    found = [("bits", f"{grouped(code, fmt)} = 0x{code:0{-(-fmt.bits // 4)}X}"), ("kind", parts.kind)]
    if fmt.signed:
        found.append(("sign", f"{parts.sign} ({'−' if parts.sign else '+'})"))
    found.append(("exponent", _exponent(parts, fmt)))
    if fmt.mantissa_bits:
        found.append(("mantissa", f"{parts.mantissa} of {2**fmt.mantissa_bits}"))
    found += [("formula", parts.formula), ("value", exact_decimal(value)), ("hex float", hex_float(value))]
    if not math.isnan(value):
        below, above = formats.neighbours(value, fmt)
        found.append(("neighbors", f"{_or_none(below)} below, {_or_none(above)} above"))
        found.append(("ulp", _ulp(value, fmt)))
    return found


def _exponent(parts, fmt) -> str:
    if parts.kind in ("inf", "nan"):
        return f"{parts.exponent} (reserved)" if fmt.flavour == "ieee" else str(parts.exponent)
    stored = parts.exponent if parts.kind == "normal" else 1
    note = "" if parts.kind == "normal" else " (0 counts as 1)"
    power = f"{stored} − {fmt.bias}".replace("− -", "+ ") + f" = {stored - fmt.bias}".replace("-", "−")
    return f"{parts.exponent}{note}, so the power is {power}"


def _or_none(x: float | None) -> str:
    return "none" if x is None else repr(x)


def _ulp(value: float, fmt) -> str:
    gap = formats.ulp(value, fmt)
    return f"{gap!r} = 2^{math.frexp(gap)[1] - 1}" if math.isfinite(gap) else repr(gap)


def rounded(number: float, names) -> list[tuple[str, str, str, str]]:
    """(format, bits, value, error) of a real number rounded to each format, in words where that is impossible."""
    found = []
    for name in names:
        fmt = formats.get(name)
        try:
            code = int(formats.encode(number, fmt))
        except ValueError as problem:
            found.append((fmt.name, "", str(problem), ""))
            continue
        value = formats.decode(code, fmt)
        finite = math.isfinite(value) and math.isfinite(number) and number != 0
        error = f"{abs(value - number) / abs(number):.2e}" if finite else "exact" if value == number else "not finite"
        found.append((fmt.name, grouped(code, fmt), repr(value), "exact" if value == number else error))
    return found


def table(number: float, code: int, fmt, compare) -> str:
    """The rows of a code, and the number in the formats to compare, as HTML tables that need no style."""
    head = 'scope="row" style="text-align:left;padding-right:1em;vertical-align:top;white-space:nowrap"'
    cell = 'style="text-align:left;padding-right:1em;overflow-wrap:anywhere"'
    body = "".join(f"<tr><th {head}>{k}</th><td {cell}>{html.escape(v)}</td></tr>" for k, v in rows(code, fmt))
    out = f"<table><caption style='text-align:left'>{_caption(number, code, fmt)}</caption>{body}</table>"
    if compare:
        cell = 'style="text-align:left;padding-right:1em;white-space:nowrap"'
        titles = "".join(f'<th scope="col" {cell}>{t}</th>' for t in ("format", "bits", "value", "relative error"))
        lines = "".join(
            "<tr>" + "".join(f"<td {cell}>{html.escape(text)}</td>" for text in line) + "</tr>"
            for line in rounded(number, compare)
        )
        caption = f"<caption style='text-align:left'><strong>{number!r} in other formats</strong></caption>"
        out += f"<table>{caption}<tr>{titles}</tr>{lines}</table>"
    return out


def _caption(number: float, code: int, fmt) -> str:
    value = formats.decode(code, fmt)
    if value == number or (math.isnan(value) and math.isnan(number)):
        return f"<strong>{value!r} in {fmt.name}</strong>"
    return f"<strong>{number!r} rounded to {fmt.name} is {value!r}</strong>"


def text(number: float, code: int, fmt, compare) -> str:
    """The same as plain text."""
    lines = [f"{number!r} in {fmt.name}", *(f"  {head:9}  {words}" for head, words in rows(code, fmt))]
    lines += [f"  {name:9}  {bits} = {value} (error: {error})" for name, bits, value, error in rounded(number, compare)]
    return "\n".join(lines)
