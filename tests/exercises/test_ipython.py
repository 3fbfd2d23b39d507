"""`check` in IPython shells that store history and shells that do not, as nbval and some graders run them."""

import subprocess
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from ampedu.exercises import cells

HEAD = "from ampedu.exercises import check"


class Notebook:
    """An IPython shell; ``run`` executes a cell and returns its report; insists that stderr is empty."""

    def __init__(self, shell, store):
        self.shell, self.store, self.displayed = shell, store, []

    def run(self, *sources):
        text = ""
        for source in sources:
            with capture_output() as seen:
                result = self.shell.run_cell(source, store_history=self.store)
            assert result.success, seen.stdout
            assert seen.stderr == "" and result.result is None
            self.displayed = [output.data for output in seen.outputs]
            text = "\n".join(data["text/plain"] for data in self.displayed)
        return text


@pytest.fixture(params=[True, False], ids=["history", "no history"])
def shell(request, fake):
    config = Config()
    config.HistoryManager.enabled = False
    made = InteractiveShell.instance(config=config)
    yield Notebook(made, request.param)
    InteractiveShell.clear_instance()


@pytest.fixture
def notebook(shell):
    """A notebook whose first cell has imported check, which makes the recorder."""
    shell.run(f"{HEAD}\nimport ampedu.exercises.cells as c; c.recorder(); del c")
    return shell


def test_answer_and_check_in_separate_cells(notebook):
    out = notebook.run("K = 2", "def double(x):\n    return K * x", "check('99.double', double)")
    assert out.startswith("✓ 99.double – passed")
    assert notebook.displayed[0]["text/html"].startswith("<section aria-label=")
    assert len(notebook.displayed) == 1


def test_answer_and_check_in_one_cell(notebook):
    assert "passed" in notebook.run("def double(x):\n    return 2 * x\ncheck('99.double', double)")
    out = notebook.run("def double(x): return x\ncheck('99.double', double)\ndef double(x): return 2 * x")
    assert "not yet" in out, "what counts is the definition at the time of the check"


def test_redefinition_between_checks(notebook):
    assert "You squared" in notebook.run("def double(x): return x * x", "check('99.double', double)")
    assert "passed" in notebook.run("def double(x): return 2 * x", "check('99.double', double)")


def test_cells_that_ran_before_the_recorder(shell):
    shell.run(
        "import math\nK = 2\nk2 = [K]",
        "def helper(x):\n    return K * math.floor(2) // 2 * x",
    )
    shell.run(HEAD, "def double(x):\n    return helper(x) * k2[0] / 2", "check('99.double', double)")
    assert "passed" in shell.run("check('99.double', double)")


def test_an_answer_that_ran_before_the_recorder(shell):
    shell.run("def double(x):\n    return 2 * x")
    assert "passed" in shell.run(f"{HEAD}\ncheck('99.double', double)")


def test_magics_and_failing_cells(notebook):
    for cell in ("%time y = 1", "1/0", "def broken(:", "%%time\nK = 2"):
        with capture_output():
            notebook.shell.run_cell(cell, store_history=notebook.store)
    assert "passed" in notebook.run("%%time\ndef double(x):\n    return K * x", "check('99.double', double)")


def test_lambda_in_the_call_and_partial(notebook):
    assert "passed" in notebook.run("k = 2", "check('99.double', lambda x: k * x)")
    assert "passed" in notebook.run(
        "import functools, operator", "check('99.double', functools.partial(operator.mul, 2))"
    )


def test_a_global_that_other_cells_change(notebook):
    notebook.run("table = {}", "for i in range(3):\n    table[i] = i", "def double(x):\n    return table[2] * x")
    out = notebook.run("check('99.double', double)")
    assert "only because of table, which other cells set or change" in out


def test_a_file_of_ones_own_is_named(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_helpers.py").write_text("def double(x): return 2 * x\n")
    note = "needs my_helpers.py. Grading sees the notebook alone"
    for cell in ("from my_helpers import double", "%run my_helpers.py"):
        text = notebook.run(cell, "check('99.double', double)").replace("`", "")
        assert "passed" in text and note in text
    text = notebook.run("import math\ndef double(x): return 2 * x + math.floor(0.5)", "check('99.double', double)")
    assert "passed" in text and "Note" not in text
    sys.modules.pop("my_helpers")


def test_a_name_that_only_a_loop_sets(notebook):
    notebook.run("for k in range(3):\n    pass", "def double(x):\n    return k * x")
    assert "only because of k, which" in notebook.run("check('99.double', double)")


def test_a_stale_definition_counts_as_it_is_live(notebook):
    notebook.run("def double(x): return 2 * x", "right = double", "def double(x): return 0.0")
    assert "not yet" in notebook.run("check('99.double', double)")


def test_strict_fails_the_cell(notebook, monkeypatch):
    monkeypatch.setenv("AMPEDU_STRICT", "1")
    with capture_output() as seen:
        result = notebook.shell.run_cell(
            "def double(x): return 1.0\ncheck('99.double', double)", store_history=notebook.store
        )
    assert isinstance(result.error_in_exec, AssertionError) and "6 of 6 cases differ" in str(result.error_in_exec)
    assert len(seen.outputs) == 1, "the report is shown first"


def test_interrupt_stops_the_check(notebook):
    with capture_output():
        cell = "def double(x):\n    raise KeyboardInterrupt\ncheck('99.double', double)"
        result = notebook.shell.run_cell(cell, store_history=notebook.store)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "passed" in notebook.run("def double(x): return 2 * x\ncheck('99.double', double)")


def test_every_cell_is_recorded_once(notebook):
    notebook.run("n = 0", "n = n + 1", "n = n + 1")
    recorded = cells.recorder().cells
    assert recorded[-3:] == ["n = 0", "n = n + 1", "n = n + 1"]
    assert [cell.startswith(HEAD) for cell in recorded].count(True) == 1


def test_a_python_file_in_its_own_process(fake, tmp_path):
    path = tmp_path / "answers.py"
    path.write_text(f"""import ampedu.exercises, pathlib
ampedu.exercises.__path__.append({str(fake)!r})
from ampedu.exercises import check, data
data.DIRECTORY = pathlib.Path({str(fake)!r})

def double(x):
    return 2 * x

if __name__ == "__main__":
    check("99.double", double)
    check("99.double", lambda x: x * x)
""")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("✓ 99.double – passed – 2 of 2 points\nAll 6 cases agree.\n✗ 99.double – not yet")
    assert "You squared the number." in done.stdout
