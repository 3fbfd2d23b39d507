# %% [markdown]
# # 2 Where precision is lost
#
# A model that trains in float32 can stand still in 16 bits, and nothing will tell you: no error, no NaN, a loss that
# looks plausible. This lesson shows where it happens, each place in a few lines, and the cure for each.
#
# **You will be able to** predict when a running sum stops growing · decide whether an update reaches a weight ·
# rescue one that does not, in three ways · write softmax, variance and masks that survive float16 · tell an overflow
# that a loss scale cures from one that it cannot.
#
# *45 minutes · after [lesson 1](01_bit_layouts.ipynb) · runs in 15 s on two cores · only 20 minutes? Read 2.1, 2.3,
# 2.4 and 2.9*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("Rounding is the same on every machine. Three cells run on the CPU only, and say so.")

# %% [markdown]
# ## 2.1 Counting to 4096
#
# **Predict.** A loop adds 1 to a float16 number, 4096 times.

# %%
from ampedu.widgets import quiz

quiz("02.count")

# %% tags=["nbval-check-output"]
import torch


def count_up(dtype, times=4096):
    one = torch.ones((), dtype=dtype, device=device)
    total = torch.zeros_like(one)
    for _ in range(times):
        total += one
    return total.item()


print(count_up(torch.float16), count_up(torch.bfloat16))

# %% [markdown]
# **Explain.** From 2048 on, float16 has only every second whole number. 2049 lies in the middle between 2048 and
# 2050. A tie goes to the even mantissa, and that is 2048. So 2048 + 1 = 2048, now and forever. bfloat16 gets there at
# 256. The 1 is not wrong and the sum is not wrong; the result has no room for the difference. This is called
# **swamping**.

# %% tags=["nbval-check-output"]
from ampedu.formats import neighbours

for total, fmt in ((2048.0, "fp16"), (256.0, "bf16")):
    below, above = neighbours(total, fmt)
    print(f"{fmt}: {below:g}, {total:g}, {above:g}; {total:g} + 1 lies at {(1 / (above - total)):g} of the way up")

# %% [markdown]
# Is `sum` as bad?

# %% tags=["nbval-check-output"]
for dtype in (torch.float16, torch.bfloat16):
    ones = torch.ones(4096, dtype=dtype, device=device)
    print(f"{dtype}: sum {ones.sum().item()}, ones @ ones {(ones @ ones).item()}")

# %% [markdown]
# It is not, and neither is the matrix product. What gives them away is how often they are right. Take 500 sums of
# random numbers. The best possible answer is the exact sum, rounded *once*. Compare with adding in float16 itself, in
# the most careful order: neighbors first, then the pairs.


# %%
def pairwise(rows):
    """Sum over dim 0, whose length is a power of two, in the dtype of the rows: neighbors first."""
    while len(rows) > 1:
        rows = rows[0::2] + rows[1::2]
    return rows[0]


# %%
torch.manual_seed(seed)
x = torch.rand(1024, 500, device=device).half()
best = x.double().sum(0).half()
ways = {"sum": x.sum(0), "ones @ x": torch.ones_like(x[:, :1]).T @ x, "float16, pairwise": pairwise(x)}
share = {name: (result.flatten() == best).double().mean().item() for name, result in ways.items()}
print({name: f"{value:.0%} as good as can be" for name, value in share.items()})
assert share["sum"] > 0.97 and share["ones @ x"] > 0.97 and share["float16, pairwise"] < 0.8

# %% [markdown]
# `sum` and `@` read 16-bit numbers, but they add in a wider register, usually a float32 one: an **accumulator**. Only
# the final result is rounded to 16 bits. Tensor Cores are built for this, too; they are the subject of lesson 3.
#
# Do not make a rule of it. Whether an operation accumulates wider is a property of its kernel. Two more that add up a
# list, on the CPU, and what they answer on this one:

# %% tags=["measured"]
places = torch.zeros(4096, dtype=torch.long)
for dtype in (torch.float16, torch.bfloat16):
    ones = torch.ones(4096, dtype=dtype)  # on the CPU
    indexed = torch.zeros(1, dtype=dtype).index_add_(0, places, ones)
    print(f"{dtype}: cumsum ends at {ones.cumsum(0)[-1].item()}, index_add_ at {indexed.item()}")

# %% [markdown]
# On the machine where this page was made, `cumsum` counts to 4096, while `index_add_` is our loop in disguise. A
# GPU's `cumsum` is another kernel with other rules, and autocast runs it in float32 there (lesson 4).
#
# Your own training loop has such a loop, too. Each `backward()` adds to `.grad`, in the dtype of the parameter:

# %% tags=["nbval-check-output"]
weight = torch.zeros((), dtype=torch.bfloat16, device=device, requires_grad=True)
for _ in range(512):
    weight.backward()  # the gradient of a weight with respect to itself is 1
print(weight.grad.item())

# %% [markdown]
# 512 gradients of 1, and half of them are gone. With float32 parameters, as autocast wants them, `.grad` is float32.
#
# ## 2.2 Four ways to add
#
# Counting is a trap set on purpose. What about random numbers? We sum $n$ numbers between 0 and 1, for 32 lists at
# once, one addition after the other.


