"""Runs every lesson and solution on a bare machine with a GPU: no network, no Jupyter, nothing installed but torch.

    python3 tools/gpu_check.py                          everything on the GPU, at most 8 minutes
    python3 tools/gpu_check.py --only 01_bit_layouts    one lesson and its solution
    python3 tools/gpu_check.py --device cpu             the same on the CPU
    python3 tools/gpu_check.py --keep run.json          the measurements of an earlier run → ampedu/data/recorded/

Every cell runs in order, each notebook in a process of its own. Widgets show their static form. The text of exact
cells (tag nbval-check-output) is compared with the stored outputs. What it found stands in one JSON file. Exit status:
0 if all ran and agreed, 1 if not, 2 for a wrong command line.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
if sys.path and Path(sys.path[0] or ".").resolve() == REPOSITORY / "tools":
    sys.path[0] = str(REPOSITORY)  # modules of tools/ must not stand in for others of the same name

from tools import gpu_check_compare as compare  # noqa: E402 (the path must be set first)
from tools import gpu_check_report as report  # noqa: E402
from tools import notebook as files  # noqa: E402

FOLDERS = ("notebooks", "solutions")
EXACT = "nbval-check-output"
POLL = 0.05  # seconds between two looks at what the child says
START_SECONDS = 120  # for Python and torch to load


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="gpu_check.py", description="Runs every lesson and solution without Jupyter.")
    top.add_argument("--device", default="cuda", help="cuda (default), cuda:1, cpu, …")
    top.add_argument("--out", metavar="FILE", type=Path, help="the report (default: build/gpu-check.json)")
    top.add_argument("--only", metavar="STEM", action="append", default=[], help="only this lesson and its solution")
    top.add_argument("--limit-s", metavar="SECONDS", type=float, default=480, help="for everything (default: 480)")
    top.add_argument("--cell-limit-s", metavar="SECONDS", type=float, default=120, help="for a cell (default: 120)")
    top.add_argument("--keep", metavar="RUN", type=Path, help="run nothing; keep the measurements of an earlier report")
    top.add_argument("--root", metavar="FOLDER", type=Path, default=REPOSITORY, help="another checkout")
    return top


def notebooks(root: Path, only: list[str]) -> list[Path]:
    """The notebooks to run, lesson before solution; SystemExit names a stem that does not exist."""
    found = sorted((path for folder in FOLDERS for path in (root / folder).glob("*.ipynb")), key=lambda p: p.stem)
    stems = sorted({path.stem for path in found})
    if not found:
        raise SystemExit(f"gpu_check: no notebooks in {' and '.join(FOLDERS)}; run `make build` where Jupyter is.")
    if unknown := sorted(set(only) - set(stems)):
        raise SystemExit(f"gpu_check: there is no notebook {unknown[0]}; there are {', '.join(stems)}")
    return [path for path in found if not only or path.stem in only]


class Child:
    """A process that writes events, and is killed with all that it started when its time is over."""

    def __init__(self, arguments: list[str], scratch: Path, environment: dict[str, str]):
        self.events, self.log, self.work = scratch / "events", scratch / "log", scratch / "empty"
        self.work.mkdir()
        self.events.touch()
        self.read = 0
        command = [sys.executable, "-P", "-m", "tools.gpu_check_cells", *arguments, str(self.events)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def next(self, seconds: float) -> dict | None:
        """The next event; None if the process has ended without one. TimeoutError after `seconds`."""
        stop = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            with self.events.open(encoding="utf-8") as events:
                events.seek(self.read)
                line = events.readline()
                if line.endswith("\n"):
                    self.read = events.tell()
                    return json.loads(line)
            if ended:
                return None
            if time.monotonic() > stop:
                raise TimeoutError
            time.sleep(POLL)

    def where(self) -> str:
        """Where the process is now, as its own fault handler tells; empty where that cannot be asked."""
        if not hasattr(signal, "SIGUSR1"):
            return ""
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        lines = self.said().splitlines()
        ours = [number for number, line in enumerate(lines) if "gpu_check_cells" in line]
        return "\n".join(lines[: ours[0]] if ours else lines)

    def said(self) -> str:
        """The end of what the process and its children wrote past Python's streams."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])

    def end(self) -> None:
        """Kills the process and its descendants."""
        if hasattr(os, "killpg"):
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        else:
            self.process.kill()
        self.process.wait()


