"""A running worker, seen from the judge: give it one unit of work at a time, get back plain data or a reason."""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

from ampedu.grading import confine, stage, syscalls, transport
from ampedu.grading.confine import SandboxError

START_SECONDS, STOP_SECONDS, GRACE, MOST_PATIENCE = 120.0, 15.0, 3.0, 4.0
DEFINITION_SECONDS = 10.0
OUTCOMES = ({"value"}, {"error", "text"}, {"timeout"}, {"unsupported"})


class SandboxDied(RuntimeError):
    """The worker itself has ended; a fresh one may do."""


@dataclass
class Observed:
    """What came back of one unit.

    definition: {} if the answer was defined, else {"timeout": s} or {"error", "text", "lines", "forbidden"}, or None if
    nothing came. outcomes: one for each case, as judge.observe gives them. details: for cases with an exception what
    ``definition`` has, else None. end: "ok", "timeout" or "crashed". reason: a sentence unless "ok". tampered: whether
    bytes came that a worker does not write. ended: whether the process ended by itself, so that ``reason`` holds a
    status or signal that it chose.
    """

    definition: dict | None = None
    outcomes: list[dict] = field(default_factory=list)
    details: list[dict | None] = field(default_factory=list)
    end: str = "ok"
    reason: str = ""
    tampered: bool = False
    ended: bool = False


