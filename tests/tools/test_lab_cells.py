import ast
import sys

import pytest

from ampedu import keep
from tests.tools.conftest import LAB, write
from tools import lab_cells, lint, percent
from tools.assemble import assemble

HAND_IN, KEEP = lab_cells.closing("07_speed")


def made(project, kind):
    (target,) = project.targets(kinds=(kind,))
    return assemble(project, target, percent.read(target.source, project.name(target.source)))


def test_every_lab_ends_with_both_cells_and_no_other_notebook_has_them(project):
    notebook, lines = made(project, "lab")
    hand_in, cell = notebook["cells"][-2:]
    assert (hand_in["cell_type"], cell["cell_type"], lines[-2:]) == ("markdown", "code", [0, 0])
    assert "`01_bits.ipynb`" in hand_in["source"]
    assert 'keep("01_bits", keep_my_work)' in cell["source"]
    assert cell["metadata"]["tags"] == ["setup"]
    for kind in ("lesson", "solution"):
        assert not any("keep_my_work" in cell["source"] for cell in made(project, kind)[0]["cells"])


def test_the_cells_of_the_lab_in_front_keep_the_ids_that_they_have_in_the_solution(project):
    ids = [[cell["id"] for cell in made(project, kind)[0]["cells"]] for kind in ("lab", "solution")]
    assert ids[0][:-2] == ids[1]


def test_run_all_does_nothing(capfd):
    before, names = set(sys.modules), {}
    exec(KEEP.source, names)
    assert capfd.readouterr() == ("", "")
    assert set(sys.modules) == before
    assert set(names) == {"__builtins__", "keep_my_work"}


@pytest.mark.parametrize("action", keep.ACTIONS)
def test_every_choice_reaches_the_function(action, monkeypatch):
    seen = []
    monkeypatch.setattr(keep, "keep", lambda *arguments: seen.append(arguments))
    exec(KEEP.source.replace('keep_my_work = "nothing"', f'keep_my_work = "{action}"'), {})
    assert seen == [("07_speed", action)]


def test_the_form_offers_exactly_what_the_function_knows():
    offered = ast.literal_eval(KEEP.source.split("# @param ")[1].split("\n")[0])
    assert offered == ["nothing", *keep.ACTIONS]


def test_the_text_names_the_file_and_the_choices():
    assert HAND_IN.source.count("07_speed") == 4
    for action in keep.ACTIONS:
        assert f"*{action}*" in " ".join(HAND_IN.source.split())


def test_a_problem_in_these_cells_names_their_file(project, monkeypatch):
    monkeypatch.setattr(lab_cells, "KEEP", "x = 1;")
    write(project.root, {"sources/labs/01_bits.py": LAB})
    found = [problem for problem in lint.lint(project) if "semicolon" in problem]
    assert len(found) == 1
    assert found[0].startswith("tools/lab_cells.py (cell 01_bits-")
