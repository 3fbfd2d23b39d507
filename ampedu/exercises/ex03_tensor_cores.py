"""Lab 03: what its functions are called with, and how the answers are written down for comparison."""

import math

import torch

from ampedu.exercises import exercise
from ampedu.exercises.hardware import DATASHEETS, DEVICES, MACHINES, SMS
from ampedu.exercises.simulated import TICK, SimulatedDevice

ANSWER_KEY = ("ampedu.timing", "ampedu.roofline", "ampedu.tiles", "ampedu.device", "ampedu._facts")
ROUNDING = ("ampedu.formats", "ampedu._float_format", "ampedu._rounding")
ROUNDED = {"rtol": 1e-9, "atol": 0.0}  # of quotients that may be computed in several orders


def numbers(raw):
    """A pair of numbers as a tuple of floats: lists, and ints that came out as floats, are the same answer here."""
    plain = type(raw) in (list, tuple) and all(type(x) in (int, float) for x in raw)
    return tuple(float(x) for x in raw) if plain else raw


def as_tuple(raw):
    """A list as a tuple: the same answer here."""
    return tuple(raw) if type(raw) is list else raw


def short(number):
    """A large number with its first three digits, as an int: easy to read, and exact."""
    digits = max(0, int(math.log10(number)) - 2)
    return int(number / 10**digits) * 10**digits


@exercise(
    "03.native_bf16", answer="native_bf16", points=1, minutes=8, difficulty=1,
    forbids=ANSWER_KEY, settles=("C06", "C14", "C44", "R16"),
)  # fmt: skip
class NativeBf16:
    """Does it have bf16?"""

    tolerance = "exact"

    def cases(self, stream):
        return [stream.choice(group) for group in DEVICES.values()]

    def run(self, answer, case):
        return answer(case)

    def describe(self, case):
        known = case["capability"] if case["backend"] == "cuda" else case["architecture"] or case["flags"]
        return f"native_bf16({case['name']}: {case['backend']}, {known})"


@exercise(
    "03.dense_peak", answer="dense_peak", points=1, minutes=10, difficulty=1,
    forbids=ANSWER_KEY, settles=("C05", "C06"),
)  # fmt: skip
class DensePeak:
    """The figure without the asterisk.

    The peak from the number of units and the clock; among the printed figures it is the nearest.
    """

    tolerance = ROUNDED

    def cases(self, stream):
        cases = [self.shipped(name) for name in DATASHEETS]
        for _ in range(6):
            cores, fmas = stream.choice(((8, 64), (4, 128), (4, 256), (4, 512), (4, 1024)))
            sms, ghz = 2 * stream.integer(12, 96), stream.integer(250, 500) / 200
            peak = 2 * sms * cores * fmas * ghz / 1000
            factors = stream.sample((1 / 8, 1 / 2, 1, 2, 4), 5)
            printed = [float(f"{peak * factor:.4g}") for factor in factors]
            cases.append({"printed": printed, "sms": sms, "cores": cores, "fmas": fmas, "ghz": ghz})
        return cases

    def shipped(self, name):
        """The case of a GPU that exists."""
        unit = DATASHEETS[name]
        names = ("sms", "cores", "fmas", "ghz")
        return {"printed": list(unit.printed)} | {key: getattr(unit, key) for key in names}

    def run(self, answer, case):
        return answer(case["printed"], case["sms"], case["cores"], case["fmas"], case["ghz"])

    def reduce(self, case, raw):
        return float(raw) if type(raw) is int else raw

    def describe(self, case):
        rest = ", ".join(f"{key}={case[key]}" for key in ("sms", "cores", "fmas", "ghz"))
        return f"dense_peak({case['printed']}, {rest})"


