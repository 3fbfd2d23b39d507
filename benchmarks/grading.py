"""Throughput of grading: copies of the solutions of labs 01 and 05, graded in the sandbox and by nbgrader autograde.

    python benchmarks/grading.py [--copies N] [--jobs N] [--nbgrader PYTHON] [--nbgrader-copies N] [--write FILE]

Both grade the same notebooks in the same run, one after the other, first one lab, then the other. nbgrader runs in a
virtual environment of its own with torch and ampedu of this one; without --nbgrader it is made in a temporary folder
(needs pip and a network). Seconds of grading include everything: start, canaries, reports; expected answers are made
before, as they are once a term. "Per core" divides by the number of jobs; nbgrader has one.
Memory per job: the largest sum of proportional sizes (PSS) of a slot, its worker and what runs in it.
"""

import argparse
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import ampedu
from ampedu.device import this_machine
from ampedu.grading import grade

ROOT = Path(__file__).resolve().parents[1]
LABS = ("01_bit_layouts", "05_dynamic_loss_scaling")


def copies(folder: Path, lab: str, count: int) -> Path:
    """A folder with a folder for each student that holds the solution."""
    for number in range(count):
        place = folder / f"s{number:03}"
        place.mkdir(parents=True)
        shutil.copy(ROOT / f"solutions/{lab}.ipynb", place)
    return folder


class Memory(threading.Thread):
    """Watches the processes below this one; peak: bytes of all of them together, without this one."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.over = 0, threading.Event()

    def run(self):
        """Look five times a second."""
        while not self.over.wait(0.2):
            self.peak = max(self.peak, sum(pss(pid) for pid in below(os.getpid())))


def below(top: int) -> set[int]:
    """All descendants of a process."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found, size = {top}, 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {top}


def pss(pid: int) -> int:
    """The proportional size of a process in bytes; 0 if it may not be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def ours(lab: str, count: int, jobs: int, place: Path):
    """(seconds, bytes a job): of a whole batch; the second run grades everything again."""
    given = copies(place / "given", lab, count)
    grade(lab, copies(place / "first", lab, 1), place / "warm", jobs=jobs, sandbox="bwrap")
    watch = Memory()
    watch.start()
    began = time.perf_counter()
    run = grade(lab, given, place / "out", jobs=jobs, sandbox="bwrap")
    seconds = time.perf_counter() - began
    watch.over.set()
    assert run.counts == {"graded": count} and run.regraded == count, run.counts
    return seconds, watch.peak / jobs


def environment(place: Path) -> Path:
    """The Python of a new virtual environment with nbgrader."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([place / "bin/python", "-m", "pip", "install", "-q", "nbgrader"], check=True)
    return place / "bin/python"


def theirs(python: Path, lab: str, submitted: dict[str, Path], place: Path):
    """(seconds, scores) of `nbgrader autograde` for all submissions of one assignment.

    submitted: the notebook of each student. scores: (points, most) of each student.
    """
    site = ":".join(dict.fromkeys(str(Path(module.__file__).parents[1]) for module in (ampedu, torch)))
    variables = os.environ | {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JUPYTER_CONFIG_DIR": str(place / "jupyter"),
        "OMP_NUM_THREADS": "1",
    }
    # nbgrader's own packages first, then torch's: a .pth file would put them the other way around for some.
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    found = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    (Path(found) / "ampedu-benchmark.pth").write_text("\n".join(site.split(":")) + "\n")
    source = place / "source" / lab
    source.mkdir(parents=True)
    shutil.copy(ROOT / f"solutions/{lab}.ipynb", source)
    (place / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id = 'x'\nc.ExecutePreprocessor.timeout = 300\n"
        "c.ClearSolutions.code_stub = {'python': 'raise NotImplementedError()'}\n"
    )

    def nbgrader(*words):
        command = [python, "-m", "nbgrader", *words]
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-3000:]}")
        return done

    nbgrader("generate_assignment", lab, "--force")
    for student, path in submitted.items():
        target = place / "submitted" / student / lab
        target.mkdir(parents=True)
        shutil.copy(path, target)
    began = time.perf_counter()
    nbgrader("autograde", lab)
    seconds = time.perf_counter() - began
    code = (
        "import json\n"
        "from nbgrader.api import Gradebook\n"
        "with Gradebook('sqlite:///gradebook.db') as book:\n"
        f"    found = book.assignment_submissions({lab!r})\n"
        "    print(json.dumps({one.student.id: (one.score, one.max_score) for one in found}))\n"
    )
    told = subprocess.run([python, "-c", code], cwd=place, env=variables, capture_output=True, text=True, check=True)
    return seconds, {student: tuple(score) for student, score in json.loads(told.stdout.splitlines()[-1]).items()}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nbgrader", metavar="PYTHON", help="of an environment that has nbgrader")
    parser.add_argument("--nbgrader-copies", type=int, default=8)
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    device = this_machine()
    lines = [
        f"{getattr(device, 'name', device)}, {options.jobs} jobs, torch {torch.__version__}, {datetime.date.today()}",
        f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", "",
        f"{'lab':<26}{'grader':<10}{'copies':>7}{'seconds':>9}{'per minute':>12}{'per core':>10}{'MiB a job':>11}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ampedu-benchmark-") as name:
        top = Path(name)
        os.environ |= {"XDG_CACHE_HOME": str(top / "cache"), "XDG_CONFIG_HOME": str(top / "config")}
        python = Path(options.nbgrader) if options.nbgrader else environment(top / "nbgrader")
        for lab in LABS:
            seconds, size = ours(lab, options.copies, options.jobs, top / lab)
            rate = 60 * options.copies / seconds
            own = rate / options.jobs
            lines.append(
                f"{lab:<26}{'ampedu':<10}{options.copies:>7}{seconds:>9.1f}{rate:>12.0f}{own:>10.0f}"
                f"{size / 2**20:>11.0f}"
            )
            given = {f"s{number:03}": ROOT / f"solutions/{lab}.ipynb" for number in range(options.nbgrader_copies)}
            seconds, scores = theirs(python, lab, given, top / f"nbgrader-{lab}")
            rate = 60 * options.nbgrader_copies / seconds
            lines.append(
                f"{lab:<26}{'nbgrader':<10}{options.nbgrader_copies:>7}{seconds:>9.1f}{rate:>12.1f}{rate:>10.1f}"
            )
            told = " ".join(map(str, sorted(set(scores.values()))))
            rough = f"{own / rate:.1f} times nbgrader (a rough figure on a shared machine)"
            lines.append(f"{'':<26}per core {rough}; its scores (points, most): {told}")
            print("\n".join(lines[-3:]), flush=True)
    text = "\n".join(lines)
    print("\n" + text)
    if options.write:
        Path(options.write).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
