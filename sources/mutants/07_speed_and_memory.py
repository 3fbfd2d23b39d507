"""Wrong answers to lab 07 that real people give, each with the message that the check shows."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from ampedu.exercises import mutant


def kept(model, x, dtype):
    """The tensors that model(x) saves, in order; they are alive as long as the list."""
    tensors = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: tensors.append(t) or t, lambda t: t):
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
            model(x)
    return tensors


def name_of(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def counted(model, x, dtype, known=None, size=None, once=True):
    """saved_bytes, with the parts that mutants replace."""
    if known is None:
        known = (*model.parameters(), *model.buffers(), x)
    known = {address(tensor) for tensor in known}
    size = size or (lambda tensor: tensor.untyped_storage().nbytes())
    total, seen = {}, set()
    for tensor in kept(model, x, dtype):
        if address(tensor) in known or (once and address(tensor) in seen):
            continue
        seen.add(address(tensor))
        total[name_of(tensor)] = total.get(name_of(tensor), 0) + size(tensor)
    return total


@mutant(
    "07.saved_bytes",
    "You counted some storages twice. ReLU keeps its result, and the next layer keeps the same storage as its input: "
    "it is in memory once.",
)
def shared_twice(model, x, dtype=None):
    return counted(model, x, dtype, once=False)


@mutant(
    "07.saved_bytes",
    "You counted parameters. Backward needs them, but they are in memory anyway, and have a row of their own.",
)
def parameters_counted(model, x, dtype=None):
    return counted(model, x, dtype, known=(*model.buffers(), x))


@mutant(
    "07.saved_bytes",
    "You counted buffers: BatchNorm hands its running statistics to backward, too. They are in memory anyway.",
)
def buffers_counted(model, x, dtype=None):
    return counted(model, x, dtype, known=(*model.parameters(), x))


@mutant(
    "07.saved_bytes",
    "You counted the batch x. The first layer keeps it, but it is in memory anyway, and has a row of its own.",
)
def batch_counted(model, x, dtype=None):
    return counted(model, x, dtype, known=(*model.parameters(), *model.buffers()))


@mutant(
    "07.saved_bytes",
    "You counted the elements of each tensor. A view keeps its whole storage in memory: use "
    "tensor.untyped_storage().nbytes().",
)
def views_counted(model, x, dtype=None):
    return counted(model, x, dtype, size=lambda tensor: tensor.nbytes)


@mutant(
    "07.saved_bytes",
    "You took four bytes for every element. bfloat16 has two, and the indices of max pooling are int64 and have eight.",
)
def four_bytes(model, x, dtype=None):
    def size(tensor):
        return 4 * (tensor.untyped_storage().nbytes() // tensor.element_size())

    return counted(model, x, dtype, size=size)


@mutant(
    "07.saved_bytes",
    "You added up the outputs of all modules. What backward keeps is something else: some outputs are not kept, and "
    "calls that are no modules keep tensors, too. Use saved_tensors_hooks.",
)
def module_outputs(model, x, dtype=None):
    outputs, handles = [], []
    for module in model.modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(lambda m, args, output: outputs.append(output)))
    with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
        model(x)
    for handle in handles:
        handle.remove()
    total = {}
    for output in outputs:
        total[name_of(output)] = total.get(name_of(output), 0) + output.nbytes
    return total


MOMENTS = {"sgd": 0, "momentum": 1, "adamw": 2}


def steps(parameters, optimizer, policy, sizes=None, moments=None, frozen=False, state=None):
    """step_bytes, with the parts that mutants replace."""
    size = (sizes or {}).get(policy, 2 if policy == "pure_bf16" else 4)
    held = sum(math.prod(shape) for shape, _ in parameters)
    trained = sum(math.prod(shape) for shape, trained in parameters if trained or frozen)
    kept_for_each = (state or size) * (moments or MOMENTS)[optimizer]
    return {"parameters": size * held, "gradients": size * trained, "optimizer state": kept_for_each * trained}


@mutant(
    "07.step_bytes",
    "You halved everything under AMP. Autocast leaves parameters in float32, and so are gradients and optimizer state: "
    "these three rows are those of fp32.",
)
def halved_under_amp(parameters, optimizer, policy):
    return steps(parameters, optimizer, policy, sizes={"amp": 2})


@mutant(
    "07.step_bytes",
    "You added a bfloat16 copy to the float32 parameters under AMP. autocast's casts are gone when the region ends: "
    "nothing of them stays from step to step.",
)
def copy_beside_master(parameters, optimizer, policy):
    rows = steps(parameters, optimizer, policy)
    return rows | {"parameters": rows["parameters"] * 3 // 2} if policy == "amp" else rows


@mutant(
    "07.step_bytes",
    "AdamW keeps two averages for each parameter, of the gradient and of its square. You counted one.",
)
def one_moment(parameters, optimizer, policy):
    return steps(parameters, optimizer, policy, moments={**MOMENTS, "adamw": 1})


@mutant(
    "07.step_bytes",
    "You gave frozen parameters a gradient and optimizer state. They have neither: only their own bytes count.",
)
def frozen_trained(parameters, optimizer, policy):
    return steps(parameters, optimizer, policy, frozen=True)


@mutant(
    "07.step_bytes",
    "The optimizer's state has the dtype of the parameter: in pure bfloat16 it has two bytes, too. (Which is a reason "
    "not to train like that.)",
)
def state_in_float32(parameters, optimizer, policy):
    return steps(parameters, optimizer, policy, state=4)


@mutant(
    "07.step_bytes",
    "SGD with momentum keeps a tensor, too: one for each parameter that it trains.",
)
def no_momentum(parameters, optimizer, policy):
    return steps(parameters, optimizer, policy, moments={**MOMENTS, "momentum": 0})


def ledger(widths, rows, policy, biases=True, hidden=1, casts=True, copy=True, last=False, size=None, batch=False):
    """mlp_ledger, with the parts that mutants replace."""
    size, low = size or (2 if policy == "pure_bf16" else 4), (4 if policy == "fp32" else 2)
    count = sum(a * b + b * biases for a, b in itertools.pairwise(widths))
    numbers = hidden * sum(widths[1:-1]) + (widths[-1] if last else 0)
    if batch or (copy and policy == "amp"):
        numbers += widths[0]
    return {
        "parameters": size * count,
        "gradients": size * count,
        "optimizer state": 2 * size * count,
        "weight casts": 2 * count if casts and policy == "amp" else 0,
        "inputs": size * rows * widths[0],
        "saved activations": low * rows * numbers,
    }


@mutant("07.mlp_ledger", "You forgot the biases: a linear layer has one parameter more for each output.")
def no_biases(widths, rows, policy):
    return ledger(widths, rows, policy, biases=False)


@mutant(
    "07.mlp_ledger",
    "You counted two activations for each hidden layer. What ReLU keeps is its result, and the next layer keeps the "
    "same storage; the output of the linear layer itself is kept by nobody.",
)
def linear_and_relu(widths, rows, policy):
    return ledger(widths, rows, policy, hidden=2)


@mutant(
    "07.mlp_ledger",
    "The weight casts are missing: under AMP, each weight and bias has a copy in bfloat16 beside the float32 original.",
)
def no_casts(widths, rows, policy):
    return ledger(widths, rows, policy, casts=False)


@mutant(
    "07.mlp_ledger",
    "Under AMP the first layer keeps its own copy of the batch in bfloat16. The batch itself is in float32.",
)
def no_copy(widths, rows, policy):
    return ledger(widths, rows, policy, copy=False)


@mutant(
    "07.mlp_ledger",
    "You counted the output of the last layer. No layer of this model needs it in backward. (The loss may: it is not "
    "in this ledger.)",
)
def output_counted(widths, rows, policy):
    return ledger(widths, rows, policy, last=True)


@mutant(
    "07.mlp_ledger",
    "You counted the batch as an activation in fp32 and pure bfloat16 as well. There, the first layer keeps the batch "
    "itself, which has a row of its own.",
)
def batch_twice(widths, rows, policy):
    return ledger(widths, rows, policy, batch=True)


@mutant(
    "07.mlp_ledger",
    "This is the rule \"AMP halves the memory\". It halves no parameter, no gradient and no optimizer state, and the "
    "batch stays float32, too.",
)
def all_halved(widths, rows, policy):
    return ledger(widths, rows, policy, size=4 if policy == "fp32" else 2)


def block(batch, seq, width, heads, policy, norm=None, weights=None, statistics=4, inner=9, outer=5):
    """block_saved, with the parts that mutants replace."""
    low, wide = (4 if policy == "fp32" else 2), (2 if policy == "pure_bf16" else 4)
    rows = batch * seq
    each = (weights or {}).get(policy, {"fp32": 4, "amp": 6, "pure_bf16": 2}[policy])
    return {
        "norms": 2 * ((norm or wide) * rows * width + 2 * statistics * rows),
        "attention": low * outer * rows * width + each * batch * heads * seq**2,
        "mlp": low * inner * rows * width,
    }


@mutant(
    "07.block_saved",
    "Under CUDA's policy softmax runs in float32, and keeps its result so: four bytes, not two. The bfloat16 copy that "
    "the product with v keeps comes on top.",
)
def softmax_low(*given):
    return block(*given, weights={"amp": 2})


@mutant(
    "07.block_saved",
    "Under AMP the softmax keeps its float32 result, and the product with v keeps a copy in bfloat16: six bytes for "
    "each weight. You counted the float32 one alone.",
)
def no_copy_of_weights(*given):
    return block(*given, weights={"amp": 4})


@mutant(
    "07.block_saved",
    "Under AMP the residual stream is float32, and the two norms keep it so. You counted two bytes.",
)
def norms_low(batch, seq, width, heads, policy):
    return block(batch, seq, width, heads, policy, norm=4 if policy == "fp32" else 2)


@mutant(
    "07.block_saved",
    "gelu keeps its input, and down keeps gelu's output. Those are two storages of four times the width, beside the "
    "input of up: 9 × width for each row, not 5.",
)
def gelu_like_relu(*given):
    return block(*given, inner=5)


@mutant(
    "07.block_saved",
    "Each head has a matrix of weights of its own: batch × heads × seq × seq numbers.",
)
def one_head(batch, seq, width, heads, policy):
    return block(batch, seq, width, 1, policy)


@mutant(
    "07.block_saved",
    "The statistics are missing: each norm keeps two float32 numbers for each row.",
)
def no_statistics(*given):
    return block(*given, statistics=0)


@mutant(
    "07.block_saved",
    "Attention keeps five tensors of the size of x: the input of qkv, q, k and v, and the input of proj. You counted "
    "q, k and v only.",
)
def only_q_k_v(*given):
    return block(*given, outer=3)


def convolutions(image, layers, policy, float_norm, low=None, norm=None, first=True, between=None, half=False, out=1):
    """cnn_saved, with the parts that mutants replace."""
    number, channels, height, width = image
    low = 4 if policy == "fp32" else 2
    between = between or (4 if float_norm else low)
    names = ("casts", "norm inputs", "norm statistics", "relu outputs")
    saved = dict.fromkeys(names, 0)
    for index, (outputs, stride) in enumerate(layers):
        if policy == "amp" and ((index == 0 and first) or (index > 0 and float_norm)):
            saved["casts"] += low * number * channels * height * width
        up = 0 if half else stride - 1
        channels, height, width = outputs, (height + up) // stride, (width + up) // stride
        numbers = number * channels * height * width
        saved["norm inputs"] += (norm if norm and policy == "amp" else between) * numbers
        saved["norm statistics"] += 8 * channels
        saved["relu outputs"] += out * between * numbers
    return saved


@mutant(
    "07.cnn_saved",
    "You take BatchNorm for an operation on CUDA's float32 list. It is on no list: it takes the bfloat16 output of the "
    "convolution, and keeps two bytes for each number.",
)
def norm_in_float32(image, layers, policy, float_norm=False):
    return convolutions(image, layers, policy, float_norm, norm=4)


@mutant(
    "07.cnn_saved",
    "Under AMP the first convolution keeps a copy of the batch in bfloat16.",
)
def no_copy_of_batch(image, layers, policy, float_norm=False):
    return convolutions(image, layers, policy, float_norm, first=False)


@mutant(
    "07.cnn_saved",
    "You counted each output of ReLU twice, for ReLU and for the next convolution. It is one storage.",
)
def relu_twice(image, layers, policy, float_norm=False):
    return convolutions(image, layers, policy, float_norm, out=2)


@mutant(
    "07.cnn_saved",
    "x.float() changes more than you counted: the norm keeps four bytes, returns float32, ReLU keeps that, and the "
    "next convolution makes a copy in bfloat16.",
)
def float_norm_is_free(image, layers, policy, float_norm=False):
    return convolutions(image, layers, policy, False)


@mutant(
    "07.cnn_saved",
    "With x.float(), the norm returns float32 as well: ReLU keeps four bytes, and each following convolution makes a "
    "copy in bfloat16. You counted only the input of the norm.",
)
def only_the_norm_input(image, layers, policy, float_norm=False):
    return convolutions(image, layers, policy, False, norm=4 if float_norm else None)


@mutant(
    "07.cnn_saved",
    "The sizes are off by one pixel where a side is odd: with padding 1 it becomes (n - 1) // stride + 1, not "
    "n // stride.",
)
def rounded_down(image, layers, policy, float_norm=False):
    return convolutions(image, layers, policy, float_norm, half=True)


@mutant(
    "07.cnn_saved",
    "The running statistics are buffers, and there anyway. Backward keeps two float32 numbers for each channel: the "
    "mean and the reciprocal deviation of this batch.",
)
def running_statistics(image, layers, policy, float_norm=False):
    saved = convolutions(image, layers, policy, float_norm)
    return saved | {"norm statistics": 2 * saved["norm statistics"]}


def line(peaks):
    """(fixed bytes, bytes for each sample) of two measured peaks."""
    (small, low), (large, high) = sorted(peaks.items())
    each = (high - low) / (large - small)
    return low - small * each, each


@mutant(
    "07.largest_batch",
    "You divided a peak by its batch size. A part of the peak does not grow with the batch: take the difference of the "
    "two peaks for the cost of a sample.",
)
def no_fixed_part(peaks, budget_gib):
    batch, peak = max(peaks.items())
    return int(budget_gib * 2**30 / (peak / batch)) // 8 * 8


@mutant(
    "07.largest_batch",
    "You took 10⁹ bytes for a GiB. It has 2³⁰, seven percent more.",
)
def decimal_gigabytes(peaks, budget_gib):
    fixed, each = line(peaks)
    return max(0, int((budget_gib * 1e9 - fixed) / each) // 8 * 8)


@mutant(
    "07.largest_batch",
    "You rounded up, or to the nearest multiple of 8. That batch does not fit any more.",
)
def rounded_up(peaks, budget_gib):
    fixed, each = line(peaks)
    return max(0, math.ceil((budget_gib * 2**30 - fixed) / each / 8) * 8)


@mutant(
    "07.largest_batch",
    "It fits, but it is no multiple of 8.",
)
def any_number(peaks, budget_gib):
    fixed, each = line(peaks)
    return max(0, int((budget_gib * 2**30 - fixed) / each))


@mutant(
    "07.largest_batch",
    "You forgot to subtract what every batch pays: parameters, gradients and optimizer state are in the budget, too.",
)
def budget_without_fixed(peaks, budget_gib):
    return int(budget_gib * 2**30 / line(peaks)[1]) // 8 * 8


@mutant(
    "07.largest_batch",
    "If the model alone does not fit, the answer is 0. There is no batch with a negative size.",
)
def negative_batch(peaks, budget_gib):
    fixed, each = line(peaks)
    return int((budget_gib * 2**30 - fixed) // each) // 8 * 8


def rows_needed(widths, biases=True, batch=True, equal=False, factor=1, last=0):
    """break_even, with the parts that mutants replace."""
    count = factor * sum(a * b + b * biases for a, b in itertools.pairwise(widths))
    gain = sum(widths[1:-1]) - batch * widths[0] + last * widths[-1]
    if gain <= 0:
        return None
    return -(-count // gain) if equal else count // gain + 1


@mutant(
    "07.break_even",
    "The copy of the batch is missing. Under AMP the float32 batch is still there, and the first layer keeps two more "
    "bytes for each of its numbers.",
)
def batch_is_free(widths):
    return rows_needed(widths, batch=False)


@mutant("07.break_even", "The biases are cast, too: each of them has a copy in bfloat16.")
def biases_uncast(widths):
    return rows_needed(widths, biases=False)


@mutant(
    "07.break_even",
    "With this number of rows, the two may be equal. AMP must hold fewer bytes.",
)
def equal_is_enough(widths):
    return rows_needed(widths, equal=True)


@mutant(
    "07.break_even",
    "AMP does not save four bytes for each number, but two: the activation is still there, in bfloat16.",
)
def all_four_saved(widths):
    count = sum(a * b + b for a, b in itertools.pairwise(widths))
    gain = 4 * sum(widths[1:-1]) - 2 * widths[0]
    return 2 * count // gain + 1 if gain > 0 else None


@mutant(
    "07.break_even",
    "A cast weight has two bytes, not four.",
)
def casts_of_four_bytes(widths):
    return rows_needed(widths, factor=2)


@mutant(
    "07.break_even",
    "You counted the output of the last layer as an activation that is kept. It is not, in neither ledger.",
)
def output_saved(widths):
    return rows_needed(widths, last=1)


def peak_of(inputs, inside, chosen, again=True, boundary=True):
    """The peak for a set of checkpointed blocks; again: count what is recomputed; boundary: count the inputs."""
    blocks = range(len(inputs))
    held = [0 if i in chosen else inside[i] for i in blocks]
    own = [inside[i] if again else held[i] for i in blocks]
    return max(boundary * sum(inputs[: i + 1]) + sum(held[:i]) + own[i] for i in blocks)


def cheapest(inputs, inside, cost, budget, key=None, **how):
    """place_checkpoints by trying all sets, with the parts that mutants replace."""
    blocks = range(len(inputs))
    subsets = [set(some) for size in range(len(inputs) + 1) for some in itertools.combinations(blocks, size)]
    fitting = [chosen for chosen in subsets if peak_of(inputs, inside, chosen, **how) <= budget]
    key = key or (lambda chosen: sum(cost[i] for i in chosen))
    return sorted(min(fitting, key=key)) if fitting else None


@mutant(
    "07.place_checkpoints",
    "This does not fit. The end of the forward pass is not the peak: while a checkpointed block is recomputed, its "
    "inside is in memory, together with all that the blocks before it keep.",
)
def recomputation_is_free(inputs, inside, cost, budget):
    return cheapest(inputs, inside, cost, budget, again=False)


@mutant(
    "07.place_checkpoints",
    "You forgot the inputs. A checkpointed block keeps its input, or it could not be computed again.",
)
def inputs_are_free(inputs, inside, cost, budget):
    return cheapest(inputs, inside, cost, budget, boundary=False)


@mutant(
    "07.place_checkpoints",
    "You took the fewest blocks. Two cheap ones may cost less than an expensive one: compare the sums of the costs.",
)
def fewest_blocks(inputs, inside, cost, budget):
    return cheapest(inputs, inside, cost, budget, key=lambda chosen: (len(chosen), sum(cost[i] for i in chosen)))


@mutant(
    "07.place_checkpoints",
    "You took the largest block first, and the next, until it fitted. That is a good guess and not the cheapest set. "
    "With eight blocks you can try all 256.",
)
def largest_first(inputs, inside, cost, budget):
    chosen, left = set(), sorted(range(len(inputs)), key=lambda i: -inside[i])
    while peak_of(inputs, inside, chosen) > budget:
        if not left:
            return None
        chosen.add(left.pop(0))
    return sorted(chosen)


@mutant(
    "07.place_checkpoints",
    "A checkpoint around every block fits wherever anything does, and recomputes much more than the budget asks for.",
)
def every_block(inputs, inside, cost, budget):
    return list(range(len(inputs))) if peak_of(inputs, inside, range(len(inputs))) <= budget else None


@mutant(
    "07.place_checkpoints",
    "You left everything in memory until the end of backward. What belongs to later blocks is freed before an earlier "
    "one is recomputed, so cheaper sets fit.",
)
def nothing_freed(inputs, inside, cost, budget):
    blocks = range(len(inputs))

    def peak(chosen):
        held = sum(inputs) + sum(inside[i] for i in blocks if i not in chosen)
        return held + max((inside[i] for i in chosen), default=0)

    subsets = [set(some) for size in range(len(inputs) + 1) for some in itertools.combinations(blocks, size)]
    fitting = [chosen for chosen in subsets if peak(chosen) <= budget]
    return sorted(min(fitting, key=lambda chosen: sum(cost[i] for i in chosen))) if fitting else None


class Parts(nn.Module):
    """The modules of Gate."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)


