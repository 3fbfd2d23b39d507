"""HTML pages from templates: everything escaped and scrubbed, no scripts, no resources from elsewhere."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

from ampedu.grading.report import links, scrub

FOLDER = Path(__file__).parent / "templates"
_CODE = re.compile(r"`([^`]+)`")


@functools.cache
def _environment():
    import jinja2
    from markupsafe import Markup, escape

    def scrubbed(value):
        """Whatever a template prints goes through here, before it is escaped."""
        if isinstance(value, (Markup, jinja2.Undefined)):
            return value
        return value if isinstance(value, (int, float)) else scrub.text(value)

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=scrubbed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["marked"] = lambda value: Markup(_CODE.sub(r"<code>\1</code>", str(escape(scrub.text(value)))))
    environment.globals |= {"lesson": links.lesson, "lab_address": links.lab, "lab_title": links.title}
    return environment


@functools.cache
def _style() -> str:
    return (FOLDER / "style.css").read_text(encoding="utf-8")


def policy(style: str) -> str:
    """The content security policy: this style sheet and nothing else, so that injected markup can do nothing."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def render(name: str, **values) -> str:
    """A template as a page. The style sheet is our own file, so it is put in as it is."""
    from markupsafe import Markup

    style = _style()
    return _environment().get_template(name).render(style=Markup(style), policy=policy(style), **values)
