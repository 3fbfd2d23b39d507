"""Real runs through papermill and a kernel; each costs about two seconds."""

import time

import psutil
import pytest

from tests.tools.conftest import LESSON, write
from tools import build, execute


def notebook(*sources, tags=()):
    cells = [
        {"cell_type": "code", "id": f"c-{n}", "metadata": {"tags": list(tags) if n == 0 else []}, "source": source,
         "execution_count": None, "outputs": []}
        for n, source in enumerate(sources)
    ]  # fmt: skip
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def printed(done):
    return "".join(output.get("text", "") for cell in done["cells"] for output in cell["outputs"])


def test_the_surroundings_of_a_run(project):
    """An empty folder, the CPU, one thread, progress kept apart, no leftovers of the caller's environment."""
    source = (
        "import os, pathlib\n"
        "env = os.environ\n"
        "print(os.listdir('.'), env['AMPEDU_DEVICE'], env['OMP_NUM_THREADS'], env['PYTHONHASHSEED'])\n"
        "progress = pathlib.Path(env['AMPEDU_PROGRESS'])\n"
        "print('AMPEDU_STRICT' in env, progress.parent == pathlib.Path.cwd().parent)"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMPEDU_STRICT", "1")
        patch.setenv("AMPEDU_DEVICE", "cuda")
        done = execute.run(notebook(source), project.root)
    assert printed(done) == "[] cpu 1 0\nFalse True\n"
    assert len(done["cells"]) == 1


def test_parameters_are_injected_on_request(project):
    done = execute.run(notebook("device = 'auto'\nseed = 0", "print(device, seed)", tags=["parameters"]), project.root,
                       {"device": "cpu", "seed": 1})  # fmt: skip
    assert printed(done) == "cpu 1\n"


def test_an_error_has_cell_line_and_last_line(project):
    with pytest.raises(execute.CellError) as error:
        execute.run(notebook("def f(x):\n    return 1 / x", "y = 1\n\nf(0)"), project.root)
    assert (error.value.index, error.value.line, error.value.text) == (1, 3, "ZeroDivisionError: division by zero")


def test_a_notebook_that_does_not_end_is_killed_with_its_kernel(project):
    start = time.monotonic()
    source = "import time\nwhile True:\n    time.sleep(0.1)"
    with pytest.raises(execute.NotebookTimeout, match=r"did not finish in 6 s and was killed"):
        execute.run(notebook(source), project.root, timeout=6)
    assert time.monotonic() - start < 20
    orphans = [p for p in psutil.process_iter(["cwd", "status"]) if "ampedu-" in str(p.info["cwd"]) and p.ppid() == 1]
    assert [p for p in orphans if p.info["status"] != psutil.STATUS_ZOMBIE] == []


def test_the_build_end_to_end(project, no_expected):
    """The small course through a real kernel, then a forced run: only cells tagged measured may change."""
    write(project.root, {"sources/lessons/01_bits.py": LESSON.replace("x = 3", "import time\nprint(time.time_ns())")})
    assert build.build(project) == []
    first = build.existing(project.root / "notebooks" / "01_bits.ipynb")
    assert [cell["execution_count"] for cell in first["cells"] if cell["cell_type"] == "code"] == [1, 2, 3, 4]
    assert first["cells"][3]["outputs"] == [{"name": "stdout", "output_type": "stream", "text": "42\n"}]
    assert first["cells"][1]["outputs"] == []
    assert build.build(project, ("01_bits",), force=True) == []
    second = build.existing(project.root / "notebooks" / "01_bits.ipynb")
    changed = [a["id"] for a, b in zip(first["cells"], second["cells"], strict=True) if a != b]
    assert changed == ["01_bits-006"]
