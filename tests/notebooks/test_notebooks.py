"""Every notebook and solution runs from top to bottom with papermill, as a learner's machine would run it."""

from pathlib import Path

import pytest

from tools import execute
from tools import notebook as files

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted([*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "solutions").glob("*.ipynb")])
PARAMETERS = {"device": "cpu", "seed": 1}


def run(path: Path, **settings) -> dict:
    """Run a notebook without its stored outputs; once more only if it was killed for time."""
    notebook = files.load(path)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    try:
        return execute.run(notebook, ROOT, **settings)
    except execute.NotebookTimeout as first:
        print(f"{path.name}: {first}; once more")
        return execute.run(notebook, ROOT, **settings)


def text_on(stream: str, done: dict) -> str:
    outputs = (output for cell in done["cells"] for output in cell.get("outputs", []))
    return "".join(output["text"] for output in outputs if output.get("name") == stream)


def test_there_are_notebooks():
    assert {path.parent.name for path in NOTEBOOKS} == {"notebooks", "solutions"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_runs_with_another_seed_and_without_warnings(path):
    done = run(path, parameters=PARAMETERS)
    assert text_on("stderr", done) == ""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_lists_its_parameters(path):
    """papermill finds device and seed: a parameter that it does not know would be ignored without an error."""
    from papermill.inspection import inspect_notebook

    assert set(PARAMETERS) <= set(inspect_notebook(str(path)))
