"""The engine must survive cells with Output widgets, on which other runners deadlock now and then."""

from pathlib import Path

import pytest
from papermill.engines import papermill_engines

from tests.tools.test_execute import notebook
from tools import execute

ROOT = Path(__file__).resolve().parents[2]
INTERACT = """\
from ipywidgets import IntSlider, interact
from matplotlib import pyplot as plt

def draw(n):
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.plot(range(n))
    plt.show()
    print("drawn", n)
_ = interact(draw, n=IntSlider(value={value}, min=2, max=40))
"""


def run(cells):
    done = execute.run(notebook(*(INTERACT.format(value=n + 2) for n in range(cells))), ROOT, timeout=120)
    for n, cell in enumerate(done["cells"]):
        kinds = [mime for output in cell["outputs"] for mime in output.get("data", {})]
        text = "".join(output.get("text", "") for output in cell["outputs"])
        assert "image/png" in kinds, "the figure must land in the cell, where readers without a kernel see it"
        assert f"drawn {n + 2}" in text


def test_papermill_knows_the_engine():
    from ampedu.nbengine import Engine

    papermill_engines.register_entry_points()
    assert papermill_engines.get_engine("ampedu") is Engine


def test_a_few_interact_cells():
    run(3)


@pytest.mark.slow
@pytest.mark.parametrize("repetition", range(10))
def test_many_interact_cells(repetition):
    run(20)
