"""Lab 03: the shared rules, and its solutions against torch, ml_dtypes, brute force, and devices that are simulated."""

import functools
import itertools
import math
import time

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from ampedu.device import describe, gpu_table
from ampedu.exercises.hardware import DATASHEETS, DEVICES, MACHINES, SMS
from ampedu.exercises.simulated import TICK, SimulatedDevice
from ampedu.exercises.stream import Stream
from ampedu.formats import round_to
from tests.labs.common import LabTests, lab

STEM = "03_tensor_cores"
SECRETS = [b"public", b"x", b"y", b"z"]


class TestLab03(LabTests):
    stem = STEM


@functools.cache
def answer(name):
    return lab(STEM).answer(f"03.{name}")


def spec(name):
    return lab(STEM).exercises[f"03.{name}"]


# The groups of DEVICES whose hardware multiplies bf16, from the manuals named there.
WITH_BF16 = {
    "first with bf16", "Ampere and Ada", "Hopper and Blackwell", "CDNA", "new RDNA", "x86 with bf16", "Arm with bf16",
}  # fmt: skip


@pytest.mark.parametrize("group", DEVICES)
def test_native_bf16_is_what_the_manuals_say(group):
    for machine in DEVICES[group]:
        assert answer("native_bf16")(machine) is (group in WITH_BF16), machine["name"]


def test_native_bf16_agrees_with_the_device_card_of_the_course():
    from ampedu._facts import Facts, Gpu

    for machine in itertools.chain(*DEVICES.values()):
        gpu = None
        if machine["backend"] == "cuda":
            gpu = Gpu("cuda", machine["name"], machine["capability"])
        elif machine["backend"] == "rocm":
            gpu = Gpu("rocm", machine["name"], None, machine["architecture"].partition(":")[0])
        arm = machine["flags"] and "asimd" in machine["flags"]
        flags = frozenset((machine["flags"] or "").split())
        facts = Facts("Linux", "aarch64" if arm else "x86_64", "", flags, None, 1, 1, "3.12", "2.13", (), gpu)
        card = describe("cuda" if gpu else "cpu", facts)
        assert (card.bf16 == "native") is answer("native_bf16")(machine), machine["name"]


@pytest.mark.parametrize("name", DATASHEETS)
def test_dense_peaks_are_those_of_the_gpu_table(name):
    row = next(row for row in gpu_table() if row["name"].startswith(name))
    found = answer("dense_peak")(**spec("dense_peak").spec.shipped(name))
    assert found == row["dense_tflops"]["fp16_fp32acc"]
    assert DATASHEETS[name].sms == row["sms"]


@pytest.mark.parametrize("secret", SECRETS)
def test_printed_figures_stay_clear_of_the_peak_except_one(secret):
    for case in spec("dense_peak").cases(secret):
        peak = 2 * case["sms"] * case["cores"] * case["fmas"] * case["ghz"] / 1000
        distances = sorted(abs(math.log2(figure / peak)) for figure in case["printed"])
        assert distances[0] < 0.02 and distances[1] > 0.9


def test_machines_and_processors_are_those_of_the_gpu_table():
    def row(name):
        return next(row for row in gpu_table() if row["name"].startswith(name))

    for name, machine in MACHINES.items():
        if name.startswith("a GPU"):
            assert machine["fp32"] == machine["16-bit"]
            continue
        assert machine["bandwidth"] == row(name)["bandwidth_gb_s"]
        peaks = row(name)["dense_tflops"]
        assert (machine["fp32"], machine["16-bit"]) == (peaks["fp32_nontensor"], peaks["fp16_fp32acc"])
    assert {name: row(name)["sms"] for name in SMS} == SMS


@pytest.mark.parametrize("secret", SECRETS)
def test_tensor_core_in_float32_is_the_exact_product(secret):
    for case in spec("tensor_core").cases(secret):
        exact = case["a"].double() @ case["b"].double() + case["c"].double()
        assert torch.equal(exact.float().double(), exact)  # so no order of the sums matters in float32
        assert torch.equal(case["c"].half().float(), case["c"])
        found = answer("tensor_core")(case["a"], case["b"], case["c"], torch.float32)
        assert found.dtype == torch.float32 and torch.equal(found.double(), exact)


@pytest.mark.parametrize("secret", SECRETS)
def test_tensor_core_in_float16_agrees_with_numpy(secret):
    for case in spec("tensor_core").cases(secret):
        a, b = case["a"].numpy().astype(np.float64), case["b"].numpy().astype(np.float64)
        total = case["c"].numpy().astype(np.float16)
        for k in range(a.shape[1]):
            total = (total.astype(np.float64) + np.outer(a[:, k], b[k])).astype(np.float16)
        found = answer("tensor_core")(case["a"], case["b"], case["c"], torch.float16)
        assert found.dtype == torch.float16 and np.array_equal(found.numpy(), total)


