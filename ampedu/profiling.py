"""torch.profiler over a few steps, without what its library writes to the terminal."""

import contextlib
import os

import torch

from ampedu.timing import one_thread, synchronizer


def profiled(step, device: str = "cpu", steps: int = 5):
    """torch's own averages by operation (torch.profiler's key_averages()) over `steps` calls of `step()`.

    Two calls before warm up: the first loads what is loaded once, the second shows that nothing more is. One thread on
    the CPU. device: "cpu" or "cuda", where kernels and launches are recorded as well. Each entry has key, count and
    self_cpu_time_total in µs, over all steps together; on a GPU self_device_time_total too. ValueError: steps below 1.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps!r}: profile at least one step")
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.device(device).type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    wait = synchronizer(device)
    profiler = torch.profiler.profile(activities=kinds)
    with one_thread():
        for _ in range(2):
            step()
        wait()
        with silent():
            profiler.start()
        try:
            for _ in range(steps):
                step()
            wait()
        finally:
            with silent():
                profiler.stop()
    return profiler.key_averages()


@contextlib.contextmanager
def silent():
    """Keeps from the terminal what the profiler's library writes to file 2 when it starts and stops."""
    try:
        kept = os.dup(2)
    except OSError:  # no such file, as under pythonw
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
