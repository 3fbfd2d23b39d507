"""The op explorer: type an operation; what autocast does with it on four devices, in two versions of torch, and why."""

import html

import torch

from ampedu.operations import UnknownOperationError, known, look_up, other_version, results
from ampedu.policy import documented_policy
from ampedu.widgets.output import BOX, show, toolkit

WORDS = {
    "lower_precision": "16 bits",
    "float32": "float32",
    "float32_set_dtype": "float32 (dtype=)",
    "promote_widest": "widest",
    "banned": "raises",
    None: "not listed",
}
CELL = "padding:.1em 1.2em .1em 0;text-align:left"


def op_explorer(name: str = "softmax") -> None:
    """Show what autocast does with an operation on cuda, cpu, mps and xpu; type another one.

    name: as people write it: "softmax", "nn.LayerNorm", "torch.mm", "@". Everything in the table is asked of the
    installed torch, except for the column of another version, which was recorded under that version. Without a
    kernel: the table of the first name. UnknownOperationError: no such operation.
    """
    operation = look_up(name)
    first = table(operation)
    widgets = toolkit()
    view = Shell(operation.name, first, widgets).view if widgets else None
    note = f"<p>Run the cell to type any of {len(known())} operations.</p>"
    show(f'<div style="{BOX}">{first}{note}</div>', f"Op explorer: {text(operation)}", None, view)


def lines(operation) -> list[tuple[str, ...]]:
    """Device, documentation, installed torch, other torch, dtype from float32 and from float16 inputs, as text."""
    found = []
    for on in operation.devices:
        documented = WORDS[on.documented] if documented_policy(on.device) else "no list"
        found.append((on.device, documented, WORDS[on.found], WORDS[on.other], *results(operation, on.device)))
    return found


def head() -> tuple[str, ...]:
    """The columns' titles."""
    here = torch.__version__.split("+")[0]
    return ("device", "documentation", f"torch {here}", f"torch {other_version()}", "float32 in", "float16 in")


def notes(operation) -> list[str]:
    """Differences between documentation and torch, explained, each once, with its devices."""
    reasons: dict[str, list[str]] = {}
    for on in operation.devices:
        if on.why:
            reasons.setdefault(on.why, []).append(on.device)
    return [f"{', '.join(devices)}: {why}" for why, devices in reasons.items()]


def table(operation) -> str:
    """HTML: name, reason, the table, notes, and the line to run."""
    titles = "".join(f'<th scope="col" style="{CELL}">{title}</th>' for title in head())
    body = "".join(
        f'<tr><th scope="row" style="{CELL}">{line[0]}</th>'
        + "".join(f'<td style="{CELL}">{cell}</td>' for cell in line[1:])
        + "</tr>"
        for line in lines(operation)
    )
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes(operation))
    code = f"<p>Ask yourself: <code>{html.escape(operation.code)}</code></p>" if operation.code else ""
    return (
        f'<div style="line-height:1.4"><p><strong>{html.escape(operation.name)}</strong>: '
        f"{html.escape(operation.reason)}.</p>"
        f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table><ul>{listed}</ul>{code}</div>"
    )


def text(operation) -> str:
    """The same in plain text."""
    cells = [head(), *lines(operation)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    rows = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    told = [operation.code] if operation.code else []
    return "\n".join([f"{operation.name}: {operation.reason}.", *rows, *notes(operation), *told])


class Shell:
    """The live explorer: a text field that suggests names, and the table."""

    def __init__(self, name: str, first: str, widgets):
        self.field = widgets.Combobox(
            options=known(), value=name, description="operation", continuous_update=False, ensure_option=False
        )
        self.table = widgets.HTML(first)
        self.view = widgets.VBox([self.field, self.table])
        self.field.observe(self._on_name, names="value")

    def _on_name(self, change) -> None:
        try:
            self.table.value = table(look_up(change["new"]))
        except UnknownOperationError as error:
            self.table.value = f'<div role="status">{html.escape(str(error))}</div>'
