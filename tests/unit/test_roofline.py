"""Work against torch's own counter, limits against arithmetic by hand, and a roofline of this machine that is sane."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from ampedu import _facts, roofline
from ampedu.device import gpu_row, gpu_table
from ampedu.roofline import Roofline, attainable, float32_precision, flops_bytes, intensity, of_gpu

PRODUCTS = [
    ("matmul", [(5, 7), (7, 3)], {}, torch.matmul),
    ("matmul", [(2, 4, 5, 7), (2, 4, 7, 3)], {}, torch.matmul),
    ("matmul", [(2, 4, 5, 7), (7, 3)], {}, torch.matmul),
    ("matmul", [(5, 7), (6, 7, 3)], {}, torch.matmul),
    ("linear", [(5, 7), (3, 7)], {}, F.linear),
    ("linear", [(7,), (3, 7)], {}, F.linear),
    ("linear", [(2, 4, 7), (3, 7)], {}, F.linear),
    ("conv2d", [(2, 4, 9, 8), (6, 4, 3, 3)], {}, F.conv2d),
    ("conv2d", [(2, 4, 9, 8), (6, 2, 3, 3)], {}, lambda x, w: F.conv2d(x, w, groups=2)),
    ("conv2d", [(2, 4, 9, 8), (4, 1, 3, 3)], {}, lambda x, w: F.conv2d(x, w, groups=4)),
    ("conv2d", [(2, 4, 9, 8), (6, 4, 5, 3)], {"stride": 2, "padding": 1}, None),
]


@pytest.mark.parametrize(("op", "shapes", "settings", "call"), PRODUCTS)
def test_work_of_products_is_what_torch_counts(op, shapes, settings, call):
    call = call or (lambda x, w: F.conv2d(x, w, **settings))
    tensors = [torch.randn(shape) for shape in shapes]
    with FlopCounterMode(display=False) as counter:
        out = call(*tensors)
    found = flops_bytes(op, shapes, torch.float32, **settings)
    assert found.flops == counter.get_total_flops()
    assert found.bytes == sum(x.nbytes for x in (*tensors, out))
    half = flops_bytes(op, shapes, torch.bfloat16, **settings)
    assert half.flops == found.flops and 2 * half.bytes == found.bytes


@pytest.mark.parametrize("op", ["copy", "relu", "softmax", "layer_norm"])
def test_elementwise_reads_once_and_writes_once(op):
    found = flops_bytes(op, (8, 16), "fp16")
    assert found.bytes == 2 * 8 * 16 * 2
    assert found.flops == roofline.PER_ELEMENT[op] * 128
    assert flops_bytes(op, [(8, 16)], "fp16") == found


def test_add_and_embedding():
    assert flops_bytes("add", [(10,), (10,)], "fp32") == (10, 120)
    # 6 indices of 8 bytes, 6 rows of 4 numbers read, 6 written
    assert flops_bytes("embedding", [(2, 3), (100, 4)], "bf16") == (0, 6 * 8 + 2 * 6 * 4 * 2)


def test_bytes_of_formats():
    sizes = {fmt: flops_bytes("copy", (3, 5), fmt).bytes for fmt in roofline.BITS}
    assert sizes == {"fp32": 120, "tf32": 120, "bf16": 60, "fp16": 60, "fp64": 240, "fp8": 30, "fp4": 15}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert roofline.element_bits(dtype) == 8 * dtype.itemsize


def test_intensity_of_square_products_is_n_over_six_in_float32():
    # 2 n^3 operations, 3 n^2 numbers of 4 bytes
    for n in (6, 1024):
        assert intensity("matmul", [(n, n), (n, n)], "fp32") == pytest.approx(n / 6)
        assert intensity("matmul", [(n, n), (n, n)], "bf16") == pytest.approx(n / 3)


BAD = [
    ("gemm", [(2, 2), (2, 2)], "fp32", "unknown op 'gemm'"),
    ("matmul", [(2, 3), (2, 3)], "fp32", "inner sizes"),
    ("matmul", [(2, 5, 3), (3, 3, 2)], "fp32", "batches"),
    ("matmul", [(3,), (3, 3)], "fp32", "inner sizes"),
    ("matmul", [(2, 3)], "fp32", r"2 shape\(s\)"),
    ("matmul", [(2, 0), (0, 2)], "fp32", "positive"),
    ("linear", [(2, 3), (3, 2)], "fp32", "inner sizes"),
    ("conv2d", [(1, 3, 8, 8), (4, 2, 3, 3)], "fp32", "groups"),
    ("conv2d", [(1, 3, 2, 2), (4, 3, 3, 3)], "fp32", "larger than the padded image"),
    ("add", [(2,), (3,)], "fp32", "equal shapes"),
    ("relu", (4,), "int3", "unknown dtype"),
]


@pytest.mark.parametrize(("op", "shapes", "dtype", "message"), BAD)
def test_bad_input_is_named(op, shapes, dtype, message):
    with pytest.raises(ValueError, match=message):
        flops_bytes(op, shapes, dtype)


def test_the_roof():
    assert attainable(2.0, peak=100.0, bandwidth=10.0) == 20.0
    assert attainable(10.0, peak=100.0, bandwidth=10.0) == 100.0
    assert attainable(1e9, peak=100.0, bandwidth=10.0) == 100.0
    roof = Roofline("toy", 10.0, {"fp32": 100.0, "bf16": 800.0})
    assert roof.ridge("bf16") == 80.0 and roof.attainable(80.0, "fp32") == 100.0


def test_limits_and_gains_by_hand():
    roof = Roofline("toy", bandwidth=1e9, peaks={"fp32": 1e10, "bf16": 8e10}, overheads={"fp32": 1e-6, "bf16": 4e-6})
    big = ("matmul", [(1024, 1024)] * 2)
    assert roof.limit(*big, "fp32") == roof.limit(*big, "bf16") == "arithmetic"
    assert roof.gain(*big, "bf16") == pytest.approx(8.0)
    one_row = ("linear", [(1, 1024), (1024, 1024)])
    assert roof.limit(*one_row, "fp32") == "memory" and roof.gain(*one_row, "bf16") == pytest.approx(2.0)
    tiny = ("matmul", [(4, 4)] * 2)
    assert roof.limit(*tiny, "bf16") == "overhead" and roof.gain(*tiny, "bf16") == pytest.approx(0.25)
    assert roof.limits(*big, "bf16")["memory"] == pytest.approx(3 * 2**20 * 2 / 1e9)


def test_only_products_use_the_matrix_unit():
    slow_low = Roofline("a CPU without bf16 products", bandwidth=1e9, peaks={"fp32": 1e10, "bf16": 1e8})
    assert slow_low.gain("matmul", [(256, 256)] * 2, "bf16") < 0.1
    assert slow_low.gain("softmax", (256, 256), "bf16") == pytest.approx(2.0)


def test_gpu_table_as_rooflines():
    for row in gpu_table():
        roof = of_gpu(row)
        assert roof.bandwidth == row["bandwidth_gb_s"] * 1e9 and roof.overheads == {}
        assert "fp32" in roof.peaks and "fp16" in roof.peaks and all(peak > 0 for peak in roof.peaks.values())
        assert ("bf16" in roof.peaks) == (row["capability"] not in ("7.0", "7.5"))
    # NVIDIA's whitepaper: 312 TFLOP/s and 2039 GB/s.
    assert of_gpu(gpu_row("NVIDIA A100-SXM4-80GB")).ridge("bf16") == pytest.approx(312e12 / 2039e9)
    assert {row["name"]: row["sms"] for row in gpu_table() if row["name"] in ("T4", "H100 SXM5")} == {
        "T4": 40,
        "H100 SXM5": 132,
    }


def test_precision_flags_are_restored_and_both_apis_stay_readable():
    flags = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    for setting in ("highest", "high"):
        torch.set_float32_matmul_precision(setting)
        before = [flag.fp32_precision for flag in flags]
        with pytest.raises(ZeroDivisionError), float32_precision("ieee"):
            assert [flag.fp32_precision for flag in flags] == ["ieee", "ieee"]
            raise ZeroDivisionError
        assert [flag.fp32_precision for flag in flags] == before
        assert torch.get_float32_matmul_precision() == setting
        assert torch.backends.cuda.matmul.allow_tf32 == (setting == "high")
    torch.set_float32_matmul_precision("highest")
    for flag in flags:
        flag.fp32_precision = "none"


def test_roofline_of_this_machine_is_measured_once_and_sane():
    threads = torch.get_num_threads()
    found = roofline.roofline("cpu", seconds=0.2)
    assert roofline.roofline("cpu", seconds=0.2) is found
    assert set(found.peaks) == set(found.overheads) == {"fp32", "bf16", "fp16"}
    for number in (found.bandwidth, *found.peaks.values(), *found.overheads.values()):
        assert math.isfinite(number) and number > 0
    assert 1e6 < found.bandwidth < 1e13 and 1e6 < found.peaks["fp32"] < 1e13
    assert torch.get_num_threads() == threads
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.bandwidth = 1.0


def test_units_that_onednn_must_not_use_do_not_count():
    flags = frozenset({"avx2", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16"})
    for unlimited in ("", "ALL", "default", "AVX512_CORE_AMX", "AVX10_1_512_AMX"):
        assert _facts.allowed(flags, unlimited) == flags
    assert _facts.allowed(flags, "AVX2") == {"avx2"}
    assert _facts.allowed(flags, "avx512_core_bf16") == {"avx2", "avx512_bf16"}
    assert _facts.allowed(flags, "AVX512_CORE_FP16") == {"avx2", "avx512_bf16", "avx512_fp16"}
    assert _facts.allowed(None, "AVX2") is None
