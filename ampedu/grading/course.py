"""The instructor's checkout of the course: labs, solutions and typical wrong answers. An installed ampedu has none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class CourseError(RuntimeError):
    """The checkout is missing or incomplete, or has no such lab; the text says what to do."""


@dataclass(frozen=True)
class Lab:
    """One lab in a checkout: its stem and three files."""

    stem: str
    blank: Path
    solution: Path
    mutants: Path


def find(start=None) -> Path:
    """The checkout around ``start`` (default: the current folder), else around this package. Raises CourseError."""
    start = Path(start or Path.cwd()).resolve()
    for place in (start, *start.parents, Path(__file__).resolve().parents[2]):
        if all((place / name).is_dir() for name in ("labs", "solutions", "sources/mutants", "ampedu")):
            return place
    raise CourseError(
        "Grading needs the course's repository with its solutions. Clone it, and run the command inside of it."
    )


def labs(course: Path, wanted: str) -> list[Lab]:
    """The labs that ``wanted`` names: "01", "1", a stem, or "all". Raises CourseError."""
    known = sorted(path.stem for path in (course / "labs").glob("*.ipynb"))
    wanted = str(wanted).removesuffix(".ipynb")
    number = f"{wanted.zfill(2)}_" if wanted.isdigit() else None
    chosen = [s for s in known if wanted in ("all", s) or (number and s.startswith(number))]
    if not chosen:
        raise CourseError(f"There is no lab {wanted!r}. The labs are: {', '.join(known) or 'none yet'}, or all.")
    places = ("labs/{}.ipynb", "solutions/{}.ipynb", "sources/mutants/{}.py")
    found = [Lab(stem, *(course / place.format(stem) for place in places)) for stem in chosen]
    missing = [path for lab in found for path in (lab.solution, lab.mutants) if not path.is_file()]
    if missing:
        raise CourseError(f"{missing[0]} is missing. Run `make build` in the course's repository.")
    return found


def answer_keys(course: Path) -> list[Path]:
    """Folders of a checkout that no submission may read."""
    return [course / name for name in ("solutions", "sources", "ampedu/data/expected", "tests")]
