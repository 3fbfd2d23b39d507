import tomllib
from pathlib import Path

import pytest

from tests.tools.conftest import LESSON, ROWS, write
from tools import coverage
from tools.project import BuildError, Project

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_is_settled_here_and_planned_there(project):
    assert coverage.problems(project) == []
    text = coverage.render(project)
    row = "| C01 | Doubling works | [01_bits-004](../notebooks/01_bits.ipynb) · 02_more (planned) |"
    assert row in text
    assert "1 of 1 rows are settled" in text


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("sources/lessons/01_bits.py", '"C01"', '"C02"', "no row C02 in docs/claims.toml"),
        ("sources/lessons/01_bits.py", ', "C01"', "", "row C01 is settled by no cell of lesson 01 and not planned"),
        ("docs/planned.toml", '"C01"', "", "row C01 is settled by no cell of lesson 02 and not planned"),
        ("docs/planned.toml", "02_more", "01_bits", "row C01 is planned for 01_bits but settled there"),
        ("docs/planned.toml", "02_more", "03_else", 'row C01 does not list lesson "03"'),
        ("docs/claims.toml", '"01", "02"', '"02"', 'row C01 does not list lesson "01"'),
    ],
)
def test_rows_that_are_nowhere_or_twice_or_unknown(project, file, old, new, words):
    path = project.root / file
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    assert any(words in problem for problem in coverage.problems(project))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROWS + ROWS, "given twice"),
        (ROWS.replace("C01", "X01"), 'row id "X01"'),
        (ROWS.replace("claim", "rumor"), "needs a kind"),
        (ROWS.replace("title", "name"), "needs a kind"),
        ("[[row", "correct the TOML"),
    ],
)
def test_a_table_that_is_not_right(project, text, words):
    write(project.root, {"docs/claims.toml": text})
    with pytest.raises(BuildError, match=words):
        coverage.rows(project)


def test_a_broken_source_is_not_reported_as_missing_rows(project):
    write(project.root, {"sources/lessons/01_bits.py": LESSON.replace("x = 3", "x = = 3")})
    assert coverage.problems(project) == []


def test_our_own_table_is_complete():
    """All 63 claims and 78 reports, each with a lesson; the numbers that reports lack were merged into others."""
    rows = coverage.rows(Project(ROOT))
    claims = [ident for ident, row in rows.items() if row["kind"] == "claim"]
    assert claims == [f"C{n:02d}" for n in range(1, 64)]
    assert len(rows) - len(claims) == 78
    assert all(len(row["title"].split()) <= 10 for row in rows.values())
    assert {ident for ident, row in rows.items() if "01" in row["lessons"]} == {
        "C07", "C08", "C09", "C10", "C55", "C56", "C57", "C58", "R02", "R04", "R07",
    }  # fmt: skip


def test_our_own_rows_are_all_settled_or_planned():
    assert coverage.problems(Project(ROOT)) == []


def test_the_plan_names_all_lessons():
    stems = tomllib.loads((ROOT / "docs" / "planned.toml").read_text(encoding="utf-8"))["lessons"]
    written = {path.stem for path in (ROOT / "sources" / "lessons").glob("*.py")}
    numbers = sorted({stem[:2] for stem in [*stems, *written]})
    assert numbers == [f"{n:02d}" for n in range(14)]
