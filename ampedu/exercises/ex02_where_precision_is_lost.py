"""Lab 02: what its functions are called with, and how the answers are written down for comparison."""

import torch

from ampedu.exercises import exercise
from ampedu.exercises.coded import form

ANSWER_KEY = ("ampedu.formats", "ampedu._float_format", "ampedu._rounding", "ampedu.updates")
HALVES = ("float16", "bfloat16")


def of(name):
    """The torch dtype of this name."""
    return getattr(torch, name)


def signs(stream, n):
    """n factors, +1 or -1."""
    return [1 - 2 * stream.bits(1) for _ in range(n)]


def scalar(raw):
    """A tensor without dimensions as [dtype, value]; anything else as [what it is]."""
    if isinstance(raw, torch.Tensor) and raw.dim() == 0:
        return [str(raw.dtype).removeprefix("torch."), raw.item()]
    return [form(raw)]


@exercise(
    "02.dot", answer="dot", points=1, minutes=8, difficulty=1,
    forbids=ANSWER_KEY, equivalents=("torch.dot", "torch.matmul", "torch.inner", "torch.vdot"),
)  # fmt: skip
class Dot:
    """A dot product that keeps its digits.

    Products of two 7-bit integers do not fit in 16-bit mantissas, and every sum of them is exact in float32.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        # The last two: products beyond 65504 that cancel, and an ordinary sum beyond 65504.
        for exponent, n in ((-6, 120), (3, 40), (0, 90)):
            for dtype in HALVES:
                x, y = stream.integers(65, 127, n), stream.integers(65, 127, n)
                flips = [1 - 2 * (i % 2) for i in range(n)] if exponent == 3 else [1] * n
                pair = {"x": torch.tensor(x) * torch.tensor(flips), "y": torch.tensor(y)}
                cases.append({key: (value * 2.0**exponent).to(of(dtype)) for key, value in pair.items()})
        return cases

    def run(self, answer, case):
        return answer(case["x"], case["y"])

    def reduce(self, case, raw):
        return scalar(raw)

    def describe(self, case):
        return f"dot(x, y), each a {form(case['x'])}"


@exercise("02.pairwise_sum", answer="pairwise_sum", points=2, minutes=12, difficulty=2, equivalents=("torch.sum",))
class PairwiseSum:
    """A tree instead of a chain.

    Every addition rounds to 16 bits; the order of the additions is prescribed, so the result is exact.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        sizes = [(1, "float16"), (2, "bfloat16"), (5, "float16"), (103, "float16")]
        sizes += [(n, "bfloat16") for n in (64, 103, 125, stream.integer(140, 160))]
        for n, dtype in sizes:
            values = [stream.dyadic(-1, 1, mantissa_bits=7) for _ in range(n)]
            cases.append({"x": torch.tensor(values).to(of(dtype))})
        return [*cases, {"ones": stream.integer(1025, 1500)}]

    def x(self, case):
        """The vector of a case; a long one of ones is not stored."""
        return case["x"] if "x" in case else torch.ones(case["ones"], dtype=torch.bfloat16)

    def run(self, answer, case):
        return answer(self.x(case))

    def reduce(self, case, raw):
        return scalar(raw)

    def describe(self, case):
        return f"pairwise_sum(x) of a {form(self.x(case))}" + ", all ones" * ("ones" in case)