# %%
def one_by_one(rows):
    """All running totals over dim 0, in the dtype of the rows."""
    total, totals = torch.zeros_like(rows[0]), []
    for row in rows:
        total = total + row
        totals.append(total)
    return torch.stack(totals)


# %% [markdown]
# And Kahan's trick of 1965. After each addition, the part that did not fit can be computed, exactly in most cases,
# from the rounded numbers themselves. Remember it, and hand it in with the next number.


# %%
def kahan(rows):
    """All running totals over dim 0, with a second number per total that holds what was lost."""
    total, totals = torch.zeros_like(rows[0]), []
    lost = torch.zeros_like(total)
    for row in rows:
        wanted = row + lost
        new = total + wanted
        lost = wanted - (new - total)  # new - total is what arrived
        total = new
        totals.append(total)
    return torch.stack(totals)


# %% tags=["nbval-check-output"]
ones = torch.ones(4096, 1, dtype=torch.bfloat16, device=device)
print("one by one", one_by_one(ones)[-1].item(), " Kahan", kahan(ones)[-1].item())

# %%
torch.manual_seed(seed)
sizes = [2**k for k in range(4, 15)]
numbers = torch.rand(sizes[-1], 32, device=device)


def errors(dtype, way):
    """Median relative error for each size, against the exact sum of the same rounded numbers."""
    rows = numbers.to(dtype)
    exact = rows.double().cumsum(0)
    if way in (one_by_one, kahan):
        sums = way(rows)
    else:
        sums = {n - 1: way(rows[:n]) for n in sizes}
    return [((sums[n - 1].double() - exact[n - 1]).abs() / exact[n - 1]).median().item() for n in sizes]


# %%
dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

# %%
loop = {f"{name}, one by one": errors(dtype, one_by_one) for name, dtype in dtypes.items()}

# %%
rescued = {
    "bf16, pairwise": errors(torch.bfloat16, pairwise),
    "bf16, Kahan": errors(torch.bfloat16, kahan),
    "bf16, fp32 accumulator": errors(torch.bfloat16, lambda rows: rows.sum(0)),
}

# %%
from ampedu.plots import curves

curves(
    sizes,
    loop | rescued,
    title="The longer the sum, the worse; unless you add in another way",
    xlabel="how many numbers are added",
    ylabel="relative error (median)",
    xscale="log2",
    yscale="log",
    alt="Relative error of a sum against its length. One by one, bf16 loses half the sum at 1024 numbers and "
    "nearly all at 16384, fp16 three quarters at 16384, fp32 stays near 1e-6. Pairwise, Kahan and fp32 "
    "accumulators keep bf16 near 2e-3 at every length.",
)

# %% [markdown]
# One by one, bf16 has lost half of the sum at 1024 numbers, and fp16 three quarters at 16 384: the totals stopped
# growing. The three other ways stay near the error of a single rounding. The theory (Higham, chapter 4), with $u$ the
# error of one rounding, $2^{-8}$ for bf16: one by one is at most about $n u$ off, pairwise about $u \log_2 n$, an
# fp32 accumulator about $u$, and Kahan about $2u$ as long as $n u^2$ is well below 1 (at the right end it is 0.25).

# %%
n, u = sizes[-1], 2.0**-8
last = {name: values[-1] for name, values in (loop | rescued).items()}
assert last["bf16, one by one"] > 0.9 and last["fp16, one by one"] > 0.6 and last["fp32, one by one"] < 1e-5
assert last["bf16, pairwise"] < u * 14 and last["bf16, Kahan"] < 2 * u and last["bf16, fp32 accumulator"] <= u
print({name: f"{value:.1e}" for name, value in last.items()})

# %% [markdown]
# ## 2.3 Does the update land?
#
# Training adds many small numbers to each weight. You know what that means.
#
# **Predict.** A bfloat16 weight of 1.0, AdamW with a learning rate of 1e-4, and 1000 steps that all push it the same
# way. In float32 it would go down to 0.90.

# %%
quiz("02.thousand_steps")


# %% tags=["nbval-check-output", "R92"]
def walk(start, dtype, steps=1000):
    """Weights after AdamW steps at lr 1e-4 with gradient 1."""
    weight = torch.nn.Parameter(torch.as_tensor(start, device=device).to(dtype, copy=True))
    optimizer = torch.optim.AdamW([weight], lr=1e-4, foreach=False, fused=False)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight.detach().float()


print(f"float32 {walk(1.0, torch.float32).item():.2f}, bfloat16 {walk(1.0, torch.bfloat16).item()}")

# %% [markdown]
# **Explain.** Below 1.0 the next bf16 number is $1 - 2^{-8} \approx 0.9961$. A step of about 0.0001 is far less than
# half the way there, so 0.9999 is rounded back to 1.0. A thousand times.
#
# Drag the weight, the update and the format. Find the largest weight that an update of $-10^{-4}$ still moves in
# bf16; then switch to fp16.

# %%
from ampedu.widgets import update_explorer

update_explorer("bf16", weight=1.0, update=-1e-4)

# %% [markdown]
# There is an exact rule. Take *all* 128 bf16 weights of one binade, and updates that are a fixed fraction of each.


# %% tags=["nbval-check-output"]
def share_moved(dtype, mantissa_bits, ratio, sign):
    """Of all weights from 1 up to 2: how many change when sign * ratio * weight is added and the sum rounded."""
    count = 2**mantissa_bits
    weights = 1 + torch.arange(count, device=device) / count
    moved = (weights * (1 + sign * ratio)).to(dtype).float() != weights
    return f"{moved.float().mean().item():6.1%}"


