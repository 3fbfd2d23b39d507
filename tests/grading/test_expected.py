"""Expected answers by the sandbox: on the public cases they are what `make build` ships, for solutions and mutants."""

import dataclasses
import stat

import pytest

from ampedu.exercises import data, judge, of_stem, spec
from ampedu.grading import answers, course, expected, notebook, stage
from ampedu.grading.expected import ExpectedError
from ampedu.grading.sandbox import Sandbox

from .conftest import LAB, ROOT


def same_as_shipped(ex, sandbox):
    found = expected.expect(ex, _lab(ex.stem), b"public", sandbox)
    shipped = data.load(ex.stem).exercises[ex.id]
    (key,) = found.expected
    assert judge.equal(shipped.expected[key], found.expected[key], ex.tolerance)
    for one, other in zip(shipped.mutants, found.mutants, strict=True):
        assert (one.name, one.message) == (other.name, other.message)
        assert judge.equal(one.outcomes[key], other.outcomes[key], ex.tolerance), one.name


def _lab(stem):
    return course.labs(ROOT, stem)[0]


@pytest.mark.parametrize("id", ["01.decode", "01.mask_scores"])
def test_the_same_as_in_the_notebook(id, warm):
    same_as_shipped(spec.load(id), warm)


@pytest.mark.slow
@pytest.mark.parametrize("stem", [path.stem for path in sorted((ROOT / "solutions").glob("*.ipynb"))])
def test_the_same_as_in_the_notebook_for_all_exercises(stem, bwrap):
    with Sandbox("bwrap", [stem], stage.forbidden(of_stem(stem))) as sandbox:
        for ex in of_stem(stem):
            same_as_shipped(ex, sandbox)


def test_a_secret_for_which_a_wrong_answer_is_right_is_refused(warm, monkeypatch):
    ex = spec.load("01.mask_scores")
    monkeypatch.setattr(expected, "mutants", lambda ex, path: [(_mutant(ex), _solution(ex).source)])
    with pytest.raises(ExpectedError, match="Make another secret"):
        expected.expect(ex, _lab(LAB), b"public", warm)


def _solution(ex):
    return answers.locate(notebook.parse(_lab(LAB).solution.read_bytes()), [ex])[ex.id]


def _mutant(ex):
    from ampedu.exercises.mutants import Mutant

    return Mutant(ex.id, ex.answer, "No.", None)


def test_a_solution_that_fails_is_named(warm, monkeypatch):
    ex = spec.load("01.mask_scores")
    monkeypatch.setattr(expected.answers, "locate", lambda book, exercises: {ex.id: dataclasses.replace(
        _answer, source="def mask_scores(*a):\n    import os\n    os._exit(0)", name="mask_scores")})  # fmt: skip
    with pytest.raises(ExpectedError, match=r"01\.mask_scores: the solution gives ProcessEnded"):
        expected.expect(ex, _lab(LAB), b"public", warm)


_answer = answers.Answer("", "", "name")


def test_the_cache_is_closed_to_others_and_bound_to_secret_and_sources(monkeypatch, tmp_path):
    lab, items = _lab(LAB), data.load(LAB).exercises
    assert expected.load(lab, b"a" * 16) is None
    expected.save(lab, b"a" * 16, items)
    assert set(expected.load(lab, b"a" * 16).exercises) == set(items)
    assert stat.S_IMODE(expected.cache_path(lab, b"a" * 16).stat().st_mode) == 0o700
    assert expected.load(lab, b"b" * 16) is None
    changed = tmp_path / "solution.ipynb"
    changed.write_bytes(lab.solution.read_bytes() + b"\n")
    assert expected.load(dataclasses.replace(lab, solution=changed), b"a" * 16) is None
    monkeypatch.setattr(expected, "versions", lambda: {"torch": "9.9"})
    assert expected.load(lab, b"a" * 16) is None