def test_tf32_agrees_with_the_rounding_of_the_course_where_there_are_no_ties():
    patterns = np.random.default_rng(1).integers(0x0080_0000, 0x7F00_0000, 20_000, dtype=np.uint32)
    x = torch.from_numpy(patterns[patterns % 2**13 != 2**12].view(np.float32))[:, None]
    one = torch.ones(1, 1)
    assert torch.equal(answer("tf32_matmul")(x, one), round_to(x, "tf32").double())
    assert torch.equal(answer("tf32_matmul")(-x, one), -round_to(x, "tf32").double())


def test_tf32_has_the_spacing_of_float16_inside_its_range():
    x = torch.from_numpy(np.random.default_rng(2).uniform(1, 60_000, 5000).astype(np.float32))
    x = x[(x.view(torch.int32) & 0x1FFF) != 0x1000][:, None]
    assert torch.equal(answer("tf32_matmul")(x, torch.ones(1, 1)), x.half().double())


@pytest.mark.parametrize("secret", SECRETS)
def test_tf32_cases_have_no_ties_and_exact_sums(secret):
    for case in spec("tf32_matmul").cases(secret):
        a, b = (case[name] for name in "ab")
        for x in (a, b):
            rest = x.view(torch.int32) & 0x1FFF
            assert ((rest - 0x1000).abs() >= 512).all() and ((rest >= 512) & (rest <= 0x2000 - 512)).all()
        found = answer("tf32_matmul")(a, b)
        rounded = [round_to(x, "tf32").numpy().astype(np.longdouble) for x in (a, b)]
        assert np.array_equal(found.numpy(), (rounded[0] @ rounded[1]).astype(np.float64))


def counted(op, shapes, stride, padding):
    """The output, and FLOPs as torch counts them."""
    tensors = [torch.ones(shape) for shape in shapes]
    calls = {
        "matmul": torch.matmul,
        "linear": F.linear,
        "conv2d": functools.partial(F.conv2d, stride=stride, padding=padding),
    }
    with FlopCounterMode(display=False) as counter:
        output = calls[op](*tensors)
    return output, counter.get_total_flops(), tensors


@pytest.mark.parametrize("secret", SECRETS[:2])
def test_flops_and_bytes_agree_with_the_flop_counter_and_real_tensors(secret):
    for case in spec("flops_bytes").cases(secret):
        if case["op"] not in ("relu", "add"):
            output, flops, tensors = counted(case["op"], case["shapes"], case["stride"], case["padding"])
            moved = case["size"] * sum(tensor.numel() for tensor in (*tensors, output))
            assert answer("flops_bytes")(**case) == (flops, moved), case


def test_flops_and_bytes_of_elementwise_layers():
    assert answer("flops_bytes")("relu", [(3, 5, 7)], 2) == (105, 420)
    assert answer("flops_bytes")("add", [(3, 5), (3, 5)], 4) == (15, 180)


@pytest.mark.parametrize("secret", SECRETS)
def test_bounds_are_clear_and_both_occur(secret):
    names = set()
    for case in spec("bound").cases(secret):
        ridge = case["peak"] * 1e12 / (case["bandwidth"] * 1e9)
        intensity, name = answer("bound")(**case)
        assert max(intensity / ridge, ridge / intensity) > 3.9
        assert name == ("compute" if intensity > ridge else "memory")
        names.add(name)
    assert names == {"compute", "memory"}


