"""Hostile text for people: nothing hidden, nothing reordered, no formula."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampedu.grading.report import scrub

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # all of Unicode's Bidi_Control
anything = st.text(st.characters(codec=None), max_size=60)


@given(anything)
def test_nothing_is_left_that_hides_or_reorders(text):
    cleaned = scrub.text(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in cleaned)
    assert scrub.text(cleaned) == cleaned
    cleaned.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_of_any_script_stays(text):
    assert scrub.text(text) == text


@pytest.mark.parametrize("c", [*BIDI, "\x00", "\x1b", "\x7f", "\x85", "\u200b", "\u2028", "\u2029", "\ufeff", "\ud800"])
def test_each_becomes_a_visible_escape(c):
    assert scrub.text(f"a{c}b") == f"a\\u{ord(c):04x}b"


def test_lines_become_one_and_long_text_is_cut():
    assert scrub.text("a\r\nb\tc") == "a  b c"
    assert len(scrub.text("x" * 10_000)) == 4000
    assert scrub.text("abcdef", 4) == "abc…"
    assert scrub.text("a" + "\u0301" * 50) == "a" + "\u0301" * scrub.MAX_MARKS


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", " =", "\u00a0+", "＝", "＋", "－", "＠"])
def test_formulas_are_text(start):
    # OWASP, "CSV Injection": =, +, -, @, tab and carriage return, and their full-width forms.
    assert scrub.cell(f"{start}cmd|'/c calc'!A1").startswith("'")


@given(anything)
def test_no_cell_starts_like_a_formula(text):
    assert not scrub.cell(text).lstrip(" \u00a0\u3000").startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_other_cells_stay():
    assert scrub.cell(None) == ""
    for value in (0, -1, 2.5, "Ann", "a=b", "x-1"):
        assert scrub.cell(value) == value
