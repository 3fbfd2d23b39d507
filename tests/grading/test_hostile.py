"""Hostile, damaged and oddly treated submissions in one batch: each gets what it must, and nothing else happens."""

import os

import pytest

from ampedu.exercises import data
from ampedu.grading import course, expected, grade, ingest, results, secret

from . import hostile
from .hostile_files import NAMES
from .hostile_kit import DECODE, LAB, MOST, ROOT, ipynb, right


def prepared(place, cache):
    """A secret whose cases are the public ones, so that no solution has to run first."""
    path = place / "secret"
    secret.make(path)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    try:
        (lab,) = course.labs(ROOT, LAB)
        expected.save(lab, secret.read(path), data.load(LAB).exercises)
    finally:
        os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)
    return path


def graded(items, place, cache, **options):
    """(Run, students) of one batch with two jobs, and what lies in the folders afterwards."""
    given, out, scratch = place / "given", place / "out", place / "scratch"
    hostile.written(given, items)
    scratch.mkdir()
    before = sorted((path.name, path.lstat().st_mtime_ns, path.lstat().st_size) for path in given.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.setattr("tempfile.tempdir", str(scratch))
        grade(LAB, given, out, secret_file=prepared(place, cache), jobs=2, memory=1.0, sandbox="bwrap", **options)
    assert sorted((path.name, path.lstat().st_mtime_ns, path.lstat().st_size) for path in given.iterdir()) == before
    return out, *results.load_run(out)


@pytest.fixture(scope="module")
def quick(bwrap, cache, tmp_path_factory):
    place = tmp_path_factory.mktemp("hostile")
    items = hostile.named(("lies", "escapes", "resources", "files"))
    return place, items, *graded(items, place, cache)


def test_there_are_many():
    items = hostile.named()
    assert len(items) >= 100 and len({item.name for item in items.values()}) == len(items)


def test_each_gets_what_it_must(quick):
    _, items, _, run, students = quick
    assert {student.student_id for student in students} == set(items) and run.rejected == []
    assert hostile.verdicts(items, students) == {}
    assert "infra" not in run.counts


def test_nothing_is_left_running_or_written(quick):
    place, _, out, _, students = quick
    assert hostile.left() == []
    assert os.listdir(place / "scratch") == []
    assert sorted(os.listdir(place)) == ["given", "out", "scratch", "secret"]
    named = {f"{student.student_id}.json" for student in students}
    assert {path.name for path in (out / "results").iterdir()} == named


def test_the_secret_and_the_inputs_are_nowhere_that_a_student_reads(quick):
    place, _, out, _, _ = quick
    key = secret.read(place / "secret")
    assert not [path for path in out.rglob("*") if path.is_file() and key in path.read_bytes()]


@pytest.mark.slow
def test_what_takes_long(bwrap, cache, tmp_path):
    items = hostile.named(("long",))
    _, run, students = graded(items, tmp_path, cache, timeout=30.0)
    assert hostile.verdicts(items, students) == {} and "infra" not in run.counts
    assert hostile.left() == []


def test_hostile_names(inline, cache, tmp_path):
    """Each file is somebody's, no id leaves the folder of results, and nothing shown can act."""
    given = tmp_path / "given"
    given.mkdir()
    content = ipynb([right("01.decode")])
    made = 0
    for name in NAMES:
        try:
            (given / f"{name}.ipynb").write_bytes(content)
            made += 1
        except OSError:  # longer than this file system's names, or no text for it
            continue
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ampedu.grading.batch._prove", lambda *a: [])
        grade(LAB, given, tmp_path / "out", secret_file=prepared(tmp_path, cache), jobs=1, executor=inline)
    run, students = results.load_run(tmp_path / "out")
    assert len(students) == len(list(given.iterdir())) - hidden(given) and made > 20
    assert all(ingest.ID.fullmatch(student.student_id) for student in students)
    assert {student.labs[0].score for student in students} == {DECODE}
    texts = [text for student in students for text in (student.name, student.labs[0].file)]
    assert not [text for text in texts if any(ord(c) < 32 or c in "\u202e\u2028" for c in text)]
    assert MOST > DECODE and run.rejected == []


def hidden(given):
    """Files whose names start with one dot are no submissions."""
    return sum(path.name[0] == "." != path.name[1] for path in given.iterdir())
