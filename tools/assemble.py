"""From a percent script to a notebook without outputs: ids, tags, setup cell, link to Colab, metadata."""

from tools import lab_cells, labs, modules, setup_cell, specs
from tools.percent import Cell, Script
from tools.project import EXECUTED, TARGET_FOLDER, BuildError, Project, Target

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
COLAB = {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}}


def colab_address(project: Project, target: Target) -> str:
    """Where Colab opens this notebook: the tag of [tool.ampedu], so that an old link keeps its helper."""
    path = f"{TARGET_FOLDER[target.kind]}/{target.stem}.ipynb"
    return f"https://colab.research.google.com/github/{project.slug}/blob/{project.tag}/{path}"


def assemble(project: Project, target: Target, script: Script) -> tuple[dict, list[int]]:
    """The notebook of `target` without outputs, and for every cell the line of its source (0: inserted by the build).

    Raises BuildError with one problem a line when the script cannot become a notebook.
    """
    cells = list(script.cells)
    answers: dict[str, specs.Spec] = {}
    if target.kind in ("lab", "solution"):
        answers = specs.read(project, target.stem)
        problems = labs.pair(script, answers, target.stem)
        if problems:
            raise BuildError("\n".join(problems))
    elif any(cell.exercise for cell in cells):
        raise BuildError(f"{script.name}: a lesson has no exercise cells; move the exercise to the lab.")
    if target.kind == "lab":
        cells = labs.cut(script, answers)
    if not cells or cells[0].kind != "markdown" or not cells[0].source.startswith("# "):
        raise BuildError(
            f"{script.name}, line 1: the first cell must be markdown that starts with the title, '# # Title'."
        )
    first_code = next((n for n, cell in enumerate(cells) if cell.kind == "code"), len(cells))
    cells.insert(first_code, Cell("code", setup_cell.render(project.repository, project.tag), 0, ("setup",)))
    if target.kind == "lab":
        cells += lab_cells.closing(target.stem)

    nodes = [_node(cell, f"{target.stem}-{n:03d}", answers) for n, cell in enumerate(cells, 1)]
    # A link, not the badge's image: opening a notebook asks no server for anything.
    nodes[0]["source"] += f"\n\n[Open in Colab]({colab_address(project, target)})"
    if target.kind == "lab":
        problems = labs.leaks(script, [node["source"] for node in nodes])
        if problems:
            raise BuildError("\n".join(problems))
    provenance: dict = {"source_sha256": script.sha256}
    if target.kind in EXECUTED:
        code = [cell.source for cell in cells if cell.kind == "code"]
        provenance["modules"] = modules.hashes(project.root, code)
    notebook = {
        "cells": nodes,
        "metadata": {
            "kernelspec": dict(KERNELSPEC),
            "language_info": dict(LANGUAGE),
            **COLAB,
            "ampedu": provenance,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return notebook, [cell.line for cell in cells]


def _node(cell: Cell, ident: str, answers: dict[str, specs.Spec]) -> dict:
    metadata: dict = {"tags": list(cell.tags)} if cell.tags else {}
    if cell.tags == ("setup",):
        metadata = {**setup_cell.METADATA}
    check = labs.check_of(cell) if answers else None
    if cell.exercise:
        metadata["nbgrader"] = labs.nbgrader(cell.exercise)
    elif check:
        metadata["nbgrader"] = labs.nbgrader(check["id"], answers[check["id"]].points)
    node = {"cell_type": cell.kind, "id": ident, "metadata": metadata, "source": cell.source}
    if cell.kind == "code":
        node |= {"execution_count": None, "outputs": []}
    return node
