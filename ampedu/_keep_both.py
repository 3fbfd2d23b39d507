"""Files of the learner: a new version never takes the place of an old one without a numbered copy beside it."""

import os
import shutil
from pathlib import Path


def numbered(path: Path, word: str) -> Path:
    """The first of NAME.word-1.ext, NAME.word-2.ext, … that does not exist; `path` is NAME.ext."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{word}-{number}{path.suffix}")).exists():
        number += 1
    return free


def back_up(path: Path) -> Path:
    """Copies the file to NAME.backup-1.ext (2, 3, …) beside it and returns where that is."""
    backup = numbered(path, "backup")
    shutil.copyfile(path, backup)
    return backup


def replace(path: Path, content: bytes) -> None:
    """Writes the file in one step: whoever reads it sees the old content or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(content)
    os.replace(partial, path)
