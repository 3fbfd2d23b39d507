"""Several processes from a notebook cell, under torch's own launcher."""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

from ampedu import _facts
from ampedu.distributed import packing, processes, task
from ampedu.distributed.errors import DistributedError, DistributedTimeout
from ampedu.distributed.output import Output

POLL_SECONDS = 0.05
ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s*exitcode\s*: (-?\d+)")
SOURCE_LINE = re.compile(r'File "(.+)", line (\d+) in (.+)')


def run_distributed(what, nproc=2, backend="auto", timeout=120, args=(), *, max_restarts=0, quiet=False) -> list:
    """Run a function or a script in `nproc` processes and return what each of them returned, rank 0 first.

    The command is ``python -m torch.distributed.run --standalone --nproc-per-node NPROC …``: the one used in
    production, on one machine.

    what: a function of an importable module, "module:function", "file.py:function", or "script.py". A function finds
    the process group of torch.distributed initialized, and `device()` is its device. A script calls
    init_process_group itself, as under torchrun; what it leaves in a variable `result` is its result.
    backend: "gloo" (CPU), "nccl" (one GPU per rank) or "auto": nccl if there are enough GPUs, else gloo.
    timeout: seconds until everything is stopped. args: plain data for the function, or the script's command line.
    max_restarts: how often torchrun starts all ranks again after one has died. quiet: print nothing.

    Lines that a rank prints appear at once, whole, and tagged "[rank 0]". Which rank is first differs from run to run:
    what must be the same each time is better returned. Arguments and results travel as JSON, bit for bit: None, bool,
    int, float, str, list, tuple, dict with str keys, CPU tensors. Each rank gets its share of the cores.
    No process is left when this returns, raises or is interrupted.

    DistributedError: a rank failed; the message has its traceback. DistributedTimeout: the message says where each
    rank was. TypeError: a function typed in a notebook cell; the message says what to do.
    """
    __tracebackhide__ = True
    try:
        return _run(what, nproc, backend, timeout, args, max_restarts, quiet)
    except (DistributedError, TypeError, ValueError) as error:
        raise error.with_traceback(None) from None  # the way through this file says nothing to a reader


