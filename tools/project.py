"""Where things are: folders, stems, and the settings of [tool.ampedu]."""

import ast
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# Every kind of notebook: where its source is, where it goes, and whether it is executed.
SOURCE_FOLDER = {"lesson": "sources/lessons", "lab": "sources/labs", "solution": "sources/labs"}
TARGET_FOLDER = {"lesson": "notebooks", "lab": "labs", "solution": "solutions"}
EXECUTED = ("lesson", "solution")


class BuildError(Exception):
    """Something that the author can cure; the message is one sentence that names the file, the place and the cure."""


def read_text(path: Path, name: str) -> str:
    """The text of a source. Raises BuildError that names it if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BuildError(f"{name} is not UTF-8 (the byte at position {error.start}); save it as UTF-8.") from None


def parse_python(text: str, name: str) -> ast.Module:
    """The tree of a Python file. Raises BuildError that names the file and the line if it is not Python."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise BuildError(f"{name}, line {error.lineno}: {error.msg}; correct the Python of this file.") from None


@dataclass(frozen=True)
class Target:
    """One generated notebook and the source it comes from."""

    kind: str
    stem: str
    source: Path
    path: Path


@dataclass(frozen=True)
class Project:
    """A checkout of the course. `root` is the folder that holds pyproject.toml."""

    root: Path

    @cached_property
    def settings(self) -> dict:
        """The table [tool.ampedu]: `repository` (an https address without a trailing slash) and `tag`."""
        table = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        settings = table.get("tool", {}).get("ampedu", {})
        for key in ("repository", "tag"):
            if not settings.get(key):
                raise BuildError(
                    f'pyproject.toml: [tool.ampedu] has no "{key}"; add it: badges and the setup cell use it.'
                )
        return settings

    @property
    def repository(self) -> str:
        """The https address of the repository."""
        return self.settings["repository"].rstrip("/")

    @property
    def tag(self) -> str:
        """The tag that the links of this version use."""
        return self.settings["tag"]

    @property
    def slug(self) -> str:
        """`owner/name` of the repository, as Colab's addresses want it."""
        return "/".join(self.repository.split("/")[-2:])

    def name(self, path: Path) -> str:
        """`path` as messages show it: relative to the project, with forward slashes."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name

    def targets(self, stems: tuple[str, ...] = (), kinds: tuple[str, ...] = tuple(SOURCE_FOLDER)) -> list[Target]:
        """All notebooks that the sources give, or those of `stems`; an unknown stem is a BuildError."""
        found = []
        for kind in kinds:
            for source in sorted((self.root / SOURCE_FOLDER[kind]).glob("*.py")):
                path = self.root / TARGET_FOLDER[kind] / f"{source.stem}.ipynb"
                found.append(Target(kind, source.stem, source, path))
        unknown = sorted(set(stems) - {target.stem for target in found})
        if unknown:
            known = ", ".join(sorted({target.stem for target in found})) or "none"
            raise BuildError(f"There is no lesson or lab called {unknown[0]}; sources/ has: {known}.")
        return [target for target in found if not stems or target.stem in stems]
