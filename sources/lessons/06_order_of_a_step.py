# %% [markdown]
# # 6 The order of a step
#
# Five calls make an AMP step. Swap two of them, and nothing raises, nothing warns, and the weights move 65 536 times
# too little. In this lesson you run every wrong order and measure what it costs.
#
# **You will be able to** write the calls in their order and say why · read what a wrong order does from the size of an
# update · accumulate gradients so that they equal those of the big batch · train two networks with one scaler ·
# build a gradient penalty · name the first mistake in a loop that runs.
#
# *45 minutes · after lessons [4](04_autocast.ipynb) and [5](05_dynamic_loss_scaling.ipynb) · runs in 10 s on two
# cores · only 20 minutes? Read 6.1, 6.2, 6.6 and 6.10*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("float16 autocast and GradScaler run for real on every device; times play no part here.")

# %% [markdown]
# ## 6.1 The right order, and why it is this one
#
# A small network, its data, and an optimizer: the same at every call of `fresh`, so that only the order of the calls
# differs from now on.

# %%
import torch
import torch.nn.functional as F
from torch import nn

kind = torch.device(device).type


def fresh(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    x, y = torch.randn(64, 16).to(device), 10 * torch.randn(64, 8).to(device)
    return net, x, y, optimizer(net.parameters(), **{"lr": 0.5, **options})


# %% [markdown]
# Here is the whole step, with the norm of all gradients together after each call. `max_norm` is 1.

# %%
net, x, y, optimizer = fresh()
scaler = torch.amp.GradScaler(kind)
norms = {}


def norm_of(net):
    return torch.cat([p.grad.double().flatten() for p in net.parameters()]).norm().item()


# %%
with torch.autocast(kind, dtype=torch.float16):
    loss = F.mse_loss(net(x), y)
scaler.scale(loss).backward()
norms["backward"] = norm_of(net)
scaler.unscale_(optimizer)
norms["unscale_"] = norm_of(net)
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
norms["clip"] = norm_of(net)
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()

# %% tags=["C28"]
print({call: float(f"{norm:.6g}") for call, norm in norms.items()})
assert norms["backward"] == 65536 * norms["unscale_"] and norms["unscale_"] > 1 and abs(norms["clip"] - 1) < 1e-5

# %% [markdown]
# Read the three numbers, and the order explains itself:
#
# - `backward` leaves gradients that are 65 536 times too large, because the loss was.
# - `unscale_` divides them, and looks for infinities and NaN on the way.
# - Clipping compares a norm with `max_norm`. That makes sense in true units only, so it comes **after** `unscale_`.
# - `scaler.step` calls `optimizer.step()`, unless `unscale_` found something. Whatever shall act on this step's
#   gradients must have acted before. If nobody called `unscale_`, `scaler.step` does it first.
# - `update` picks the next scale, and forgets who was unscaled and who stepped. So it comes last, once.
#
# The picture from lesson 0 again. This time its dtypes are not typed in: `step_edges` reads them off a traced step of
# this network, up to `.grad`.

# %%
from ampedu.trace import step_edges, trace_dtypes

net, x, y, optimizer = fresh()
scaler = torch.amp.GradScaler(kind)
policy = "cuda" if kind == "cpu" else None
seen = step_edges(trace_dtypes(net, x, device_policy=policy, loss=lambda out: scaler.scale(F.mse_loss(out, y))))

# %% [markdown]
# Behind `.grad` it is our own calls that act, so we look at the gradient between them.

# %%
with torch.autocast(kind, dtype=torch.float16):
    loss = F.mse_loss(net(x), y)
weight = net[0].weight
scaler.scale(loss).backward()
seen["grad", "unscale"] = weight.grad.dtype
scaler.unscale_(optimizer)
seen["unscale", "clip"] = weight.grad.dtype
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
seen["clip", "step"] = weight.grad.dtype
scaler.step(optimizer)
scaler.update()
seen["step", "w"] = weight.dtype

# %%
from ampedu.plots import amp_step

amp_step("fp16", seen)

# %% tags=["nbval-check-output"]
half = [f"{start} → {end}" for (start, end), dtype in seen.items() if dtype == torch.float16]
print(f"{len(seen)} edges, float16 on {len(half)}:", ", ".join(half))

# %% [markdown]
# All that this lesson is about happens on float32 edges. So a wrong order costs no digits. It costs *factors*: a
# gradient is multiplied or divided once too often, or at the wrong time.
#
# ## 6.2 Every other order
#
# To try orders quickly, we give each call a short name and play a line of names. `backward` is the forward pass in
# its region, `scaler.scale(loss)` and `.backward()`; `raw_backward` scales the loss, and then calls `backward` on the
# old one.


# %%
def calls(net, x, y, optimizer, scaler, max_norm=1.0):
    def backward(scaled=True):
        with torch.autocast(kind, dtype=torch.float16):
            loss = F.mse_loss(net(x), y)
        scaled_loss = scaler.scale(loss)
        (scaled_loss if scaled else loss).backward()

    return {
        "backward": backward,
        "raw_backward": lambda: backward(scaled=False),
        "unscale_": lambda: scaler.unscale_(optimizer),
        "clip": lambda: nn.utils.clip_grad_norm_(net.parameters(), max_norm),
        "step": lambda: scaler.step(optimizer),
        "optimizer.step": lambda: optimizer.step(),
        "update": lambda: scaler.update(),
        "zero_grad": lambda: optimizer.zero_grad(),
    }


# %% [markdown]
# `play` returns how far the weights moved. It measures the *update*, not the loss: a loss that falls slowly can have
# many reasons, an update that is 65 536 times too small has one.


# %%
def flat(net):
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def play(order, loop, scaler=None, **options):
    """Norm of the update by one line of calls; loop is what `fresh` returned."""
    scaler = scaler or torch.amp.GradScaler(kind)
    known, before = calls(*loop, scaler, **options), flat(loop[0])
    for name in order.split():
        known[name]()
    return (flat(loop[0]) - before).norm().item()


right = "backward unscale_ clip step update"
sgd, adam = fresh(), fresh(torch.optim.Adam, lr=1e-3)
reference = {"SGD": play(right, sgd), "Adam": play(right, adam)}

# %% tags=["nbval-check-output", "C28"]
print({name: f"{norm:.3f}" for name, norm in reference.items()})

# %% [markdown]
# SGD with a learning rate of 0.5 and a gradient clipped to 1 moves the weights by 0.5.
#
# **Predict.** The most frequent mistake of all: the two lines of `unscale_` and clipping are swapped, or `unscale_`
# was never written, because `scaler.step` unscales anyway.

# %%
from ampedu.widgets import quiz

quiz("06.clip_first")

# %%
orders = {
    right: "the right one",
    "backward clip unscale_ step update": "clips scaled gradients",
    "backward clip step update": "clips scaled gradients",
    "backward unscale_ step clip update": "clips when all is done",
    "backward unscale_ clip update step": "`step` unscales again",
    "raw_backward unscale_ clip step update": "divides what was never multiplied",
    "backward optimizer.step": "never unscaled",
    "backward clip optimizer.step": "clips scaled gradients, never unscaled",
    "backward unscale_ zero_grad clip step update": "steps with nothing",
}


# %%
from IPython.display import Markdown


def attempt(action):
    """The result of action(), or the error as text."""
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))


