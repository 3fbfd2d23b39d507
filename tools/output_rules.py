"""Format rules on stored outputs: alt text, sizes, and nothing that differs between machines and days."""

import json
import re

from tools import normalise
from tools.page import Page, tags

MAX_OUTPUTS, MAX_FIGURE = 1_000_000, 100_000  # bytes: all outputs of a notebook, one figure
PATH = re.compile(r"(?<![\w./])/(?:home|root|tmp|usr|Users|opt|var|mnt|private)/\w+|\b[A-Z]:\\\w+|site-packages")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b|\b\d\d:\d\d:\d\d\b")
HTML_IMAGE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
ALT = re.compile(r"""\balt\s*=\s*("[^"]+"|'[^']+')""", re.IGNORECASE)
MARKDOWN_IMAGE = re.compile(r"!\[\s*\]\(")
SCRIPT = re.compile(r"<script\b.*?</script>", re.IGNORECASE | re.DOTALL)


def problems(page: Page) -> list[str]:
    """All problems of the outputs of one notebook, and of images in its markdown."""
    found = []
    total = 0
    for n, cell in enumerate(page.cells):
        if cell["cell_type"] == "markdown":
            if MARKDOWN_IMAGE.search(cell["source"]) or _without_alt(cell["source"]):
                found.append(f"{page.at(n)}: an image without alt text; say in words what it shows.")
            continue
        total += len(json.dumps(cell["outputs"], ensure_ascii=False).encode())
        for output in cell["outputs"]:
            found += [f"{page.at(n)}: {problem}" for problem in _of_output(output, tags(cell))]
    if total > MAX_OUTPUTS:
        found.append(f"{page.name}: {total / 1e6:.1f} MB of outputs; at most 1 MB. Make figures smaller or fewer.")
    return found


def _of_output(output: dict, cell_tags: list[str]) -> list[str]:
    found = normalise.problems([output])
    data, metadata = output.get("data", {}), output.get("metadata", {})
    for mime in ("image/png", "image/jpeg", "image/svg+xml"):
        if mime not in data:
            continue
        if not str(metadata.get(mime, {}).get("alt", "")).strip():
            found.append("a figure without alt text; show it through ampedu.plots.picture(figure, alt=…).")
        size = len(data[mime]) * 3 // 4 if mime != "image/svg+xml" else len(data[mime])
        if size > MAX_FIGURE:
            found.append(f"a figure of {size // 1000} kB; at most {MAX_FIGURE // 1000} kB.")
    if _without_alt(data.get("text/html", "")):
        found.append("an <img> without alt text in an HTML output; add alt=….")
    for text in normalise.texts(output):
        text = SCRIPT.sub("", text)
        path, date = PATH.search(text), DATE.search(text)
        if path:
            found.append(f'it shows a path of this machine ("{path[0]}"); show a name or a relative path.')
        if date and "recorded-only" not in cell_tags:
            found.append(f'it shows a date or a time of day ("{date[0]}"); leave it out.')
    return found


def _without_alt(html: str) -> bool:
    return any(not ALT.search(image) for image in HTML_IMAGE.findall(html))
