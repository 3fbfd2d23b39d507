"""What this machine can do, honestly: which device, native or emulated bf16, matrix units, live float32 flags."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ampedu import _facts
from ampedu._facts import Facts, Gpu

KINDS = ("cpu", "cuda", "mps", "xpu")

# NVIDIA: compute capability → (Tensor Core generation, dtypes that they multiply).
# Source: CUDA C++ Programming Guide, "Compute Capabilities", and the architecture whitepapers named in data/gpus.json.
TENSOR_CORES = {
    (7, 0): (1, ("fp16",)),
    (7, 2): (1, ("fp16", "int8")),
    (7, 5): (2, ("fp16", "int8")),
    (8, 0): (3, ("fp16", "bf16", "tf32", "int8")),
    (8, 6): (3, ("fp16", "bf16", "tf32", "int8")),
    (8, 7): (3, ("fp16", "bf16", "tf32", "int8")),
    (8, 9): (4, ("fp16", "bf16", "tf32", "fp8", "int8")),
    (9, 0): (4, ("fp16", "bf16", "tf32", "fp8", "int8")),
    (10, 0): (5, ("fp16", "bf16", "tf32", "fp8", "fp6", "fp4")),
    (10, 3): (5, ("fp16", "bf16", "tf32", "fp8", "fp6", "fp4")),
    (12, 0): (5, ("fp16", "bf16", "tf32", "fp8", "fp6", "fp4")),
    (12, 1): (5, ("fp16", "bf16", "tf32", "fp8", "fp6", "fp4")),
}
# Turing chips TU116 and TU117 report capability 7.5 and have no Tensor Cores.
TURING_WITHOUT_TENSOR_CORES = re.compile(r"GTX 16\d\d|MX ?[45]50|Quadro T\d+|\bT(400|500|550|600|1000|1200|2000)\b")


class DeviceError(RuntimeError):
    """The device asked for does not exist, or not here; the message says what to do."""


@dataclass(frozen=True)
class Machine:
    """The conclusions about one device of this machine. Sizes in bytes.

    bf16 is "native", "emulated" (it runs, by way of float32, and gains no speed) or "unknown". matrix_units are units
    that multiply whole tiles, vector_units are low-precision vector instructions; "unknown" stands alone where nothing
    is known.
    """

    device: str
    name: str
    backend: str  # "cpu", "cuda", "rocm", "mps" or "xpu"
    capability: str | None  # "9.0" on NVIDIA, "gfx942" on AMD
    memory_bytes: int | None
    bf16: str
    matrix_units: tuple[str, ...]
    matrix_dtypes: tuple[str, ...]
    vector_units: tuple[str, ...]
    tf32: str  # "yes", "no" or "unknown": whether the device can; the flags say whether it does
    float32_flags: tuple[tuple[str, str], ...]
    cores: int
    threads: int
    python: str
    torch: str
    has_kernels: bool  # the installed torch was built for this device
    measures: tuple[str, ...]  # what can be measured here
    elsewhere: tuple[str, ...]  # what cannot

    @property
    def peaks(self) -> dict | None:
        """The row of the GPU table for this device (dense peaks in TFLOP/s, GB/s); None if there is none."""
        return gpu_row(self.name) if self.backend in ("cuda", "rocm") else None

    def card(self, note: str | None = None) -> None:
        """Displays the device card, with `note` (one sentence of the lesson) below it."""
        from ampedu._card import show

        show(self, note)


def resolve(device: str = "auto") -> str:
    """The device to use, as torch spells it: "cpu", "cuda", "cuda:1", "mps" or "xpu".

    "auto" is the environment variable AMPEDU_DEVICE if it is set, else "cuda" if there is a GPU that the installed
    torch can use, else "cpu". Raises DeviceError for a device that is unknown or not available here.
    """
    asked, origin = str(device).strip().lower(), "device"
    if asked == "auto":
        asked, origin = os.environ.get("AMPEDU_DEVICE", "").strip().lower() or "auto", "AMPEDU_DEVICE"
    if asked == "auto":
        return "cuda" if _usable_cuda() else "cpu"
    kind, _, index = asked.partition(":")
    if kind not in KINDS or (":" in asked and not index.isdigit()):
        raise DeviceError(f"{origin} is {asked!r}: unknown. Use auto, cpu, cuda, cuda:1 (the second GPU), mps or xpu.")
    count = _available(kind)
    if count == 0:
        raise DeviceError(
            f"{origin} is {asked!r}, but torch finds no such device here. Use device = 'auto' (or 'cpu'); "
            "`ampedu doctor` shows what this machine has."
        )
    if index and int(index) >= count:
        raise DeviceError(f"{origin} is {asked!r}, but the numbers here end at {kind}:{count - 1}.")
    return asked


def _available(kind: str) -> int:
    """How many devices of that kind torch finds."""
    import torch

    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = torch.cuda if kind == "cuda" else torch.xpu
    return module.device_count() if module.is_available() else 0


def _usable_cuda() -> bool:
    """A GPU is there and the installed torch has kernels for it (a V100 under a wheel without Volta has none)."""
    import torch

    return _available("cuda") > 0 and has_kernels(_facts.read_gpu(torch, "cuda"))


def this_machine(device: str = "cpu", read: Callable[[str], Facts] = _facts.read) -> Machine:
    """Describes `device` ("auto" is resolved first). `read` gives the raw facts; tests pass their own."""
    device = resolve(device)
    return describe(device, read(device))


def describe(device: str, facts: Facts) -> Machine:
    """The conclusions from raw facts; a pure function."""
    gpu = facts.gpu
    if gpu is None:
        bf16, units, dtypes, vectors = cpu_units(facts)
        tf32, name, backend, capability, memory = "no", facts.cpu_name, "cpu", None, facts.memory_bytes
    else:
        bf16, units, dtypes, tf32 = gpu_units(gpu)
        name, backend, memory, vectors = gpu.name, gpu.kind, gpu.memory_bytes, ()
        capability = f"{gpu.capability[0]}.{gpu.capability[1]}" if gpu.capability else gpu.architecture
    measures, elsewhere = _sentences(backend, bf16, dtypes)
    return Machine(
        device=device,
        name=name,
        backend=backend,
        capability=capability,
        memory_bytes=memory,
        bf16=bf16,
        matrix_units=units,
        matrix_dtypes=dtypes,
        vector_units=vectors,
        tf32=tf32,
        float32_flags=facts.float32_flags,
        cores=facts.cores,
        threads=facts.threads,
        python=facts.python,
        torch=facts.torch,
        has_kernels=gpu is None or has_kernels(gpu),
        measures=measures,
        elsewhere=elsewhere,
    )


def cpu_units(facts: Facts) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(bf16, matrix units, their dtypes, vector units) of a CPU from its flags."""
    flags = facts.cpu_flags
    if flags is None:
        return "unknown", ("unknown",), (), ()
    if facts.architecture.lower() not in ("x86_64", "amd64", "i386", "i686"):
        bf16 = "native" if {"bf16", "svebf16"} & flags else "emulated"
        return bf16, ("SME",) if "sme" in flags else ("unknown",), (), ()
    vectors = tuple(
        name for name, flag in (("AVX512-BF16", "avx512_bf16"), ("AVX512-FP16", "avx512_fp16")) if flag in flags
    )
    dtypes = ()
    if "amx_tile" in flags:
        dtypes = tuple(dtype for dtype in ("bf16", "fp16", "int8") if f"amx_{dtype}" in flags)
    native = "bf16" in dtypes or "AVX512-BF16" in vectors
    return "native" if native else "emulated", ("AMX",) if dtypes else (), dtypes, vectors


