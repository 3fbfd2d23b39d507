"""Wrong answers to lab 05 that real people give, each with the message that the check shows."""

import copy
import math

import torch

from ampedu.exercises import mutant


def forward_loss(model, batch, loss_fn, dtype=torch.float16):
    """The loss under autocast; dtype None: outside of any region."""
    inputs, targets = batch
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        return loss_fn(model(inputs), targets)


def scaled_step(model, batch, loss_fn, optimizer, scale, dtype=torch.float16, zero=True, unscale=None):
    """static_step, with the parts that mutants replace."""
    if zero:
        optimizer.zero_grad()
    loss = forward_loss(model, batch, loss_fn, dtype)
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad.mul_(1 / scale if unscale is None else unscale)
    optimizer.step()
    return loss.item()


@mutant(
    "05.static_step",
    "You did not scale. The gradients are below 2⁻²⁵ and become zero in float16: the weights never move, and nothing "
    "tells you. Call backward() on loss * scale.",
)
def unscaled(model, batch, loss_fn, optimizer, scale):
    return scaled_step(model, batch, loss_fn, optimizer, 1.0)


@mutant(
    "05.static_step",
    "The gradients are still scaled when the optimizer steps, so the update is too large by the factor scale. Divide "
    "each p.grad by the scale between backward() and step().",
)
def never_unscaled(model, batch, loss_fn, optimizer, scale):
    return scaled_step(model, batch, loss_fn, optimizer, scale, unscale=1.0)


@mutant(
    "05.static_step",
    "The updates are right, but you returned the scaled loss. Keep the loss itself for logs; only backward() gets "
    "loss * scale.",
)
def scaled_loss_returned(model, batch, loss_fn, optimizer, scale):
    return scaled_step(model, batch, loss_fn, optimizer, scale) * scale


@mutant(
    "05.static_step",
    "Gradients of an earlier step are still in p.grad and are added to yours. Call optimizer.zero_grad() before "
    "backward().",
)
def gradients_left(model, batch, loss_fn, optimizer, scale):
    return scaled_step(model, batch, loss_fn, optimizer, scale, zero=False)


@mutant(
    "05.static_step",
    "Your forward pass ran in float32, so there is nothing to scale. Put the model and the loss function into "
    "torch.autocast(device, dtype=torch.float16).",
)
def no_region(model, batch, loss_fn, optimizer, scale):
    return scaled_step(model, batch, loss_fn, optimizer, scale, dtype=None)


@mutant(
    "05.static_step",
    "Your region has no dtype. The default is float16 on CUDA, but bfloat16 on the CPU: name dtype=torch.float16.",
)
def default_dtype(model, batch, loss_fn, optimizer, scale):
    return scaled_step(model, batch, loss_fn, optimizer, scale, dtype=torch.bfloat16)


@mutant(
    "05.static_step",
    "You converted the model to float16. Then the unscaled gradients and the updates are in float16, too, and "
    "underflow there. Keep the weights in float32 and leave the casts to autocast.",
)
def half_model(model, batch, loss_fn, optimizer, scale):
    return scaled_step(model.half(), batch, loss_fn, optimizer, scale)


def bad(grads, is_bad):
    """Whether is_bad holds for an element of one of the gradients."""
    return any(bool(is_bad(grad).any()) for grad in grads if grad is not None)


def multiply(grads, scale):
    """Unscale in place."""
    for grad in grads:
        if grad is not None:
            grad.mul_(1 / scale)


@mutant(
    "05.check_and_unscale",
    "You look for infinities only. Once inf - inf or 0 * inf has happened in the backward pass, the gradient is NaN. "
    "torch.isfinite sees both.",
)
def infinities_only(grads, scale):
    found = bad(grads, torch.isinf)
    multiply(grads, scale)
    return found


@mutant(
    "05.check_and_unscale",
    "You look for NaN only. A gradient that overflows becomes inf first. torch.isfinite sees both.",
)
def nan_only(grads, scale):
    found = bad(grads, torch.isnan)
    multiply(grads, scale)
    return found


@mutant(
    "05.check_and_unscale",
    "Gradients overflow on both sides: -inf is not finite either. torch.isfinite sees inf, -inf and NaN.",
)
def positive_only(grads, scale):
    found = bad(grads, lambda grad: grad.isnan() | (grad == math.inf))
    multiply(grads, scale)
    return found


