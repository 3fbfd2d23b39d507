"""Hostile text for people's eyes: no character that hides or reorders what is read, no cell that is a formula."""

import unicodedata

MAX_MARKS = 4  # combining marks in a row: more pile up over the neighboring lines
_FORMULA = "=+-@＝＋－＠"
_BLANK = {" ", "\u00a0", "\u3000"}


def text(value, limit: int = 4000) -> str:
    """One line of ``value``, at most ``limit`` characters.

    Line ends and tabs become spaces. Control, format (bidi), private, surrogate and separator characters become escapes
    such as ``\\u202e``; piles of combining marks are cut.
    """
    value, parts, marks = str(value), [], 0
    if value.isascii() and value.isprintable() and len(value) <= limit:
        return value
    for c in value[: limit + 1]:
        kind = unicodedata.category(c)
        marks = marks + 1 if kind[0] == "M" else 0
        if c in "\n\r\t":
            parts.append(" ")
        elif kind[0] == "C" or kind in ("Zl", "Zp"):
            parts.append(f"\\u{ord(c):04x}")
        elif marks <= MAX_MARKS:
            parts.append(c)
    cleaned = "".join(parts)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def cell(value, limit: int = 2000):
    """A cell for a spreadsheet: numbers as they are, None empty, text scrubbed, ' before what would be a formula."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    cleaned = text(value, limit)
    start = cleaned.lstrip("".join(_BLANK))
    return f"'{cleaned}" if start.startswith(tuple(_FORMULA)) else cleaned
