"""The bit explorer: a value, its bits as buttons, and what they mean."""

import html
import math

from ampedu import formats
from ampedu.formats import FORMATS
from ampedu.plots import bit_layout
from ampedu.plots.drawing import FIELD_COLORS
from ampedu.plots.layout import field_widths
from ampedu.widgets import bits
from ampedu.widgets.output import BOX, LINE, show, toolkit

COLORS = "\n".join(
    f".ampedu-bits .ampedu-{field} {{background:{color} !important; color:#000 !important}}"
    for field, color in FIELD_COLORS.items()
)
STYLE = f"""<style>
.ampedu-bits {{border:{LINE}; border-radius:4px; padding:.5em 1em; max-width:56em; overflow:visible}}
.ampedu-bits .widget-html-content {{font-size:var(--jp-content-font-size1, 14px); line-height:1.5;
  color:var(--jp-ui-font-color1, inherit)}}
.ampedu-bits .widget-toggle-button {{width:1.7em; padding:0; margin:1px; font-family:monospace; font-size:15px}}
.ampedu-bits .widget-toggle-button.mod-active {{font-weight:bold; box-shadow:inset 0 -4px 0 rgba(0,0,0,.55)}}
.ampedu-bits button:focus-visible, .ampedu-bits input:focus-visible, .ampedu-bits select:focus-visible
  {{outline:3px solid var(--jp-brand-color1, #0072B2); outline-offset:1px}}
.ampedu-bits table {{margin:.4em 0; border-collapse:collapse; color:inherit}}
.ampedu-bits .ampedu-field {{margin-right:.8em}}
{COLORS}
</style>"""


def bit_explorer(format: str = "fp16", value: float = 0.1, compare=()) -> None:
    """Show the bits of a number: flip them, or type a number, a code in hex, or bits; see what they mean.

    format: a format name. value: the real number to start from. compare: names of formats that round the same number
    beside it. Without a kernel: the table and the picture of the first value. Unknown format: UnknownFormatError.
    """
    fmt = formats.get(format)
    others = [formats.get(name).name for name in ([compare] if isinstance(compare, str) else compare)]
    number = float(value)
    code = int(formats.encode(number, fmt))
    # The picture has a row per format that can hold the value; a format without NaN cannot show one.
    rows = [fmt.name, *(name for name in others if not math.isnan(number) or FORMATS[name].has_nan)]
    drawn = bit_layout(rows, number)
    widgets = toolkit()
    view = Shell(fmt, number, code, others, widgets).view if widgets else None
    static = f'<div style="{BOX}">{drawn.html()}{bits.table(number, code, fmt, others)}</div>'
    show(static, bits.text(number, code, fmt, others), drawn, view)


class Shell:
    """The live explorer on plain ipywidgets: native select, text field and buttons."""

    def __init__(self, fmt, number: float, code: int, compare, widgets):
        self.widgets, self.compare = widgets, compare
        self.known = {**FORMATS, fmt.name: fmt}
        self.rows: dict[str, tuple] = {}  # a format's buttons are made once
        self.busy = False  # while the code is being shown, its buttons change without a learner
        short = {"style": {"description_width": "initial"}, "layout": widgets.Layout(width="auto")}
        self.format = widgets.Dropdown(options=list(self.known), value=fmt.name, description="format", **short)
        self.typed = widgets.Text(value=repr(number), description="value", continuous_update=False, **short)
        self.below = widgets.Button(description="◀ next below")
        self.above = widgets.Button(description="next above ▶")
        self.buttons = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap"))
        self.message = widgets.HTML("")
        self.facts = widgets.HTML("")
        hint = f"<small>Type a number (0.1, 1e-8, inf), a code (0x2E66) or all bits; or flip bits below.</small>{STYLE}"
        top = widgets.HBox([self.format, self.typed, self.below, self.above])
        top.layout.flex_flow = "row wrap"
        self.view = widgets.VBox([top, widgets.HTML(hint), self.buttons, self.message, self.facts])
        self.view.add_class("ampedu-bits")
        self.format.observe(self._on_format, names="value")
        self.typed.observe(self._on_typed, names="value")
        self.below.on_click(lambda _: self._step(0))
        self.above.on_click(lambda _: self._step(1))
        self._go(fmt, number, code)

    def _on_format(self, change) -> None:
        if self.busy:
            return
        chosen = self.known[change["new"]]
        try:
            code = int(formats.encode(self.number, chosen))
        except ValueError as error:  # NaN into a format that has none
            self._go(chosen, 0.0, 0, html.escape(f"{error} Shown is 0."))
            return
        self._go(chosen, self.number, code)

    def _on_typed(self, change) -> None:
        if self.busy:
            return
        try:
            number, code = bits.parse(change["new"], self.fmt)
        except ValueError as error:
            self.message.value = f'<div role="alert"><strong>{html.escape(str(error))}</strong></div>'
            return
        self._go(self.fmt, number, code, retype=False)

    def _on_bit(self, _change) -> None:
        if self.busy:
            return
        _, buttons = self.rows[self.fmt.name]
        code = int("".join("1" if button.value else "0" for button in buttons), 2)
        self._go(self.fmt, formats.decode(code, self.fmt), code)

    def _step(self, side: int) -> None:
        value = formats.decode(self.code, self.fmt)
        next_value = None if math.isnan(value) else formats.neighbours(value, self.fmt)[side]
        if next_value is None:
            self.message.value = f'<div role="status">{self.fmt.name} has no value beyond {value!r}.</div>'
        else:
            self._go(self.fmt, next_value, int(formats.encode(next_value, self.fmt)))

    def _go(self, fmt, number: float, code: int, message: str = "", retype: bool = True) -> None:
        self.fmt, self.number, self.code = fmt, number, code
        self.busy = True
        try:
            if retype:
                self.typed.value = repr(number)
            self.message.value = message
            self._draw()
        finally:
            self.busy = False

    def _draw(self) -> None:
        if self.fmt.name not in self.rows:
            self.rows[self.fmt.name] = self._make_buttons()
        groups, buttons = self.rows[self.fmt.name]
        for button, bit in zip(buttons, bits.bit_string(self.code, self.fmt), strict=True):
            button.value, button.description = bit == "1", bit
        self.buttons.children = groups
        self.facts.value = bits.table(self.number, self.code, self.fmt, self.compare)

    def _make_buttons(self) -> tuple[list, list]:
        groups, buttons = [], []
        for field, width in field_widths(self.fmt).items():
            made = [self._make_button(field, width - 1 - index) for index in range(width)]
            label = self.widgets.HTML(f"{field} ({width})")
            row = self.widgets.HBox(made, layout=self.widgets.Layout(flex_flow="row wrap"))
            group = self.widgets.VBox([label, row])
            group.add_class("ampedu-field")
            groups.append(group)
            buttons += made
        return groups, buttons

    def _make_button(self, field: str, position: int):
        button = self.widgets.ToggleButton(tooltip=f"{field} bit {position}")
        button.add_class(f"ampedu-{field}")
        button.observe(self._on_bit, names="value")
        return button