# %% [markdown]
# Each order runs twice under SGD (the second time shows what PyTorch objects to), once under Adam, and once in a step
# whose gradients overflow.


# %%
def trial(order):
    """Update norms under SGD and Adam, the weights after an overflow, and the error in the second step."""
    loop, scaler = fresh(), torch.amp.GradScaler(kind)
    found = {"SGD": play(order, loop, scaler), "Adam": play(order, fresh(torch.optim.Adam, lr=1e-3))}
    again = attempt(lambda: play("zero_grad " + order, loop, scaler))
    found["second step"] = again.split(":")[0] if isinstance(again, str) else "no error"
    overflow = fresh()
    moved = play(order, overflow, torch.amp.GradScaler(kind, init_scale=2.0**60))
    found["overflow"] = "kept" if moved == 0 else "NaN" if moved != moved else "moved"
    return found


# %%
def digits(value):
    """A number in few characters that a table does not break."""
    return f"{value:.2g}".replace("-0", "\u2011") if value < 1e3 else f"{value:,.0f}".replace(",", "\u00a0")


def factor(ratio):
    return "0" if ratio == 0 else f"×\u00a0{digits(ratio)}" if ratio > 0.1 else f"÷\u00a0{digits(1 / ratio)}"


# %% tags=["R70", "C28"]
trials = {order: trial(order) for order in orders}
rows = []
for order, found in trials.items():
    parts = [text for name in reference for text in (digits(found[name]), factor(found[name] / reference[name]))]
    rows.append([f"`{order.replace(' ', ' · ')}`", *parts, found["overflow"], found["second step"], orders[order]])
table(["order", "SGD", "factor", "Adam", "factor", "weights after overflow", "second step", "what it does"], rows)

# %%
ratio = {order: found["SGD"] / reference["SGD"] for order, found in trials.items()}
tiny = [order for order in orders if 0.9 < ratio[order] * 65536 < 1.1]
silent = [order for order in tiny if trials[order]["second step"] == "no error"]

# %% tags=["nbval-check-output", "R70"]
print("65536 times too small:", *tiny, sep="\n  ")
print("and without an error in the second step either:", *silent, sep="\n  ")

# %% tags=["nbval-check-output"]
print("NaN after an overflow:", *[order for order, found in trials.items() if found["overflow"] == "NaN"], sep="\n  ")
print("too long:", *[order for order in orders if ratio[order] > 1.5], sep="\n  ")

# %% tags=["nbval-check-output"]
hidden = [order for order, found in trials.items() if 0.9 < found["Adam"] / reference["Adam"] < 1.1]
print("Adam's update is within a tenth of the right one in", len(hidden), "of", len(orders), "rows")

# %% [markdown]
# **Explain.** Go through the rows.
#
# - **Clip first.** The norm of the scaled gradients is in the hundred thousands, so they are cut to 1; then they are
#   divided by 65 536. (The table says a little more: float32 weights round an update that is so small.) PyTorch cannot
#   know that you meant another unit. The loss is flat, and you look for the mistake in the model.
# - **Clip last.** The update has been made. Clipping cuts gradients that nobody reads again.
# - **Update before step.** `update` forgets that the gradients were unscaled, and `step` divides them again. The next
#   iteration raises, because `step` was the last call that the scaler remembers.
# - **`optimizer.step()`** instead of `scaler.step(optimizer)`: nobody checks for infinities any more. The first
#   overflow is in the weights for good. With clipping in front, the size is even right.
# - **`zero_grad` too early**: the gradients are gone, their norm is 0, and the step is empty.
#
# Now look at the column of Adam: all but the empty step look right. That is 6.4.
#
# One more order raises no error in *any* step, and has the right size in each:

# %% tags=["nbval-check-output", "C28"]
found = trial("backward unscale_ clip optimizer.step update")
print("same update:", abs(found["SGD"] - reference["SGD"]) < 1e-6)
print(found["second step"], "in the second step; weights after an overflow:", found["overflow"])

# %% [markdown]
# It is right until a gradient overflows. `unscale_` finds it, and `optimizer.step()` does not ask. Since the scaler
# *looks* for the largest scale by provoking overflows (lesson 5), that day comes.
#
# ## 6.3 "Then the threshold is too high, and nothing is clipped"
#
# So says a common explanation of the swapped lines. Scaled gradients are larger, the threshold is not. It is the other
# way round: in true units the threshold is `max_norm / scale`, which is tiny, and nearly everything is clipped.

# %% tags=["nbval-check-output", "C29"]
print(f"max_norm 1, scale 65536: clipped at {1 / 65536:.1e} in true units")

