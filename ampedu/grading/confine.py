"""The command that starts a worker, in bubblewrap or without it: which folders it sees, and as which user it runs."""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ampedu.grading import launcher

SCRATCH_BYTES = 64 << 20
SHARED = ("/nix/store", "/gnu/store", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/bin")
COVERED = ("/tmp", "/dev", "/proc", "/course")  # the sandbox puts something else there: what lies below is moved
SHARED_LINKS = ("/lib", "/lib64", "/lib32", "/bin")
NEEDED = ("torch", "numpy", "safetensors")
_BOOT = (
    "import runpy, sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "runpy.run_module('ampedu.grading.worker', run_name='__main__', alter_sys=True)"
)


class SandboxError(RuntimeError):
    """The sandbox cannot be used on this machine; the text says why and what to do."""


@dataclass(frozen=True)
class View:
    """What the worker sees of this machine, by the real paths outside.

    python: the interpreter. binds: folders. sites: those that hold packages. masked: folders inside of them that must
    look empty.
    """

    python: str
    binds: tuple[str, ...]
    sites: tuple[str, ...]
    masked: tuple[str, ...]

    def inside(self, path: str) -> str:
        """Where a path below one of ``binds`` is found inside bubblewrap: at its own place, unless that is covered."""
        holders = [bind for bind in self.binds if _inside(path, bind)]
        covered = any(_inside(bind, place) for bind in holders for place in COVERED)
        return f"/seen{path}" if covered else path


def view() -> View:
    """The folders that Python and torch need here. Raises SandboxError if a library is missing."""
    python = os.path.realpath(sys.executable)
    prefix = Path(python).parents[1]
    sites = []
    for name in NEEDED:
        found = importlib.util.find_spec(name)
        if found is None or not found.origin:
            raise SandboxError(f"{name} is not installed here. Install what grading needs: pip install 'ampedu[grade]'")
        sites.append(os.path.realpath(Path(found.origin).parents[1]))
    sites = list(dict.fromkeys(sites))
    own = [str(prefix / name) for name in ("bin", "lib", "lib64") if (prefix / name).is_dir()]
    shared = [path for path in SHARED if os.path.isdir(path) and not os.path.islink(path)]
    shared += [path for path in SHARED_LINKS if os.path.isdir(path) and not os.path.islink(path)]
    binds = []
    for path in sorted({*shared, *(os.path.realpath(p) for p in own), *sites}):
        if not any(_inside(path, other) for other in binds):
            binds.append(path)
    masked = [f"{site}/ampedu" for site in sites if os.path.isdir(f"{site}/ampedu")]
    return View(python, tuple(binds), tuple(sites), tuple(masked))


def _inside(path, folder):
    return path == folder or str(path).startswith(str(folder).rstrip("/") + "/")


def exposed(seen: View, secrets) -> list[str]:
    """Those of the paths ``secrets`` that a worker could read in this view: the caller must refuse to grade."""
    found = []
    for path in secrets:
        real = os.path.realpath(path)
        if any(_inside(real, bind) for bind in seen.binds) and not any(_inside(real, mask) for mask in seen.masked):
            found.append(real)
    return found


def environment() -> dict[str, str]:
    """The variables of a worker: nothing of this process's own."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1")
    names = dict.fromkeys(("USER", "LOGNAME"), "student")
    return {"PATH": "/usr/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", **names, **threads}


def plain_command(seen: View, stage: Path, fd: int) -> list[str]:
    """The command of a worker without a sandbox."""
    return _worker(seen.python, [str(stage), *seen.sites], fd)


def _worker(python, folders, fd):
    return [python, "-I", "-S", "-B", "-c", _BOOT, ":".join(folders), str(fd)]


def bwrap_command(seen: View, stage: Path, fd: int, filter_fd: int | None = None) -> list[str]:
    """The command of a worker in bubblewrap; through the launcher if this process is root. Raises SandboxError.

    filter_fd: a descriptor from which bubblewrap reads syscalls.program().
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bubblewrap is not installed. Install it: apt install bubblewrap (or dnf, pacman, zypper)")
    root = os.geteuid() == 0
    folders = {path: f"/mnt/{number}" if root else path for number, path in enumerate(seen.binds)}
    course = "/mnt/course" if root else str(stage)
    command = [bwrap, *_NAMESPACES, "--clearenv"]
    for name, value in environment().items():
        command += ["--setenv", name, value]
    for path in seen.binds:
        command += ["--ro-bind", folders[path], seen.inside(path)]
    for link in SHARED_LINKS:
        if os.path.islink(link):
            command += ["--symlink", os.readlink(link), link]
    for path in map(seen.inside, seen.masked):
        command += ["--tmpfs", path, "--remount-ro", path]
    size = ["--size", str(SCRATCH_BYTES), "--tmpfs"]
    command += ["--ro-bind", course, "/course", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    command += ["--dev", "/dev", *size, "/dev/shm", "--remount-ro", "/dev", *size, "/tmp", "--chdir", "/tmp"]
    command += ["--seccomp", str(filter_fd)] if filter_fd is not None else []
    worker = _worker(seen.inside(seen.python), ["/course", *map(seen.inside, seen.sites)], fd)
    command += ["--cap-drop", "ALL", "--remount-ro", "/", "--", *worker]
    if not root:
        return command
    job = {"folders": [*folders.items(), (str(stage), course)], "command": command}
    return [sys.executable, "-I", launcher.__file__, json.dumps(job)]


_NAMESPACES = (
    "--unshare-user", "--uid", "65534", "--gid", "65534", "--unshare-ipc", "--unshare-pid", "--unshare-net",
    "--unshare-uts", "--hostname", "sandbox", "--unshare-cgroup-try", "--disable-userns", "--die-with-parent",
    "--new-session", "--as-pid-1",
)  # fmt: skip
