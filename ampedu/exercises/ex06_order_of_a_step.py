"""Lab 06: training loops under float16 autocast with a scaler, judged by what they do to the weights under SGD.

Adam would hide a wrong scale. The loops run on the CPU; nothing in them is the CPU's own.
"""

import torch

from ampedu.exercises import exercise
from ampedu.exercises.clinic import (
    LEARNING_RATE,
    SCALE,
    Dtypes,
    TwoHeads,
    batches_of,
    case,
    digits,
    in_words,
    linear,
    loss_of,
    observed,
    scaler_of,
    sgd,
    signed,
    unit,
)
from ampedu.exercises.plain import NotPlain

# About three times what right answers differ by that add in float16 in another order.
MOVED = {"rtol": 4e-3, "atol": 1e-2}
SECONDS = 15.0  # the first optimizer of a process loads much of torch
EVIDENCE = {
    1: "no error; the updates are far too small. Who sees the gradients before they are divided by the scale?",
    2: "unscale_ raises in the second micro-batch; look at which lines belong to every micro-batch",
    3: "update raises in the first micro-batch; what has the scaler seen of the gradients by then?",
    4: "no error; the updates are too large by the scale, and an overflow reaches the weights",
    5: "no error; the main head learns, and the side head does not",
    6: "only a warning; the learning rate is ahead of the optimizer by the number of skipped steps",
    7: "unscale_ raises in the step that follows an overflow; what did the step before leave undone?",
    8: "step raises as long as the backbone is frozen; what is in the gradients of its parameters?",
    9: "no error; the second optimizer is wrong exactly in the steps in which the scale changes",
    10: "unscale_ raises in the first step, and names a dtype",
}


class Loop:
    """What most exercises share: one linear model, one optimizer, one call with all batches."""

    tolerance = {"moved": MOVED}
    names = ()  # arguments that stand in the case

    def run(self, answer, case):
        model = linear(case["weights"])
        given = [model, batches_of(case), loss_of(case), sgd(case, model), scaler := scaler_of(case)]
        return observed(case, [model], scaler, answer, *given, *(case[name] for name in self.names))

    def describe(self, case):
        return ", ".join([in_words(case), *(f"{name}={case[name]:g}" for name in self.names)])


@exercise("06.diagnoses", answer="diagnoses", points=4, minutes=20, difficulty=2,
          settles=("R58", "R59", "R65", "R69", "R70", "R71", "R75"))  # fmt: skip
class Diagnoses:
    """Ten diagnoses.

    A choice, so the cases are the same for every secret: one for each patient.
    """

    tolerance = "exact"

    def cases(self, stream):
        return [{"patient": number} for number in EVIDENCE]

    def run(self, answer, case):
        return answer()

    def reduce(self, case, raw):
        if type(raw) is not dict or not all(type(letter) is str for letter in raw.values()):
            raise NotPlain('the answer is not a dict of letters such as {"patient 1": "a"}')
        return raw.get(f"patient {case['patient']}", "no diagnosis").strip().lower()

    def describe(self, case):
        return f"patient {case['patient']}: {EVIDENCE[case['patient']]}"


@exercise("06.clipped_step", answer="clipped_step", points=2, minutes=10, difficulty=1, seconds=SECONDS,
          settles=("C28", "C29", "R70"))  # fmt: skip
class ClippedStep:
    """Patient 1: the loss is flat."""

    tolerance = {"moved": MOVED, "norms": {"rtol": 5e-3, "atol": 1e-4}}

    def cases(self, stream):
        # Small gradients are not clipped here: clip_grad_norm_ adds 1e-6 to the norm.
        kinds = [(0.5, False, 1000, ()), (64.0, False, 1000, ()), (1.0, False, 1000, (1,)), (64.0, True, 1000, ()),
                 (1.0, False, 1, ()), (64.0, True, 1, (0,))]  # fmt: skip
        return [case(stream, [2, 2], max_norm=norm, tiny=tiny, interval=interval, infinite=infinite)
                for norm, tiny, interval, infinite in kinds]  # fmt: skip

    def run(self, answer, case):
        model, loss_fn, scaler, norms = linear(case["weights"]), loss_of(case), scaler_of(case), []
        optimizer, dtypes = sgd(case, model), Dtypes(model)

        def steps():
            for batch in batches_of(case):
                norms.append(answer(model, batch, loss_fn, optimizer, scaler, case["max_norm"]))

        seen = observed(case, [model], scaler, steps)
        norms = [norm / unit(case) if type(norm) is float else type(norm).__name__ for norm in norms]
        norms = digits(norms) if all(type(norm) is float for norm in norms) else norms
        return {**seen, "norms": norms, "forward": str(dtypes)}

    def describe(self, case):
        return f"{in_words(case)}, one call for each, max_norm={case['max_norm']:g}"


