"""Wrong answers to lab 02 that real people give, each with the message that the check shows."""

import math

import torch

from ampedu.exercises import mutant


@mutant(
    "02.dot",
    "You added in float32, but the products were rounded to 16 bits before they got there (and one beyond 65504 is "
    "already infinite). The conversion must come before the first operation.",
)
def rounded_products(x, y):
    return (x * y).float().sum()


@mutant(
    "02.dot",
    "You converted the finished result. Every rounding has happened by then, and a conversion to float32 brings no "
    "digit back.",
)
def late_float(x, y):
    return (x * y).sum().float()


@mutant(
    "02.dot",
    "Products and sum are right, and then you rounded the result to the 16 bits of the inputs. An accumulator of "
    "float32 is worth keeping: return it as it is.",
)
def narrow_result(x, y):
    return (x.float() * y.float()).sum().to(x.dtype)


@mutant(
    "02.dot",
    "Your accumulator has 16 bits. Once it is large, it swamps the products that are added to it. Accumulate in "
    "float32.",
)
def narrow_accumulator(x, y):
    total = torch.zeros((), dtype=x.dtype)
    for a, b in zip(x, y, strict=True):
        total = total + a * b
    return total.float()


@mutant(
    "02.dot",
    "You multiplied exactly and then let the running sum fall back to 16 bits after each addition. The products "
    "survive, the sum swamps them: the accumulator is the part that needs float32 most.",
)
def exact_products_narrow_accumulator(x, y):
    total = torch.zeros((), dtype=x.dtype)
    for product in x.float() * y.float():
        total = (total + product).to(x.dtype)
    return total.float()


@mutant(
    "02.pairwise_sum",
    "You added one element after the other. The sum grows, the terms do not, and in the end they are swamped. Add "
    "neighbors, then the sums of neighbors.",
)
def chain(x):
    total = x[0]
    for value in x[1:]:
        total = total + value
    return total


@mutant(
    "02.pairwise_sum",
    "You added in a wider format and rounded once. That is the better cure, if there is a wider format; sum does it "
    "for you. Here every single addition must round to the dtype of x.",
)
def wider(x):
    return x.float().sum().to(x.dtype)


@mutant(
    "02.pairwise_sum",
    "You built a tree, but a different one: element 0 met one from the second half. It is as accurate, and it rounds "
    "differently. The task pairs neighbors: 0 and 1, 2 and 3.",
)
def halves(x):
    while len(x) > 1:
        half = len(x) // 2
        x = torch.cat([x[:half] + x[half : 2 * half], x[2 * half :]])
    return x[0]


@mutant(
    "02.pairwise_sum",
    "In a round with an odd number of elements the last one got lost. It has no partner, so it moves on to the next "
    "round unchanged.",
)
def odd_one_dropped(x):
    while len(x) > 1:
        paired = len(x) // 2 * 2
        x = x[:paired:2] + x[1:paired:2]
    return x[0]


@mutant(
    "02.lost_updates",
    "You compared in float32: 16-bit weights plus float32 updates are float32, and there hardly an update gets lost. "
    "A weight is *stored* in 16 bits. Round the sum, then compare.",
)
def never_stored(weights, updates):
    return (weights + updates == weights) & (updates != 0)


@mutant(
    "02.lost_updates",
    "You compared the update with eps, as if every weight were 1. The gap grows with the weight: a weight of 100 "
    "ignores more, one of 0.01 less.",
)
def eps_for_all(weights, updates):
    return (updates.abs() < torch.finfo(weights.dtype).eps / 2) & (updates != 0)


@mutant(
    "02.lost_updates",
    "You looked at the update alone: does it become zero in 16 bits? It hardly ever does. It is the *sum* that has no "
    "room for it.",
)
def update_alone(weights, updates):
    return (updates.to(weights.dtype) == 0) & (updates != 0)