@mutant(
    "07.lean_gate",
    "Nothing has changed: the gate is still float32, and two layers still make a copy of h each.",
)
class Unchanged(Parts):
    def forward(self, x):
        h = self.norm(x)
        gate = torch.sigmoid(self.gate(h).float())
        return x + self.down(F.silu(self.up(h)) * gate)


@mutant(
    "07.lean_gate",
    "The gate is bfloat16 now. But h is float32, and gate and up make a copy of it each: convert it once.",
)
class TwoCopies(Parts):
    def forward(self, x):
        h = self.norm(x)
        gate = torch.sigmoid(self.gate(h))
        return x + self.down(F.silu(self.up(h)) * gate)


@mutant(
    "07.lean_gate",
    "h is converted once now. The gate is still float32: sigmoid keeps its result, with four bytes for each number.",
)
class WideGate(Parts):
    def forward(self, x):
        h = self.norm(x).bfloat16()
        gate = torch.sigmoid(self.gate(h).float())
        return x + self.down(F.silu(self.up(h)) * gate)


@mutant(
    "07.lean_gate",
    "You converted the gate after the sigmoid. sigmoid has kept its float32 result by then: the conversion must come "
    "before, or not at all.",
)
class ConvertedTooLate(Parts):
    def forward(self, x):
        h = self.norm(x).bfloat16()
        gate = torch.sigmoid(self.gate(h).float()).bfloat16()
        return x + self.down(F.silu(self.up(h)) * gate)