@mutant(
    "05.check_and_unscale",
    "Each gradient overwrites what you found in the one before, so only the last one counts. Collect: "
    "found = found or … .",
)
def last_one_decides(grads, scale):
    found = False
    for grad in grads:
        if grad is not None:
            found = not grad.isfinite().all()
    multiply(grads, scale)
    return bool(found)


@mutant(
    "05.check_and_unscale",
    "You stop at the first gradient that is not finite. The others stay scaled, and a log of gradient norms will show "
    "numbers that are too large. Unscale all of them.",
)
def stops_early(grads, scale):
    for grad in grads:
        if grad is not None:
            if not grad.isfinite().all():
                return True
            grad.mul_(1 / scale)
    return False


@mutant(
    "05.check_and_unscale",
    "The gradients did not change: grad = grad / scale makes a new tensor, and the optimizer still has the old one. "
    "Use grad.mul_(1 / scale) or grad /= scale.",
)
def out_of_place(grads, scale):
    found = bad(grads, lambda grad: ~grad.isfinite())
    for grad in grads:
        if grad is not None:
            grad = grad / scale
    return found


@mutant(
    "05.check_and_unscale",
    "A parameter without a gradient has grad None: it took no part in the loss, or it is frozen. Pass over it.",
)
def none_forgotten(grads, scale):
    found = any(not grad.isfinite().all() for grad in grads)
    multiply(grads, scale)
    return found


@mutant(
    "05.check_and_unscale",
    "You tested a sum. The sum of finite gradients can overflow: a step is skipped that was fine. Test the elements: "
    "grad.isfinite().all().",
)
def tests_a_sum(grads, scale):
    found = any(not grad.sum().isfinite() for grad in grads if grad is not None)
    multiply(grads, scale)
    return found


def float32(x):
    """x rounded to float32."""
    return torch.tensor(x, dtype=torch.float32).item()


