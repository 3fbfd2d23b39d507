"""Lab 04: what its functions are called with, and how the answers are written down for comparison.

Checks run on the CPU. What is said about the CUDA policy is judged as data, or by torch code that follows given lists;
regions of torch.autocast("cpu") occur only where CPU and CUDA agree.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import torch

from ampedu.exercises import exercise
from ampedu.exercises.casting import (
    CHAINS,
    EXACT,
    EXPRESSIONS,
    OTHERS,
    BannedLoss,
    Descent,
    region,
    restored,
    strict_operations,
    walk,
    weighed,
)
from ampedu.exercises.plain import NotPlain

ANSWER_KEY = ("ampedu.policy", "ampedu.trace")
HALVES = ("float16", "bfloat16")
CANCEL = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, 1.0]])  # the difference of the first two columns, and a sum


def of(name):
    """The torch dtype of this name."""
    return getattr(torch, name)


def name_of(dtype):
    """The name of a dtype; anything else unchanged."""
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype


def seen(value):
    """A tensor in words: dtype, shape and values, such as "float16 (2, 1): 1 -0.5"; the type of anything else."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    numbers = " ".join(f"{number:.7g}" for number in value.detach().double().flatten().tolist())
    return f"{name_of(value.dtype)} {tuple(value.shape)}: {numbers}"


def where(low):
    """The region in words."""
    return f"under autocast to {low}" if low else "outside of any region"


def whole(stream, rows, columns, limit):
    """Rows of integers from -limit to limit."""
    return [stream.integers(-limit, limit, columns) for _ in range(rows)]


def tensor(rows, dtype="float32"):
    """A tensor of the dtype with this name."""
    return torch.tensor(rows, dtype=of(dtype))


def shuffling(stream, n):
    """A matrix that permutes n columns and changes some of their signs: products with it do not grow."""
    rows = [[0] * n for _ in range(n)]
    for row, column in enumerate(stream.sample(range(n), n)):
        rows[row][column] = 1 - 2 * stream.bits(1)
    return rows


@exercise("04.predicted", answer="predicted", points=3, minutes=15, difficulty=2, forbids=ANSWER_KEY,
          settles=("C21", "C22", "C23", "C24", "C53", "R40"))  # fmt: skip
class Predicted:
    """Twenty dtypes.

    A choice, so the cases are the same for every secret: one for each expression.
    """

    tolerance = "exact"

    def cases(self, stream):
        return [{"number": number} for number in EXPRESSIONS]

    def run(self, answer, case):
        return answer()

    def reduce(self, case, raw):
        if type(raw) is not dict or not all(type(numbers) in (list, tuple) for numbers in raw.values()):
            raise NotPlain("the answer is not a dict of lists such as {'float16': [1, 3], 'float32': [2]}")
        names = [name for name, numbers in raw.items() if case["number"] in numbers]
        return " and ".join(names) or "in none of the lists"

    def describe(self, case):
        text, reason = EXPRESSIONS[case["number"]]
        return f"expression {case['number']}, {text}: {reason}"


@exercise("04.input_dtypes", answer="input_dtypes", points=2, minutes=10, difficulty=1, forbids=ANSWER_KEY,
          settles=("C23",))  # fmt: skip
