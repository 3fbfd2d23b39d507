"""Does the sandbox keep its promises on this machine? A probe inside of it tries to break each of them."""

import os
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

from ampedu.grading import confine, syscalls
from ampedu.grading.confine import SandboxError

ANYWAY = "Or grade unprotected, which lets submissions do whatever you can do here: --sandbox none"


class Row(NamedTuple):
    """One promise: its name, whether it is kept, and what was seen."""

    name: str
    ok: bool
    text: str


PROBE = '''
import ctypes, errno, glob, os, resource, signal, socket

def refused(action, *arguments):
    """[kept, what happened]: the promise is kept if the action fails."""
    try:
        result = action(*arguments)
    except (OSError, ValueError) as error:
        return [True, type(error).__name__ + ": " + str(error)[:80]]
    return [False, "succeeded: " + repr(result)[:80]]

def connect(address):
    with socket.socket() as s:
        s.settimeout(2)
        s.connect(address)

def writing(path):
    fd = os.open(path, os.O_WRONLY)
    os.close(fd)

def creating(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.close(fd)

def ptrace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, 1, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def user_namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def reading(path):
    return os.listdir(path) if os.path.isdir(path) else open(path).read(1)

def filling():
    try:
        for number in range(4):
            with open(f"/tmp/filler{number}", "wb") as file:
                file.write(bytes(SCRATCH // 2))
    finally:
        for path in glob.glob("/tmp/filler*"):
            os.unlink(path)

def allocating():
    try:
        return len(bytearray(64 << 30))
    except MemoryError:
        raise OSError("a MemoryError for 64 GiB") from None

def forking():
    children = []
    try:
        for _ in range(200):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return len(children)

def probe():
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
    packages = os.path.dirname(resource.__file__) + "/planted"
    answers = [path for path in HIDDEN if os.path.lexists(path)] + glob.glob("/course/**/expected*", recursive=True)
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGINT)
    return {
        "an unprivileged user": [os.getuid() != 0 and int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0,
                                 f"uid {os.getuid()}, CapEff {status['CapEff'].strip()}"],
        "no new privileges": [status["NoNewPrivs"].strip() == "1", status["NoNewPrivs"].strip()],
        "no other processes": [not others, f"sees {others}"],
        "no network": refused(connect, ("8.8.8.8", 53)),
        "no connection to this machine": refused(connect, ("127.0.0.1", 22)),
        "the root folder is read-only": refused(creating, "/planted"),
        "the system is read-only": refused(creating, "/usr/lib/planted"),
        "the packages are read-only": refused(creating, packages),
        "the course is read-only": refused(creating, "/course/planted"),
        "devices cannot be made": refused(creating, "/dev/planted"),
        "kernel settings cannot be changed": refused(writing, "/proc/sys/kernel/core_pattern"),
        "no user namespaces inside": refused(user_namespace),
        "risky system calls are filtered": [status["Seccomp"].strip() == str(FILTER), status["Seccomp"].strip()],
        "the worker cannot be traced": refused(ptrace),
        "the worker's memory cannot be read": refused(open, "/proc/1/mem", "rb"),
        "the worker's descriptors cannot be seen": refused(os.listdir, "/proc/1/fd"),
        "the worker's variables cannot be read": refused(open, "/proc/1/environ", "rb"),
        "the scratch folder is bounded": refused(filling),
        "memory is bounded": refused(allocating),
        "processes are bounded": refused(forking),
        "nothing left of others": [not os.listdir("/tmp") and not os.listdir("/dev/shm"), repr(os.listdir("/tmp"))],
        "answers, secret and others' work are not there": [not answers, f"sees {answers}"],
    }
'''


PLANTING = """
import os, time
def probe():
    open("/tmp/planted", "w").close()
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    return []
"""
LOOKING = """
import os
def probe():
    own = ("1", str(os.getpid()))
    return [os.listdir("/tmp"), [name for name in os.listdir("/proc") if name.isdigit() and name not in own]]
"""


def source(hidden) -> str:
    """The probe's source; ``hidden``: paths that must not exist inside."""
    paths = [os.path.realpath(path) for path in hidden]
    filter_mode = 2 if syscalls.program() else 0
    return f"HIDDEN = {paths!r}\nFILTER = {filter_mode}\nSCRATCH = {confine.SCRATCH_BYTES}\n{PROBE}"


def rows(observed) -> list[Row]:
    """The promises, from what the probe gave back."""
    if len(observed.outcomes) != 1 or "value" not in observed.outcomes[0]:
        seen = observed.definition or (observed.outcomes[0] if observed.outcomes else observed.reason)
        return [Row("the probe", False, f"gave no answer: {str(seen)[:200]}")]
    return [Row(name, bool(ok), str(text)) for name, (ok, text) in observed.outcomes[0]["value"].items()]


def choose(wanted: str, hidden) -> str:
    """ "bwrap" or "none", as asked for and possible. Raises SandboxError with the cure."""
    if wanted == "none":
        return "none"
    if wanted not in ("auto", "bwrap"):
        raise SandboxError(f"there is no sandbox {wanted!r}. Use auto, bwrap or none.")
    if sys.platform != "linux":
        raise SandboxError(f"bubblewrap needs Linux: grade in a Linux machine, a container, or WSL. {ANYWAY}")
    if shutil.which("bwrap") is None:
        raise SandboxError(f"bubblewrap is not installed: apt install bubblewrap (or dnf, pacman, zypper). {ANYWAY}")
    if found := confine.exposed(confine.view(), hidden):
        raise SandboxError(
            f"{found[0]} lies in a folder that Python needs, so that submissions could read it. Move it elsewhere, "
            "or use an environment that does not contain it."
        )
    return "bwrap"


def version() -> str:
    """What bwrap calls itself."""
    done = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip() or "unknown version"


def report() -> tuple[list[Row], bool]:
    """All rows of `ampedu doctor --grading`, and whether submissions can be graded in the sandbox here."""
    from ampedu.grading import course
    from ampedu.grading.sandbox import Sandbox, SandboxDied

    try:
        hidden = course.answer_keys(course.find())
        found = [Row("the course's repository", True, str(course.find()))]
    except course.CourseError as error:
        hidden, found = [], [Row("the course's repository", False, str(error))]
    try:
        choose("bwrap", hidden)
        seen = confine.view()
        how = "root starts it as an unprivileged user" if os.geteuid() == 0 else "started as you"
        found.append(Row("sandbox", True, f"{version()}, {how}"))
        found.append(Row("interpreter inside", True, seen.python))
        found.append(Row("folders inside, read-only", True, ", ".join(seen.binds)))
        began = time.monotonic()
        with Sandbox("bwrap", ()) as sandbox:
            sandbox.start()
            found.append(Row("start with torch", True, f"{time.monotonic() - began:.1f} s"))
            sandbox.probe(PLANTING)
            after = sandbox.probe(LOOKING).outcomes
            clean = after == [{"value": [[], []]}] and sandbox.starts == 1
            found.append(Row("one warm worker, clean for the next unit", clean, f"starts: {sandbox.starts}"))
            found += rows(sandbox.probe(source(hidden)))
    except (SandboxError, SandboxDied) as error:
        found.append(Row("sandbox", False, str(error)))
    return found, all(row.ok for row in found)
