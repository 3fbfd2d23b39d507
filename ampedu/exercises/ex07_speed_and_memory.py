"""Lab 07: what its functions are called with, and how the answers are written down for comparison.

Bytes are counted on the CPU, whose kernels keep the same tensors as a GPU's in these models; nothing is timed.
"""

import itertools
import math

import torch

from ampedu.exercises import exercise
from ampedu.exercises.plain import NotPlain
from ampedu.exercises.small_models import MODELS
from ampedu.exercises.traces import TRACES, traced

ANSWER_KEY = ("ampedu.memory",)
POLICIES = ("fp32", "amp", "pure_bf16")
GIB = 2**30
MIB = 2**20


def whole(raw):
    """Floats with a whole value as ints, also in a dict: bytes that came out of a division are the same answer."""
    if type(raw) is dict:
        return {key: whole(value) for key, value in raw.items()}
    return int(raw) if type(raw) is float and raw.is_integer() else raw


@exercise("07.saved_bytes", answer="saved_bytes", points=3, minutes=15, difficulty=2, forbids=ANSWER_KEY,
          settles=("C02",), seconds=10.0)  # fmt: skip
class SavedBytes:
    """Count what backward keeps.

    Small models, with and without autocast of the CPU.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for kind, low in itertools.chain(((k, None) for k in MODELS), (("a perceptron", "bfloat16"),
                                         ("one layer used twice", "bfloat16"), ("columns of an output", "float16"))):
            sizes = {"rows": stream.integer(3, 9), "width": stream.integer(4, 9), "hidden": stream.integer(10, 17)}
            cases.append({"model": kind, "dtype": low, **sizes})
        return cases

    def run(self, answer, case):
        model = MODELS[case["model"]](case["width"], case["hidden"])
        shape = (case["rows"], case["width"], 8, 8) if "pooling" in case["model"] else (case["rows"], case["width"])
        x = torch.arange(math.prod(shape)).reshape(shape) / 64
        return answer(model, x, *([getattr(torch, case["dtype"])] if case["dtype"] else []))

    def reduce(self, case, raw):
        return whole(raw)

    def describe(self, case):
        region = f", autocast to {case['dtype']}" if case["dtype"] else ""
        return f"{case['model']}, {case['rows']} rows of {case['width']}, {case['hidden']} hidden{region}"


@exercise("07.step_bytes", answer="step_bytes", points=1, minutes=8, difficulty=1, forbids=ANSWER_KEY,
          settles=("C02", "R24"))  # fmt: skip
class StepBytes:
    """What stays from step to step."""

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for policy, optimizer in itertools.product(POLICIES, ("sgd", "momentum", "adamw")):
            shapes = [(stream.integers(8, 400, 1 + stream.bits(1)), True) for _ in range(2)]
            shapes.insert(stream.integer(0, 2), (stream.integers(8, 400, 2), False))
            cases.append({"parameters": shapes, "optimizer": optimizer, "policy": policy})
        return cases

    def run(self, answer, case):
        parameters = [(tuple(shape), trained) for shape, trained in case["parameters"]]
        return answer(parameters, case["optimizer"], case["policy"])

    def reduce(self, case, raw):
        return whole(raw)

    def describe(self, case):
        parameters = [(tuple(shape), trained) for shape, trained in case["parameters"]]
        return f'step_bytes({parameters}, "{case["optimizer"]}", "{case["policy"]}")'


@exercise("07.mlp_ledger", answer="mlp_ledger", points=3, minutes=18, difficulty=2, forbids=ANSWER_KEY,
          settles=("C02", "R24"))  # fmt: skip
class MlpLedger:
    """The ledger of a perceptron."""

    tolerance = "exact"

    def cases(self, stream):
        return [
            {"widths": stream.integers(20, 900, layers), "rows": stream.integer(3, 700), "policy": policy}
            for layers, policy in itertools.product((3, 5), POLICIES)
        ]

    def run(self, answer, case):
        return answer(case["widths"], case["rows"], case["policy"])

    def reduce(self, case, raw):
        return whole(raw)

    def describe(self, case):
        return f'mlp_ledger({case["widths"]}, rows={case["rows"]}, policy="{case["policy"]}")'


@exercise("07.block_saved", answer="block_saved", points=4, minutes=25, difficulty=3, forbids=ANSWER_KEY,
          settles=("C02", "R23"))  # fmt: skip
class BlockSaved:
    """What a transformer block keeps."""

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for policy in POLICIES * 2:
            heads, inside = stream.integer(2, 12), 8 * stream.integer(1, 9)
            sizes = {"batch": stream.integer(2, 9), "seq": stream.integer(17, 300), "width": heads * inside}
            cases.append({**sizes, "heads": heads, "policy": policy})
        return cases

    def run(self, answer, case):
        return answer(*case.values())

    def reduce(self, case, raw):
        return whole(raw)

    def describe(self, case):
        return f"block_saved({', '.join(f'{name}={value!r}' for name, value in case.items())})"


@exercise("07.cnn_saved", answer="cnn_saved", points=3, minutes=18, difficulty=2, forbids=ANSWER_KEY,
          settles=("C02", "C27"))  # fmt: skip
class CnnSaved:
    """What a convolutional network keeps."""

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for index, (policy, wide) in enumerate((*((p, False) for p in POLICIES), ("amp", True)) * 2):
            layers = 2 + index % 3
            image = [stream.integer(2, 9), stream.integer(1, 4), stream.integer(9, 33), 2 * stream.integer(5, 16) + 1]
            # The first stride is 2 on an odd side, so that rounding of the size counts.
            strides = [2, *(stream.integer(1, 2) for _ in range(layers - 1))]
            layout = {"channels": stream.integers(5, 40, layers), "strides": strides}
            cases.append({"image": image, **layout, "policy": policy, "wide": wide})
        return cases

    def run(self, answer, case):
        layers = list(zip(case["channels"], case["strides"], strict=True))
        return answer(tuple(case["image"]), layers, case["policy"], case["wide"])

    def reduce(self, case, raw):
        return whole(raw)

    def describe(self, case):
        layers = list(zip(case["channels"], case["strides"], strict=True))
        return f'cnn_saved({tuple(case["image"])}, {layers}, "{case["policy"]}", float_norm={case["wide"]})'


@exercise("07.largest_batch", answer="largest_batch", points=2, minutes=10, difficulty=1, forbids=ANSWER_KEY)
class LargestBatch:
    """The largest batch that fits.

    Two measured peaks, which lie on a line; the budget lies between two multiples of 8, clear of both.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for index in range(7):
            each, fixed = stream.integer(10, 90) * MIB // 4, stream.integer(2, 9) * GIB // 2
            best = 8 * stream.integer(20, 60) if index < 5 else 0
            # GiB with three decimals, between best + 2 and best + 6 samples.
            budget = round((fixed + each * (best + stream.integer(9, 23) / 4)) / GIB, 3)
            small = stream.choice((4, 8, 12))
            if index == 6:  # the model alone is too large
                budget = round((fixed - each * stream.integer(9, 20)) / GIB, 3)
            peaks = [[small, fixed + small * each], [4 * small, fixed + 4 * small * each]]
            cases.append({"peaks": peaks, "budget": budget})
        return cases

    def run(self, answer, case):
        return answer(dict(case["peaks"]), case["budget"])

    def reduce(self, case, raw):
        return whole(raw)

    def describe(self, case):
        peaks = ", ".join(f"{batch}: {peak:_}" for batch, peak in case["peaks"])
        return f"largest_batch({{{peaks}}}, budget_gib={case['budget']})"