class Rule:
    """DynamicLossScaler, with the parts that mutants replace."""

    saved = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
    rounded, floor, capped, late, at_least = staticmethod(float32), 0.0, True, False, False

    def __init__(self, scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.scale, self.growth_factor, self.backoff_factor = scale, growth_factor, backoff_factor
        self.growth_interval, self._growth_tracker = growth_interval, 0

    def get_scale(self):
        return self.scale

    def set_growth_interval(self, interval):
        self.growth_interval = interval

    def update(self, found_inf):
        if found_inf:
            self.scale = max(self.floor, self.rounded(self.scale * self.backoff_factor))
            self.skipped()
            return
        self._growth_tracker += 1
        count = self._growth_tracker - 1 if self.late else self._growth_tracker
        if count == self.growth_interval or (self.at_least and count > self.growth_interval):
            self.grow()

    def skipped(self):
        self._growth_tracker = 0

    def grow(self):
        grown = self.rounded(self.scale * self.growth_factor)
        if math.isfinite(grown) or not self.capped:
            self.scale = grown
        self._growth_tracker = 0

    def state_dict(self):
        return {name: getattr(self, name) for name in self.saved}

    def load_state_dict(self, state):
        for name, value in state.items():
            setattr(self, name, value)


@mutant(
    "05.dynamic_loss_scaler",
    "You grow when the tracker is at least the interval. torch compares with ==, so that an interval lowered below the "
    "tracker stops the growth until the next skip. Odd, but your scaler should show the same state.",
)
class GrowsAtLeast(Rule):
    at_least = True


@mutant(
    "05.dynamic_loss_scaler",
    "After a skip, the count of good steps goes on. It must start again at 0: the interval counts good steps in a row.",
)
class KeepsCounting(Rule):
    def skipped(self):
        pass


@mutant(
    "05.dynamic_loss_scaler",
    "After growing, the tracker must be 0 again. Yours goes on, and the scale never grows a second time.",
)
class NoResetAfterGrowth(Rule):
    def grow(self):
        tracker = self._growth_tracker
        super().grow()
        self._growth_tracker = tracker


@mutant(
    "05.dynamic_loss_scaler",
    "You are one step late: count the good step first, then compare. With growth_interval = 3 the third good step "
    "grows the scale.",
)
class OneStepLate(Rule):
    late = True


@mutant(
    "05.dynamic_loss_scaler",
    "Your scale grows to inf. torch keeps the old scale when the new one would leave the range of float32.",
)
class GrowsToInf(Rule):
    capped = False


@mutant(
    "05.dynamic_loss_scaler",
    "A Python float is float64, which goes on where float32 ends: your scale passes 2¹²⁷, and does not end at 2⁻¹⁴⁹. "
    "torch's scale is float32. Round each new scale to it.",
)
class PythonFloats(Rule):
    rounded = staticmethod(lambda x: x)


@mutant(
    "05.dynamic_loss_scaler",
    "When the scale cannot grow, the tracker still starts again at 0. Yours stays.",
)
class StaysAtTheCap(Rule):
    def grow(self):
        tracker, old = self._growth_tracker, self.scale
        super().grow()
        if self.scale == old and old:
            self._growth_tracker = tracker


@mutant(
    "05.dynamic_loss_scaler",
    "You stop at 1. A floor would be a good idea, but torch's scaler has none: it goes below 1 and at last to 0.",
)
class FloorAtOne(Rule):
    floor = 1.0


@mutant(
    "05.dynamic_loss_scaler",
    "Your state has no growth tracker, so that each resume forgets the good steps so far. Save all five numbers.",
)
class TrackerNotSaved(Rule):
    saved = Rule.saved[:4]


@mutant(
    "05.dynamic_loss_scaler",
    "The state is complete, but load_state_dict takes only the scale and the tracker. A new scaler then goes on with "
    "its own factors and interval.",
)
class ConstantsNotLoaded(Rule):
    def load_state_dict(self, state):
        self.scale, self._growth_tracker = state["scale"], state["_growth_tracker"]


def step_update(scaler, optimizer):
    """The scale before and after an update."""
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return before, scaler.get_scale()


@mutant(
    "05.finish_step",
    "The schedule goes on although the step was skipped. The scale tells: if it fell in update(), nothing was updated.",
)
def always_on_schedule(scaler, optimizer, scheduler):
    step_update(scaler, optimizer)
    scheduler.step()


@mutant(
    "05.finish_step",
    "When the scale grows, the step was fine. You count it as skipped, because the scale changed. Ask whether it fell.",
)
def stands_at_growth(scaler, optimizer, scheduler):
    before, after = step_update(scaler, optimizer)
    if after == before:
        scheduler.step()


@mutant(
    "05.finish_step",
    "The scheduler came before the optimizer: the first learning rate is never used. Optimizer first, then scheduler.",
)
def scheduler_first(scaler, optimizer, scheduler):
    scheduler.step()
    step_update(scaler, optimizer)


@mutant(
    "05.finish_step",
    "scaler.update() is missing. The scale is never adapted, and the next scaler.step raises: step() has already been "
    "called since the last update().",
)
def no_update(scaler, optimizer, scheduler):
    scaler.step(optimizer)
    scheduler.step()


@mutant(
    "05.finish_step",
    "You called optimizer.step() yourself. It takes the gradients as they are: scaled, and infinite ones, too. "
    "scaler.step(optimizer) unscales, checks, and then steps or does not.",
)
def optimizer_itself(scaler, optimizer, scheduler):
    scaler.unscale_(optimizer)
    optimizer.step()
    before = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


def gradients(optimizer):
    """The gradients that an optimizer has."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def all_finite(optimizer):
    """Whether they are all finite."""
    return all(bool(grad.isfinite().all()) for grad in gradients(optimizer))


@mutant(
    "05.step_all",
    "You compare scales. The scale falls if any of the optimizers found inf, so all of them look skipped; and with a "
    "backoff factor of 1.0 it never falls. Look at the gradients of each optimizer instead.",
)
def scale_fell(scaler, optimizers):
    before = scaler.get_scale()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return [scaler.get_scale() >= before] * len(optimizers)


@mutant(
    "05.step_all",
    "scaler.step returns what optimizer.step returns, and that is None for most optimizers, whether they stepped or "
    "not. Look at the gradients after unscale_.",
)
def return_value(scaler, optimizers):
    happened = [scaler.step(optimizer) is not None for optimizer in optimizers]
    scaler.update()
    return happened


@mutant(
    "05.step_all",
    "You compare the weights. A step with zero gradients happened, too, and changes no weight of plain SGD. (And a "
    "copy of all weights is expensive.) Look at the gradients.",
)
def weights_changed(scaler, optimizers):
    happened = []
    for optimizer in optimizers:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in weights]
        scaler.step(optimizer)
        happened.append(any(not torch.equal(a, p) for a, p in zip(before, weights, strict=True)))
    scaler.update()
    return happened


@mutant(
    "05.step_all",
    "You counted the calls of optimizer.step. A fused optimizer is always called: it is told of inf, and its kernel "
    "leaves the weights alone. Look at the gradients.",
)
def step_hooks(scaler, optimizers):
    happened = []
    for optimizer in optimizers:
        calls = []
        handle = optimizer.register_step_post_hook(lambda *args, calls=calls: calls.append(1))
        scaler.step(optimizer)
        handle.remove()
        happened.append(bool(calls))
    scaler.update()
    return happened


@mutant(
    "05.step_all",
    "You call update() for each optimizer. If the first one finds inf, the scale is halved before the second one "
    "unscales, and its gradients come out twice as large. Call update() once, after all of them.",
)
def update_in_the_loop(scaler, optimizers):
    happened = []
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        happened.append(all_finite(optimizer))
        scaler.step(optimizer)
        scaler.update()
    return happened


@mutant(
    "05.step_all",
    "You report right, but if one optimizer finds inf, you step none of them. Give each one to scaler.step: it skips "
    "those that must be skipped.",
)
def all_or_none(scaler, optimizers):
    happened = []
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        happened.append(all_finite(optimizer))
    if all(happened):
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return happened


@mutant(
    "05.guarded_step",
    "Nothing is checked: a NaN gradient makes every weight that it reaches NaN, for good. Without a scaler, the check "
    "is yours.",
)
def unguarded(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return True


@mutant(
    "05.guarded_step",
    "You checked the loss. A finite loss can have an infinite gradient: the slope of sqrt at 0, for one. Check the "
    "gradients, after backward().",
)
def loss_checked(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    if loss.isfinite():
        optimizer.step()
    return bool(loss.isfinite())


@mutant(
    "05.guarded_step",
    "You check for NaN only. An infinite gradient does the same damage: torch.isfinite sees both.",
)
def nan_checked(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    fine = not any(bool(grad.isnan().any()) for grad in gradients(optimizer))
    if fine:
        optimizer.step()
    return fine


@mutant(
    "05.guarded_step",
    "You replaced inf and NaN by 0 and stepped. Then the other parameters are updated from a broken batch, and "
    "momentum moves the rest. Leave the whole step out.",
)
def nan_to_num(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    fine = all_finite(optimizer)
    for grad in gradients(optimizer):
        grad.nan_to_num_(0.0, 0.0, 0.0)
    optimizer.step()
    return fine


@mutant(
    "05.guarded_step",
    "You left out the bad parameters and updated the others. They come from the same broken batch: leave the whole "
    "step out, as a scaler does.",
)
def only_the_bad_ones(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    fine = all_finite(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                parameter.grad = None
    optimizer.step()
    return fine


@mutant(
    "05.guarded_step",
    "Clipping is no guard. An infinite norm makes the factor 0, and 0 * inf is NaN; a NaN norm makes everything NaN.",
)
def clipped(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    fine = all_finite(optimizer)
    if fine:
        optimizer.step()
    else:
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
        optimizer.step()
    return fine


@mutant(
    "05.guarded_step",
    "The bad gradients stay in p.grad, and backward() adds to them: from the first bad step on, every step is bad. "
    "Clear the gradients before backward().",
)
def never_cleared(loss, optimizer):
    loss.backward()
    fine = all_finite(optimizer)
    if fine:
        optimizer.step()
        optimizer.zero_grad()
    return fine


RANGES = {torch.float16: (-25, -14, 15), torch.bfloat16: (-134, -126, 127)}


def fractions(histogram, dtype, scale, direction=1, lowest=0, least=0, highest=0, ranges=None):
    """landing, with thresholds that mutants move."""
    low, normal, high = (ranges or RANGES)[dtype]
    counts = dict.fromkeys(("zero", "subnormal", "normal", "overflow"), 0)
    for exponent, count in histogram.items():
        e = exponent + direction * math.log2(scale)
        if e > high + highest:
            counts["overflow"] += count
        elif e >= normal + least:
            counts["normal"] += count
        elif e >= low + lowest:
            counts["subnormal"] += count
        else:
            counts["zero"] += count
    total = sum(histogram.values())
    return {name: count / total for name, count in counts.items()}


@mutant(
    "05.landing",
    "You take everything below the smallest normal number for zero. Between it and zero are the subnormal numbers: "
    "fewer bits, but not lost.",
)
def subnormals_lost(histogram, dtype, scale):
    normal = RANGES[dtype][1]
    return fractions(histogram, dtype, scale, lowest=normal - RANGES[dtype][0])


@mutant(
    "05.landing",
    "The bin just below the smallest subnormal number is not lost: its middle is more than half of that number, and "
    "rounds up to it.",
)
def never_rounds_up(histogram, dtype, scale):
    return fractions(histogram, dtype, scale, lowest=1)


@mutant(
    "05.landing",
    "The bin of the largest number does not overflow: float16 ends at 65504, and the middle of the bin that begins at "
    "2¹⁵ is 49152.",
)
def overflows_early(histogram, dtype, scale):
    return fractions(histogram, dtype, scale, highest=-1)


@mutant(
    "05.landing",
    "You ignored the scale. Each gradient is multiplied by it: with a scale of 2**k, the exponents grow by k.",
)
def scale_ignored(histogram, dtype, scale):
    return fractions(histogram, dtype, 1.0)


@mutant(
    "05.landing",
    "You divided by the scale. Scaling makes gradients larger, and their exponents too.",
)
def wrong_direction(histogram, dtype, scale):
    return fractions(histogram, dtype, scale, direction=-1)


@mutant(
    "05.landing",
    "You used the limits of float16 for every dtype. bfloat16 has the exponents of float32: ask torch.finfo(dtype).",
)
def always_float16(histogram, dtype, scale):
    return fractions(histogram, torch.float16, scale)


@mutant(
    "05.landing",
    "These are counts. Divide by the number of all gradients.",
)
def counts_not_fractions(histogram, dtype, scale):
    total = sum(histogram.values())
    return {name: part * total for name, part in fractions(histogram, dtype, scale).items()}


def with_power(histogram, k):
    """Scale 2**k, and what it loses."""
    return 2.0**k, fractions(histogram, torch.float16, 2.0**k)["zero"]


@mutant(
    "05.choose_scale",
    "You left no room. Gradients vary from step to step, and a scale that just fits is too large in the next one: "
    "stay headroom powers of two below.",
)
def no_headroom(histogram, headroom):
    return with_power(histogram, 15 - max(histogram))


@mutant(
    "05.choose_scale",
    "You start from the smallest gradients. Lifting all of them into the range makes the large ones overflow, and one "
    "inf skips the whole step. The largest bin decides.",
)
def smallest_decides(histogram, headroom):
    return with_power(histogram, -24 - min(histogram) + headroom)


@mutant(
    "05.choose_scale",
    "One power of two too large: the last bin of float16 begins at 2¹⁵, not at 2¹⁶.",
)
def one_too_large(histogram, headroom):
    return with_power(histogram, 16 - max(histogram) - headroom)


@mutant(
    "05.choose_scale",
    "One power of two too small: the bin that begins at 2¹⁵ is still finite.",
)
def one_too_small(histogram, headroom):
    return with_power(histogram, 14 - max(histogram) - headroom)


@mutant(
    "05.choose_scale",
    "A scale may be below 1. If the gradients themselves are too large for float16, it has to be.",
)
def at_least_one(histogram, headroom):
    return with_power(histogram, max(0, 15 - max(histogram) - headroom))


@mutant(
    "05.choose_scale",
    "You returned the power. The scale is 2.0**power.",
)
def power_returned(histogram, headroom):
    scale, lost = with_power(histogram, 15 - max(histogram) - headroom)
    return math.log2(scale), lost


@mutant(
    "05.choose_scale",
    "The scale is right, but the lost fraction is the one without it. Apply the scale, then count.",
)
def lost_without_scale(histogram, headroom):
    scale, _ = with_power(histogram, 15 - max(histogram) - headroom)
    return scale, with_power(histogram, 0)[1]


@mutant(
    "05.choose_scale",
    "You chose by the bin that holds the most gradients. A single gradient that overflows skips the whole step: the "
    "largest bin decides, however small its count.",
)
def most_frequent_decides(histogram, headroom):
    return with_power(histogram, 15 - max(histogram, key=histogram.get) - headroom)


class Complete:
    """Checkpoint, with the parts that mutants replace."""

    left_out, copied = (), staticmethod(copy.deepcopy)
    names = ("model", "optimizer", "scheduler", "scaler")

    @classmethod
    def save(cls, *objects):
        pairs = zip(cls.names, objects, strict=True)
        return cls.copied({name: thing.state_dict() for name, thing in pairs if name not in cls.left_out})

    @classmethod
    def load(cls, state, *objects):
        for name, thing in zip(cls.names, objects, strict=True):
            if name in state:
                thing.load_state_dict(state[name])


@mutant(
    "05.checkpoint",
    "The scaler is missing. The resumed run starts with the scale of a new scaler, 65536, and a tracker of 0. Under "
    "float16 it then skips steps that the first run did not skip.",
)
class NoScaler(Complete):
    left_out = ("scaler",)


@mutant(
    "05.checkpoint",
    "The optimizer is missing. Its momentum starts again at 0, and its learning rate at the first one.",
)
class NoOptimizer(Complete):
    left_out = ("optimizer",)


@mutant(
    "05.checkpoint",
    "The scheduler is missing: the resumed run begins its schedule anew.",
)
class NoScheduler(Complete):
    left_out = ("scheduler",)


@mutant(
    "05.checkpoint",
    "The state changes while training goes on: state_dict() returns the live tensors, not copies. Copy it with "
    "copy.deepcopy, or write it to a file at once.",
)
class LiveTensors(Complete):
    copied = staticmethod(lambda state: state)


@mutant(
    "05.checkpoint",
    "You saved the weights in float16. That saves space and loses digits that float32 training needs: the resumed run "
    "starts from other weights.",
)
class HalfWeights(Complete):
    @classmethod
    def save(cls, *objects):
        state = super().save(*objects)
        return {**state, "model": {name: tensor.half() for name, tensor in state["model"].items()}}


@mutant(
    "05.checkpoint",
    "You restore the scale alone. The growth tracker belongs to the state, too, and so do the constants: without them "
    "the scale grows at another step. Use the scaler's load_state_dict().",
)
class OnlyTheScale(Complete):
    @classmethod
    def load(cls, state, *objects):
        scaler = objects[-1]
        super().load({**state, "scaler": {**scaler.state_dict(), "scale": state["scaler"]["scale"]}}, *objects)


RIGHT = "GHDAFCEB"


def replaced(**letters):
    """The right letters, with those of some runs replaced: replaced(run1="F")."""
    chosen = list(RIGHT)
    for run, letter in letters.items():
        chosen[int(run.removeprefix("run")) - 1] = letter
    return "".join(chosen)


@mutant(
    "05.diagnoses",
    "Runs 1 and 5 are not the same. A scale that halves all the time says: some gradient is never finite. Look at the "
    "loss: if it is finite, the forward pass and the weights are fine, and the fault is in the backward pass.",
)
def weights_blamed():
    return replaced(run1="F")


@mutant(
    "05.diagnoses",
    "In run 5 the loss itself is NaN, and it stays NaN: the forward pass is broken, so the weights are. A gradient "
    "alone could not do this, because its step is skipped.",
)
def gradient_blamed():
    return replaced(run5="G")


@mutant(
    "05.diagnoses",
    "You have runs 1 and 5 the wrong way round: NaN weights show in the loss, an infinite gradient does not.",
)
def swapped():
    return replaced(run1="F", run5="G")


@mutant(
    "05.diagnoses",
    "Run 2 is no search at the start: before step 6, the scale was 2048 and everything worked. 65536 is where a new "
    "scaler begins.",
)
def search_in_the_middle():
    return replaced(run2="A")


@mutant(
    "05.diagnoses",
    "In runs 3 and 7 the loss stands still to the last bit. A learning rate that is merely too small would move it a "
    "little: no step happened, or the gradients were zero. The scale tells which.",
)
def learning_rate():
    return replaced(run3="J", run7="J")


@mutant(
    "05.diagnoses",
    "Runs 3 and 7 are the two ends: with scale 1 gradients underflow to zero, with scale 2³⁰ they overflow.",
)
def ends_swapped():
    return replaced(run3="E", run7="D")


@mutant(
    "05.diagnoses",
    "Run 6 is not broken. Its growth interval is very short, so it looks restless: up, up, one skip, down.",
)
def sawtooth_feared():
    return replaced(run6="E")


@mutant(
    "05.diagnoses",
    "An infinite loss in one step, and the next one is fine: the weights were not touched, because the step was "
    "skipped. Run 8 met a bad batch.",
)
def one_inf_is_fatal():
    return replaced(run8="F")