@mutant(
    "07.lean_gate",
    "You converted x itself. The residual stream, and with it the output, is bfloat16 now: every layer would round it "
    "again.",
)
class NarrowStream(Parts):
    def forward(self, x):
        x = x.bfloat16()
        h = self.norm(x)
        gate = torch.sigmoid(self.gate(h))
        return x + self.down(F.silu(self.up(h)) * gate)


@mutant(
    "07.lean_gate",
    "A tensor that is detached keeps nothing, and learns nothing: the gate has no gradients any more.",
)
class DetachedGate(Parts):
    def forward(self, x):
        h = self.norm(x).bfloat16()
        gate = torch.sigmoid(self.gate(h)).detach()
        return x + self.down(F.silu(self.up(h)) * gate)


KINDS = {
    "aten::addmm": "matmul", "aten::to": "casts", "aten::copy_": "casts", "DataLoader.__next__": "data",
    "Optimizer.step": "optimizer",
}  # fmt: skip
ALL = ("matmul", "casts", "data", "optimizer", "other", "idle")


def span(event):
    return event["start"], event["start"] + event["duration"]


def inside_of(a, b):
    """Whether the event a lies inside of the event b."""
    return a is not b and span(b)[0] < span(a)[0] and span(a)[1] < span(b)[1]


