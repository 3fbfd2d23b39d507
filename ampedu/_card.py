"""The device card: a short table about one device, as HTML for a notebook and as plain text for a terminal."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ampedu._display import display

if TYPE_CHECKING:
    from ampedu.device import Machine

# Colors are inherited, so that the card follows the light or dark theme around it.
BOX = "border:1px solid rgba(128,128,128,.5);border-left:4px solid #0072B2;padding:.4em .8em;max-width:46em"
HEAD = "text-align:left;vertical-align:top;font-weight:600;padding:.1em 1em .1em 0;white-space:nowrap"
CELL = "text-align:left;vertical-align:top;padding:.1em 0"


def gibibytes(size: int | None) -> str:
    """A size in bytes as text in GiB."""
    return "unknown" if size is None else f"{size / 2**30:.0f} GiB"


def rows(machine: Machine) -> list[tuple[str, str]]:
    """The card's rows as (heading, text)."""
    name = machine.name + (f" (capability {machine.capability})" if machine.capability else "")
    units = list(machine.matrix_units) or ["none"]
    if machine.matrix_dtypes:
        units[-1] += f" ({', '.join(machine.matrix_dtypes)})"
    if machine.vector_units:
        units.append(f"vector instructions {', '.join(machine.vector_units)}")
    found = [
        ("Device", f"{machine.device}: {name}, {gibibytes(machine.memory_bytes)}"),
        ("bf16", machine.bf16),
        ("Matrix units", "; ".join(units)),
    ]
    if machine.backend in ("cuda", "rocm"):
        found.append(("TF32", f"{machine.tf32}; float32 products now: {product_precision(machine)}"))
    software = f"torch {machine.torch}, Python {machine.python}, {machine.threads} of {machine.cores} cores"
    found.append(("Software", software))
    found.append(("Measured here", " ".join(machine.measures)))
    if machine.elsewhere:
        found.append(("Not here", " ".join(machine.elsewhere)))
    return found


def product_precision(machine: Machine) -> str:
    """The live precision of float32 matrix products on the GPU, in words."""
    flags = dict(machine.float32_flags)
    value = flags.get("cuda.matmul", flags.get("float32_matmul_precision", "unknown"))
    words = {"none": "full float32", "ieee": "full float32", "highest": "full float32", "high": "TF32", "tf32": "TF32"}
    return words.get(value, value)


def as_text(machine: Machine, note: str | None) -> str:
    """The card as aligned lines."""
    found = rows(machine) + ([("In this lesson", note)] if note else [])
    width = max(len(head) for head, _ in found)
    return "\n".join(f"{head:<{width}}  {text}" for head, text in found)


def as_html(machine: Machine, note: str | None) -> str:
    """The card as a table with row headings; no script, readable with styles stripped."""
    body = "".join(
        f'<tr><th scope="row" style="{HEAD}">{escape(head)}</th><td style="{CELL}">{escape(text)}</td></tr>'
        for head, text in rows(machine)
    )
    last = f'<p style="margin:.4em 0 0">{escape(note)}</p>' if note else ""
    return f'<div style="{BOX}" role="group" aria-label="Device card"><table>{body}</table>{last}</div>'


class Card:
    """What IPython displays: HTML, with the plain text beside it."""

    def __init__(self, html: str, text: str):
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def show(machine: Machine, note: str | None) -> None:
    """Displays the card of `machine`."""
    display(Card(as_html(machine, note), as_text(machine, note)))
