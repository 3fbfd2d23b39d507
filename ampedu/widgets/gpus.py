"""The GPU explorer: a card of the GPU table, its formats and peaks, and the most that AMP can gain on it."""

import html

from ampedu.device import gpu_table
from ampedu.plots.roofline import roofline as draw
from ampedu.roofline import of_gpu
from ampedu.widgets.output import BOX, show, toolkit
from ampedu.widgets.redrawn import Redrawn

HEAD = ("format", "dense peak, TFLOP/s", "ridge, FLOP per byte", "against fp32")
CELL = "padding:.1em .9em .1em 0;text-align:right"


def gpu_explorer(name: str = "T4") -> None:
    """Show a GPU's formats, dense peaks, ridge points and the most that AMP can gain; pick another one.

    name: a name of the GPU table (`ampedu.device.gpu_table`). Without a kernel: the table and the roofline of the first
    one. ValueError: no such row.
    """
    rows = {row["name"]: row for row in gpu_table()}
    if name not in rows:
        raise ValueError(f"the GPU table has no {name!r}: use one of {', '.join(rows)}")
    first = draw(of_gpu(rows[name]))
    widgets = toolkit()
    view = Shell(rows, name, first, widgets).view if widgets else None
    note = f"<p>Run the cell to choose among {len(rows)} GPUs.</p>"
    static = f'<div style="{BOX}">{facts(rows[name])}{first.html()}{note}</div>'
    show(static, f"GPU explorer: {text(rows[name])}", first, view)


def lines(row: dict) -> list[tuple[str, str, str, str]]:
    """Format, dense peak, ridge and the peak against float32, as text, for each format that the GPU has."""
    roof = of_gpu(row)
    return [
        (fmt, f"{peak / 1e12:,.5g}", f"{roof.ridge(fmt):.0f}", f"{peak / roof.peaks['fp32']:.1f}×")
        for fmt, peak in roof.peaks.items()
    ]


def most(row: dict) -> str:
    """What 16-bit AMP can gain at most on this GPU, in sentences."""
    peaks = of_gpu(row).peaks
    half = "bf16" if "bf16" in peaks else "fp16"
    said = f"AMP with {half} gains at most {peaks[half] / peaks['fp32']:.1f}× in products over full float32"
    if "tf32" in peaks:
        gain = peaks["tf32"] / peaks["fp32"]
        extra = "which gains nothing here itself" if gain == 1 else f"which itself gives {gain:.1f}×"
        said += f", and {peaks[half] / peaks['tf32']:.1f}× over TF32, {extra}"
    missing = "" if "bf16" in peaks else " bf16 is emulated: use fp16 and a GradScaler."
    return f"{said}. What is limited by memory gains at most 2×, the ratio of the bytes.{missing}"


def facts(row: dict) -> str:
    """HTML: name, table, the most that AMP gains, note and source."""
    unit = f"Tensor Cores of generation {row['tensor_core_generation']}" if row["tensor_core_generation"] else ""
    about = [f"capability {row['capability']}", unit, f"{row['memory_gb']} GB", f"{row['bandwidth_gb_s']:,} GB/s"]
    about.append(f"{row['sms']} SMs" if row["sms"] else "")
    head = "".join(f'<th scope="col" style="{CELL}">{title}</th>' for title in HEAD)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{html.escape(cell)}</td>' for cell in line) + "</tr>"
        for line in lines(row)
    )
    return (
        '<div style="line-height:1.4">'
        f"<p><strong>{html.escape(row['name'])}</strong> ({html.escape(row['architecture'])}): "
        f"{html.escape(', '.join(part for part in about if part))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p><strong>{html.escape(most(row))}</strong></p>"
        f"<p>{html.escape(row['note'])}.<br><small>Source: {html.escape(row['source'])}</small></p></div>"
    )


def text(row: dict) -> str:
    """The same in plain text, without note and source."""
    peaks = "; ".join(f"{fmt} {peak} TFLOP/s, ridge {ridge}, {gain}" for fmt, peak, ridge, gain in lines(row))
    return f"{row['name']}. {peaks}. {most(row)}"


class Shell:
    """The live explorer: a select, the facts, and the roofline redrawn into an image."""

    def __init__(self, rows: dict, name: str, first, widgets):
        self.rows = rows
        self.choice = widgets.Dropdown(options=list(rows), value=name, description="GPU")
        self.facts = widgets.HTML(facts(rows[name]))
        self.drawn = Redrawn(first, widgets)
        self.view = widgets.VBox([self.choice, self.facts, self.drawn.image, self.drawn.words])
        self.choice.observe(self._on_choice, names="value")

    def _on_choice(self, change) -> None:
        row = self.rows[change["new"]]
        self.facts.value = facts(row)
        self.drawn.draw(lambda: draw(of_gpu(row)))