@mutant(
    "02.lost_updates",
    "A weight whose update is zero rightly stays where it is. Nothing was lost there: leave those out.",
)
def zeros_counted(weights, updates):
    return (weights + updates).to(weights.dtype) == weights


class Master:
    """MasterSGD without its step; the mutants differ in one(param, k, master)."""

    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr
        self.master = [param.detach().float() for param in self.params]

    def step(self):
        with torch.no_grad():
            for k, param in enumerate(self.params):
                if param.grad is not None:
                    self.one(param, k, self.master[k])


@mutant(
    "02.master_sgd",
    "You updated the 16-bit parameters and left the master alone. So the updates are still lost: they must go to the "
    "master first, and from there to the parameters.",
)
class MasterUnused(Master):
    def one(self, param, k, master):
        param -= self.lr * param.grad


@mutant(
    "02.master_sgd",
    "Your master is made anew from the 16-bit parameters in every step, so it forgets what they cannot hold. It must "
    "live as long as the optimizer: make it once, in __init__.",
)
class MasterRebuilt(Master):
    def one(self, param, k, master):
        self.master[k] = param.float() - self.lr * param.grad.float()
        param.copy_(self.master[k])


@mutant(
    "02.master_sgd",
    "lr × gradient was rounded to bfloat16 before the master saw it: a Python number times a bfloat16 tensor is a "
    "bfloat16 tensor. Convert the gradient to float32 first.",
)
class ProductRounded(Master):
    def one(self, param, k, master):
        master -= self.lr * param.grad
        param.copy_(master)


@mutant(
    "02.master_sgd",
    "The master is right, but the model's parameters never changed. `param = …` only renames; write the master *into* "
    "the parameter.",
)
class NotCopiedBack(Master):
    def one(self, param, k, master):
        master -= self.lr * param.grad.float()
        param = master.to(param.dtype)


@mutant(
    "02.master_sgd",
    "Your parameters became float32. With param.data = master the parameter *is* the master, and the model no longer "
    "computes in 16 bits. Copy the values, keep the dtype.",
)
class ParameterReplaced(Master):
    def one(self, param, k, master):
        master -= self.lr * param.grad.float()
        param.data = master


def lower_half(x):
    return x.view(torch.int32) & 0xFFFF


def to_bfloat16(codes):
    return (codes & -65536).view(torch.float32).bfloat16()


@mutant(
    "02.stochastic_round",
    "You rounded to nearest; the draws changed nothing. Then an x at a quarter of the gap goes down each time, and "
    "the quarter is lost each time.",
)
def to_nearest(x, draws):
    return x.bfloat16()


@mutant(
    "02.stochastic_round",
    "You cut the lower half off, so every number moves toward zero, whatever was drawn. The draw must be able to "
    "carry it to the neighbor.",
)
def toward_zero(x, draws):
    return to_bfloat16(x.view(torch.int32))


@mutant(
    "02.stochastic_round",
    "You added the draw and then let .bfloat16() round to nearest as well: two roundings, and the results are half a "
    "gap too large in magnitude. Clear the lower half before you convert.",
)
def rounded_again(x, draws):
    return (x.view(torch.int32) + draws).view(torch.float32).bfloat16()


@mutant(
    "02.stochastic_round",
    "You tossed a coin: up or down with one half each. A number close to its lower neighbor must go there nearly "
    "always. Compare the draw with the lower half of the code.",
)
def coin(x, draws):
    up = (draws >= 32768) & (lower_half(x) > 0)
    return to_bfloat16(x.view(torch.int32) + 65536 * up.int())


@mutant(
    "02.stochastic_round",
    "One draw too many goes up: you wrote ≤ for <. It shows where the lower half is 0: a number that bfloat16 holds "
    "exactly must never move.",
)
def one_draw_too_many(x, draws):
    return to_bfloat16(x.view(torch.int32) + 65536 * (draws <= lower_half(x)).int())


