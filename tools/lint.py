"""Format of sources and generated notebooks: `python -m tools.lint [STEM…] [--fix]`."""

import argparse
import re
import sys
from pathlib import Path

from tools import cell_rules, link_rules, output_rules, page
from tools import notebook as files
from tools.assemble import COLAB, KERNELSPEC, LANGUAGE
from tools.percent import HEADER
from tools.project import TARGET_FOLDER, BuildError, Project

TAGS = re.compile(r"tags=\[([^\]]*)\]")
RUNNER_KEYS = ("papermill", "execution", "ExecuteTime", "vscode", "trusted", "collapsed")


def lint(project: Project, stems: tuple[str, ...] = ()) -> list[str]:
    """All format problems, or those of `stems`, one sentence each."""
    found: list[str] = []
    pages = []
    for target in project.targets(stems):
        try:
            pages.append(page.load(project, target))
        except BuildError as error:
            found += [problem for problem in str(error).split("\n") if problem not in found]
    for each in pages:
        found += [problem for problem in cell_rules.problems(each) if problem not in found]
        found += output_rules.problems(each)
    found += check_metadata(project, stems)
    if not stems:
        found += [problem for problem in link_rules.check_quizzes(project, pages) if problem not in found]
    return found + [problem for problem in link_rules.check_links(project, pages) if problem not in found]


def notebooks(project: Project, stems: tuple[str, ...] = ()) -> list[Path]:
    """Generated notebooks that exist."""
    paths = (path for folder in TARGET_FOLDER.values() for path in sorted((project.root / folder).glob("*.ipynb")))
    return [path for path in paths if not stems or path.stem in stems]


def check_metadata(project: Project, stems: tuple[str, ...] = ()) -> list[str]:
    """Kernel, language, Colab preset, ids, and no traces of runners or widgets in the generated notebooks."""
    found = []
    for path in notebooks(project, stems):
        try:
            text = path.read_text(encoding="utf-8")
            fixed = files.dumps(fixed_notebook(files.load(path), path.stem))
        except (ValueError, KeyError, TypeError, AttributeError):
            found.append(f"{project.name(path)} is not a notebook; run `make build`.")
            continue
        if fixed != text:
            found.append(f"{project.name(path)}: metadata, ids or layout are off; run `python -m tools.lint --fix`.")
    return found


def fixed_notebook(notebook: dict, stem: str) -> dict:
    """`notebook` with the kernel, the Colab preset and the ids that all notebooks have, without traces of runners."""
    ours = notebook.get("metadata", {}).get("ampedu", {})
    notebook["metadata"] = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE, **COLAB, "ampedu": ours}
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    for n, cell in enumerate(notebook["cells"], 1):
        cell["id"] = f"{stem}-{n:03d}"
        kept = {key: value for key, value in cell["metadata"].items() if key not in RUNNER_KEYS}
        if not kept.get("tags", True):
            del kept["tags"]
        cell["metadata"] = kept
    return notebook


def fixed_source(text: str) -> str:
    """A percent script with mechanical faults cured: line ends, trailing blanks and semicolons, tags given twice."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    for n, line in enumerate(lines):
        if HEADER.match(line):
            lines[n] = TAGS.sub(_unique_tags, line)
        elif line.endswith(";") and not line.startswith("#") and _ends_cell(lines, n):
            lines[n] = line.rstrip(";").rstrip()
    return "\n".join(lines).rstrip("\n") + "\n"


def fix(project: Project, stems: tuple[str, ...] = ()) -> list[Path]:
    """Repair what is mechanical in sources and notebooks; returns the files that changed."""
    changed = []
    for source in sorted({target.source for target in project.targets(stems)}):
        if files.write_text(source, fixed_source(source.read_text(encoding="utf-8"))):
            changed.append(source)
    for path in notebooks(project, stems):
        try:
            text = files.dumps(fixed_notebook(files.load(path), path.stem))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # not a notebook: `lint` says so
        if files.write_text(path, text):
            changed.append(path)
    return changed


def _unique_tags(match: re.Match) -> str:
    tags = list(dict.fromkeys(part.strip() for part in match[1].split(",") if part.strip()))
    return f"tags=[{', '.join(tags)}]"


def _ends_cell(lines: list[str], n: int) -> bool:
    rest = next((line for line in lines[n + 1 :] if line), None)
    return rest is None or bool(HEADER.match(rest))


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.lint", description="Check the format of all notebooks.")
    parser.add_argument("stems", nargs="*", metavar="STEM", help="only these, for example 01_bit_layouts")
    parser.add_argument("--fix", action="store_true", help="repair what is mechanical, then check")
    options = parser.parse_args(arguments)
    project = Project(Path(__file__).resolve().parent.parent)
    try:
        for path in fix(project, tuple(options.stems)) if options.fix else []:
            print(f"fixed {project.name(path)}")
        found = lint(project, tuple(options.stems))
    except BuildError as error:
        found = str(error).split("\n")
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
