"""Runs a notebook cell by cell in the environment of `colab_machine`: colab_cells.py GIVEN MADE. Needs no repository.

The last cell of MADE is added here: it prints, as JSON, the interpreter and the versions that the notebook ran with.
"""

import sys

import nbformat
from nbclient import NotebookClient

PROBE = """\
import importlib.metadata, json, sys
print(json.dumps({"prefix": sys.prefix, "versions": {name: importlib.metadata.version(name) for name in %r}}))
"""


def main(given: str, made: str, kept: list[str]) -> None:
    """Execute every cell in the current folder; an exception of a cell ends the process with its traceback."""
    notebook = nbformat.read(given, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE % kept))
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.widget_registry = {}  # without this, a cell with an Output widget can hang
    client.execute()
    nbformat.write(notebook, made)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
