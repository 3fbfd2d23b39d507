"""The report of a check: one object with an HTML form for notebooks and a plain-text form for everything else."""

import html
import re
import unicodedata
from dataclasses import dataclass, field

from ampedu._display import display

_SYMBOLS = {"passed": "✓", "failed": "✗", "not started": "○", "not judged": "–"}
_WORDS = {"passed": "passed", "failed": "not yet", "not started": "not started", "not judged": "not judged"}
_BOX = "padding: 0.2em 0.9em; margin: 0.3em 0; color: inherit; background: transparent; border-left: 0.3em solid"
_CELL = "text-align: left; padding: 0.1em 0"
_LINE = "margin: 0.2em 0"
_PLAIN = "white-space: pre-wrap; background: transparent; color: inherit"
_HEAD = "text-align: left; vertical-align: top; font-weight: normal; padding: 0.1em 1em 0.1em 0"
# Accents that reach a contrast of 3:1 on white and on black; the symbol and the words carry the meaning.
_ACCENTS = {"passed": "#2a8a4a", "failed": "#d55e00", "not started": "#767676", "not judged": "#767676"}


@dataclass
class Report:
    """status: one of judge.STATUSES.

    Rows: (label, text) pairs. trace: the learner's own lines. printed: captured output.
    """

    status: str
    id: str
    title: str
    message: str
    points: str = ""
    rows: list[tuple[str, str]] = field(default_factory=list)
    trace: str = ""
    notes: list[str] = field(default_factory=list)
    printed: str = ""

    @property
    def heading(self) -> str:
        """Symbol, id, status in words and points, in one line."""
        parts = [f"{_SYMBOLS[self.status]} {self.id}", _WORDS[self.status], self.points]
        return " – ".join(part for part in parts if part)

    def __repr__(self):
        lines = [self.heading, self.message.replace("`", "")]
        width = max((len(label) for label, _ in self.rows), default=0)
        lines += [f"  {label.ljust(width)}  {text}" for label, text in self.rows]
        if self.trace:
            lines += ["  " + line for line in self.trace.splitlines()]
        lines += [f"Note: {note}" for note in self.notes]
        if self.printed:
            lines += ["Printed while it was checked:", *("  " + line for line in self.printed.splitlines())]
        return scrub("\n".join(lines))

    def _repr_html_(self):
        parts = [
            f'<section aria-label="Check of {_escape(self.id)}" style="{_BOX} {_ACCENTS[self.status]}">',
            f'<p style="{_LINE}"><strong>{_escape(self.heading)}</strong>{self._title()}</p>',
            f'<p style="{_LINE}; max-width: 46em">{_marked(self.message)}</p>',
        ]
        if self.rows:
            rows = "".join(
                f'<tr style="background: transparent"><th scope="row" style="{_HEAD}">{_escape(label)}</th>'
                f'<td style="{_CELL}"><code style="{_PLAIN}">{_escape(text)}</code></td></tr>'
                for label, text in self.rows
            )
            parts.append(f'<table style="border: none; margin: 0.3em 0; color: inherit"><tbody>{rows}</tbody></table>')
        if self.trace:
            parts.append(_pre(self.trace))
        parts += [f'<p style="{_LINE}">Note: {_marked(note)}</p>' for note in self.notes]
        if self.printed:
            parts.append(f"<details><summary>Printed while it was checked</summary>{_pre(self.printed)}</details>")
        return "\n".join([*parts, "</section>"])

    def _title(self):
        return f"<br>{_marked(self.title)}" if self.title else ""

    def show(self):
        """Display in a notebook, print elsewhere."""
        display(self)


def scrub(text: str) -> str:
    """The text with control, format and surrogate characters shown as escapes.

    They could reorder or hide what is read.
    """
    return "".join(
        c if c == "\n" or unicodedata.category(c)[0] != "C" else f"\\u{ord(c):04x}" for c in text.replace("\t", "    ")
    )


def _escape(text):
    return html.escape(scrub(text))


def _marked(text):
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _escape(text))


def _pre(text):
    return f'<pre style="{_PLAIN}; margin: 0.3em 0">{_escape(text)}</pre>'
