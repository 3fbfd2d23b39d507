"""The roofline: work and traffic of an operation, the two speeds of a machine, and the time that they allow."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from ampedu.timing import Timing, measure

# Floating-point operations per element, by convention: what the textbook formula does.
PER_ELEMENT = {"copy": 0, "relu": 1, "add": 1, "softmax": 5, "layer_norm": 7}
OPS = ("matmul", "linear", "conv2d", "embedding", *PER_ELEMENT)
BITS = {"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp64": 64, "fp8": 8, "fp4": 4}  # TF32 is stored as float32
NAMES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
SECONDS = 2.5  # a roofline of one device takes about this long


class Work(NamedTuple):
    """Floating-point operations and bytes moved between memory and the arithmetic units."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes


def flops_bytes(op: str, shapes, dtype="fp32", stride: int = 1, padding: int = 0) -> Work:
    """Operations and least possible traffic of one forward call: each input is read once, the output written once.

    op and shapes, the shapes of its tensors: "matmul" (…, m, k) and (…, k, n), with equal batches or one side without
    · "linear" input (…, k), weight (n, k) · "conv2d" input (N, C, H, W), weight (O, C / groups, h, w), with
    `stride` and `padding` · "embedding" indices and weight (rows, dim), no arithmetic; indices have 8 bytes · "add" two
    equal shapes · "copy", "relu", "softmax", "layer_norm" one shape. Biases are left out. dtype: "fp32", "tf32",
    "bf16", "fp16", "fp64", "fp8", "fp4" or a torch dtype. A multiply-add is two operations; PER_ELEMENT has the
    conventions for the others. ValueError: an unknown op or dtype, or shapes that do not fit.
    """
    bits = element_bits(dtype)
    shapes = [shapes] if shapes and isinstance(shapes[0], int) else shapes
    shapes = [tuple(shape) for shape in shapes]
    if op not in OPS:
        raise ValueError(f"unknown op {op!r}: use {', '.join(OPS)}")
    expected = 1 if op in PER_ELEMENT and op != "add" else 2
    if len(shapes) != expected or not all(min(shape, default=0) >= 1 for shape in shapes):
        raise ValueError(f"{op} needs {expected} shape(s) of positive sizes, not {shapes}")
    if op in PER_ELEMENT:
        flops, elements = _elementwise(op, shapes)
    elif op == "embedding":
        flops, elements = 0, 2 * math.prod(shapes[0]) * shapes[1][-1]
    elif op == "conv2d":
        flops, elements = _conv(*shapes, stride, padding)
    else:
        flops, elements = _product(op, *shapes)
    indices = 8 * math.prod(shapes[0]) if op == "embedding" else 0
    return Work(flops, -(-elements * bits // 8) + indices)


def _elementwise(op: str, shapes) -> tuple[int, int]:
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"{op} needs equal shapes, not {shapes[0]} and {shapes[1]}")
    count = math.prod(shapes[0])
    return PER_ELEMENT[op] * count, (len(shapes) + 1) * count


def _product(op: str, left, right) -> tuple[int, int]:
    factor = (right[1], right[0]) if op == "linear" and len(right) == 2 else right
    one_sided = len(factor) == 2 or (op == "matmul" and len(left) == 2)
    fits = len(factor) >= 2 and len(left) >= (1 if op == "linear" else 2) and left[-1] == factor[-2]
    if not fits or not (one_sided or left[:-2] == factor[:-2]) or (op == "linear" and len(right) != 2):
        raise ValueError(f"{op} of {left} and {right}: inner sizes, and batches if both have them, must agree")
    batch = factor[:-2] if len(left) == 2 else left[:-2]
    rows = left[-2] if len(left) > 1 else 1
    out = math.prod(batch) * rows * factor[-1]
    return 2 * out * left[-1], math.prod(left) + math.prod(factor) + out


def _conv(image, weight, stride: int, padding: int) -> tuple[int, int]:
    if len(image) != 4 or len(weight) != 4 or image[1] % weight[1] or weight[0] % (image[1] // weight[1]):
        raise ValueError(f"conv2d of {image} and {weight}: needs (N, C, H, W) and (O, C / groups, h, w)")
    height, width = ((n + 2 * padding - k) // stride + 1 for n, k in zip(image[2:], weight[2:], strict=True))
    if min(height, width) < 1:
        raise ValueError(f"conv2d of {image} and {weight}: the kernel is larger than the padded image")
    out = image[0] * weight[0] * height * width
    return 2 * out * math.prod(weight[1:]), math.prod(image) + math.prod(weight) + out


def intensity(op: str, shapes, dtype="fp32", stride: int = 1, padding: int = 0) -> float:
    """Arithmetic intensity in operations per byte; the arguments are those of `flops_bytes`."""
    return flops_bytes(op, shapes, dtype, stride, padding).intensity


def element_bits(dtype) -> int:
    """Bits of one element in memory of "fp32", "bf16", … or a torch dtype. ValueError: another format."""
    name = str(dtype).removeprefix("torch.")
    name = NAMES.get(name, name)
    if name not in BITS:
        raise ValueError(f"unknown dtype {dtype!r}: use {', '.join(BITS)}, or a torch dtype such as torch.bfloat16")
    return BITS[name]


@contextlib.contextmanager
def float32_precision(value: str) -> Iterator[None]:
    """Runs its block with torch's float32 matrix products in "ieee" (full) or "tf32"; the flags are restored.

    Only the new flags are written, and put back as they were, so that both APIs can be read afterwards.
    """
    import torch

    flags = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [flag.fp32_precision for flag in flags]
    try:
        for flag in flags:
            flag.fp32_precision = value
        yield
    finally:
        for flag, old in zip(flags, before, strict=True):
            flag.fp32_precision = old


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """The roof: the most operations per second at this intensity. peak in FLOP/s, bandwidth in bytes/s.

    Left of the ridge memory is the limit, right of it arithmetic.
    Source: Williams, Waterman, Patterson: Roofline. Communications of the ACM 52 (2009).
    """
    return min(peak, intensity * bandwidth)


@dataclass(frozen=True)
class Roofline:
    """The speeds of one device. peaks: FLOP/s by format ("fp32", "bf16", …); bandwidth: bytes/s.

    overheads: the least seconds that the call of a product takes in each format, however small it is; empty for a
    datasheet, which does not tell.
    """

    name: str
    bandwidth: float
    peaks: dict[str, float] = field(hash=False)
    overheads: dict[str, float] = field(default_factory=dict, hash=False)

    def ridge(self, dtype: str) -> float:
        """The intensity from which arithmetic is the limit, in FLOP per byte."""
        return self.peaks[dtype] / self.bandwidth

    def attainable(self, intensity: float, dtype: str) -> float:
        """The roof over this intensity, in FLOP/s."""
        return attainable(intensity, self.peaks[dtype], self.bandwidth)

    def limits(self, op: str, shapes, dtype: str, **settings) -> dict[str, float]:
        """Seconds that "arithmetic", "memory" and "overhead" alone would take for one call of `flops_bytes`'s ops.

        Only products run on matrix units: the arithmetic of the other ops counts at the float32 peak in every format.
        """
        work = flops_bytes(op, shapes, dtype, **settings)
        unit = "fp32" if op in PER_ELEMENT else dtype
        return {
            "arithmetic": work.flops / self.peaks[unit],
            "memory": work.bytes / self.bandwidth,
            "overhead": self.overheads.get(unit, 0.0),
        }

    def limit(self, op: str, shapes, dtype: str, **settings) -> str:
        """Which of the three takes longest: "arithmetic", "memory" or "overhead"."""
        limits = self.limits(op, shapes, dtype, **settings)
        return max(limits, key=limits.get)

    def gain(self, op: str, shapes, fast: str, slow: str = "fp32", **settings) -> float:
        """Predicted time in `slow` divided by that in `fast`: of both the longest of the three limits."""
        times = [max(self.limits(op, shapes, dtype, **settings).values()) for dtype in (slow, fast)]
        return times[0] / times[1]


def of_gpu(row: dict) -> Roofline:
    """The roofline of a row of the GPU table, from its datasheet: dense peaks, float32 accumulation."""
    keys = {
        "fp32": "fp32_nontensor",
        "tf32": "tf32",
        "fp16": "fp16_fp32acc",
        "bf16": "bf16",
        "fp8": "fp8",
        "fp4": "fp4",
    }
    peaks = {name: row["dense_tflops"][key] * 1e12 for name, key in keys.items() if row["dense_tflops"][key]}
    return Roofline(row["name"], row["bandwidth_gb_s"] * 1e9, peaks)


@cache
def roofline(device: str = "cpu", seconds: float = SECONDS) -> Roofline:
    """Measures this machine: the speed of a copy, of the largest affordable product and of a tiny one in each format.

    What it finds is what torch reaches here, not a datasheet's peak. On a CPU one thread. Takes about `seconds`, once
    per process: the result is kept. A GPU with TF32 has an entry of its own for it; "fp32" is full float32, whatever
    the flags say, and the flags are as before afterwards.
    """
    from ampedu.device import this_machine

    machine = this_machine(device)
    on_gpu = not device.startswith("cpu")
    formats = ["fp32", "bf16", "fp16"] + (["tf32"] if machine.tf32 == "yes" and machine.backend == "cuda" else [])
    share = seconds / (len(formats) + 1)
    peaks = {name: _peak(name, device, 8192 if on_gpu else 1024, share) for name in formats}
    overheads = {name: _product_time(name, device, 16, 0.01).median for name in formats}
    return Roofline(machine.name, _bandwidth(device, 2**28 if on_gpu else 2**24, share), peaks, overheads)


def _bandwidth(device: str, elements: int, seconds: float) -> float:
    """Bytes per second of a copy: read once, written once."""
    import torch

    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    timing = measure(lambda: target.copy_(source), device, min_seconds=seconds / 2, max_samples=30)
    return 2 * source.nbytes / min(timing.samples)


def _peak(name: str, device: str, largest: int, seconds: float) -> float:
    """Operations per second of a square product in a format, at the largest size that the time allows."""
    size, spent = 128, 0.0
    while True:
        start = time.perf_counter()
        timing = _product_time(name, device, size, seconds / 6)
        spent += time.perf_counter() - start
        # Twice the size takes eight times as long, and a measurement has at least eight calls.
        if size >= largest or spent + 64 * timing.median > seconds:
            return 2 * size**3 / min(timing.samples)  # a roof: the best that was seen
        size *= 2


def _product_time(name: str, device: str, size: int, seconds: float) -> Timing:
    """The time of a square product in a format, with the float32 flags set accordingly."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    with float32_precision("tf32" if name == "tf32" else "ieee"):
        return measure(lambda: a @ b, device, min_seconds=seconds, max_samples=12)
