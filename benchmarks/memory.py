"""Memory of a training step: the prediction against a measurement, and against other ways to foresee it.

    python benchmarks/memory.py [--quick] [--write FILE]

Three models, each in float32, under autocast to bfloat16 and float16 with the CUDA and the CPU policy, and in pure
bfloat16, plain and with activation checkpointing. Measured is a real step on this CPU: its tensors by
ampedu.memory.measure, its peak by torch's allocator. Also: torch.distributed._tools.mem_tracker.MemTracker on the same
fake tensors, torchinfo where it is installed (no dependency of the course), and the rule "AMP halves it".
The exit status is 1 where a prediction is more than 5 % off.
"""

import argparse
import datetime
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from ampedu.device import this_machine
from ampedu.memory import measure, predict
from ampedu.memory.plan import Step, planned, replaced

LIMIT = 0.05
POLICIES = [  # with whose lists of operations
    ("fp32", "cuda"),
    ("bf16", "cuda"),
    ("fp16", "cuda"),
    ("bf16", "cpu"),
    ("fp16", "cpu"),
    ("pure_bf16", "cuda"),
]


class Transformer(nn.Module):
    """The running example of the lessons."""

    def __init__(self, width=128, layers=4, vocabulary=1000, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


def mlp(width=512, layers=6):
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


def cnn(width=16):
    def block(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

    blocks = [block(3, width), block(width, width), nn.MaxPool2d(2), block(width, 2 * width)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def cases():
    """Return {name: (model, batch, modules to checkpoint)}."""
    torch.manual_seed(0)
    tokens = torch.randint(1000, (16, 128))
    return {
        "mlp": (mlp(), (torch.randn(2048, 512), torch.randint(10, (2048,))), "[0-5]"),
        "transformer": (Transformer(), (tokens, tokens), "encoder.layers.*"),
        "cnn": (cnn(), (torch.randn(16, 3, 32, 32), torch.randint(10, (16,))), ["0", "1", "3"]),
    }


def mem_tracker(model, batch, **how) -> int:
    """Peak in bytes of the same step on fake tensors by MemTracker, made and warmed up as predict does."""
    plan = planned(model, how["policy"], how["device_policy"], "cpu", "adamw", None, how["checkpoint"], None, 1)

    def fake(tensor):
        dtype = plan.dtype if plan.dtype is not None and tensor.is_floating_point() else tensor.dtype
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        step = Step(plan, *replaced(model, batch, fake))
        step.run()
        tracker = MemTracker()
        tracker.track_external(step.model, step.optimizer, *step.inputs, *step.target)
        with tracker:
            step.run()
        return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def seconds(repeats, run, *args, **kwargs) -> tuple[float, object]:
    """Median time of a call and its result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = run(*args, **kwargs)
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


def table(repeats) -> tuple[list[str], list[str]]:
    """The lines of the error table, and the cases that are off by more than the limit."""
    head = (
        f"{'model':12}{'policy':10}{'lists':6}{'ckpt':5}{'predicted':>11}{'tensors':>9}{'allocator':>11}"
        f"{'rows':>7}{'tensors':>9}{'allocator':>11}{'MemTracker':>12}{'predict':>9}{'MemTracker':>12}"
    )
    lines = [
        f"{'':33}{'peak in MiB':>31}{'error in % against measured':>39}{'seconds':>20}",
        head,
    ]
    bad = []
    for name, (model, batch, blocks) in cases().items():
        for policy, lists in POLICIES:
            for checkpoint in (None, blocks):
                how = {"policy": policy, "device_policy": lists, "checkpoint": checkpoint}
                took, predicted = seconds(repeats, predict, model, batch, **how)
                measured = measure(model, batch, **how)
                theirs_took, theirs = seconds(repeats, mem_tracker, model, batch, **how)
                tensors = measured.moments[measured.peak_phase].bytes
                rows = [row.name for row in measured.rows]
                worst = max(abs(predicted[row] - measured[row]) / measured[row] for row in rows)
                errors = [worst, *(predicted.peak / x - 1 for x in (tensors, measured.peak)), theirs / tensors - 1]
                label = f"{name:12}{policy:10}{lists:6}{'yes' if checkpoint else 'no':5}"
                sizes = (predicted.peak, tensors, measured.peak)
                lines.append(
                    label
                    + "".join(f"{size / 2**20:{w}.2f}" for size, w in zip(sizes, (11, 9, 11), strict=True))
                    + "".join(f"{100 * e:{w}.2f}" for e, w in zip(errors, (7, 9, 11, 12), strict=True))
                    + f"{took:9.2f}{theirs_took:12.2f}"
                )
                print(lines[-1], flush=True)
                if max(map(abs, errors[:3])) > LIMIT:
                    bad.append(label.strip())
    return lines, bad


def rules() -> list[str]:
    """The rule "AMP halves it" and torchinfo beside measured peaks."""
    head = f"{'bf16 autocast, CUDA policy':30}{'measured':>10}{'half of float32':>17}{'error':>9}"
    lines = [f"{head}{'torchinfo':>11}{'error':>9}"]
    for name, (model, batch, _) in cases().items():
        full = measure(model, batch, policy="fp32").peak
        amp = measure(model, batch, policy="bf16").peak
        info = torchinfo_bytes(model, batch[0])
        told = f"{'absent':>11}" if info is None else f"{info / 2**20:11.2f}{100 * (info / amp - 1):+8.0f} %"
        lines.append(f"{name:30}{amp / 2**20:10.2f}{full / 2**21:17.2f}{100 * (full / 2 / amp - 1):+7.0f} %{told}")
    return lines


def torchinfo_bytes(model, x) -> int | None:
    """torchinfo's "estimated total size" of the step in bytes; None where torchinfo is absent."""
    try:
        import torchinfo
    except ImportError:
        return None
    with torch.autocast("cpu", torch.bfloat16):
        found = torchinfo.summary(model, input_data=x, verbose=0, mode="train")
    return found.total_input + found.total_output_bytes + found.total_param_bytes


def main() -> int:
    """Print the tables and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="time each way once")
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    errors, bad = table(1 if options.quick else 3)
    verdict = f"off: {'; '.join(bad)}" if bad else "all"
    lines = [
        f"{this_machine('cpu').name}, 1 thread, torch {torch.__version__}, {datetime.date.today()}",
        "AdamW, the step after the first. rows: the largest error of a row. Errors of MemTracker are against tensors.",
        "",
        *errors,
        "",
        f"Predictions within {LIMIT:.0%} of the measurement: {verdict}",
        "",
        "Peaks in MiB:",
        *rules(),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.write:
        with open(options.write, "w") as file:
            file.write(text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
