"""The timer against machines whose speed is known: clocks that only move when the test says so."""

import gc
import statistics
import time
from types import SimpleNamespace

import pytest
import torch

from ampedu import timing
from ampedu.timing import Timing, compare, measure, speedup


class Machine:
    """A device with a clock of its own: a call takes `launch` seconds and queues `work` seconds."""

    def __init__(self, work=(0.010,), launch=20e-6, first=0.0):
        self.now = self.done_at = 0.0
        self.works, self.launch, self.first = list(work), launch, first
        self.log = []

    def clock(self):
        self.log.append("clock")
        return self.now

    def call(self):
        number = self.log.count("call")
        self.log.append("call")
        self.now += self.launch
        seconds = self.works[number % len(self.works)] + (self.first if number == 0 else 0)
        self.done_at = max(self.done_at, self.now) + seconds

    def synchronize(self):
        self.log.append("wait")
        self.now = max(self.now, self.done_at)


def test_finds_the_true_time_of_queued_work():
    machine = Machine(first=5.0)
    found = measure(machine.call, clock=machine.clock, synchronize=machine.synchronize, min_seconds=0.2)
    assert found.median == pytest.approx(0.01002)
    assert found.calls == 1 and found.spread == pytest.approx(0, abs=1e-9) and found.note == ""
    assert len(found.samples) == 20  # 20 × 10.02 ms are the first to reach 0.2 s


def test_waits_before_and_after_each_sample_and_warms_up():
    machine = Machine()
    measure(machine.call, clock=machine.clock, synchronize=machine.synchronize, max_samples=3)
    sample = ["wait", "clock", "call", "wait", "clock"]
    assert machine.log == sample * 5  # one warm-up, one to find the number of calls, three samples


def test_fast_calls_are_put_together():
    machine = Machine(work=[0.0], launch=3e-6)
    found = measure(machine.call, clock=machine.clock, synchronize=machine.synchronize, min_seconds=0.01)
    assert found.calls == 512  # 256 × 3 µs are less than 1 ms, 512 × 3 µs are more
    assert found.median == pytest.approx(3e-6)


def test_repeats_at_least_five_times_and_at_most_max_samples():
    slow = Machine(work=[10.0])
    assert len(measure(slow.call, clock=slow.clock, synchronize=slow.synchronize).samples) == 5
    slow = Machine(work=[10.0])
    assert len(measure(slow.call, clock=slow.clock, synchronize=slow.synchronize, max_samples=2).samples) == 2
    fast = Machine(work=[0.001])
    found = measure(fast.call, clock=fast.clock, synchronize=fast.synchronize, min_seconds=100, max_samples=7)
    assert len(found.samples) == 7


def test_compare_takes_turns_and_gives_equally_many_samples():
    one, two = Machine(work=[0.004]), Machine(work=[0.001])
    order = []

    def call(machine, name):
        order.append(name)
        machine.call()
        clock.now = one.now + two.now

    class clock:
        now = 0.0

    def wait():
        one.synchronize()
        two.synchronize()

    functions = {"one": lambda: call(one, "one"), "two": lambda: call(two, "two")}
    found = compare(functions, clock=lambda: one.now + two.now, synchronize=wait, max_samples=4)
    assert order[-8:] == ["one", "two"] * 4
    assert len(found["one"].samples) == len(found["two"].samples) == 4
    assert speedup(found["one"], found["two"])[0] == pytest.approx(4.02 / 1.02)


def test_speedup_compares_within_rounds():
    # Half of the rounds were taken on a machine that was ten times slower: the ratio must not see it.
    slow = Timing((4.0, 40.0, 4.0, 40.0), 1)
    fast = Timing((2.0, 20.0, 2.0, 20.0), 1)
    assert speedup(slow, fast) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="compare"):
        speedup(slow, Timing((1.0,), 1))


def test_statistics_are_those_of_the_standard_library():
    samples = (5.0, 1.0, 4.0, 2.0, 3.0)
    found = Timing(samples, 1)
    assert found.median == statistics.median(samples) == 3.0
    assert found.quartiles == (2.0, 4.0)
    assert found.spread == pytest.approx(2 / 3)
    assert Timing((7.0,), 1).quartiles == (7.0, 7.0)


def test_drift_is_noted_and_a_single_outlier_is_not():
    assert Timing((1.0,) * 5 + (1.3,) * 5, 1).drift == pytest.approx(1.3)
    assert "30% slower" in Timing((1.0,) * 5 + (1.3,) * 5, 1).note
    assert "faster" in Timing((1.3,) * 5 + (1.0,) * 5, 1).note
    assert Timing((1.0,) * 9 + (50.0,), 1).note == ""
    assert Timing((1.0,), 1).drift == 1.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0025, "2.5 ms"), (2.5e-6, "2.5 µs"), (2.5e-8, "25 ns")]
)
def test_times_are_readable(seconds, text):
    assert str(Timing((seconds,), 1)).startswith(text)


def test_one_thread_during_and_the_callers_number_after():
    torch.set_num_threads(2)
    seen = []
    try:
        measure(lambda: seen.append((torch.get_num_threads(), gc.isenabled())), min_seconds=0, max_samples=1)
        assert set(seen) == {(1, False)} and torch.get_num_threads() == 2 and gc.isenabled()
        with pytest.raises(ZeroDivisionError):
            measure(lambda: 1 / 0)
        assert torch.get_num_threads() == 2 and gc.isenabled()
    finally:
        torch.set_num_threads(1)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="at least one function"):
        compare({})
    with pytest.raises(ValueError, match="max_samples=0"):
        measure(lambda: None, max_samples=0)
    with pytest.raises(ValueError, match="tpu"):
        measure(lambda: None, "tpu")


def test_a_busy_machine_does_not_count_on_a_cpu(monkeypatch):
    assert timing.default_clock("cuda") is time.perf_counter
    info = {"process_time": SimpleNamespace(resolution=1e-9)}
    monkeypatch.setattr(time, "get_clock_info", info.get)
    assert timing.default_clock("cpu") is time.process_time
    info["process_time"].resolution = 0.0156  # Windows
    assert timing.default_clock("cpu") is time.perf_counter


def test_gpus_are_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    measure(lambda: None, "cuda:1", max_samples=1)
    assert waited and set(waited) == {"cuda:1"}
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    timing.synchronizer("mps")()
    assert waited[-1] == "mps"
