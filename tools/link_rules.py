"""Format rules across files: quiz ids that exist and are used, relative links that lead somewhere."""

import re
from pathlib import Path

from tools import coverage, quizzes
from tools.page import Page
from tools.project import TARGET_FOLDER, Project

QUIZ = re.compile(r"""\bquiz\(\s*["'](?:quiz/)?([^"']+)["']""")
LINK = re.compile(r"""\]\(\s*<?([^)\s>]+)>?(?:\s+["'][^)]*)?\)|\b(?:href|src)\s*=\s*["']([^"']+)["']""")
DEFINED = re.compile(r"^ {0,3}\[([^\]^]+)\]:\s*<?([^\s>]+)", re.MULTILINE)
REFERENCE = re.compile(r"\[([^\[\]]+)\]\[([^\[\]]*)\]")
EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|#|//|data:)", re.IGNORECASE)


def check_quizzes(project: Project, pages: list[Page]) -> list[str]:
    """Every quiz(...) in a cell is defined, and every defined question is asked in a lesson or lab."""
    defined = quizzes.ids(project)
    asked: set[str] = set()
    found = []
    for page in pages:
        for n, cell in page.code():
            for name in QUIZ.findall(cell["source"]):
                ident = f"quiz/{name}"
                asked.add(ident)
                if ident not in defined and page.target.kind != "solution":
                    found.append(
                        f'{page.at(n)}: there is no question "{name}" in sources/quizzes/; write it or correct the id.'
                    )
    unused = sorted(set(defined) - asked)
    return found + [f"{defined[ident]}: {ident} is asked in no lesson or lab; ask it or delete it." for ident in unused]


def check_links(project: Project, pages: list[Page]) -> list[str]:
    """Every relative link in markdown leads to a file, to a notebook that the sources give, or to a planned lesson.

    A reference such as [text][name] is defined in its own cell: each cell is rendered alone.
    """
    targets = {target.path for target in project.targets()}
    planned = coverage.planned_stems(project)
    found = []
    for page in pages:
        for n, cell in enumerate(page.cells):
            if cell["cell_type"] != "markdown":
                continue
            text = _without_code(cell["source"])
            defined = {name.casefold(): link for name, link in DEFINED.findall(text)}
            for shown, name in REFERENCE.findall(text):
                if (name or shown).casefold() not in defined:
                    where = f"[{shown}][{name}] is defined in no line of this cell"
                    found.append(f"{page.at(n)}: the link {where}; add [{name or shown}]: ADDRESS.")
            for link in [a or b for a, b in LINK.findall(text)] + list(defined.values()):
                if EXTERNAL.match(link) or _leads_somewhere(project, page, link, targets, planned):
                    continue
                found.append(f'{page.at(n)}: the link "{link}" leads nowhere; correct it, or write the file.')
    return found


def _leads_somewhere(project: Project, page: Page, link: str, targets: set[Path], planned: set[str]) -> bool:
    path = (page.target.path.parent / link.split("#")[0]).resolve()
    if path.exists() or path in targets:
        return True
    folder = path.parent.name if path.parent.parent == project.root.resolve() else ""
    return folder in TARGET_FOLDER.values() and path.suffix == ".ipynb" and path.stem in planned


def _without_code(text: str) -> str:
    """Markdown without fenced blocks, inline code and formulas, where brackets are no links."""
    return re.sub(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$", "", text, flags=re.DOTALL)