def gpu_units(gpu: Gpu) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    """(bf16, matrix units, their dtypes, tf32) of an accelerator.

    torch.cuda.is_bf16_supported() is not asked: by default it counts emulation, so it says True on a T4.
    """
    if gpu.kind == "cuda":
        return _nvidia_units(gpu)
    if gpu.kind == "rocm":
        return _amd_units(gpu.architecture or "")
    return "unknown", ("unknown",), (), "no" if gpu.kind == "mps" else "unknown"


def _nvidia_units(gpu: Gpu) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    bf16, tf32 = ("native", "yes") if gpu.capability >= (8, 0) else ("emulated", "no")
    if gpu.capability in TENSOR_CORES and not TURING_WITHOUT_TENSOR_CORES.search(gpu.name):
        generation, dtypes = TENSOR_CORES[gpu.capability]
        return bf16, (f"Tensor Cores, generation {generation}",), dtypes, tf32
    if gpu.capability < (8, 0):
        return bf16, (), (), tf32
    return bf16, ("Tensor Cores, generation unknown to this course",), ("fp16", "bf16", "tf32"), tf32


def _amd_units(architecture: str) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    # torch.cuda.is_tf32_supported() has the same two prefixes.
    tf32 = "yes" if architecture.startswith(("gfx94", "gfx95")) else "no"
    if architecture.startswith(("gfx94", "gfx95")):
        return "native", ("Matrix Cores (CDNA)",), ("fp16", "bf16", "fp8", "int8"), tf32
    if architecture in ("gfx908", "gfx90a"):
        return "native", ("Matrix Cores (CDNA)",), ("fp16", "bf16", "int8"), tf32
    if architecture.startswith(("gfx11", "gfx12")):
        return "native", ("WMMA instructions (RDNA)",), ("fp16", "bf16", "int8"), tf32
    return "unknown", ("unknown",), (), tf32


