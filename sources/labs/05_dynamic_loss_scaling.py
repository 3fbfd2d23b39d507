# %% [markdown]
# # Lab 5 Dynamic loss scaling
#
# A loss scaler is twenty lines of bookkeeping around one multiplication. In this lab you write it, state by state as
# torch does it, and then take care of what it does not do for you.
#
# **You will be able to** train with a constant scale · find infinities and unscale in one pass · write a dynamic loss
# scaler · keep a schedule right when steps are skipped · tell whether a step happened · guard a bfloat16 run · count
# what underflows and choose a scale · resume a run exactly · name what is wrong from a loss and a scale.
#
# *144 minutes · parts A and B make a good first session · after lesson 5 · runs on every machine*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("This lab computes on the CPU: its answers are the same on every machine.")

# %% [markdown]
# | part | exercise | difficulty | minutes | points |
# |---|---|---|---|---|
# | A By hand | 5.1 A constant scale | ●○○ | 12 | 2 |
# | | 5.2 Check and unscale in one pass | ●○○ | 10 | 2 |
# | B The rule | 5.3 A scaler of your own | ●●● | 35 | 5 |
# | C Skipped steps | 5.4 A schedule that knows of skips | ●○○ | 10 | 2 |
# | | 5.5 Did the step happen? | ●●○ | 15 | 3 |
# | | 5.6 bfloat16 without a scaler | ●○○ | 10 | 2 |
# | D Which scale? | 5.7 Where gradients land | ●●○ | 15 | 2 |
# | | 5.8 Choose a scale | ●○○ | 10 | 2 |
# | E Runs | 5.9 Resume as if nothing had happened | ●●○ | 15 | 3 |
# | | 5.10 What went wrong? | ●●○ | 12 | 3 |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. An exercise that you have not begun says so and stops nothing: *Run All* always reaches the
# end.

# %%
import copy
import math

import torch
import torch.nn.functional as F
from ampedu.exercises import check

# %% [markdown]
# ## A By hand
#
# ### 5.1 A constant scale ●○○ 12 minutes
#
# A gradient of 2⁻²⁹ is an ordinary float32 number. In float16, it is zero:

# %% tags=["nbval-check-output"]
gradient = torch.tensor(2.0**-29)
print(gradient.half().item(), (gradient * 2**20).half().item() / 2**20 == gradient.item())

# %% [markdown]
# Multiplied by 2²⁰ it survives. A gradient is linear in the loss, so one multiplication *of the loss* scales all
# gradients on their way back. The parameters are float32, and so are their gradients, in `p.grad`: there the scale can
# be taken out again.
#
# Write one training step with a constant scale and without a scaler object. Its update must be the one that float32
# would make, up to the rounding of float16.


# %% exercise="05.static_step"
def static_step(model: torch.nn.Module, batch: tuple, loss_fn, optimizer, scale: float) -> float:
    """Train one step with a constant loss scale.

    batch: (inputs, targets). loss_fn: takes the outputs and the targets, returns the loss.
    optimizer: one of torch.optim, for the parameters of the model.
    Model and loss run under autocast to float16, on the device of the inputs; the weights stay float32.
    Gradients that are left from before do not count. Returns the loss, unscaled, as a float.
    """
    ### BEGIN SOLUTION
    inputs, targets = batch
    optimizer.zero_grad()
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    (loss * scale).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(1 / scale)
    optimizer.step()
    return loss.item()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.static_step", static_step)

# %% [markdown]
# <details><summary>The weights do not move</summary>
#
# Which tensor calls `backward()`? It must be the scaled loss. If it is: is the forward pass under autocast, or is the
# model itself float16? In a float16 model the unscaled gradients underflow after all.
# </details>
#
# <details><summary>The updates are millions of times too large</summary>
#
# The optimizer saw scaled gradients. Unscale between `backward()` and `step()`, in place: `p.grad.mul_(1 / scale)`.
# </details>
#
# <details><summary>Only the cases with a gradient left in .grad fail</summary>
#
# `backward()` adds to `p.grad`. Clear the gradients before it, not only after the step.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “One number”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 18 minutes.*

# %% [markdown]
# ### 5.2 Check and unscale in one pass ●○○ 10 minutes
#
# A scale may be too large. Then some scaled gradient is infinite, dividing does not bring it back, and the step must be
# skipped. torch looks for this and unscales in the same pass, since reading all gradients once is cheaper than
# twice. Do the same. (torch multiplies by the inverse of the scale. Here all scales are powers of two, and division
# gives the same bits.)


