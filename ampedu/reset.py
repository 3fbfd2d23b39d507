"""Restores a lab in work/, whole or one answer, and keeps what was there as a numbered backup beside it."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from ampedu._keep_both import back_up, replace

# The build writes this suffix to the nbgrader id of an answer cell.
ANSWER = "-answer"


class ResetError(RuntimeError):
    """The lab cannot be restored; the message says why and what to do."""


def find_course(start: Path | None = None) -> Path:
    """The repository with labs/ and work/: around `start` (default: the current folder), else around this package.

    Raises ResetError if there is none, or if `make learn` has not made work/ yet.
    """
    start = (start or Path.cwd()).resolve()
    for place in (start, *start.parents, Path(__file__).resolve().parent.parent):
        if (place / "labs").is_dir() and (place / "ampedu").is_dir():
            if not (place / "work" / "labs").is_dir():
                raise ResetError(f"{place / 'work'} has no labs yet. Run make learn (or python tools/learn.py) first.")
            return place
    raise ResetError("No course folder here. Go to the folder where you ran make learn, and run the command there.")


def find_lab(course: Path, lab: str) -> str:
    """The stem of a lab from its number ("01", "1"), stem or file name. Raises ResetError for an unknown one."""
    stems = sorted(path.stem for path in (course / "labs").glob("*.ipynb"))
    asked = lab.removesuffix(".ipynb")
    number = asked.zfill(2) + "_" if asked.isdigit() else None
    for stem in stems:
        if stem == asked or (number and stem.startswith(number)):
            return stem
    near = difflib.get_close_matches(asked, stems, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"The labs are: {', '.join(stems) or 'none yet'}."
    raise ResetError(f"There is no lab {lab!r}. {hint}")


def reset(lab: str, exercise: str | None = None, start: Path | None = None) -> str:
    """Restores the lab, or only the answer cell of one exercise ("01.decode" or "decode"); returns what was done.

    What was there is kept as NAME.backup-1.ipynb (2, 3, …) beside it. Raises ResetError with the cure.
    """
    course = find_course(start)
    stem = find_lab(course, lab)
    shipped, mine = course / "labs" / f"{stem}.ipynb", course / "work" / "labs" / f"{stem}.ipynb"
    if exercise is not None:
        return _reset_answer(shipped, mine, stem, exercise)
    if not mine.exists():
        replace(mine, shipped.read_bytes())
        return f"{_name(mine)} was missing and is there again."
    if mine.is_dir():
        raise ResetError(f"{_name(mine)} is a folder. Move it away, and run the command again.")
    if mine.read_bytes() == shipped.read_bytes():
        return f"{_name(mine)} is as it was shipped; nothing to do."
    backup = back_up(mine)
    replace(mine, shipped.read_bytes())
    return f"{_name(mine)} is restored. Your version is {_name(backup)}. Reload the notebook if it is open."


def _reset_answer(shipped: Path, mine: Path, stem: str, exercise: str) -> str:
    wanted = exercise if "." in exercise else f"{stem[:2]}.{exercise}"
    original = _answers(_read(shipped, stem))
    if wanted not in original:
        near = difflib.get_close_matches(wanted, original, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"It has: {', '.join(original) or 'none'}."
        raise ResetError(f"Lab {stem} has no exercise {wanted}. {hint}")
    if not mine.exists():
        raise ResetError(f"{_name(mine)} is missing. Restore the whole lab: ampedu reset {stem[:2]}")
    notebook = _read(mine, stem)
    cell = _answers(notebook).get(wanted)
    if cell is None:
        raise ResetError(
            f"The answer cell of {wanted} is no longer in {_name(mine)}. Restore the whole lab: ampedu reset {stem[:2]}"
        )
    if cell["source"] == original[wanted]["source"]:
        return f"{wanted} is as it was shipped; nothing to do."
    backup = back_up(mine)
    cell.update(source=original[wanted]["source"], outputs=[], execution_count=None)
    replace(mine, (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode())
    return f"{wanted} is restored. Your version is {_name(backup)}. Reload the notebook if it is open."


def _read(path: Path, stem: str) -> dict:
    """The notebook as a dict. Raises ResetError if the file is damaged."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(cell["source"], str | list) and _metadata_is_sound(cell) for cell in notebook["cells"]):
            return notebook
    except OSError as error:
        raise ResetError(f"{_name(path)} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ResetError(f"{_name(path)} is damaged: not a notebook. Restore the whole lab: ampedu reset {stem[:2]}")


def _metadata_is_sound(cell: dict) -> bool:
    metadata = cell.get("metadata", {})
    return isinstance(metadata, dict) and isinstance(metadata.get("nbgrader", {}), dict)


def _answers(notebook: dict) -> dict[str, dict]:
    """Exercise id → its answer cell. Jupyter may have split the source into lines: they are joined here."""
    found = {}
    for cell in notebook["cells"]:
        grade = cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", "")
        if grade.endswith(ANSWER):
            if isinstance(cell["source"], list):
                cell["source"] = "".join(cell["source"])
            found[grade.removesuffix(ANSWER).replace("-", ".", 1)] = cell  # nbgrader allows no dot in its ids
    return found


def _name(path: Path) -> str:
    return "/".join(path.parts[-3:] if "work" in path.parts[-3:] else path.parts[-2:])