class Sandbox:
    """A worker for the exercises of one lab. Use as a context manager, or call ``close``.

    starts: how often it had to be started. dirty: what the last unit left behind, so that a fresh one is needed.

    kind: "bwrap" or "none". stems: whose exercises are loaded. without: modules that it must not show.
    memory: bytes for all processes of a unit together. seconds: CPU seconds for one process. folder: where its
    temporary files go, by default the system's place. filtered: whether system calls are (see syscalls).
    """

    def __init__(self, kind: str, stems, without=frozenset(), memory: int = 4 << 30, seconds: int = 300, folder=None,
                 filtered: bool = True):  # fmt: skip
        self.kind, self.stems, self.memory, self.seconds = kind, tuple(stems), memory, seconds
        self.without, self.filtered = frozenset(without), filtered
        self.folder = folder
        self.stage = stage.make(self.without, folder)
        self.process = self.control = self.scratch = None
        self.starts, self.dirty = 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        """End the worker and remove its folder."""
        self.stop()
        shutil.rmtree(self.stage, ignore_errors=True)

    def stop(self) -> None:
        """End the worker and all that it started; the next unit starts a fresh one."""
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            if self.kind == "none":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_SECONDS)  # it kills its children when the socket closes
            self.process.kill()
            self.process.wait()
            self.errors.close()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.process = self.control = self.scratch = None

    def start(self) -> dict:
        """Start the worker unless it runs; what it says about itself. Raises SandboxError with its last words."""
        if self.process is not None:
            return self.info
        seen = confine.view()
        self.control, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # closed by stop()
        fd = theirs.fileno()
        environment = confine.environment()
        if self.kind == "none":
            self.scratch = tempfile.mkdtemp(prefix="ampedu-scratch-", dir=self.folder)
            environment |= {"TMPDIR": self.scratch, "HOME": self.scratch}
        command, fds = confine.plain_command(seen, self.stage, fd), [fd]
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            if self.kind == "bwrap":
                number = None
                if self.filtered and (program := syscalls.program()) is not None:
                    file = stack.enter_context(tempfile.TemporaryFile())
                    file.write(program)
                    file.seek(0)
                    number = file.fileno()
                    fds.append(number)
                command = confine.bwrap_command(seen, self.stage, fd, number)
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors,
                    pass_fds=fds, env=environment, start_new_session=True, cwd="/",
                )  # fmt: skip
            except OSError as error:
                raise SandboxError(f"the sandbox cannot be started: {error}") from None
        self.starts += 1
        hello = {
            "sandboxed": self.kind == "bwrap",
            "stems": self.stems,
            "memory": self.memory,
            "seconds": self.seconds,
            "scratch": self.scratch or "/tmp",
        }
        try:
            self.control.sendall(json.dumps(hello).encode() + b"\n")
            self.info = self._reply(START_SECONDS)
        except (OSError, SandboxDied):
            words = self._last_words()
            self.stop()
            raise SandboxError(f"the sandbox did not start: {words}. `ampedu doctor --grading` says more.") from None
        if not self.info["ready"]:
            self.stop()
            raise SandboxError("the worker shares memory with its children, so that submissions could influence others")
        return self.info

    def _last_words(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.errors.seek(0)
        lines = self.errors.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it gave no reason"

    def _reply(self, seconds):
        """One line of JSON from the worker, which never holds bytes of a submission."""
        self.control.settimeout(seconds)
        text = b""
        try:
            while not text.endswith(b"\n"):
                part = self.control.recv(65536)
                if not part:
                    raise SandboxDied("the worker has ended")
                text += part
        except TimeoutError:
            raise SandboxDied("the worker does not answer") from None
        except OSError as error:
            raise SandboxDied(f"the worker cannot be reached: {error}") from None
        finally:
            with contextlib.suppress(OSError):
                self.control.settimeout(None)
        return json.loads(text)

    def observe(
        self, ex, source: str, name: str, cases: list[dict], forbids=None, within: float = 300.0, slack: float = 1.0
    ) -> Observed:
        """Define ``name`` by ``source`` and observe it on the cases of an exercise, all in a process of its own.

        within: seconds that are left for the whole submission. slack: factor on the time limits of the definition and
        of each case. Raises SandboxError, SandboxDied.
        """
        job = {
            "exercise": ex.id,
            "source": source,
            "name": name,
            "cases": cases,
            "forbids": list(ex.forbids if forbids is None else forbids),
            "modules": stage.served(ex, self.without),
            "slack": slack,
        }
        return self._unit(job, len(cases), slack * ex.seconds, within)

    def probe(self, source: str, name: str = "probe", within: float = 60.0) -> Observed:
        """Run ``name()`` as defined by ``source``: plain data about the sandbox, as a submission would see it."""
        job = {"exercise": "", "source": source, "name": name, "cases": [], "forbids": [], "modules": {}, "slack": 1.0}
        return self._unit(job, 1, within, within)

    def _unit(self, job, count, seconds, within):
        self.start()
        with contextlib.ExitStack() as stack:
            read, write = os.pipe()
            stack.callback(os.close, read)
            with tempfile.TemporaryFile() as file:
                file.write(transport.pack(job))
                file.flush()
                file.seek(0)
                try:
                    socket.send_fds(self.control, [b"R"], [file.fileno(), write])
                except OSError as error:
                    self.stop()
                    raise SandboxDied(f"the worker cannot be reached: {error}") from None
                finally:
                    os.close(write)
            try:
                slack, until = job["slack"], time.monotonic() + within
                observed = _collect(_Reader(read), count, slack * DEFINITION_SECONDS, seconds, until)
            except BaseException:
                self.stop()  # the worker still waits for a word: the next unit would take the blame
                raise
            try:
                self.control.sendall(b"E" if observed.end == "crashed" else b"S")
                reply = self._reply(STOP_SECONDS)
            except (OSError, SandboxDied):
                self.stop()
                if observed.end == "ok" and not observed.tampered:
                    return observed
                raise SandboxDied("the worker ended during a unit") from None
        self.dirty = reply["dirty"]
        if self.dirty:
            self.stop()
        return _explained(observed, reply, count, seconds, self.memory)


def patience() -> float:
    """The slack of a second try: how many processes want each core of this machine now, from 1 to 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_PATIENCE, max(1.0, os.getloadavg()[0] / cores))


def _collect(reader, count, defining, seconds, end) -> Observed:
    observed = Observed()
    try:
        observed.definition = _definition(reader.frame(min(end, time.monotonic() + defining + GRACE)))
        if observed.definition:
            observed.end = "timeout" if "timeout" in observed.definition else "ok"
            return observed
        while len(observed.outcomes) < count:
            outcome, details = _outcome(reader.frame(min(end, time.monotonic() + seconds + GRACE)), seconds)
            observed.outcomes.append(outcome)
            observed.details.append(details)
        if any("timeout" in outcome for outcome in observed.outcomes):
            observed.end = "timeout"
    except TimeoutError:
        observed.end = "timeout"
    except EOFError:
        observed.end = "crashed"
    except Exception as error:  # whatever bytes can do to a parser, they do it to their own submission only
        observed.tampered, observed.reason = True, str(error)
    return observed


def _explained(observed, reply, count, seconds, memory):
    """Fill in the cases that did not come back, and say why."""
    missing = count - len(observed.outcomes)
    if observed.definition or not (missing or observed.end != "ok"):
        return observed
    if reply["reason"] == "memory":
        observed.end, observed.reason = "crashed", f"It took more than {memory / 2**30:g} GiB of memory."
    elif observed.end == "crashed":
        ended = reply["ended"]
        how = f"by signal {ended['signal']}" if "signal" in ended else f"with status {ended.get('exit', 'unknown')}"
        observed.reason, observed.ended = f"Its process ended {how} before it had answered.", True
    elif observed.end == "timeout" and missing:
        observed.reason = "It did not stop when its time was over, and had to be killed."
    elif observed.end == "timeout":
        observed.reason = f"At least one case was stopped after {seconds:g} s."
    filler = {
        "timeout": {"timeout": seconds},
        "crashed": {"error": "ProcessEnded", "text": observed.reason},
        "ok": {"unsupported": f"what came back cannot be read: {observed.reason}"[:500]},
    }[observed.end]
    if observed.tampered:
        observed.reason = "What came back is not what an answer sends."  # without what it chose to send
    observed.outcomes += [filler] * missing
    observed.details += [None] * missing
    return observed


class _Reader:
    """Frames from a pipe whose other end is hostile: capped in bytes and in time."""

    def __init__(self, fd):
        self.fd, self.buffer, self.total = fd, bytearray(), 0
        os.set_blocking(fd, False)
        self.poll = select.poll()
        self.poll.register(fd, select.POLLIN)

    def frame(self, until: float):
        """The next frame. Raises TimeoutError, EOFError, or ValueError for what no worker writes."""
        header = self._take(transport.HEADER.size, until)
        return transport.unpack(header, self._take(transport.length(header), until))

    def _take(self, count, until):
        while len(self.buffer) < count:
            left = until - time.monotonic()
            if left <= 0 or not self.poll.poll(left * 1000):
                raise TimeoutError
            part = os.read(self.fd, 1 << 20)
            if not part:
                raise EOFError
            self.buffer += part
            self.total += len(part)
            if self.total > transport.MAX_UNIT:
                raise ValueError("too many bytes")
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken


def _definition(node):
    if type(node) is not dict or type(node.get("definition")) is not dict:
        raise ValueError("not a message of the worker")
    found = node["definition"]
    return found if not found or "timeout" in found else _details(found)


def _details(node):
    lines = node.get("lines") if type(node) is dict else None
    good = type(lines) is list and len(lines) <= 8 and all(type(line) is int and line > 0 for line in lines)
    if not good or type(node.get("error")) is not str or type(node.get("text")) is not str:
        raise ValueError("not a message of the worker")
    forbidden = node.get("forbidden") is True
    return {"error": node["error"][:200], "text": node["text"][:500], "lines": lines, "forbidden": forbidden}


def _outcome(node, seconds):
    if type(node) is not dict or type(outcome := node.get("outcome")) is not dict or set(outcome) not in OUTCOMES:
        raise ValueError("not a message of the worker")
    if any(type(outcome[key]) is not str for key in ("error", "text", "unsupported") if key in outcome):
        raise ValueError("not a message of the worker")
    if "timeout" in outcome:
        outcome = {"timeout": seconds}
    return outcome, _details(node["details"]) if "details" in node else None