# %% exercise="05.check_and_unscale"
def check_and_unscale_(grads: list[torch.Tensor | None], scale: float) -> bool:
    """Unscale the gradients in place and check them.

    grads: float32 tensors of any shape, or None for a parameter without a gradient. Each is
    divided by the scale, a power of two. Returns True if any element was inf, -inf or NaN.
    Such elements stay; all others are unscaled in any case.
    """
    ### BEGIN SOLUTION
    found = False
    for grad in grads:
        if grad is not None:
            found = found or not grad.isfinite().all().item()
            grad.mul_(1 / scale)
    return found
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.check_and_unscale", check_and_unscale_)

# %% [markdown]
# <details><summary>The gradients do not change</summary>
#
# `grad = grad / scale` makes a new tensor. `grad.mul_(1 / scale)` and `grad /= scale` change the one that is there.
# </details>
#
# <details><summary>Some infinity is not found, or one too many</summary>
#
# `torch.isfinite` is false for inf, for -inf and for NaN. Ask it about the elements: a sum of finite numbers may be
# infinite.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “The rule”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 15 minutes.*

# %% [markdown]
# ## B The rule
#
# ### 5.3 A scaler of your own ●●● 35 minutes
#
# What is left is the choice of the scale. The rule of `torch.amp.GradScaler` fits on a card:
#
# | after a step | scale | growth tracker |
# |---|---|---|
# | with an infinity | × backoff factor | 0 |
# | without | as it was | one more |
# | without, and the tracker now **equals** the growth interval | × growth factor, unless that leaves float32 | 0 |
#
# Three details make a scaler equal to torch's. The scale is a **float32** number; a Python float has the range of
# float64. The comparison is `==`. And there is no floor: the scale falls below 1, and at last to 0.
#
# The numbers themselves are bookkeeping, and given. KEYS are the names in torch's own state, so that either scaler can
# load what the other saved.

