"""A generated notebook as the format rules see it: cells, stored outputs, and where each cell stands in its source."""

from dataclasses import dataclass
from pathlib import Path

from tools import notebook as files
from tools import percent
from tools.assemble import assemble
from tools.project import EXECUTED, Project, Target

GIVEN = {"setup", "parameters"}  # cells that the rules on size and tags leave out


@dataclass(frozen=True)
class Page:
    """One notebook. `cells` come from the source; with their stored outputs if the notebook is `built` from it."""

    project: Project
    target: Target
    cells: tuple[dict, ...]
    lines: tuple[int, ...]
    built: bool

    @property
    def name(self) -> str:
        """The generated file, as messages show it."""
        return self.project.name(self.target.path)

    @property
    def source(self) -> str:
        """The source file, as messages show it."""
        return self.project.name(self.target.source)

    def at(self, index: int, line: int = 1) -> str:
        """Where to look for line `line` of a cell: source, line number and cell id."""
        ident = self.cells[index]["id"]
        if not self.lines[index]:
            maker = "setup_cell" if any(self.lines[index:]) else "lab_cells"
            return f"tools/{maker}.py (cell {ident})"
        return f"{self.source}, line {self.lines[index] + line - 1} (cell {ident})"

    def code(self, given: bool = False) -> list[tuple[int, dict]]:
        """(index, cell) of the code cells; setup and parameters only if `given`."""
        cells = ((n, cell) for n, cell in enumerate(self.cells) if cell["cell_type"] == "code")
        return [(n, cell) for n, cell in cells if given or not GIVEN & set(tags(cell))]


def tags(cell: dict) -> list[str]:
    """Tags of a cell."""
    return cell["metadata"].get("tags", [])


def load(project: Project, target: Target) -> Page:
    """The page of `target`; raises BuildError when the source cannot be assembled."""
    notebook, lines = assemble(project, target, percent.read(target.source, project.name(target.source)))
    built = target.kind in EXECUTED and _take_outputs(notebook, target.path)
    return Page(project, target, tuple(notebook["cells"]), tuple(lines), built)


def _take_outputs(notebook: dict, path: Path) -> bool:
    """Copy the outputs of the notebook at `path` if it was built from the same source; returns whether it was."""
    try:
        old = files.load(path)
        stored = {cell["id"]: cell["outputs"] for cell in old["cells"] if cell["cell_type"] == "code"}
        same = old["metadata"]["ampedu"]["source_sha256"] == notebook["metadata"]["ampedu"]["source_sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # the comparison with the source names a missing or damaged file
    for cell in notebook["cells"]:
        if same and cell["cell_type"] == "code":
            cell["outputs"] = stored.get(cell["id"], [])
    return same