@exercise(
    "03.tensor_core", answer="tensor_core", points=3, minutes=15, difficulty=2,
    forbids=(*ANSWER_KEY, *ROUNDING), settles=("C05",),
)  # fmt: skip
class TensorCore:
    """One tile, D = A × B + C.

    16-bit inputs, exact products, sums in float32 or in float16. In float32 all sums are exact, so their order does
    not count there; in float16 it is given.
    """

    tolerance = "exact"
    rows, inner, columns = 2, 12, 3

    def cases(self, stream):
        cases = []
        for index in range(8):
            # Six significant bits from 2**-1 to 2: products have twelve, one more than float16 holds. With C below
            # 2**10 and twelve products below 4, a sum stays below 2**11 and is exact in float32.
            exponent = stream.integer(8, 9)
            large = stream.tensor((self.rows, self.columns), exponent, exponent, mantissa_bits=10)
            cases.append(
                {
                    "a": stream.tensor((self.rows, self.inner), -1, 0, mantissa_bits=5).half(),
                    "b": stream.tensor((self.inner, self.columns), -1, 0, mantissa_bits=5).half(),
                    "c": torch.zeros(self.rows, self.columns) if index in (2, 5) else large,
                    "accumulate": ("float32", "float16")[index % 2],
                }
            )
        return cases

    def run(self, answer, case):
        return answer(case["a"], case["b"], case["c"], getattr(torch, case["accumulate"]))

    def describe(self, case):
        what = "zeros" if not case["c"].any() else "numbers of some hundreds"
        return f"tensor_core(a, b, c, torch.{case['accumulate']}), where c holds {what}"


@exercise(
    "03.tf32_matmul", answer="tf32_matmul", points=3, minutes=15, difficulty=3,
    forbids=(*ANSWER_KEY, *ROUNDING), equivalents=("torch.backends.cuda.matmul", "torch.set_float32_matmul_precision"),
    settles=("C38",),
)  # fmt: skip
class Tf32Matmul:
    """What TF32 rounds.

    Both factors to 10 mantissa bits; no case has a tie, where conversions differ.
    """

    tolerance = "exact"
    scales = ((0, 0), (0, 0), (-3, 2), (0, 0), (40, -50), (-70, 30), (0, 0), (90, -80))

    def cases(self, stream):
        return [{"a": self.matrix(stream, 2, 3, up), "b": self.matrix(stream, 3, 2, down)} for up, down in self.scales]

    def matrix(self, stream, rows, columns, scale):
        """float32 matrix; its first element carries into the next power of two when rounded."""
        values = []
        for index in range(rows * columns):
            # In units of TF32's gap: whole steps, and a part in 8192 that stays clear of 0, one half and 1.
            steps, half = (2047, 1) if index == 0 else (1024 + stream.integer(0, 1023), stream.bits(1))
            low = 4096 * half + stream.integer(512, 3584)
            sign = stream.choice((1, -1))
            values.append(sign * math.ldexp(steps * 8192 + low, scale + stream.integer(-3, 3) - 23))
        return torch.tensor(values, dtype=torch.float64).float().reshape(rows, columns)

    def run(self, answer, case):
        return answer(case["a"], case["b"])

    def describe(self, case):
        sizes = [f"2**{math.frexp(case[name].abs().max().item())[1] - 1}" for name in "ab"]
        return f"tf32_matmul(a, b) with numbers up to about {sizes[0]} in a and {sizes[1]} in b"


@exercise(
    "03.flops_bytes", answer="flops_bytes", points=3, minutes=18, difficulty=2,
    forbids=ANSWER_KEY, equivalents=("torch.utils.flop_counter",), settles=("C01", "C03"),
)  # fmt: skip
class FlopsBytes:
    """Work and traffic of a layer.

    Operations, and the least bytes between memory and chip.
    """

    tolerance = "exact"

    def cases(self, stream):
        def some(low=8, high=160):
            return stream.integer(low, high)

        cases = []

        def add(op, *shapes, **settings):
            settings = {"size": stream.choice((1, 2, 4, 8)), "stride": 1, "padding": 0, **settings}
            cases.append({"op": op, "shapes": [tuple(shape) for shape in shapes], **settings})

        for batch in ((), (some(2, 9),), (some(2, 5), some(6, 12))):
            m, k, n = some(8, 60), some(61, 110), some(111, 160)
            add("matmul", (*batch, m, k), (*batch, k, n))
        for rows in ((some(),), (some(2, 9), some())):
            k, n = some(8, 70), some(71, 160)
            add("linear", (*rows, k), (n, k))
        for kernel, stride, padding in ((3, 1, 1), (3, 1, 0), (5, 2, 2), (7, 2, 3), (1, 1, 0)):
            channels, filters = some(3, 40), some(41, 90)
            image = (some(2, 9), channels, some(14, 30), some(31, 60))
            add("conv2d", image, (filters, channels, kernel, kernel), stride=stride, padding=padding)
        shape = (some(), some(), some(2, 9))
        add("relu", shape)
        add("add", shape[:2], shape[:2])
        return cases

    def run(self, answer, case):
        return answer(case["op"], case["shapes"], case["size"], case["stride"], case["padding"])

    def reduce(self, case, raw):
        return numbers(raw)

    def describe(self, case):
        rest = f", stride={case['stride']}, padding={case['padding']}" if case["op"] == "conv2d" else ""
        return f'flops_bytes("{case["op"]}", {case["shapes"]}, size={case["size"]}{rest})'