def direct(event, events):
    """The events directly inside of an event; of None: those that are inside of no other."""
    within = [other for other in events if event is None or inside_of(other, event)]
    return [other for other in within if not any(inside_of(other, third) for third in within)]


def added(events, total, amount):
    """Times by kind, from an amount for each event, with the true idle time."""
    times = dict.fromkeys(ALL, 0)
    for event in events:
        times[KINDS.get(event["name"], "other")] += amount(event)
    times["idle"] = total - sum(event["duration"] for event in direct(None, events))
    return times


def self_time(event, events):
    return event["duration"] - sum(child["duration"] for child in direct(event, events))


def with_largest(times):
    return times, max(times, key=times.get)


@mutant(
    "07.autopsy",
    "You added the durations as they are. A call inside of another one is then counted for both: take away from each "
    "what is directly inside of it.",
)
def durations_added(events, total):
    return with_largest(added(events, total, lambda event: event["duration"]))


@mutant(
    "07.autopsy",
    "You looked at the outermost calls only. aten::linear hides the casts and the product that it calls.",
)
def outermost_only(events, total):
    outer = direct(None, events)
    return with_largest(added(outer, total, lambda event: event["duration"]))


@mutant(
    "07.autopsy",
    "You took away everything inside of a call. aten::copy_ inside of aten::to inside of aten::linear is then taken "
    "away twice from aten::linear: only what is directly inside counts.",
)
def all_descendants(events, total):
    def amount(event):
        return event["duration"] - sum(other["duration"] for other in events if inside_of(other, event))

    return with_largest(added(events, total, amount))


