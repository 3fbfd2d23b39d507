"""``ampedu grade export`` on a finished run, as an instructor uses it."""

import csv
import json

import pytest

from ampedu import cli
from tests.grading import demo
from tests.grading.gradebooks import read
from tests.grading.test_export_canvas import book, row


@pytest.fixture
def out(tmp_path):
    demo.write(tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def graded(out):
    return {s.student_id: s for s in demo.batch()[1]}


def export(*arguments):
    return cli.main(["grade", "export", *map(str, arguments)])


def test_canvas_fills_a_copy_and_lists_who_is_not_in_it(out, tmp_path, graded, capsys):
    template = tmp_path / "book.csv"
    template.write_bytes(book(row("s00"), row("s05"), row("s12"), row("zz"), points="21"))
    before = template.read_bytes()
    assert export(out, "--canvas", template) == 0
    assert template.read_bytes() == before
    done = read((out / "exports/canvas-01_bit_layouts.csv").read_bytes())
    # s05 ran out of time, s12 could not be graded: they stay blank, not 0.
    assert [line[6] for line in done[2:]] == [f"{graded['s00'].score}.00", "", "", ""]
    with open(out / "exports/canvas-01_bit_layouts-not-exported.csv", encoding="utf-8", newline="") as file:
        left = {line["student_id"]: line for line in csv.DictReader(file)}
    assert set(left) == set(graded) - {"s00"}
    assert left["s05"]["reason"].startswith("timeout: Ran out of time")
    assert left["s01"]["name"] == "'=cmd|'/c calc'!A1"
    assert "1 grade written into the column 'Lab 1 (12345)'" in capsys.readouterr().out


def test_statuses_with_points_are_exported_only_on_demand(out, tmp_path, graded):
    template = tmp_path / "book.csv"
    template.write_bytes(book(row("s02"), row("s05"), row("s12"), row("s15"), points="21"))
    given = ("--include", "timeout", "--include", "unreadable", "-o", tmp_path / "new.csv")
    assert export(out, "--canvas", template, *given) == 0
    done = read((tmp_path / "new.csv").read_bytes())
    assert [line[6] for line in done[2:]] == ["0.00", f"{graded['s05'].score}.00", "", ""]


def test_the_roster_says_what_the_lms_calls_a_student(out, tmp_path):
    (tmp_path / "book.csv").write_bytes(book(row("77"), points="21"))
    (tmp_path / "roster.csv").write_text("student_id,lms_id\ns00,77\n")
    assert export(out, "--canvas", tmp_path / "book.csv", "--roster", tmp_path / "roster.csv") == 0
    assert read((out / "exports/canvas-01_bit_layouts.csv").read_bytes())[2][6] == "21.00"


def test_gradescope_writes_what_its_format_has_and_nothing_secret(out, tmp_path, graded):
    folder = tmp_path / "gs"
    assert export(out, "--gradescope", folder) == 0
    scored = {id for id, s in graded.items() if s.labs[0].status == "graded"}
    assert {path.name for path in folder.iterdir()} == scored
    for id in scored:
        text = (folder / id / "results.json").read_text(encoding="utf-8")
        found = json.loads(text)
        assert demo.SECRET not in text
        assert sum(test["score"] for test in found["tests"]) == found["score"] == graded[id].score
        assert {test["status"] for test in found["tests"]} <= {"passed", "failed"}
        assert all(test["output_format"] == "text" and test["visibility"] == "visible" for test in found["tests"])
    assert export(out, "--gradescope", folder) == 1
    # Who has no score any more must not keep an old one.
    (folder / "s12").mkdir()
    (folder / "s12" / "results.json").write_text("{}")
    assert export(out, "--gradescope", folder, "--overwrite") == 0
    assert not (folder / "s12" / "results.json").exists()


def test_csv_for_a_spreadsheet_says_that_it_is_utf8(out):
    assert export(out, "--csv") == 0
    content = (out / "exports/scores.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    assert len(read(content)) == 31


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--canvas", "{tmp}/none.csv"], "none.csv does not exist"),
        (["--canvas", "{tmp}/book.csv", "-o", "{tmp}/book.csv"], "is the template itself"),
        (["--canvas", "{tmp}/book.csv", "--lab", "9"], "holds no lab '9'. It holds 01"),
        (["--canvas", "{tmp}/book.csv", "--include", "infra"], "--include takes timeout, crashed, unreadable"),
        (["--canvas", "{tmp}/book.csv", "--comments", "X"], "Leave --comments away"),
        (["--canvas", "{tmp}/book.csv", "--roster", "{tmp}/none.csv"], "none.csv cannot be opened"),
        (["--moodle", "{tmp}/book.csv"], "the column of the grade is not clear"),
        (["--gradescope", "{tmp}/book.csv"], "book.csv is a file"),
    ],
)
def test_mistakes_are_named_with_the_cure(out, tmp_path, capsys, arguments, words):
    (tmp_path / "book.csv").write_bytes(book(row("s00"), points="21"))
    assert export(out, *(argument.format(tmp=tmp_path) for argument in arguments)) == 1
    error = capsys.readouterr().err
    assert words in error and error.startswith("ampedu: ")
    assert not (out / "exports").exists()


def test_a_folder_without_a_run(tmp_path, capsys):
    assert export(tmp_path, "--csv") == 1
    assert "holds no finished run. Start it: ampedu grade run" in capsys.readouterr().err


def test_several_labs_are_exported_one_by_one_or_as_a_sum(tmp_path, capsys):
    run, students = demo.write(tmp_path / "out", labs=("01_bit_layouts", "02_where_precision_is_lost"))
    most = sum(info.max_points for info in run.exercises)
    (tmp_path / "book.csv").write_bytes(book(row("s00"), points=str(most)))
    assert export(tmp_path / "out", "--canvas", tmp_path / "book.csv") == 1
    assert "--lab total" in capsys.readouterr().err
    given = ("--canvas", tmp_path / "book.csv", "--lab", "total", "--column", "Lab 1")
    assert export(tmp_path / "out", *given) == 0
    done = read((tmp_path / "out/exports/canvas-total.csv").read_bytes())
    assert done[2][6] == f"{students[0].score}.00"