@exercise("03.bound", answer="bound", points=1, minutes=8, difficulty=1, forbids=ANSWER_KEY, settles=("C01", "C03"))
class Bound:
    """Which wall is in the way?"""

    tolerance = ROUNDED

    def cases(self, stream):
        cases = []
        for index in range(10):
            name = stream.choice(list(MACHINES))
            peak, bandwidth = MACHINES[name]["16-bit"], MACHINES[name]["bandwidth"]
            away = stream.integer(64, 480) / 16  # 4 to 30 times away from the ridge
            ridge = peak * 1000 / bandwidth
            moved = short(10 ** (5 + stream.integer(0, 40) / 10))
            flops = short(moved * (ridge * away if index % 2 else ridge / away)) + stream.integer(0, 99)
            cases.append({"flops": flops, "moved": moved, "peak": peak, "bandwidth": bandwidth})
        return cases

    def run(self, answer, case):
        return answer(case["flops"], case["moved"], case["peak"], case["bandwidth"])

    def reduce(self, case, raw):
        return as_tuple(raw)

    def describe(self, case):
        return f"bound({', '.join(f'{name}={value}' for name, value in case.items())})"


@exercise(
    "03.predicted_gain", answer="predicted_gain", points=3, minutes=15, difficulty=2,
    forbids=ANSWER_KEY, settles=("C01", "C03", "C51", "C52", "R10"),
)  # fmt: skip
class PredictedGain:
    """Gain or no gain?

    The ratio of two predicted times. Eight situations, each on a machine that is data.
    """

    tolerance = ROUNDED
    # situation: machines, arithmetic in 16-bit (µs), intensity in 16-bit as a multiple of the ridge, cast share
    situations = {
        "compute-bound": (("T4", "A100", "H100 SXM"), (2000, 6000), (4, 8), 0),
        "compute-bound, inputs to be cast": (("T4", "A100", "H100 SXM"), (2000, 6000), (4, 8), 0.75),
        "compute-bound in float32 only": (("A100", "H100 SXM"), (600, 2000), (1 / 4, 1 / 3), 0),
        "memory-bound": (tuple(MACHINES), (60, 200), (1 / 64, 1 / 32), 0),
        "memory-bound, inputs to be cast": (tuple(MACHINES), (60, 200), (1 / 64, 1 / 32), 0.75),
        "too small": (("T4", "A100", "H100 SXM"), (1 / 64, 1 / 32), (1, 2), 0),
        "too small, inputs to be cast": (("T4", "A100", "H100 SXM"), (1 / 64, 1 / 32), (1, 2), 0.75),
        "no matrix units": (("a GPU without matrix units",), (20000, 60000), (4, 8), 0),
        "a consumer card": (("RTX 4090",), (2000, 6000), (4, 8), 0),
    }

    def cases(self, stream):
        def between(low, high):
            return low + (high - low) * stream.integer(0, 64) / 64

        cases = []
        for machines, work, ridges, cast in self.situations.values():
            machine = MACHINES[stream.choice(machines)]
            flops = between(*work) * machine["16-bit"] * 1e6
            ridge = machine["16-bit"] * 1000 / machine["bandwidth"]
            elements = flops / (2 * between(*ridges) * ridge)
            layer = {"flops": short(flops), "elements": short(elements), "cast": int(short(elements) * cast)}
            cases.append({"layer": layer, "machine": dict(machine)})
        return cases

    def run(self, answer, case):
        return answer(**case["layer"], machine=case["machine"])

    def reduce(self, case, raw):
        return as_tuple(raw)

    def describe(self, case):
        layer = ", ".join(f"{name}={value}" for name, value in case["layer"].items())
        return f"predicted_gain({layer}, machine={case['machine']})"


