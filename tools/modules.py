"""Which modules and data files of ampedu a notebook depends on, and their hashes."""

import ast
import hashlib
import re
from functools import cache
from pathlib import Path

from tools.project import parse_python, read_text

EXERCISE_FILE = re.compile(r"ex\d\d_\w+")
QUIZ = re.compile(r"""\bquiz\(\s*["'](?:quiz/)?(\d\d)\.""")
RECORDED = re.compile(r"""\brecorded\.(?:show|load)\(\s*["'](\d\d\.\w+)""")
CHECK = re.compile(r"""\bcheck\(\s*["'](\d\d)\.""")


def hashes(root: Path, sources: list[str]) -> dict[str, str]:
    """SHA-256 of every ampedu module that the code of a notebook imports, directly or not, and of the data it reads.

    Keys are module names (`ampedu.formats`) and data files (`ampedu/data/quizzes/01_bit_layouts.json`).
    A package counts with all its modules, since packages load them on demand; of the ex files only the ones checked.
    """
    package = root / "ampedu"
    modules: set[str] = set()
    for source in sources:
        modules |= _imports(_parse(source), "", package)
    code = "\n".join(sources)
    for number in CHECK.findall(code):
        modules |= {f"ampedu.exercises.{path.stem}" for path in (package / "exercises").glob(f"ex{number}_*.py")}
    modules = _closure(modules, package)
    files = {name: _file(name, package) for name in modules}
    for data in _data_files(package, list(files.values()), code):
        files[data.relative_to(root).as_posix()] = data
    return {name: digest(path) for name, path in sorted(files.items())}


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes, or an empty string when there is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _closure(names: set[str], package: Path) -> set[str]:
    done: set[str] = set()
    todo = set(names)
    while todo:
        name = todo.pop()
        done.add(name)
        path = _file(name, package)
        more = set(_dependencies(path, name, package))
        if path.name == "__init__.py" and name != "ampedu":
            siblings = (p.stem for p in path.parent.glob("*.py") if p.name != "__init__.py")
            more |= {f"{name}.{stem}" for stem in siblings if not EXERCISE_FILE.fullmatch(stem)}
        todo |= more - done
    return done


def _dependencies(path: Path, name: str, package: Path) -> frozenset[str]:
    shown = path.relative_to(package.parent).as_posix()
    return _dependencies_of_text(read_text(path, shown), name, path.name == "__init__.py", package, shown)


@cache
def _dependencies_of_text(text: str, name: str, is_package: bool, package: Path, shown: str) -> frozenset[str]:
    return frozenset(_imports(parse_python(text, shown), name if is_package else name.rpartition(".")[0], package))


def _imports(tree: ast.AST, package_name: str, package: Path) -> set[str]:
    """Names of the ampedu modules that a tree imports; `package_name` resolves relative imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package_name.split(".")
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name == "ampedu" or name.startswith("ampedu."):
                parts = name.split(".")
                prefixes = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
                found |= {prefix for prefix in prefixes if _file(prefix, package) is not None}
    return found


def _file(name: str, package: Path) -> Path | None:
    """The file of a module of ampedu, or None for a name that is not a module."""
    path = package.joinpath(*name.split(".")[1:])
    for candidate in (path / "__init__.py", path.with_suffix(".py")):
        if candidate.exists():
            return candidate
    return None


def _data_files(package: Path, modules: list[Path], code: str) -> set[Path]:
    """Data read by these modules (their source names the file) and by quiz(...), check(...) and recorded.show(...)."""
    named = {p for folder in ("data", "static") for p in (package / folder).glob("*") if p.is_file()}
    texts = [path.read_text(encoding="utf-8") for path in modules]
    found = {path for path in named if any(path.name in text for text in texts)}
    for number in QUIZ.findall(code):
        found |= set((package / "data" / "quizzes").glob(f"{number}_*.json"))
    recorded = (package / "data" / "recorded" / f"{name}.json" for name in RECORDED.findall(code))
    found |= {path for path in recorded if path.exists()}
    for number in CHECK.findall(code):
        found |= set((package / "data" / "expected").glob(f"{number}_*.*"))
    return found


def _parse(source: str) -> ast.AST:
    """The tree of a cell or module; IPython magics are skipped."""
    if source.startswith("%%"):
        return ast.Module([], [])
    return ast.parse("\n".join("pass" if re.match(r"\s*[%!]", line) else line for line in source.split("\n")))
