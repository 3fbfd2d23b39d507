"""Traces of a training step for lab 07, made up: calls inside of calls in one thread, as a profiler lists them."""

# Which part dominates: ranges of µs of a product, a cast, another kernel, the gap before a call, the next batch, the
# optimizer.
TRACES = {
    "matmul": ((300, 500), (5, 20), (10, 30), (1, 4), (20, 60), (40, 90)),
    "casts": ((30, 60), (60, 120), (10, 20), (1, 4), (20, 60), (20, 40)),
    "idle": ((6, 12), (3, 6), (3, 6), (50, 90), (20, 60), (20, 40)),
    "data": ((30, 60), (5, 20), (10, 30), (1, 4), (2000, 4000), (40, 90)),
    "optimizer": ((30, 60), (5, 20), (10, 30), (1, 4), (20, 60), (2000, 3000)),
    "other": ((30, 60), (5, 9), (400, 700), (1, 4), (20, 60), (40, 90)),
}


class Clock:
    """Writes down events: [name, start, duration], all in µs."""

    def __init__(self, now: int):
        self.now, self.events = now, []

    def call(self, name: str, work: int, *children) -> None:
        """An event that works before its children, and after each of them."""
        event = [name, self.now, 0]
        self.events.append(event)
        self.now += work
        for child in children:
            child()
            self.now += work
        event[2] = self.now - event[1]


def traced(stream, product, cast, other, gap, batch, update) -> tuple[list, int]:
    """The events of one step in random order, and its duration; ranges as in TRACES."""
    first = stream.integer(0, 99)
    clock = Clock(first)

    def between(limits):
        return stream.integer(*limits)

    def wait():
        clock.now += between(gap)

    def to():
        clock.call("aten::to", 1, lambda: clock.call("aten::copy_", between(cast)))

    def multiply():
        clock.call("aten::addmm", between(product))

    clock.call("DataLoader.__next__", between(batch))
    for _ in range(2):
        wait()
        clock.call("aten::linear", 2, to, to, multiply)
        wait()
        clock.call(stream.choice(("aten::gelu", "aten::sort")), between(other))
    wait()
    clock.call("Optimizer.step", between(update))
    wait()
    return stream.sample(clock.events, len(clock.events)), clock.now - first
