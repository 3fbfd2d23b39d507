"""An image that live widgets redraw: faster than an Output widget, and no runner deadlocks on it."""

import html

from ampedu.plots import Picture


class Redrawn:
    """A picture and its alt text as two widgets: put ``image`` and ``words`` into a view, then call ``draw``."""

    def __init__(self, first: Picture, widgets):
        # Without a width of its own an image widget stretches to the page.
        layout = widgets.Layout(width=f"{first.pixels[0]}px", max_width="100%", object_fit="contain")
        self.image = widgets.Image(value=first.png(), format="png", layout=layout)
        self.image.add_class("ampedu-figure")
        self.words = widgets.HTML(_hidden(first.alt))

    def draw(self, make) -> None:
        """Show the Picture that ``make()`` returns; where it fails, say why in place of the alt text."""
        try:
            drawn = make()
        except Exception as error:  # the kernel drops what a callback raises: say it where the figure is
            self.words.value = f"<strong>{html.escape(f'{type(error).__name__}: {error}')}</strong>"
            return
        self.image.value = drawn.live_png()
        self.image.layout.width = f"{drawn.pixels[0]}px"
        self.words.value = _hidden(drawn.alt)


def _hidden(alt: str) -> str:
    """Alt text for screen readers: an Image widget has none of its own."""
    style = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
    return f'<div role="status" style="{style}">{html.escape(alt)}</div>'