@exercise("07.break_even", answer="break_even", points=2, minutes=12, difficulty=2, forbids=ANSWER_KEY,
          settles=("C02", "R20"))  # fmt: skip
class BreakEven:
    """From how many rows on does AMP save memory?

    Among the cases are one without an answer, and one in which a number of rows makes both equal.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for layers in (3, 4, 5, 6):
            first = stream.integer(10, 60)
            cases.append({"widths": [first, *stream.integers(80, 600, layers - 2), stream.integer(2, 20)]})
        wide = stream.integer(300, 700)
        cases.append({"widths": [wide, wide - stream.integer(20, 200), stream.integer(2, 20)]})
        h = stream.integer(30, 90)  # here h - 1 divides the number of parameters, 2h + h (h - 2) + h - 2
        cases.append({"widths": [1, h, h - 2]})
        return cases

    def run(self, answer, case):
        return answer(case["widths"])

    def reduce(self, case, raw):
        return whole(raw)

    def describe(self, case):
        return f"break_even({case['widths']})"


@exercise("07.place_checkpoints", answer="place_checkpoints", points=4, minutes=25, difficulty=3, forbids=ANSWER_KEY,
          settles=("C40",), seconds=10.0)  # fmt: skip
class PlaceCheckpoints:
    """Place checkpoints so that it fits.

    The costs of any two sets of blocks differ, so the cheapest set is one alone.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for index, blocks in enumerate((4, 7, 8, 7, 8, 7, 8, 6, 5)):
            inputs, inside = stream.integers(8, 60, blocks), stream.integers(100, 900, blocks)
            cost = [(3 * size + stream.integer(0, 900)) << blocks | 1 << i for i, size in enumerate(inside)]
            # The peaks without any checkpoint, and with one around each block.
            highest = sum(inputs) + sum(inside)
            lowest = max(sum(inputs[: i + 1]) + inside[i] for i in range(blocks))
            budget = lowest + (highest - lowest) * stream.integer(4, 11) // 16
            special = {0: highest + stream.integer(5, 50), 7: lowest - stream.integer(1, 9), 8: lowest}
            cases.append({"inputs": inputs, "inside": inside, "cost": cost, "budget": special.get(index, budget)})
        return [*cases, self.two_for_one(stream)]

    def two_for_one(self, stream):
        """One block alone would do, but two others are cheaper together."""
        inputs = stream.integers(8, 60, 5)
        inside = [least + stream.integer(0, 40) for least in (800, 400, 400, 150, 150)]
        cost = [(base + stream.integer(0, 90)) << 5 | 1 << i for i, base in enumerate((2500, 1000, 1000, 400, 400))]
        return {"inputs": inputs, "inside": inside, "cost": cost, "budget": sum(inputs) + sum(inside) - 700}

    def run(self, answer, case):
        got = answer(*(list(case[name]) for name in ("inputs", "inside", "cost")), case["budget"])
        return list(got) if isinstance(got, (set, frozenset)) else got

    def reduce(self, case, raw):
        if raw is None:
            return "nothing fits"
        if type(raw) not in (list, tuple) or not all(type(i) is int for i in raw):
            raise NotPlain("place_checkpoints returns a list of block numbers, or None")
        return " ".join(map(str, sorted(raw))) or "no block"

    def describe(self, case):
        parts = ", ".join(f"{name}={case[name]}" for name in ("inputs", "inside", "cost", "budget"))
        return f"place_checkpoints({parts}); outcome: the blocks"


