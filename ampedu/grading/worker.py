"""The process inside the sandbox: imports torch once, then forks a child for each unit of work.

A unit is one exercise of one submission. The judge sends two descriptors with each unit, the job and the way back; they
are closed here unread, so that this process never sees a byte that a submission wrote. As process 1 of its namespace it
cannot be killed or stopped from inside, and it is not dumpable, so that its children can neither trace nor read it.
After each unit it kills all other processes, empties the scratch folders, and compares what could have been planted
with what was there before: if anything differs, the judge throws this sandbox away.

Run as ``python -m ampedu.grading.worker FD``; FD is a stream socket. Messages are JSON, one a line.
"""

import contextlib
import dataclasses
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import socket
import sys

from ampedu.exercises import cells, judge, plain, spec
from ampedu.exercises.blocking import ForbiddenImport
from ampedu.exercises.limits import TimeLimit, limited
from ampedu.exercises.state import captured, neutral, reseed
from ampedu.grading import cleaning, transport

DEFINITION_SECONDS = 10.0
WATCH, ENDING = 0.1, 2.0
RUN, STOP, ENDED = b"R", b"S", b"E"
PROCESSES, OPEN_FILES, FILE_BYTES = 64, 256, 64 << 20
_AS_IN_PYTHON = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
}
# What torch imports at first use, which would count as the time of the first case otherwise.
LATE = ("numpy", "safetensors.torch", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch.optim")


class Served(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Modules of ampedu that another exercise of the lab forbids: not on disk here, they come with the job."""

    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        """A spec if the job brought this module."""
        if name in self.modules:
            return importlib.util.spec_from_loader(name, self, is_package=self.modules[name]["package"])
        return None

    def get_source(self, name):
        """The source that came with the job."""
        return self.modules[name]["source"]

    def is_package(self, name):
        """Whether it has submodules."""
        return self.modules[name]["package"]


def observe(job: dict, send) -> None:
    """Define the answer and observe it on all cases; a message for the definition, then one for each case."""
    sys.meta_path.append(Served(job["modules"]))
    # Without an exercise it is a probe of the sandbox: its plain result is the outcome.
    ex = spec.load(job["exercise"]) if job["exercise"] else None
    slack, forbids = job["slack"], tuple(job["forbids"])
    with captured():
        try:
            with neutral():
                reseed()
                how = job["source"], job["name"], forbids, job["exercise"] or "a probe"
                answer = limited(slack * DEFINITION_SECONDS, lambda: cells.namespace(*how))[job["name"]]
        except TimeLimit:
            send({"definition": {"timeout": DEFINITION_SECONDS}})
            return
        except BaseException as error:
            send({"definition": _described(error)})
            return
        send({"definition": {}})
        if ex is None:
            send({"outcome": _probed(answer)})
            return

        def each(outcome, error):
            details = {"details": _described(error)} if "error" in outcome else {}
            send({"outcome": outcome, **details})

        judge.observe(dataclasses.replace(ex, seconds=slack * ex.seconds), answer, job["cases"], each=each)


def _probed(probe):
    try:
        return {"value": plain.freeze(probe())}
    except Exception as error:
        return {"error": type(error).__name__, "text": judge.first_line(error)}


def _described(error):
    lines, trace = [], error.__traceback__
    while trace is not None and len(lines) < 1000:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("<answer "):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return {
        "error": type(error).__name__[:200],
        "text": judge.first_line(error),
        "lines": lines[-8:],
        "forbidden": isinstance(error, ForbiddenImport),
    }


def _limit(memory: int, seconds: int) -> None:
    """Hard limits, set inside: outside they would count the processes of the host's user."""
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, PROCESSES),
        (resource.RLIMIT_AS, memory),
    ]
    if hasattr(resource, "RLIMIT_MSGQUEUE"):
        limits.append((resource.RLIMIT_MSGQUEUE, 0))
    for what, value in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some; Linux refuses none of them
            _, hard = resource.getrlimit(what)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (value, value))


def _child(job_fd, result_fd, hello) -> None:
    """Never returns: does one unit and ends the process."""
    status = 1
    try:
        os.setsid()
        for number, handler in _AS_IN_PYTHON.items():
            signal.signal(number, handler)
        null = os.open(os.devnull, os.O_RDWR)
        for number, fd in enumerate((null, null, null, job_fd, result_fd)):
            os.dup2(fd, number + 100)
        for number in range(5):
            os.dup2(number + 100, number)
        os.closerange(5, 1 << 16)
        os.chdir(hello["scratch"])
        _limit(hello["memory"], hello["seconds"])
        cleaning.show_sizes()
        job = transport.receive(3)
        os.close(3)
        observe(job, transport.Sender(4))
        status = 0
    finally:
        os._exit(status)


def serve(control: socket.socket) -> None:
    """Answer the judge until it closes the socket."""
    hello = _read(control)
    sandboxed = hello["sandboxed"]
    if sandboxed:
        cleaning.protect()
    else:
        cleaning.adopt()
    for name in LATE:
        importlib.import_module(name)
    for stem in hello["stems"]:
        spec.of_stem(stem)
    gc.collect()
    gc.freeze()
    shared = cleaning.shared_mappings() if sandboxed else []
    if sandboxed:
        cleaning.wipe({})  # importing torch leaves an empty folder there
    _write(control, {"ready": not shared, "shared": shared, "pid": os.getpid(), "uid": os.getuid()})
    while True:
        _, fds, _, _ = socket.recv_fds(control, 1, 2)
        if not fds:
            return
        before = cleaning.snapshot() if sandboxed else None
        child = os.fork()
        if child == 0:
            _child(*fds, hello)
        for fd in fds:
            os.close(fd)
        word, reason = _wait(control, hello["memory"])
        ended = cleaning.kill_all(child, sandboxed, patience=ENDING if word == ENDED else 0.0)
        if not word:
            return
        dirty = cleaning.wipe(before) if sandboxed else []
        _write(control, {"ended": ended, "reason": reason, "dirty": dirty})


def _wait(control, memory):
    """The judge's word: STOP, ENDED if the way back was closed, or b"" if the judge is gone; and "memory" or "".

    A unit whose processes take too much memory together is killed meanwhile.
    """
    reason = ""
    control.settimeout(WATCH)
    try:
        while True:
            try:
                return control.recv(1), reason
            except TimeoutError:
                if not reason and cleaning.memory_of_others(memory) > memory:
                    reason = "memory"
                    cleaning.kill_others()
    finally:
        control.settimeout(None)


def _read(control):
    text = b""
    while not text.endswith(b"\n"):
        part = control.recv(65536)
        if not part:
            sys.exit(0)
        text += part
    return json.loads(text)


def _write(control, message):
    control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    serve(socket.socket(fileno=int(sys.argv[1])))
