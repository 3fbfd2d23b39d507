"""Time to start: `import ampedu` and `ampedu --help`, beyond a bare interpreter.

    python benchmarks/startup.py [--runs R] [--write FILE]

Every round starts each command once, right after a bare interpreter. Figures are medians of R rounds of CPU time (user
and system): on an idle machine a start waits for nothing, and on a busy one the clock would time the other work.
`beyond Python` is the median of the differences of such pairs. Bytecode is written before.
"""

import argparse
import datetime
import platform
import resource
import statistics
import subprocess
import sys

BARE = ["-c", "pass"]
ROWS = {
    "import ampedu": ["-c", "import ampedu"],
    "ampedu --help": ["-m", "ampedu", "--help"],
    "import numpy": ["-c", "import numpy"],
}
LIMITS = {"import ampedu": ("beyond Python", 20.0), "ampedu --help": ("in all", 150.0)}


def milliseconds(arguments):
    """CPU time of one start of Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def heavy():
    """What `ampedu --help` loads of what it must not."""
    code = (
        "import sys\n"
        "from ampedu.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('|' + ' '.join(sorted({'torch', 'numpy', 'matplotlib', 'IPython', 'ipywidgets'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.rpartition("|")[2].split()


def processor():
    """The name of the processor, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def measure(runs):
    """{row: [(milliseconds of a bare interpreter, milliseconds of the row) per round]}."""
    for arguments in ROWS.values():
        milliseconds(arguments)
    pairs = {row: [] for row in ROWS}
    for _ in range(runs):
        for row, arguments in ROWS.items():
            milliseconds(BARE)  # not counted: the first start after a large one is slow
            pairs[row].append((milliseconds(BARE), milliseconds(arguments)))
    return pairs


def shown(times):
    """A median with its spread."""
    return f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"


def main():
    """Measure, print the table and write it where asked; exit status 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=21, help="rounds, at least 11 (default: 21)")
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    if options.runs < 11:
        parser.error("--runs must be at least 11")
    pairs = measure(options.runs)
    bare = [first for row in pairs.values() for first, _ in row]
    lines = [
        f"{processor()}, Python {platform.python_version()}, {datetime.date.today()}",
        f"Medians of {options.runs} interleaved rounds (smallest to largest), in milliseconds of CPU time.",
        "",
        f"{'':20}{'in all':>26}{'beyond Python':>26}  limit",
        f"{'bare interpreter':20}{shown(bare):>26}",
    ]
    broken = []
    for row in ROWS:
        whole = [time_ for _, time_ in pairs[row]]
        beyond = [time_ - first for first, time_ in pairs[row]]
        figures = {"in all": statistics.median(whole), "beyond Python": statistics.median(beyond)}
        kind, limit = LIMITS.get(row, (None, None))
        verdict = ""
        if kind:
            verdict = f"{kind} ≤ {limit:g}: {'kept' if figures[kind] <= limit else 'BROKEN'}"
            verdict += f" ({figures[kind] / limit:.2f} of it)"
            broken += [row] if figures[kind] > limit else []
        lines.append(f"{row:20}{shown(whole):>26}{shown(beyond):>26}  {verdict}".rstrip())
    loaded = heavy()
    lines += ["", f"`ampedu --help` loads of the heavy packages: {', '.join(loaded) or 'none'}"]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.write:
        with open(options.write, "w", encoding="utf-8") as file:
            file.write(text)
    return int(bool(broken or loaded))


if __name__ == "__main__":
    sys.exit(main())
