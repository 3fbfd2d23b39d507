"""Filling a grading worksheet of Moodle, in any language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampedu.grading.export import ExportError, moodle
from ampedu.grading.results import ExerciseResult, LabResult
from tests.grading.gradebooks import encode, read, texts, written
from tests.grading.test_export_canvas import entry

ENGLISH = [
    "Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade", "Grade can be changed",
    "Last modified (submission)", "Last modified (grade)", "Feedback comments",
]  # fmt: skip
GERMAN = ["ID", "Vollständiger Name", "E-Mail-Adresse", "Status", "Bewertung", "Bestwertung", "Änderbar", "A", "B", "C"]


def row(id, grade="", most="7.00", word="Participant ", email="", comment=""):
    return [f"{word}{id}", "Jane Doe", email, "Submitted for\ngrading", grade, most, "Yes", "-", "-", comment]


def sheet(*rows, head=ENGLISH, bom=True):
    return written([[encode(text, ",", " " in text) for text in line] for line in (head, *rows)], bom=bom)


def fill(content, entries, **options):
    return moodle.fill(content, "sheet.csv", entries, **options)


def column(done, place=4):
    return [line[place] for line in read(done.content)[1:]]


@st.composite
def worksheets(draw):
    comma = draw(st.booleans())
    word = draw(st.sampled_from(["Participant ", "Teilnehmer/in", "Участник ", "参加者"]))
    most = draw(st.integers(1, 40))
    points = f"{most}.00".replace(".", "," if comma else ".")
    ids = draw(st.lists(st.integers(1, 10**6).map(str), min_size=1, max_size=10, unique=True))
    rows, wanted, entries = [], [], []
    for id in ids:
        old = draw(st.sampled_from(["", "", "2,50" if comma else "2.50"]))
        name, status, comment = f"n {draw(texts)}", f"s {draw(texts)}", draw(texts)
        cells = [f"{word}{id}", name, f"{id}@x.org", status, old, points, "Ja", "-", "-", comment]
        quoted = draw(st.lists(st.booleans(), min_size=10, max_size=10))
        encoded = [encode(text, ",", flag) for text, flag in zip(cells, quoted, strict=True)]
        rows.append(encoded)
        wanted.append(list(encoded))
        kind = draw(st.sampled_from(["number", "email", "infra", "nobody"]))
        score = None if kind == "infra" else draw(st.integers(0, most))
        if kind != "nobody":
            entries.append(entry(f"{id}@X.org" if kind == "email" else id, score, most, kind))
        if score is not None and kind != "nobody" and not old:
            wanted[-1][4] = encode(f"{score}.00".replace(".", "," if comma else "."), ",", quoted[4])
    head = [encode(text, ",", " " in text) for text in draw(st.sampled_from([ENGLISH, GERMAN]))]
    layout = {"end": draw(st.sampled_from(["\r\n", "\n"])), "bom": draw(st.booleans()), "last": draw(st.booleans())}
    return written([head, *rows], **layout), entries, written([head, *wanted], **layout)


@given(worksheets())
def test_fills_exactly_the_grades_and_no_other_byte(case):
    template, entries, expected = case
    assert fill(template, entries).content == expected


def test_comments_are_html_without_what_is_secret_and_stay_if_there_are_some():
    shared = ("T", "failed", 0, 7, "ok")
    item = ExerciseResult("01.f", *shared, "You <b>took</b> \u202e `x`.", error="SECRET", student_error="own")
    lab = LabResult("01_bit_layouts", "graded", 0, 7, [item])
    one, two = (entry(id, 0) for id in "12")
    one.labs.append(lab), two.labs.append(lab)
    content = sheet(row("1"), row("2", comment="mine"))
    done = fill(content, [one, two], comments="Feedback comments")
    assert column(done, 9) == ["01.f: 0 of 7. You &lt;b&gt;took&lt;/b&gt; \\u202e `x`.", "mine"]
    assert column(done) == ["0.00", "0.00"]
    assert column(fill(content, [one, two]), 9) == ["", "mine"]


def test_a_grade_that_stands_there_is_replaced_only_on_demand():
    content = sheet(row("1", "3.00"), row("2", "5.00"))
    done = fill(content, [entry("1"), entry("2")])
    assert done.content == content
    assert [one.student_id for one in done.same] == ["2"]
    assert column(fill(content, [entry("1"), entry("2")], overwrite=True)) == ["5.00", "5.00"]


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], {}, "no students"),
        ([row("1", most="Good\nBad")], {}, "graded with points.*--column"),
        ([row("1", most="10.00")], {}, "'Grade' allows 10 points, and these labs have 7"),
        ([row("1"), row("2")[:6]], {}, "line 4: 6 cells, but the header has 10"),
        ([["Jane", *row("1")[1:]]], {}, "no column holds identifiers.*--by"),
        ([row("1")], {"column": "Note"}, "the column 'Note' is not there"),
        ([row("1")], {"comments": "Kommentar"}, "the column 'Kommentar' is not there"),
    ],
)
def test_what_cannot_be_filled_says_what_to_do(rows, options, words):
    with pytest.raises(ExportError, match=words):
        fill(sheet(*rows), [entry("1")], **options)
