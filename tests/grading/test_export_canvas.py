"""Filling a gradebook of Canvas: the right cells, no other byte, and what stays as it is."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampedu.grading.export import ExportError, canvas
from ampedu.grading.export.scored import Scored
from tests.grading.gradebooks import encode, read, texts, written

HEAD = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Notes", "Lab 1 (12345)", "Lab 10 (7)", "Final"]
STEMS = ["01_bit_layouts"]


def entry(id, score=5, most=7, status="graded", keys=()):
    return Scored(id, f"Name of {id}", score, most, status, "" if score is not None else "why", [], (id, *keys))


def book(*students, points="7.00", head=HEAD, more=()):
    rows = [head, *more, ["    Points Possible", "", "", "", "", "", points, "10", "(read only)"], *students]
    return written([[encode(text, ",", False) for text in row] for row in rows])


def row(id, sis="", login="", grade="", name="Doe, Jane"):
    return [name, id, sis, login, "Sec 1", "", grade, "", "80"]


def fill(content, entries, **options):
    return canvas.fill(content, "book.csv", entries, STEMS, **options)


def grades(done):
    return {line[1]: line[6] for line in read(done.content)[2:]}


@st.composite
def gradebooks(draw):
    """Encoded cells, entries, and the encoded cells as they should be afterwards."""
    delimiter = draw(st.sampled_from(",;"))
    comma = delimiter == ";" and draw(st.booleans())
    most = draw(st.integers(1, 40))
    number = draw(st.integers(0, 12))
    ids = draw(st.lists(st.integers(1, 10**7).map(str), min_size=number, max_size=number, unique=True))
    rows, wanted, entries = [], [], []
    for id in ids:
        name, login, note = draw(texts), draw(texts.filter(lambda text: text.strip() not in ids)), draw(texts)
        old = draw(st.sampled_from(["", "", "", "3", "EX", "N/A"]))
        quoted = draw(st.lists(st.booleans(), min_size=9, max_size=9))
        if "Points Possible" in name:
            name = "somebody"
        cells = [name, id, "", login, "Sec 1", note, old, "", "80"]
        encoded = [encode(text, delimiter, flag) for text, flag in zip(cells, quoted, strict=True)]
        rows.append(encoded)
        wanted.append(list(encoded))
        kind = draw(st.sampled_from(["graded", "graded", "infra", "nobody"]))
        score = draw(st.integers(0, most)) if kind == "graded" else None
        if kind != "nobody":
            entries.append(entry(id, score, most, kind))
        if score is not None and old == "":
            text = f"{score}.00".replace(".", "," if comma else ".")
            wanted[-1][6] = encode(text, delimiter, quoted[6])
    entries += [entry(f"ghost{n}", 1, most) for n in range(draw(st.integers(0, 2)))]
    points = f"{most}.00".replace(".", "," if comma else ".")
    second = ["    Points Possible", *[""] * 5, points, "", ""]
    head = [[encode(text, delimiter, False) for text in line] for line in (HEAD, second)]
    layout = (delimiter, draw(st.sampled_from(["\r\n", "\n"])), draw(st.booleans()), draw(st.booleans()))
    return written([*head, *rows], *layout), draw(st.permutations(entries)), written([*head, *wanted], *layout)


@given(gradebooks())
def test_fills_exactly_the_grades_and_no_other_byte(case):
    template, entries, expected = case
    done = fill(template, entries)
    assert done.content == expected
    told = [*done.filled, *done.same, *(kept[0] for kept in done.kept), *(left.entry for left in done.left)]
    assert sorted(one.student_id for one in told) == sorted(one.student_id for one in entries)


def test_a_grade_that_stands_there_is_replaced_only_on_demand():
    content = book(row("1", grade="5"), row("2", grade="4.5"), row("3", grade="ex"), row("4", grade="N/A"))
    entries = [entry(id) for id in "1234"]
    done = fill(content, entries)
    assert done.content == content
    assert [one.student_id for one in done.same] == ["1"]
    assert [(one.student_id, old, new) for one, old, new in done.kept] == [("2", "4.5", "5.00")]
    assert {left.entry.student_id for left in done.left} == {"3", "4"}
    # An excuse, and an assignment that is not the student's, are no grades: they stay in any case.
    assert grades(fill(content, entries, overwrite=True)) == {"1": "5", "2": "5.00", "3": "ex", "4": "N/A"}


def test_students_are_found_by_sis_and_login_and_by_the_roster():
    content = book(row("11", sis="S1"), row("12", login="Jane.Doe@x.edu"), row("13"))
    done = fill(content, [entry("S1", 1), entry("jane.doe@x.edu", 2), entry("max", 3, keys=("13",))])
    assert grades(done) == {"11": "1.00", "12": "2.00", "13": "3.00"}


def test_an_id_that_means_two_rows_fills_none_until_one_says_which():
    content = book(row("1", sis="2"), row("2", sis="3"))
    done = fill(content, [entry("2")])
    assert grades(done) == {"1": "", "2": ""}
    assert "line 3 (SIS User ID) and line 4 (ID)" in done.left[0].reason
    assert grades(fill(content, [entry("2")], by="ID")) == {"1": "", "2": "5.00"}
    assert grades(fill(content, [entry("2")], by="SIS User ID")) == {"1": "5.00", "2": ""}


def test_two_students_of_one_row_both_stay_out():
    done = fill(book(row("1", sis="S1")), [entry("1", 1), entry("S1", 2), entry("gone")])
    assert grades(done) == {"1": ""}
    assert [left.entry.student_id for left in done.left] == ["gone", "1", "S1"]
    assert done.others == 1


@pytest.mark.parametrize(
    ("score", "most", "points", "expected"),
    [(5, 7, "10", "7.14"), (1, 8, "1", "0.13"), (1, 8, "100,00", "12,50"), (0, 7, "10", "0.00"), (7, 7, "10", "10.00")],
)
def test_scaling_rounds_half_up(score, most, points, expected):
    # 5/7 × 10 = 7.142…, 1/8 = 0.125
    done = fill(book(row("1"), points=points), [entry("1", score, most)], scale=True)
    assert grades(done) == {"1": expected}
    value = Fraction(expected.replace(",", "."))
    assert abs(value - Fraction(score, most) * Fraction(points.replace(",", "."))) <= Fraction(1, 200)


def test_last_and_first_names_and_the_row_of_postings():
    head = ["LastName", "FirstName", "ID", "SIS Login ID", "Section", "Notes", *HEAD[6:]]
    posting = ["", "", "", "", "", "", "Manual Posting", "", ""]
    content = book(["Doe", "Jane", "1", "jd", "Sec 1", "", "", "", ""], head=head, more=[posting])
    done = fill(content, [entry("1")])
    assert read(done.content)[3][6] == "5.00"
    assert read(done.content)[1] == posting


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"points": "10"}, {}, "allows 10 points, and these labs have 7. .*--scale"),
        ({"points": "0"}, {}, "allows no points"),
        ({"points": ""}, {"scale": True}, "does not say how many points"),
        ({"points": "(read only)"}, {}, "is read-only"),
        ({"head": ["Name", *HEAD[1:]]}, {}, "not a gradebook of Canvas.*Export"),
        ({"head": [*HEAD[:6], "Exercise (12345)", *HEAD[7:]]}, {}, "no assignment that is clearly meant.*Exercise"),
        ({"head": [*HEAD[:7], "Lab 01 again (8)", *HEAD[8:]]}, {}, 'more than one assignment.*"Lab 01 again'),
        ({}, {"column": "Lab 2"}, "no assignment of the name 'Lab 2'"),
        ({}, {"by": "Email"}, "the column 'Email' is not there"),
    ],
)
def test_what_cannot_be_filled_says_what_to_do(change, options, words):
    with pytest.raises(ExportError, match=words):
        fill(book(row("1"), **change), [entry("1")], **options)


def test_the_sum_of_labs_needs_a_column():
    with pytest.raises(ExportError, match="--column"):
        canvas.fill(book(row("1")), "b.csv", [entry("1")], ["01_bit_layouts", "02_x"])
    done = canvas.fill(book(row("1")), "b.csv", [entry("1")], ["01_bit_layouts", "02_x"], column="Lab 1")
    assert grades(done) == {"1": "5.00"}


def test_a_row_that_is_too_short_is_named():
    with pytest.raises(ExportError, match="line 3: 2 cells"):
        fill(book(["Doe", "1"]), [entry("1")])
