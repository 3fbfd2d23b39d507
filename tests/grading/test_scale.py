"""A class: 30 submissions, a tenth of them hostile; and, slow, 300, killed in the middle and resumed."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from ampedu.grading import grade, results

from . import hostile
from .hostile_kit import BLANK, DECODE, LAB, ROOT, Hostile, content, notebook_of, right
from .test_hostile import prepared

WRONG = "def decode(*a):\n    return 0.0"


def a_class(count):
    """By id: of ten, one is hostile, one blank, two wrong, and six answer one exercise."""
    bad = [item for group in ("lies", "escapes", "resources") for item in hostile.named((group,)).values()]
    good = Hostile("right", notebook_of(right("01.decode")), DECODE)
    others = [good, Hostile("blank", content(BLANK.read_bytes())), good, Hostile("wrong", notebook_of(WRONG)), good]
    found = {}
    for number in range(count):
        tenth, rest = divmod(number, 10)
        found[f"s{number:03}"] = bad[7 * tenth % len(bad)] if rest == 7 else others[rest % 5]
    return found


def steady(out):
    """The results without times."""
    found = {}
    for path in sorted((out / "results").glob("*.json")):
        node = json.loads(path.read_text())
        for lab in node["labs"]:
            lab["graded_at"] = lab["seconds"] = None
        found[path.name] = node
    return found


def test_thirty_with_three_hostile(inline, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("ampedu.grading.batch._prove", lambda *a: [])
    items = a_class(30)
    given = hostile.written(tmp_path / "given", items)
    seen = []
    run = grade(
        LAB, given, tmp_path / "out", secret_file=prepared(tmp_path, cache), jobs=1, executor=inline,
        progress=lambda done, total, item: seen.append((done, total)),
    )  # fmt: skip
    _, students = results.load_run(tmp_path / "out")
    assert hostile.verdicts(items, students) == {} and len(students) == run.regraded == 30
    assert seen == [(number, 30) for number in range(31)]
    assert hostile.left() == []


SCRIPT = """
    import json, os, threading, time
    from pathlib import Path
    from ampedu.grading import grade

    def memory():
        found = 0
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(entry.read_text().rpartition(")")[2].split()[1]) == os.getpid():  # a slot
                    status = (entry.parent / "status").read_text()
                    found = max(found, *(int(l.split()[1]) for l in status.splitlines() if l.startswith("VmRSS")))
            except (OSError, ValueError):
                pass
        return found

    def progress(done, total, item):
        print(done, memory(), flush=True)

    if __name__ == "__main__":
        grade({lab!r}, {given!r}, {out!r}, secret_file={key!r}, jobs=2, sandbox="bwrap", progress=progress)
"""


def running(tmp_path, out, key, cache):
    script = tmp_path / "run.py"
    names = {"lab": LAB, "given": str(tmp_path / "given"), "out": str(out), "key": str(key)}
    script.write_text(textwrap.dedent(SCRIPT).format(**names))
    variables = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, cwd=ROOT, text=True, env=variables)


@pytest.mark.slow
def test_three_hundred_killed_in_the_middle_and_resumed(bwrap, cache, tmp_path):
    items, key = a_class(300), prepared(tmp_path, cache)
    hostile.written(tmp_path / "given", items)
    with running(tmp_path, tmp_path / "out", key, cache) as process:
        for line in process.stdout:
            if int(line.split()[0]) >= 120:
                break
        process.send_signal(signal.SIGKILL)
    assert 120 <= len(list((tmp_path / "out/results").glob("*.json"))) < 300
    sizes = {}
    for name in ("out", "whole"):
        with running(tmp_path, tmp_path / name, key, cache) as process:
            pairs = [tuple(map(int, line.split())) for line in process.stdout]
        assert process.returncode == 0 and pairs[-1][0] == 300
        sizes[name] = pairs
    assert steady(tmp_path / "out") == steady(tmp_path / "whole")
    run, students = results.load_run(tmp_path / "whole")
    assert hostile.verdicts(items, students) == {} and "infra" not in run.counts
    assert results.load_run(tmp_path / "out")[0].reused >= 100
    # Flat: the last hundred submissions add less than 32 MiB to the larger of the two slots.
    middle = max(size for done, size in sizes["whole"] if 100 <= done <= 200)
    assert max(size for done, size in sizes["whole"] if done > 200) < middle + (32 << 10)
    assert hostile.left() == []
