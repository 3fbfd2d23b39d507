"""`make grade-demo`: ten made-up submissions of lab 01, graded with a secret made for the occasion.

``python -m tools.grade_demo [FOLDER]``; by default into build/grade-demo. Right, wrong, blank, damaged and hostile.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from ampedu import cli
from ampedu.exercises import load, of_stem
from ampedu.grading import answers, canaries, course, expected, notebook

ROOT = Path(__file__).resolve().parents[1]
LOOP = "def largest_integer(*args):\n    while True:\n        pass"
EXIT = "def decode(*args):\n    import os\n    os._exit(0)"
LIBRARY = """
def ulp(x, *args):
    import math
    return math.ulp(x)
"""


def students(root: Path = ROOT) -> dict[str, tuple[str, bytes, str]]:
    """By student id: the name, the submitted bytes, and what they are."""
    lab = course.labs(root, "01")[0]
    solution, blank = lab.solution.read_bytes(), lab.blank.read_bytes()
    text = solution.decode()
    right = {id: item.source for id, item in answers.locate(notebook.parse(solution), of_stem(lab.stem)).items()}
    wrong = [_wrong(lab, id) for id in ("01.decode", "01.ulp", "01.encode", "01.quantize")]
    return {
        "ada": ("Ada Lovelace", solution, "all right"),
        "ben": ("Ben Okafor", blank, "the blank lab"),
        "chloe": ("Chloé Martin", _with(text, *wrong[:1]), "one typical mistake"),
        "dev": ("Dev Patel", _with(text, *wrong), "four typical mistakes"),
        "emil": ("Emil Novák", _as_text(text), "all functions stand in text cells, without metadata"),
        "fatima": ("Fatima Zahra", _with(text, LOOP), "a loop without end in one answer"),
        "gus": ("Gus Lindqvist", _with(text, EXIT), "one answer ends the process"),
        "hana": ("Hana Suzuki", solution[: len(solution) // 2], "half a file"),
        "ivo": ("=cmd|'/c calc'!A1", canaries.hostile(lab, root), "attacks the grader, with a formula for a name"),
        "jun": ("Jun Li", _notebook(*list(right.values())[:3], LIBRARY), "three answers, and one from a library"),
    }


def _wrong(lab, id):
    """The first typical wrong answer to an exercise, under the name of the answer."""
    mutant, source = expected.mutants(load(id), lab.mutants)[0]
    name = load(id).answer
    return source if mutant.name == name else f"{source}\n\n{name} = {mutant.name}"


def _with(text, *cells):
    node = json.loads(text)
    node["cells"] += [_cell(source) for source in cells]
    return json.dumps(node).encode()


def _as_text(text):
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    pairs = [("markdown" if source.startswith("def ") else kind, source) for kind, source in cells]
    return json.dumps({"cells": [_cell(source, kind) for kind, source in pairs], "nbformat": 4}).encode()


def _notebook(*cells):
    return json.dumps({"cells": [_cell(source) for source in cells], "nbformat": 4, "nbformat_minor": 5}).encode()


def _cell(source, kind="code"):
    return {"cell_type": kind, "source": source, "metadata": {}}


def write(folder: Path, root: Path = ROOT) -> None:
    """Write the submissions and the roster into a folder; those of an earlier demonstration are replaced."""
    given = folder / "submissions"
    shutil.rmtree(given, ignore_errors=True)
    given.mkdir(parents=True)
    rows = ["student_id,name"]
    for id, (name, content, _) in students(root).items():
        (given / f"{id}.ipynb").write_bytes(content)
        rows.append(f"{id},{name}")
    (folder / "roster.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write, grade, and say where to look; the exit status of grading."""
    folder = Path(arguments[0]) if arguments else Path(os.path.relpath(ROOT / "build/grade-demo"))
    write(folder)
    for id, (_, _, what) in students().items():
        print(f"  {id:<7}{what}")
    secret, out = folder / "secret", folder / "results"
    if not secret.exists() and cli.main(["grade", "make-secret", str(secret)]):
        return 1
    asked = ["grade", "run", "01", str(folder / "submissions"), "-o", str(out), "--secret", str(secret)]
    asked += ["--roster", str(folder / "roster.csv")]
    print("ampedu", *asked, flush=True)
    status = cli.main(asked)
    if status == 0:
        print(f"Open {out / 'class.html'} in a browser; {out / 'feedback/dev.html'} is what a student gets.")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