# %% [markdown]
# How much is lost depends on the true norm. If it is `max_norm` or more, the right update has the length `max_norm`,
# so the factor is the scale. If it is less, the right way clips nothing, and the factor is
# norm · scale / `max_norm`. Both, on one gradient:


# %%
def clipped(gradient, max_norm):
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    nn.utils.clip_grad_norm_(parameter, max_norm)
    return parameter.grad


# %%
torch.manual_seed(seed)
gradient = torch.randn(1000).to(device)
gradient *= 8.0 / gradient.norm()

# %% tags=["nbval-check-output", "C29"]
for max_norm in (1.0, 8.0, 32.0):
    right_norm, wrong_norm = clipped(gradient, max_norm).norm(), clipped(65536 * gradient, max_norm).norm() / 65536
    expected = 65536 if max_norm <= 8 else 8 * 65536 / max_norm
    assert abs(right_norm / wrong_norm / expected - 1) < 1e-3
    print(f"true norm 8, max_norm {max_norm:g}: too small by a factor of {expected:.0f}")

# %% [markdown]
# Move the scale. The wrong curve is the right one, moved to the right by the factor `scale`. Only where `max_norm`
# exceeds norm · scale do both agree, because neither clips.

# %%
from ampedu.plots import curves
from ampedu.widgets import slider

thresholds = [10.0**k for k in range(-2, 8)]


# %%
def draw(scale):
    right_way = [clipped(gradient, m).norm().item() for m in thresholds]
    wrong_way = [clipped(scale * gradient, m).norm().item() / scale for m in thresholds]
    return curves(
        thresholds,
        {"unscale_, then clip": right_way, "clip, then unscale_": wrong_way},
        title=f"What is left of a gradient of norm 8, at a loss scale of {scale:g}",
        xlabel="max_norm",
        ylabel="norm after both calls",
        alt=f"Two curves that rise with max_norm and level off at 8. The wrong order needs a max_norm {scale:g} times "
        "as large for the same norm.",
        xscale="log",
        yscale="log",
    )


# %% tags=["C29"]
alt = "The norm that is left by the right and by the wrong order, against max_norm"
slider(draw, [1.0, 16.0, 256.0, 4096.0, 65536.0], 65536.0, label="loss scale", alt=alt)

# %% [markdown]
# ## 6.4 Why Adam hides it, and when it does not
#
# Adam divides the gradient by its own recent size. In its first step each weight moves by
# $\text{lr} \cdot g / (|g| + \varepsilon)$: a factor on $g$ cancels, as long as $|g|$ is far above
# $\varepsilon = 10^{-8}$.
#
# **Predict.** The gradient has the norm 1 after clipping. When it is clipped in the wrong order, its norm is
# $1/65536$. In a model of 1000 parameters Adam's step is then hardly shorter. And in a model of 10 million?

# %%
quiz("06.adam_size")


# %%
def adam_step(gradient):
    """Norm of Adam's first step, per unit of learning rate."""
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    torch.optim.Adam([parameter], lr=1.0).step()
    return parameter.detach().norm().item()


# %% tags=["nbval-check-output", "C29"]
shares = {}
for exponent in (3, 5, 7, 9):
    n = 10**exponent
    torch.manual_seed(seed)
    sample = (torch.randn(min(n, 10**6)) / n**0.5).to(device)  # a sample of a gradient of norm 1
    shares[n] = adam_step(sample / 65536) / adam_step(sample)
    print(f"{n:>13,} parameters: ×{shares[n]:.2f}")
assert 0.9 < shares[10**3] < 0.97 and 0.25 < shares[10**7] < 0.32 and shares[10**9] < 0.06

# %% [markdown]
# **Explain.** A gradient of norm 1 that is spread over $n$ parameters has elements around $1/\sqrt{n}$. Divided by
# 65 536, that is $5 \cdot 10^{-7}$ for a thousand parameters and $5 \cdot 10^{-9}$ for ten million: below
# $\varepsilon$. There $\varepsilon$ is the larger part of what Adam divides by, and it hides less and less. (These
# gradients are normally distributed. Those of a real model have another shape, and so somewhat other numbers.)
#
# So a test on a small model passes, and the large model learns slowly. Even in a small one there is a case that Adam
# does not forgive: weight decay as Adam's own `weight_decay`, which is *added to the gradient*. What is right and what
# is wrong then differ in direction. AdamW, which decays the weights apart, hides it as before.


# %%
def direction(optimizer, order):
    """The update, and the weights before it."""
    loop = fresh(optimizer, lr=1e-3, weight_decay=1e-4)
    before = flat(loop[0])
    play(order, loop)
    return flat(loop[0]) - before, before


# %% tags=["nbval-check-output", "C29"]
for optimizer in (torch.optim.Adam, torch.optim.AdamW):
    (good, _), (bad, weights) = (direction(optimizer, order) for order in (right, "backward clip step update"))
    pairs = {"the right update": good, "pure decay": -weights.sign()}
    cosines = {name: F.cosine_similarity(bad, other, dim=0).item() for name, other in pairs.items()}
    print(f"{optimizer.__name__:5} cosine of the wrong update with", {k: f"{abs(v):.1f}" for k, v in cosines.items()})

# %% [markdown]
# With Adam the data have lost their say: the update goes where the decay alone would go. This model shrinks its weights
# and learns nothing, at full speed.
#
# There is one mistake that the *scaler* hides. Leave out `zero_grad`:

# %% tags=["nbval-check-output"]
loop, scaler = fresh(lr=1e-3), torch.amp.GradScaler(kind)
forgot = [play("backward unscale_ step update", loop, scaler) for _ in range(3)]
loop, off = fresh(lr=1e-3), torch.amp.GradScaler(kind, enabled=False)  # each of its calls passes through
plain = [play("backward step", loop, off) for _ in range(3)]
print("with a scaler:   ", [round(norm / forgot[0], 1) for norm in forgot])
print("without a scaler:", [round(norm / plain[0], 1) for norm in plain])

