"""Lab 05: what its functions are called with, and how the answers are written down for comparison.

Checks run on the CPU. Gradients are made infinite by the loss, not by luck: each skip stands in the case.
The first optimizer of a process loads torch's compiler, which took more than 10 s on a busy machine: hence seconds=30.
"""

import copy
import math
import numbers

import torch
import torch.nn.functional as F

from ampedu.exercises import exercise
from ampedu.exercises.plain import NotPlain
from ampedu.exercises.scaling_runs import CAUSES, LOOK, RUNS

ANSWER_KEY = ("ampedu.scaling",)
SCALERS = (
    "torch.amp.GradScaler", "torch.amp.grad_scaler.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler",
    "torch.GradScaler", "torch._amp_update_scale_",
)  # fmt: skip
INF = math.inf


def weight(values):
    """A float32 parameter with these values."""
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float32))


def truth(value):
    """A bool; one in a tensor, too, for the value of a comparison of tensors. Anything else unchanged."""
    return bool(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def number(value):
    """A float, also from an int, a number of numpy or a tensor of one element. Anything else unchanged."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value


def brief(values, digits=6):
    """Floats with a few digits: expected data are small, and reports readable."""
    return [float(f"{value:.{digits}g}") for value in values]


def power(value):
    """A number in words: "2^16" for a power of two, "True" for a bool."""
    value = number(value)
    if type(value) is float and 0 < value < INF and math.frexp(value)[0] == 0.5:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value!r:.40}"


def share(value):
    """A fraction with seven digits; anything that is no number unchanged."""
    value = number(value)
    return brief([value])[0] if type(value) is float else value


class Moves:
    """What changed between two looks at some parameters: their updates, which are judged instead of the weights.

    Gradients and learning rates of this lab are dyadic and short, so that updates by SGD are exact in float32.
    """

    def __init__(self, *parameters):
        self.parameters, self.seen = parameters, [p.detach().clone() for p in parameters]

    def moved(self):
        """The updates since the last look, one flat list."""
        now = [p.detach().clone() for p in self.parameters]
        moved = torch.cat([(a - b).flatten() for a, b in zip(now, self.seen, strict=True)])
        self.seen = now
        return moved.tolist()

    def text(self):
        """The updates since the last look, in words."""
        return " ".join(f"{value:.9g}" for value in self.moved())


def pattern(stream, kinds, steps, must):
    """A list of ``steps`` kinds of step that holds each kind of ``must`` at least once."""
    drawn = [*must, *(stream.choice(kinds) for _ in range(steps - len(must)))]
    return stream.sample(drawn, steps)


@exercise("05.static_step", answer="static_step", points=2, minutes=12, difficulty=1, forbids=ANSWER_KEY,
          equivalents=SCALERS, settles=("C41", "R38"), seconds=30.0)  # fmt: skip
class StaticStep:
    """A constant scale.

    Gradients that float16 would flush to zero, and that float32 holds. Two steps of SGD with momentum.
    """

    # Rounding to float16 moves a gradient by 2**-11 at most; products and sums are exact at first.
    tolerance = {"losses": {"rtol": 4e-3, "atol": 1e-14}, "moved": {"rtol": 4e-3, "atol": 1e-6}}
    factor = 2.0**-33

    def cases(self, stream):
        cases = []
        for index in range(6):
            x = [[float(stream.integer(1, 3)), float(stream.integer(1, 3))] for _ in range(2)]
            case = {"x": x, "y": [[-float(stream.integer(4, 8))], [-float(stream.integer(4, 8))]]}
            weights = [[stream.integer(5, 8) / 4, stream.integer(5, 8) / 4]]
            cases.append({**case, "weights": weights, "scale": 2.0 ** stream.integer(22, 26), "stale": index % 2 == 1})
        return cases

    def run(self, answer, case):
        model = torch.nn.Linear(2, 1, bias=False)
        model.weight = weight(case["weights"])
        if case["stale"]:
            model.weight.grad = torch.ones(1, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**24, momentum=0.5)
        x, y = torch.tensor(case["x"]), torch.tensor(case["y"])
        dtypes, moves, losses = [], Moves(model.weight), []

        def loss_fn(outputs, targets):
            dtypes.append(outputs.dtype)
            return F.mse_loss(outputs.float(), targets) * self.factor

        for step in range(2):
            loss = number(answer(model, (x[step % 2 :], y[step % 2 :]), loss_fn, optimizer, case["scale"]))
            losses += brief([loss], digits=5) if type(loss) is float else [loss]
        names = [str(dtype).removeprefix("torch.") for dtype in (*dict.fromkeys(dtypes), model.weight.dtype)]
        return {"dtypes": "/".join(names), "losses": losses, "moved": brief(moves.moved(), digits=5)}

    def describe(self, case):
        stale = ", with a gradient left in .grad" * case["stale"]
        power = f"2**{math.log2(case['scale']):.0f}"
        return f"two calls of static_step(model, batch, loss_fn, optimizer, scale={power}){stale}"


@exercise("05.check_and_unscale", answer="check_and_unscale_", points=2, minutes=10, difficulty=1, forbids=ANSWER_KEY,
          equivalents=(*SCALERS, "torch._amp_foreach_non_finite_check_and_unscale_"), settles=("R51",))  # fmt: skip
class CheckAndUnscale:
    """Check and unscale in one pass.

    Scales are powers of two, so that dividing by the scale and multiplying by its inverse give the same bits.
    """

    tolerance = "exact"
    PLANTED = (None, (0, INF), (1, -INF), (2, math.nan), "sum", (0, math.nan))

    def cases(self, stream):
        cases = []
        for index, planted in enumerate(self.PLANTED):
            grads = [[stream.dyadic(0, 8, 2) for _ in range(2)] for _ in range(3)]
            if planted == "sum":  # finite, but no sum of them is
                grads = [[2.0**127, 2.0**127 * stream.choice((1.0, 1.5))] for _ in range(3)]
            elif planted:
                where, value = planted
                grads[where][stream.integer(0, 1)] = value
            grads.insert(stream.integer(0, 3), None)
            cases.append({"grads": grads, "scale": 2.0 ** (stream.integer(2, 4) if index else -2)})
        return cases

    def run(self, answer, case):
        grads = [None if values is None else torch.tensor(values) for values in case["grads"]]
        found = answer(list(grads), case["scale"])
        return {"found": truth(found), "grads": [None if grad is None else grad.tolist() for grad in grads]}

    def describe(self, case):
        return f"check_and_unscale_({case['grads']}, scale={case['scale']:g})"


@exercise("05.dynamic_loss_scaler", answer="DynamicLossScaler", points=5, minutes=35, difficulty=3, forbids=ANSWER_KEY,
          equivalents=SCALERS, settles=("C18", "C19", "C20", "R51"))  # fmt: skip
class OwnScaler:
    """A scaler of your own.

    Judged after every event by the scale and the growth tracker.
    """

    tolerance = "exact"
    KEYS = frozenset({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"})

    def cases(self, stream):
        made = []
        k = stream.integer
        # A growth that would leave the range of float32, twice.
        made.append((2.0 ** k(125, 126), 2.0, 0.5, k(1, 2), ["ok"] * 6 + ["inf", "ok", "ok"]))
        # No floor: to 0, where float32 ends.
        made.append((2.0 ** k(-147, -146), 2.0, 0.5, 2, ["inf"] * 5 + ["ok"] * 3))
        # The interval lowered below the tracker, and raised above it.
        low = ["ok"] * 4 + [f"interval {k(2, 3)}", "ok", "ok", "ok", "inf", "ok", "ok", "ok"]
        made.append((2.0 ** k(8, 16), 2.0, 0.5, 6, low))
        made.append((2.0 ** k(8, 16), 2.0, 0.5, 4, ["ok"] * 3 + ["interval 5", "ok", "ok", "ok"]))
        for interval in (2, 3):
            events = pattern(stream, ("ok", "ok", "ok", "inf"), 8, ["ok"] * 4 + ["inf"])
            # The scaler is replaced by a new one with torch's constants, which loads the state, two steps into a run.
            events[5:5] = ["inf", "ok", "reload", "ok", "ok", "ok", "ok", "ok"]
            growth, backoff = stream.choice(((2.0, 0.5), (4.0, 0.5), (2.0, 0.25), (4.0, 0.25)))
            made.append((2.0 ** k(10, 20), growth, backoff, interval, events))
        keys = ("scale", "growth_factor", "backoff_factor", "growth_interval", "events")
        return [dict(zip(keys, values, strict=True)) for values in made]

    def run(self, answer, case):
        names = ("growth_factor", "backoff_factor", "growth_interval")
        scaler = answer(case["scale"], **{name: case[name] for name in names})
        trace = [self.state(scaler)]
        for event in case["events"]:
            name, _, value = event.partition(" ")
            if name == "interval":
                scaler.set_growth_interval(int(value))
            elif name == "reload":
                saved = copy.deepcopy(scaler.state_dict())
                scaler = answer()
                scaler.load_state_dict(saved)
            else:
                scaler.update(name == "inf")
            trace.append(self.state(scaler))
        state = scaler.state_dict()
        if type(state) is not dict or not all(isinstance(value, numbers.Real) for value in state.values()):
            raise NotPlain("state_dict() did not return a dict of numbers")
        if set(state) != self.KEYS:
            return [*trace, f"state_dict() has the keys {', '.join(sorted(state))}"]
        return [*trace, "in the state: " + " ".join(power(state[name]) for name in sorted(state))]

    def state(self, scaler):
        """Scale and tracker in words."""
        return f"{power(scaler.get_scale())}, {scaler.state_dict().get('_growth_tracker')}"

    def describe(self, case):
        call = ", ".join(f"{name}={case[name]:g}" for name in ("growth_factor", "backoff_factor", "growth_interval"))
        events = " ".join(f"[{n}] {event}" for n, event in enumerate(case["events"], 1))
        return f"DynamicLossScaler({power(case['scale'])}, {call}); {events}; outcome: scale, growth tracker"


@exercise("05.finish_step", answer="finish_step", points=2, minutes=10, difficulty=1, forbids=ANSWER_KEY,
          settles=("R62", "R65"), seconds=30.0)  # fmt: skip
class FinishStep:
    """A schedule that knows of skips.

    A live torch.amp.GradScaler; the loss is linear, so that each gradient is given.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for index in range(6):
            must = ["ok", "ok", "inf"] if index else ["ok", "ok"]
            kinds = ["inf"] * (index % 3 == 1) + pattern(stream, ("ok", "ok", "inf"), 4, must)
            grads = [INF if kind == "inf" else float(stream.integer(1, 7)) for kind in kinds]
            cases.append({"grads": grads, "growth_interval": 1 + index % 3, "scale": 2.0 ** stream.integer(8, 16)})
        return cases

    def run(self, answer, case):
        w = weight([1.0])
        optimizer = torch.optim.SGD([w], lr=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n)
        scaler = torch.amp.GradScaler("cpu", init_scale=case["scale"], growth_interval=case["growth_interval"])
        seen, moves = [], Moves(w)
        for grad in case["grads"]:
            optimizer.zero_grad()
            scaler.scale((w * grad).sum()).backward()
            answer(scaler, optimizer, scheduler)
            seen.append(f"{moves.text()}, {power(scaler.get_scale())}, {optimizer.param_groups[0]['lr']:g}")
        return seen

    def describe(self, case):
        grads = " ".join(f"{grad:g}" for grad in case["grads"])
        return f"one weight, gradients {grads}, growth_interval={case['growth_interval']}; outcome: update, scale, lr"


@exercise("05.step_all", answer="step_all", points=3, minutes=15, difficulty=2, forbids=ANSWER_KEY,
          settles=("C17", "R66"), seconds=30.0)  # fmt: skip
class StepAll:
    """Did the step happen?

    Two optimizers of one scaler, also fused ones, also with backoff 1.0, also with gradients that are zero.
    """

    tolerance = "exact"
    # fused, backoff factor, growth interval
    SETTINGS = ((False, 0.5, 2), (False, 1.0, 3), (True, 0.5, 1), (True, 1.0, 2), (False, 0.5, 3), (False, 1.0, 1))

    def cases(self, stream):
        cases = []
        for fused, backoff, interval in self.SETTINGS:
            first = pattern(stream, ("ok", "zero", "inf"), 4, ["inf", "ok", "zero", "inf"])
            grads = []
            for kind in first:  # steps where one of the two is skipped, and steps where none is
                other = stream.choice(("ok", "inf")) if kind == "zero" else "ok"
                pair = [{"inf": INF, "zero": 0.0, "ok": float(stream.integer(1, 7))}[k] for k in (kind, other)]
                grads.append(pair[:: stream.choice((1, -1))])
            setting = {"fused": fused, "backoff": backoff, "growth_interval": interval}
            cases.append({**setting, "grads": grads, "scale": 2.0 ** stream.integer(8, 16)})
        return cases

    def run(self, answer, case):
        weights = [weight([1.0]), weight([-2.0])]
        optimizers = [torch.optim.SGD([w], lr=0.25, fused=case["fused"]) for w in weights]
        scaler = torch.amp.GradScaler("cpu", init_scale=case["scale"], growth_interval=case["growth_interval"])
        scaler.set_backoff_factor(case["backoff"])
        seen, moves = [], Moves(*weights)
        for grads in case["grads"]:
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(sum((w * grad).sum() for w, grad in zip(weights, grads, strict=True))).backward()
            happened = answer(scaler, optimizers)
            if type(happened) in (list, tuple):
                happened = " ".join({True: "yes", False: "no"}.get(truth(x), repr(x)) for x in happened)
            seen.append(f"{happened!s:.60}: {moves.text()}, {power(scaler.get_scale())}")
        return seen

    def describe(self, case):
        how = f"{'fused, ' * case['fused']}backoff {case['backoff']}, growth_interval={case['growth_interval']}"
        grads = "; ".join(" and ".join(f"{grad:g}" for grad in pair) for pair in case["grads"])
        return f"two optimizers ({how}), gradients step by step: {grads}; outcome: stepped, updates, scale"


@exercise("05.guarded_step", answer="guarded_step", points=2, minutes=10, difficulty=1, forbids=ANSWER_KEY,
          settles=("C42", "R56"), seconds=30.0)  # fmt: skip
class GuardedStep:
    """bfloat16 without a scaler.

    The loss of a bad step is finite, unless it is the loss that overflows; one of the parameters has no gradient.
    """

    tolerance = "exact"
    KINDS = ("ok", "inf", "nan", "minus", "loss")

    def cases(self, stream):
        cases = []
        for index in range(6):
            bad = self.KINDS[1 + index % 4]
            kinds = ["ok", *pattern(stream, self.KINDS, 2, [bad]), "ok"]
            steps = [{"kind": kind, "grads": stream.integers(1, 7, 2)} for kind in kinds]
            cases.append({"steps": steps, "stale": index == 2})
        return cases

    def run(self, answer, case):
        a, b, unused = weight([1.0]), weight([2.0]), weight([3.0])
        optimizer = torch.optim.SGD([{"params": [a, unused]}, {"params": [b]}], lr=0.125, momentum=0.5)
        if case["stale"]:
            a.grad = torch.full_like(a, INF)
        seen, moves = [], Moves(a, b)
        for step in case["steps"]:
            happened = truth(answer(self.loss(step, a, b), optimizer))
            seen.append(f"{happened!r:.40}: {moves.text()}")
        return seen

    def loss(self, step, a, b):
        """A loss with the given gradients, or with one that is not finite."""
        p, q = step["grads"]
        loss = (a * p + b * q).sum()
        zero = (b - b.detach()).sum()
        bad = {"inf": zero.sqrt(), "minus": -zero.sqrt(), "nan": (0 * zero).sqrt(), "loss": loss * INF}
        return loss + bad.get(step["kind"], 0)

    def describe(self, case):
        words = {"ok": "finite", "inf": "one gradient inf", "minus": "one gradient -inf", "nan": "one gradient NaN",
                 "loss": "an infinite loss"}  # fmt: skip
        return f"guarded_step(loss, optimizer), step by step: {', '.join(words[s['kind']] for s in case['steps'])}"


def counted(stream, exponents):
    """A histogram: a number of gradients for each of the exponents, as pairs."""
    return [[e, stream.integer(1, 200)] for e in exponents]


@exercise("05.landing", answer="landing", points=2, minutes=15, difficulty=2, forbids=ANSWER_KEY, settles=("C42",))
class Landing:
    """Where gradients land.

    A bin counts as its middle does, so that the fractions are exact.
    """

    tolerance = {"rtol": 1e-6, "atol": 1e-9}

    def cases(self, stream):
        cases = []
        for dtype, first, last, k in (
            ("float16", -29, -12, 0),
            ("float16", -36, -8, stream.integer(5, 8)),
            ("float16", -20, 18, -stream.integer(2, 4)),
            ("bfloat16", -40, 10, 0),
            ("bfloat16", -142, -120, 0),
            ("bfloat16", 105, 117, 15),
        ):
            exponents = sorted(stream.sample(range(first, last + 1), 4) + self.edges(dtype, k, first, last))
            histogram = counted(stream, sorted(set(exponents)))
            cases.append({"histogram": histogram, "dtype": dtype, "scale": 2.0**k})
        return cases

    def edges(self, dtype, k, first, last):
        """Exponents on both sides of each threshold, so that every secret has them."""
        lowest, least, highest = {"float16": (-25, -14, 15), "bfloat16": (-134, -126, 127)}[dtype]
        edges = [lowest - 1, lowest, lowest + 1, least - 1, least, highest, highest + 1]
        return [edge - k for edge in edges if first <= edge - k <= last]

    def run(self, answer, case):
        got = answer(dict(case["histogram"]), getattr(torch, case["dtype"]), case["scale"])
        return {name: share(value) for name, value in got.items()} if type(got) is dict else got

    def describe(self, case):
        histogram = ", ".join(f"{e}: {count}" for e, count in case["histogram"])
        return f"landing({{{histogram}}}, torch.{case['dtype']}, scale=2.0**{math.log2(case['scale']):.0f})"


@exercise("05.choose_scale", answer="choose_scale", points=2, minutes=10, difficulty=1, forbids=ANSWER_KEY)
class ChooseScale:
    """Choose a scale."""

    tolerance = {"scale": "exact", "lost": {"rtol": 1e-6, "atol": 1e-9}}

    def cases(self, stream):
        cases = []
        for first, last, headroom in (
            (-30, -18, 0), (-44, -6, 2), (-50, -3, 3), (-28, -12, 1), (-35, 17, 2), (-40, -9, 4), (-12, 13, 0),
        ):  # fmt: skip
            top = last - stream.integer(0, 1)
            exponents = sorted({first, top, *stream.sample(range(first, top), 5)})
            cases.append({"histogram": counted(stream, exponents), "headroom": headroom})
        return cases

    def run(self, answer, case):
        got = answer(dict(case["histogram"]), case["headroom"])
        if type(got) is not tuple or len(got) != 2:
            raise NotPlain("choose_scale returns a pair: the scale, and the lost fraction")
        return {"scale": power(got[0]), "lost": share(got[1])}

    def describe(self, case):
        histogram = ", ".join(f"{e}: {count}" for e, count in case["histogram"])
        return f"choose_scale({{{histogram}}}, headroom={case['headroom']})"


@exercise("05.checkpoint", answer="Checkpoint", points=3, minutes=15, difficulty=2, forbids=ANSWER_KEY,
          settles=("R80", "R81"), seconds=30.0)  # fmt: skip
class Resumed:
    """Resume as if nothing had happened.

    The first run goes on after it was saved, as runs do. Judged by what the resumed run does.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for index in range(6):
            before = [*pattern(stream, ("ok", "ok", "inf"), 4, ["ok", "inf"]), "ok", "ok"]
            after = ["ok", *pattern(stream, ("ok", "ok", "inf"), 3, ["ok", "ok"])]
            inputs = [INF if kind == "inf" else stream.integer(1, 7) / 4 for kind in before + after]
            # A weight that 16 bits cannot hold, and an interval that ends soon after the start.
            weight = 1 + (2 * stream.integer(0, 99) + 1) * 2.0**-13
            case = {"inputs": inputs, "saved_after": len(before), "weight": weight}
            cases.append({**case, "growth_interval": 3 + index % 2, "scale": 2.0 ** stream.integer(9, 14)})
        return cases

    def run(self, answer, case):
        objects, cut = self.built(case), case["saved_after"]
        self.train(objects, case["inputs"][:cut])
        state = answer.save(*objects)
        self.train(objects, case["inputs"][cut:])
        resumed = self.built({**case, "weight": 0.0, "scale": 65536.0, "growth_interval": 2000})
        answer.load(state, *resumed)
        return [f"weight {resumed[0].weight.item():.8g}", *self.train(resumed, case["inputs"][cut:])]

    def built(self, case):
        """Model, optimizer, scheduler and scaler, new."""
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight = weight([[case["weight"]]])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5 ** (n // 2))
        scaler = torch.amp.GradScaler("cpu", init_scale=case["scale"], growth_interval=case["growth_interval"])
        return model, optimizer, scheduler, scaler

    def train(self, objects, inputs):
        """One step for each input: its scale, its learning rate and its update, in words."""
        model, optimizer, scheduler, scaler = objects
        seen, moves = [], Moves(model.weight)
        for x in inputs:
            optimizer.zero_grad()
            before = scaler.get_scale()
            seen.append(f"{power(before)}, {optimizer.param_groups[0]['lr']:g}, ")
            scaler.scale(model(torch.tensor([[x]])).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= before:
                scheduler.step()
            seen[-1] += moves.text()
        return seen

    def describe(self, case):
        cut = case["saved_after"]
        skips = [n for n, x in enumerate(case["inputs"], 1) if x == INF]
        return f"saved after step {cut} of {len(case['inputs'])}; skipped steps: {skips}; outcome: scale, lr, update"


@exercise("05.diagnoses", answer="diagnoses", points=3, minutes=12, difficulty=2, forbids=ANSWER_KEY,
          settles=("R49", "R54"))  # fmt: skip
class Diagnoses:
    """What went wrong?

    A choice, so the cases are the same for every secret: one for each run.
    """

    tolerance = "exact"

    def cases(self, stream):
        return [{"run": n} for n in RUNS]

    def run(self, answer, case):
        return answer()

    def reduce(self, case, raw):
        if type(raw) not in (list, tuple, str) or len(raw) != len(RUNS) or not all(name in CAUSES for name in raw):
            raise NotPlain(f"the answer is not a string or list of {len(RUNS)} letters from A to J")
        return raw[case["run"] - 1]

    def describe(self, case):
        return f"run {case['run']}: {LOOK[case['run']]}"
