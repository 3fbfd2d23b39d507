"""By how much the memory in use grows at most while a function runs, as the device's own allocator counts."""

import torch

from ampedu.profiling import silent


def growth(run, device: torch.device) -> int:
    """Bytes between the start of ``run()`` and the moment in it when most was allocated on a CPU or a CUDA device."""
    return _on_cuda(run, device) if device.type == "cuda" else _on_cpu(run)


def _on_cuda(run, device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _on_cpu(run) -> int:
    """torch has no counter for the CPU; its allocator reports every block to a running profiler."""
    profiler = torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU])
    with silent():
        profiler.start()
    try:
        run()
    finally:
        with silent():
            profiler.stop()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
