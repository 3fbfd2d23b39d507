"""The machine's description, from facts of machines that are not here."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from ampedu import _card, _facts, device
from ampedu._facts import Facts, Gpu
from ampedu.device import DeviceError, describe, gpu_row, gpu_table, has_kernels, resolve, this_machine

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")  # architectures of a CUDA 13 wheel


def facts(gpu=None, flags=frozenset(), architecture="x86_64", **changes):
    base = Facts(
        system="Linux",
        architecture=architecture,
        cpu_name="A CPU",
        cpu_flags=flags,
        memory_bytes=16 * 2**30,
        cores=8,
        threads=8,
        python="3.12.1",
        torch="2.13.0",
        float32_flags=(("cuda.matmul", "none"),),
        gpu=gpu,
    )
    return dataclasses.replace(base, **changes)


def nvidia(name, capability, built_for=WHEEL):
    return describe("cuda", facts(Gpu("cuda", name, capability, None, 80 * 2**30, built_for)))


# name, capability → bf16, tf32, Tensor Core generation, has fp8. Source: CUDA C++ Programming Guide, whitepapers.
NVIDIA = [
    ("Tesla P100-PCIE-16GB", (6, 0), "emulated", "no", None, False),
    ("Tesla V100-SXM2-16GB", (7, 0), "emulated", "no", 1, False),
    ("Tesla T4", (7, 5), "emulated", "no", 2, False),
    ("NVIDIA GeForce RTX 2080 Ti", (7, 5), "emulated", "no", 2, False),
    ("NVIDIA GeForce GTX 1660 Ti", (7, 5), "emulated", "no", None, False),
    ("NVIDIA T1000", (7, 5), "emulated", "no", None, False),
    ("NVIDIA A100-SXM4-40GB", (8, 0), "native", "yes", 3, False),
    ("NVIDIA GeForce RTX 3090", (8, 6), "native", "yes", 3, False),
    ("NVIDIA L4", (8, 9), "native", "yes", 4, True),
    ("NVIDIA H200", (9, 0), "native", "yes", 4, True),
    ("NVIDIA B200", (10, 0), "native", "yes", 5, True),
    ("NVIDIA GeForce RTX 5090", (12, 0), "native", "yes", 5, True),
]


@pytest.mark.parametrize(("name", "capability", "bf16", "tf32", "generation", "fp8"), NVIDIA)
def test_nvidia(name, capability, bf16, tf32, generation, fp8):
    machine = nvidia(name, capability)
    assert (machine.bf16, machine.tf32) == (bf16, tf32)
    assert machine.matrix_units == ((f"Tensor Cores, generation {generation}",) if generation else ())
    assert ("fp8" in machine.matrix_dtypes) is fp8
    assert ("bf16" in machine.matrix_dtypes) is (bf16 == "native")
    assert machine.capability == f"{capability[0]}.{capability[1]}"


def test_a_capability_that_nobody_knows_yet_is_not_invented():
    machine = nvidia("NVIDIA X999", (15, 0))
    assert machine.matrix_units == ("Tensor Cores, generation unknown to this course",)
    assert machine.bf16 == "native"


def test_bf16_of_a_t4_is_not_what_torch_says_by_default(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    machine = nvidia("Tesla T4", (7, 5))
    assert machine.bf16 == "emulated"
    assert any("emulates" in sentence for sentence in machine.elsewhere)


@pytest.mark.parametrize(
    ("architecture", "bf16", "tf32", "unit"),
    [
        ("gfx942", "native", "yes", "Matrix Cores (CDNA)"),
        ("gfx90a", "native", "no", "Matrix Cores (CDNA)"),
        ("gfx1100", "native", "no", "WMMA instructions (RDNA)"),
        ("gfx906", "unknown", "no", "unknown"),
    ],
)
def test_amd(architecture, bf16, tf32, unit):
    machine = describe("cuda", facts(Gpu("rocm", "AMD Instinct", None, architecture, 192 * 2**30)))
    assert (machine.backend, machine.bf16, machine.tf32, machine.matrix_units) == ("rocm", bf16, tf32, (unit,))
    assert machine.capability == architecture


def test_mps_claims_nothing():
    machine = describe("mps", facts(Gpu("mps", "Apple M2"), None, "arm64", system="Darwin"))
    assert (machine.bf16, machine.matrix_units, machine.tf32) == ("unknown", ("unknown",), "no")


X86 = [
    ({"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_fp16"}, "native", ("AMX",), ("bf16", "int8"), 2),
    ({"avx512f", "avx512_bf16"}, "native", (), (), 1),
    ({"avx512f", "avx512_fp16"}, "emulated", (), (), 1),
    ({"avx2", "fma"}, "emulated", (), (), 0),
    ({"amx_tile", "amx_int8"}, "emulated", ("AMX",), ("int8",), 0),
]


@pytest.mark.parametrize(("flags", "bf16", "units", "dtypes", "vectors"), X86)
def test_x86(flags, bf16, units, dtypes, vectors):
    machine = describe("cpu", facts(flags=frozenset(flags)))
    assert (machine.bf16, machine.matrix_units, machine.matrix_dtypes) == (bf16, units, dtypes)
    assert len(machine.vector_units) == vectors
    assert any("really faster" in sentence for sentence in machine.measures) is ("bf16" in dtypes)


def test_arm_and_a_system_that_does_not_tell():
    assert describe("cpu", facts(flags=frozenset({"bf16"}), architecture="aarch64")).bf16 == "native"
    assert describe("cpu", facts(flags=frozenset({"asimd"}), architecture="aarch64")).bf16 == "emulated"
    assert describe("cpu", facts(flags=None)).bf16 == "unknown"


def test_parse_cpuinfo():
    assert _facts.parse_cpuinfo("processor : 0\nflags\t\t: fpu amx_tile avx2\n") == {"fpu", "amx_tile", "avx2"}
    assert _facts.parse_cpuinfo("Features : asimd bf16\n") == {"asimd", "bf16"}
    assert _facts.parse_cpuinfo("nothing\n") is None


def gpu(capability, *built_for):
    return Gpu("cuda", "GPU", capability, built_for=built_for)


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (gpu((8, 6), "sm_80"), True),
        (gpu((8, 0), "sm_86"), False),
        (gpu((7, 0), *WHEEL), False),
        (gpu((13, 0), *WHEEL), True),  # by way of PTX
        (gpu((13, 0), "sm_120"), False),
        (gpu((9, 0), "sm_90a"), True),
        (gpu((10, 0), "sm_90a"), False),
        (gpu((10, 3), "sm_100f"), True),
        (gpu((8, 0)), True),  # torch did not tell
        (Gpu("rocm", "AMD", None, "gfx942", None, ("gfx90a", "gfx942:sramecc+")), True),
        (Gpu("rocm", "AMD", None, "gfx906", None, ("gfx90a",)), False),
        (Gpu("mps", "Apple"), True),
    ],
)
def test_has_kernels(card, expected):
    assert has_kernels(card) is expected


def fake_backends(**flags):
    new = {name: SimpleNamespace(fp32_precision=value) for name, value in flags.items()}
    return SimpleNamespace(
        backends=SimpleNamespace(
            cuda=SimpleNamespace(matmul=new.get("cuda", SimpleNamespace())),
            cudnn=SimpleNamespace(conv=new.get("conv", SimpleNamespace()), allow_tf32=True),
            mkldnn=SimpleNamespace(),
        ),
        get_float32_matmul_precision=lambda: "high",
    )


def test_flags_by_the_new_interface_never_touch_the_old_one():
    fake = fake_backends(cuda="tf32", conv="none")

    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    fake.get_float32_matmul_precision = mixed
    assert _facts.float32_flags(fake) == (("cuda.matmul", "tf32"), ("cudnn.conv", "none"))


def test_flags_by_the_old_interface_where_there_is_no_new_one():
    assert _facts.float32_flags(fake_backends()) == (
        ("float32_matmul_precision", "high"),
        ("cudnn.allow_tf32", "True"),
    )


def test_flags_are_readable_after_the_two_interfaces_disagree():
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert dict(_facts.float32_flags(torch))["cuda.matmul"] == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_resolve(monkeypatch):
    monkeypatch.setattr(device, "_available", lambda kind: {"cpu": 1, "cuda": 2}.get(kind, 0))
    monkeypatch.setattr(device, "_usable_cuda", lambda: True)
    assert [resolve(x) for x in ("auto", "cpu", "CUDA:1")] == ["cuda", "cpu", "cuda:1"]
    assert resolve(torch.device("cpu")) == "cpu"
    monkeypatch.setattr(device, "_usable_cuda", lambda: False)
    assert resolve("auto") == "cpu"
    with pytest.raises(DeviceError, match="end at cuda:1"):
        resolve("cuda:2")
    with pytest.raises(DeviceError, match=r"no such device here.*cpu"):
        resolve("mps")
    for unknown in ("gpu", "cuda:", "cuda:x", ""):
        with pytest.raises(DeviceError, match="unknown"):
            resolve(unknown)


def test_resolve_reads_the_environment_for_auto_only(monkeypatch):
    monkeypatch.setattr(device, "_available", lambda kind: 1)
    monkeypatch.setattr(device, "_usable_cuda", lambda: True)
    monkeypatch.setenv("AMPEDU_DEVICE", "cpu")
    assert resolve("auto") == "cpu"
    assert resolve("cuda") == "cuda"
    monkeypatch.setenv("AMPEDU_DEVICE", "warp")
    with pytest.raises(DeviceError, match="AMPEDU_DEVICE is 'warp'"):
        resolve("auto")


def test_auto_takes_the_cpu_if_torch_has_no_kernels_for_the_gpu(monkeypatch):
    monkeypatch.setattr(device, "_available", lambda kind: 1)
    monkeypatch.setattr(_facts, "read_gpu", lambda torch, name: gpu((7, 0), *WHEEL))
    assert resolve("auto") == "cpu"


def test_this_machine_here_agrees_with_torch():
    machine = this_machine("cpu")
    assert (machine.torch, machine.threads) == (torch.__version__, torch.get_num_threads())
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.bf16 = "native"
    amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    if amx is not None and machine.matrix_units != ("unknown",):
        assert ("AMX" in machine.matrix_units) == amx()


def test_gpu_table_is_dense_sourced_and_found_by_torch_names():
    for row in gpu_table():
        assert row["source"] and row["match"], row["name"]
        assert set(row["dense_tflops"]) == set(gpu_table()[0]["dense_tflops"])
    names = {
        "Tesla T4": "T4",
        "Tesla V100-SXM2-16GB": "V100 SXM2",
        "NVIDIA A100-SXM4-80GB": "A100 SXM4 80GB",
        "NVIDIA H100 80GB HBM3": "H100 SXM5",
        "NVIDIA H200": "H200 SXM",
        "NVIDIA L40S": "L40S",
        "NVIDIA L4": "L4",
        "NVIDIA GB200": "GB200 (per GPU, 1200 W)",
        "NVIDIA B200": "B200 (HGX, 1000 W)",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
        "AMD Instinct MI300X": "AMD MI300X",
    }
    assert {name: gpu_row(name)["name"] for name in names} == names
    # Slower relatives with the same stem in their name must not inherit the row.
    for other in ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA L40"):
        assert gpu_row(other) is None, other
    # Datasheets print twice these numbers, with sparsity.
    assert gpu_row("NVIDIA H200")["dense_tflops"]["bf16"] == 989.4
    assert gpu_row("NVIDIA A100-SXM4-40GB")["dense_tflops"]["bf16"] == 312


def test_generations_agree_with_the_gpu_table():
    for row in gpu_table():
        if row["tensor_core_generation"] is not None:
            capability = tuple(int(part) for part in row["capability"].split("."))
            assert device.TENSOR_CORES[capability][0] == row["tensor_core_generation"], row["name"]


@pytest.mark.parametrize("note", [None, "Times <b>do not</b> matter here."])
def test_card(note, capsys):
    machine = nvidia("NVIDIA H200", (9, 0))
    html, text = _card.as_html(machine, note), _card.as_text(machine, note)
    for part in ("NVIDIA H200", "9.0", "native", "Tensor Cores, generation 4", "torch 2.13.0", "full float32"):
        assert part in html and part in text
    assert "<script" not in html and "<b>" not in html
    assert 'scope="row"' in html and "aria-label" in html
    assert "color:#fff" not in html and "background" not in html  # follows the theme around it
    assert (note is None) or note in text
    machine.card(note)
    assert "NVIDIA H200" in capsys.readouterr().out


def test_card_says_when_float32_products_are_rounded():
    machine = dataclasses.replace(nvidia("NVIDIA H200", (9, 0)), float32_flags=(("cuda.matmul", "tf32"),))
    assert "float32 products now: TF32" in _card.as_text(machine, None)