# %% [markdown]
# What is left in `.grad` is in true units, and the new gradients come 65 536 times as large. After the division the
# old ones hardly count. Drop the scaler, as you would with bfloat16, and the third update is three times as long. And
# if the scaler has to skip a single step, its infinities stay in `.grad`, and it skips every step from then on:

# %% tags=["nbval-check-output"]
for order in ("zero_grad backward unscale_ step update", "backward unscale_ step update"):
    loop, scaler = fresh(lr=1e-3), torch.amp.GradScaler(kind, init_scale=2.0**40)
    moved = [play(order, loop, scaler) for _ in range(40)]
    print(f"{order:39}  a step in the last ten of 40: {any(moved[-10:])}")
assert scaler.get_scale() == 1 and not any(moved)  # without zero_grad: 40 skips

# %% [markdown]
# ## 6.5 What the scaler objects to
#
# The scaler keeps a small protocol, one stage for each optimizer: ready, unscaled, stepped; `update` sets all back to
# ready. Breaking it raises. Here are its messages, provoked one by one, and what they mean.

# %%
provoked = {
    "unscale_": "no `scaler.scale(loss)` ran yet",
    "backward unscale_ unscale_": "twice in one window: accumulation (6.6), or a helper that clips does it as well",
    "backward step unscale_": "too late: `step` has unscaled already. Or the `update` of the last step is missing",
    "backward step step": "two steps, or no `update` after the last one",
    "backward update": "`update` without a check: `optimizer.step()` was called instead of `scaler.step`",
    "backward zero_grad step": "no parameter of this optimizer has a gradient",
}

# %% tags=["nbval-check-output"]
errors = {order: attempt(lambda order=order: play(order, fresh())) for order in provoked}
table(["calls", "message", "meaning"], [[f"`{order}`", errors[order], provoked[order]] for order in provoked])

# %%
words = "_scale is None|unscale_() has already|after step()|step() has already|prior to update|for this optimizer"
assert all(word in message for word, message in zip(words.split("|"), errors.values(), strict=True))

# %% [markdown]
# The last message deserves a second look. "No inf checks were recorded for this optimizer" sounds like numbers, and
# means: **there was nothing to check**. The parameters are frozen, or the optimizer holds other ones than the model
# uses. Some unused parameters among others are fine:

# %%
net, x, y, _ = fresh()
unused = nn.Linear(3, 3).to(device)
both, only = (torch.optim.SGD(p, lr=0.5) for p in ([*net.parameters(), *unused.parameters()], unused.parameters()))

# %% tags=["nbval-check-output"]
print("some unused:", play("backward step update", (net, x, y, both)) > 0)
print("all unused: ", str(attempt(lambda: play("backward step update", (net, x, y, only)))).split(":")[0])

# %% [markdown]
# The cure for an optimizer that is frozen for a while: leave its `step` out for that while. Other optimizers have their
# checks, and `update` is content.
#
# ## 6.6 Accumulation
#
# Several small backward passes, the *micro-batches*, instead of a large one: together they are a *window*, and their
# gradients add up in `.grad`. Three questions: what to divide by, what to do with the rest, and where the scaler's
# calls go.
#
# ### Divide by what?
#
# "By the number of micro-batches", and that is right if they are equally large. Take four batches of text with 8, 24,
# 64 and 160 tokens, and a loss that is the mean over tokens.

# %%
torch.manual_seed(seed)
reader = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32)).to(device)
lengths = (8, 24, 64, 160)
texts = [(torch.randint(32, (n,), device=device), torch.randint(32, (n,), device=device)) for n in lengths]


# %%
def accumulated(loss_of, dtype=torch.float16):
    """The gradient of all texts, one after the other, in true units."""
    reader.zero_grad()
    for tokens, targets in texts:
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            loss = loss_of(reader(tokens).float(), targets)
        (1024 * loss).backward()  # a loss scale that stays
    return torch.cat([p.grad.double().flatten() for p in reader.parameters()]) / 1024


# %%
total = sum(lengths)
choices = {
    "mean, not divided": lambda out, targets: F.cross_entropy(out, targets),
    "mean / micro-batches": lambda out, targets: F.cross_entropy(out, targets) / len(texts),
    "sum / tokens of the window": lambda out, targets: F.cross_entropy(out, targets, reduction="sum") / total,
}
reader.zero_grad()
F.cross_entropy(reader(torch.cat([a for a, _ in texts])), torch.cat([b for _, b in texts])).backward()
big = torch.cat([p.grad.double().flatten() for p in reader.parameters()])

# %% [markdown]
# **Predict.** One of the three gives the gradient of the big batch.

# %%
quiz("06.divide")

# %% tags=["C30"]
gradients = {name: accumulated(loss_of) for name, loss_of in choices.items()}
wrong_by = {name: ((found - big).norm() / big.norm()).item() for name, found in gradients.items()}
for name, found in gradients.items():
    print(f"{name:28} norm ×{(found.norm() / big.norm()).item():.2f}, off by {wrong_by[name]:.1%}")

# %% tags=["nbval-check-output", "C30"]
print("equal to the big batch within 1 %:", [name for name, share in wrong_by.items() if share < 0.01])
assert wrong_by["mean / micro-batches"] > 0.5

# %% [markdown]
# **Explain.** The mean of means gives each *batch* the same weight, so a token in the shortest one counts 160 / 8 = 20
# times as much as one in the longest. Add up the sums, and divide by the tokens of the whole window. (Padding does not
# count. To divide the loss, you must know the tokens before the first backward pass: fetch the batches of a window
# first. Or divide the gradients at the end, after `unscale_` and before clipping.) With equal lengths both are the
# same:

# %% tags=["nbval-check-output", "C30"]
texts = [(tokens.repeat(20)[:160], targets.repeat(20)[:160]) for tokens, targets in texts]
total = 4 * 160
one, two = (accumulated(choices[name], None) for name in ("mean / micro-batches", "sum / tokens of the window"))
print("equal lengths: the same gradient:", torch.allclose(one, two, rtol=1e-4, atol=1e-7))