# %%
KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class Numbers:
    """The five numbers of a scaler, with torch's values if none are given."""

    def __init__(self, scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.scale, self.growth_factor, self.backoff_factor = scale, growth_factor, backoff_factor
        self.growth_interval, self._growth_tracker = growth_interval, 0

    def get_scale(self):
        return self.scale

    def set_growth_interval(self, interval):
        self.growth_interval = interval


# %% [markdown]
# The check sends your scaler through patterns of infinities and compares scale and tracker after every event. A
# *reload* replaces your scaler by a new one, made with torch's values, that loads the state of the old one.


# %% exercise="05.dynamic_loss_scaler"
class DynamicLossScaler(Numbers):
    """Keep a loss scale by torch's rule.

    Its numbers are self.scale, self.growth_factor, self.backoff_factor, self.growth_interval and
    self._growth_tracker.
    """

    def update(self, found_inf: bool) -> None:
        """Move scale and tracker on by one step.

        found_inf: whether a gradient of this step was not finite.
        """
        ### BEGIN SOLUTION
        factor, self._growth_tracker = 1.0, self._growth_tracker + 1
        if found_inf:
            factor, self._growth_tracker = self.backoff_factor, 0
        elif self._growth_tracker == self.growth_interval:
            factor, self._growth_tracker = self.growth_factor, 0
        scale = torch.tensor(self.scale * factor, dtype=torch.float32).item()
        if math.isfinite(scale):
            self.scale = scale
        ### END SOLUTION

    def state_dict(self) -> dict:
        """Return the five numbers by their names in KEYS."""
        ### BEGIN SOLUTION
        return {name: getattr(self, name) for name in KEYS}
        ### END SOLUTION

    def load_state_dict(self, state: dict) -> None:
        """Take over all five numbers of a state."""
        ### BEGIN SOLUTION
        for name in KEYS:
            setattr(self, name, state[name])
        ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.dynamic_loss_scaler", DynamicLossScaler)

# %% [markdown]
# <details><summary>My scale goes on where torch's ends</summary>
#
# `torch.tensor(x, dtype=torch.float32).item()` rounds a Python float to float32. What is too large becomes inf, which
# `math.isfinite` tells; what is too small becomes 0.
# </details>
#
# <details><summary>It grows one step too early or too late</summary>
#
# Add 1 to the tracker first, then compare. Growing sets it to 0, a skip sets it to 0, nothing else does.
# </details>
#
# <details><summary>Only the case with a changed interval is wrong</summary>
#
# With `==`, a tracker that has passed the interval goes on counting, and the scale does not grow until a skip sets the
# tracker to 0. With `>=` it would.
# </details>
#
# <details><summary>It is right until the reload</summary>
#
# The new scaler was made with torch's constants. All five numbers must come from the state, the tracker too.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “The rule”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 50 minutes.*

# %% [markdown]
# ## C Skipped steps
#
# ### 5.4 A schedule that knows of skips ●○○ 10 minutes
#
# `scaler.step(optimizer)` skips the step if a gradient is not finite. `scheduler.step()` knows nothing of this. In a
# short run with warmup, ten skips at the start are ten steps of warmup that no weight has seen. If the very first step
# is skipped, torch warns:
#
# > Detected call of `lr_scheduler.step()` before `optimizer.step()`
#
# Finish a step whose `backward()` is done. How can you tell that it was skipped? In this exercise the backoff factor
# is 0.5.


# %% exercise="05.finish_step"
def finish_step(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, scheduler) -> None:
    """Finish one step of optimizer, scaler and scheduler.

    The gradients are there, and scaled. The optimizer steps through the scaler, the scaler is
    updated, and the scheduler, one of torch.optim.lr_scheduler, steps unless the step was skipped.
    """
    ### BEGIN SOLUTION
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.finish_step", finish_step)

# %% [markdown]
# <details><summary>How do I see a skip?</summary>
#
# `scaler.step` does not tell. `scaler.update()` does: after an infinity it lowers the scale. Read `scaler.get_scale()`
# before and after.
# </details>
#
# <details><summary>The schedule stands still in a step that was fine</summary>
#
# The scale also changes when it grows. A skip is a scale that *fell*.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “What a skip does not undo”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 15 minutes.*

# %% [markdown]
# ### 5.5 Did the step happen? ●●○ 15 minutes
#
# Comparing scales is what most code does. It has limits:
#
# - A scaler has one scale for several optimizers. If one of them finds an infinity, the scale falls, but the others
#   have stepped.
# - With `set_backoff_factor(1.0)`, a constant scale, it never falls.
#
# And `optimizer.step` is no witness either: with `fused=True` it is called in any case, and its kernel leaves the
# weights as they are. Write a step that tells the truth about each optimizer.


# %% exercise="05.step_all"
def step_all(scaler: torch.amp.GradScaler, optimizers: list[torch.optim.Optimizer]) -> list[bool]:
    """Step all optimizers and tell which ones stepped.

    The gradients are there, and scaled; nobody has called unscale_ yet. Every optimizer has at least
    one gradient; some may be fused. Each steps through the scaler, then the scaler is updated.
    Returns one bool per optimizer, in order.
    """
    ### BEGIN SOLUTION
    happened = []
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        happened.append(all(grad.isfinite().all().item() for grad in grads))
        scaler.step(optimizer)
    scaler.update()
    return happened
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.step_all", step_all)

# %% [markdown]
# <details><summary>Where can I look, if not at the scale?</summary>
#
# A step is skipped if a gradient of this optimizer is not finite. You can ask that yourself: the parameters are in
# `optimizer.param_groups`, each a dict with the key `"params"`.
# </details>
#
# <details><summary>The second optimizer moves by twice as much</summary>
#
# `scaler.update()` changes the scale. Call it once, when all optimizers have stepped.
# </details>
#
# <details><summary>A step with zero gradients counts as skipped</summary>
#
# Its weights did not move, but it happened: Adam would have updated its averages. Compare gradients, not weights.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “Did it step?”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 22 minutes.*

# %% [markdown]
# ### 5.6 bfloat16 without a scaler ●○○ 10 minutes
#
# bfloat16 has the range of float32, so it needs no scale. But a scaler did two things, and the second one is gone:
# **nobody checks the gradients any more**. One bad batch, and the weights are NaN for good. Write the check that you
# now owe.


# %% exercise="05.guarded_step"
def guarded_step(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> bool:
    """Step only if all gradients of the loss are finite.

    Calls backward. Gradients left from before do not count; a parameter may have none.
    A step that is left out changes neither weights nor the optimizer's state.
    Returns whether the step happened.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    loss.backward()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not all(grad.isfinite().all().item() for grad in grads):
        return False
    optimizer.step()
    return True
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.guarded_step", guarded_step)

# %% [markdown]
# <details><summary>The loss is finite, and the weights are NaN</summary>
#
# The forward pass can be fine while the backward pass is not: at 0, `sqrt` has the value 0 and an infinite slope. Check
# what `backward()` made.
# </details>
#
# <details><summary>After a bad step, the next good one is wrong</summary>
#
# Either the bad gradients are still there (`zero_grad()` before `backward()`), or a step was made with zeros: that
# moves momentum. Do not call `optimizer.step()` at all.
# </details>
#
# On a GPU, each `.item()` waits for all the work that is queued. `torch.nn.utils.get_total_norm(grads)` is one number
# for all of them, not finite if one of them is not, and costs one wait. (It may also overflow when all are finite, but
# such a step you would not want either.)
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “Without a scaler: bfloat16”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 15 minutes.*

# %% [markdown]
# ## D Which scale?
#
# ### 5.7 Where gradients land ●●○ 15 minutes
#
# You do not have to guess what a format loses. Count gradients by their exponent: the histogram `{-20: 5}` says that
# five gradients have a magnitude between 2⁻²⁰ and 2⁻¹⁹. Multiplied by a scale and rounded to a format, a bin lands in
# one of four places: it becomes **zero**, a **subnormal** number, a **normal** one, or it **overflows** to inf.
#
# So that the answer is exact, a bin with the exponent e goes where its middle goes, 1.5 · 2ᵉ. All scales are powers of
# two.


# %% exercise="05.landing"
def landing(histogram: dict[int, int], dtype: torch.dtype, scale: float) -> dict[str, float]:
    """Return the fractions of gradients in each place.

    histogram: the number of gradients by exponent. dtype: torch.float16 or torch.bfloat16.
    scale: a power of two that the gradients are multiplied by, before they are rounded to dtype.
    Returns a dict with the keys "zero", "subnormal", "normal" and "overflow", whose values add up to 1.
    """
    ### BEGIN SOLUTION
    counts = {"zero": 0, "subnormal": 0, "normal": 0, "overflow": 0}
    for exponent, count in histogram.items():
        landed = torch.tensor(1.5 * 2.0**exponent * scale, dtype=torch.float64).to(dtype).item()
        if landed == 0:
            counts["zero"] += count
        elif math.isinf(landed):
            counts["overflow"] += count
        else:
            counts["normal" if landed >= torch.finfo(dtype).smallest_normal else "subnormal"] += count
    total = sum(counts.values())
    return {place: count / total for place, count in counts.items()}
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.landing", landing)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Take the middle of a bin, multiply it by the scale, and let torch round it:
# `torch.tensor(x, dtype=torch.float64).to(dtype)`. Then look at what came out.
# [Lesson 1](../notebooks/01_bit_layouts.ipynb) says where subnormal numbers begin;
# `torch.finfo(dtype).smallest_normal` is the number.
# </details>
#
# <details><summary>One bin too many is zero</summary>
#
# The smallest subnormal float16 number is 2⁻²⁴. But 1.5 · 2⁻²⁵ is nearer to it than to zero.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “Where gradients lie”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 22 minutes.*

# %% [markdown]
# ### 5.8 Choose a scale ●○○ 10 minutes
#
# Overflow costs a whole step, underflow costs a few small gradients. So a good scale is as large as it can be, with
# some headroom, since the next step may have larger gradients. With h powers of two of headroom, the largest bin would
# still be finite if its gradients were 2ʰ times as large.


# %% exercise="05.choose_scale"
def choose_scale(histogram: dict[int, int], headroom: int) -> tuple[float, float]:
    """Choose a scale for float16 from a histogram.

    histogram: as in 5.7. headroom: a number of powers of two, 0 or more.
    Returns (scale, lost). scale: the largest power of two for which no bin overflows even when it is
    multiplied by 2**headroom. lost: the fraction of gradients that become zero under this scale alone.
    """
    ### BEGIN SOLUTION
    power = 15 - headroom - max(histogram)  # 1.5 * 2**15 is finite in float16, 1.5 * 2**16 is not
    lost = sum(count for exponent, count in histogram.items() if exponent + power < -25)
    return 2.0**power, lost / sum(histogram.values())
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.choose_scale", choose_scale)

# %% [markdown]
# <details><summary>The scale is off by a factor of two</summary>
#
# float16 ends at 65504, just below 2¹⁶. Does the bin that begins at 2¹⁵ overflow, or is it the last one that does not?
# </details>
#
# <details><summary>Some gradients are lost with any scale</summary>
#
# From its smallest subnormal number to its largest one, float16 has forty powers of two. A histogram that is much wider
# does not fit: something is lost, and `lost` says how much.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “Where gradients lie”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 15 minutes.*

# %% [markdown]
# ## E Runs
#
# ### 5.9 Resume as if nothing had happened ●●○ 15 minutes
#
# A run that was interrupted and resumed should make the same updates as one that was not. Four objects have a state:
# model, optimizer, scheduler, scaler. Write `save` and `load`. The check keeps your state **in memory** while the first
# run goes on, then loads it into four new objects and compares every update, every learning rate and every scale.


# %% exercise="05.checkpoint"
class Checkpoint:
    """Save and restore a training run.

    model: a torch.nn.Module. optimizer: one of torch.optim. scheduler: one of
    torch.optim.lr_scheduler. scaler: a torch.amp.GradScaler.
    """

    @staticmethod
    def save(model, optimizer, scheduler, scaler) -> dict:
        """Return the state of the four objects. It must not change when training goes on."""
        ### BEGIN SOLUTION
        objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        return copy.deepcopy({name: thing.state_dict() for name, thing in objects.items()})
        ### END SOLUTION

    @staticmethod
    def load(state: dict, model, optimizer, scheduler, scaler) -> None:
        """Load a state that save returned into four new objects."""
        ### BEGIN SOLUTION
        for name, thing in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler), ("scaler", scaler)):
            thing.load_state_dict(state[name])
        ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.checkpoint", Checkpoint)

# %% [markdown]
# <details><summary>The resumed run starts from the wrong weights</summary>
#
# `model.state_dict()` holds the tensors of the model, not copies of them: the optimizer goes on changing them. A file
# would have a copy. `copy.deepcopy` makes one in memory.
# </details>
#
# <details><summary>The weights are right, the updates are not</summary>
#
# Momentum is in the optimizer, the learning rate in optimizer and scheduler. All four objects have `state_dict` and
# `load_state_dict`.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “Resume”. Read
# [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 22 minutes.*

# %% [markdown]
# ### 5.10 What went wrong? ●●○ 12 minutes
#
# Eight runs of the same small model under float16, ten steps each. For every step you see the loss, and the scale that
# it was made with, as a power of two. Some runs are broken, and some only look so. Ten causes are offered; no run has
# two, and two causes are not there. Where the printed loss stands still, it does so to the last bit.

# %% tags=["nbval-check-output"]
from ampedu.exercises.scaling_runs import CAUSES, RUNS

for letter, text in CAUSES.items():
    print(letter, text)

# %% tags=["nbval-check-output"]
for n, steps in RUNS.items():
    print(f"run {n}  loss  ", *(f"{loss:>8.3g}" for loss, _ in steps))
    print("       scale ", *(f"{f'2^{math.log2(scale):.0f}':>8}" for _, scale in steps))


# %% exercise="05.diagnoses"
def diagnoses() -> str:
    """Name the cause of each run.

    Returns a string of eight letters, the causes of the runs 1 to 8 in order, such as "ABCDEFGH".
    """
    ### BEGIN SOLUTION
    return "GHDAFCEB"
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("05.diagnoses", diagnoses)

# %% [markdown]
# <details><summary>Where do I look first?</summary>
#
# At the loss. Is it finite? Does it change at all? A loss that is the same to the last digit means that no weight
# moved: steps were skipped, or gradients were zero. Then look at the scale: only a skip makes it fall.
# </details>
#
# <details><summary>The scale falls, and I see two possible causes</summary>
#
# Once, a few times, or without end? A scaler that is right for its gradients comes to rest. If it never does, no scale
# helps: then the loss says whether the forward pass is to blame.
# </details>
#
# *Background: [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), “What no scale can cure, and what has no floor”.
# Read [the solution](../solutions/05_dynamic_loss_scaling.ipynb) after 18 minutes.*

# %% [markdown]
# ## What you built
#
# Now let your functions run. A cell whose exercise is not finished says which one it waits for.
#
# First, your scaler beside torch's. The letters are steps: `.` is fine, `x` has an infinity.

# %%
from ampedu.exercises import needs

# %% tags=["nbval-check-output"]
with needs("05.dynamic_loss_scaler"):
    mine, theirs = DynamicLossScaler(growth_interval=3), torch.amp.GradScaler("cpu", growth_interval=3)
    optimizer = torch.optim.SGD([weight := torch.zeros(1, requires_grad=True)], lr=0.1)
    for letter in "xx......x....":
        weight.grad = torch.full_like(weight, math.inf if letter == "x" else 1.0)
        theirs.scale(weight)  # torch makes its scale at the first call
        theirs.step(optimizer)
        theirs.update()
        mine.update(letter == "x")
        print(letter, f"you: {mine.get_scale():8.0f}   torch: {theirs.get_scale():8.0f}")
        assert mine.state_dict() == theirs.state_dict()

# %% [markdown]
# Next, mixed-precision training without any of torch's helpers but autocast: your scaler, your check, and a task that
# float16 alone cannot learn. Its loss is multiplied by 10⁻⁷, so that the gradients are too small for float16.


# %%
def learn(step, steps=60):
    """The mean loss of the last ten steps on a small task; step: takes a model, a batch, a loss and an optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e6, momentum=0.9)
    x = torch.rand(64, 2) * 2 - 1
    y = x.prod(dim=1, keepdim=True)
    losses = [step(model, (x, y), lambda a, b: F.mse_loss(a, b) * 1e-7, optimizer) for _ in range(steps)]
    return sum(losses[-10:]) / 10 / 1e-7


# %% [markdown]
# **Predict** which of the three learns: a scale of 1, a constant scale of 2²⁰, or your dynamic scale, which begins far
# too high, at 2⁴⁸.


# %%
def dynamic_step(scaler):
    """A training step with your scaler; it keeps the scale of each step in scaler.history."""

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(batch[0]), batch[1])
        (loss * scaler.get_scale()).backward()
        found = check_and_unscale_([parameter.grad for parameter in model.parameters()], scaler.get_scale())
        if not found:
            optimizer.step()
        scaler.update(found)
        scaler.history.append(scaler.get_scale())
        return loss.item()

    return step