@exercise(
    "02.lost_updates", answer="lost_updates", points=1, minutes=8, difficulty=1,
    forbids=ANSWER_KEY, equivalents=("torch.nextafter",), settles=("R92",),
)  # fmt: skip
class LostUpdates:
    """Which updates are lost?

    An update is at most 1/16 of the gap at its weight, or at least twice the gap.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for low, high in ((0, 0), (4, 7), (-7, -4)):
            for dtype, bits in (("float16", 10), ("bfloat16", 7)):
                weights, updates = [], []
                for i, sign in enumerate(signs(stream, 10)):
                    exponent = stream.integer(low, high)
                    weights.append(stream.dyadic(exponent, exponent, mantissa_bits=bits))
                    gap = 2.0 ** (exponent - bits)
                    size = stream.integer(16, 64) / 8 if i % 2 else 1 / stream.integer(16, 256)
                    updates.append(sign * size * gap)
                # No update at all; and two first steps from zero, of which float16 cannot hold the second.
                weights += [weights[0], 0.0, 0.0]
                updates += [0.0, 2.0**-20, 2.0**-30]
                cases.append({"weights": torch.tensor(weights).to(of(dtype)), "updates": torch.tensor(updates)})
        return cases

    def run(self, answer, case):
        return answer(case["weights"], case["updates"])

    def reduce(self, case, raw):
        if form(raw) != form(case["weights"] != 0):
            return [form(raw)]
        return f"lost at {raw.nonzero().flatten().tolist()}"

    def describe(self, case):
        return f"lost_updates(weights, updates) with weights: {form(case['weights'])}"


@exercise("02.master_sgd", answer="MasterSGD", points=3, minutes=20, difficulty=2, settles=("R92", "R93"))
class MasterSgd:
    """An optimizer with master weights.

    Learning rate, gradients and weights are dyadic, so that every master weight is exact in float32.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for k in range(6):
            shapes = [[2, 3], [4]] if k % 2 else [[5]]
            weights = [stream.tensor(shape, 0, 0, mantissa_bits=7).bfloat16() for shape in shapes]
            steps = stream.integer(8, 12)
            gradients = []
            for shape in shapes:
                direction = stream.tensor(shape, 0, 0, mantissa_bits=0)
                sizes = stream.tensor([steps, *shape], -2, 0, mantissa_bits=7, signed=False)
                gradients.append((direction * sizes).bfloat16())
            case = {"weights": weights, "gradients": gradients, "lr": stream.choice((3, 5)) * 2.0**-12}
            cases.append({**case, "frozen": k in (3, 5)})  # frozen: the last parameter never gets a gradient
        return cases

    def run(self, answer, case):
        params = [torch.nn.Parameter(weight) for weight in case["weights"]]
        optimizer = answer(params, lr=case["lr"])
        for step in range(len(case["gradients"][0])):
            for k, param in enumerate(params):
                if not (case["frozen"] and k == len(params) - 1):
                    param.grad = case["gradients"][k][step].clone()
            optimizer.step()
        return {"weights": [param.detach() for param in params], "master": list(optimizer.master)}

    def reduce(self, case, raw):
        weights, master = (torch.cat([x.flatten() for x in raw[key]]) for key in ("weights", "master"))
        dtypes = {"weights": str(weights.dtype), "master": str(master.dtype)}
        if dtypes != {"weights": "torch.bfloat16", "master": "torch.float32"}:
            return dtypes
        return torch.stack([weights.float(), master])

    def describe(self, case):
        shapes = [tuple(weight.shape) for weight in case["weights"]]
        frozen = ", the last without a gradient" if case["frozen"] else ""
        return (
            f"MasterSGD(params, lr={case['lr']!r}), bfloat16 parameters of shapes {shapes}{frozen}, "
            f"{len(case['gradients'][0])} steps; row 0 of the outcome: the weights, row 1: their master"
        )


@exercise("02.stochastic_round", answer="stochastic_round", points=3, minutes=20, difficulty=3, forbids=ANSWER_KEY)
class StochasticRound:
    """Round by a draw of lots.

    Every x meets each of the 65 536 possible draws once: a bias of a single draw shows, without any statistics.
    """

    tolerance = "exact"
    DRAWS = 2**16

    def cases(self, stream):
        cases = []
        for place, sign in (("near", 1), ("far", -1), ("on", 1), ("on", -1), ("last", -1), ("tiny", 1)):
            exponent = stream.integer(-100, -90) if place == "tiny" else stream.integer(-20, 12)
            steps = 255 if place == "last" else 128 + stream.integer(0, 126)  # last: below a power of two
            # The lower half of the code: near to the neighbor toward zero, far from it, or anywhere between the two.
            low, high = {"on": (0, 0), "near": (2**12, 2**14), "far": (2**15 + 2**12, 2**16 - 2**12)}.get(
                place, (2**12, 2**16 - 2**12)
            )
            part = stream.integer(low, high)
            x = sign * (steps + part / self.DRAWS) * 2.0 ** (exponent - 7)
            order = {"factor": 2 * stream.integer(0, 2**15 - 1) + 1, "offset": stream.integer(0, 2**16 - 1)}
            cases.append({"x": x, **order})
        return cases

    def run(self, answer, case):
        draws = (torch.arange(self.DRAWS) * case["factor"] + case["offset"]) % self.DRAWS
        return answer(torch.full((256, 256), case["x"]), draws.int().reshape(256, 256))

    def reduce(self, case, raw):
        if form(raw) != form(torch.empty(256, 256, dtype=torch.bfloat16)):
            return [form(raw)]
        toward_zero = torch.tensor(case["x"]).view(torch.int32) & -self.DRAWS
        neighbors = torch.stack([toward_zero, toward_zero + self.DRAWS]).view(torch.float32)
        down, up = (int((raw.float() == neighbor).sum()) for neighbor in neighbors)
        return {"toward 0": down, "away from 0": up, "elsewhere": self.DRAWS - down - up}

    def describe(self, case):
        return f"stochastic_round(x, draws), x = {case['x']!r} with each of the draws 0 … 65535: how many go where"


