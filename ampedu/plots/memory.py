"""Pictures of memory ledgers: stacked bars of what is held, all on one scale."""

from matplotlib.patches import Patch

from ampedu.memory.ledger import MIB, Ledger, Moment, mib
from ampedu.memory.tracker import (
    BUFFERS,
    CASTS,
    GRADIENTS,
    INPUTS,
    PARAMETERS,
    PHASES,
    RECOMPUTED,
    SAVED,
    STATE,
    STEP,
    WORKING,
)
from ampedu.plots.drawing import PALETTE, Picture, new_figure, styled

STYLES = {  # from the left: what is always there first; the pattern repeats what color says
    PARAMETERS: (PALETTE["blue"], ""),
    BUFFERS: (PALETTE["blue"], "...."),
    STATE: (PALETTE["green"], ""),
    INPUTS: (PALETTE["purple"], ""),
    GRADIENTS: (PALETTE["orange"], "////"),
    CASTS: (PALETTE["vermillion"], "xxxx"),
    SAVED: (PALETTE["sky"], ""),
    RECOMPUTED: (PALETTE["sky"], "\\\\\\\\"),
    WORKING: (PALETTE["yellow"], "...."),
    STEP: (PALETTE["green"], "||||"),
}
SMALL = 0.004  # of the longest bar: what is thinner is not drawn, nor named


@styled
def memory_bars(ledgers: dict[str, Ledger | Moment], title: str = "Memory at the peak of a training step") -> Picture:
    """Draw a bar per ledger: what is held at the peak of its step, with the phase in which that is.

    ledgers: name to Ledger, such as {"float32": …, "AMP": …, "pure bfloat16": …}, or to the Moment that is to be drawn.
    ValueError: none is given.
    """
    if not ledgers:
        raise ValueError("give memory_bars at least one ledger: {'float32': predict(model, batch)}")
    peaks = [
        (name, item.moments[item.peak_phase] if isinstance(item, Ledger) else item) for name, item in ledgers.items()
    ]
    return _bars([(name, moment.rows, f"{mib(moment.bytes)}, {moment.name}") for name, moment in peaks], title)


@styled
def memory_timeline(ledger: Ledger, title: str | None = None) -> Picture:
    """Draw what one ledger holds at five moments: start, peak of forward, its end, peaks of backward and optimizer."""
    moments = [
        ("at the start", ledger.moments["start"]),
        ("forward, peak", ledger.moments[PHASES[0]]),
        ("forward, end", ledger.moments["forward end"]),
        ("backward, peak", ledger.moments[PHASES[1]]),
        ("optimizer step, peak", ledger.moments[PHASES[2]]),
    ]
    bars = [(name, moment.rows, mib(moment.bytes)) for name, moment in moments]
    return _bars(bars, title or ledger.title)


def _bars(bars, title) -> Picture:
    """bars: (name, bytes by row, text at the end) each, from the top."""
    longest = max(sum(rows.values()) for _, rows, _ in bars)
    used = [row for row in STYLES if any(rows.get(row, 0) >= SMALL * longest for _, rows, _ in bars)]
    figure = new_figure(height=1.9 + 0.42 * len(bars) + 0.22 * ((len(used) + 3) // 4))
    axes = figure.add_subplot()
    for y, (name, rows, end) in enumerate(bars):
        left = 0.0
        for row, (color, hatch) in STYLES.items():
            wide = rows.get(row, 0) / MIB
            if wide:
                style = {"color": color, "hatch": hatch, "edgecolor": "black", "linewidth": 0.5}
                axes.barh(y, wide, left=left, height=0.62, gid=f"{name}: {row}", **style)
            left += wide
        axes.text(left + 0.01 * longest / MIB, y, end, va="center", size=9)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.set(ylim=(len(bars) - 0.5, -0.5), xlim=(0, 1.34 * longest / MIB), xlabel="MiB (2$^{20}$ bytes)")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11.5, wrap=True)
    handles = [
        Patch(facecolor=STYLES[row][0], hatch=STYLES[row][1], edgecolor="black", linewidth=0.5, label=row)
        for row in used
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False)
    told = ". ".join(f"{name}, {end}: {_parts(rows, longest)}" for name, rows, end in bars)
    return Picture(figure, f"{title}. Stacked bars on one scale. {told}.")


def _parts(rows, longest) -> str:
    return ", ".join(f"{row} {mib(rows[row])}" for row in STYLES if rows.get(row, 0) >= SMALL * longest)