for e in (-10, -9, -8.5, -8, -7.9):
    print(f"bf16 2^{e:<5}", *(share_moved(torch.bfloat16, 7, 2.0**e, sign) for sign in (1, -1)))
for e in (-13, -12, -11.5, -11, -10.9):
    print(f"fp16 2^{e:<5}", *(share_moved(torch.float16, 10, 2.0**e, sign) for sign in (1, -1)))

# %% [markdown]
# Left column up, right column down. For normal bf16 weights, **an update of up to $2^{-9}$ of the weight is always
# lost, and one of more than $2^{-8}$ is always felt**. For fp16 the two bounds are $2^{-12}$ and $2^{-11}$. In
# between it depends on the mantissa, since the gap stays the same within a binade, while the weight doubles.

# %%
from ampedu.plots import landing_zones

landing_zones(["bf16", "fp16"])

# %% [markdown]
# $2^{-8}$ is 0.4 %. Adam moves a weight by about the learning rate: $10^{-4}$ at a weight of 0.1 is 0.1 %, lost in
# bf16. Micikevicius et al. give this reason for keeping float32 weights, with fp16's factor of 2048. (The line is for
# updates away from zero. Toward zero, an exact power of two needs only half as much: its lower neighbor is half as
# far away.)
#
# So small weights can move, and large ones cannot. Where is the border at our learning rate?

# %% tags=["R92"]
starts = 2.0 ** torch.linspace(-8, 0, 65)
ends = {dtype: walk(starts, dtype).cpu() for dtype in (torch.float32, torch.bfloat16)}
stays = ends[torch.bfloat16] == starts.bfloat16().float()
print("moved: up to", starts[~stays].max().item(), " unmoved: from", round(starts[stays].min().item(), 4))
assert stays[starts > 2**-5].all() and not stays[starts <= 2**-5].any()

# %%
from ampedu.plots import curves

curves(
    starts,
    {"fp32": ends[torch.float32], "bf16": ends[torch.bfloat16], "start": starts},
    title="1000 AdamW steps of 1e-4, all in one direction",
    xlabel="weight before",
    ylabel="weight after",
    xscale="log2",
    alt="Weight after 1000 steps against weight before. In fp32 every weight has moved down by about 0.1. In bf16 "
    "weights above 2^-5 lie on the line of no change; smaller ones have moved, and all of them stopped at "
    "-2^-5.",
)

# %% [markdown]
# Every fp32 weight has gone down by about 0.1. In bf16, weights above $2^{-5} \approx 0.03$ have not moved at all,
# and the smaller ones walked through zero until they reached $-2^{-5}$, where the same wall stands. Those that move
# do not take the step that was asked for: they move in whole ulps.

# %% tags=["nbval-check-output"]
path = torch.stack([walk(0.02, torch.bfloat16, steps) for steps in range(5)])
print("asked for 0.0001, moved", [f"{step:.6f}" for step in path.diff().abs().tolist()])

# %% [markdown]
# An exponential moving average of the weights is the same trap with a fixed ratio. At a decay of 0.999 it moves by
# 0.001 of the distance to the weights (that is what `lerp_` does), and $0.001 < 2^{-9}$:

# %% tags=["nbval-check-output"]
for dtype in (torch.float32, torch.bfloat16):
    average = torch.ones((), dtype=dtype, device=device)
    for _ in range(2000):
        average.lerp_(torch.zeros_like(average), 0.001)  # the weights are 0 now
    print(f"{dtype}: {average.item():.2f}")

# %% [markdown]
# ## 2.4 Three rescues
#
# A least-squares problem with 64 weights: $y = Xw$, no noise, so the loss can reach zero. Five such problems are
# solved at once, to see how much is luck. The model always computes with bf16 weights; what differs is how the update
# is stored.

# %%
make = torch.Generator(device).manual_seed(seed)
X = torch.randn(5, 256, 64, generator=make, device=device)
y = X @ torch.randn(5, 64, 1, generator=make, device=device)


# %%
def bf16(x):
    return x.bfloat16().float()


# %% [markdown]
# Each rule gets the stored weights, the update, and one spare tensor. Read them closely: this is all there is to it.

# %%
from ampedu.formats import round_to

rules = {
    "nearest": lambda w, update, spare: (bf16(w + update), spare),
    "master": lambda w, update, spare: (w + update, spare),  # w stays float32
    "stochastic": lambda w, update, spare: (round_to(w + update, "bf16", mode="stochastic", generator=make), spare),
}


def kahan_rule(w, update, lost):
    wanted = bf16(bf16(update) + lost)
    new = bf16(w + wanted)
    return new, bf16(wanted - bf16(new - w))


rules["Kahan"] = kahan_rule

# %% [markdown]
# - **Master weights**: the optimizer owns a float32 copy, and the model gets it rounded. Autocast does this from the
#   other side: the parameters are float32, and the rounded copy is made once in each region.
# - **Stochastic rounding**: up or down by chance, with a probability that makes the *expected* result exact. No
#   update is lost on average, no memory is needed; the price is noise.
# - **Kahan**: a second number holds what the addition lost (2.2 has more), here one more bf16 tensor.