@exercise("07.lean_gate", answer="LeanGate", points=3, minutes=15, difficulty=2, forbids=ANSWER_KEY,
          settles=("R23",), seconds=30.0)  # fmt: skip
class LeanGateSaves:
    """The needless float32.

    Bytes kept for backward are counted here, with hooks; less than the least is not asked for, and counts as it.
    """

    tolerance = {
        "bytes too many": "exact", "dtype of the output": "exact", "parameters with a gradient": "exact",
        "output": {"rtol": 0.1, "atol": 1e-3}, "gradients": {"rtol": 0.1, "atol": 1e-3},
    }  # fmt: skip

    def cases(self, stream):
        return [
            {"rows": stream.integer(3, 20), "width": 8 * stream.integer(1, 3), "hidden": 8 * stream.integer(4, 8),
             "shift": stream.integer(1, 12)}
            for _ in range(6)
        ]  # fmt: skip

    def run(self, answer, case):
        module = answer(case["width"], case["hidden"])
        for number, parameter in enumerate(module.parameters()):
            fill(parameter.data, case["shift"] + number)
        x = fill(torch.empty(case["rows"], case["width"]), case["shift"])
        known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), x)}
        kept = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = module(x)
        saved = sum(kept.values())
        (output.float() * fill(torch.empty(output.shape), 5)).sum().backward()
        grads = [parameter.grad.float().norm() for parameter in module.parameters() if parameter.grad is not None]
        return {
            "saved": saved,
            "dtype of the output": str(output.dtype).removeprefix("torch."),
            "output": short(output.float().norm().item()),
            "parameters with a gradient": sum(bool(norm > 0) for norm in grads),
            "gradients": short(math.hypot(*map(float, grads))),
        }

    def reduce(self, case, raw):
        rows, width, hidden = case["rows"], case["width"], case["hidden"]
        # Statistics of the norm; its output, four activations and the casts of three weights in bfloat16.
        least = 8 * rows + 2 * rows * width + 8 * rows * hidden + 6 * width * hidden
        return {"bytes too many": max(0, raw["saved"] - least)} | {k: v for k, v in raw.items() if k != "saved"}

    def describe(self, case):
        return f"LeanGate({case['width']}, {case['hidden']}) on {case['rows']} rows, autocast to bfloat16"


