"""A clock, and a device that works through a queue, made of numbers only: a timer can be judged without measuring."""

TICK = 2.0**-20  # seconds, about a microsecond; all times are whole ticks, so that their differences are exact floats


class SimulatedDevice:
    """A processor that hands calls to a device, as a CPU does with a GPU.

    durations: ticks of work that the calls of `run` cost, in order; the last one goes on. launch: ticks until `run`
    returns. If asynchronous, `run` returns while the work is still to be done, otherwise when it is done. start: ticks
    on the clock at the beginning. log holds "run", "sync", "clock", and "clock, busy" for a reading while there is
    work left.
    """

    def __init__(self, durations, launch: int, asynchronous: bool = True, start: int = 0):
        self.durations, self.launch, self.asynchronous = list(durations), launch, asynchronous
        self.now = self.idle_from = start
        self.calls = 0
        self.log = []

    def run(self) -> None:
        """One call: queues its work."""
        self.log.append("run")
        work = self.durations[min(self.calls, len(self.durations) - 1)]
        self.calls += 1
        self.now += self.launch
        self.idle_from = max(self.now, self.idle_from) + work
        if not self.asynchronous:
            self.now = self.idle_from

    def synchronize(self) -> None:
        """Waits until the queue is empty."""
        self.log.append("sync")
        self.now = max(self.now, self.idle_from)

    def clock(self) -> float:
        """The time in seconds; reading it takes no time."""
        self.log.append("clock, busy" if self.now < self.idle_from else "clock")
        return self.now * TICK
