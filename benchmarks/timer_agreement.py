"""ampedu.timing against torch.utils.benchmark: five workloads, both timers in turns, one thread.

    python benchmarks/timer_agreement.py [--rounds N] [--write FILE]

A round times every workload with both timers, one right after the other, the first one alternating. Both get the same
clock, which counts CPU time: what other programs do on a busy machine is no difference between timers. A figure is the
median over the rounds of a timer's median; the quotient is the median over the rounds of the quotient within a round.
They agree if it lies within 5 % of 1.
"""

import argparse
import datetime
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from ampedu.device import this_machine
from ampedu.timing import measure

LIMIT = 0.05
SECONDS = 0.1


def workloads():
    """Return {name: function}: from microseconds to tens of milliseconds, arithmetic and memory."""
    torch.manual_seed(0)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    a_low, b_low = a.bfloat16(), b.bfloat16()
    small, weight = torch.randn(64, 64), torch.randn(64, 64)
    image, kernel = torch.randn(8, 64, 32, 32), torch.randn(64, 64, 3, 3)
    found = {
        "matmul 1024, float32": lambda: a @ b,
        "matmul 1024, bfloat16": lambda: a_low @ b_low,
        "linear 64": lambda: F.linear(small, weight),
        "softmax 1024 × 1024": lambda: F.softmax(a, -1),
        "conv2d 8 × 64 × 32 × 32": lambda: F.conv2d(image, kernel),
    }
    if "bf16" not in this_machine("cpu").matrix_dtypes:  # seconds per call without a matrix unit
        c = torch.randn(128, 128).bfloat16()
        del found["matmul 1024, bfloat16"]
        found["matmul 128, bfloat16"] = lambda: c @ c
    return found


def ours(function):
    """Return the seconds per call by ampedu.timing."""
    return measure(function, min_seconds=SECONDS, clock=time.process_time).median


def theirs(function):
    """Return the seconds per call by torch.utils.benchmark."""
    timer = Timer("function()", timer=time.process_time, globals={"function": function}, num_threads=1)
    return timer.blocked_autorange(min_run_time=SECONDS).median


def main():
    """Measure, print the table and write it where asked; exit status 1 where the timers disagree."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    functions = workloads()
    times = {name: ([], []) for name in functions}
    for round_number in range(options.rounds):
        for name, function in functions.items():
            pair = [ours, theirs] if round_number % 2 == 0 else [theirs, ours]
            got = {timer: timer(function) for timer in pair}
            times[name][0].append(got[ours])
            times[name][1].append(got[theirs])

    lines = [
        f"{this_machine('cpu').name}, 1 thread, torch {torch.__version__}, {datetime.date.today()}",
        f"Medians of {options.rounds} rounds in ms of CPU time; quotient within a round: median (smallest to largest).",
        "",
        f"{'workload':26}{'ampedu':>12}{'benchmark':>12}   quotient",
    ]
    apart = []
    for name, (mine, other) in times.items():
        quotients = sorted(x / y for x, y in zip(mine, other, strict=True))
        middle = statistics.median(quotients)
        figures = "".join(f"{statistics.median(values) * 1e3:12.4f}" for values in (mine, other))
        lines.append(f"{name:26}{figures}   {middle:.3f} ({quotients[0]:.3f} to {quotients[-1]:.3f})")
        if abs(middle - 1) > LIMIT:
            apart.append(name)
    verdict = f"apart: {', '.join(apart)}" if apart else "all agree"
    lines += ["", f"Agreement within {LIMIT:.0%}: {verdict}"]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.write:
        with open(options.write, "w") as file:
            file.write(text)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
