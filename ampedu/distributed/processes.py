"""The processes of a run: started with a mark in their environment, and all of them ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

MARK = "AMPEDU_RUN"
# What a launcher around this process may have set, and what would reach into the new run.
OF_LAUNCHERS = ("PET_", "TORCHELASTIC_")
OF_RANKS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "MPLBACKEND",
)  # fmt: skip


def environment(mark: str, threads: int, backend: str, restarts: bool) -> dict[str, str]:
    """The environment of the launcher and its ranks."""
    env = {key: value for key, value in os.environ.items()
           if key not in OF_RANKS and not key.startswith(OF_LAUNCHERS)}  # fmt: skip
    env[MARK] = mark
    env["AMPEDU_BACKEND"] = backend
    env["OMP_NUM_THREADS"] = str(threads)
    env["PYTHONIOENCODING"] = "utf-8"
    env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # not a word about IPv6 and sockets
    if restarts:  # a store of its own for each: in a shared one, ranks find the addresses of the dead (pytorch #135712)
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if sys.platform == "win32":
        env.setdefault("USE_LIBUV", "0")  # torch's Windows builds have no libuv
    loopback = _loopback()
    if backend == "gloo" and loopback:
        env.setdefault("GLOO_SOCKET_IFNAME", loopback)  # works where the machine's own name leads nowhere
    return env


def _loopback() -> str | None:
    with contextlib.suppress(OSError, AttributeError):
        names = [name for _, name in socket.if_nameindex()]
        return next((name for name in ("lo", "lo0") if name in names), None)
    return None


def start(command: list[str], env: dict, log) -> subprocess.Popen:
    """Start the launcher in a session of its own. Its standard input stays open as long as this process lives."""
    return subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )


def marked(mark: str) -> list[int]:
    """The running processes that carry the mark. Linux only; elsewhere an empty list."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (place / "environ").read_bytes().split(b"\0") and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found


def end(launcher: subprocess.Popen, mark: str, folder: Path, patience: float = 10.0) -> list[int]:
    """End the launcher, its ranks and what they started; returns the marked processes that are still there."""
    with _uninterrupted():
        _kill(launcher.pid, launcher.poll() is None)
        with contextlib.suppress(OSError):
            launcher.stdin.close()  # a rank that starts now sees it and ends
        launcher.wait()
        if not sys.platform.startswith("linux"):
            for file in folder.glob("pid.*"):
                _kill(int(file.read_text()), True)
        limit = time.monotonic() + patience
        while (left := marked(mark)) and time.monotonic() < limit:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        return left


def _kill(pid: int, alive: bool) -> None:
    """End a process that leads a session, with its group."""
    if not alive:
        return
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(pid)], capture_output=True, check=False)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@contextlib.contextmanager
def _uninterrupted():
    """Keeps a second Ctrl-C from stopping the cleaning up half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
