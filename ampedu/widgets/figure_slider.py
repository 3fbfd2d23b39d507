"""A figure that a slider redraws into an image."""

import html

from matplotlib.figure import Figure

from ampedu.plots import Picture
from ampedu.widgets.output import show, toolkit
from ampedu.widgets.redrawn import Redrawn


def slider(draw, values, start, label: str, alt: str) -> None:
    """Show the figure that ``draw(value)`` makes, and a slider over the values that redraws it.

    draw: a function of one value that returns a matplotlib Figure or a Picture. values: what the slider stops at.
    start: the value drawn first, and the one that stored notebooks show. label: what the values are, with their unit.
    alt: what the figure shows, for readers who cannot see it; a Picture keeps its own alt text.
    ValueError: start is not among the values. TypeError: draw returns something else.
    """
    values = list(values)
    if start not in values:
        raise ValueError(f"start is {start!r}, but the slider's values are {values}: start at one of them")
    first = as_picture(draw(start), alt)
    widgets = toolkit()
    view = Shell(draw, values, start, label, alt, first, widgets).view if widgets else None
    words = f"{label}: {name(start)}"
    note = f"<p>{html.escape(words)}. Run the cell to move it through {len(values)} values.</p>"
    show(f"<div>{first.html()}{note}</div>", f"Figure with a slider ({words}): {first.alt}", first, view)


def name(value) -> str:
    """A value as the slider shows it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_picture(drawn, alt: str) -> Picture:
    """The Picture that a draw function returned, or made from the figure that it returned."""
    if isinstance(drawn, Picture):
        return drawn
    if isinstance(drawn, Figure):
        return Picture(drawn, alt)
    raise TypeError(f"draw must return a matplotlib Figure or a Picture, not {type(drawn).__name__}")


class Shell:
    """The live slider and the image that it redraws."""

    def __init__(self, draw, values, start, label, alt, first, widgets):
        self.slider = widgets.SelectionSlider(
            options=[(name(value), value) for value in values],
            value=start,
            description=label,
            style={"description_width": "initial"},
            layout=widgets.Layout(width="min(100%, 36em)"),
        )
        drawn = Redrawn(first, widgets)
        self.image, self.words = drawn.image, drawn.words
        self.view = widgets.VBox([self.slider, self.image, self.words])
        self.slider.observe(lambda change: drawn.draw(lambda: as_picture(draw(change["new"]), alt)), names="value")