@exercise("02.ema_step", answer="ema_step", points=2, minutes=15, difficulty=2, settles=("R92",))
class EmaStep:
    """An average that remembers what it lost.

    Decay 1 − 2^−k and weights on the grid of bf16: the average, and what it lost, are exact.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for k in (5, 6, 7, 5, 6, 7):
            exponent = stream.integer(-6, 6)
            sign = torch.tensor(signs(stream, 4), dtype=torch.float32)
            rows = stream.tensor((3, 4), exponent, exponent, mantissa_bits=7, signed=False)
            rows[1:] = rows[0] + (rows[1:] - rows[0]) / 4  # close targets: a plain average stands still
            rows = (rows * sign).bfloat16()
            case = {"start": rows[0], "targets": rows[1:].float(), "decay": 1 - 2.0**-k}
            cases.append({**case, "steps": stream.integer(50, 90)})
        return cases

    def run(self, answer, case):
        average, lost = case["start"].clone(), torch.zeros_like(case["start"])
        seen = []
        for target in case["targets"]:
            for step in range(1, case["steps"] + 1):
                average, lost = answer(average, lost, target.clone(), case["decay"])
                if step in (3, case["steps"]):
                    seen.append([average.clone(), lost.clone()])
        return seen

    def reduce(self, case, raw):
        forms = [form(x) for pair in raw for x in pair]
        if set(forms) != {form(case["start"])}:
            return forms
        return torch.stack([torch.stack(pair) for pair in raw])

    def describe(self, case):
        return (
            f"ema_step(average, lost, weights, decay={case['decay']!r}), {case['steps']} steps to each of two targets; "
            "outcome: [average, lost] at step 3 and at the last step of the first target, then of the second"
        )


@exercise(
    "02.fate", answer="fate", points=1, minutes=8, difficulty=1,
    forbids=ANSWER_KEY, settles=("R53", "R100"),
)  # fmt: skip
class Fate:
    """What becomes of a constant?

    Every constant is clear of the limits of its format by a factor of four.
    """

    tolerance = "exact"
    # dtype: exponents of two for constants that become 0, that are subnormal, that are fine, that overflow
    RANGES = {
        "float16": ((-60, -28), (-21, -17), (-11, 13), (18, 60)),
        "bfloat16": ((-200, -137), (-131, -129), (-120, 125), (131, 200)),
        "float32": ((-300, -153), (-145, -129), (-120, 125), (131, 300)),
    }

    def cases(self, stream):
        known = [("float16", x) for x in (1e-8, 1e-7, 1e-5, 1e-3, -1e9, -1e4)] + [("bfloat16", x) for x in (1e-8, -1e9)]
        cases = [{"value": value, "dtype": dtype} for dtype, value in known]
        for dtype, ranges in self.RANGES.items():
            for low, high in ranges:
                for sign in (1, -1):
                    value = stream.dyadic(low, high, signed=False)
                    cases.append({"value": sign * value, "dtype": dtype})
        return cases

    def run(self, answer, case):
        return answer(case["value"], of(case["dtype"]))

    def describe(self, case):
        return f"fate({case['value']!r}, torch.{case['dtype']})"


@exercise(
    "02.masked_softmax", answer="masked_softmax", points=3, minutes=18, difficulty=2,
    equivalents=("torch.softmax", "torch.nn.functional.softmax", "torch.nn.functional.scaled_dot_product_attention"),
    settles=("C47", "R100"),
)  # fmt: skip
class MaskedSoftmax:
    """A softmax that survives.

    Scores that tie, or are far apart, or differ by a few units.
    """

    tolerance = {"rtol": 8e-3, "atol": 1e-4}
    ROWS = (
        ("ordinary", "middle", "hidden peak"),
        ("high", "ordinary", "middle"),
        ("low", "middle", "high"),
        ("all hidden", "ordinary", "low"),
        ("middle", "all hidden", "hidden peak"),
        ("low", "high", "all hidden"),
        ("middle", "hidden peak", "high"),
    )
    DTYPES = ("float16", "float16", "float16", "float16", "bfloat16", "bfloat16", "float32")

    def row(self, stream, kind):
        """Six scores, and which of them are hidden; the first one never is, except in the row "all hidden"."""
        scores, hidden = stream.integers(0, 3, 6), [False, False, False, True, bool(stream.bits(1)), False]
        if kind == "middle":  # too large for exp in float16, not in float32
            base = stream.integer(20, 40)
            scores = [score + base for score in scores]
        elif kind == "high":  # two maxima, the others far below
            top = 256 * stream.integer(150, 230)
            scores = [top, top - 1024 * stream.integer(1, 20), top, top, -top, top - 2048]
        elif kind == "low":
            top = -256 * stream.integer(150, 200)
            scores = [top, top - 512, top - 1024, 0, top, top - 2048]
        elif kind == "hidden peak":
            scores[3] = 256 * stream.integer(150, 230)
        elif kind == "all hidden":
            hidden = [True] * 6
        return [float(score) for score in scores], hidden

    def cases(self, stream):
        cases = []
        for kinds, dtype in zip(self.ROWS, self.DTYPES, strict=True):
            scores, hidden = zip(*(self.row(stream, kind) for kind in kinds), strict=True)
            cases.append({"scores": torch.tensor(scores).to(of(dtype)), "hidden": torch.tensor(hidden)})
        return cases

    def run(self, answer, case):
        return answer(case["scores"].clone(), case["hidden"].clone())

    def describe(self, case):
        return f"masked_softmax(scores, hidden) with scores: {form(case['scores'])}"


@exercise(
    "02.variance", answer="variance", points=2, minutes=12, difficulty=2,
    equivalents=("torch.var", "torch.var_mean", "torch.std", "torch.nn.functional.layer_norm"),
    settles=("C47", "R05"),
)  # fmt: skip
class Variance:
    """A variance that survives."""

    tolerance = {"rtol": 1e-3, "atol": 1e-12}

    def cases(self, stream):
        cases = []

        def add(dtype, base, step, low, high, n):
            values = [[base + step * stream.integer(low, high) for _ in range(n)] for _ in range(2)]
            cases.append({"x": torch.tensor(values, dtype=of(dtype))})

        add("float16", 0.0, 2.0**-6, -64, 64, 8)  # ordinary
        add("float16", 0.0, 1.0, -2000, 2000, 64)  # squares beyond 65504
        # A mean halfway between two float16 numbers.
        rows = [stream.sample([0] * 8 + [1] * 8, 16) for _ in range(2)]
        cases.append({"x": (2**14 + 16 * torch.tensor(rows)).half()})
        add("float16", 2.0**14, 16.0, 0, 1000, 64)  # the sum is beyond 65504, and so is the variance
        add("float16", 0.0, 2.0**-20, -64, 64, 16)  # squares below the smallest float16
        add("float32", 4096.0, 2.0**-4, 0, 3, 64)  # the squares agree in all digits that float32 has
        return cases

    def run(self, answer, case):
        return answer(case["x"].clone())

    def reduce(self, case, raw):
        return raw.tolist() if form(raw) == form(torch.empty(2)) else [form(raw)]

    def describe(self, case):
        return f"variance(x) of a {form(case['x'])}, from {case['x'].min().item()!r} to {case['x'].max().item()!r}"


@exercise("02.overflowing", answer="overflowing", points=2, minutes=15, difficulty=2, settles=("R06",))
class Overflowing:
    """Which layer leaves the range?

    Layers that multiply by powers of two; outputs stay clear of 65504 by a factor of four.
    """

    tolerance = "exact"
    GAINS = (  # of embed, up, down and head: the sign, and the exponent of two
        ((1, 4), (1, 14), (1, -9), (1, -3)),
        ((1, 3), (-1, 15), (1, 2), (1, 1)),
        ((1, 2), (1, 3), (-1, 2), (1, 2)),
        ((1, 18), (-1, -12), (1, 1), (1, 2)),
        ((1, 2), (1, 3), (1, 3), (1, 10)),
        ((1, 3), (1, 3), (-1, 12), (1, 1)),
    )

    def cases(self, stream):
        cases = []
        for gains in self.GAINS:
            nudged = [sign * 2.0 ** (exponent + stream.bits(1) * (exponent > 9)) for sign, exponent in gains]
            cases.append({"gains": nudged, "x": stream.tensor((2, 3), 0, 1, mantissa_bits=3, signed=False)})
        return cases

    def model(self, gains):
        """embed → block (up → act → down) → head; a linear layer multiplies its input by its gain."""
        layers = [torch.nn.Linear(3, 3, bias=False) for _ in gains]
        for layer, gain in zip(layers, gains, strict=True):
            layer.weight.data = gain * torch.eye(3)
        embed, up, down, head = layers
        block = torch.nn.Sequential()
        for name, layer in (("up", up), ("act", torch.nn.ReLU()), ("down", down)):
            block.add_module(name, layer)
        model = torch.nn.Sequential()
        for name, layer in (("embed", embed), ("block", block), ("head", head)):
            model.add_module(name, layer)
        return model

    def run(self, answer, case):
        model = self.model(case["gains"])
        names = answer(model, case["x"].clone())
        hooks = sum(len(module._forward_hooks) for module in model.modules())
        return {"names": names, "hooks left": hooks, "dtype": str(model.head.weight.dtype)}

    def describe(self, case):
        return f"overflowing(model, x) with layers that multiply by {case['gains']}"
