"""The step explorer: what a data-parallel step takes on more GPUs than there are here."""

import html

from ampedu.distributed.paper import step_time
from ampedu.plots.distributed import RANKS, count, step_scaling
from ampedu.widgets.output import BOX, show, toolkit
from ampedu.widgets.panel import Panel

CHOICES = {
    "parameters": (1e7, 2.5e7, 1e8, 1.24e8, 3.5e8, 1e9, 3e9, 7e9, 1.3e10, 7e10),
    "bandwidth": (10, 25, 50, 100, 200, 400, 800, 1600, 3600),
    "compute": (20, 50, 100, 200, 500, 1000, 2000, 5000),
    "latency": (0, 1, 5, 10, 20, 50),
}
UNITS = {"bandwidth": "Gb/s per GPU", "compute": "ms", "latency": "µs per message"}
OVERLAP = 2 / 3  # the backward pass takes twice the time of the forward pass


def step_explorer(
    parameters: float = 1e9, bandwidth: float = 100, compute: float = 500, latency: float = 5, overlap: bool = True
) -> None:
    """Show the time of a step on 8 to 1024 GPUs, for float32 and for 16-bit gradients; drag what it depends on.

    parameters: how many gradients. bandwidth: Gb/s that each GPU can send. compute: ms of forward, backward and
    optimizer. latency: µs per message. overlap: gradients travel beside the backward pass, two thirds of the compute.
    The formula is that of `ampedu.distributed.step_time`. ValueError: a number that its slider does not have.
    """
    numbers = {"parameters": parameters, "bandwidth": bandwidth, "compute": compute, "latency": latency}
    for name, number in numbers.items():
        if number not in CHOICES[name]:
            raise ValueError(f"{name} is {number!r}: the slider has {', '.join(f'{n:g}' for n in CHOICES[name])}")
    first = picture(**numbers, overlap=bool(overlap))
    widgets = toolkit()
    view = panel(numbers, bool(overlap), first, widgets).view if widgets else None
    words = html.escape(verdict(**numbers, overlap=bool(overlap)))
    note = "Run the cell to drag the parameters, the bandwidth, the compute time and the latency."
    static = f'<div style="{BOX}">{first.html()}<p><strong>{words}</strong></p><p>{note}</p></div>'
    show(static, f"Step explorer ({first.alt})", first, view)


def picture(parameters, bandwidth, compute, latency, overlap):
    """The two curves for these numbers."""
    return step_scaling(parameters, bandwidth, compute / 1e3, OVERLAP if overlap else 0.0, latency / 1e6)


def verdict(parameters, bandwidth, compute, latency, overlap) -> str:
    """What 16-bit gradients change on the most GPUs, in a sentence."""
    shared = OVERLAP if overlap else 0.0
    full, half = (
        step_time(parameters, size, RANKS[-1], bandwidth * 1e9 / 8, compute / 1e3, shared, latency / 1e6)
        for size in (4, 2)
    )
    sent = f"On {RANKS[-1]} GPUs each one sends {full.wire_bytes / 1e9:.3g} GB of float32 gradients per step"
    if not full.exposed:
        return f"{sent}; all of it is hidden by computing, so that 16-bit gradients would gain nothing."
    saved = 1 - half.total / full.total
    waits = f"{full.exposed:.3g} s" if full.exposed >= 1 else f"{1e3 * full.exposed:.3g} ms"
    return f"{sent}, and waits {waits} for them; 16-bit gradients make the step {saved:.0%} shorter."


def panel(numbers: dict, overlap: bool, first, widgets) -> Panel:
    """The live explorer, starting from these numbers and the picture of them."""
    sliders = {
        name: ([(label(name, choice), choice) for choice in CHOICES[name]], number) for name, number in numbers.items()
    }
    choice = ("overlap", "send during the backward pass", overlap)
    return Panel(sliders, choice, picture, verdict, first, widgets)


def label(name: str, number: float) -> str:
    """A number as the slider shows it, with its unit."""
    return count(number) if name == "parameters" else f"{number:g} {UNITS[name]}"