# %%
def solve(rule, steps=4000, lr=0.002, batch=16):
    """Mean squared error of the five problems, every 100 steps: shape (40, 5)."""
    w = torch.zeros(5, 64, 1, device=device)
    spare, history = torch.zeros_like(w), []
    for step in range(steps):
        rows = slice(step * batch % 256, step * batch % 256 + batch)
        gradient = 2 / batch * X[:, rows].mT @ (X[:, rows] @ bf16(w) - y[:, rows])
        w, spare = rule(w, -lr * gradient, spare)
        if step % 100 == 99:
            history.append((X @ bf16(w) - y).square().mean((1, 2)))
    return torch.stack(history).cpu()


histories = {name: solve(rule) for name, rule in rules.items()}

# %%
curves(
    range(100, 4001, 100),
    {name: history.median(1).values for name, history in histories.items()},
    title="bf16 weights, four ways to store the update",
    xlabel="steps",
    ylabel="squared error (median)",
    yscale="log",
    alt="Loss against steps. Rounding to nearest stalls above 1; master weights and Kahan end near 3e-4, "
    "stochastic rounding near 1e-3.",
)

# %% tags=["R92"]
final = {name: history[-1] for name, history in histories.items()}
for name, values in final.items():
    print(f"{name:10} {values.min():.1e} … {values.max():.1e}")
assert final["nearest"].min() > 0.5
assert all(final[name].max() < 5e-3 for name in ("master", "stochastic", "Kahan"))
assert final["master"].median() < final["stochastic"].median()

# %% [markdown]
# **Explain.** Rounding to nearest stalls three to four powers of ten too high. It did learn at first, while gradients
# were large. All three rescues work. Master weights and Kahan end in the same place, set by the bf16 weights that the
# model sees; stochastic rounding ends a little higher, since it never stops shaking.
#
# ### "true" and "mixed"
#
# Many trainers offer both `bf16-true` (`model.bfloat16()`) and `bf16-mixed` (autocast). Now you know what the
# difference is: who owns the weights that the optimizer updates.


# %%
def learn_sine(mode, steps=500):
    """Loss at every step of a small network, by precision mode."""
    torch.manual_seed(seed)
    x = torch.linspace(-1, 1, 64)[:, None]
    layers = [torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)]
    dtype = torch.bfloat16 if mode == "bf16-true" else torch.float32
    net, target, x = torch.nn.Sequential(*layers).to(device, dtype), torch.sin(6 * x).to(device), x.to(device, dtype)
    optimizer, losses = torch.optim.AdamW(net.parameters(), lr=3e-4), []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mode == "bf16-mixed"):
            out = net(x)
        loss = (out.float() - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% tags=["R93"]
runs = {mode: learn_sine(mode) for mode in ("fp32", "bf16-mixed", "bf16-true")}
print({mode: f"{losses[-1]:.2f}" for mode, losses in runs.items()})
assert runs["bf16-mixed"][-1] < 1.2 * runs["fp32"][-1]
assert runs["bf16-true"][-1] > 1.3 * runs["bf16-mixed"][-1]

# %%
curves(
    range(1, 501),
    runs,
    title="Same network, same seed: mixed follows float32, true falls behind",
    xlabel="steps",
    ylabel="mean squared error",
    yscale="log",
    alt="Loss against steps. float32 and bf16-mixed lie on each other; bf16-true falls more slowly and ends "
    "clearly higher.",
)

# %% [markdown]
# ## 2.5 A constant that is zero
#
# Adam divides by $\sqrt{v} + \varepsilon$, with $\varepsilon = 10^{-8}$ against a division by zero.
#
# **Predict.** The whole model is float16 (`model.half()`), and a gradient is 0.001. What does one step of Adam make
# of a weight of 1?

# %%
quiz("02.adam_half")


# %% tags=["nbval-check-output", "C59", "R53"]
def adam(gradient, dtype=torch.float16, steps=1, **options):
    """Weights after each Adam step at lr 1e-3, from 1, with a constant gradient."""
    weight = torch.nn.Parameter(torch.ones((), dtype=dtype, device=device))
    optimizer = torch.optim.Adam([weight], lr=1e-3, foreach=False, **options)
    path = []
    for _ in range(steps):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        path.append(weight.item())
    return path


for gradient in (0.0, 0.001, 0.0054, 0.0056, 1.0, 8000.0, 8200.0):
    print(f"gradient {gradient:<7} weight {adam(gradient, fused=False)[0]:.4f}")

# %% [markdown]
# **Explain.** Two constants fail together. $v$ is $0.001 \, g^2$ after the first step. For $|g|$ below about 0.0055
# that is less than $2^{-25}$, which float16 rounds to 0. And $\varepsilon$ is less than that as well.

# %% tags=["nbval-check-output", "C59"]
print("epsilon in float16:", torch.tensor(1e-8).half().item())
for gradient in (0.001, 0.0054, 0.0056, 8000.0, 8200.0):
    print(f"v for gradient {gradient}: {torch.tensor(0.001 * gradient**2).half().item():.3g}")

# %% [markdown]
# So Adam divides by zero: $-\infty$, or NaN where the gradient is 0 too. "Pure float16 fails by overflow" is the
# usual story, and it is the rarer one. It exists at the other end: above 8100 or so $v$ is infinite, and the update
# is 0.
#
# ### What `fused=True` changes
#
# The fused kernel takes 16-bit tensors, computes in float32, and rounds what it stores. $\varepsilon$ is not zero any
# more. Is all well?

# %% tags=["C59", "R53"]
exact = adam(0.001, torch.float32, steps=1000)
fused = adam(0.001, steps=1000, fused=True)
print(f"after 1 step {fused[0]:.4f}, after 100 {fused[99]:.2f}, after 1000 {fused[-1]:.1f}; float32 {exact[-1]:.4f}")
assert torch.tensor(fused).isfinite().all() and fused[-1] < -5
print(f"longest possible step: {0.001**-0.5:.0f} times the learning rate")

# %%
curves(
    range(1, 1001),
    {"fp32": exact, "fp16, fused": fused, "fp16, not fused": adam(0.001, steps=1000, fused=False)},
    title="Adam with a gradient of 0.001: one step of 0.001 at a time?",
    xlabel="steps",
    ylabel="weight",
    alt="Weight against steps. float32 goes from 1 to 0 in a straight line. Fused float16 starts the same and "
    "then speeds up, to below -15. Without fused it is minus infinity or NaN at every step.",
)

# %% [markdown]
# It is finite and wrong. $v$ is still stored as 0, so every step starts from an empty memory: $v = 0.001 \, g^2$.
# Adam's bias correction divides by $1 - 0.999^t$, which makes up for an empty memory at first, and no longer does
# later. So the steps grow, towards $1/\sqrt{0.001}$ times the learning rate. A larger $\varepsilon$ removes the NaN,
# not the fault: $v$ is still 0. **The cure is float32 parameters**, whose optimizer state is float32 as well.
#
# bf16 has the range for $\varepsilon$ and for $v$, and pays in precision. With gradients of 1, $v$ should go to $1 -
# 0.999^{1000} = 0.632$:

# %% tags=["C59"]
for fused in (False, True):
    weight = torch.nn.Parameter(torch.ones((), dtype=torch.bfloat16, device=device))
    optimizer = torch.optim.Adam([weight], lr=1e-4, foreach=False, fused=fused)
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    v = optimizer.state[weight]["exp_avg_sq"].item()
    print(f"fused={fused}: v = {v}, on paper {1 - 0.999**1000:.3f}")
    assert v < 0.6

# %% [markdown]
# It stalls like every other running average with a decay of 0.999, only at another place in each implementation.
#
# ### What really happens after `.half()`
#
# "Calling `.half()` on the model gives NaN in softmax and layer_norm." Try it, on inputs of an ordinary size:

# %% tags=["nbval-check-output", "C47"]
torch.manual_seed(seed)
layers = [torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8), torch.nn.Softmax(-1)]
half = torch.nn.Sequential(*layers).to(device).half()
out = half(10 * torch.randn(64, 16, device=device).half())
print("all finite:", out.isfinite().all().item())

