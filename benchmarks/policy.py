"""Costs of ampedu.policy: probing the policy, probing an expression, following the CUDA policy on a CPU.

    python benchmarks/policy.py

One thread. Starting the worker includes loading torch there.
"""

import os
import statistics
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn

from ampedu.policy import DEVICES, ProbeError, autocast_policy, cuda_policy_on_cpu, probe, stored


def seconds(function, repeats=1):
    """Median time of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def row(name, value, unit="ms"):
    print(f"{name:<60} {value * (1e3 if unit == 'ms' else 1):8.1f} {unit}")


def policies():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for device in DEVICES:
            row(f"policy of {device}, probed", seconds(lambda device=device: autocast_policy(device)))
        stored._memory.clear()
        row("policy of cuda, from disk", seconds(lambda: autocast_policy("cuda")))


def aborting():
    try:
        probe(lambda x: os.abort(), 2)
    except ProbeError:
        return
    raise AssertionError("the worker did not abort")


def probes():
    row("first probe: starts the worker", seconds(lambda: probe("x @ x", (4, 4))))
    row("the next probes", seconds(lambda: probe("x @ x", (4, 4)), 50))
    row("an expression that aborts the worker, and the next", seconds(lambda: (aborting(), probe("x", 2)), 10))


def step(model, x):
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()


def training():
    row(
        "cuda_policy_on_cpu: enter and leave",
        seconds(lambda: cuda_policy_on_cpu().__enter__().__exit__(*[None] * 3), 20),
    )
    for width in (16, 256):
        model = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        x = torch.randn(8, 64, width)
        step(model, x)
        stock = seconds(lambda model=model, x=x: step(model, x), 15)
        with cuda_policy_on_cpu():
            cuda = seconds(lambda model=model, x=x: step(model, x), 15)
        row(f"a step of one Transformer layer, width {width}: CUDA policy / stock", cuda / stock, "×")


if __name__ == "__main__":
    print(f"torch {torch.__version__}")
    policies()
    probes()
    training()
