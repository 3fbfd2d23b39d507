"""The update explorer: a weight, an update and a format; does the stored weight change?"""

import html

from ampedu import formats
from ampedu.formats import FORMATS
from ampedu.plots import landing
from ampedu.updates import check_format, update_lands
from ampedu.widgets.output import BOX, show, toolkit
from ampedu.widgets.redrawn import Redrawn

WEIGHTS, UPDATES = (-16.0, 8.0), (-10.0, 1.0)  # exponents of 2 and of 10 that the sliders reach


def update_explorer(format: str = "bf16", weight: float = 1.0, update: float = -1e-4) -> None:
    """Show whether ``weight + update`` changes the weight once it is rounded to the format; drag all three.

    format: a format with a sign and at most 24 bits of precision, such as bf16, fp16, e4m3fn, fp32. weight: a positive
    number between 2^-16 and 2^8. update: a number between 1e-10 and 10 in size, not 0. Without a kernel: the picture
    and the verdict of these three. ValueError: a number out of reach, or a format that cannot be used.
    """
    fmt = formats.get(format)
    if not 2.0 ** WEIGHTS[0] <= weight <= 2.0 ** WEIGHTS[1]:
        raise ValueError(f"the weight is {weight}: the explorer shows weights between 2^-16 and 2^8")
    if not 10.0 ** UPDATES[0] <= abs(update) <= 10.0 ** UPDATES[1]:
        raise ValueError(f"the update is {update}: the explorer shows updates between 1e-10 and 10 in size")
    first, verdict = landing(weight, update, fmt), update_lands(weight, update, fmt).verdict
    widgets = toolkit()
    view = Shell(fmt, weight, update, first, widgets).view if widgets else None
    note = "Run the cell to drag the weight, the update and the format."
    words = f"<p><strong>{html.escape(verdict)}</strong></p><p>{note}</p>"
    static = f'<div style="{BOX}">{first.html()}{words}</div>'
    show(static, f"Update explorer ({first.alt})", first, view)


def usable() -> list[str]:
    """Names of the formats that a weight can be stored in and the explorer can compute with."""
    found = []
    for name, fmt in FORMATS.items():
        try:
            check_format(fmt)
        except ValueError:
            continue
        found.append(name)
    return found


class Shell:
    """The live explorer on plain ipywidgets: a select, two sliders that work by keyboard, a direction."""

    def __init__(self, fmt, weight: float, update: float, first, widgets):
        self.known = {**{name: FORMATS[name] for name in usable()}, fmt.name: fmt}
        label = {"style": {"description_width": "4.5em"}}
        wide = {**label, "layout": widgets.Layout(width="min(100%, 32em)"), "readout_format": ".3g"}
        self.format = widgets.Dropdown(options=list(self.known), value=fmt.name, description="format", **label)
        reach = {"base": 2, "min": WEIGHTS[0], "max": WEIGHTS[1], "step": 1 / 16}
        self.weight = widgets.FloatLogSlider(value=weight, description="weight", **reach, **wide)
        reach = {"base": 10, "min": UPDATES[0], "max": UPDATES[1], "step": 0.05}
        self.update = widgets.FloatLogSlider(value=abs(update), description="update", **reach, **wide)
        ways = [("down", -1), ("up", 1)]
        self.sign = widgets.Dropdown(options=ways, value=-1 if update < 0 else 1, description="direction", **label)
        drawn = Redrawn(first, widgets)
        self.image, self.words, self.verdict = drawn.image, drawn.words, widgets.HTML("")
        controls = [self.format, self.weight, self.update, self.sign]
        self.view = widgets.VBox([*controls, self.image, self.words, self.verdict])
        self._say()
        for control in controls:
            control.observe(lambda _change: self._redraw(drawn), names="value")

    @property
    def chosen(self) -> tuple:
        """(weight, update, format) as the controls stand."""
        return self.weight.value, self.sign.value * self.update.value, self.known[self.format.value]

    def _redraw(self, drawn) -> None:
        drawn.draw(lambda: landing(*self.chosen))
        self._say()

    def _say(self) -> None:
        try:
            said = update_lands(*self.chosen).verdict
        except ValueError as error:  # such as a weight beyond the largest number of a small format
            said = str(error)
        self.verdict.value = f'<div role="status"><strong>{html.escape(said)}</strong></div>'
