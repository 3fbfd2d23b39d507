"""One output per widget: the live view, static HTML, a picture and plain text in one display."""

import functools
import importlib

from ampedu import static
from ampedu._display import display_bundle

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# Borders and tints are translucent and text is inherited, so that static output follows a light or dark page.
LINE = "1px solid rgba(128,128,128,.45)"
BOX = f"border:{LINE};border-radius:4px;padding:.6em 1em;max-width:52em"


@functools.cache
def toolkit():
    """The ipywidgets module, or None where it is missing or cannot make a widget."""
    try:
        module = importlib.import_module("ipywidgets")
        module.HTML("").close()
    except Exception:  # whatever breaks there, the static version still works
        return None
    return module


def live(name: str, state: dict):
    """The anywidget of an explorer in that state, or None where anywidget is missing or cannot make a widget."""
    if toolkit() is None:
        return None
    try:
        return importlib.import_module("ampedu.widgets.live").CLASSES[name](**state)
    except Exception:  # as above: the static version holds the same explorer
        return None


def show_explorer(name: str, state: dict, plain: str, picture, table: str) -> None:
    """Display an explorer of ``static``: live, as HTML that works alone, as a picture, and as plain text.

    Readers that strip scripts show the picture and the table instead.
    """
    bundle, metadata = picture._repr_mimebundle_()
    note = "<p>Run the cell to change what is shown.</p>"
    fallback = f'<div style="{BOX}">{bundle["text/html"]}{table}{note}</div>'
    data = {"text/plain": plain, "text/html": static.html(name, state, fallback), "image/png": bundle["image/png"]}
    _display(data, metadata, live(name, state))


def show(html: str, plain: str, picture=None, view=None) -> None:
    """Display a static version (html that works alone, plain text, optionally a Picture) and the live view, if any."""
    data, metadata = {"text/plain": plain, "text/html": html}, {}
    if picture is not None:
        bundle, metadata = picture._repr_mimebundle_()
        data["image/png"] = bundle["image/png"]
    _display(data, metadata, view)


def _display(data: dict, metadata: dict, view) -> None:
    if view is not None:
        data[WIDGET_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": view.model_id}
        metadata = {**metadata, **_where_the_script_is(view)}
    display_bundle(data, metadata)


def _where_the_script_is(view) -> dict:
    """Metadata that Colab needs in order to find the front end of a widget that is not one of ipywidgets' own."""
    bundle = view._repr_mimebundle_() if hasattr(view, "_repr_mimebundle_") else None
    return bundle[1] if isinstance(bundle, tuple) else {}