# %% [markdown]
# No NaN: these kernels compute in float32 inside. The real faults of `.half()` are those of this lesson, updates that
# do not land and constants that are zero. And a `GradScaler` notices. Or not, if the optimizer is fused:


# %% tags=["nbval-check-output", "C47"]
def scaled_step(fused):
    weight = torch.nn.Parameter(torch.ones((), dtype=torch.float16, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.25, fused=fused)
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    scaler.scale(2 * weight).backward()
    try:
        scaler.step(optimizer)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return f"no complaint, the weight is {weight.item()}"


print(scaled_step(fused=False))
print(scaled_step(fused=True))

# %% [markdown]
# ## 2.6 Overflow on the way to a small result
#
# A probability is at most 1. Computing one can still overflow, since $e^{12}$ is more than float16 can hold.


# %%
def naive_softmax(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)


# %% [markdown]
# The cure is to subtract the largest score first. The result is the same, since the factor cancels, and no exponent
# is above 0.


# %%
def stable_softmax(x):
    return naive_softmax(x - x.amax(-1, keepdim=True))


# %% [markdown]
# Three scores, 0, 1 and 2, and a number that is added to all of them. It should change nothing.

# %%
shifts = torch.arange(-24, 25, device=device)
scores = (shifts[:, None] + torch.arange(3, device=device)).half()
top = {"naive": naive_softmax(scores)[:, -1], "stable": stable_softmax(scores)[:, -1]}
curves(
    shifts,
    top,
    title="Softmax in float16: the largest of three probabilities",
    xlabel="added to all three scores",
    ylabel="probability",
    alt="The stable softmax is a flat line at 0.67. The naive one leaves it below -14, is NaN from -20 down, drops to "
    "0 at 9 and is NaN from 10 on.",
)

# %% tags=["nbval-check-output"]
exact = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).softmax(0)[-1].item()
print("stable, error below 1e-3 everywhere:", ((top["stable"] - exact).abs() < 1e-3).all().item())
print("naive, NaN at shifts", shifts[top["naive"].isnan()].tolist())
print("naive, 0 at shift", shifts[top["naive"] == 0].tolist())

# %% [markdown]
# Look at shift 9: the sum is infinite, no term is, and every probability is 0. No NaN warns you. `torch.softmax`
# subtracts the maximum, and so does `torch.logsumexp`: $\log \sum e^{x_i} = m + \log \sum e^{x_i - m}$.

