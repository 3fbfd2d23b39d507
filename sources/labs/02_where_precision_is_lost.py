# %% [markdown]
# # Lab 2 Where precision is lost
#
# Sixteen bits are enough to store a number and too few to add to it. In this lab you write the four cures that training
# frameworks use, wide accumulators, master weights, stochastic rounding and compensated sums, and then functions that
# survive the narrow range of fp16.
#
# **You will be able to** add without losing the small terms · say which updates a 16-bit weight ignores · keep master
# weights · round by a draw of lots, without bias · carry along what an addition lost · write a softmax and a variance
# that fp16 cannot break · find the layer that overflows.
#
# *136 minutes · parts A and B make a good first session · after lesson 2 · runs on every machine*

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
# | A Sums | 2.1 A dot product that keeps its digits | ●○○ | 8 | 1 |
# | | 2.2 A tree instead of a chain | ●●○ | 12 | 2 |
# | B Weights | 2.3 Which updates are lost? | ●○○ | 8 | 1 |
# | | 2.4 An optimizer with master weights | ●●○ | 20 | 3 |
# | | 2.5 Round by a draw of lots | ●●● | 20 | 3 |
# | | 2.6 An average that remembers what it lost | ●●○ | 15 | 2 |
# | C Range | 2.7 What becomes of a constant? | ●○○ | 8 | 1 |
# | | 2.8 A softmax that survives | ●●○ | 18 | 3 |
# | | 2.9 A variance that survives | ●●○ | 12 | 2 |
# | | 2.10 Which layer leaves the range? | ●●○ | 15 | 2 |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. An exercise that you have not begun says so and stops nothing: *Run All* always reaches the
# end.

# %%
import torch
from ampedu.exercises import check

# %% [markdown]
# ## A Sums
#
# Add a thousand ones, one after the other, in bfloat16.

# %% tags=["nbval-check-output"]
total = torch.tensor(0.0, dtype=torch.bfloat16)
for _ in range(1000):
    total = total + 1
total

# %% [markdown]
# The sum stops at 256. Above 256 the next bfloat16 number is 258, and 257 lies in the middle: the tie goes to the even
# neighbor, back to 256, for ever. The small term is **swamped** by the large sum.
#
# ### 2.1 A dot product that keeps its digits ●○○ 8 minutes
#
# A dot product loses digits in three places: when the products are rounded, when the sum is rounded after each
# addition, and when the result is rounded. Matrix units of GPUs avoid the first two: they take 16-bit inputs, keep
# exact products and add in float32. Do the same, and keep the result in float32 too.


