"""The explorers' JavaScript, and how its files become one text.

A file here is an ES module that imports its neighbors with one-line ``import { … } from "./name.js";`` statements.
``module`` replaces every such line by the text of that file (once, and without its ``export`` keywords), so that the
result is one module without imports that ends in ``export default { render };``. That text is

- the ``_esm`` of an anywidget, as it is;
- the script of a static page or of a stored output, with a model of four lines in the place of the kernel: ``html``.
"""

import html as escaping
import json
import re
from importlib import resources
from importlib.resources.abc import Traversable

EXPLORERS = ("bit_explorer", "range_explorer", "scaler_simulator")
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
# Comment lines and indentation: a fifth of the text, of no use in a stored output. No string here depends on them.
_COMMENT = re.compile(r"^[ \t]*(?://.*\n|/\*\*(?s:.*?)\*/\n)?", re.MULTILINE)
# A classic script, since those know their own element: no ids, and as many explorers on a page as one likes.
_SCRIPT = """<script>
(() => {
"use strict";
%s
const state = %s;
const put = (name, value) => { state[name] = value; };
const model = { get: (name) => state[name], set: put, on() {}, save_changes() {} };
const element = document.currentScript.previousElementSibling;
const fallback = [...element.childNodes];
explorer.render({ model, el: element });
for (const node of fallback) node.remove();
})();
</script>
"""


def folder() -> Traversable:
    """The folder of the JavaScript files, as importlib.resources sees it."""
    return resources.files(__name__)


def module(name: str) -> str:
    """Text of one self-contained ES module whose default export is ``{render({model, el})}``.

    ``name`` is one of ``EXPLORERS``; anything else raises ValueError.
    """
    if name not in EXPLORERS:
        raise ValueError(f"unknown explorer {name!r}: choose one of {', '.join(EXPLORERS)}")
    return _COMMENT.sub("", _inlined(name, set()))


def _inlined(name: str, seen: set[str]) -> str:
    seen.add(name)
    text = (folder() / f"{name}.js").read_text(encoding="utf-8")
    return _EXPORT.sub("", _IMPORT.sub(lambda m: "" if m[1] in seen else _inlined(m[1], seen), text))


def html(name: str, state: dict, fallback: str = "") -> str:
    """HTML of an explorer that works alone, without kernel and network: a ``div`` and the script that fills it.

    ``state`` holds the traits (plain data); ``fallback`` is HTML shown where scripts do not run, for example the
    static figure as an image. The same arguments give the same text.
    """
    data = json.dumps(state, sort_keys=True).replace("<", "\\u003c")
    script = _SCRIPT % (module(name).replace("export default", "const explorer ="), data)
    return f'<div class="ampedu-explorer">{fallback}</div>\n{script}'


def page(name: str, state: dict, title: str) -> str:
    """A complete HTML page with one explorer, light or dark as the reader prefers; it opens from a file."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escaping.escape(title)}</title>\n"
        "<style>:root { color-scheme: light dark }\n"
        "body { margin: 0 auto; max-width: 1132px; padding: 16px; box-sizing: border-box }</style>\n"
        f"</head>\n<body>\n<main>\n{html(name, state)}</main>\n</body>\n</html>\n"
    )