def environment(root: Path, device: str, scratch: Path, strict: bool) -> dict[str, str]:
    """The caller's environment, without settings of the course and with the checkout on Python's path."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AMPEDU_", "NBGRADER_"))}
    kept |= {
        "AMPEDU_DEVICE": device,
        "AMPEDU_PROGRESS": str(scratch / "progress.json"),
        "MPLBACKEND": "agg",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), str(REPOSITORY), os.environ.get("PYTHONPATH")])),
    }
    return kept | {"AMPEDU_STRICT": "1"} if strict else kept


def machine_facts(options) -> dict:
    """What this machine is and has installed; SystemExit where the device is not there."""
    with tempfile.TemporaryDirectory(prefix="ampedu-") as folder:
        scratch = Path(folder)
        env = environment(options.root, options.device, scratch, False)
        child = Child(["--facts", options.device], scratch, env)
        try:
            facts = child.next(START_SECONDS)
        except TimeoutError:
            facts = {"error": f"torch did not load in {START_SECONDS} s"}
        finally:
            child.end()
        if facts is None:
            facts = {"error": child.said().splitlines()[-1] if child.said() else "Python ended without a word"}
    if "error" in facts:
        raise SystemExit(f"gpu_check: {facts['error']}")
    return facts


def run(path: Path, options, stop: float, sanitize) -> dict:
    """Runs one notebook until `stop` (monotonic seconds): {"path", "seconds", "cells", "recorded", …}."""
    started = time.monotonic()
    cells = [cell for cell in files.load(path)["cells"] if cell["cell_type"] == "code"]
    rows = [{"id": cell.get("id", str(number)), "status": "not run"} for number, cell in enumerate(cells)]
    done = {"path": path.relative_to(options.root).as_posix(), "cells": rows, "recorded": []}
    strict = path.parent.name == "solutions"
    with tempfile.TemporaryDirectory(prefix="ampedu-") as folder:
        scratch = Path(folder)
        env = environment(options.root, options.device, scratch, strict)
        child = Child([str(path)], scratch, env)
        try:
            for cell, row in zip(cells, rows, strict=True):
                try:
                    limit = min(options.cell_limit_s, stop - time.monotonic())
                    result = _result(child, limit, done)
                except TimeoutError:
                    row |= {"status": "failed", "reason": _too_long(limit, options), "traceback": child.where()}
                    break
                if result is None:
                    row |= {"status": "failed", "reason": "the process died", "traceback": child.said()}
                    break
                _note(row, cell, result, sanitize)
                done["recorded"] += [{**item, "cell": row["id"]} for item in result["recorded"]]
            else:
                last = child.next(20)
                done |= last or {}
        except TimeoutError:
            done["note"] = "the process did not end by itself after its last cell"
        finally:
            child.end()
    return done | {"seconds": round(time.monotonic() - started, 2)}


def _result(child: Child, limit: float, done: dict) -> dict | None:
    """The result of the cell that comes next; None if the process died."""
    while True:
        event = child.next(limit)
        if event is None or "done" in event:
            return event


def _too_long(limit: float, options) -> str:
    if limit < options.cell_limit_s:
        return f"the time for everything ({options.limit_s:g} s) was over"
    return f"did not finish in {limit:g} s and was stopped"


def _note(row: dict, cell: dict, result: dict, sanitize) -> None:
    """Puts a cell's result into its row, and compares it if it is exact."""
    row |= {key: result[key] for key in ("status", "seconds", "reason", "traceback") if key in result}
    errors = "".join(output["text"] for output in result["outputs"] if output.get("name") == "stderr")
    if errors:
        row["stderr"] = errors[-2_000:]
    if EXACT in cell["metadata"].get("tags", []) and row["status"] == "ok":
        row["exact"] = True
        if difference := compare.difference(cell["outputs"], result["outputs"], sanitize):
            row |= {"status": "mismatch", **difference}


def not_begun(path: Path, options, why: str) -> dict:
    """What stands in the report for a notebook that was not run."""
    name = path.relative_to(options.root).as_posix()
    return {"path": name, "cells": [], "recorded": [], "seconds": 0.0, "note": f"not begun: {why}"}


def check(options, out: Path) -> dict:
    """Runs everything and returns the report, which is in `out` too; there it grows with every notebook."""
    paths = notebooks(options.root, options.only)
    begun, stop = datetime.datetime.now(datetime.UTC), time.monotonic() + options.limit_s
    facts = machine_facts(options)
    sanitize = compare.sanitizer(REPOSITORY / "tests" / "sanitize.cfg")
    command = f"python tools/gpu_check.py --device {options.device}"
    command += "".join(f" --only {stem}" for stem in options.only)
    head = {"date": begun.date().isoformat(), "command": command, "device": options.device, "limit_s": options.limit_s}
    out.parent.mkdir(parents=True, exist_ok=True)
    done = []
    for number, path in enumerate(paths, 1):
        if time.monotonic() < stop:
            done.append(run(path, options, stop, sanitize))
        else:
            done.append(not_begun(path, options, f"the time for everything ({options.limit_s:g} s) was over"))
        print(report.line(done[-1]), flush=True)
        rest = [not_begun(other, options, "the check itself was ended") for other in paths[number:]]
        document = report.document(head, facts, done + rest)
        out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return document


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = parser().parse_args(arguments)
    options.root = options.root.resolve()
    if options.keep:
        return report.keep(options.keep, options.root)
    # So that a check that is ended from outside ends its children too.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu_check: ended from outside"))
    try:
        print(report.HEAD, flush=True)
        document = check(options, options.out or options.root / "build" / "gpu-check.json")
    finally:
        signal.signal(signal.SIGTERM, before)
    print(report.summary(document))
    print(f"Written to {options.out or 'build/gpu-check.json'}, torch {document['versions']['torch']}.")
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