@exercise("06.patient_2", answer="repaired_2", points=2, minutes=8, difficulty=1, seconds=SECONDS,
          settles=("R71",))  # fmt: skip
class Patient2(Loop):
    """Patient 2: it worked before we accumulated."""

    names = ("steps", "max_norm")

    def cases(self, stream):
        kinds = [(2, 4, 0.5, ()), (2, 4, 64.0, ()), (3, 6, 1.0, (4,)), (2, 4, 0.25, (0,)), (3, 6, 0.5, ()),
                 (2, 6, 64.0, (2,))]  # fmt: skip
        return [case(stream, [1] * count, steps=steps, max_norm=norm, infinite=infinite, interval=(1000, 1)[i % 2])
                for i, (steps, count, norm, infinite) in enumerate(kinds)]  # fmt: skip


@exercise("06.patient_3", answer="repaired_3", points=1, minutes=6, difficulty=1, seconds=SECONDS,
          settles=("R75",))  # fmt: skip
class Patient3(Loop):
    """Patient 3: update() complains."""

    names = ("steps",)

    def cases(self, stream):
        kinds = [(2, 4, ()), (3, 6, ()), (2, 4, (1,)), (3, 6, (3,)), (2, 6, ()), (4, 8, ())]
        return [case(stream, [1] * count, steps=steps, infinite=infinite, interval=1)
                for steps, count, infinite in kinds]  # fmt: skip


@exercise("06.patient_4", answer="repaired_4", points=1, minutes=6, difficulty=1, seconds=SECONDS,
          settles=("R66",))  # fmt: skip
class Patient4(Loop):
    """Patient 4: the weights explode."""

    def cases(self, stream):
        kinds = [(False, ()), (False, (1,)), (True, ()), (True, (0,)), (False, (2,)), (False, ())]
        return [case(stream, [2, 2, 2], tiny=tiny, infinite=infinite, interval=2) for tiny, infinite in kinds]


@exercise("06.patient_5", answer="repaired_5", points=1, minutes=6, difficulty=1, seconds=SECONDS,
          settles=("R78",))  # fmt: skip
class Patient5(Loop):
    """Patient 5: one head does not learn."""

    names = ("weight",)

    def cases(self, stream):
        kinds = [(0.5, False, ()), (0.25, False, (1,)), (0.5, True, ()), (2.0, False, ()), (2.0, True, (0,)),
                 (0.25, False, ())]  # fmt: skip
        return [case(stream, [2, 2, 2], weights=4, targets=2, overflowing=1, weight=weight, tiny=tiny,
                     infinite=infinite, interval=2) for weight, tiny, infinite in kinds]  # fmt: skip

    def run(self, answer, case):
        model = TwoHeads(case["weights"])
        given = [model, batches_of(case), loss_of(case), sgd(case, model), scaler := scaler_of(case)]
        return observed(case, [model], scaler, answer, *given, case["weight"])


@exercise("06.patient_6", answer="repaired_6", points=2, minutes=10, difficulty=2, seconds=SECONDS,
          settles=("R65", "R66"))  # fmt: skip