# %%
from itertools import groupby

with needs("05.static_step", "05.check_and_unscale", "05.dynamic_loss_scaler"):
    scaler = DynamicLossScaler(scale=2.0**48, growth_interval=10)
    scaler.history = []
    results = {
        "scale 1": learn(lambda *given: static_step(*given, 1.0)),
        "scale 2^20": learn(lambda *given: static_step(*given, 2.0**20)),
        "dynamic": learn(dynamic_step(scaler)),
    }
    print("\n".join(f"{name:10} mean squared error {error:.4f}" for name, error in results.items()))
    print("the dynamic scale, as powers of two:", *(f"{math.log2(scale):.0f}" for scale, _ in groupby(scaler.history)))
    assert results["scale 1"] > 2 * max(results["scale 2^20"], results["dynamic"])

# %% [markdown]
# Last, choose a scale instead of finding it: a histogram of the gradients of the same task, and what your functions
# make of it.

# %%
with needs("05.landing", "05.choose_scale"):
    torch.manual_seed(seed)
    hidden, out = torch.nn.Linear(2, 16), torch.nn.Linear(16, 1)
    x = torch.rand(64, 2) * 2 - 1
    (F.mse_loss(out(hidden(x).tanh()), x.prod(dim=1, keepdim=True)) * 1e-7).backward()
    exponents = torch.frexp(hidden.weight.grad.flatten())[1] - 1  # frexp gives a mantissa from 0.5 to 1
    histogram = {e: exponents.tolist().count(e) for e in sorted(set(exponents.tolist()))}
    scale, lost = choose_scale(histogram, headroom=3)
    print(histogram, f"\nchosen: 2^{math.log2(scale):.0f}, lost {lost:.0%}")
    for s in (1.0, scale):
        parts = landing(histogram, torch.float16, s)
        print(f"scale 2^{math.log2(s):.0f}:", *(f"{place} {part:.0%} " for place, part in parts.items()))
    assert landing(histogram, torch.float16, 1.0)["zero"] > lost

# %% [markdown]
# **Sources.** [torch.amp](https://docs.pytorch.org/docs/stable/amp.html): `GradScaler` and its constants ·
# [Automatic mixed precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html): several
# optimizers, saving and resuming · Micikevicius et al., [Mixed Precision Training](https://arxiv.org/abs/1710.03740):
# where loss scaling comes from.
#
# Back to [lesson 5](../notebooks/05_dynamic_loss_scaling.ipynb), or on to
# [lesson 6](../notebooks/06_order_of_a_step.ipynb), where clipping, accumulation and several optimizers meet the
# scaler.