@mutant(
    "02.stochastic_round",
    "Your probabilities are exchanged: the further away a neighbor is, the more often you go there. A number with a "
    "lower half of 16384 is a quarter of the gap above the lower neighbor: up once in four draws.",
)
def exchanged(x, draws):
    up = (draws >= lower_half(x)) & (lower_half(x) > 0)
    return to_bfloat16(x.view(torch.int32) + 65536 * up.int())


@mutant(
    "02.stochastic_round",
    "Your negative numbers go the wrong way. The code of a float is a sign and a magnitude: adding the draw makes the "
    "magnitude larger for either sign, which is just what you want.",
)
def negatives_subtract(x, draws):
    return to_bfloat16(x.view(torch.int32) + torch.where(x < 0, -draws, draws))


def ema(average, lost, weights, rate, use=1, keep=1, exact=False, carry=0):
    """ema_step, with the parts that mutants replace."""
    old = average.float()
    wanted = rate * (weights - old) + use * lost.float()
    new = (old + wanted).bfloat16()
    moved = wanted if exact else new.float() - old
    return new, (keep * (wanted - moved) + carry * lost.float()).bfloat16()


@mutant(
    "02.ema_step",
    "You lost nothing, you say: your second result is always 0. Compare what you wanted to add with the average as it "
    "is stored in bfloat16, not with the sum before it is rounded.",
)
def nothing_lost(average, lost, weights, decay):
    return ema(average, lost, weights, 1 - decay, exact=True)


@mutant(
    "02.ema_step",
    "You note what was lost and never add it again. It belongs into `wanted`, in line 1.",
)
def never_added_again(average, lost, weights, decay):
    return ema(average, lost, weights, 1 - decay, use=0)


@mutant(
    "02.ema_step",
    "The sign of your `lost` is wrong: what the average moved too little must be added next time, not subtracted.",
)
def sign_exchanged(average, lost, weights, decay):
    return ema(average, lost, weights, 1 - decay, keep=-1)


@mutant(
    "02.ema_step",
    "You count the loss twice. `wanted` holds the old `lost` already, so the new one replaces it; do not add the two.",
)
def counted_twice(average, lost, weights, decay):
    return ema(average, lost, weights, 1 - decay, carry=1)


@mutant(
    "02.ema_step",
    "Your average runs straight to the weights: decay is the part that *stays*. The difference is multiplied by 1 − "
    "decay.",
)
def decay_exchanged(average, lost, weights, decay):
    return ema(average, lost, weights, decay)


@mutant(
    "02.fate",
    "You called everything below torch.finfo(dtype).tiny zero. tiny is the smallest *normal* number; below it there "
    "are the subnormal ones, down to finfo.smallest_normal × finfo.eps.",
)
def tiny_is_zero(value, dtype):
    info = torch.finfo(dtype)
    return "zero" if abs(value) < info.tiny else "infinite" if abs(value) > info.max else "fine"


@mutant(
    "02.fate",
    "You took eps for the smallest number. eps is the gap above 1. A format goes on far below it, because its "
    "exponent moves along.",
)
def eps_is_smallest(value, dtype):
    info = torch.finfo(dtype)
    return "zero" if abs(value) < info.eps else "infinite" if abs(value) > info.max else "fine"


@mutant(
    "02.fate",
    "Negative constants came out wrong. Both ends of the range are limits: look at the magnitude.",
)
def sign_forgotten(value, dtype):
    stored = torch.tensor(value, dtype=torch.float64).to(dtype)
    if stored == 0:
        return "zero"
    if stored == math.inf:
        return "infinite"
    return "subnormal" if stored < torch.finfo(dtype).tiny else "fine"


@mutant(
    "02.fate",
    "You looked at float16's limits only. bfloat16 has the exponents of float32: neither 1e-8 nor −1e9 is a problem "
    "there.",
)
def always_float16(value, dtype):
    stored = torch.tensor(value, dtype=torch.float64).half().abs()
    if stored == 0:
        return "zero"
    if stored.isinf():
        return "infinite"
    return "subnormal" if stored < torch.finfo(torch.float16).tiny else "fine"


