"""A figure with its alt text: what every plot of the course returns, and how it is drawn and stored."""

import base64
import functools
import html
import io
from dataclasses import dataclass, field

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

DPI = 120
COLORS = 128  # of a stored picture: plots have few colors, photographs do not belong here
WIDTH = 7.5  # inches: 900 pixels, the width of a notebook's output

# Okabe and Ito, "Color Universal Design" (2008): told apart by readers with any common color blindness.
PALETTE = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
FIELD_COLORS = {"sign": PALETTE["purple"], "exponent": PALETTE["sky"], "mantissa": PALETTE["orange"]}
LINES = [  # color, dash and marker change together, so that color never carries a meaning alone
    (PALETTE["blue"], "-", "o"),
    (PALETTE["vermillion"], "--", "s"),
    (PALETTE["green"], "-.", "^"),
    (PALETTE["purple"], ":", "D"),
    (PALETTE["black"], (0, (6, 1, 1, 1, 1, 1)), "v"),
    (PALETTE["orange"], (0, (3, 1)), "P"),
    (PALETTE["sky"], (0, (1, 1)), "X"),
]
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
}


def house_style():
    """Context manager: matplotlib's defaults plus the course's style, whatever the notebook has set before."""
    return matplotlib.rc_context({**_defaults(), **STYLE})


@functools.cache
def _defaults() -> dict:
    # These three do not change a picture, and setting them would start or switch pyplot's backend.
    skip = {"backend", "backend_fallback", "interactive"}
    return {key: value for key, value in matplotlib.rcParamsDefault.items() if key not in skip}


def styled(draw):
    """Decorator: run a plotting function in the course's style."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with house_style():
            return draw(*args, **kwargs)

    return wrapper


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of the given size in inches that no pyplot state knows about."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@dataclass(frozen=True, eq=False)
class Picture:
    """A matplotlib figure and the sentence that replaces it for readers who cannot see it.

    As the last expression of a cell it displays itself, as image/png, text/html with the alt text, and text/plain.
    """

    figure: Figure = field(repr=False)
    alt: str

    def __post_init__(self):
        if not isinstance(self.figure, Figure):
            raise TypeError(f"a Picture needs a matplotlib Figure, not {type(self.figure).__name__}")
        if not isinstance(self.alt, str) or not self.alt.strip():
            raise ValueError("a Picture needs alt text: one sentence that says what the figure shows")

    @property
    def pixels(self) -> tuple[int, int]:
        """Width and height of the PNG."""
        width, height = self.figure.get_size_inches() * DPI
        return int(width), int(height)

    def png(self) -> bytes:
        """The picture as PNG bytes: the same figure gives the same bytes."""
        packed = io.BytesIO()
        # A palette makes the file 3 times smaller.
        image = self._rendered().quantize(COLORS, dither=Image.Dither.NONE)
        image.save(packed, "png", optimize=True, dpi=(DPI, DPI))
        return packed.getvalue()

    def live_png(self) -> bytes:
        """The picture as PNG bytes that are larger and made in less time: for what is redrawn and not stored."""
        packed = io.BytesIO()
        self._rendered().save(packed, "png", compress_level=1, dpi=(DPI, DPI))
        return packed.getvalue()

    def _rendered(self) -> Image.Image:
        # Figure.savefig would lay out and draw everything twice.
        figure = self.figure
        before = figure.canvas, figure.get_dpi(), figure.get_facecolor()
        canvas = FigureCanvasAgg(figure)
        try:
            with house_style():
                figure.set_dpi(DPI)
                figure.set_facecolor("white")
                canvas.draw()
                # The layout moves a little with each draw; kept, the next draw gives the same bytes.
                figure.set_layout_engine("none")
                pixels = canvas.buffer_rgba()
            size = pixels.shape[1], pixels.shape[0]
            return Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1).convert("RGB")
        finally:
            figure.set_canvas(before[0])
            figure.set_dpi(before[1])
            figure.set_facecolor(before[2])

    def html(self) -> str:
        """The picture as an HTML image with alt text; the PNG is inside, so that it works anywhere."""
        return _image(self.png(), self.alt)

    def _repr_mimebundle_(self, include=None, exclude=None):
        png = self.png()
        data = {
            "image/png": base64.b64encode(png).decode("ascii"),
            "text/html": _image(png, self.alt),
            "text/plain": f"Figure: {self.alt}",
        }
        return data, {"image/png": {"alt": self.alt}}


def _image(png: bytes, alt: str) -> str:
    source = base64.b64encode(png).decode("ascii")
    return f'<img alt="{html.escape(alt)}" style="max-width:100%;height:auto" src="data:image/png;base64,{source}">'


def picture(figure: Figure, alt: str) -> Picture:
    """Wrap a matplotlib figure of your own with its alt text, for example ``picture(fig, alt="Loss falls …")``.

    A figure made with ``plt.subplots()`` is taken off pyplot's list, so that it is not shown twice.
    """
    result = Picture(figure, alt)
    if getattr(figure.canvas, "manager", None) is not None:
        import matplotlib.pyplot as plt

        plt.close(figure)
    return result


def powers_of_two(axis, exponents) -> None:
    """Label a matplotlib axis, whose values are base-2 logarithms, with powers of two."""
    axis.set_ticks(list(exponents), [rf"$2^{{{e}}}$" for e in exponents])