def fill(tensor, shift):
    """The same small dyadic numbers on every machine, from -3/4 to 3/4, written into the tensor."""
    numbers = torch.arange(tensor.numel()) * (2 * shift + 1)
    return tensor.copy_(((numbers * numbers + numbers) % 25 - 12).reshape(tensor.shape) / 16)


def short(value):
    """A float with four digits, so that expected data stay small."""
    return float(f"{value:.4g}")


@exercise("07.autopsy", answer="autopsy", points=3, minutes=18, difficulty=2, forbids=ANSWER_KEY,
          settles=("R10", "R14"))  # fmt: skip
class Autopsy:
    """Autopsy of a slow step.

    Traces of one step as a profiler lists them: calls inside of calls, in one thread. In each, another part dominates.
    """

    tolerance = "exact"

    def cases(self, stream):
        return [dict(zip(("events", "total"), traced(stream, *ranges), strict=True)) for ranges in TRACES.values()]

    def run(self, answer, case):
        got = answer([dict(zip(("name", "start", "duration"), event, strict=True)) for event in case["events"]],
                     case["total"])  # fmt: skip
        return tuple(got) if type(got) is list else got

    def reduce(self, case, raw):
        return (whole(raw[0]), *raw[1:]) if type(raw) is tuple and raw else raw

    def describe(self, case):
        longest = sorted(case["events"], key=lambda event: -event[2])[:3]
        listed = ", ".join(f"{name} {duration}" for name, _, duration in longest)
        return f"autopsy of {len(case['events'])} events in {case['total']} µs; the longest: {listed}"


@exercise("07.gain", answer="gain", points=1, minutes=8, difficulty=1, forbids=ANSWER_KEY, settles=("R10", "R14"))
class Gain:
    """What AMP can gain at most."""

    tolerance = {"rtol": 1e-9, "atol": 0.0}

    def cases(self, stream):
        cases = []
        for index in range(6):
            matmul, other, idle = stream.integer(100, 3000), stream.integer(100, 900), stream.integer(10, 900)
            factors = {"matmul": float(stream.integer(4, 32)) / 2}
            if index % 2:
                factors["other"] = float(stream.integer(5, 7)) / 4
            added = stream.integer(20, 90) if index < 4 else 2 * matmul
            times = {"matmul": matmul, "other": other, "idle": idle, "casts": 0}
            cases.append({"times": times, "factors": factors, "added": added})
        return cases

    def run(self, answer, case):
        got = answer(dict(case["times"]), dict(case["factors"]), case["added"])
        return tuple(got) if type(got) is list else got

    def reduce(self, case, raw):
        plain = type(raw) is tuple and all(type(x) in (int, float) for x in raw)
        return tuple(map(float, raw)) if plain else raw

    def describe(self, case):
        return f"gain({case['times']}, {case['factors']}, added={case['added']})"


@exercise("07.cures", answer="cures", points=2, minutes=10, difficulty=2, forbids=ANSWER_KEY,
          settles=("C36", "C37", "C40"))  # fmt: skip
class Cures:
    """Choose the cure.

    A choice, so the cases are the same for every secret: one for each complaint.
    """

    tolerance = "exact"
    LOOK = {
        1: "there is nothing large to multiply, and the device waits",
        2: "who chooses the dtype of a product, the compiler or autocast?",
        3: "what is the difference between reserved and allocated?",
        4: "which row of the ledger is the largest, and which cure makes it smaller?",
        5: "which row of the ledger is the largest, and which cure makes it smaller?",
        6: "what does the device wait for?",
        7: "which tensors are float32, and who made them?",
    }

    def cases(self, stream):
        return [{"complaint": n} for n in self.LOOK]

    def run(self, answer, case):
        return answer()

    def reduce(self, case, raw):
        count = len(self.LOOK)
        if type(raw) not in (list, tuple, str) or len(raw) != count or not all(x in tuple("ABCDEFGHI") for x in raw):
            raise NotPlain(f"the answer is not a string or list of {count} letters from A to I")
        return raw[case["complaint"] - 1]

    def describe(self, case):
        return f"complaint {case['complaint']}: {self.LOOK[case['complaint']]}"