# %% tags=["nbval-check-output"]
for shift in (-20, 0, 20):
    x = (shift + torch.arange(3, device=device)).half()
    naive, stable = x.exp().sum().log().item(), torch.logsumexp(x, 0).item()
    print(f"shift {shift:3}: naive {naive:.1f}, torch.logsumexp {stable:.1f}")

# %% [markdown]
# **Variance** has two formulas that are equal on paper: the mean of the squares minus the square of the mean, and the
# mean of the squared distances. Squares of 256 and more overflow; and long before that, two large numbers are
# subtracted whose small difference is all that matters.

# %%
torch.manual_seed(seed)
deviation = torch.randn(4096, device=device)
means = [2.0 ** (k / 2) for k in range(-4, 21)]
lists = [(mean + deviation).half() for mean in means]

# %%
one_pass = [((x * x).mean() - x.mean() ** 2).item() for x in lists]
two_pass = [(x - x.mean()).square().mean().item() for x in lists]

# %%
curves(
    means,
    {"squares": one_pass, "distances": two_pass},
    title="Variance of 4096 float16 numbers from squares and from distances; the truth is 1",
    xlabel="their mean",
    ylabel="variance",
    xscale="log2",
    alt="Against the mean of the numbers: from distances, the variance stays at 1; from squares, it strays from a mean "
    "of about 8 on, is often 0 from 64 on, and NaN from 256 on.",
)

# %%
truth = deviation.var().item()
assert all(abs(value - truth) < 0.1 for value in two_pass)
assert max(abs(value - truth) for value in one_pass[:20]) > 0.5
assert torch.tensor(one_pass[20:]).isnan().all()  # a mean of 256 and more: inf - inf

# %% [markdown]
# Between a mean of 8 and 256 the first formula gives anything: 0, 2, with some seeds a negative number. A layer that
# divides by the root of it makes infinity or NaN of that.
#
# **Sums overflow, too.** The Dice loss of a segmentation model sums a mask. 512 × 512 ones are 262 144.


# %% tags=["nbval-check-output", "R05"]
def dice_loss(p, mask):
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)


mask = torch.ones(512, 512, dtype=torch.float16, device=device)
p = 0.9 * mask
print("sum", mask.sum().item(), " mean", mask.mean().item(), " dice", dice_loss(p, mask).item())
print(f"in float32: dice {dice_loss(p.float(), mask.float()).item():.3f}")

# %% [markdown]
# The accumulator was wide; the *result* has to fit into float16, and does not. `.float()` before the sum cures it.
# Autocast on CUDA makes `sum` return float32, so the bug hides there until somebody moves the loss out of the region.
# Autocast on the CPU does not:

# %% tags=["nbval-check-output", "R05"]
with torch.autocast("cpu", dtype=torch.float16):  # on the CPU
    print(mask.cpu().sum().item(), dice_loss(p.cpu(), mask.cpu()).item())

# %% [markdown]
# ## 2.7 Masks
#
# Attention hides what must not be seen by a very negative score. Three queries, three keys; the last query may see
# nothing, as padding does.
#
# **Predict.** The usual constant for that is −1e9.

# %%
quiz("02.mask")

# %% tags=["nbval-check-output", "R100"]
scores = torch.zeros(3, 3, dtype=torch.float16, device=device)
visible = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.bool, device=device)
try:
    scores.masked_fill(~visible, -1e9)
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")
print(torch.where(visible, scores, -1e9).tolist())

# %% [markdown]
# The same constant raises in one spelling and becomes $-\infty$ in another (lesson 1.7 says which do what). $-\infty$
# looks right, and is right for queries 0 and 1. For query 2 the maximum is $-\infty$ as well, and softmax subtracts it:
# $-\infty - (-\infty)$ is NaN. A third spelling is popular, too:

# %% tags=["R100"]
lowest = torch.finfo(scores.dtype).min
hidden = (~visible).half()
spellings = {
    "where(…, -1e9)": torch.where(visible, scores, -1e9),
    "+ hidden × tensor(-1e9)": scores + hidden * torch.tensor(-1e9, device=device).half(),
    "finfo(dtype).min": scores.masked_fill(~visible, lowest),
}
rows = {name: masked.softmax(-1) for name, masked in spellings.items()}
bad = {name: row.isnan().any(-1).tolist() for name, row in rows.items()}
assert list(bad.values()) == [[False, False, True], [True, True, True], [False, False, False]]

# %%
from ampedu.plots import matrices

matrices(
    rows,
    title="Softmax rows behind three masks, float16",
    rows="query",
    columns="key",
    alt="Three 3 by 3 matrices of probabilities. With where and -1e9 the fully masked row is NaN. With a mask "
    "multiplied by a tensor of -1e9 all rows are NaN, since 0 times infinity is NaN. With finfo.min the fully "
    "masked row is uniform.",
)

# %% [markdown]
# In the middle, $0 \times (-\infty)$ poisons even what is visible. On the right all is finite; the last row is a
# meaningless average, but it cannot spread, and its loss is masked anyway. Set the mask **once**, though: adding
# `finfo.min` to a score of −20 gives $-\infty$ again.

# %% tags=["nbval-check-output", "R100"]
low = torch.tensor([-10.0, -20.0], dtype=torch.float16, device=device)
print((low + lowest).tolist())