@pytest.mark.parametrize("secret", SECRETS)
def test_gains_are_what_each_situation_promises(secret):
    exercise = spec("predicted_gain")
    found = {}
    for name, case in zip(exercise.spec.situations, exercise.cases(secret), strict=True):
        gain, verdict = answer("predicted_gain")(**case["layer"], machine=case["machine"])
        assert abs(math.log(gain / 1.5)) > 0.2, "too near to the threshold"
        assert (verdict == "gain") is (gain >= 1.5)
        found[name] = gain, case["machine"]["16-bit"] / case["machine"]["fp32"]
    gain, peaks = found["compute-bound"]
    assert gain == pytest.approx(peaks)
    gain, peaks = found["compute-bound, inputs to be cast"]
    assert 1.7 < gain < 0.9 * peaks
    gain, peaks = found["compute-bound in float32 only"]
    assert 2 < gain < 0.5 * peaks
    assert found["memory-bound"][0] == pytest.approx(2)
    assert found["memory-bound, inputs to be cast"][0] < 0.7
    assert found["too small"][0] == 1
    assert found["too small, inputs to be cast"][0] == 0.5
    assert found["no matrix units"][0] == pytest.approx(1)
    assert found["a consumer card"][0] == pytest.approx(2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("line", [16, 128])
def test_padding_fills_lines_and_no_smaller_size_does(dtype, line):
    name = {"float64": "fp64", "float32": "tf32", "bfloat16": "bf16", "float16": "fp16", "int8": "int8"}
    name = name[str(dtype).removeprefix("torch.")]
    for size in range(1, 400):
        padded = next(n for n in itertools.count(size) if n * dtype.itemsize % line == 0)
        assert answer("pad")(size, name, line) == padded


def test_the_vocabulary_of_gpt2():
    assert answer("pad")(50257, "fp16", 128) == 50304
    assert answer("pad")(50257, "fp8", 16) % (16 // np.dtype(ml_dtypes.float8_e4m3fn).itemsize) == 0


@pytest.mark.parametrize("secret", SECRETS)
def test_waves_by_laying_tiles_one_by_one(secret):
    for case in spec("waves").cases(secret):
        corners = itertools.product(range(0, case["m"], case["tile"][0]), range(0, case["n"], case["tile"][1]))
        rounds = list(itertools.batched(corners, case["sms"])) if hasattr(itertools, "batched") else None
        tiles, waves, useful = answer("waves")(case["m"], case["n"], case["sms"], case["tile"])
        if rounds is not None:
            assert (tiles, waves) == (sum(map(len, rounds)), len(rounds))
        places = waves * case["sms"] * math.prod(case["tile"])
        assert useful == pytest.approx(case["m"] * case["n"] / places) and useful <= 1


def test_one_more_row_costs_a_wave():
    assert answer("waves")(1792, 1792, 108)[:2] == (98, 1)
    tiles, waves, useful = answer("waves")(1793, 1793, 108)
    assert (tiles, waves) == (120, 2) and 0.45 < useful < 0.46


def test_the_simulated_device_is_asynchronous_and_its_clock_exact():
    device = SimulatedDevice([100, 40], launch=3, start=2**30)
    start = device.clock()
    device.run()
    assert device.clock() - start == 3 * TICK  # the call has returned, the work goes on
    device.run()
    device.synchronize()
    assert device.clock() - start == (3 + 100 + 40) * TICK  # the second call was handed over meanwhile
    device.run()
    device.synchronize()
    assert device.clock() - start == (3 + 100 + 40 + 3 + 40) * TICK  # the last duration goes on
    assert device.log == ["clock", "run", "clock, busy", "run", "sync", "clock", "run", "sync", "clock"]
    waiting = SimulatedDevice([100], launch=3, asynchronous=False)
    waiting.run()
    assert waiting.clock() == 103 * TICK and waiting.log == ["run", "clock"]


@pytest.mark.parametrize("secret", SECRETS)
def test_the_timer_finds_the_true_times(secret):
    exercise = spec("time_call")
    for case in exercise.cases(secret):
        raw = exercise.run(answer("time_call"), case)
        true = sorted(work + case["launch"] for work in case["durations"][case["warmup"] :])
        assert exercise.reduce(case, raw) == {
            "calls of run": case["warmup"] + case["repeats"],
            "clock read while the device was busy": 0,
            "median, fastest, slowest in ticks": tuple(float(x) for x in (true[len(true) // 2], true[0], true[-1])),
        }
        assert true[-1] > 4 * true[-2], "the disturbed call is not clear"
        assert min(case["durations"][: case["warmup"]]) > 1.5 * true[-2], "the warm-up is not slow"


def other_timers():
    """Right timers that are written in another way than the solution."""

    def one_wait_less(run, synchronize, clock, warmup, repeats):
        for _ in range(warmup):
            run()
            synchronize()
        samples = []
        for _ in range(repeats):
            start = clock()
            run()
            synchronize()
            end = clock()
            samples.append(end - start)
        return [float(np.median(samples)), min(samples), max(samples)]

    def by_marks(run, synchronize, clock, warmup, repeats):
        [run() for _ in range(warmup)]
        synchronize()
        marks = [clock()]
        for _ in range(repeats):
            run()
            synchronize()
            marks.append(clock())
        times = torch.tensor(marks, dtype=torch.float64).diff()
        return times.median().item(), times.min().item(), times.max().item()

    return one_wait_less, by_marks


@pytest.mark.parametrize("timer", other_timers(), ids=lambda timer: timer.__name__)
def test_other_right_timers_pass(timer):
    assert lab(STEM).verdict("03.time_call", timer).status == "passed"


def test_the_timer_with_a_real_clock_measures_what_was_waited():
    pause = 0.004
    times = []

    def run():
        start = time.perf_counter()
        while time.perf_counter() - start < pause:
            pass
        times.append(time.perf_counter() - start)

    median, fastest, slowest = answer("time_call")(run, lambda: None, time.perf_counter, 2, 5)
    assert len(times) == 7
    assert pause <= fastest <= median <= slowest
    assert fastest >= min(times[2:]) and median >= sorted(times[2:])[2]


def test_simulated_times_are_whole_ticks_for_every_draw():
    case = spec("time_call").spec.cases(Stream(b"w", "03.time_call"))[0]
    device = SimulatedDevice(case["durations"], case["launch"], case["asynchronous"], case["start"])
    device.run()
    device.synchronize()
    assert (device.clock() / TICK).is_integer()
