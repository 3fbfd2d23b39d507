"""The build reads exercises without torch; it must read what the package itself registers."""

from pathlib import Path

import pytest

from tools import specs
from tools.project import Project

ROOT = Path(__file__).resolve().parents[2]
STEMS = sorted(path.stem[2:] for path in (ROOT / "ampedu" / "exercises").glob("ex[0-9][0-9]_*.py"))


@pytest.mark.parametrize("stem", STEMS)
def test_agrees_with_the_registry(stem):
    from ampedu.exercises import of_stem

    read = specs.read(Project(ROOT), stem)
    registered = {ex.id: (ex.answer, ex.points, ex.minutes, ex.difficulty) for ex in of_stem(stem)}
    assert {s.id: (s.answer, s.points, s.minutes, s.difficulty) for s in read.values()} == registered
