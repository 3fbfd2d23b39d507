"""The memory explorer: a transformer's size on sliders, the peak of its training step under three policies."""

import html

from ampedu.memory.formulas import VOCABULARY, transformer_peak
from ampedu.memory.ledger import mib
from ampedu.plots.memory import memory_bars
from ampedu.widgets.output import BOX, show, toolkit
from ampedu.widgets.panel import Panel

CHOICES = {
    "batch": tuple(2**k for k in range(9)),
    "sequence": tuple(2**k for k in range(4, 13)),
    "width": tuple(2**k for k in range(5, 13)),
    "depth": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48),
}
BARS = {"float32": "fp32", "AMP, bfloat16": "bf16", "pure bfloat16": "pure_bf16"}


def memory_explorer(
    batch: int = 16, sequence: int = 128, width: int = 256, depth: int = 4, checkpoint: bool = False
) -> None:
    """Show what a transformer's training step holds at its peak in float32, under AMP and in pure bfloat16.

    Drag batch, sequence, width and depth, and turn checkpointing of the layers on. The model is the course's running
    example (`ampedu.memory.formulas.Transformer`) with AdamW under the CUDA policy; formulas say its bytes.
    Without a kernel: the picture of the sizes given here. ValueError: a size that its slider does not have.
    """
    sizes = {"batch": batch, "sequence": sequence, "width": width, "depth": depth}
    for name, size in sizes.items():
        if size not in CHOICES[name]:
            raise ValueError(f"{name} is {size!r}: the slider has {', '.join(map(str, CHOICES[name]))}")
    first = picture(**sizes, checkpoint=bool(checkpoint))
    widgets = toolkit()
    view = panel(sizes, bool(checkpoint), first, widgets).view if widgets else None
    words = html.escape(verdict(**sizes, checkpoint=bool(checkpoint)))
    note = "Run the cell to drag batch, sequence, width and depth."
    static = f'<div style="{BOX}">{first.html()}<p><strong>{words}</strong></p><p>{note}</p></div>'
    show(static, f"Memory explorer ({first.alt})", first, view)


def picture(checkpoint: bool, **sizes):
    """The three bars for these sizes."""
    bars = {name: transformer_peak(**sizes, policy=policy, checkpoint=checkpoint) for name, policy in BARS.items()}
    kept = ", layers checkpointed" if checkpoint else ""
    size = f"batch {sizes['batch']} × {sizes['sequence']} tokens, width {sizes['width']}, depth {sizes['depth']}"
    return memory_bars(bars, f"Peak of a training step: {size}{kept}")


def verdict(checkpoint: bool, **sizes) -> str:
    """What AMP changes at these sizes, in a sentence."""
    full, amp = (transformer_peak(**sizes, policy=policy, checkpoint=checkpoint) for policy in ("fp32", "bf16"))
    percent = 100 * (amp.bytes / full.bytes - 1)
    change = f"{abs(percent):.1f} % {'more' if percent > 0 else 'less'}" if abs(percent) >= 0.05 else "the same"
    return (
        f"AMP needs {change}: {mib(full.bytes)} in float32, at its peak in {full.name}; {mib(amp.bytes)} under AMP, "
        f"in {amp.name}. Vocabulary: {VOCABULARY}; GPU kernels and lists; AdamW in its foreach form."
    )


def panel(sizes: dict[str, int], checkpoint: bool, first, widgets) -> Panel:
    """The live explorer, starting from these sizes and the picture of them."""
    sliders = {name: (CHOICES[name], size) for name, size in sizes.items()}
    choice = ("checkpoint", "checkpoint every layer", checkpoint)
    return Panel(sliders, choice, picture, verdict, first, widgets)
