"""The dtype of any expression under any autocast policy, on a machine that does not have the device."""

import atexit
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading

import torch

from ampedu.policy import shipping, worker
from ampedu.policy.kinds import check_device, check_dtype

START_SECONDS = 120.0  # until the worker has loaded torch; a slow disk counts
GRACE_SECONDS = 1.0
TIME_IS_UP = getattr(signal, "SIGALRM", 0)
# The worker sees no GPU, so that it is the same on all machines and takes no memory of one.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore",
}


class ProbeError(RuntimeError):
    """The expression gave no dtype: it raised an error, ended the worker, took too long, or could not be sent."""


def probe(fn, *shapes, device: str = "cuda", dtype: torch.dtype = torch.float16, seconds: float = 20.0):
    """The dtype of `fn(*inputs)` under autocast for a device, which need not be there.

    fn: a function of as many tensors as there are shapes, for example ``torch.mm`` or ``lambda x: model(x).exp()``;
    or an expression as text, in which the inputs are called x, y, z, u, v, w, and torch, nn, F and device are known.
    shapes: of each input a shape, as a tuple or an int; float32 unless it is a pair (shape, dtype); or a tensor, whose
    shape and dtype count. device: "cuda", "cpu", "mps" or "xpu". dtype: that of autocast, float16 or bfloat16.
    seconds: time limit. Returns a torch.dtype, or tuples, lists and dicts of them where fn returns such.

    It runs in another process on fake tensors, without data and gradients. Tensors and modules that fn refers to
    become fake tensors on the device. Regions of torch.autocast inside fn count. ProbeError: see there.
    """
    kind, low = check_device(device), check_dtype(dtype)
    if not callable(fn) and not isinstance(fn, str):
        raise ProbeError(f"the first argument is a {type(fn).__name__}: give a function, or an expression as text")
    inputs = [_input(shape) for shape in shapes]
    try:
        payload = shipping.pack((fn, inputs))
    except shipping.CannotShip as error:
        raise ProbeError(
            f"this function refers to something that cannot be sent to another process: {error}. "
            "Make that thing inside the function, or give the expression as text, as in probe('x @ y', (2, 3), (3, 4))"
        ) from None
    with _lock:
        return _worker().ask(payload, kind, low, seconds)


def _input(shape):
    """(shape, dtype) of one input."""
    if isinstance(shape, torch.Tensor):
        return tuple(shape.shape), shape.dtype
    kind = torch.float32
    if isinstance(shape, (tuple, list)) and len(shape) == 2 and isinstance(shape[1], torch.dtype):
        shape, kind = shape
    if isinstance(shape, int) and not isinstance(shape, bool):
        shape = (shape,)
    if isinstance(shape, (tuple, list)) and all(isinstance(size, int) and size >= 0 for size in shape):
        return tuple(shape), kind
    raise ProbeError(
        f"{shape!r} is not a shape: give a tuple such as (2, 3), or a pair such as ((2, 3), torch.float16)"
    )


class Worker:
    """The other process, and what is read from it."""

    program = "from ampedu.policy.worker import main; main()"

    def __init__(self):
        self.owner = os.getpid()
        self.errors = tempfile.TemporaryFile()
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", self.program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": paths},
            start_new_session=os.name == "posix",
        )
        self.frames: queue.SimpleQueue = queue.SimpleQueue()
        self.ready = False
        self.listener = threading.Thread(target=self._listen, daemon=True, name="ampedu probe")
        self.listener.start()

    def _listen(self):
        with contextlib.suppress(OSError, ValueError):
            while (data := worker.read(self.process.stdout.fileno())) is not None:
                self.frames.put(pickle.loads(data))
        self.frames.put(None)

    def alive(self) -> bool:
        """Whether it can be asked: by the process that started it, and as long as it runs."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, payload: bytes, device: str, dtype: torch.dtype, seconds: float):
        """What the packed expression gives; raises ProbeError. After a failure of the worker it is stopped."""
        try:
            if not self.ready:
                self._next(START_SECONDS, f"the worker process did not start within {START_SECONDS:g} s")
                self.ready = True
            with contextlib.suppress(OSError):  # it has died: the next frame says so
                worker.write(self.process.stdin.fileno(), pickle.dumps((seconds, device, dtype, payload)))
            late = f"the expression took longer than {seconds:g} s. Is there an endless loop, or a large computation?"
            answer = self._next(seconds + GRACE_SECONDS, late)
        except BaseException:
            self.stop()
            raise
        if answer[0] == "value":
            return answer[1]
        if answer == ("died", -TIME_IS_UP):
            raise ProbeError(late)
        if answer[0] == "died":
            raise ProbeError(_death(answer[1], self._last_words()))
        name, text = answer[1:]
        raise ProbeError(f"the expression raised {name}: {text}")

    def _next(self, seconds, late):
        try:
            frame = self.frames.get(timeout=seconds)
        except queue.Empty:
            raise ProbeError(late) from None
        if frame is None:
            raise ProbeError(_death(self.process.wait(), self._last_words()))
        return frame

    def _last_words(self):
        """What the worker wrote to stderr last: where C++ says why it gave up."""
        self.errors.seek(0, os.SEEK_END)
        size = self.errors.tell()
        self.errors.seek(max(0, size - 20_000))
        lines = self.errors.read().decode("utf-8", "replace").splitlines()
        said = [line.strip() for line in lines if line.strip().startswith("what():")]
        if not said and not self.ready:  # it ended before it was ready: with a traceback
            said = lines[-1:]
        return said[-1].removeprefix("what():").strip() if said else ""

    def stop(self) -> None:
        """Ends the process and its children."""
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):
                if os.name == "posix":
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.listener.join(GRACE_SECONDS)
        self.process.stdout.close()
        self.errors.close()


def _death(status, words):
    """Why the process ended, in one sentence. status: as subprocess gives it, negative for a signal."""
    how = f"exit status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-status).name
    why = f": {words}" if words else ""
    return f"the expression ended the worker process ({how}){why}. This process is unharmed, and probe works on"


_lock = threading.Lock()
_current: Worker | None = None


def _worker() -> Worker:
    global _current
    if _current is None or not _current.alive():
        if _current is not None:
            _current.stop()
        _current = Worker()
    return _current


def warm_up() -> None:
    """Starts the worker process without waiting for it: the first `probe` then finds it loaded, or nearly."""
    with _lock:
        _worker()


@atexit.register
def stop() -> None:
    """Ends the worker process; the next `probe` starts another."""
    global _current
    if _current is not None:
        _current.stop()
        _current = None