# %% [markdown]
# ### The rest of the epoch
#
# Eleven micro-batches, windows of eight: three are left. "The last window is incomplete, which gives slightly larger
# gradients; the impact is minimal." Let us see: one weight vector, the same batch every time, so that each full window
# moves it equally far.


# %%
def epochs(last_steps, divide=lambda size: 8, batches=11, window=8):
    """Lengths of all updates in two epochs, in units of a full window."""
    net, ones = nn.Linear(4, 1, bias=False).to(device), torch.ones(2, 4, device=device)
    optimizer, scaler, moves = torch.optim.SGD(net.parameters(), lr=0.5), torch.amp.GradScaler(kind), []
    for i in [*range(batches), *range(batches)]:
        rest = batches - batches % window
        size = window if i < rest else batches - rest
        with torch.autocast(kind, dtype=torch.float16):
            loss = net(ones).float().mean() / divide(size)
        scaler.scale(loss).backward()
        if (i + 1) % window == 0 or (last_steps and i + 1 == batches):
            before = flat(net)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            moves.append(round((flat(net) - before).norm().item(), 3))
    return moves


# %% tags=["nbval-check-output", "C31"]
print("the usual loop, (i + 1) % 8 == 0:   ", epochs(last_steps=False))
print("a step at the end, divided by 8:    ", epochs(last_steps=True))
print("a step at the end, divided by size: ", epochs(last_steps=True, divide=lambda size: size))

# %% [markdown]
# The right length is 1. The usual loop makes *no* step with the rest; it leaks into the next epoch's first window,
# whose update is 1.375 times as long as it should be. (With `zero_grad()` at the start of an epoch it is dropped: in
# each epoch three of eleven batches do nothing.) With a step at the end the update is not larger, it is 3/8 = 0.375 of
# a full one, unless you divide by the window's true size.
#
# ### Where the scaler's calls go
#
# `unscale_`, clipping, `step`, `update`, `zero_grad`: all of them once, at the end of the window. Put `unscale_` and
# clipping into every micro-batch, and the second one raises:

# %% tags=["nbval-check-output", "R71"]
message = attempt(lambda: play("backward unscale_ clip backward unscale_ clip step update", fresh()))
print(message)
assert "unscale_() has already been called on this optimizer since the last update()" in message

# %% [markdown]
# Many public issues are about this message, and each quick cure makes it worse. Call `unscale_` in the first
# micro-batch only, and the others are never unscaled. Or call `update` each time: the error is gone, and only the last
# micro-batch counts.
#
# **Predict** the four numbers: four equal micro-batches, the right update has the length 1.

# %%
windows = {
    "at the end of the window": "backward " * 4 + "unscale_ step update",
    "unscale_ in the first only": "backward unscale_ " + "backward " * 3 + "step update",
    "unscale_, update each time": "backward unscale_ update " * 3 + "backward unscale_ step update",
    "scale doubled in the middle": "backward " * 2 + "double " + "backward " * 2 + "unscale_ step update",
}


# %%
def window_update(order):
    """The update by four equal micro-batches; each holds a quarter of the loss, and the right length is 1."""
    net, ones = nn.Linear(4, 1, bias=False).to(device), torch.ones(2, 4, device=device)
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.5), torch.amp.GradScaler(kind, init_scale=1024.0)
    known = calls(net, ones, None, optimizer, scaler)
    known["double"] = lambda: scaler.update(2 * scaler.get_scale())

    def backward():
        with torch.autocast(kind, dtype=torch.float16):
            loss = net(ones).float().mean() / 4
        scaler.scale(loss).backward()

    known["backward"], before = backward, flat(net)
    for name in order.split():
        known[name]()
    return (flat(net) - before).norm().item()


# %% tags=["nbval-check-output", "R75", "R71"]
measured = {name: window_update(order) for name, order in windows.items()}
for name, length in measured.items():
    print(f"{name:28} ×{length:.3g}")

# %% [markdown]
# **Explain.** All gradients in a window must carry *one* scale, since one division has to undo it.
#
# - Unscaled after the first: one micro-batch in true units, three times 1024 as much from the others, divided by 4.
# - Unscaled and updated each time: the sum so far shrinks by the scale at every turn. The last one remains, a quarter.
# - A scale that changes in the middle, by an `update` or by a second owner of the scaler: half of the window counts
#   half, which makes 0.75. If the scale falls instead, the first half counts double.
#
# ## 6.7 Two optimizers, one scaler
#
# Several losses, several optimizers: one scaler is enough. `unscale_` and `step` once *per optimizer*, and `update`
# once, at the end. Here one half of the pair overflows: its scaled gradients are far too large for float16.


