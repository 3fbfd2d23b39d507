"""Answers are found whatever was done to the cells around them."""

import pytest

from ampedu.exercises import load
from ampedu.grading import answers
from ampedu.grading.notebook import Cell, Notebook

DECODE, ULP = load("01.decode"), load("01.ulp")
GOOD = "def decode(code, e, m):\n    return bias(e) + code\n"
STUB = 'def decode(code, e, m):\n    raise NotImplementedError("01.decode: Return the value.")\n'
BIAS = "def bias(e):\n    return 2 ** (e - 1) - 1\n"


def located(*cells, ex=DECODE):
    book = Notebook([Cell("code", cell) if isinstance(cell, str) else Cell(*cell) for cell in cells], [])
    return answers.locate(book, [ex]).get(ex.id)


def value(answer):
    space = {}
    exec(answer.source, space)
    return space[answer.name](1, 5, 10)


def test_by_name_with_what_it_needs_and_nothing_else():
    found = located("1 / 0\nprint('demo')", BIAS, GOOD, 'check("01.decode", decode)', "raise SystemExit")
    assert (found.rule, found.name, value(found)) == ("name", "decode", 16)
    assert "SystemExit" not in found.source and "demo" not in found.source


def test_the_last_definition_counts_also_after_the_check():
    found = located("def decode(c, e, m): return 1", 'check("01.decode", decode)', "def decode(c, e, m): return 2")
    assert value(found) == 2 and "2 times" in found.notes[0]


def test_a_helper_that_is_defined_again_after_the_check_is_taken_as_it_was():
    assert value(located(BIAS, GOOD, 'check("01.decode", decode)', "bias = 3")) == 16
    # The answer was moved below the check, so the helper is the last one.
    assert value(located(BIAS, 'check("01.decode", decode)', "def bias(e): return 0", GOOD)) == 1


def test_a_helper_that_stands_below_the_check():
    assert value(located(GOOD, 'check("01.decode", decode)', BIAS)) == 16


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_a_definition_in_a_cell_of_another_type(kind):
    found = located((kind, BIAS), (kind, GOOD))
    assert value(found) == 16 and "not a code cell" in found.notes[0]
    assert located((kind, "The function def decode is below.")) is None


def test_another_name_in_the_call_of_check():
    renamed = GOOD.replace("decode", "mine")
    found = located(BIAS, renamed, STUB, 'check("01.decode", mine)')
    assert (found.rule, found.name, value(found)) == ("check", "mine", 16)
    found = located(BIAS, renamed, 'check("01.decode", lambda *a: mine(*a) + 1)')
    assert (found.rule, value(found)) == ("check", 17)


def test_by_marker_comment():
    other, mine = "# 01.decode_all\ndef other(): return 1", "# my 01.decode:\n" + GOOD.replace("decode", "mine")
    found = located(other, BIAS, mine)
    assert (found.rule, found.name, value(found)) == ("marker", "mine", 16)


def test_a_lambda_or_an_alias_is_a_definition():
    assert value(located("decode = lambda c, e, m: 7")) == 7
    assert value(located(BIAS, GOOD.replace("decode", "mine"), "decode = mine")) == 16


def test_magics_and_broken_cells_do_no_harm():
    cells = ("%matplotlib inline\n!pip install x", "def broken(:", "%%time\n" + BIAS, GOOD + "%time 1")
    assert value(located(*cells)) == 16


def test_what_is_not_there():
    assert located("x = 1") is None
    assert located('exec("def decode(c, e, m): return 1")') is None
    assert located("def decode(c, e, m): return '" + "x" * 70_000 + "'") is None


def test_what_a_person_should_look_at():
    found = located("import struct\ndef decode(c, e, m):\n    return eval('1') + len(struct.pack('e', 1.0))")
    assert found.review == ["uses struct", "uses eval"]
    assert located(BIAS, GOOD).review == []


@pytest.mark.parametrize(
    "cell",
    ["decode = " + "(" * 5_000 + ")" * 5_000, "decode = " + "-" * 50_000 + "1", "decode = " + "1+" * 50_000 + "1",
     "def decode(): return '\ud800'", "decode = 1\x00", " " * 100_000 + "x", "a" * 100_000,
     "decode = [" + "[" * 900 + "]" * 901],
)  # fmt: skip
def test_cells_made_to_break_the_parser_or_to_hold_it_up(cell):
    assert located(cell, BIAS, "# 01.decode\n" + GOOD.replace("decode", "mine")) is not None


def test_normal_form_ignores_comments_layout_and_docstrings_only():
    one = located("def decode(c, e, m):\n    return c+1")
    same = located('def decode(c,e,m):\n    """Says."""\n    # why\n    return (c + 1)')
    other = located("def decode(c, e, m):\n    return c+2")
    assert one.normal == same.normal != other.normal


def test_another_answer_of_the_lab_is_not_confused():
    assert located(BIAS, GOOD, ex=ULP) is None