# %% exercise="02.dot"
def dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Multiply element by element and add up in float32.

    x, y: vectors of the same length and dtype, float16 or bfloat16.
    Returns a float32 tensor without dimensions. Neither the products nor their sum may be rounded
    to 16 bits on the way.
    """
    ### BEGIN SOLUTION
    return (x.float() * y.float()).sum()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.dot", dot)

# %% [markdown]
# <details><summary>I add in float32 and the last digits are still wrong</summary>
#
# In which dtype are the products? The product of two float16 tensors is a float16 tensor, whatever happens to it later.
# </details>
#
# <details><summary>I get NaN or infinity</summary>
#
# One product is beyond 65504, although both factors are small. Which line computes it, and in which dtype?
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 12 minutes.*

# %% [markdown]
# ### 2.2 A tree instead of a chain ●●○ 12 minutes
#
# What if there is no wider format to add in? Then change the order. A chain adds each term to a large sum. A **tree**
# adds neighbors, then the sums of neighbors, and so on: both sides of each addition are about equally large, and no
# term passes through more than about $\log_2 n$ roundings, instead of up to $n$. This is called **pairwise summation**.
#
# Five numbers a, b, c, d, e become a + b, c + d, e, then (a + b) + (c + d), e, then the total. An odd one at the end
# waits for the next round.


# %% exercise="02.pairwise_sum"
def pairwise_sum(x: torch.Tensor) -> torch.Tensor:
    """Add up the elements of a vector pairwise, in its own dtype.

    x: float16 or bfloat16 tensor of shape (n,), n ≥ 1. In each round, add elements 0 and 1, 2 and
    3, and so on; a last odd one moves on unchanged. Every addition rounds to the dtype of x.
    Returns a tensor of this dtype without dimensions.
    """
    ### BEGIN SOLUTION
    while len(x) > 1:
        paired = len(x) // 2 * 2
        x = torch.cat([x[:paired:2] + x[1:paired:2], x[paired:]])
    return x[0]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.pairwise_sum", pairwise_sum)

# %% [markdown]
# <details><summary>How do I add all pairs at once?</summary>
#
# `x[0::2]` is every second element from the first on, and `x[1::2]` from the second on. Their sum is one round.
# </details>
#
# <details><summary>The size of tensor a must match the size of tensor b</summary>
#
# The length is odd. Cut the last element off before you add the pairs, and put it behind them afterwards: `torch.cat`.
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 18 minutes.*

# %% [markdown]
# ## B Weights
#
# A training step is an addition as well: a large weight plus a small update. These are the numbers around 1 that two
# formats have.

# %%
from ampedu.plots import number_line

number_line(["fp16", "bf16"], 0.98, 1.02)

# %% [markdown]
# In bfloat16 the next number above 1 is 1.0078. An update of 0.001 ends nowhere near it, and the stored sum is 1 again.
#
# ### 2.3 Which updates are lost? ●○○ 8 minutes
#
# Find out for every weight of a tensor. You need no formula: add, store, compare.


# %% exercise="02.lost_updates"
def lost_updates(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Say for every weight whether its update is lost.

    weights: float16 or bfloat16 tensor. updates: float32 tensor of the same shape.
    Returns a bool tensor: True where the update is not zero and yet the sum, stored in the dtype
    of the weights, is the old weight.
    """
    ### BEGIN SOLUTION
    stored = (weights + updates).to(weights.dtype)
    return (stored == weights) & (updates != 0)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.lost_updates", lost_updates)

# %% [markdown]
# <details><summary>I find no lost update at all</summary>
#
# Print `(weights + updates).dtype`. In which dtype must the sum be *stored* before you compare?
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 12 minutes.*

# %% [markdown]
# ### 2.4 An optimizer with master weights ●●○ 20 minutes
#
# The classic cure. The model computes with 16-bit weights, and the optimizer keeps a float32 copy of them, the **master
# weights**. Each step updates the master and then writes it, rounded, into the model's weights. A single update may
# still leave the model's weight where it was; but the master remembers, and after some steps the sum of the updates
# is large enough to be seen.
#
# Write it for plain gradient descent, master ← master − lr × gradient.


# %% exercise="02.master_sgd"
class MasterSGD:
    """Gradient descent with float32 master weights.

    params: a list of torch.nn.Parameter in bfloat16. lr: a float.
    Attribute `master`: a list of float32 tensors, one for each parameter, in the same order.
    """

    def __init__(self, params, lr: float):
        ### BEGIN SOLUTION
        self.params, self.lr = list(params), lr
        self.master = [param.detach().float() for param in self.params]
        ### END SOLUTION

    def step(self) -> None:
        """Update the master weights in float32; copy them into the parameters.

        The gradients are in param.grad, in bfloat16. A parameter whose gradient is None is left
        alone. The parameters stay the same objects and keep their dtype.
        """
        ### BEGIN SOLUTION
        with torch.no_grad():
            for param, master in zip(self.params, self.master, strict=True):
                if param.grad is not None:
                    master -= self.lr * param.grad.float()
                    param.copy_(master)
        ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.master_sgd", MasterSGD)

# %% [markdown]
# <details><summary>a leaf Variable that requires grad is being used in an in-place operation</summary>
#
# torch wants to record your update for a backward pass. Put the step into `with torch.no_grad():`.
# </details>
#
# <details><summary>The parameters never change</summary>
#
# `param = master.bfloat16()` gives a new tensor the name `param`, and the model never hears of it. Which method writes
# into an existing tensor?
# </details>
#
# <details><summary>The master is wrong in the last digits</summary>
#
# Where is the learning rate multiplied with the gradient, and in which dtype?
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 30 minutes.*