@mutant(
    "07.autopsy",
    "The time after the last call is idle, too: the times must add up to the whole step.",
)
def last_gap_forgotten(events, total):
    end = max(span(event)[1] for event in events) - min(span(event)[0] for event in events)
    return with_largest(added(events, end, lambda event: self_time(event, events)))


@mutant(
    "07.autopsy",
    "The times are right. But idle can be the largest, too: then the processor cannot launch fast enough, and no dtype "
    "helps.",
)
def idle_never_largest(events, total):
    times = added(events, total, lambda event: self_time(event, events))
    return times, max((kind for kind in ALL if kind != "idle"), key=times.get)


@mutant(
    "07.autopsy",
    "You named the kind with the most calls. Many short calls may take less time than one long one.",
)
def most_calls(events, total):
    times = added(events, total, lambda event: self_time(event, events))
    calls = added(events, total, lambda event: 1) | {"idle": 0}
    return times, max(calls, key=calls.get)


def amdahl(times, factors, extra, after=None, limit_extra=0.0):
    """gain, with the parts that mutants replace."""
    before = sum(times.values())
    if after is None:
        after = sum(time / factors.get(kind, 1) for kind, time in times.items()) + extra
    rest = sum(time for kind, time in times.items() if kind not in factors)
    return before / after, before / (rest + limit_extra)


