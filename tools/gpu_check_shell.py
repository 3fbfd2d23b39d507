"""Stands for IPython where there is none: the few parts of it that cells and ampedu use. Standard library only."""

import sys
import types

MOST_TEXT = 200_000  # characters of one stream or display that are kept
# Real ones would want a real IPython or a kernel; without them every widget of the course shows its static form.
BLOCKED = ("ipywidgets", "anywidget", "ipykernel", "jupyter_client")


class Events:
    """Callbacks by event name, as IPython has them."""

    def __init__(self):
        self.callbacks = {}

    def register(self, name, callback):
        """Call `callback` whenever `name` is triggered."""
        self.callbacks.setdefault(name, []).append(callback)

    def trigger(self, name, *arguments):
        """Call what is registered for `name`."""
        for callback in list(self.callbacks.get(name, ())):
            callback(*arguments)


class Shell:
    """The running shell: events, and the outputs of the cell that runs."""

    def __init__(self):
        self.events = Events()
        self.outputs = []

    def stream(self, name, text):
        """Keep what was written to stdout or stderr."""
        last = self.outputs[-1] if self.outputs else None
        if last is None or last.get("name") != name:
            last = {"output_type": "stream", "name": name, "text": ""}
            self.outputs.append(last)
        last["text"] += text[: MOST_TEXT - len(last["text"])]

    def show(self, data, kind="display_data"):
        """Keep one display: a dictionary of MIME types."""
        kept = {mime: value[:MOST_TEXT] for mime, value in data.items() if isinstance(value, str)}
        self.outputs.append({"output_type": kind, "data": kept})


class Stream:
    """A text stream that writes into the shell's outputs."""

    encoding = "utf-8"

    def __init__(self, shell, name):
        self.shell, self.name = shell, name

    def write(self, text):
        """Keep `text`; returns its length, as files do."""
        if text:
            self.shell.stream(self.name, text)
        return len(text)

    def flush(self):
        """Nothing is held back."""

    def isatty(self):
        """No terminal: progress bars stay plain."""
        return False


class Text:
    """IPython.display's wrappers of text: Markdown, HTML and Latex."""

    mime = ""

    def __init__(self, data=""):
        self.data = str(data)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime: self.data, "text/plain": repr(self)}

    def __repr__(self):
        return f"<IPython.core.display.{type(self).__name__} object>"


class Markdown(Text):
    """Text in Markdown."""

    mime = "text/markdown"


class HTML(Text):
    """Text in HTML."""

    mime = "text/html"


class Latex(Text):
    """Text in LaTeX."""

    mime = "text/latex"


def plain(value):
    """`value` as IPython prints it, up to the breaking of lines: sets are sorted, classes go by their name."""
    if type(value) in (set, frozenset) and value:
        try:
            items = sorted(value)
        except TypeError:
            items = sorted(value, key=str)
        body = "{" + ", ".join(map(plain, items)) + "}"
        return body if type(value) is set else f"frozenset({body})"
    if isinstance(value, type) and type(value).__repr__ is type.__repr__:
        module = value.__module__
        return value.__qualname__ if module in ("builtins", "exceptions") else f"{module}.{value.__qualname__}"
    if type(value) is list:
        return "[" + ", ".join(map(plain, value)) + "]"
    if type(value) is tuple:
        return "(" + ", ".join(map(plain, value)) + ("," if len(value) == 1 else "") + ")"
    if type(value) is dict:
        return "{" + ", ".join(f"{plain(key)}: {plain(item)}" for key, item in value.items()) + "}"
    return repr(value)


def bundle(value):
    """The MIME types of a value: its own bundle, or its representations in text, HTML, Markdown and LaTeX."""
    own = getattr(type(value), "_repr_mimebundle_", None)
    if own is not None:
        data = own(value)
        data = data[0] if isinstance(data, tuple) else data
        return {"text/plain": plain(value), **data}
    data = {"text/plain": plain(value)}
    for mime, method in (("html", "_repr_html_"), ("markdown", "_repr_markdown_"), ("latex", "_repr_latex_")):
        text = getattr(value, method)() if hasattr(type(value), method) else None
        if text is not None:
            data[f"text/{mime}"] = text
    return data


def install():
    """Puts a shell in the place of IPython and its streams in the place of sys.stdout and sys.stderr; returns it."""
    shell = Shell()

    def display(*items, raw=False, metadata=None, **_):
        for item in items:
            shell.show(item if raw else bundle(item))

    module, page = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    module.__path__, module.version_info, module.display = [], (9, 0, 0), page
    module.get_ipython = lambda: shell
    page.display, page.Markdown, page.HTML, page.Latex = display, Markdown, HTML, Latex
    sys.modules.update({"IPython": module, "IPython.display": page})
    sys.modules.update(dict.fromkeys(BLOCKED))
    sys.stdout, sys.stderr = Stream(shell, "stdout"), Stream(shell, "stderr")
    return shell