def probabilities(scores, hidden, fill=-math.inf, top=None, shift=True, zeros=True):
    """masked_softmax in float32, with the parts that mutants replace."""
    masked = scores.float().masked_fill(hidden, fill)
    top = masked.amax(dim=-1, keepdim=True) if top is None else top
    weights = (masked - top).exp() if shift else masked.exp()
    total = weights.sum(dim=-1, keepdim=True)
    result = weights / total
    if zeros:
        result = result.masked_fill(hidden.all(dim=-1, keepdim=True), 0)
    return result.to(scores.dtype)


@mutant(
    "02.masked_softmax",
    "exp overflowed: e¹² is already infinite in float16, and infinity / infinity is NaN. Convert to float32 and "
    "subtract the largest score of the row first.",
)
def exp_in_half(scores, hidden):
    weights = scores.exp().masked_fill(hidden, 0)
    return (weights / weights.sum(dim=-1, keepdim=True)).masked_fill(hidden.all(dim=-1, keepdim=True), 0)


@mutant(
    "02.masked_softmax",
    "float32 alone does not save exp: it overflows at e⁸⁹, and scores far below zero all become 0, which gives 0 / 0. "
    "Subtract the largest score of the row first.",
)
def exp_without_shift(scores, hidden):
    return probabilities(scores, hidden, shift=False)


@mutant(
    "02.masked_softmax",
    "You subtracted one maximum from all rows. A row far below it has only zeros left, and 0 / 0 is NaN. Each row "
    "needs its own: amax with dim and keepdim.",
)
def one_maximum(scores, hidden):
    top = scores.float().masked_fill(hidden, -math.inf).amax()
    return probabilities(scores, hidden, top=top)


@mutant(
    "02.masked_softmax",
    "Your maximum includes hidden scores. If a hidden one is far above the rest, all visible ones become 0, and 0 / 0 "
    "is NaN. Hide first, then take the maximum.",
)
def hidden_maximum(scores, hidden):
    return probabilities(scores, hidden, top=scores.float().amax(dim=-1, keepdim=True))


@mutant(
    "02.masked_softmax",
    "−1e4 fits in float16 and is not low enough: real scores can lie below it, and then the hidden ones take all the "
    "probability. Use the most negative number of the dtype, or −∞.",
)
def minus_ten_thousand(scores, hidden):
    return probabilities(scores, hidden, fill=-1e4)


@mutant(
    "02.masked_softmax",
    "masked_fill refuses −1e9 for float16 scores, which end at −65504. In float32 and bfloat16 it works, so this bug "
    "waits for the first run in float16. Ask torch.finfo for the limit, or convert to float32 first.",
)
def minus_a_billion(scores, hidden):
    result = scores.masked_fill(hidden, -1e9).float().softmax(dim=-1)
    return result.masked_fill(hidden.all(dim=-1, keepdim=True), 0).to(scores.dtype)


@mutant(
    "02.masked_softmax",
    "A row that is hidden altogether holds only −∞: −∞ − (−∞) is NaN, and so is its softmax. Such a row is all 0.",
)
def nan_where_all_hidden(scores, hidden):
    return probabilities(scores, hidden, zeros=False)


@mutant(
    "02.masked_softmax",
    "In a row that is hidden altogether all scores are equal, and yours share the probability. No NaN, but attention "
    "to padding. Hidden scores get 0, even there.",
)
def uniform_where_all_hidden(scores, hidden):
    return probabilities(scores, hidden, fill=torch.finfo(torch.float32).min, zeros=False)


@mutant(
    "02.variance",
    "Mean of squares minus square of the mean, in 16 bits: the squares are infinite from 256 on, and ∞ − ∞ is NaN. "
    "Convert to float32, subtract the mean, then square.",
)
def one_pass_in_half(x):
    return (x.square().mean(dim=-1) - x.mean(dim=-1).square()).float()