@mutant(
    "07.gain",
    "You averaged the speed-ups by their shares. Times add up, speed-ups do not: compute the new time of each kind.",
)
def averaged(times, factors, added):
    before = sum(times.values())
    mean = sum(factors.get(kind, 1) * time for kind, time in times.items()) / before
    return amdahl(times, factors, 0, after=before / mean + added)


@mutant("07.gain", "The new casts are missing: they are part of the new step.")
def no_new_casts(times, factors, added):
    return amdahl(times, factors, 0)


@mutant("07.gain", "You have the quotients the wrong way round: the old time by the new time.")
def upside_down(times, factors, added):
    speed, limit = amdahl(times, factors, added)
    return 1 / speed, 1 / limit


@mutant("07.gain", "The limit is without casts: nothing is added there.")
def casts_in_the_limit(times, factors, added):
    return amdahl(times, factors, added, limit_extra=added)


@mutant(
    "07.gain",
    "Idle time does not disappear when kernels become faster: it is part of the step, before and after.",
)
def idle_left_out(times, factors, added):
    return amdahl({kind: time for kind, time in times.items() if kind != "idle"}, factors, added)


RIGHT = "DAECBFG"


def replaced(**letters):
    """The right letters, with those of some complaints replaced: replaced(c1="F")."""
    chosen = list(RIGHT)
    for number, letter in letters.items():
        chosen[int(number.removeprefix("c")) - 1] = letter
    return "".join(chosen)


