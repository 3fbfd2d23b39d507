"""One timer for CPU and GPU: warm up, wait for the device, repeat, and report the median with its spread."""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MIN_SECONDS = 0.2  # of measurement per function
MIN_SAMPLES, MAX_SAMPLES = 5, 200
SAMPLE_SECONDS = 1e-3  # a sample of fast calls lasts at least this long, so that the clock and the waiting do not count
MAX_CALLS = 100_000
DRIFT = 0.1  # a note is due if the second half of the samples differs from the first by more than this share


@dataclass(frozen=True)
class Timing:
    """Times of one function. All in seconds per call.

    samples: one time per sample, in the order in which they were measured; a sample is the mean of `calls` calls.
    """

    samples: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        """The middle sample: one slow sample out of five does not move it."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile: half of the samples lie between them. Linear interpolation, as in numpy."""
        return quartiles(self.samples)

    @property
    def spread(self) -> float:
        """Distance between the quartiles as a share of the median: 0.1 is ten percent."""
        low, high = self.quartiles
        return (high - low) / self.median if self.median else 0.0

    @property
    def drift(self) -> float:
        """Median of the second half of the samples divided by that of the first; 1.0 if the machine kept its pace."""
        half = len(self.samples) // 2
        first = statistics.median(self.samples[:half]) if half else 0.0
        return statistics.median(self.samples[-half:]) / first if first else 1.0

    @property
    def note(self) -> str:
        """What makes this measurement doubtful, in one sentence; empty if nothing does."""
        if abs(self.drift - 1) <= DRIFT:
            return ""
        how = "slower" if self.drift > 1 else "faster"
        return (
            f"The second half of the samples was {abs(self.drift - 1):.0%} {how}: "
            "the clock frequency or the load changed. Measure again."
        )

    def __str__(self) -> str:
        low, high = self.quartiles
        unit, factor = unit_of(self.median)
        return f"{self.median * factor:.3g} {unit} ({low * factor:.3g} to {high * factor:.3g})"


def measure(
    function: Callable[[], object],
    device: str = "cpu",
    *,
    min_seconds: float = MIN_SECONDS,
    max_samples: int = MAX_SAMPLES,
    clock: Callable[[], float] | None = None,
    synchronize: Callable[[], object] | None = None,
) -> Timing:
    """The time of `function()`, which takes no arguments and whose result is dropped.

    One call warms up (caches, lazy initialization, kernel selection). Calls are put together into samples of at least
    SAMPLE_SECONDS, each enclosed by `synchronize()`, since a GPU call returns before its work is done. Samples repeat
    until they make up `min_seconds`: at least MIN_SAMPLES, at most `max_samples`. One thread on the CPU, and the
    caller's number of threads afterwards. device: "cpu", "cuda", "mps" or "xpu". clock gives seconds, by default
    `default_clock`; synchronize waits for the device, by default as torch does it. ValueError: a limit that allows no
    measurement, or a device that this course cannot time.
    """
    return compare(
        {"": function}, device, min_seconds=min_seconds, max_samples=max_samples, clock=clock, synchronize=synchronize
    )[""]


def compare(
    functions: dict[str, Callable[[], object]],
    device: str = "cpu",
    *,
    min_seconds: float = MIN_SECONDS,
    max_samples: int = MAX_SAMPLES,
    clock: Callable[[], float] | None = None,
    synchronize: Callable[[], object] | None = None,
) -> dict[str, Timing]:
    """The times of several functions, measured in turns: round 1 of all, round 2 of all, …

    What disturbs the machine for a while then disturbs all of them, and `speedup` compares within rounds. All get
    the same number of samples. The rounds end when the functions had `min_seconds` each on average, or when there are
    max_samples. The arguments are those of `measure`.
    """
    if not functions:
        raise ValueError("there is nothing to measure: give at least one function")
    if max_samples < 1 or min_seconds < 0:
        raise ValueError(f"min_seconds={min_seconds} and max_samples={max_samples} allow no measurement")
    wait, clock = synchronize or synchronizer(device), clock or default_clock(device)
    with one_thread(), _no_garbage_collection():
        calls = {name: _calls_per_sample(function, clock, wait) for name, function in functions.items()}
        samples: dict[str, list[float]] = {name: [] for name in functions}
        for count in range(1, max_samples + 1):
            for name, function in functions.items():
                samples[name].append(_sample(function, calls[name], clock, wait) / calls[name])
            spent = sum(sum(times) * calls[name] for name, times in samples.items())
            if count >= min(MIN_SAMPLES, max_samples) and spent >= min_seconds * len(functions):
                break
    return {name: Timing(tuple(times), calls[name]) for name, times in samples.items()}


def speedup(slow: Timing, fast: Timing) -> tuple[float, float, float]:
    """(median, lower quartile, upper quartile) of slow / fast, sample by sample: 2.0 is twice as fast.

    The two come from one `compare`, so that sample i of both was taken in the same round. ValueError: they do not.
    """
    if len(slow.samples) != len(fast.samples):
        raise ValueError("the two timings have different numbers of samples: measure them together with compare()")
    ratios = [a / b for a, b in zip(slow.samples, fast.samples, strict=True)]
    return (statistics.median(ratios), *quartiles(ratios))


def quartiles(values) -> tuple[float, float]:
    """Lower and upper quartile of numbers, with linear interpolation; a single number is both."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def unit_of(seconds: float) -> tuple[str, float]:
    """(unit, factor) in which a time is easy to read: ("ms", 1000.0) for 0.005."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return unit, factor
    return "ns", 1e9


def default_clock(device: str) -> Callable[[], float]:
    """The clock of `measure`: on a CPU the CPU time of this process, else the wall clock.

    A CPU operation runs in one thread here, so on an idle machine the two agree, and on a busy one what other programs
    do does not count. Where CPU time ticks too slowly (Windows), it is the wall clock too.
    """
    fine = time.get_clock_info("process_time").resolution <= SAMPLE_SECONDS / 1000
    return time.process_time if device == "cpu" and fine else time.perf_counter


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Runs its block with one thread for CPU operations, and restores the number afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronizer(device: str) -> Callable[[], object]:
    """The function that waits until the device has done its work; on a CPU there is nothing to wait for.

    ValueError: a device that this course cannot time.
    """
    import torch

    kind = str(device).partition(":")[0]
    if kind == "cpu":
        return lambda: None
    if kind in ("cuda", "xpu"):
        return lambda: getattr(torch, kind).synchronize(device)
    if kind == "mps":
        return torch.mps.synchronize
    raise ValueError(f"cannot time work on {device!r}: use cpu, cuda, mps or xpu")


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _sample(function, calls: int, clock, wait) -> float:
    """Seconds of `calls` calls, with the device idle at both ends."""
    wait()
    start = clock()
    for _ in range(calls):
        function()
    wait()
    return clock() - start


def _calls_per_sample(function, clock, wait) -> int:
    """Warms up, then finds how many calls last SAMPLE_SECONDS: 1, or a power of two."""
    _sample(function, 1, clock, wait)
    calls = 1
    while _sample(function, calls, clock, wait) < SAMPLE_SECONDS and calls < MAX_CALLS:
        calls *= 2
    return calls