@exercise(
    "03.pad", answer="pad", points=1, minutes=8, difficulty=1,
    forbids=ANSWER_KEY, settles=("R08", "R13"),
)  # fmt: skip
class Pad:
    """Pad a vocabulary."""

    tolerance = "exact"
    bits = {"fp64": 64, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}

    def cases(self, stream):
        cases = [{"size": 50257, "dtype": "fp16", "line": 128}]
        for dtype, line in (("bf16", 16), ("tf32", 128), ("fp64", 16), ("fp8", 16), ("int8", 128), ("tf32", 16)):
            multiple = line * 8 // self.bits[dtype]
            size = multiple * stream.integer(100, 900) + stream.integer(1, multiple - 1)
            cases.append({"size": size, "dtype": dtype, "line": line})
        for dtype, line in (("fp16", 128), ("tf32", 128), ("fp8", 16)):  # nothing to do here
            multiple = line * 8 // self.bits[dtype]
            cases.append({"size": multiple * (2 * stream.integer(50, 400) + 1), "dtype": dtype, "line": line})
        return cases

    def run(self, answer, case):
        return answer(case["size"], case["dtype"], case["line"])

    def describe(self, case):
        return f'pad({case["size"]}, "{case["dtype"]}", line={case["line"]})'


@exercise("03.waves", answer="waves", points=2, minutes=10, difficulty=2, forbids=ANSWER_KEY, settles=("R13",))
class Waves:
    """Tiles and waves."""

    tolerance = ROUNDED

    def cases(self, stream):
        cases = []

        def add(m, n, sms, tile=(256, 128)):
            cases.append({"m": m, "n": n, "sms": sms, "tile": tuple(tile)})

        add(1792, 1792, 108)
        add(1793, 1793, 108)
        for _ in range(4):
            tile = stream.choice(((256, 128), (128, 64), (64, 128), (128, 256)))
            rows, columns = stream.sample(range(3, 40), 2)
            ragged = stream.integer(1, tile[0] - 1), stream.integer(1, tile[1] - 1)
            add(rows * tile[0] + ragged[0], columns * tile[1] + ragged[1], stream.choice(list(SMS.values())), tile)
        sms = stream.choice(list(SMS.values()))
        add(2 * 256 * stream.integer(1, 4), 128 * sms // 2, sms)  # the last wave is full
        add(stream.integer(1, 255), stream.integer(1, 127), sms)  # one tile, and a ragged one
        return cases

    def run(self, answer, case):
        return answer(case["m"], case["n"], case["sms"], case["tile"])

    def reduce(self, case, raw):
        return as_tuple(raw)

    def describe(self, case):
        return f"waves({case['m']}, {case['n']}, sms={case['sms']}, tile={case['tile']})"


@exercise(
    "03.time_call", answer="time_call", points=4, minutes=20, difficulty=3,
    forbids=ANSWER_KEY, equivalents=("torch.utils.benchmark", "timeit", "torch.cuda.Event"), settles=("C35",),
)  # fmt: skip
class TimeCall:
    """A timer that is right.

    Judged on a simulated device with a clock of its own: nothing is measured here, and the times are exact.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for asynchronous in (True, True, False, True, True, False, True):
            warmup, repeats = stream.integer(2, 4), 2 * stream.integer(2, 5) + 1
            steady = stream.integer(1000, 4000)
            calls = [steady + extra for extra in stream.sample(range(200), repeats)]
            calls[stream.integer(1, repeats - 2)] += 9 * steady  # somebody else used the machine
            first = [steady * 8 * (warmup - index) for index in range(warmup)]
            cases.append(
                {
                    "durations": first + calls,
                    "launch": stream.integer(10, 40),
                    "asynchronous": asynchronous,
                    "start": stream.integer(2**20, 2**30),
                    "warmup": warmup,
                    "repeats": repeats,
                }
            )
        return cases

    def run(self, answer, case):
        device = SimulatedDevice(case["durations"], case["launch"], case["asynchronous"], case["start"])
        times = answer(device.run, device.synchronize, device.clock, case["warmup"], case["repeats"])
        return {"times": times, "log": device.log}

    def reduce(self, case, raw):
        log = raw["log"]
        return {
            "calls of run": log.count("run"),
            "clock read while the device was busy": log.count("clock, busy"),
            "median, fastest, slowest in ticks": self.ticks(raw["times"]),
        }

    def ticks(self, times):
        """Seconds as ticks of the simulated clock: whole numbers are easier to read."""
        times = numbers(times)
        return tuple(x / TICK for x in times) if type(times) is tuple else times

    def describe(self, case):
        kind = "an asynchronous device" if case["asynchronous"] else "a device for which the program waits"
        return f"time_call(run, synchronize, clock, warmup={case['warmup']}, repeats={case['repeats']}) on {kind}"
