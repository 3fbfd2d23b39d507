"""The small markdown that quiz texts are written in: `code`, **bold** and $math$, as safe HTML and as plain text."""

import html
import re

_SPAN = re.compile(r"`([^`]+)`|\*\*(.+?)\*\*|\$([^$]+)\$", re.DOTALL)
_OPERATORS = {
    **{"times": "×", "cdot": "·", "div": "÷", "pm": "±", "to": "→", "rightarrow": "→", "approx": "≈"},
    **{"le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠"},
}
_SYMBOLS = {
    **{name: f" {sign} " for name, sign in _OPERATORS.items()},
    **{"infty": "∞", "ldots": "…", "dots": "…", "log": "log", "max": "max", "min": "min", "sum": "∑"},
    **{"Delta": "Δ", "epsilon": "ε", "varepsilon": "ε", ",": " ", "%": "%"},
}
_UP = str.maketrans("0123456789+-−()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁽⁾ⁿ")
_DOWN = str.maketrans("0123456789+-−()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₍₎")


def to_html(text: str) -> str:
    """Safe HTML of a text: `code`, **bold** and $math$; blank lines part paragraphs; everything else is escaped.

    Math is powers, indices and common symbols, set in HTML so that it needs no script; a formula that needs more
    stays as $…$ for MathJax.
    """
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "<br><br>".join(_spans(paragraph, _HTML) for paragraph in paragraphs)


def to_plain(text: str) -> str:
    """The text without marks, on one line; powers and indices as Unicode where they exist."""
    return " ".join(_spans(text, _PLAIN).split())


def _spans(text: str, marks: dict) -> str:
    out, end = [], 0
    for match in _SPAN.finditer(text):
        code, bold, math = match.groups()
        out.append(marks["text"](text[end : match.start()]))
        if code is not None:
            out.append(marks["code"](code))
        elif bold is not None:
            out.append(marks["bold"](_spans(bold, marks)))
        else:
            out.append(marks["math"](math))
        end = match.end()
    return "".join([*out, marks["text"](text[end:])])


def _symbols(math: str) -> str | None:
    """The formula with symbols for its commands; None if it needs a real math renderer."""
    known = re.sub(r"\\([A-Za-z]+|[,%])", lambda m: _SYMBOLS.get(m[1], m[0]), math)
    return None if "\\" in known else " ".join(known.split()).replace("-", "−")


def _math_html(math: str) -> str:
    symbols = _symbols(math)
    if symbols is None:
        return f"${html.escape(math)}$"
    safe = html.escape(symbols)
    for mark, tag in (("^", "sup"), ("_", "sub")):
        safe = re.sub(rf"\{mark}(?:\{{([^{{}}]*)\}}|(\w))", lambda m, t=tag: f"<{t}>{m[1] or m[2]}</{t}>", safe)
    return f'<span style="white-space:nowrap">{safe}</span>'


def _math_plain(math: str) -> str:
    symbols = _symbols(math)
    if symbols is None:
        return math
    for mark, table in (("^", _UP), ("_", _DOWN)):
        symbols = re.sub(
            rf"\{mark}(?:\{{([^{{}}]*)\}}|(\w))", lambda m, k=mark, t=table: _raised(m[1] or m[2], k, t), symbols
        )
    return symbols


def _raised(text: str, mark: str, table: dict) -> str:
    return text.translate(table) if all(ord(char) in table for char in text) else f"{mark}({text})"


_HTML = {
    "text": html.escape,
    "code": lambda code: f"<code>{html.escape(code)}</code>",
    "bold": lambda inner: f"<strong>{inner}</strong>",
    "math": _math_html,
}
_PLAIN = {"text": str, "code": str, "bold": str, "math": _math_plain}