class InputDtypes:
    """Three rules."""

    tolerance = "exact"
    FIXED = (
        ("lower_precision", ("float32", "float32"), "float16"),
        ("lower_precision", ("float32", "float16", "bfloat16"), "bfloat16"),
        ("lower_precision", ("float64", "float64"), "float16"),
        ("lower_precision", ("float16", "int64"), "float16"),
        ("float32", ("bfloat16", "int64"), "bfloat16"),
        ("float32", ("float16", "float64", "bool"), "float16"),
        ("promote_widest", ("float16", "float16"), "float16"),
        ("promote_widest", ("float32", "float32"), "bfloat16"),
        ("promote_widest", ("bfloat16", "int64", "float32"), "bfloat16"),
        ("promote_widest", ("float16", "float64"), "float16"),
        (None, ("float16", "float32"), "float16"),
    )

    def cases(self, stream):
        cases = [{"policy": policy, "dtypes": list(dtypes), "low": low} for policy, dtypes, low in self.FIXED]
        for policy in ("lower_precision", "float32", "promote_widest", "promote_widest"):
            low = stream.choice(HALVES)
            dtypes = stream.sample((low, low, "float32", "float64", "int64", "bool"), stream.integer(2, 4))
            cases.append({"policy": policy, "dtypes": dtypes, "low": low})
        return cases

    def run(self, answer, case):
        got = answer(case["policy"], [of(name) for name in case["dtypes"]], of(case["low"]))
        return " ".join(map(str, map(name_of, got))) if type(got) in (list, tuple) else name_of(got)

    def describe(self, case):
        return f"input_dtypes({case['policy']!r}, [{', '.join(case['dtypes'])}], {case['low']})"


@exercise("04.own_autocast", answer="MyAutocast", points=5, minutes=35, difficulty=3, forbids=ANSWER_KEY,
          equivalents=("torch.autocast", "torch.amp.autocast", "torch.set_autocast_enabled"),
          settles=("C21", "C22", "C23", "C24", "C49"), seconds=4.0)  # fmt: skip
