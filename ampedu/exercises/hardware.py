"""Processors as data for the exercises on hardware: what software reports about them, and their speeds."""

from typing import NamedTuple


def nvidia(name, major, minor):
    """What torch reports; torch.cuda.is_bf16_supported() counts emulation, so it is True for all of these."""
    return _device(name, "cuda", capability=(major, minor), is_bf16_supported=True)


def amd(name, architecture, major, minor):
    """What torch reports: a capability as well, though it is the number of the architecture; always bf16."""
    return _device(name, "rocm", capability=(major, minor), architecture=architecture, is_bf16_supported=True)


def cpu(name, flags):
    """Some of the flags that the system reports."""
    return _device(name, "cpu", flags=flags)


def _device(name, backend, capability=None, architecture=None, flags=None, is_bf16_supported=None):
    return {
        "name": name,
        "backend": backend,
        "capability": capability,
        "architecture": architecture,
        "flags": flags,
        "is_bf16_supported": is_bf16_supported,
    }


# Sources: CUDA C++ Programming Guide, "Compute Capabilities"; LLVM, "User Guide for AMDGPU Backend", processors; the
# instruction set manuals of CDNA and RDNA; Intel and Arm architecture manuals. One of each group goes into an exercise.
DEVICES = {
    "before Tensor Cores": (nvidia("Tesla P100", 6, 0), nvidia("GTX 1080 Ti", 6, 1)),
    "Volta": (nvidia("Tesla V100", 7, 0), nvidia("TITAN V", 7, 0)),
    "Turing": (nvidia("Tesla T4", 7, 5), nvidia("RTX 2080 Ti", 7, 5), nvidia("GTX 1660 Ti", 7, 5)),
    "first with bf16": (nvidia("A100", 8, 0), nvidia("A30", 8, 0)),
    "Ampere and Ada": (nvidia("RTX 3090", 8, 6), nvidia("A10", 8, 6), nvidia("L4", 8, 9), nvidia("RTX 4090", 8, 9)),
    "Hopper and Blackwell": (nvidia("H100", 9, 0), nvidia("B200", 10, 0), nvidia("RTX 5090", 12, 0)),
    "CDNA": (
        amd("MI300X", "gfx942:sramecc+:xnack-", 9, 4),
        amd("MI250X", "gfx90a:sramecc+:xnack-", 9, 0),
        amd("MI100", "gfx908:sramecc+:xnack-", 9, 0),
    ),
    "new RDNA": (amd("RX 7900 XTX", "gfx1100", 11, 0), amd("RX 9070 XT", "gfx1201", 12, 0)),
    "old AMD": (amd("RX 6800 XT", "gfx1030", 10, 3), amd("MI50", "gfx906:sramecc+:xnack-", 9, 0)),
    "x86 with bf16": (
        cpu("Xeon, Sapphire Rapids", "avx2 avx512f avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16"),
        cpu("Xeon, Cooper Lake", "avx2 avx512f avx512_vnni avx512_bf16"),
        cpu("EPYC, Zen 4", "avx2 avx512f avx512_vnni avx512_bf16"),
    ),
    "Arm with bf16": (cpu("Graviton 3", "asimd asimdhp sve i8mm bf16 svebf16"), cpu("Apple M2", "asimd i8mm bf16")),
    "AVX-512 without bf16": (
        cpu("Xeon, Skylake", "avx2 avx512f avx512bw"),
        cpu("Xeon, Ice Lake", "avx2 avx512f avx512bw avx512_vnni"),
    ),
    "old CPU": (cpu("Core i7, Coffee Lake", "avx avx2 fma"), cpu("EPYC, Zen 3", "avx avx2 fma")),
}


class Unit(NamedTuple):
    """Tensor Cores of a GPU and the figures of its datasheet: SMs, cores per SM, FMAs per core and clock, clock."""

    sms: int
    cores: int
    fmas: int
    ghz: float
    printed: tuple[float, ...]


# Sources: the V100, T4 and A100 datasheets, the Turing, Ampere and Hopper whitepapers; 16-bit inputs, boost clock.
# Printed are also the figures beside it: of float64, float32, TF32 and INT8, and those with sparsity.
DATASHEETS = {
    "V100": Unit(80, 8, 64, 1.53, (7.8, 15.7, 125.0)),
    "T4": Unit(40, 8, 64, 1.59, (8.1, 65.0, 130.0, 260.0)),
    "A100": Unit(108, 4, 256, 1.41, (19.5, 156.0, 312.0, 624.0)),
    "H100 SXM": Unit(132, 4, 512, 1.83, (66.9, 494.7, 989.4, 1978.9)),
}

# Dense peaks in TFLOP/s and GB/s from the datasheets; microseconds that a call takes at least: assumed.
MACHINES = {
    "T4": {"fp32": 8.1, "16-bit": 65.0, "bandwidth": 320.0, "overhead": 5.0},
    "A100": {"fp32": 19.5, "16-bit": 312.0, "bandwidth": 1555.0, "overhead": 5.0},
    "RTX 4090": {"fp32": 82.6, "16-bit": 165.2, "bandwidth": 1008.0, "overhead": 4.0},
    "H100 SXM": {"fp32": 66.9, "16-bit": 989.4, "bandwidth": 3350.0, "overhead": 4.0},
    "a GPU without matrix units": {"fp32": 11.0, "16-bit": 11.0, "bandwidth": 480.0, "overhead": 6.0},
}
SMS = {"T4": 40, "V100": 80, "RTX 3090": 82, "A100": 108, "RTX 4090": 128, "H100 SXM": 132}
