"""The process in which `probe` runs expressions. It is not the notebook's, because a mistake here can end it.

Frames on stdin and stdout: 8 bytes of length, then a pickle. Where the system can fork, this process only loads torch
and then lets a child do the work: when a child aborts, the next one is there in milliseconds.
"""

import os
import pickle
import signal
import struct
import warnings

TEXT_LIMIT = 1000
LENGTH = struct.Struct("<Q")


def read(stream) -> bytes | None:
    """The next frame; None at the end of the stream."""
    head = _exactly(stream, LENGTH.size)
    return None if head is None else _exactly(stream, LENGTH.unpack(head)[0])


def write(stream, data: bytes) -> None:
    """Writes one frame."""
    rest = memoryview(LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(stream, rest) :]


def _exactly(stream, count):
    parts = []
    while count:
        part = os.read(stream, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def main() -> None:
    """Serves until stdin ends. Expressions may print: their output goes to stderr, which the notebook keeps."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is meant for the notebook
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if os.name == "nt":
        import msvcrt

        msvcrt.setmode(requests, os.O_BINARY)
        msvcrt.setmode(answers, os.O_BINARY)
    warnings.simplefilter("ignore")
    from ampedu.policy import fake

    fake.prepare()
    write(answers, pickle.dumps(("ready",)))
    if hasattr(os, "fork"):
        _supervise(fake, requests, answers)
    else:
        _serve(fake, requests, answers)


def _supervise(fake, requests, answers):
    """Forks children that serve, one after the other, and reports the signal that ended one."""
    while True:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _serve(fake, requests, answers)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        end = os.waitstatus_to_exitcode(status)
        write(answers, pickle.dumps(("died", end)))


def _serve(fake, requests, answers):
    while (data := read(requests)) is not None:
        seconds, device, dtype, payload = pickle.loads(data)
        _end_after(seconds)
        try:
            answer = ("value", fake.run(payload, device, dtype))
        except BaseException as error:
            answer = ("error", type(error).__name__, _first_paragraph(str(error) or repr(error)))
        _end_after(0)
        write(answers, pickle.dumps(answer))


def _first_paragraph(text):
    """What a person reads: the dispatcher appends forty lines about its tables."""
    return text.split("\n\n")[0][:TEXT_LIMIT]


def _end_after(seconds):
    """Has the system end this process then, whatever it is doing; 0: not any more. Windows: the notebook does it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
