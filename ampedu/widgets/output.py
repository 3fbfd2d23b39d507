"""One output per widget: the live view, static HTML, a picture and plain text in one display."""

import functools
import importlib

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


def show(html: str, plain: str, picture=None, view=None) -> None:
    """Display a static version (html that works alone, plain text, optionally a Picture) and the live view, if any."""
    data, metadata = {"text/plain": plain, "text/html": html}, {}
    if picture is not None:
        bundle, metadata = picture._repr_mimebundle_()
        data["image/png"] = bundle["image/png"]
    if view is not None:
        data[WIDGET_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": view.model_id}
    display_bundle(data, metadata)
