"""Time of ampedu.formats.round_to against torch.clone and other packages: one thread, 10^7 float32 numbers.

    python benchmarks/round_to.py [--elements N] [--runs R] [--write FILE]

Every figure is CPU time, the median of R interleaved runs (each round runs every row once, a clone before each), as a
multiple of the round's median clone, so that a busy machine slows both. The spread is the smallest and largest ratio.
Peers that are not installed are named and left out: ml_dtypes (nearest), gfloat, QPyTorch (PyPI: qtorch, compiles
C++ at its first import). Peers start from what they take (numpy or torch) and give float32 back, as round_to does.
"""

import argparse
import datetime
import importlib.metadata
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from ampedu.formats import FORMATS, round_to

MODES = ("nearest", "stochastic", "toward_zero")
LIMITS = {"nearest": 3.0, "stochastic": 8.0}
EXEMPT = {("e8m0", "nearest")}
SLOW_PEER_ELEMENTS = 1_000_000
ML_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e3m4": "float8_e3m4",
    "e8m0": "float8_e8m0fnu",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
}


def ml_dtypes_rows(x):
    """Return {(name, mode): (function, elements)} for ml_dtypes."""
    import ml_dtypes

    array = x.numpy()
    types = {name: getattr(ml_dtypes, peer, None) or np.float16 for name, peer in ML_DTYPES.items()}
    return {
        (name, "nearest"): (lambda t=t: array.astype(t).astype(np.float32), array.size) for name, t in types.items()
    }


def gfloat_rows(x):
    """Return {(name, mode): (function, elements)} for gfloat, on a tenth of the numbers: it is slow."""
    import gfloat
    from gfloat import formats

    array = x[:SLOW_PEER_ELEMENTS].numpy().astype(np.float64)
    bits = np.random.default_rng(0).integers(0, 2**16, array.shape)
    known = {
        "bf16": formats.format_info_bfloat16,
        "fp16": formats.format_info_binary16,
        "e4m3fn": formats.format_info_ocp_e4m3,
        "e5m2": formats.format_info_ocp_e5m2,
        "e2m1": formats.format_info_ocp_e2m1,
    }
    rows = {}
    for name, info in known.items():
        nearest, stochastic = gfloat.RoundMode.TiesToEven, gfloat.RoundMode.Stochastic
        rows[name, "nearest"] = (lambda i=info, r=nearest: gfloat.round_ndarray(i, array, r, sat=True), array.size)
        rows[name, "stochastic"] = (
            lambda i=info, r=stochastic: gfloat.round_ndarray(i, array, r, sat=True, srbits=bits, srnumbits=16),
            array.size,
        )
    return rows


def qpytorch_rows(x):
    """Return {(name, mode): (function, elements)} for QPyTorch, whose nearest sends ties away from zero."""
    from qtorch.quant import float_quantize

    rows = {}
    for name in ("tf32", "bf16", "fp16", "e4m3fn", "e5m2", "e3m4", "e3m2", "e2m3", "e2m1"):
        f = FORMATS[name]
        for mode in ("nearest", "stochastic"):
            rows[name, mode] = (
                lambda f=f, mode=mode: float_quantize(x, exp=f.exponent_bits, man=f.mantissa_bits, rounding=mode),
                x.numel(),
            )
    return rows


PEERS = {"ml_dtypes": ml_dtypes_rows, "gfloat": gfloat_rows, "qtorch": qpytorch_rows}


def seconds(function):
    """Return the CPU seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def measure(rows, clone, elements, runs):
    """Return {key: sorted ratios to clone per element} and the clone times, over interleaved runs."""
    ratios, clones = {key: [] for key in rows}, []
    for function, _ in rows.values():
        function()
    for _ in range(runs):
        bases, times = [], {}
        for key, (function, count) in rows.items():
            bases.append(seconds(clone))
            times[key] = seconds(function) / count
        for key, value in times.items():
            ratios[key].append(value * elements / statistics.median(bases))
        clones += bases
    return {key: sorted(values) for key, values in ratios.items()}, clones


def processor():
    """Return the name of the processor, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown processor"


def main():
    """Measure, print the table and write it where asked; exit status 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(options.elements, generator=torch.Generator().manual_seed(0))
    positive = x.abs()

    rows = {}
    for name in FORMATS:
        source = positive if name == "e8m0" else x
        for mode in MODES:
            rows["ampedu", name, mode] = (lambda s=source, n=name, m=mode: round_to(s, n, m), options.elements)
    notes = []
    for peer, make in PEERS.items():
        try:
            rows.update({(peer, *key): row for key, row in make(x).items()})
            notes.append(f"{peer} {importlib.metadata.version(peer)}")
        except ImportError:
            notes.append(f"{peer} is not installed")

    with np.errstate(all="ignore"):
        ratios, clones = measure(rows, x.clone, options.elements, options.runs)
    lines = [
        f"{processor()}, 1 thread, torch {torch.__version__}, {datetime.date.today()}",
        f"{options.elements} float32 numbers from N(0, 1) (e8m0: their magnitudes); peers: {', '.join(notes)}",
        f"torch.clone: {statistics.median(clones) * 1e3:.1f} ms ({min(clones) * 1e3:.1f} to {max(clones) * 1e3:.1f})",
        f"CPU time as multiples of the clone of the same round: median of {options.runs} (smallest to largest).",
        "",
        f"{'mode':12}{'format':10}" + "".join(f"{peer:>22}" for peer in ("ampedu", *PEERS)),
    ]
    broken = []
    for mode in MODES:
        for name in FORMATS:
            cells = []
            for peer in ("ampedu", *PEERS):
                got = ratios.get((peer, name, mode))
                cells.append(f"{statistics.median(got):7.2f} ({got[0]:.2f} to {got[-1]:.2f})" if got else "-")
            lines.append(f"{mode:12}{name:10}" + "".join(f"{cell:>22}" for cell in cells))
            ratio = statistics.median(ratios["ampedu", name, mode])
            if ratio > LIMITS.get(mode, float("inf")) and (name, mode) not in EXEMPT:
                broken.append(f"{name} {mode}")
    limits = ", ".join(f"{mode} {limit:g}" for mode, limit in LIMITS.items())
    lines += [
        "",
        f"Limits for ampedu: {limits} (e8m0 nearest has none): "
        + (f"broken by {', '.join(broken)}" if broken else "all kept"),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.write:
        with open(options.write, "w") as file:
            file.write(text)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