@mutant(
    "02.variance",
    "Mean of squares minus square of the mean: two large numbers that agree in nearly all digits, and the difference "
    "is what rounding left. Subtract the mean first, then square.",
)
def one_pass(x):
    wide = x.float()
    return wide.square().mean(dim=-1) - wide.mean(dim=-1).square()


@mutant(
    "02.variance",
    "You subtract the mean first, which is right, but in 16 bits: the mean is rounded, and a distance of 256 has "
    "an infinite square. Convert to float32 before the first operation.",
)
def two_passes_in_half(x):
    distance = x - x.mean(dim=-1, keepdim=True)
    return distance.square().mean(dim=-1).float()


@mutant(
    "02.variance",
    "Your mean is rounded to float16, and only then do you go on in float32. Between 16384 and 32768 that is an error "
    "of up to 8. Convert before you take the mean.",
)
def mean_in_half(x):
    distance = x.float() - x.mean(dim=-1, keepdim=True).float()
    return distance.square().mean(dim=-1)


@mutant(
    "02.variance",
    "You divided by n − 1, as torch.var does unless told otherwise. Normalization layers divide by n: correction=0.",
)
def unbiased(x):
    return x.float().var(dim=-1)


@mutant(
    "02.variance",
    "You computed well and stored the result in the dtype of x. A variance has the square of the range: beyond 65504, "
    "or too small, it is gone again. Return float32.",
)
def stored_in_half(x):
    return x.float().var(dim=-1, correction=0).to(x.dtype)


def watched(model, x, limit=65504.0, size=lambda output: output.abs().max(), leaves=True, remove=True):
    """overflowing, with the parts that mutants replace."""
    found, handles = [], []
    for name, module in model.named_modules():
        if not leaves or not list(module.children()):

            def hook(module, inputs, output, name=name):
                if size(output) > limit or (limit == math.inf and not output.isfinite().all()):
                    found.append(name)

            handles.append(module.register_forward_hook(hook))
    with torch.no_grad():
        model(x)
    for handle in handles if remove else []:
        handle.remove()
    return found


@mutant(
    "02.overflowing",
    "You wait for an infinity, and in float32 there is none. Compare the magnitude with the largest float16 number.",
)
def waits_for_infinity(model, x):
    return watched(model, x, limit=math.inf)


@mutant(
    "02.overflowing",
    "You looked at the largest output and not at the most negative one. A number below −65504 overflows as well: take "
    "the magnitude.",
)
def largest_only(model, x):
    return watched(model, x, size=torch.Tensor.max)


@mutant(
    "02.overflowing",
    "You stopped at the first layer. The ones behind it can overflow on their own, and you would find them one by "
    "one, with one run each.",
)
def first_only(model, x):
    return watched(model, x)[:1]


@mutant(
    "02.overflowing",
    "You also listed containers, whose output is that of their last layer, and the model itself under an empty name. "
    "Keep the modules that have no children.",
)
def containers_too(model, x):
    return watched(model, x, leaves=False)


@mutant(
    "02.overflowing",
    "Your hooks are still there: each later call of the model pays for them. Keep the handles and remove them.",
)
def hooks_stay(model, x):
    return watched(model, x, remove=False)


@mutant(
    "02.overflowing",
    "You ran the model in float16. An infinity then spoils all layers behind it, so you cannot tell who began; and "
    "half() changed the caller's model for good. Run it in float32.",
)
def run_in_half(model, x):
    return watched(model.half(), x.half(), limit=math.inf)


@mutant(
    "02.overflowing",
    "All your names are alike: a hook that is made in a loop reads the loop variable when it runs, and by then that "
    "is the last one. Make the hook in a function that takes the name.",
)
def last_name_for_all(model, x):
    found = watched(model, x)
    last = [name for name, module in model.named_modules() if not list(module.children())][-1]
    return [last] * len(found)
