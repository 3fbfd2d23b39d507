"""Picture of scaling on paper: seconds per step against the number of GPUs."""

from ampedu.distributed.paper import step_time
from ampedu.plots.drawing import LINES, PALETTE, Picture, new_figure, styled

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
WIRES = {"float32 gradients, 4 B": 4, "16-bit gradients, 2 B": 2}


@styled
def step_scaling(params, gigabits, compute_seconds, overlap=0.0, latency=0.0) -> Picture:
    """Draw the time of a data-parallel step on 8 to 1024 GPUs, for 4-byte and for 2-byte gradients.

    The formula is that of `ampedu.distributed.step_time`. params: number of gradients. gigabits: Gb/s that each GPU
    can send, of the slowest link. compute_seconds, overlap, latency (seconds): as there.
    """
    figure = new_figure(height=3.8)
    axes = figure.add_subplot()
    told, highest = [], compute_seconds
    for (name, size), (color, dash, marker) in zip(WIRES.items(), LINES, strict=False):
        steps = [step_time(params, size, n, gigabits * 1e9 / 8, compute_seconds, overlap, latency) for n in RANKS]
        totals = [1e3 * step.total for step in steps]
        last = steps[-1]
        axes.plot(RANKS, totals, color=color, linestyle=dash, marker=marker, linewidth=2, label=name)
        note = f"{last.efficiency:.0%} of it computing"
        axes.annotate(note, (RANKS[-1], totals[-1]), (4, 7), textcoords="offset points", ha="right", size=9.5)
        highest = max(highest, last.total)
        told.append(f"{name}: {totals[0]:.4g} ms on 8 GPUs, {totals[-1]:.4g} ms on 1024")
    axes.axhspan(0, 1e3 * compute_seconds, color=PALETTE["sky"], alpha=0.25, linewidth=0, label="computing")
    axes.set(xscale="log", xlabel="GPUs, one rank each", ylabel="time of a step in ms", ylim=(0, 1.18e3 * highest))
    axes.set_xticks(RANKS, [str(n) for n in RANKS])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_title(f"A step on paper: {count(params)} parameters, {gigabits:g} Gb/s per GPU")
    figure.legend(loc="outside lower center", frameon=False, ncols=3, handlelength=2.6)
    alt = (
        f"Time of a step against the number of GPUs, {count(params)} parameters, {gigabits:g} Gb/s, computing "
        f"{1e3 * compute_seconds:g} ms, overlap {overlap:.2g} of it, latency {1e6 * latency:g} µs. "
    )
    return Picture(figure, alt + "; ".join(told) + ".")


def count(params) -> str:
    """A number of parameters as people say it: 124 M, 7 B."""
    return f"{params / 1e9:g} B" if params >= 1e9 else f"{params / 1e6:g} M"