@mutant(
    "07.cures",
    "Complaints 4 and 5 are the wrong way round. Checkpoints make saved activations smaller, and nothing else. The "
    "state of AdamW grows with the parameters, whatever you recompute.",
)
def swapped():
    return replaced(c4="B", c5="C")


@mutant(
    "07.cures",
    "In complaint 4, checkpoints can save a part of twelve percent. The largest row is AdamW's state.",
)
def checkpoints_for_state():
    return replaced(c4="B")


@mutant(
    "07.cures",
    "torch.compile does not choose dtypes. A compiled float32 model stays float32, until the step stands in an "
    "autocast region.",
)
def compile_does_it():
    return replaced(c2="D")


@mutant(
    "07.cures",
    "Complaint 3 is no leak, and emptying the cache does not help: it makes every step allocate anew. nvidia-smi shows "
    "what the allocator has reserved, and the context; max_memory_allocated shows tensors.",
)
def cache_emptied():
    return replaced(c3="I")


@mutant(
    "07.cures",
    "Complaint 1 is not about dtypes. Kernels of 5 µs with gaps are launched too slowly, and casts add more of them: "
    "give each kernel more work.",
)
def autocast_for_small():
    return replaced(c1="A")


@mutant(
    "07.cures",
    "In complaint 6 the GPU waits for the next batch. More rows make it wait longer: load ahead.",
)
def batch_for_loading():
    return replaced(c6="D")
