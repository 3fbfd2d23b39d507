"""Between two units of work: kill what runs, empty what can be written, and notice whatever else could be left behind.

In a sandbox the calling process is number 1 of a PID namespace, so that every other process descends from it and is
reparented to it; `kill(-1)` reaches them all, and none can be forked meanwhile because the kernel makes a fork with a
pending signal start again.
"""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

WRITABLE = ("/tmp", "/dev/shm")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_MOST_FILES, _SECONDS = 1000, 2.0
_INODE = 2048  # bytes that the kernel keeps for an empty file, about
_PROC = ("self/oom_score_adj", "self/timerslack_ns", "self/cgroup", "key-users", "keys", "sysvipc/shm", "sysvipc/sem",
         "sysvipc/msg", "net/dev", "net/tcp", "net/tcp6", "net/snmp", "net/netstat")  # fmt: skip
_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
_GETFLAGS = 0x80086601


def protect() -> None:
    """Make this process unreadable and untraceable for others of the same user. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def die_with_parent() -> None:
    """End this process when its parent ends, however that is, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt() -> None:
    """Without a namespace: orphans of the children become children of this process, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shared_mappings() -> list[str]:
    """Memory of this process that children would share with it, and so with later children: there must be none."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if line.split()[1][1] == "w" and line.split()[1][3] == "s"]


def kill_others() -> None:
    """SIGKILL for every other process of the namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def kill_all(child: int, sandboxed: bool, patience: float) -> dict:
    """End and reap everything that descends from this process.

    Returns how ``child`` ended by itself within ``patience`` seconds: {"exit": code}, {"signal": number}, or {}.
    """
    ended, deadline = {}, time.monotonic() + patience
    with contextlib.suppress(ChildProcessError):
        while True:
            info = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                ended = {"exit" if info.si_code == os.CLD_EXITED else "signal": info.si_status}
            if ended or time.monotonic() >= deadline:
                break
            time.sleep(0.002)
    while True:
        if sandboxed:
            kill_others()
        else:
            for pid in _descendants() | {child}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return ended


def _descendants() -> set[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, ValueError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found, size = {os.getpid()}, 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def show_sizes() -> None:
    """Let the worker read this process's exact sizes; like all processes of a unit it has nothing to hide from it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def memory_of_others(limit: int) -> int:
    """Bytes that all other processes of the namespace and the files of the scratch folders take together.

    What processes share counts once for each of them, unless that makes more than ``limit``: then once in all.
    """
    if os.getpid() != 1:
        return 0
    others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    files = sum(_inodes(folder) for folder in WRITABLE) * _INODE
    quick = files + sum(_kib(pid, "status", ("RssAnon", "RssShmem", "VmSwap")) for pid in others) * 1024
    if quick <= limit:
        return quick
    return files + sum(_exact(pid) for pid in others) * 1024


def _exact(pid):
    """Proportional sizes in KiB; a process that does not let itself be read pays for all that it shares."""
    names = ("Pss_Anon", "Pss_Shmem", "SwapPss")
    return _kib(pid, "smaps_rollup", names) or _kib(pid, "status", ("RssAnon", "RssShmem", "VmSwap"))


def _kib(pid, file, names):
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return sum(int(value.split()[0]) for name, value in pairs if name in names)


def _inodes(folder):
    status = os.statvfs(folder)
    return status.f_files - status.f_ffree


def snapshot() -> dict:
    """All state of the sandbox that a unit could have changed and that outlives its processes, except file contents."""
    state = {
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "scheduler": (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        "attributes": _system_call(_SCHED_GETATTR, 56),
        "I/O priority": _system_call(_IOPRIO_GET, 0),
        "host name": os.uname().nodename,
    }
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            state[name] = resource.getrlimit(getattr(resource, name))
    for name in _PROC:
        with contextlib.suppress(OSError):
            state[name] = Path("/proc", name).read_text()
    for folder in WRITABLE:
        status = os.stat(folder)
        state[folder] = (status.st_mode, status.st_uid, status.st_gid, os.listxattr(folder), _flags(folder))
    return state


def _system_call(numbers, size):
    """The result of a call about this process that Python has no function for; None on unknown machines."""
    number = numbers.get(os.uname().machine)
    if number is None:
        return None
    libc = ctypes.CDLL(None)
    if size == 0:
        return libc.syscall(number, 1, 0)  # ioprio_get(IOPRIO_WHO_PROCESS, 0)
    buffer = ctypes.create_string_buffer(size)
    return (libc.syscall(number, 0, buffer, size, 0), buffer.raw)


def _flags(folder):
    import fcntl

    fd = os.open(folder, os.O_RDONLY)
    try:
        return fcntl.ioctl(fd, _GETFLAGS, bytes(8))
    except OSError:
        return None
    finally:
        os.close(fd)


def wipe(before: dict) -> list[str]:
    """Empty the writable folders; names of what differs from the snapshot ``before``. [] means: as if nothing ran."""
    dirty = [folder for folder in WRITABLE if not _emptied(folder)]
    after = snapshot()
    return dirty + sorted(name for name in before if before[name] != after.get(name))


def _emptied(folder):
    """Remove a little; a hostile tree (deep, huge, unreadable) is not worth the time of a sandbox."""
    deadline, count = time.monotonic() + _SECONDS, 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if count > _MOST_FILES or time.monotonic() > deadline:
                    return False
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        os.utime(folder, (0, 0))
        return not os.listdir(folder)
    except (OSError, RecursionError):
        return False
