import ast
import importlib.util

import pytest

from tools import labs, percent
from tools.project import BuildError
from tools.specs import Spec

SPECS = {"01.f": Spec("01.f", "f", 2, 5, 1)}
ANSWER = '''# %% exercise="01.f"
def f(x):
    """Double "x" — twice. And more."""
    ### BEGIN SOLUTION
    y = x + x
    z = y + y
    return z
    ### END SOLUTION


# %%
check("01.f", f)
'''


def script(text):
    return percent.parse(text, "sources/labs/01.py")


def test_stub_raises_with_id_and_first_sentence():
    cell = script(ANSWER).cells[0]
    namespace = {}
    exec(labs.stub(cell, "f", "s"), namespace)
    with pytest.raises(NotImplementedError) as error:
        namespace["f"](1)
    assert str(error.value) == '01.f: Double "x" — twice.'


def test_every_block_of_a_class_is_cut_and_the_rest_stays():
    text = '''# %% exercise="01.f"
class f:
    """Count. More."""

    def __init__(self):
        ### BEGIN SOLUTION
        self.n = 0
        ### END SOLUTION

    def step(self):
        """One step."""
        self.kept = True
        ### BEGIN SOLUTION
        if self.n:
            self.n += 1
        ### END SOLUTION
'''
    stub = labs.stub(script(text).cells[0], "f", "s")
    assert stub.count("raise NotImplementedError") == 2
    assert "self.kept = True" in stub
    assert "self.n" not in stub
    ast.parse(stub)


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("    ### BEGIN SOLUTION\n    return 1\n", 4, "without ### END"),
        ("    return 1\n    ### END SOLUTION\n", 5, "without ### BEGIN"),
        ("    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n", 5, "second ### BEGIN"),
        ("    return 1  ### END SOLUTION\n", 4, "alone on its line"),
        ("    return 1\n", 2, "no ### BEGIN SOLUTION"),
        ("    pass\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n", 5, "inside a function"),
    ],
)
def test_markers_that_are_not_right_are_named_with_their_line(body, line, words):
    cell = script(f'# %% exercise="01.f"\ndef f(x):\n    """Do."""\n{body}').cells[0]
    with pytest.raises(BuildError, match=words) as error:
        labs.stub(cell, "f", "s.py")
    assert f"s.py, line {line}:" in str(error.value)


def test_an_answer_without_docstring_is_refused():
    cell = script(
        '# %% exercise="01.f"\ndef f(x):\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n'
    ).cells[0]
    with pytest.raises(BuildError, match='"f" needs a docstring'):
        labs.stub(cell, "f", "s.py")


def test_pairs():
    assert labs.pair(script(ANSWER), SPECS, "01_x") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ANSWER.replace('check("01.f", f)', "1"), "01.f has 0 check cells"),
        (ANSWER + '\n# %%\ncheck("01.f", f)\n', "01.f has 2 check cells"),
        (ANSWER.replace(' exercise="01.f"', ""), "in a cell without exercise"),
        (ANSWER.replace('exercise="01.f"', 'exercise="01.g"'), "no exercise 01.g in ex01_x.py"),
        (ANSWER.replace('check("01.f", f)', 'check("01.f", g)'), "check the answer f, not g"),
        (ANSWER + '\n# %%\ncheck("01.h", h)\n', "no exercise 01.h"),
    ],
)
def test_pairs_that_are_not_right(text, words):
    assert any(words in problem for problem in labs.pair(script(text), SPECS, "01_x"))


def test_leaks_are_found_in_code_and_prose():
    whole = script(ANSWER)
    clean = ["def f(x):\n    raise NotImplementedError", "Think of y = x + x."]
    assert labs.leaks(whole, clean) == []
    copied = ["# a hint\ny = x + x\nz = y + y\nreturn z"]
    assert "also stands in a cell that students see" in labs.leaks(whole, copied)[0]
    assert "marker is left" in labs.leaks(whole, ["    ### END SOLUTION"])[0]


def test_metadata_of_nbgrader():
    answer, check = labs.nbgrader("01.f"), labs.nbgrader("01.f", 3)
    assert answer == {"grade": False, "solution": True, "locked": False, "task": False, "schema_version": 3,
                      "grade_id": "01-f-answer"}  # fmt: skip
    assert check == {"grade": True, "solution": False, "locked": True, "task": False, "schema_version": 3,
                     "grade_id": "01-f", "points": 3}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed")
def test_nbgrader_accepts_the_metadata_and_makes_our_lab(project):
    from nbformat import from_dict
    from nbgrader.nbgraderformat import MetadataValidator
    from nbgrader.preprocessors import ClearSolutions

    from tools.assemble import assemble

    lab, solution = (t for t in project.targets(kinds=("lab", "solution")))
    source = percent.read(lab.source, "lab")
    ours = from_dict(assemble(project, lab, source)[0])
    master = from_dict(assemble(project, solution, source)[0])
    for notebook in (ours, master):
        for cell in notebook.cells:
            MetadataValidator().validate_cell(cell)
    theirs, _ = ClearSolutions().preprocess(master, {})
    cut = [cell.source.split("###")[0] for cell in theirs.cells if "nbgrader" in cell.metadata]
    assert len(cut) == len([cell for cell in ours.cells if "nbgrader" in cell.metadata])
    assert "half_of_it" not in "".join(cut)
