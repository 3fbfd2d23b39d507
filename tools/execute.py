"""Run a notebook with papermill and our engine, in a process that is killed for certain when its time is over."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from tools import notebook as files

HARD_TIMEOUT = 300  # seconds for a whole notebook
CELL_TIMEOUT = 120  # seconds for a cell
ANSI = re.compile(r"\x1b\[[0-9;]*m")
CELL_LINE = re.compile(r"Cell In\[(\d+)\], line (\d+)")


class NotebookTimeout(Exception):
    """The notebook was killed after `seconds`."""

    def __init__(self, seconds: float):
        super().__init__(f"it did not finish in {seconds:g} s and was killed")
        self.seconds = seconds


class CellError(Exception):
    """A cell raised: `index` in the notebook, `line` within the cell (from 1), `text` is the exception's last line."""

    def __init__(self, index: int, line: int, text: str):
        super().__init__(text)
        self.index, self.line, self.text = index, line, text


def environment(root: Path, scratch: Path) -> dict[str, str]:
    """Environment of a build or test run: CPU, one thread, fixed hash seed, nothing of the user's own settings."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AMPEDU_", "NBGRADER_", "PYTEST_"))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return env | threads | {
        "AMPEDU_DEVICE": "cpu",
        "AMPEDU_PROGRESS": str(scratch / "progress.json"),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(root),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(scratch / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
    }  # fmt: skip


def run(
    notebook: dict,
    root: Path,
    parameters: dict | None = None,
    timeout: float = HARD_TIMEOUT,
    cell_timeout: float = CELL_TIMEOUT,
    extra_env: dict | None = None,
) -> dict:
    """Execute `notebook` in an empty folder and return the notebook as papermill wrote it.

    Without `parameters` no cell is injected. Raises CellError, NotebookTimeout, or RuntimeError when papermill fails.
    """
    with tempfile.TemporaryDirectory(prefix="ampedu-") as folder:
        scratch = Path(folder)
        work = scratch / "empty"
        work.mkdir()
        given, made = scratch / "in.ipynb", scratch / "out.ipynb"
        given.write_text(files.dumps(notebook), encoding="utf-8")
        command = [sys.executable, "-m", "papermill", str(given), str(made), "--engine", "ampedu", "--cwd", str(work)]
        command += ["--no-progress-bar", "--no-request-save-on-cell-execute", "--kernel", "python3"]
        command += ["--execution-timeout", str(int(cell_timeout))]
        for key, value in (parameters or {}).items():
            command += ["-p", key, str(value)]
        env = environment(root, scratch) | (extra_env or {})
        code, log = _run(command, env, work, timeout)
        done = files.load(made) if made.exists() else None
    if done is not None:
        _raise_for_error(done)
    if code != 0 or done is None:
        raise RuntimeError(f"papermill failed: {log.strip().splitlines()[-1] if log.strip() else f'exit code {code}'}")
    return done


def _run(command: list[str], env: dict[str, str], cwd: Path, timeout: float) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise NotebookTimeout(timeout) from None
        finally:
            kill_tree(process)
        log.seek(0)
        return code, log.read()


def kill_tree(process: subprocess.Popen) -> None:
    """Kill a process and all its descendants (a kernel has a session of its own) with SIGKILL."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    for member in [process, *family]:
        try:
            member.kill()
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    process.wait()


def _raise_for_error(done: dict) -> None:
    """Raise CellError for the first cell that failed; papermill's own banner cells do not count."""
    banner = "papermill-error-cell-tag"
    cells = [cell for cell in done["cells"] if banner not in cell["metadata"].get("tags", [])]
    for index, cell in enumerate(cells):
        for output in cell.get("outputs", []):
            if output["output_type"] != "error":
                continue
            trace = ANSI.sub("", "\n".join(output.get("traceback", [])))
            own = [int(line) for count, line in CELL_LINE.findall(trace) if int(count) == cell.get("execution_count")]
            value = next((text for text in reversed(output["evalue"].strip().split("\n")) if text.strip()), "")
            raise CellError(index, own[-1] if own else 1, f"{output['ename']}: {value}".rstrip(": "))
