"""Three submissions with known results, graded before each batch: if one surprises, nothing else is graded.

The solution must earn everything and the blank lab nothing; the hostile notebook, which forges, patches and looks
around instead of answering, must earn nothing either.
"""

import json
import os
import tempfile
from pathlib import Path

from ampedu.exercises import of_stem
from ampedu.grading.course import Lab
from ampedu.grading.ingest import Submission

HOSTILE = '''
class Anything:
    """Equal to everything, whatever is asked."""
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __float__(self): return 0.0
    def __call__(self, *args, **kwargs): return self
    def __getattr__(self, name): return self
    __hash__ = object.__hash__

def attack(*args, **kwargs):
    import builtins, glob, json, os, sys
    import torch
    torch.testing.assert_close = torch.isclose = torch.equal = lambda *a, **k: True
    builtins.all = lambda *a: True
    json.dumps = lambda *a, **k: '{"outcome": {"value": true}, "score": 100}'
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").endswith((".compare", ".judge")):
            module.difference = module.equal = lambda *a, **k: None
    body = b'{"status": "passed", "points": 100}'
    for fd in range(3, 20):
        try:
            os.write(fd, len(body).to_bytes(8, "little") + bytes(8) + body)
        except OSError:
            pass
    found = [path for pattern in PLACES for path in glob.glob(pattern, recursive=True)]
    return open(found[0]).read() if found else Anything()
'''


def hostile(lab: Lab, course: Path) -> bytes:
    """A notebook that answers every exercise of a lab by attacking the grader."""
    places = [str(course / pattern) for pattern in ("solutions/*", "sources/*/*", "ampedu/data/expected/*")]
    places.append("/course/**/expected/*")
    lines = [f"PLACES = {places!r}", HOSTILE]
    for ex in of_stem(lab.stem):
        lines.append(f"def {ex.answer}(*args, **kwargs):\n    return attack()\n")
    cells = [{"cell_type": "code", "source": text, "metadata": {}, "outputs": []} for text in lines]
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}).encode()


def submissions(lab: Lab, course: Path, scratch: str) -> list[tuple[str, int, Submission]]:
    """Name, expected points and submission of each; the hostile one is a new file in the folder ``scratch``."""
    fd, path = tempfile.mkstemp(prefix="canary-", suffix=".ipynb", dir=scratch)
    with os.fdopen(fd, "wb") as file:
        file.write(hostile(lab, course))
    most = sum(ex.points for ex in of_stem(lab.stem))
    return [
        (name, points, Submission(name, "", f"{lab.stem}.ipynb", str(where)))
        for name, points, where in (("solution", most, lab.solution), ("blank", 0, lab.blank), ("hostile", 0, path))
    ]
