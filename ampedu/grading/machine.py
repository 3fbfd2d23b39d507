"""What a batch takes of this machine: memory for its jobs, and a scratch folder that no killed run leaves for good."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMORY_GIB, LEAST_GIB, SHARE = 4.0, 1.0, 0.9
PREFIX = "ampedu-grading-"


class TooMuch(ValueError):
    """The jobs do not fit into the memory; the text names the cure."""


def fit(jobs: int | None, memory: float | None, total: int | None, cores: int) -> tuple[int, float, str]:
    """(jobs, GiB for a submission, a sentence if they are fewer than usual) that the memory of a machine allows.

    jobs, memory: as asked for, or None: then they are made to fit. total: bytes of memory, or None if unknown.
    Raises TooMuch if what was asked for does not fit, or if there is less than 1 GiB for a job.
    """
    room = SHARE * total / 2**30 if total else float("inf")
    each, most = memory or LEAST_GIB, jobs or cores
    count = jobs or max(1, int(min(cores, room / each)))
    if count * each > room:
        asked = f"{count} jobs of {each:g} GiB" if count > 1 else f"a job of {each:g} GiB"
        fewer = f"--jobs {int(room / each)}" if room >= each and count > 1 else ""
        less = f"--memory {int(10 * room / count) / 10:g}" if room / count >= LEAST_GIB else ""
        cure = f"Give {' or '.join(filter(None, (fewer, less)))}." if fewer or less else "Take a machine with more."
        raise TooMuch(f"{asked} do not fit into {room:.1f} GiB, nine tenths of this machine's memory. {cure}")
    share = memory or (MEMORY_GIB if count * MEMORY_GIB <= room else int(10 * room / count) / 10)
    if count == most and (memory or share == MEMORY_GIB):
        return count, share, ""
    text = f"This machine has {total / 2**30:.1f} GiB of memory: {count} jobs, {share:g} GiB for a submission."
    return count, share, text


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A new temporary folder, removed at the end. It is locked meanwhile, so that ``tidy`` knows it is in use."""
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX)
        fd = _locked(path)
        if fd is not None and os.path.isdir(path):  # else another run has just taken it for a leftover
            break
        if fd is not None:
            os.close(fd)
    try:
        os.chmod(path, 0o755)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def tidy() -> None:
    """Remove scratch folders of runs of this user that were killed: the lock of a process ends with it."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        fd = None
        with contextlib.suppress(OSError):
            fd = _locked(path)
        if fd is not None:
            if os.fstat(fd).st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
            os.close(fd)


def _locked(path):
    """A descriptor that holds the lock of a folder; None if another process does, or if it is no folder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:  # a file system without locks
        os.close(fd)
        raise
    return fd