class OwnAutocast:
    """An autocast of your own.

    Small models, dealt from a list of steps. Judged by the dtype of each step, and by its values where these are the
    same on every machine.
    """

    tolerance = "exact"
    models = 6

    def cases(self, stream):
        cases = []
        # Every step occurs at least once; the first of a model makes t a tensor of the autocast dtype.
        chains = self.dealt(stream, CHAINS[1:], 2 * self.models)
        others = self.dealt(stream, OTHERS, 2 * self.models)
        exact = self.dealt(stream, EXACT, 3 * self.models)
        for index in range(self.models):
            early, late = exact[index :: self.models], [*chains[index :: self.models], *others[index :: self.models]]
            program = [CHAINS[0], *early[:2], *stream.sample([*early[2:], *late], 1 + len(late))]
            cases.append(
                {
                    "program": [step.text for step in program],
                    "low": HALVES[index % 2],
                    "x": whole(stream, 4, 4, 4),
                    "w": shuffling(stream, 4),
                    "b": stream.integers(-2, 2, 4),
                    "ids": stream.sample(range(4), 4),
                }
            )
        return cases

    def dealt(self, stream, steps, count):
        """count steps in random order, all of them equally often but for one."""
        rounds = -(-count // len(steps))
        return [step for _ in range(rounds) for step in stream.sample(steps, len(steps))][:count]

    def run(self, answer, case):
        low, constants = of(case["low"]), self.constants(case)
        with restored():
            mode = answer(low)
            with torch.no_grad(), mode:
                return walk(case["program"], constants, low)

    def constants(self, case):
        """The tensors of a case."""
        x, w, b = (tensor(case[name]) for name in "xwb")
        return SimpleNamespace(x=x, w=w, b=b, ids=torch.tensor(case["ids"]))

    def describe(self, case):
        steps = "; ".join(f"[{index}] {text}" for index, text in enumerate(case["program"]))
        return f"MyAutocast(torch.{case['low']}), t = x, then {steps}. A number is a sum that stands for all values."


@exercise("04.count_casts", answer="count_casts", points=3, minutes=15, difficulty=2, forbids=ANSWER_KEY)
class CountCasts:
    """How many casts?

    All operations are on the lower-precision list and the autocast dtype is float16.
    """

    tolerance = "exact"
    # name: dtype, requires_grad, leaf
    KINDS = {
        "weight": ("float32", True, True),
        "bias": ("float32", True, True),
        "frozen": ("float32", False, True),
        "input": ("float32", False, True),
        "hidden": ("float32", True, False),
        "low": ("float16", True, False),
        "half": ("float16", True, True),
    }

    def cases(self, stream):
        linear = [["input", "weight", "bias"]] * 3
        plans = [
            (["enter", *linear, "leave"], True),
            (["enter", *linear, "leave"], False),
            (["enter", *linear, "leave", "enter", *linear, "leave", *linear], True),
            (["enter", ["low", "weight"], "enter", ["low", "weight"], "leave", ["low", "weight"], "leave"], True),
            (["enter", ["low", "frozen"], ["low", "frozen"], ["half", "low"], "leave"], True),
            (["enter", ["hidden", "weight"], ["hidden", "weight"], ["weight", "weight"], "leave"], True),
            (["enter", ["weight", "weight"], "leave", ["weight", "weight"]], False),
        ]
        plans += [(self.drawn(stream), cache) for cache in (True, True, False)]
        return [{"events": events, "cache_enabled": cache} for events, cache in plans]

    def drawn(self, stream):
        """A random sequence of events with two outer regions, one of them with an inner one, and calls outside."""

        def calls():
            count = stream.integer(2, 4)
            return [[stream.choice(tuple(self.KINDS)) for _ in range(stream.integer(2, 3))] for _ in range(count)]

        inner = ["enter", *calls(), "leave"]
        return ["enter", *calls(), *inner, *calls(), "leave", *calls(), "enter", *calls(), "leave"]

    def run(self, answer, case):
        keys = ("dtype", "requires_grad", "leaf")
        kinds = {name: (of(dtype), *rest) for name, (dtype, *rest) in self.KINDS.items()}
        tensors = {name: dict(zip(keys, values, strict=True)) for name, values in kinds.items()}
        return answer(tensors, case["events"], cache_enabled=case["cache_enabled"])

    def describe(self, case):
        events = ", ".join(event if type(event) is str else f"({', '.join(event)})" for event in case["events"])
        return f"count_casts(tensors, events, cache_enabled={case['cache_enabled']}), events: {events}"


@exercise("04.in_float32", answer="in_float32", points=2, minutes=12, difficulty=2, forbids=ANSWER_KEY,
          settles=("C26", "R29", "R40", "R42"))  # fmt: skip
class InFloat32:
    """A float32 island."""

    tolerance = "exact"
    FUNCTIONS = {
        "product": lambda x, w: x @ w,
        "rows": lambda x, w, ids: x[ids] @ w,
        "gram": lambda x: torch.mm(x[:2], x[:2].T),
    }

    def cases(self, stream):
        cases = []
        for low, kind, function in (
            ("bfloat16", "float32", "product"),
            ("float16", "float32", "rows"),
            ("bfloat16", "bfloat16", "product"),
            ("float16", "float16", "rows"),
            (None, "bfloat16", "rows"),
            ("bfloat16", "float32", "gram"),
        ):
            x = [[8 * a, 8 * a, b] for a, b in whole(stream, 3, 2, 15)]
            cases.append({"low": low, "kind": kind, "function": function, "x": x, "ids": stream.sample(range(3), 2)})
        return cases

    def tensors(self, case):
        """The inputs of the function; in float32, two columns differ by what 16 bits cannot hold."""
        x = tensor(case["x"], case["kind"])
        if case["kind"] == "float32":
            x[:, 0] += 2.0**-8
        inputs = {"product": [x, CANCEL], "rows": [x, CANCEL, torch.tensor(case["ids"])], "gram": [x]}
        return inputs[case["function"]]

    def run(self, answer, case):
        inside = []

        def function(*tensors):
            inside.extend(name_of(tensor.dtype) for tensor in tensors)
            return self.FUNCTIONS[case["function"]](*tensors)

        with region(case["low"]):
            result = answer(function, *self.tensors(case))
            after = torch.is_autocast_enabled("cpu")
        return [f"inputs {' '.join(inside)}", seen(result), f"region {'on' if after else 'off'} afterwards"]

    def describe(self, case):
        inputs = ", ".join(f"{name_of(tensor.dtype)} {tuple(tensor.shape)}" for tensor in self.tensors(case))
        return f"in_float32({case['function']}, {inputs}) {where(case['low'])}"


@exercise("04.clipped_product", answer="clipped_product", points=3, minutes=18, difficulty=2, forbids=ANSWER_KEY,
          settles=("C25", "C60", "C61", "R25", "R36", "R37"))  # fmt: skip
class ClippedProduct:
    """A backward of your own.

    Integers that are exact in the autocast dtype, and that another one would round.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for low, kind in (
            ("bfloat16", "float32"),
            ("float16", "float32"),
            (None, "float32"),
            ("float16", "float16"),
            ("bfloat16", "bfloat16"),
            ("float16", "float32"),
        ):
            base = {"bfloat16": 64, "float16": 512, None: 65536}[low]
            x = [[base + 2 * a + 1, -base - 2 * b + 1] for a, b in whole(stream, 2, 2, 25)]
            w = [[stream.integer(-1, 1), stream.integer(2, 4)], [stream.integer(1, 3), stream.integer(-1, 1)]]
            grad = [[stream.choice((-3, -1, 2)) for _ in range(2)] for _ in range(2)]
            cases.append({"low": low, "kind": kind, "x": x, "w": w, "grad": grad})
        return cases

    def run(self, answer, case):
        x, w = tensor(case["x"], case["kind"]).requires_grad_(), tensor(case["w"]).requires_grad_()
        with region(case["low"]):
            y = answer(x, w)
        with restored():
            # Not y.backward(grad): that loads the symbolic shapes of the compiler, which takes seconds.
            (y * tensor(case["grad"]).to(y.dtype)).sum().backward()
        return [f"y: {seen(y)}", f"x.grad: {seen(x.grad)}", f"w.grad: {seen(w.grad)}"]

    def describe(self, case):
        call = f"y = clipped_product(x, w), x: {case['kind']}, w: float32, {where(case['low'])}"
        return f"{call}; then (y * grad).sum().backward() outside of it"


@exercise("04.register_casts", answer="register_casts", points=2, minutes=12, difficulty=2, forbids=ANSWER_KEY,
          settles=("C25", "R35"))  # fmt: skip
class RegisterCasts:
    """A rule for an operation of your own.

    Every case makes operations with names that were never used before in this process.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for low in (*HALVES, *HALVES, *HALVES):
            policies = stream.sample(("lower_precision", "float32", None), 3)
            cases.append({"low": low, "policies": policies, "y": stream.integers(-9, 9, 2)})
        return cases

    def run(self, answer, case):
        low, names = of(case["low"]), ("first", "second", "third")
        policies = dict(zip(names, case["policies"], strict=True))
        x, y, ids = torch.tensor([1 + 2.0**-12, 1]), tensor(case["y"]), torch.arange(3)
        calls = ((x, y.to(low), True), (ids, ids, True), (x, y, False))
        result = []
        with strict_operations(names) as space:
            answer({f"{space}::{name}": policy for name, policy in policies.items() if policy}, "cpu", low)
            for name, (*inputs, inside) in itertools.product(names, calls):
                with region(case["low"] if inside else None):
                    try:
                        value = getattr(getattr(torch.ops, space), name)(*inputs)
                        result.append(f"{name_of(value.dtype)} {weighed(value):.7g}")
                    except RuntimeError as error:
                        result.append(type(error).__name__)
        return result

    def describe(self, case):
        given = dict(zip(("first", "second", "third"), case["policies"], strict=True))
        listed = ", ".join(f"{name}: {policy}" for name, policy in given.items() if policy)
        calls = "of (x, y.to(low)) and (ids, ids) inside the region, and of (x, y) outside"
        return f'register_casts({{{listed}}}, "cpu", torch.{case["low"]}); three calls of first, second, third: {calls}'


@exercise("04.put_rows", answer="put_rows", points=1, minutes=8, difficulty=1, forbids=ANSWER_KEY, settles=("R30",))
class PutRows:
    """Bug 1: a buffer of another dtype."""

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for buffer, values, add in (
            ("float32", "bfloat16", False),
            ("float32", "float16", True),
            ("bfloat16", "float32", False),
            ("bfloat16", "float32", True),
            ("float32", "float32", True),
            ("float32", "bfloat16", True),
        ):
            rows = stream.sample(range(4), 3)
            if add:
                rows[1] = rows[0]
            kinds = {"buffer": buffer, "values": values, "add": add, "rows": rows}
            cases.append({**kinds, "old": whole(stream, 4, 2, 20), "new": whole(stream, 3, 2, 20)})
        return cases

    def run(self, answer, case):
        # A float32 buffer holds digits that 16 bits would lose.
        buffer = tensor(case["old"], case["buffer"]) + (80.0625 if case["buffer"] == "float32" else 0)
        values = tensor(case["new"], case["values"]) + 0.5
        answer(buffer, torch.tensor(case["rows"]), values, add=case["add"])
        return seen(buffer)

    def describe(self, case):
        call = f"put_rows(buffer, rows={case['rows']}, values, add={case['add']})"
        return f"{call}, buffer: {case['buffer']}, values: {case['values']}; outcome: the buffer"


@exercise("04.to_numpy", answer="to_numpy", points=1, minutes=6, difficulty=1, forbids=ANSWER_KEY, settles=("R31",))
class ToNumpy:
    """Bug 2: NumPy has no bfloat16."""

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for kind, grad in (
            ("bfloat16", False),
            ("bfloat16", True),
            ("float32", True),
            ("float64", True),
            ("float16", False),
            ("int64", False),
            ("bool", False),
        ):
            x = {"int64": stream.integers(2**55, 2**56, 3)}.get(kind, whole(stream, 1, 3, 99)[0])
            if kind in ("bfloat16", "float32", "float64"):  # out of the range of float16
                x = [float(number) * 2.0 ** stream.integer(20, 30) + (kind == "float64") * 2.0**-10 for number in x]
            cases.append({"x": x, "kind": kind, "grad": grad})
        return cases

    def run(self, answer, case):
        got = answer(tensor(case["x"], case["kind"]).requires_grad_(case["grad"]))
        return [str(got.dtype), got.tolist()] if type(got) is np.ndarray else [type(got).__name__]

    def describe(self, case):
        return f"to_numpy(x), x: {case['kind']}" + ", requires grad" * case["grad"]


@exercise("04.graph_layer", answer="graph_layer", points=2, minutes=12, difficulty=2, forbids=ANSWER_KEY,
          settles=("R29", "R33"))  # fmt: skip
class GraphLayer:
    """Bug 3: a kernel that is missing.

    The weights of the edges need more digits than 16 bits have; sums and products are exact in float32.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for low, kind in (
            ("bfloat16", "float32"),
            ("float16", "float32"),
            ("bfloat16", "bfloat16"),
            ("float16", "float16"),
            (None, "float32"),
            ("bfloat16", "float32"),
        ):
            row = [number + 32 for number in stream.integers(-20, 20, 2)]
            cases.append({"low": low, "kind": kind, "row": row, "weight": shuffling(stream, 2), "sign": stream.bits(1)})
        return cases

    def run(self, answer, case):
        # Two edges that cancel but for their last bit, one that stays, and two that cancel the other way round.
        edge, sign = 1 + 2.0**-12, 1 - 2 * case["sign"]
        adjacency = tensor([[edge, -1, 0], [0, sign, 0], [-1, 0, edge]]).to_sparse_csr()
        features, weight = tensor([case["row"]] * 3, case["kind"]), tensor(case["weight"])
        with region(case["low"]):
            return seen(answer(adjacency, features, weight))

    def describe(self, case):
        return f"graph_layer(sparse, {case['kind']} features, weight) {where(case['low'])}"


@exercise("04.yes_no_loss", answer="yes_no_loss", points=1, minutes=10, difficulty=1, forbids=ANSWER_KEY,
          settles=("C21", "R27"))  # fmt: skip
class YesNoLoss:
    """Bug 4: a loss that is banned.

    Logits beyond the point where a float32 sigmoid is 1. The check bans BCELoss in the region as CUDA's autocast does.
    """

    tolerance = {"loss": {"rtol": 1e-5, "atol": 1e-6}, "gradient": {"rtol": 3e-2, "atol": 1e-5}}

    def cases(self, stream):
        cases = []
        for index, low in enumerate((*HALVES, None, *HALVES, None)):
            logits = [float(stream.integer(60, 90)), -float(stream.integer(40, 58))]
            cases.append({"logits": logits, "targets": [float(index % 2), 1.0], "low": low})
        return cases

    def run(self, answer, case):
        # Outside of a region the logits of a half model.
        x = torch.tensor(case["logits"], dtype=torch.float32 if case["low"] else torch.float16).reshape(2, 1)
        x.requires_grad_()
        with region(case["low"]), BannedLoss():
            loss = answer(x @ torch.ones(1, 1, dtype=x.dtype), torch.tensor(case["targets"]).reshape(2, 1))
        if not isinstance(loss, torch.Tensor):
            return {"dtype": type(loss).__name__, "loss": 0.0, "gradient": []}
        loss.sum().backward()
        value = loss.detach().double()
        value = value.item() if value.dim() == 0 else value.tolist()
        return {"dtype": name_of(loss.dtype), "loss": value, "gradient": x.grad.flatten().tolist()}

    def describe(self, case):
        return f"yes_no_loss(logits {case['logits']}, targets {case['targets']}) {where(case['low'])}"


@exercise("04.train", answer="train", points=2, minutes=12, difficulty=2, forbids=ANSWER_KEY, settles=("R46",))
class Train:
    """Bug 5: training stands still."""

    tolerance = {"losses": {"rtol": 2e-5, "atol": 1e-6}, "moved": {"rtol": 2e-5, "atol": 1e-6}}

    def cases(self, stream):
        cases = []
        for index in range(6):
            steps = stream.integer(3, 4)
            # The two columns of x cancel in part: rounded to bfloat16 they do so completely.
            column = 1.0 + 2.0**-9
            sign = stream.choice((1.0, -1.0))
            x = [[sign * column, -sign], [sign, -sign * column]]
            y = [[float(stream.integer(2, 4))], [float(stream.integer(3, 5))]]
            case = {"x": x, "y": y, "steps": steps, "weight": [[stream.choice((32.0, -32.0))] * 2]}
            cases.append({**case, "lr": stream.choice((0.0625, 0.125)), "momentum": 0.5 * (index % 2)})
        return cases

    def run(self, answer, case):
        model = torch.nn.Linear(2, 1, bias=False)
        start = torch.tensor(case["weight"])
        with torch.no_grad():
            model.weight.copy_(start)
        optimizer = Descent(model.weight, case["lr"], case["momentum"])
        batches = [(torch.tensor(case["x"]), torch.tensor(case["y"])) for _ in range(case["steps"])]
        with restored():
            losses = answer(model, optimizer, batches)
        if type(losses) is list and all(isinstance(loss, torch.Tensor) for loss in losses):
            losses = [loss.item() for loss in losses]
        if type(losses) is list and all(type(loss) is float for loss in losses):
            losses = [float(f"{loss:.7g}") for loss in losses]
        return {"losses": losses, "moved": [float(f"{x:.7g}") for x in (model.weight.detach() - start).flatten()]}

    def describe(self, case):
        return f"train(model, optimizer, batches) of {case['steps']} batches, lr={case['lr']}, F.mse_loss"
