"""Expected data: whether they are current is known without running anything."""

import pytest

from tests.tools.conftest import LAB, write
from tools import expected
from tools.project import BuildError

FILE = "ampedu/data/expected/01_bits.json"
SOURCE = "sources/labs/01_bits.py"


@pytest.fixture
def made(project, monkeypatch):
    calls = []

    def make(project, stem):
        calls.append(stem)
        write(project.root, {FILE: "{}", FILE.replace(".json", ".safetensors"): "x"})

    monkeypatch.setattr(expected, "_make", make)
    assert expected.build(project, "01_bits") == "executed"
    return project, calls


def test_a_second_build_makes_nothing(made):
    project, calls = made
    assert expected.build(project, "01_bits") == "unchanged"
    assert expected.check(project) == ([], [])
    assert calls == ["01_bits"]
    assert expected.build(project, "01_bits", force=True) == "executed"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (SOURCE, LAB.replace("x / 2", "x * 0.5"), "is stale: the code of the lab"),
        ("sources/mutants/01_bits.py", "x = 1\n", "is stale"),
        ("ampedu/exercises/ex01_bits.py", "y = 1\n", "is stale"),
        (FILE, "{ }", "was edited by hand"),
        (FILE.replace(".json", ".safetensors"), "y", "was edited by hand"),
        ("ampedu/data/expected/manifest.json", "no json", "are missing"),
    ],
)
def test_differences_are_named_and_built_again(made, name, text, words):
    project, _ = made
    write(project.root, {name: text})
    (problem,) = expected.check(project)[0]
    assert FILE in problem
    assert words in problem
    assert "run `make build`" in problem
    assert expected.build(project, "01_bits") == "executed"
    assert expected.check(project) == ([], [])


def test_prose_does_not_matter_and_modules_only_warn(made):
    project, _ = made
    write(project.root, {SOURCE: LAB.replace("# # Lab 1 Bits", "# # Lab 1 Bits and bytes")})
    assert expected.check(project) == ([], [])
    write(project.root, {"ampedu/exercises/__init__.py": "def check(*a): ...\n"})
    problems, warnings = expected.check(project)
    assert problems == []
    assert "made with another version of ampedu.exercises" in warnings[0]


def test_missing_files_are_named(made):
    project, _ = made
    (project.root / FILE).unlink()
    assert "are missing" in expected.check(project)[0][0]
    (project.root / "sources/mutants/01_bits.py").unlink()
    assert "sources/mutants/01_bits.py does not exist" in expected.check(project)[0][0]
    with pytest.raises(BuildError, match="the checks of lab 01_bits need it"):
        expected.build(project, "01_bits")


def test_a_worker_that_fails_is_quoted(project):
    """The small course has no real exercises, so that the worker cannot even import them."""
    with pytest.raises(BuildError, match=r"sources/labs/01_bits\.py: cannot make the expected data: "):
        expected.build(project, "01_bits")
