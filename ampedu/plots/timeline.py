"""The calls of a watched training loop in their order: one row per kind of call, steps along x."""

import textwrap

from ampedu.plots.drawing import PALETTE, Picture, new_figure, styled
from ampedu.steps.records import KINDS

MOST = 48  # events that fit side by side
WRAP = 94  # characters that fit in a line below the rows
NAMES = {"scheduler": "scheduler.step", "step": "step", "zero_grad": "zero_grad"}
COLORS = dict(
    zip(KINDS, ("black", "blue", "green", "purple", "orange", "sky", "yellow", "black"), strict=True)
)
MARKERS = dict(zip(KINDS, ("o", "s", "^", "D", "P", "v", "h", "X"), strict=True))


@styled
def step_timeline(watch, first: int | None = None, title: str | None = None) -> Picture:
    """Draw the events of an ampedu.steps.StepWatcher: whole steps, at most 48 events.

    first: the step at which the picture begins; None begins one step before the first violation, or at step 0.
    Hollow: a step that was skipped, or a forward pass without gradients. A red ring marks the call of the first
    violation, whose text and consequence stand below. ValueError if nothing was recorded.
    """
    if not watch.events:
        raise ValueError("nothing to draw: no call was recorded; run the loop inside `with StepWatcher(…) as watch:`")
    worst = watch.first
    if first is None:
        first = max(0, worst.step - 1) if worst else 0
    events = _whole_steps([event for event in watch.events if event.step >= first])
    if not events:
        raise ValueError(f"there is no step {first}: the last one is step {watch.events[-1].step}")
    found = {event.kind for event in watch.events}
    scaled = any(event.scale is not None for event in watch.events)
    # An empty row shows what is missing.
    kinds = [kind for kind in KINDS if kind in found or (scaled and kind in ("unscale_", "update"))]
    note = _note(worst)
    figure = new_figure(height=1.0 + 0.31 * len(kinds) + 0.19 * len(note))
    axes = figure.add_subplot()
    start = events[0].index
    places = [(event.index - start, kinds.index(event.kind)) for event in events]
    _bands(axes, events, start)
    axes.plot(*zip(*places, strict=True), color="0.6", linewidth=1, zorder=1)
    for event, (x, y) in zip(events, places, strict=True):
        hollow = event.skipped or not event.training
        color = PALETTE[COLORS[event.kind]]
        axes.plot(x, y, MARKERS[event.kind], color=color, markersize=8, markerfacecolor="white" if hollow else color)
        label = _label(event, several=len(watch.optimizers) > 1 and len(events) <= MOST / 2)
        if label:
            axes.text(x, y + 0.42, label, size=8, ha="center", va="center")
    if worst and start <= worst.index <= events[-1].index:
        ring = {"markersize": 17, "markerfacecolor": "none", "markeredgewidth": 2.2, "color": PALETTE["vermillion"]}
        x = worst.index - start
        axes.plot(x, kinds.index(watch.events[worst.index].kind), "o", gid="violation", zorder=3, **ring)
    axes.set(xlim=(-0.7, len(events) - 0.3), ylim=(len(kinds) - 0.4, -0.6))
    axes.set_yticks(range(len(kinds)), [NAMES.get(kind, kind) for kind in kinds])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(title or ("The calls of the loop: " + (worst.id if worst else "the order is right")))
    if note:
        axes.set_xlabel("\n".join(note), loc="left", color="black", size=9)
    return Picture(figure, _words(watch, events, worst))


def _label(event, several) -> str:
    """What stands below a call: the optimizer's name if there are several, and what became of the call."""
    name = event.who if several and event.kind in ("step", "unscale_") else ""
    return " ".join(filter(None, [name, "raises" if event.error else "skipped" if event.skipped else ""]))


def _whole_steps(events) -> list:
    """As many whole steps as fit; at least the first 48 events of one."""
    fits = events[:MOST]
    if len(events) > len(fits):
        whole = [event for event in fits if event.step < events[len(fits)].step]
        fits = whole or fits
    return fits


def _bands(axes, events, start) -> None:
    """One band per step, named below the rows."""
    names = []
    for step in dict.fromkeys(event.step for event in events):
        inside = [event.index - start for event in events if event.step == step]
        left, right = inside[0] - 0.5, inside[-1] + 0.5
        if step % 2 == 0:
            axes.axvspan(left, right, color="0.94", zorder=0, linewidth=0)
        names.append(((left + right) / 2, f"step {step}"))
    axes.set_xticks([x for x, _ in names], [name for _, name in names])


def _note(worst) -> list[str]:
    if worst is None:
        return []
    return textwrap.wrap(worst.text, WRAP) + textwrap.wrap(f"Consequence: {worst.consequence}", WRAP)


def _words(watch, events, worst) -> str:
    steps = list(dict.fromkeys(event.step for event in events))
    order = [event.call for event in events if event.step == steps[0]]
    parts = [f"Timeline of {len(events)} calls in steps {steps[0]} to {steps[-1]}, one row per kind of call."]
    parts.append(f"Step {steps[0]}: {', '.join(order)}.")
    skipped = [event.step for event in events if event.skipped]
    if skipped:
        parts.append(f"The optimizer's step was skipped in step {', '.join(map(str, dict.fromkeys(skipped)))}.")
    if worst:
        at = watch.events[worst.index].call if worst.index < len(watch.events) else "the end"
        parts.append(f"Marked as wrong: {at} in step {worst.step}. {worst.text} Consequence: {worst.consequence}")
    return " ".join(parts)
