"""Cells of a CSV file and their bytes, against Python's csv module and a writer of our own."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ampedu.grading.export import ExportError, csvfile
from tests.grading.gradebooks import encode, read, texts, written

layouts = st.tuples(st.sampled_from(",;\t"), st.sampled_from(["\r\n", "\n"]), st.booleans(), st.booleans())


@st.composite
def tables(draw):
    width = draw(st.integers(2, 5))
    cells = st.tuples(texts, st.booleans())
    rows = draw(st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=6))
    # The header decides on the delimiter: in the files of an LMS it holds words.
    head = [(f"Column {n}", quoted) for n, (_, quoted) in enumerate(rows[0])]
    return [head, *rows]


@given(tables(), layouts)
def test_reads_what_the_csv_module_reads(table, layout):
    delimiter, end, bom, last = layout
    encoded = [[encode(text, delimiter, quoted) for text, quoted in row] for row in table]
    content = written(encoded, delimiter, end, bom, last)
    file = csvfile.parse(content, "f.csv")
    assert file.delimiter == delimiter
    assert [row.texts for row in file.rows] == read(content, delimiter) == [[text for text, _ in row] for row in table]
    assert file.filled({}) == content


@given(tables(), layouts, st.data())
def test_filling_changes_exactly_the_cells_that_are_meant(table, layout, data):
    delimiter, end, bom, last = layout
    places = st.tuples(st.integers(0, len(table) - 1), st.integers(0, len(table[0]) - 1))
    changes = data.draw(st.dictionaries(places, texts, max_size=5))
    encoded = [[encode(text, delimiter, quoted) for text, quoted in row] for row in table]
    before = csvfile.parse(written(encoded, delimiter, end, bom, last), "f.csv")
    for (row, column), text in changes.items():
        # Quotes stay where they are, and appear where the new text needs them.
        encoded[row][column] = encode(text, delimiter, encoded[row][column].startswith(b'"'))
    assert before.filled(changes) == written(encoded, delimiter, end, bom, last)


def test_the_lines_of_rows_count_line_ends_inside_of_cells():
    file = csvfile.parse(b'a,b\r\n"x\r\ny",1\r\n\r\nz,2\r\n', "f.csv")
    assert [row.line for row in file.rows] == [1, 2, 5]


@given(st.binary(max_size=200))
@example(b'a,"b')
@example(b'"a"b,c\n')
@example(b"\xef\xbb\xbf")
@example(b"a\rb\rc")
def test_any_bytes_are_read_or_refused_with_the_name(content):
    try:
        file = csvfile.parse(content, "f.csv")
    except ExportError as error:
        assert "f.csv" in str(error)
    else:
        assert file.filled({}) == content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "f.csv is empty"),
        (b"\r\n\r\n", "f.csv is empty"),
        ("a,b\r\n".encode("utf-16"), "UTF-8"),
        (b'a,b\r\n1,"open\r\n2,3\r\n', "line 2: a quoted cell does not end"),
        (b'a,b\r\n"x"y,3\r\n', "line 2: a quoted cell does not end"),
    ],
)
def test_damage_is_named_with_its_line(content, words):
    with pytest.raises(ExportError, match=words):
        csvfile.parse(content, "f.csv")


def test_other_encodings_keep_their_bytes():
    content = "Name,Grade\r\nZoë €,\r\n".encode("cp1252")
    file = csvfile.parse(content, "f.csv")
    assert file.filled({(1, 1): "7.00"}) == "Name,Grade\r\nZoë €,7.00\r\n".encode("cp1252")


def test_a_cell_that_never_ends_does_not_take_forever():
    with pytest.raises(ExportError):
        csvfile.parse(b'a,b\n"' + b'""x' * 700_000, "f.csv")