class Patient6(Loop):
    """Patient 6: the learning rate runs ahead."""

    def cases(self, stream):
        kinds = [((0,), 1000), ((), 1), ((1,), 1), ((0, 1), 1000), ((2,), 2), ((), 2)]
        return [case(stream, [2, 2, 2, 2], infinite=infinite, interval=interval) for infinite, interval in kinds]

    def run(self, answer, case):
        model, scaler = linear(case["weights"]), scaler_of(case)
        optimizer = sgd(case, model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        given = [model, batches_of(case), loss_of(case), optimizer, scaler, scheduler]
        seen = observed(case, [model], scaler, answer, *given)
        return {**seen, "rate": optimizer.param_groups[0]["lr"] / LEARNING_RATE}

    def describe(self, case):
        return f"{in_words(case)}, StepLR(optimizer, 1, gamma=0.5)"


@exercise("06.patient_7", answer="repaired_7", points=2, minutes=8, difficulty=2, seconds=SECONDS,
          settles=("R71",))  # fmt: skip
class Patient7(Loop):
    """Patient 7: careful, and dead after the first overflow."""

    names = ("max_norm",)

    def cases(self, stream):
        kinds = [((0,), 0.5, False), ((1,), 64.0, False), ((0, 1), 0.25, False), ((2,), 1.0, False), ((), 0.5, False),
                 ((1,), 64.0, True)]  # fmt: skip
        return [case(stream, [2, 2, 2, 2], infinite=infinite, max_norm=norm, tiny=tiny)
                for infinite, norm, tiny in kinds]  # fmt: skip


@exercise("06.patient_8", answer="repaired_8", points=2, minutes=8, difficulty=2, seconds=SECONDS,
          settles=("R59",))  # fmt: skip
class Patient8:
    """Patient 8: the backbone is frozen at first."""

    tolerance = {"moved": MOVED}

    def cases(self, stream):
        kinds = [(1, (), 1000), (2, (), 1), (1, (0,), 1000), (2, (3,), 1000), (0, (), 1), (3, (1,), 1)]
        return [case(stream, [2, 2, 2, 2], weights=6, thaw=thaw, infinite=infinite, interval=interval)
                for thaw, infinite, interval in kinds]  # fmt: skip

    def run(self, answer, case):
        backbone, head = linear(case["weights"][:4]), linear(case["weights"][4:])
        optimizers = [sgd(case, backbone), sgd(case, head)]
        given = [backbone, head, batches_of(case), loss_of(case), optimizers, scaler := scaler_of(case)]
        return observed(case, [backbone, head], scaler, answer, *given, case["thaw"])

    def describe(self, case):
        return f"{in_words(case)}, thaw={case['thaw']}; moved: four weights of the backbone, two of the head"


@exercise("06.patient_9", answer="repaired_9", points=1, minutes=6, difficulty=2, seconds=SECONDS,
          settles=("R69", "R78"))  # fmt: skip
class Patient9:
    """Patient 9: the second optimizer stumbles."""

    tolerance = {"moved": MOVED}

    def cases(self, stream):
        kinds = [((), 1, 0), ((1,), 1000, 1), ((0,), 1000, 0), ((), 2, 0), ((2,), 1, 1), ((), 1000, 0)]
        return [case(stream, [2, 2, 2], weights=4, targets=2, infinite=infinite, interval=interval,
                     overflowing=column) for infinite, interval, column in kinds]  # fmt: skip

    def run(self, answer, case):
        model = TwoHeads(case["weights"])
        optimizers = [sgd(case, model.main), sgd(case, model.side)]
        given = [model, batches_of(case), loss_of(case), optimizers, scaler := scaler_of(case)]
        return observed(case, [model], scaler, answer, *given)

    def describe(self, case):
        return f"{in_words(case)}; moved: two weights of each head"


@exercise("06.patient_10", answer="repaired_10", points=1, minutes=6, difficulty=1, seconds=SECONDS,
          settles=("R58",))  # fmt: skip
class Patient10(Loop):
    """Patient 10: everything is float16.

    The weights are so large that float16 would lose the updates.
    """

    tolerance = {"moved": {"rtol": 5e-3, "atol": 2e-2}}

    def cases(self, stream):
        cases = []
        for infinite, interval in ((), 1000), ((1,), 1000), ((), 1), ((0,), 1000), ((2,), 1), ((), 1000):
            made = case(stream, [2, 2, 2], infinite=infinite, interval=interval)
            made["weights"] = [signed(stream, 66, 124) for _ in range(2)]
            for rows in made["batches"]:
                for row in rows:
                    if row[2] < 2**15:  # targets at some distance from what the model gives, in quarters
                        row[2] += sum(w * x for w, x in zip(made["weights"], row, strict=False)) // 4
            cases.append(made)
        return cases

    def run(self, answer, case):
        model, scaler = linear(case["weights"]), scaler_of(case)
        dtypes = Dtypes(model)
        given = [model, batches_of(case), loss_of(case), sgd(case, model, factor=2.0**-8), scaler]
        seen = observed(case, [model], scaler, answer, *given, factor=2.0**-8)
        return {**seen, "dtypes": f"weights {str(model.weight.dtype)[6:]}, outputs {dtypes}"}


@exercise("06.accumulate", answer="accumulate", points=3, minutes=15, difficulty=2, seconds=SECONDS,
          settles=("C30", "C31", "R75"))  # fmt: skip
class Accumulate(Loop):
    """As if it were one big batch."""

    names = ("steps",)

    def cases(self, stream):
        kinds = [(2, [2, 2, 2, 2], (), 1000), (2, [1, 3, 4, 1], (), 1), (4, [1, 1, 1, 1, 1], (), 1000),
                 (3, [2, 1, 4, 3, 1], (), 1000), (3, [1, 2, 1, 4], (1,), 1000), (4, [3, 1], (), 1)]  # fmt: skip
        return [case(stream, sizes, steps=steps, infinite=infinite, interval=interval)
                for steps, sizes, infinite, interval in kinds]  # fmt: skip


@exercise("06.gan_step", answer="gan_step", points=3, minutes=15, difficulty=3, seconds=SECONDS,
          settles=("R69", "R78"))  # fmt: skip
class GanStep:
    """A step of a GAN."""

    tolerance = {"moved": MOVED}

    def cases(self, stream):
        kinds = [((), 1000), ((), 1), ((1,), 1000), ((0,), 1), ((2,), 1000), ((), 2)]
        return [case(stream, [2, 2, 2], weights=6, infinite=infinite, interval=interval)
                for infinite, interval in kinds]  # fmt: skip

    def run(self, answer, case):
        generator = linear(case["weights"][:4])
        critic = torch.nn.Sequential(linear(case["weights"][4:]))
        optimizers, scaler = [sgd(case, generator, factor=8.0), sgd(case, critic, factor=8.0)], scaler_of(case)

        def steps():
            for noise, real in batches_of(case):
                # A column of the targets and one of the noise: two features, and one huge number where it overflows.
                real = torch.cat([real / 4, noise[:, :1]], dim=1)
                answer(generator, critic, real, noise, loss_of(case), *optimizers, scaler)

        return observed(case, [generator, critic], scaler, steps, factor=8.0)

    def describe(self, case):
        text = in_words(case).replace("gradients overflow", "gradients of the critic overflow")
        return f"{text}, one call for each; moved: four weights of the generator, two of the critic"


@exercise("06.gradient_penalty", answer="penalty_step", points=4, minutes=20, difficulty=3, seconds=SECONDS,
          settles=("R79",))  # fmt: skip
class GradientPenalty:
    """A gradient penalty."""

    tolerance = {"moved": {"rtol": 4e-3, "atol": 5e-3}, "penalties": {"rtol": 4e-3, "atol": 1e-4}}

    def cases(self, stream):
        # At the scale 1, a penalty that is not scaled is right: that tells it from one that has no effect.
        kinds = [(4.0, (), 1000, 1), (0.5, (), 1, 1), (1.0, (1,), 1000, 1), (2.0, (), 1000, 2**-7), (4.0, (0,), 1, 1),
                 (8.0, (), 2, 2**-3)]  # fmt: skip
        return [case(stream, [2, 2], weights=3, weight=weight, infinite=infinite, interval=interval, start=start)
                for weight, infinite, interval, start in kinds]  # fmt: skip

    def run(self, answer, case):
        critic = torch.nn.Sequential(linear(case["weights"][:2]), torch.nn.Softplus(), linear(case["weights"][2:], 1))
        optimizer, scaler, penalties = sgd(case, critic), scaler_of(case), []

        def steps():
            for batch in batches_of(case):
                penalties.append(answer(critic, batch, loss_of(case), optimizer, scaler, case["weight"]))

        seen = observed(case, [critic], scaler, steps)
        if not all(type(penalty) is float for penalty in penalties):
            return {**seen, "penalties": [type(penalty).__name__ for penalty in penalties]}
        return {**seen, "penalties": digits(penalties)}

    def describe(self, case):
        return f"{in_words(case)}, one call for each, weight={case['weight']:g}, scale {SCALE * case['start']:g}"
