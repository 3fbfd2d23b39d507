"""Controls above a picture that follows them: sliders, a checkbox, the picture, and what it says in a sentence."""

import html

from ampedu.widgets.redrawn import Redrawn


class Panel:
    """A live view on plain ipywidgets that works by keyboard.

    sliders: {name: (options, value)}. choice: name, description and value of the checkbox. picture, verdict: functions
    of all names as keyword arguments, which return a Picture and a sentence. first: the Picture to start with.
    """

    def __init__(self, sliders: dict, choice: tuple[str, str, bool], picture, verdict, first, widgets):
        self.sliders = {
            name: widgets.SelectionSlider(
                options=options,
                value=value,
                description=name,
                style={"description_width": "6em"},
                layout=widgets.Layout(width="min(100%, 34em)"),
            )
            for name, (options, value) in sliders.items()
        }
        self.choice, description, value = choice
        self.checkbox = widgets.Checkbox(value=value, description=description, indent=False)
        self._picture, self._verdict = picture, verdict
        self._drawn = Redrawn(first, widgets)
        self.image, self.words, self.verdict = self._drawn.image, self._drawn.words, widgets.HTML("")
        controls = [*self.sliders.values(), self.checkbox]
        self.view = widgets.VBox([*controls, self.image, self.words, self.verdict])
        self._say()
        for control in controls:
            control.observe(self._redraw, names="value")

    @property
    def chosen(self) -> dict:
        """What the controls say, by name."""
        return {name: slider.value for name, slider in self.sliders.items()} | {self.choice: self.checkbox.value}

    def _redraw(self, _change) -> None:
        self._drawn.draw(lambda: self._picture(**self.chosen))
        self._say()

    def _say(self) -> None:
        self.verdict.value = f"<strong>{html.escape(self._verdict(**self.chosen))}</strong>"