def _run(what, nproc, backend, timeout, args, max_restarts, quiet) -> list:
    job = task.describe(what)
    if not isinstance(nproc, int) or isinstance(nproc, bool) or not 1 <= nproc <= 64:
        raise ValueError(f"nproc is {nproc!r}: give a number of processes from 1 to 64")
    if not isinstance(max_restarts, int) or max_restarts < 0:
        raise ValueError(f"max_restarts is {max_restarts!r}: give a whole number from 0 up")
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}: give seconds, more than 0")
    backend = choose_backend(backend, nproc, quiet)
    job |= {"args": packing.pack(list(args)), "backend": backend}
    folder = Path(tempfile.mkdtemp(prefix="ampedu-"))
    try:
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        return _Run(folder, nproc, backend, max_restarts, quiet).results(timeout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def choose_backend(backend: str, nproc: int, quiet: bool = False) -> str:
    """"gloo" or "nccl" for that many ranks on this machine. ValueError: unknown, or nccl without a GPU for each."""
    from ampedu import device

    if backend not in ("auto", "gloo", "nccl"):
        raise ValueError(f"backend is {backend!r}: use auto, gloo or nccl")
    if backend == "gloo" or (backend == "auto" and device.resolve("auto").partition(":")[0] != "cuda"):
        return "gloo"
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= nproc:
        return "nccl"
    lack = f"{nproc} ranks and {gpus} GPU{'' if gpus == 1 else 's'}: NCCL wants one GPU per rank"
    if backend == "nccl":
        raise ValueError(f"{lack}. Use backend='gloo', which runs on the CPU, or nproc={max(gpus, 1)}.")
    if not quiet:
        print(f"{lack}. The ranks use gloo and the CPU instead; sums, dtypes and byte counts stay the same.")
    return "gloo"


def device() -> str:
    """The device of this rank: "cuda:N" under NCCL, else "cpu"."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if os.environ.get("AMPEDU_BACKEND") == "nccl" else "cpu"


class _Run:
    """One run: its launcher, its folder and its output."""

    def __init__(self, folder, nproc, backend, max_restarts, quiet):
        self.folder, self.nproc = folder, nproc
        self.mark = uuid.uuid4().hex
        self.logs = folder / "logs"
        self.output = Output(self.logs, nproc, quiet)
        env = processes.environment(self.mark, max(1, _facts.cores() // nproc), backend, max_restarts > 0)
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost"),
            *("--nproc-per-node", str(nproc), "--max-restarts", str(max_restarts)),
            *("--log-dir", str(self.logs), "--redirects", "3"),
            *("-m", "ampedu.distributed.rank", str(folder)),
        ]
        with open(folder / "launcher.log", "wb") as log:
            self.launcher = processes.start(command, env, log)

    def results(self, timeout: float) -> list:
        """Wait, print what the ranks print, end everything, and return the results or raise."""
        limit = time.monotonic() + timeout
        stacks = None
        try:
            while self.launcher.poll() is None:
                if time.monotonic() > limit:
                    stacks = self._stacks()
                    break
                self.output.poll()
                time.sleep(POLL_SECONDS)
        finally:
            processes.end(self.launcher, self.mark, self.folder)
            self.output.poll(last=True)
        if stacks is not None:
            lines = "\n".join(f"  {line}" for line in stacks)
            raise DistributedTimeout(f"stopped after {timeout:g} s, all ranks ended. Where they were:\n{lines}", None,
                                     self.output.text)  # fmt: skip
        files = [self.folder / f"result.{rank}.json" for rank in range(self.nproc)]
        if self.launcher.returncode == 0 and all(file.exists() for file in files):
            return [packing.unpack(file.read_text(encoding="utf-8")) for file in files]
        raise self._failure()

    def _failure(self) -> DistributedError:
        reports = [json.loads(file.read_text(encoding="utf-8")) for file in self.folder.glob("error.*.json")]
        reports.sort(key=lambda report: report["when"])
        log = (self.folder / "launcher.log").read_text(encoding="utf-8", errors="replace")
        killed = [(int(rank), int(code)) for rank, code in ENDED.findall(log)]
        # torchrun ends the others by SIGTERM; a report of a rank may be the echo of another's death.
        told = {report["rank"] for report in reports}
        killed = [(rank, code) for rank, code in killed if code != -signal.SIGTERM and rank not in told]
        if killed:
            rank, code = killed[0]
            how = f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code} and no traceback"
            if code == -9:
                how += " (the system does that when memory runs out)"
            said = self.output.errors(rank)
            text = f"rank {rank} {how}; the launcher ended the other ranks" + (f"\n{said}" if said else "")
            return DistributedError(text, rank, self.output.text)
        if reports:
            first, *others = reports
            text = f"rank {first['rank']} raised {first['type']}\n\n[rank {first['rank']}] "
            text += first["text"].replace("\n", f"\n[rank {first['rank']}] ")
            if others:
                also = ", ".join(f"rank {report['rank']} ({report['type']})" for report in others)
                text += f"\n\nAfter it: {also}."
            return DistributedError(text, first["rank"], self.output.text)
        said = "\n".join(filter(None, (self.output.errors(rank) for rank in range(self.nproc)))) or log
        tail = "\n".join(said.strip().splitlines()[-15:])
        return DistributedError(f"the launcher ended with exit code {self.launcher.returncode}:\n{tail}", None,
                                self.output.text)  # fmt: skip

    def _stacks(self) -> list[str]:
        """One line per rank that says where it is, asked of the ranks by a signal."""
        lines = []
        for rank in range(self.nproc):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.kill(int((self.folder / f"pid.{rank}").read_text()), signal.SIGUSR1)
        time.sleep(0.5)
        for rank in range(self.nproc):
            place = "not started yet" if not (self.folder / f"pid.{rank}").exists() else "unknown"
            with contextlib.suppress(OSError):
                place = _place((self.folder / f"stack.{rank}").read_text(encoding="utf-8")) or place
            if (self.folder / f"result.{rank}.json").exists():
                place = "done"
            lines.append(f"rank {rank}: {place}")
        return lines


def _place(stack: str) -> str:
    """The innermost frame outside torch and Python, from faulthandler's lines, and what it called."""
    frames = SOURCE_LINE.findall(stack)
    inside = None
    for file, line, name in frames:
        path = Path(file)
        if "torch" in path.parts or path.parts[:1] == ("<frozen",) or path.parent.name.startswith("python3"):
            if name != "wrapper" and not name.startswith("_"):
                inside = name
            continue
        if path.name == "rank.py" and path.parent.name == "distributed":
            break
        return f"{path.name}, line {line}, in {name}" + (f" (inside {inside})" if inside else "")
    return f"inside {inside}" if inside else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
