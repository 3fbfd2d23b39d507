"""Raw facts about the machine, as the system and torch report them; ``ampedu.device`` draws the conclusions."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MISSING = object()

# Where torch keeps the precision of float32 operations since 2.9. Reading these is safe whatever was set before.
PRECISION_FLAGS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


@dataclass(frozen=True)
class Gpu:
    """One accelerator as torch reports it."""

    kind: str  # "cuda", "rocm", "mps" or "xpu"
    name: str
    capability: tuple[int, int] | None = None  # NVIDIA only
    architecture: str | None = None  # AMD only, e.g. "gfx942"
    memory_bytes: int | None = None
    built_for: tuple[str, ...] = ()  # architectures that the installed torch has kernels for


@dataclass(frozen=True)
class Facts:
    """What was read. ``cpu_flags``: what torch may use of the CPU; None where the system does not tell."""

    system: str
    architecture: str
    cpu_name: str
    cpu_flags: frozenset[str] | None
    memory_bytes: int | None
    cores: int
    threads: int
    python: str
    torch: str
    float32_flags: tuple[tuple[str, str], ...]
    gpu: Gpu | None = None


def read(device: str) -> Facts:
    """Reads the facts about this machine and, unless `device` is "cpu", about that accelerator."""
    import torch

    system = platform.system()
    return Facts(
        system=system,
        architecture=platform.machine(),
        cpu_name=cpu_name(system),
        cpu_flags=allowed(cpu_flags(system), os.environ.get("ONEDNN_MAX_CPU_ISA", "")),
        memory_bytes=memory_bytes(),
        cores=cores(),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        float32_flags=float32_flags(torch),
        gpu=read_gpu(torch, device),
    )


def read_gpu(torch, device: str) -> Gpu | None:
    """The accelerator behind `device` ("cuda", "cuda:1", "mps", "xpu"); None for "cpu"."""
    kind, _, index = device.partition(":")
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(int(index) if index else torch.cuda.current_device())
        built_for = tuple(torch.cuda.get_arch_list())
        if torch.version.hip:
            architecture = properties.gcnArchName.partition(":")[0]
            return Gpu("rocm", properties.name, None, architecture, properties.total_memory, built_for)
        capability = (properties.major, properties.minor)
        return Gpu("cuda", properties.name, capability, None, properties.total_memory, built_for)
    if kind == "xpu":
        properties = torch.xpu.get_device_properties(int(index) if index else torch.xpu.current_device())
        return Gpu("xpu", properties.name, memory_bytes=properties.total_memory)
    if kind == "mps":
        return Gpu("mps", sysctl("machdep.cpu.brand_string") or "Apple GPU")
    return None


def float32_flags(torch) -> tuple[tuple[str, str], ...]:
    """The live precision of float32 matrix products and convolutions, as (name, value) pairs.

    torch has an old interface (``allow_tf32``, ``get_float32_matmul_precision``) and a new one (``fp32_precision``).
    Reading the old one raises RuntimeError once the two disagree; so it is read only where the new one does not exist.
    """
    found = []
    for name in PRECISION_FLAGS:
        value = _follow(torch.backends, f"{name}.fp32_precision")
        if value is not MISSING:
            found.append((name, str(value)))
    if found:
        return tuple(found)
    return (
        ("float32_matmul_precision", torch.get_float32_matmul_precision()),
        ("cudnn.allow_tf32", str(torch.backends.cudnn.allow_tf32)),
    )


def _follow(start, path: str):
    for name in path.split("."):
        start = getattr(start, name, MISSING)
        if start is MISSING:
            return MISSING
    return start


def cpu_name(system: str) -> str:
    """The processor's name, or its architecture where the system does not tell the name."""
    if system == "Linux":
        text = _read_text("/proc/cpuinfo")
        match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        if match:
            return match.group(1).strip()
    elif system == "Darwin":
        name = sysctl("machdep.cpu.brand_string")
        if name:
            return name
    return platform.processor() or platform.machine() or "unknown CPU"


def cpu_flags(system: str) -> frozenset[str] | None:
    """The instruction-set flags in the spelling of /proc/cpuinfo; None where the system does not tell them."""
    if system == "Linux":
        return parse_cpuinfo(_read_text("/proc/cpuinfo"))
    if system == "Darwin" and platform.machine() == "arm64":
        found = {name.lower() for name in ("BF16", "FP16", "SME") if sysctl(f"hw.optional.arm.FEAT_{name}") == "1"}
        return frozenset(found)
    return None


def allowed(flags: frozenset[str] | None, limit: str) -> frozenset[str] | None:
    """The flags without those that oneDNN must not use by the environment variable ONEDNN_MAX_CPU_ISA, e.g. "AVX2"."""
    limit = limit.upper()
    if flags is None or limit in ("", "ALL", "DEFAULT") or "AMX" in limit:
        return flags
    kept = {"avx512_bf16": "BF16" in limit or "FP16" in limit, "avx512_fp16": "FP16" in limit}
    return frozenset(flag for flag in flags if kept.get(flag, not flag.startswith("amx_")))


def parse_cpuinfo(text: str) -> frozenset[str] | None:
    """The flags in the text of /proc/cpuinfo: the line "flags" on x86, "Features" on Arm; None if there is neither."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(match.group(1).split()) if match else None


def sysctl(name: str) -> str | None:
    """One value of macOS's sysctl; None if there is none."""
    try:
        done = subprocess.run(["sysctl", "-n", name], check=False, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def memory_bytes() -> int | None:
    """Memory that this process may use: the smaller of the machine's and the container's limit; None if unknown."""
    known = []
    try:
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # no sysconf on Windows
        pass
    limit = _read_text("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        known.append(int(limit))
    return min(known) if known else None


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_text(path: str) -> str:
    if sys.platform == "win32":
        return ""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