# %% [markdown]
# Best of all, hand a boolean mask to `scaled_dot_product_attention` and let it choose. For a query that sees nothing it
# answers 0 on the CPU:

# %% tags=["nbval-check-output", "R100"]
q = torch.ones(1, 1, 3, 8, dtype=torch.float16)  # on the CPU
attended = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=visible.cpu())
print("query 0:", attended[0, 0, 0].unique().tolist(), " query 2:", attended[0, 0, 2].unique().tolist())

# %% [markdown]
# ## 2.8 Large angles
#
# Rotary embeddings turn each pair of features by position × frequency. The last pairs turn slowly, the first pair by
# a full radian per token. What if the angle is computed in 16 bits? The *result*, a cosine, fits well enough.

# %% tags=["R01"]
positions, pairs = torch.arange(2048, device=device), torch.arange(32, device=device)
frequency = 10_000.0 ** -(pairs.double() / 32)  # 64 features, base 10 000, as usual
exact = (positions[:, None].double() * frequency).cos()
tables = {name: (positions[:, None].to(d) * frequency.to(d)).cos() for name, d in dtypes.items() if d != torch.float32}
tables["fp32, cast at the end"] = (positions[:, None].float() * frequency.float()).cos().bfloat16()
worst = {name: (table.double() - exact).abs().max().item() for name, table in tables.items()}
print({name: f"{value:.2g}" for name, value in worst.items()})
assert 0.7 < worst["fp16"] < 0.85 and worst["bf16"] > 1.99 and worst["fp32, cast at the end"] < 2**-8

# %% [markdown]
# The largest possible error of a cosine is 2, and bf16 gets there. Move through the pairs: where does each format
# begin to be usable?

# %%
from ampedu.widgets import slider


def draw_pair(pair, window=slice(2000, 2048)):
    lines = {"exact": exact, **{name: tables[name] for name in ("fp16", "bf16")}}
    return curves(
        positions[window],
        {name: table[window, pair] for name, table in lines.items()},
        title=f"Cosine of the angle, pair {pair}: {frequency[pair].item():.2g} radian per position",
        xlabel="position",
        ylabel="cosine",
        alt=f"Cosine against position for pair {pair}: exact, and with angles computed in fp16 and in bf16.",
    )


# %%
slider(draw_pair, values=[0, 1, 2, 4, 8, 12, 16, 24, 31], start=2, label="pair", alt="Cosine against position")

# %% [markdown]
# **Explain.** The angle is as large as the position. At 2000 neighboring bf16 numbers are 8 apart, more than a full
# turn of 6.28; in fp16 they are 1 apart. Precision is relative, but a cosine looks at the absolute size of the angle,
# modulo a turn. So compute positions, frequencies and angles in float32, and round only the cosine. `model.half()`
# converts the frequency buffer as well: that is how this bug gets in.

# %% tags=["nbval-check-output", "R01"]
from ampedu.formats import ulp

print("gap at 2000:", {name: ulp(2000.0, name) for name in ("fp32", "fp16", "bf16")})

# %% [markdown]
# ## 2.9 When the forward pass overflows
#
# Fine-tuning T5 in float16 gave NaN losses for years. The model was trained in bf16, where activations of 70 000 are
# nothing special. Here is the same in small: a block with weights that make its output large, and a norm behind it
# that would make it small again.


# %%
class Block(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)
        self.head = torch.nn.Linear(width, 1, bias=False)
        torch.nn.init.constant_(self.up.weight, 1.0)
        torch.nn.init.constant_(self.down.weight, 9 / 32)
        torch.nn.init.zeros_(self.head.weight)

    def forward(self, x):
        self.hidden = self.down(self.up(x).relu())
        large = self.hidden.float()
        return self.head(large / large.square().mean(-1, keepdim=True).sqrt())


# %% tags=["nbval-check-output", "R06"]
x = torch.full((8, 64), 16.0, device=device)
for dtype in (torch.float16, torch.bfloat16):
    block = Block().to(device)
    with torch.autocast(device, dtype=dtype):
        block(x)
    print(f"{dtype}: the block's output is {block.hidden.max().item()}")

# %% [markdown]
# **Predict.** "NaN in float16? Use a GradScaler." Will it find a scale that works?

# %%
quiz("02.forward_overflow")


# %% tags=["R06"]
def train(dtype, steps=24, scaled=True):
    """Losses, loss scales and the trained block."""
    block = Block().to(device)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.002)
    scaler = torch.amp.GradScaler(device, enabled=scaled)
    losses, scales = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = (block(x).float() - 3).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, block


# %% tags=["nbval-check-output", "R06"]
losses, scales, block = train(torch.float16)
print(f"loss {losses[0]} … {losses[-1]}, scale {scales[0]:g}, {scales[1]:g}, {scales[2]:g} … {scales[-1]:g}")
pairs = zip(block.parameters(), Block().to(device).parameters(), strict=True)
print("every weight as it was:", all(torch.equal(trained, fresh) for trained, fresh in pairs))

