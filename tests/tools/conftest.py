"""A small course in a temporary folder, with a package of its own, on which the tools can be tried."""

import copy
import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tools import execute
from tools.project import Project

ROOT = Path(__file__).resolve().parents[2]

LESSON = """\
# %% [markdown]
# # 1 Bits
#
# **You will be able to** count bits. *10 minutes*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["nbval-check-output", "C01"]
from ampedu.numbers import double

print(double(21))

# %% [markdown]
# See the [lab](../labs/01_bits.ipynb).

# %% tags=["measured"]
x = 3
"""

LAB = '''\
# %% [markdown]
# # Lab 1 Bits
#
# **You will be able to** halve. *10 minutes*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %%
from ampedu.exercises import check

# %% exercise="01.halve"
def halve(x):
    """Half of x. The rest of the docstring.

    x: a number.
    """
    ### BEGIN SOLUTION
    half_of_it = x / 2
    assert half_of_it + half_of_it == x
    return half_of_it
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("01.halve", halve)

# %% tags=["nbval-check-output"]
print("the end")
'''

EXERCISES = '''\
from ampedu.exercises import exercise


@exercise("01.halve", answer="halve", points=2, minutes=5, difficulty=1, forbids=("ampedu.numbers",))
class Halve:
    """Halves."""
'''

QUIZ = """\
[[question]]
id = "quiz/01.bits"
kind = "predict"
text = "How many bits has a byte?"
[[question.option]]
text = "8"
correct = true
reason = "By definition today."
[[question.option]]
text = "7"
correct = false
reason = "That is ASCII."
"""

ROWS = """\
[[row]]
id = "C01"
kind = "claim"
title = "Doubling works"
lessons = ["01", "02"]
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def project(tmp_path) -> Project:
    write(
        tmp_path,
        {
            "pyproject.toml": '[tool.ampedu]\nrepository = "https://github.com/someone/course"\ntag = "v9.9"\n',
            "sources/lessons/01_bits.py": LESSON,
            "sources/labs/01_bits.py": LAB,
            "sources/mutants/01_bits.py": "",
            "ampedu/__init__.py": "",
            "ampedu/numbers.py": "from ampedu import helper\n\n\ndef double(x):\n    return helper.two() * x\n",
            "ampedu/helper.py": "def two():\n    return 2\n",
            "ampedu/unrelated.py": "",
            "ampedu/exercises/__init__.py": "def check(name, answer):\n    print(name, answer(4))\n",
            "ampedu/exercises/ex01_bits.py": EXERCISES,
            "docs/claims.toml": ROWS,
            "docs/planned.toml": '[lessons]\n02_more = ["C01"]\n',
        },
    )
    shutil.copy(ROOT / "ampedu" / "nbengine.py", tmp_path / "ampedu" / "nbengine.py")
    return Project(tmp_path)


class FakeRunner:
    """Stands for papermill: runs the cells here, keeps what they print, and counts its calls."""

    def __init__(self, monkeypatch, root):
        self.calls: list[str] = []
        self.suffix = ""
        monkeypatch.setattr(execute, "run", self.run)
        monkeypatch.syspath_prepend(root)

    def run(self, notebook, root, **_):
        self.calls.append(notebook["cells"][0]["source"].split("\n")[0])
        done, namespace = copy.deepcopy(notebook), {"check": lambda name, answer: print(name, answer(4))}
        for cell in done["cells"]:
            if cell["cell_type"] != "code" or "from ampedu.exercises" in cell["source"]:
                continue
            printed = io.StringIO()
            source = cell["source"].replace("from ampedu.numbers import double", "double = lambda x: 2 * x")
            with redirect_stdout(printed):
                exec(source, namespace) if "@title" not in source else None
            if printed.getvalue():
                text = printed.getvalue() + self.suffix
                cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
        return done


@pytest.fixture
def runner(project, monkeypatch) -> FakeRunner:
    return FakeRunner(monkeypatch, project.root)


@pytest.fixture
def no_expected(monkeypatch) -> None:
    """Leaves expected data out: the small course has no framework that could make them."""
    monkeypatch.setattr("tools.expected.stems", lambda project: [])
