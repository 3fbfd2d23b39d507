"""Runs the cells of one notebook in this process: ``python -P -m tools.gpu_check_cells NOTEBOOK EVENTS``.

Without arguments but ``--facts DEVICE EVENTS`` it describes the machine instead. EVENTS is a file that gets one JSON
object per line: {"start": index}, then {"done": index, …}. The parent, tools/gpu_check.py, keeps the time.
"""

import ast
import builtins
import faulthandler
import json
import linecache
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
import types
from dataclasses import asdict
from pathlib import Path

from tools import gpu_check_shell, notebook

# What a bare GPU machine may lack: a cell that needs one is skipped, and said, not failed.
OPTIONAL = ("numpy", "matplotlib", "PIL", "tqdm", "IPython", *gpu_check_shell.BLOCKED)
MAGIC = re.compile(r"^\s*([%!]\S+)", re.MULTILINE)
TRACE_LINES = 30


class Skip(Exception):
    """The cell cannot run here; the message says why."""


def bound(tree):
    """The names that a cell sets at its top level."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def used(tree):
    """The names that a cell reads and does not set itself."""
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return read - bound(tree) - parameters - set(dir(builtins))


def missing_package(error):
    """The optional package whose absence raised `error`, or None."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in OPTIONAL:
            return error.name.partition(".")[0]
        if isinstance(error, RuntimeError) and "Numpy is not available" in str(error):
            return "numpy"
        error = error.__cause__ or error.__context__
    return None


class Cells:
    """One notebook's namespace, and what became of its names."""

    def __init__(self, shell):
        self.shell = shell
        self.module = types.ModuleType("__main__")
        self.space = self.module.__dict__
        self.space["__builtins__"] = builtins
        sys.modules["__main__"] = self.module
        self.lost = {}  # name → the cell that failed, or was skipped, before it had set the name

    def run(self, name, source):
        """Runs one cell; returns {"status", "seconds", "outputs"} and, where they belong, "reason" and "traceback"."""
        self.shell.outputs = []
        before = dict(self.space)
        started, tree, result = time.perf_counter(), ast.Module([], []), {"status": "ok"}
        try:
            if magic := MAGIC.search(source):
                raise Skip(f"{magic[1]} needs IPython")
            filename = f"<cell {name}>"
            linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
            tree = ast.parse(source, filename)
            if needed := sorted(used(tree) & self.lost.keys()):
                raise Skip(f"needs {needed[0]}, which cell {self.lost[needed[0]]} was to set")
            self._execute(tree, filename, source)
            synchronize()
        except Skip as skip:
            result |= {"status": "skipped", "reason": str(skip)}
        except BaseException as error:
            if package := missing_package(error):
                result |= {"status": "skipped", "reason": f"{package} is missing on this machine"}
            else:
                result |= {"status": "failed", "reason": last_line(error), "traceback": trace(error)}
        if result["status"] == "ok":
            self.lost = {key: cell for key, cell in self.lost.items() if key not in bound(tree)}
        else:
            stale = (key for key in bound(tree) if self.space.get(key, before) is before.get(key, before))
            self.lost.update(dict.fromkeys(stale, name))
        return result | {"seconds": round(time.perf_counter() - started, 4), "outputs": self.shell.outputs}

    def _execute(self, tree, filename, source):
        info = types.SimpleNamespace(raw_cell=source)
        self.shell.events.trigger("pre_run_cell", info)
        last = tree.body[-1] if tree.body else None
        shown = isinstance(last, ast.Expr) and not source.rstrip().endswith(";")
        body = ast.Module(tree.body[:-1] if shown else tree.body, [])
        exec(compile(body, filename, "exec", dont_inherit=True), self.space)
        if shown:
            value = eval(compile(ast.Expression(last.value), filename, "eval", dont_inherit=True), self.space)
            if value is not None:
                self.space["_"] = value
                self.shell.show(gpu_check_shell.bundle(value), "execute_result")
        self.shell.events.trigger("post_run_cell", types.SimpleNamespace(info=info))


def synchronize():
    """Waits for the GPU, so that its time and its errors belong to the cell that caused them."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def last_line(error):
    """The error in one line."""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


def trace(error):
    """The end of the traceback, without the frames of this file."""
    lines = traceback.format_exception(error)
    kept = [line for line in lines if f'File "{__file__}"' not in line]
    return "\n".join("".join(kept).rstrip().splitlines()[-TRACE_LINES:])


def new_results():
    """What ampedu.recorded has collected since the last call, as plain data."""
    recorded = sys.modules.get("ampedu.recorded")
    return [recorded.as_json(result) for result in recorded.taken()] if recorded else []


def execute(path, events):
    """Runs every code cell of a notebook in order and writes the events."""
    shell = gpu_check_shell.install()
    cells = Cells(shell)
    for index, cell in enumerate(notebook.load(Path(path))["cells"]):
        if cell["cell_type"] == "code":
            say(events, {"start": index})
            result = cells.run(cell.get("id", str(index)), cell["source"])
            say(events, {"done": index, "recorded": new_results(), **result})
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        say(events, {"peak_bytes": torch.cuda.max_memory_allocated()})


def facts(device, events):
    """Describes the machine and what is installed; {"error": …} where the device is not there."""
    import torch

    from ampedu import __version__
    from ampedu.device import DeviceError, resolve, this_machine

    try:
        machine = asdict(this_machine(resolve(device)))
    except DeviceError as error:
        say(events, {"error": str(error)})
        return
    versions = {"ampedu": __version__, "python": platform.python_version(), "torch": torch.__version__}
    versions |= {"system": f"{platform.system()} {platform.machine()}"}
    if machine["backend"] == "cuda":
        versions |= {"CUDA": torch.version.cuda, "cuDNN": str(torch.backends.cudnn.version()), "driver": driver()}
    for name in ("numpy", "matplotlib", "PIL"):
        versions[name] = version(name)
    say(events, {"machine": machine, "versions": versions})


def version(name):
    """The version of a package that can be imported; None where it is missing."""
    try:
        return str(getattr(__import__(name), "__version__", "unknown"))
    except ImportError:
        return None


def driver():
    """The version of the NVIDIA driver, or None where nvidia-smi does not tell."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None


def say(events, event):
    """Writes one event as a line."""
    events.write(json.dumps(event) + "\n")
    events.flush()


def main(arguments):
    """Runs a notebook, or describes the machine."""
    # SIGUSR1 asks where a cell hangs; the answer goes to the process's own stderr, which the parent keeps.
    if hasattr(faulthandler, "register"):
        import signal

        faulthandler.register(signal.SIGUSR1, file=os.dup(2))
    with open(arguments[-1], "a", encoding="utf-8") as events:
        if arguments[0] == "--facts":
            facts(arguments[1], events)
        else:
            execute(arguments[0], events)


if __name__ == "__main__":
    main(sys.argv[1:])