def has_kernels(gpu: Gpu) -> bool:
    """Whether the installed torch was built for that GPU; True where torch does not tell.

    NVIDIA: code for sm_XY runs on the same major number from minor Y up; PTX (compute_XY) on anything newer;
    sm_90a and sm_100f are bound to their architecture or family.
    """
    if gpu.kind == "rocm":
        return not gpu.built_for or any(gpu.architecture == name.partition(":")[0] for name in gpu.built_for)
    if gpu.kind != "cuda" or not gpu.built_for:
        return True
    for name in gpu.built_for:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if not match:
            continue
        kind, capability, suffix = match[1], (int(match[2]), int(match[3])), match[4]
        if suffix == "a" and capability == gpu.capability:
            return True
        if suffix == "a":
            continue
        if capability[0] == gpu.capability[0] and capability <= gpu.capability:
            return True
        if kind == "compute" and not suffix and capability <= gpu.capability:
            return True
    return False


def _sentences(backend: str, bf16: str, dtypes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What can be measured here, and what cannot, as whole sentences."""
    measures = ["Bits, dtypes, autocast policies and loss-scale traces are the same as on every machine."]
    elsewhere = []
    if backend in ("cuda", "rocm"):
        measures.append("Speed and memory on a GPU can be measured here.")
        if bf16 == "emulated":
            elsewhere.append("A gain in speed from bf16: this GPU emulates it. Use fp16 with a GradScaler.")
        if not dtypes:
            elsewhere.append("A gain from matrix units: none that this course knows are in this GPU.")
    elif backend == "cpu":
        if "bf16" in dtypes:
            measures.append("A matrix product in bf16 is really faster here: this CPU has AMX units for it.")
        elif bf16 == "native":
            measures.append("bf16 has vector instructions here, and no matrix unit: measure before you expect a gain.")
        else:
            elsewhere.append("A gain in speed from 16-bit formats: this CPU has no instructions for them.")
        elsewhere.append("Speed and memory on a GPU.")
    else:
        measures.append("Times on this device can be measured here; the lessons on Tensor Cores speak of NVIDIA GPUs.")
        elsewhere.append("Speed and memory on a CUDA GPU.")
    return tuple(measures), tuple(elsewhere)


@cache
def gpu_table() -> tuple[dict, ...]:
    """The rows of data/gpus.json: dense peaks in TFLOP/s, bandwidth in GB/s, each row with its source."""
    text = (resources.files("ampedu") / "data" / "gpus.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["gpus"])


def gpu_row(name: str) -> dict | None:
    """The row for the device name that torch reports, e.g. "NVIDIA H200"; None if the table has no such card."""
    return next((row for row in gpu_table() if re.search(row["match"], name)), None)