# %%
def pair(growth_interval=2000):
    torch.manual_seed(seed)
    nets = [nn.Linear(8, 1).to(device) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    return nets, optimizers, torch.amp.GradScaler(kind, init_scale=1024.0, growth_interval=growth_interval)


def both_backward(nets, scaler, weights=(1.0, 1.0)):
    ones = torch.ones(4, 8, device=device)
    for net, weight in zip(nets, weights, strict=True):
        with torch.autocast(kind, dtype=torch.float16):
            loss = net(ones).float().mean() * weight
        scaler.scale(loss).backward()


# %% tags=["nbval-check-output", "R69"]
from ampedu.scaling import ScalerLog

nets, (first, second), scaler = pair()
before = [flat(net) for net in nets]
both_backward(nets, scaler, weights=(1.0, 1e4))
with ScalerLog(scaler, first=first, second=second) as log:
    scaler.step(first)
    scaler.step(second)
    scaler.update()
print("moved:", [not torch.equal(old, flat(net)) for old, net in zip(before, nets, strict=True)])
print("scale:", scaler.get_scale(), " all stepped:", log.stepped)
print("found inf:", log.rows[-1].found_inf)

# %% [markdown]
# The second was skipped, the first was not, and the scale was halved for both. **From the scale you can tell that one
# was skipped, and never which.** The scaler knows, optimizer by optimizer; PyTorch has no public call for it, so
# `ScalerLog` from lesson 5 writes it down. If you need it in your own loop, give each optimizer a scaler of its own.
#
# `update` between the two steps is a mistake that shows rarely. It raises nothing, and changes nothing as long as the
# scale stays. In the one step in which the scale changes, the second optimizer divides by another scale than it was
# multiplied with:


# %%
def second_update(order, weights, growth_interval):
    nets, (first, second), scaler = pair(growth_interval)
    both_backward(nets, scaler, weights)
    before = flat(nets[1])
    for call in order:
        scaler.update() if call == "update" else scaler.step({"first": first, "second": second}[call])
    return (flat(nets[1]) - before).norm().item()


# %%
cases = {"nothing": ((1.0, 1.0), 2000), "growth": ((1.0, 1.0), 1), "overflow in the first": ((1e4, 1.0), 2000)}
ratios = {}
for event, (weights, interval) in cases.items():
    wrong = second_update(["first", "update", "second", "update"], weights, interval)
    ratios[event] = wrong / second_update(["first", "second", "update"], weights, interval)

# %% tags=["nbval-check-output", "R78"]
for event, ratio in ratios.items():
    print(f"{event:22} update of the second ×{ratio:.2f}")

# %% [markdown]
# ### A GAN step
#
# Generator and discriminator: two optimizers, losses that share nothing but the scale. One scaler or two? First the
# step, with whatever scalers it is given.


# %%
def gan():
    torch.manual_seed(seed)
    nets = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)), nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    make, judge = nets[0].to(device), nn.Sequential(*nets[1], nn.Linear(16, 1)).to(device)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (make, judge)]
    noise, real = torch.randn(64, 4).to(device), torch.randn(64, 8).to(device)
    return make, judge, *optimizers, noise, real


def verdict(judge, samples, truth):
    out = judge(samples).float()
    return F.binary_cross_entropy_with_logits(out, torch.full_like(out, truth))


# %%
def gan_step(make, judge, opt_g, opt_d, noise, real, scaler_g, scaler_d, enabled=True):
    opt_d.zero_grad()  # also removes what the generator's step left in the discriminator
    with torch.autocast(kind, dtype=torch.float16, enabled=enabled):
        fake = make(noise)
        loss = verdict(judge, real, 1.0) + verdict(judge, fake.detach(), 0.0)
    scaler_d.scale(loss).backward()
    scaler_d.step(opt_d)
    opt_g.zero_grad()
    with torch.autocast(kind, dtype=torch.float16, enabled=enabled):
        loss = verdict(judge, fake, 1.0)
    scaler_g.scale(loss).backward()
    scaler_g.step(opt_g)
    for scaler in {scaler_g, scaler_d}:
        scaler.update()


# %%
def gan_updates(scaler_g, scaler_d, enabled=True):
    parts = gan()
    before = [flat(net) for net in parts[:2]]
    gan_step(*parts, scaler_g, scaler_d, enabled)
    return torch.cat([flat(net) - old for net, old in zip(parts[:2], before, strict=True)])


# %% tags=["nbval-check-output", "R78"]
shared, first, second = (torch.amp.GradScaler(kind, init_scale=1024.0) for _ in range(3))
off = torch.amp.GradScaler(kind, enabled=False)  # float32, nothing is scaled
plain = gan_updates(off, off, enabled=False)
found = {"one scaler": gan_updates(shared, shared), "two scalers": gan_updates(first, second)}
for name, update in found.items():
    print(f"{name}: within 2 % of float32's step: {((update - plain).norm() < 0.02 * plain.norm()).item()}")
print("the same bits:", torch.equal(*found.values()))

# %% [markdown]
# **One is correct.** The two ways agree to the last bit, since both scales are 1024 here. Two scalers pay when the
# gradients differ much in size. One scale must be low enough for the larger ones; the smaller ones then vanish. Here is
# a generator with a small weight beside a discriminator with a large one:


# %%
def gradient_at(net, loss_of, scale):
    net.zero_grad()
    with torch.autocast(kind, dtype=torch.float16):
        loss = loss_of()
    (scale * loss).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def highest(part):
    """The largest power of two that scales this loss without overflow."""
    return max(2.0**k for k in range(50) if gradient_at(*part, 2.0**k).isfinite().all())


# %%
make, judge, *_, noise, _ = gan()
parts = {
    "generator": (make, lambda: 1e-8 * make(noise).float().square().mean()),
    "discriminator": (judge, lambda: 1e3 * judge(make(noise).detach()).float().square().mean()),
}

# %% tags=["nbval-check-output", "R78"]
for name, part in parts.items():
    zeros = (gradient_at(*parts["generator"], highest(part)) == 0).double().mean().item()
    print(f"at the highest scale for the {name}: {zeros:.0%} of the generator's gradients are zero")

# %% [markdown]
# ## 6.8 A gradient penalty
#
# Some losses contain the size of a gradient. `torch.autograd.grad` gives it, and with a scaled loss it gives a *scaled*
# gradient. Nobody unscales it for you: `unscale_` works on `.grad`, later.
#
# **Predict.** The penalty is the norm of the gradient. What becomes of it if the division is forgotten?

# %%
quiz("06.penalty")


# %%
def penalty_net():
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    return net, torch.randn(64, 16).to(device), torch.randn(64, 1).to(device)


def with_penalty(net, x, y, scaler, divide=True):
    """The loss, the penalty, and their sum, which is to be scaled again."""
    with torch.autocast(kind, dtype=torch.float16):
        loss = F.mse_loss(net(x), y)
    gradients = torch.autograd.grad(scaler.scale(loss), net.parameters(), create_graph=True)
    if divide:
        gradients = [gradient / scaler.get_scale() for gradient in gradients]
    with torch.autocast(kind, dtype=torch.float16):
        penalty = sum(gradient.square().sum() for gradient in gradients).sqrt()
        return loss.item(), penalty.item(), loss + penalty