# %% [markdown]
# ### 2.5 Round by a draw of lots ●●● 20 minutes
#
# A master copy costs four bytes a weight. **Stochastic rounding** costs none. A number between two neighbors goes to
# the nearer one with the larger probability: from a quarter of the gap it goes up once in four draws. A single result
# is worse than rounding to nearest. On average, nothing is lost.
#
# The bits make it easy. The upper 16 bits of a float32 are a bfloat16; the lower 16 say how far we are on the way to
# the next one, from 0 to 65535. Look at 1.001 (Python prints the code as an integer, here in hexadecimal):

# %% tags=["nbval-check-output"]
code = torch.tensor(1.001).view(torch.int32).item()
print(f"code {code:08x}: upper half {code >> 16:04x}, lower half {code & 0xFFFF} of 65536")

# %% [markdown]
# So 1.001 must go up with the probability 8389 / 65536. You get a random integer from 0 to 65535 for every number. The
# check tries all 65 536 of them on each number, so it sees a bias as small as a single draw.


# %% exercise="02.stochastic_round"
def stochastic_round(x: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Round float32 to bfloat16, up or down by a draw.

    x: float32 tensor of any shape, finite. draws: int32 tensor of the same shape; each element is
    uniform in 0 … 65535, and the only source of randomness.
    Returns a bfloat16 tensor: one of the two neighbors of x, each as often as x is close to it.
    An x that bfloat16 holds stays as it is.
    """
    ### BEGIN SOLUTION
    raised = x.view(torch.int32) + draws  # a carry out of the lower half is a step to the next bfloat16
    return (raised & -65536).view(torch.float32).bfloat16()  # -65536 keeps the upper half
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.stochastic_round", stochastic_round)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Add the draw to the code of x, as integers. For how many of the 65 536 draws does the lower half overflow and carry 1
# into the upper half? What does that 1 do to the number? (You know it from exercise 1.5.)
# </details>
#
# <details><summary>The counts are almost right</summary>
#
# Off by one: think of an x whose lower half is 0. May any draw move it? Off by hundreds: did you draw numbers of your
# own? Off by half of them: `.bfloat16()` rounds to nearest when there is something left to round.
# </details>
#
# <details><summary>OverflowError, or all results are 0</summary>
#
# 0xFFFF0000 does not fit in a signed 32-bit integer. The same 32 bits, read as signed, are −65536.
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 30 minutes.*

# %% [markdown]
# ### 2.6 An average that remembers what it lost ●●○ 15 minutes
#
# Many recipes evaluate a moving average of the weights. Each step adds a small fraction of a small difference: nothing
# is swamped more easily. The third cure is William **Kahan**'s: keep a second 16-bit number that holds what the last
# addition failed to add, and try again in the next step.
#
# Three lines of arithmetic, in float32, and only the two results are stored in 16 bits:
#
# 1. wanted = (1 − decay) × (weights − average) + lost
# 2. new average = average + wanted, *stored* in bfloat16
# 3. new lost = wanted − what the average really moved


# %% exercise="02.ema_step"
def ema_step(
    average: torch.Tensor, lost: torch.Tensor, weights: torch.Tensor, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move the average toward the weights; keep what was lost.

    average, lost: bfloat16 tensors, left as they are. weights: float32 tensor of the same shape.
    Returns (new average, new lost), both bfloat16. Their sum is the average before rounding.
    """
    ### BEGIN SOLUTION
    old = average.float()
    wanted = (1 - decay) * (weights - old) + lost.float()
    new = (old + wanted).bfloat16()
    return new, (wanted - (new.float() - old)).bfloat16()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.ema_step", ema_step)

# %% [markdown]
# <details><summary>What was lost is always 0</summary>
#
# Line 3 must use the average as it is *stored*. Convert to bfloat16 first, then back to float32, then subtract.
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 22 minutes.*

# %% [markdown]
# ## C Range
#
# bfloat16 runs out of digits, float16 also out of range. Its largest number is 65504, its smallest $2^{-24}$; what is
# beyond (from 65520 on) becomes infinity, and what is at most half of the smallest becomes zero.
#
# ### 2.7 What becomes of a constant? ●○○ 8 minutes
#
# Code is full of constants that were chosen for float32: an eps of 1e-8, a mask of −1e9. In float16 this eps is zero,
# and where Adam's v is zero too, it divides by zero; this mask is out of range. Write the function that tells.


# %% exercise="02.fate"
def fate(value: float, dtype: torch.dtype) -> str:
    """Say what a constant becomes in a dtype.

    value: a finite number, not zero. dtype: torch.float16, torch.bfloat16 or torch.float32.
    Returns "zero", "infinite", "subnormal" (it is there, with fewer digits than a normal number),
    or "fine".
    """
    ### BEGIN SOLUTION
    stored = torch.tensor(value, dtype=torch.float64).to(dtype).abs()
    if stored == 0:
        return "zero"
    if stored.isinf():
        return "infinite"
    return "subnormal" if stored < torch.finfo(dtype).tiny else "fine"
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.fate", fate)

# %% [markdown]
# <details><summary>Where are the limits?</summary>
#
# Store the constant and look at it, instead of computing the limits. Only for "subnormal" do you need one:
# `torch.finfo(dtype).tiny` is the smallest *normal* number.
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 12 minutes.*

# %% [markdown]
# ### 2.8 A softmax that survives ●●○ 18 minutes
#
# $\text{softmax}(s)_i = e^{s_i} / \sum_j e^{s_j}$ breaks in three places. $e^{12}$ is infinite in float16, and $e^{89}$
# in float32. A hidden score must not count, whatever constant you write over it. And padding gives rows in which
# *everything* is hidden: 0 / 0.

# %% tags=["nbval-check-output"]
print(torch.tensor([11.0, 12.0], dtype=torch.float16).exp())
print(torch.tensor([88.0, 89.0]).exp())
print(torch.full((1, 3), -torch.inf).softmax(dim=-1))

# %% [markdown]
# Softmax does not change when the same number is subtracted from all scores of a row. Choose that number well.


# %% exercise="02.masked_softmax"
def masked_softmax(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Turn each row of scores into probabilities.

    scores: tensor of shape (rows, n), float16, bfloat16 or float32; finite, up to 6e4 in magnitude,
    with either sign. hidden: bool tensor of the same shape.
    Returns probabilities in the dtype of `scores`: 0 where hidden, and a row that is hidden
    altogether is all 0. Compute in float32.
    """
    ### BEGIN SOLUTION
    wide = scores.float().masked_fill(hidden, torch.finfo(torch.float32).min)
    top = wide.amax(dim=-1, keepdim=True)
    weights = (wide - top).exp().masked_fill(hidden, 0)
    total = weights.sum(dim=-1, keepdim=True).clamp(min=1)  # at least exp(0), unless the whole row is hidden
    return (weights / total).to(scores.dtype)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.masked_softmax", masked_softmax)

# %% [markdown]
# <details><summary>NaN in ordinary rows</summary>
#
# Subtract the largest score of the row before `exp`: the largest exponential is then 1. The largest of which scores:
# also of the hidden ones?
# </details>
#
# <details><summary>value cannot be converted to type … without overflow</summary>
#
# −1e9 is no float16 number. Convert the scores first, or ask `torch.finfo` for the most negative number.
# </details>
#
# <details><summary>A hidden score gets a probability</summary>
#
# Some rows hold real scores below −30000. Is your constant below those? In any case you can write the zeros yourself,
# after `exp`.
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 25 minutes.*

# %% [markdown]
# ### 2.9 A variance that survives ●●○ 12 minutes
#
# Normalization layers need the variance of each row, the mean of the squared distances from the mean. There is a
# formula that needs only one pass over the data, mean of squares minus square of the mean. See what it makes of numbers
# that differ only after the decimal point:

# %% tags=["nbval-check-output"]
x = torch.tensor([4096.0, 4096.0625, 4096.125, 4096.1875])
print("float64:", x.double().square().mean() - x.double().mean().square())
print("float32:", x.square().mean() - x.mean().square())
print("float16:", x.half().square().mean() - x.half().mean().square())

# %% [markdown]
# In float64 the digits suffice. In float32 the two large numbers agree in all digits, and their difference is zero. In
# float16 both are infinite.


# %% exercise="02.variance"
def variance(x: torch.Tensor) -> torch.Tensor:
    """Return the variance of each row.

    x: float16 or float32 tensor of shape (rows, n). The variance is the mean of the n squared
    distances from the mean (divide by n, not n − 1).
    Returns a float32 tensor of shape (rows,).
    """
    ### BEGIN SOLUTION
    wide = x.float()
    distance = wide - wide.mean(dim=-1, keepdim=True)
    return distance.square().mean(dim=-1)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.variance", variance)

# %% [markdown]
# <details><summary>Infinity, NaN, or 0</summary>
#
# Which number leaves the range: the sum, a square, the result? Convert to float32 before the first of them.
# </details>
#
# <details><summary>Only the rows with a large mean are wrong</summary>
#
# Subtract the mean *before* you square. And is the mean itself in float32? Between 16384 and 32768, float16 numbers are
# 16 apart.
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 18 minutes.*

# %% [markdown]
# ### 2.10 Which layer leaves the range? ●●○ 15 minutes
#
# A model that was trained in bfloat16 may have activations beyond 65504. In float16 they become infinity in the
# *forward* pass, and loss scaling, which works on gradients, cannot help. The cure is bfloat16, or float32 for the
# layer that overflows. Which one is it?
#
# Run the model in float32, where nothing overflows, and look at every output. A **forward hook** is a function that
# torch calls after a module has run: `handle = module.register_forward_hook(f)` calls `f(module, inputs, output)`, and
# `handle.remove()` ends it. A leaf is a module without children, such as a linear layer.


# %% exercise="02.overflowing"
def overflowing(model: torch.nn.Module, x: torch.Tensor) -> list[str]:
    """Name the leaf modules whose output does not fit in float16.

    model: a float32 model, left as it is, without any hook of yours. x: its input.
    Returns the names, as model.named_modules() gives them, in the order in which the modules ran.
    """
    ### BEGIN SOLUTION
    found = []

    def watch(name):
        def hook(module, inputs, output):
            if output.abs().max() > torch.finfo(torch.float16).max:
                found.append(name)

        return hook

    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(watch(name)) for name, module in leaves]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("02.overflowing", overflowing)

# %% [markdown]
# <details><summary>Every hook reports the same name</summary>
#
# A function that is made in a loop sees the loop's *last* value. Make the hook in a function of its own, which gets
# the name as an argument.
# </details>
#
# <details><summary>I find nothing</summary>
#
# In float32 the output is an ordinary number. Compare its magnitude with `torch.finfo(torch.float16).max`.
# </details>
#
# *Read [the solution](../solutions/02_where_precision_is_lost.ipynb) after 22 minutes.*

# %% [markdown]
# ## What you built
#
# Now let your functions run. A cell whose exercise is not finished says which one it waits for.
#
# Each of 4096 weights starts at 1 and takes a thousand steps of −0.0001. **Predict** where the weights end, on average:
# stored in bfloat16, with your master weights, with your stochastic rounding.

# %%
from ampedu.exercises import needs

STEPS, STEP = 1000, 1e-4
ones = torch.ones(4096, dtype=torch.bfloat16)
rounded = ones.clone()
random = torch.Generator().manual_seed(seed)

# %% tags=["nbval-check-output"]
stored = ones.clone()
for _ in range(STEPS):
    stored -= STEP
print(f"stored in bfloat16: {stored.float().mean():.2f}")

# %% tags=["nbval-check-output"]
with needs("02.master_sgd"):
    weight = torch.nn.Parameter(ones.clone())
    weight.grad = torch.ones_like(weight)
    optimizer = MasterSGD([weight], lr=STEP)
    for _ in range(STEPS):
        optimizer.step()
    print(f"with master weights: {weight.detach().float().mean():.2f}")

# %% tags=["nbval-check-output"]
with needs("02.stochastic_round"):
    for _ in range(STEPS):
        draws = torch.randint(0, 2**16, rounded.shape, generator=random, dtype=torch.int32)
        rounded = stochastic_round(rounded.float() - STEP, draws)
    print(f"with stochastic rounding: {rounded.float().mean():.2f}")

# %% [markdown]
# The two cures agree on average. They do not agree on each weight: here are the final values after stochastic rounding.

# %%
from matplotlib.figure import Figure
from ampedu.plots import picture


def histogram(values):
    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    axes = figure.add_subplot()
    numbers, counts = values.float().unique(return_counts=True)
    axes.bar(numbers.tolist(), counts.tolist(), width=0.003, color="#0072B2", label="stochastic rounding")
    axes.axvline(0.9, color="#D55E00", linestyle="--", label="float32: 0.9")
    axes.set(xlabel="weight after 1000 steps", ylabel="number of weights")
    axes.set_title("Right on average, each weight with its own luck")
    axes.legend()
    return picture(figure, f"{len(numbers)} bars, one for each value, from {numbers.min():.2f} to {numbers.max():.2f}.")


# %%
histogram(rounded)

# %% [markdown]
# Next, the moving average. The weights have jumped from 1 to 1.5, and the average follows with decay 0.999. How far
# should it have come after 1000 steps?

# %% tags=["nbval-check-output"]
target, plain = torch.full((1,), 1.5), torch.ones(1, dtype=torch.bfloat16)
average, lost = plain, torch.zeros_like(plain)
with needs("02.ema_step"):
    for _ in range(1000):
        plain = plain.lerp(target.bfloat16(), 0.001)
        average, lost = ema_step(average, lost, target, 0.999)
    print(f"plain: {plain.item():.4f}, with what was lost: {average.item():.4f}")
print(f"without any rounding: {1.5 - 0.5 * 0.999**1000:.4f}")

# %% [markdown]
# bfloat16 has no number nearer to the right one than yours: its next number above 1.3125 is 1.3203. The plain average
# stands where it began.

# %% [markdown]
# Then the sums, longer and longer: a chain of bfloat16 additions, and your tree.

# %% tags=["nbval-check-output"]
with needs("02.pairwise_sum"):
    for n in (100, 1000, 10_000):
        values = torch.ones(n, dtype=torch.bfloat16)
        chain = torch.tensor(0.0, dtype=torch.bfloat16)
        for value in values:
            chain = chain + value
        print(f"{n:6} ones: chain {chain.item():5.0f}, tree {pairwise_sum(values).item():5.0f}")

# %% [markdown]
# 9984 is not a mistake: it is the bfloat16 number nearest to 10 000.
#
# Last, the constants of a training script. Which of them would you have changed?

# %% tags=["nbval-check-output"]
CONSTANTS = {
    "eps of Adam": 1e-8,
    "eps of layer norm": 1e-5,
    "eps of normalize": 1e-12,
    "mask": -1e9,
    "loss scale": 65536,
}
with needs("02.fate"):
    print(f"{'':26}   float16   bfloat16")
    for name, value in CONSTANTS.items():
        print(f"{name:17} {value:8.6g}", *(f"{fate(value, d):>10}" for d in (torch.float16, torch.bfloat16)))

# %% [markdown]
# The initial loss scale of `torch.amp.GradScaler`, 65536, does not fit in float16 either. It is kept in float32.
#
# **Sources.** [Mixed precision training](https://arxiv.org/abs/1710.03740): master weights and float32 accumulation ·
# [Revisiting bfloat16 training](https://arxiv.org/abs/2010.06192): stochastic rounding and Kahan summation for
# weights · W. Kahan, [Further remarks on reducing truncation errors](https://doi.org/10.1145/363707.363723), 1965 ·
# N. Higham, [The accuracy of floating point summation](https://doi.org/10.1137/0914050), 1993: chains and trees ·
# [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html) in torch's documentation.
#
# Back to [lesson 2](../notebooks/02_where_precision_is_lost.ipynb), or on to [lesson
# 3](../notebooks/03_tensor_cores.ipynb), where narrow formats pay off.
