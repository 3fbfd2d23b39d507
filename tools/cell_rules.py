"""Format rules on the text of a notebook: tags, sizes, imports, and what a learner must find at the top."""

import ast
import re
from statistics import median

from tools.page import Page, tags

PLAIN_TAGS = {"parameters", "setup", "measured", "nbval-check-output", "shows-deprecated", "recorded-only"}
ROW = re.compile(r"[CR]\d\d\d?")
IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_LINES, MEDIAN_LINES, MAX_IMPORTS = 20, 5, 2
# The least share of code cells that nbval compares exactly, from this lesson on.
CHECKED_SHARE = {"lesson": 1 / 3, "solution": 1 / 3, "lab": 0.0}
CHECKED_FROM = "01"
MINUTES = re.compile(r"\b\d+ minutes\b")
OBJECTIVES = "**You will be able to**"
DEPRECATED = re.compile(r"torch\.(cuda|cpu)\.amp\b|from\s+torch\.(cuda|cpu)\s+import\s+[^\n]*\bamp\b")
SHELL = re.compile(r"^\s*!|get_ipython\(\)\.system")
MARKER = re.compile(r"^\s*### (BEGIN|END) SOLUTION\s*$")


def problems(page: Page) -> list[str]:
    """All problems of the text of one notebook."""
    found = []
    for rule in (check_tags, check_ids, check_sizes, check_imports, check_calls, check_top, check_shares):
        found += rule(page)
    return found


def check_tags(page: Page) -> list[str]:
    """Only tags of the closed list, one `parameters` cell that sets device and seed."""
    found = []
    for n, cell in enumerate(page.cells):
        for tag in tags(cell):
            if tag not in PLAIN_TAGS and not ROW.fullmatch(tag):
                found.append(
                    f'{page.at(n)}: unknown tag "{tag}"; use {", ".join(sorted(PLAIN_TAGS))} or a row such as C07.'
                )
        if len(set(tags(cell))) != len(tags(cell)):
            found.append(f"{page.at(n)}: a tag is given twice; run `python -m tools.lint --fix`.")
        if {"measured", "nbval-check-output"} <= set(tags(cell)):
            found.append(f"{page.at(n)}: measured and nbval-check-output exclude each other; keep one.")
    parameters = [cell for cell in page.cells if "parameters" in tags(cell)]
    if len(parameters) != 1:
        found.append(f"{page.source}: {len(parameters)} cells are tagged parameters; there must be one.")
    elif parameters[0]["source"].split("\n") != ['device = "auto"', "seed = 0"]:
        found.append(f'{page.source}: the parameters cell must be exactly device = "auto" and seed = 0.')
    return found


def check_ids(page: Page) -> list[str]:
    """Every id is one that nbformat accepts (long stems could break it)."""
    bad = [cell["id"] for cell in page.cells if not IDENT.fullmatch(cell["id"])]
    return [f"{page.source}: {bad[0]} is not a valid cell id; shorten the name of the file."] if bad else []


def length(cell: dict) -> int:
    """Lines of a code cell; solution markers, and in an answer cell the docstring, do not count."""
    lines = [line for line in cell["source"].split("\n") if not MARKER.match(line)]
    if "nbgrader" not in cell["metadata"]:
        return len(lines)
    text = "\n".join(lines)
    docs = [node.body[0] for node in ast.walk(_tree(text)) if _has_docstring(node)]
    return len(lines) - sum(doc.end_lineno - doc.lineno + 1 for doc in docs)


def check_sizes(page: Page) -> list[str]:
    """No long cell, and a small median."""
    sizes = {n: length(cell) for n, cell in page.code()}
    found = [
        f"{page.at(n)}: {size} lines in a code cell; split it, {MAX_LINES} are the limit."
        for n, size in sizes.items()
        if size > MAX_LINES
    ]
    if sizes and median(sizes.values()) > MEDIAN_LINES:
        found.append(f"{page.name}: the median code cell has {median(sizes.values()):g} lines; at most {MEDIAN_LINES}.")
    return found


def check_imports(page: Page) -> list[str]:
    """At most two names from ampedu per cell, so that each is met where it is used."""
    found = []
    for n, cell in page.code():
        names = []
        for node in ast.walk(_tree(cell["source"])):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ampedu":
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names += [alias.name for alias in node.names if alias.name.split(".")[0] == "ampedu"]
        if len(names) > MAX_IMPORTS:
            found.append(
                f"{page.at(n)}: {len(names)} names from ampedu in one cell; import them where they are used first."
            )
    return found


def check_calls(page: Page) -> list[str]:
    """No deprecated torch.cuda.amp, no shell lines, no results hidden by a semicolon."""
    found = []
    for n, cell in page.code(given=True):
        for number, line in enumerate(cell["source"].split("\n"), 1):
            if DEPRECATED.search(line) and "shows-deprecated" not in tags(cell):
                found.append(
                    f"{page.at(n, number)}: deprecated torch.cuda.amp; use torch.amp, or tag shows-deprecated."
                )
            if SHELL.search(line):
                found.append(f"{page.at(n, number)}: a shell line fails silently; use subprocess.run(…, check=True).")
        if cell["source"].rstrip().endswith(";"):
            found.append(f"{page.at(n)}: a trailing semicolon does not hide a result in tests; write `_ = …`.")
    return found


def check_top(page: Page) -> list[str]:
    """Objectives and minutes in front of the first result."""
    first = next((n for n, _ in page.code()), len(page.cells))
    top = "\n".join(cell["source"] for cell in page.cells[:first] if cell["cell_type"] == "markdown")
    found = []
    if OBJECTIVES not in top:
        found.append(f'{page.source}: the top does not say "{OBJECTIVES} …"; add it below the title.')
    if not MINUTES.search(top):
        found.append(f'{page.source}: the top does not say how long it takes; add a line such as "*45 minutes*".')
    return found


def check_shares(page: Page) -> list[str]:
    """Enough cells are compared exactly, and each of them has something to compare."""
    least = CHECKED_SHARE[page.target.kind]
    if page.target.stem[:2] < CHECKED_FROM or not least:
        return []
    cells = page.code()
    checked = [(n, cell) for n, cell in cells if "nbval-check-output" in tags(cell)]
    found = []
    if len(checked) < least * len(cells):
        found.append(
            f"{page.source}: {len(checked)} of {len(cells)} code cells are tagged nbval-check-output; "
            f"tag at least a third, where outputs are exact on every machine."
        )
    if page.built:
        for n, cell in checked:
            if not cell["outputs"]:
                found.append(
                    f"{page.at(n)}: tagged nbval-check-output but shows nothing; show a result or drop the tag."
                )
    return found


def _tree(source: str) -> ast.AST:
    if source.startswith("%%"):
        return ast.Module([], [])
    return ast.parse("\n".join("pass" if re.match(r"\s*[%!]", line) else line for line in source.split("\n")))


def _has_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None
    )