# %% tags=["nbval-check-output", "R79"]
parts, at = penalty_net(), torch.amp.GradScaler(kind)
loss, good, _ = with_penalty(*parts, at)
_, bad, _ = with_penalty(*parts, at, divide=False)
print(f"penalty {good:.2f}, without the division {bad / 65536:.2f} · 65536; loss {loss:.2f}")

# %% [markdown]
# The penalty is larger by the loss scale, and so *the loss scale has become a weight in your loss*. Train with it, and
# watch the scale: the sum is scaled again, overflows, and the scaler backs off until the product fits into float16.


# %%
def train_with_penalty(divide, steps=60):
    net, x, y = penalty_net()
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.05), torch.amp.GradScaler(kind)
    losses, scales = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss, _, total = with_penalty(net, x, y, scaler, divide)
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss)
        scales.append(scaler.get_scale())
    return losses, scales


# %%
runs = {"divided": train_with_penalty(True), "not divided": train_with_penalty(False)}

# %% tags=["R79"]
for name, (losses, scales) in runs.items():
    print(f"{name:12} loss {losses[0]:.2f} → {losses[-1]:.2f}, scale at the end {scales[-1]:g}")
assert runs["divided"][0][-1] < runs["divided"][0][0] and runs["divided"][1][-1] >= 4096
assert runs["not divided"][0][-1] > 3 * runs["not divided"][0][0] and runs["not divided"][1][-1] <= 256
assert max(runs["not divided"][0]) > 1000 * runs["not divided"][0][0]

# %%
curves(
    range(1, 61),
    {name: losses for name, (losses, _) in runs.items()},
    title="A gradient penalty, with and without the division by the scale",
    xlabel="step",
    ylabel="loss without the penalty",
    alt="Two losses over 60 steps. With the division it falls. Without it stays while steps are skipped, then jumps to "
    "more than a thousand times its value and comes down slowly.",
    yscale="log",
)

# %% [markdown]
# **Explain.** Three things make a penalty right: the loss is scaled *before* `autograd.grad`, so that its float16 part
# does not underflow; the gradients are divided before the penalty is built from them, in a region like any other
# forward pass; and the sum of loss and penalty is scaled once more for `backward`. `unscale_` does the rest as always.
#
# ## 6.9 Fused optimizers and closures
#
# `torch.optim.Adam(..., fused=True)` updates all weights in few kernels. `scaler.step` hands it the scale and what was
# found; it unscales and skips inside. (After your own `unscale_` it is handed no scale.) Must you leave out `unscale_`
# then? Early versions went wrong here. Compare both, with and without clipping, with an overflow in the middle:


# %%
def five_steps(optimizer, order, **options):
    loop, scaler = fresh(optimizer, lr=0.01, **options), torch.amp.GradScaler(kind)
    known = calls(*loop, scaler)
    for i in range(5):
        for name in f"zero_grad {order}".split():
            known[name]()
            if name == "backward" and i == 2:
                loop[0][0].weight.grad[0, 0] = torch.inf
    return flat(loop[0]), scaler.get_scale()


# %% tags=["nbval-check-output", "R73"]
for optimizer in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
    for order in ("backward step update", right):
        (plain, scale), (fused, scale_fused) = (five_steps(optimizer, order, fused=fused) for fused in (False, True))
        assert (plain - fused).abs().max() < 1e-5 and scale == scale_fused == 32768
    print(f"{optimizer.__name__:8} fused and not: the same weights within 1e-5, the same scale")

# %% [markdown]
# **The order is the same for both.** What differs is a check. `unscale_` refuses float16 *parameters*, for which there
# is no master copy (lesson 2). The fused way does not ask:

# %% tags=["nbval-check-output", "R73"]
refused = {}
for fused in (False, True):
    layer = nn.Linear(4, 1, device=device, dtype=torch.float16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, fused=fused)
    small = torch.amp.GradScaler(kind, init_scale=1024.0)
    small.scale(layer(torch.ones(2, 4, device=device).half()).float().mean()).backward()
    refused[fused] = attempt(lambda optimizer=optimizer, small=small: small.step(optimizer))
print("unfused:", refused[False])
print("fused:  ", refused[True] or "no complaint")
assert "FP16 gradients" in refused[False] and refused[True] is None

# %% [markdown]
# A fused optimizer must also be stepped by `scaler.step`. A wrapper of your own that calls `optimizer.step()` gives it
# no scale, so nothing is divided: the row "never unscaled" in 6.2.
#
# ### Closures
#
# LBFGS computes loss and gradient several times per step, and takes a function for it, the *closure*. The scaler
# cannot: it would have to unscale inside. It says so, if you pass the closure by name:


# %%
def closure_step(pass_closure):
    net, x, y, optimizer = fresh()
    scaler, before = torch.amp.GradScaler(kind), flat(net)
    known = calls(net, x, y, optimizer, scaler)

    def closure():
        optimizer.zero_grad()
        known["backward"]()

    closure()
    pass_closure(scaler, optimizer, closure)
    return (flat(net) - before).norm().item()


# %% tags=["nbval-check-output"]
by_name = attempt(lambda: closure_step(lambda scaler, optimizer, f: scaler.step(optimizer, closure=f)))
by_place = closure_step(lambda scaler, optimizer, f: scaler.step(optimizer, f))
no_closure = closure_step(lambda scaler, optimizer, f: scaler.step(optimizer))
print("by name: ", by_name.split(":")[0])
print(f"by place: an update that is {by_place / no_closure / 65536:.2f} · 65536 times as long as without a closure")
assert "Closure use is not currently supported" in by_name

# %% [markdown]
# The second line is a hole in the check: only the keyword is looked at. Passed by place, the closure runs *after* the
# unscaling, fills `.grad` with scaled gradients again, and the optimizer takes them as they are.
#
# What to do: float32 or bfloat16 without a scaler. Or a constant scale, undone inside the closure:


# %%
def lbfgs(dtype, scale=1.0):
    net, x, y = penalty_net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=20)

    def closure():
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype or torch.float16, enabled=dtype is not None):
            loss = F.mse_loss(net(x), y)
        (scale * loss).backward()
        for p in net.parameters():
            p.grad.div_(scale)
        return loss

    first = closure().item()
    for _ in range(3):
        optimizer.step(closure)
    return first, closure().item()


# %%
found = {"float32": lbfgs(None), "bfloat16": lbfgs(torch.bfloat16), "float16": lbfgs(torch.float16, 1024.0)}
for name, (first, last) in found.items():
    print(f"{name:9} loss {first:.2f} → {last:.0e}")
    assert last < first / 100

# %% [markdown]
# It works, and each format has a floor: LBFGS learns the curvature from differences of gradients, and rounding to 16
# bits drowns small differences. That method wants float32.
#
# ## 6.10 Let the loop speak for itself
#
# Orders are easy to check in five lines, and hard in a training script of a thousand, where clipping sits in a helper
# and `zero_grad` in a callback. `StepWatcher` goes around a loop, which stays as it is. It records the calls, computes
# next to each step what the right order would have done, and names the first violation. It copies all gradients at
# every call, so use it for a few steps, not for a whole run.

# %%
from ampedu.plots import step_timeline
from ampedu.steps import StepWatcher

net, x, y, optimizer = fresh()
scaler = torch.amp.GradScaler(kind)
with StepWatcher(net, optimizer, scaler) as watch:
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.float16):
            loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

# %% tags=["nbval-check-output"]
watch.report()

# %% [markdown]
# Now with `unscale_` and clipping swapped:


# %%
from contextlib import suppress


def watched(order):
    """A watcher that has seen one step in this order; an error of torch ends the step."""
    loop, scaler = fresh(), torch.amp.GradScaler(kind)
    watch, known = StepWatcher(loop[0], loop[3], scaler), calls(*loop, scaler)
    with suppress(RuntimeError), watch:
        for name in ("zero_grad " + order).split():
            known[name]()
    return watch


# %%
swapped = watched("backward clip unscale_ step update")
step_timeline(swapped)

# %% tags=["nbval-check-output"]
violation = swapped.first
print(f"{violation.id}: an update of {violation.actual:.1e} instead of {violation.correct:.1e}")

# %% [markdown]
# Move through some loops, and find the mistake before you read its name. The ring marks the call.

# %%
loops = {
    "the right one": right,
    "loop A": "backward clip unscale_ step update",
    "loop B": "backward unscale_ step clip update",
    "loop C": "backward unscale_ clip update step",
    "loop D": "raw_backward unscale_ clip step update",
    "loop E": "backward clip optimizer.step",
    "loop F": "backward unscale_ zero_grad clip step update",
    "loop G": "backward unscale_ clip backward unscale_ clip step update",
}

# %%
watches = {name: watched(order) for name, order in loops.items()}
alt = "The calls of one training step in their order, one row per kind of call; the first violation is ringed"
slider(lambda name: step_timeline(watches[name]), list(watches), "the right one", label="loop", alt=alt)

# %% tags=["nbval-check-output"]
for name, watch in watches.items():
    print(f"{name:14}", watch.first.id if watch.first else "nothing to say")

# %% [markdown]
# Not everything wrong is in the order of one step. A learning-rate scheduler that is stepped after a *skipped* step
# runs ahead of the training. Here the second batch overflows.

# %%
net, x, y, optimizer = fresh()
scaler, scheduler = torch.amp.GradScaler(kind), torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
with StepWatcher(net, optimizer, scaler, scheduler) as watch:
    for batch in (x, 1e6 * x, x):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.float16):
            loss = F.mse_loss(net(batch), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

# %% tags=["nbval-check-output"]
print(watch.first.id, f"in step {watch.first.step}:", watch.first.consequence)

# %%
step_timeline(watch)

# %% [markdown]
# What to do, if you count steps exactly: compare `scaler.get_scale()` before and after `update`; a smaller scale means
# a skip. (With several optimizers, or a `backoff_factor` of 1, that says too little: `ScalerLog.stepped`.)
#
# ## What to take away
#
# - With a scaler: backward → `unscale_` → clip → `scaler.step` → `update` → `zero_grad`. Without: backward → clip →
#   `step` → `zero_grad`.
# - Clipping scaled gradients makes the update `scale` times too small, or norm · scale / `max_norm` times if there was
#   nothing to clip. No error tells you.
# - Judge a loop by its *updates* under SGD. Adam hides a wrong factor in small models, and not in large
#   ones, nor with its own `weight_decay`.
# - Accumulation: divide by what the window really holds (micro-batches if equal, tokens if not). Everything of the
#   scaler once per window, except `scale`.
# - Several optimizers: `unscale_` and `step` for each, `update` once. One scaler is correct; two pay if the gradients
#   differ much in size.
# - A gradient penalty is built from gradients that you have divided yourself.
# - Fused optimizers: the same order. Closures: no scaler.
#
# One last question before the lab.

# %%
quiz("06.frozen")

# %% [markdown]
# **Now you:** [lab 6](../labs/06_order_of_a_step.ipynb), a clinic with ten broken training loops, and three steps of
# your own: accumulation, a GAN, a gradient penalty. Before this lesson: [lesson 5](05_dynamic_loss_scaling.ipynb).
# **Next:** [lesson 7](07_speed_and_memory.ipynb), speed and memory.
#
# **Primary sources.** [AMP examples][examples]: clipping, accumulation, penalty, several optimizers, as PyTorch's
# authors write them · [torch.amp][amp]: `GradScaler`, call by call · [grad_scaler.py][source]: the protocol itself ·
# [Adam][adam]: section 2.1 on the invariance to the gradient's size ·
# [Gulrajani et al. 2017][penalty]: the gradient penalty
#
# [examples]: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
# [amp]: https://docs.pytorch.org/docs/stable/amp.html
# [source]: https://github.com/pytorch/pytorch/blob/main/torch/amp/grad_scaler.py
# [adam]: https://arxiv.org/abs/1412.6980
# [penalty]: https://arxiv.org/abs/1704.00028