# %%
bf16_losses, _, _ = train(torch.bfloat16, scaled=False)
assert bf16_losses[-1] < 0.001 * bf16_losses[0]
curves(
    range(1, 25),
    {"fp16, loss scale / 65536": [scale / 65536 for scale in scales], "fp16, loss": losses, "bf16, loss": bf16_losses},
    title="The scaler halves, and halves, and halves",
    xlabel="steps",
    ylabel="loss, or scale / 65536",
    yscale="log",
    alt="Against steps: the float16 loss is NaN at every step while the loss scale halves at every step, to 2^-24 "
    "of its start. The bf16 loss falls.",
)

# %% [markdown]
# **Explain.** The loss scale multiplies the *loss*. It moves gradients within the format's range, in the backward
# pass. The infinity arises in the forward pass, before there is a loss. So the scaler skips every step and halves for
# ever; nothing is trained. A scale that falls at every step is the mark of this fault: look for the first tensor that
# is not finite. What helps is range: bf16, or float32 for this block, or smaller activations.

# %% tags=["nbval-check-output", "R06"]
block = Block().to(device)
with torch.autocast(device, dtype=torch.float16):
    a = block.up(x).relu()
    with torch.autocast(device, enabled=False):  # a float32 island
        print("island", torch.nn.functional.linear(a.float(), block.down.weight).max().item())
    print("clamp ", block.down(a).clamp(-64000, 64000).max().item())

# %% [markdown]
# The T5 model of the transformers library clamps in this way. It keeps the numbers finite and the order of magnitude
# right, and it cuts the gradient of all that was clamped.
#
# ### Old spellings
#
# Code on the web still says `torch.cuda.amp.GradScaler()`. It works, with a warning. The new name has the device as
# its *first* argument, and that is a trap for those who pass the initial scale by position:

# %% tags=["shows-deprecated", "nbval-check-output", "R101"]
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.cuda.amp.GradScaler(enabled=False)
print({warning.category.__name__ for warning in caught})
print(torch.amp.GradScaler(1024.0).get_scale(), torch.amp.GradScaler(device, init_scale=1024.0).get_scale())

# %% [markdown]
# `GradScaler(1024.0)` takes 1024.0 for the device, says nothing, and starts at 65 536.
#
# ## 2.10 If you knew all this
#
# **Rounding up can be worse than losing.** bf16 weights from $2^{-7}$ to $2^{-5}$ did move in 2.3, by 0.000122 per
# step, where 0.0001 was asked for: 22 % too fast. With a learning rate of 0.00007 at a weight of 0.02 it is 74 %. A
# learning-rate schedule in pure bf16 is a staircase: the step is 0, 1 or 2 ulps.

# %% tags=["nbval-check-output"]
from ampedu.updates import update_lands

for lr in (5e-5, 7e-5, 1e-4, 1.5e-4, 2e-4):
    landed = update_lands(0.02, -lr, "bf16")
    print(f"asked for {lr:.6f}, moved {landed.weight - landed.result:.6f}")

# %% [markdown]
# **The order of a float32 sum matters as well**, only later. This is why two correct GPU kernels, or the same kernel
# with another number of threads, differ in the last digits; it is no bug, and no reason to distrust mixed precision.

# %% tags=["nbval-check-output"]
big, small = torch.tensor([2.0**24], device=device), torch.ones(2, device=device)
print(((big + small[0]) + small[1]).item(), (big + (small[0] + small[1])).item())

# %% [markdown]
# ## What to take away
#
# - A running total stops growing when the next number is below half a gap: fp16 counts to 2048, bf16 to 256. `sum`
#   and `@` accumulate wider, usually in float32; loops of your own, and some kernels, do not.
# - bf16: an update of up to $2^{-9}$ of a weight is always lost, one above $2^{-8}$ always felt; fp16: $2^{-12}$ and
#   $2^{-11}$. Keep weights and optimizer state in float32, as autocast does; else use stochastic rounding or Kahan.
# - $10^{-8}$ is 0 in float16. With small gradients, whose square is 0 too, Adam then divides by zero; `fused=True`
#   hides it and steps too far.
# - Subtract the maximum before `exp`, the mean before squaring; `.float()` before a long sum; `finfo.min`, once, for
#   masks; angles in float32.
# - A loss scale cures gradients that are too small. It cannot cure a forward pass that overflows.
#
# One last question before the lab.

# %%
quiz("02.which_cure")

# %% [markdown]
# **Now you:** [lab 2](../labs/02_where_precision_is_lost.ipynb). You write the dot product, the optimizer, the
# rounding and the softmax that survive.
#
# **Primary sources.** [Kahan 1965][kahan], *Further remarks on reducing truncation errors* · [Higham 2002][higham],
# *Accuracy and Stability of Numerical Algorithms*, chapter 4: summation · [Micikevicius et al. 2017][mixed], section
# 3.1: master weights · [Kalamkar et al. 2019][kalamkar]: training with bfloat16 · [Zamirai et al. 2020][zamirai]:
# stochastic rounding and Kahan for bf16 weights · [Adam in PyTorch][adam] · [numerical accuracy in PyTorch][accuracy]
#
# [kahan]: https://doi.org/10.1145/363707.363723
# [higham]: https://doi.org/10.1137/1.9780898718027
# [mixed]: https://arxiv.org/abs/1710.03740
# [kalamkar]: https://arxiv.org/abs/1905.12322
# [zamirai]: https://arxiv.org/abs/2010.06192
# [adam]: https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
# [accuracy]: https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html
