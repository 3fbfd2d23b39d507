import hashlib

from tests.tools.conftest import write
from tools import modules


def names(project, *sources):
    return set(modules.hashes(project.root, list(sources)))


def test_imports_are_followed(project):
    assert names(project, "from ampedu.numbers import double") == {"ampedu", "ampedu.numbers", "ampedu.helper"}
    assert names(project, "import ampedu") == {"ampedu"}
    assert names(project, "import torch") == set()
    assert names(project, "def f():\n    from ampedu import helper") == {"ampedu", "ampedu.helper"}


def test_relative_imports_and_packages(project):
    write(
        project.root,
        {
            "ampedu/plots/__init__.py": "def __getattr__(name): ...\n",
            "ampedu/plots/layout.py": "from ..helper import two\n",
            "ampedu/plots/line.py": "from . import layout\n",
        },
    )
    found = names(project, "from ampedu.plots import anything")
    assert found == {"ampedu", "ampedu.plots", "ampedu.plots.layout", "ampedu.plots.line", "ampedu.helper"}


def test_only_the_exercises_that_are_checked_count(project):
    write(project.root, {"ampedu/exercises/ex02_other.py": "", "ampedu/exercises/judge.py": ""})
    base = {"ampedu", "ampedu.exercises", "ampedu.exercises.judge"}
    assert names(project, "from ampedu.exercises import check") == base
    assert names(project, "from ampedu.exercises import check", 'check("01.halve", halve)') == {
        *base,
        "ampedu.exercises.ex01_bits",
    }


def test_data_that_a_notebook_reads_counts(project):
    write(
        project.root,
        {
            "ampedu/data/gpus.json": "{}",
            "ampedu/data/other.json": "{}",
            "ampedu/data/quizzes/01_bits.json": "{}",
            "ampedu/data/quizzes/02_more.json": "{}",
            "ampedu/data/expected/01_bits.json": "{}",
            "ampedu/helper.py": 'NAME = "gpus.json"\ndef two(): return 2\n',
        },
    )
    cells = ["import ampedu.helper", 'quiz("01.bits")', 'check("01.halve", halve)', "%%time\nnot python"]
    found = modules.hashes(project.root, cells)
    data = {name for name in found if name.startswith("ampedu/")}
    assert data == {"ampedu/data/gpus.json", "ampedu/data/quizzes/01_bits.json", "ampedu/data/expected/01_bits.json"}
    assert found["ampedu/data/gpus.json"] == hashlib.sha256(b"{}").hexdigest()


def test_a_changed_module_changes_its_hash_only(project):
    before = modules.hashes(project.root, ["import ampedu.numbers"])
    write(project.root, {"ampedu/helper.py": "def two():\n    return 2.0\n", "ampedu/unrelated.py": "x = 1\n"})
    after = modules.hashes(project.root, ["import ampedu.numbers"])
    assert {name for name in after if after[name] != before[name]} == {"ampedu.helper"}
