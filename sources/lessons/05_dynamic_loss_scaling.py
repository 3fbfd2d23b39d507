# %% [markdown]
# # 5 Dynamic loss scaling
#
# A network that learns nothing, and no message says so. You see it fail, find out why, and repair it with one number.
# Then you write the twenty lines that choose this number by themselves, and learn what they do not do for you.
#
# **You will be able to** measure how much of a gradient float16 loses · choose a loss scale from a histogram · write
# the scaler that PyTorch ships · say what a skipped step does not undo · read a scaler's error messages · tell when
# you need no scaler, and what you owe then · resume a run without new skips.
#
# *45 minutes · after lessons [1](01_bit_layouts.ipynb), [2](02_where_precision_is_lost.ipynb) and
# [4](04_autocast.ipynb) · runs in 15 s on two cores · only 20 minutes? Read 5.1, 5.2, 5.4 and 5.8*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("float16 autocast and GradScaler run for real here, with or without a GPU. Nothing is timed.")

# %% [markdown]
# ## 5.1 A picture that never appears
#
# A small network maps the position of a pixel to its color. It shall learn a picture: rings in red, waves in green, a
# disc in blue.

# %%
import torch
import torch.nn.functional as F
from torch import nn

kind = torch.device(device).type  # "cuda" or "cpu": what autocast and the scaler are told


def target_image(n=96):
    """Places of shape (n·n, 2), from -1 to 1, and colors of shape (n·n, 3), from 0 to 1."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, n), torch.linspace(-1, 1, n), indexing="ij")
    radius = (x**2 + y**2).sqrt()
    rings, waves = 0.5 + 0.5 * torch.cos(12 * radius), 0.5 + 0.5 * torch.sin(5 * x + 3 * y)
    colors = torch.stack([rings, waves, (radius < 0.6).float()], -1)
    return torch.stack([x, y], -1).reshape(-1, 2), colors.reshape(-1, 3)


places, image = target_image()
image = image.to(device)

# %% [markdown]
# Its input is 32 sines and 32 cosines of the position. Its output goes through a sigmoid, since a color lies between 0
# and 1.


# %%
def fresh():
    """A new model, its optimizer, and the input that belongs to it."""
    torch.manual_seed(seed)
    angles = places @ (3 * torch.randn(2, 32))
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(64, 3)).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=3e-3), torch.cat([angles.sin(), angles.cos()], 1).to(device)


# %% [markdown]
# The training loop is the usual one for mixed precision. The loss is one of several in a larger model, so it carries
# a weight of 0.001, as auxiliary losses often do. `scaler=None` means: no scaling.


# %%
def fit(dtype, scaler=None, steps=120):
    """The trained model and the loss of every step; dtype=None is plain float32."""
    model, optimizer, features = fresh()
    scaler = scaler or torch.amp.GradScaler(kind, enabled=False)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.mse_loss(model(features).sigmoid(), image)
        scaler.scale(1e-3 * loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return model, losses


# %% [markdown]
# **Predict.** Four runs: float32, bfloat16, float16, and float16 with PyTorch's scaler. Which of them draw the picture?

# %%
from ampedu.widgets import quiz

quiz("05.which_runs_learn")

# %%
runs = {
    "float32": fit(None),
    "bfloat16": fit(torch.bfloat16),
    "float16": fit(torch.float16),
    "float16 + scaler": fit(torch.float16, torch.amp.GradScaler(kind)),
}


# %%
def drawn(model):
    with torch.no_grad():
        return model(fresh()[2]).sigmoid().reshape(96, 96, 3)


# %%
from ampedu.plots import images

images(
    {"target": image.reshape(96, 96, 3)} | {name: drawn(model) for name, (model, _) in runs.items()},
    title="One network, one loop, four ways to compute",
    alt="The target shows rings, waves and a disc. The float32, bfloat16 and scaled float16 runs show it, too. "
    "The float16 run without a scaler is a grey haze.",
)

# %%
for name, (_, losses) in runs.items():
    print(f"{name:17} loss {losses[0]:.5f} → {losses[-1]:.5f}")
final = {name: losses[-1] for name, (_, losses) in runs.items()}
assert abs(final["float16 + scaler"] / final["float32"] - 1) < 0.15
assert final["bfloat16"] < 0.03 * runs["bfloat16"][1][0]

# %% [markdown]
# The grey one did not learn badly. It did not learn at all. Look at the gradients of its last step, and compare its
# weights with those that it started from, bit by bit:

# %% tags=["nbval-check-output", "R38"]
frozen, losses = runs["float16"]
zeros = torch.cat([p.grad.flatten() for p in frozen.parameters()]) == 0
print(f"gradients that are zero: {zeros.double().mean().item():.0%}")
print("weights as at the start:", all(map(torch.equal, frozen.parameters(), fresh()[0].parameters())))
print("different losses in 120 steps:", len(set(losses)))
print("autocast on a GPU, if you name no dtype:", torch.get_autocast_dtype("cuda"))

# %% [markdown]
# **Explain.** The loss is a mean over 96 · 96 · 3 numbers, times 0.001. A color that is wrong by a whole 1 gets the
# gradient $2 \cdot 0.001 / 27648$. Autocast hands it to the sigmoid in float16, and float16 is at its end there. The
# sigmoid multiplies by its slope, at most a quarter; then nothing is left.

# %% tags=["nbval-check-output"]
largest = torch.tensor(2 * 1e-3 / (96 * 96 * 3))
arrives = largest.half()  # what float16 makes of it: its smallest number, 2^-24
print(f"{largest.item():.2e} → {arrives.item():.2e} → {(arrives * 0.25).item()}")
assert arrives.item() == 2**-24

# %% [markdown]
# So this is arithmetic, not bad luck: no seed, and no number of steps, changes it. Whoever writes
# `torch.autocast("cuda")` without a dtype gets float16 and can meet this with no message at all. Small losses, large
# batches with a mean, and long chains of factors below 1 all lead there.
#
# Is it the same on a GPU? Lesson 4 has taught us to ask. For the operations of this network the lists agree:

# %% tags=["nbval-check-output"]
from ampedu.policy import probe


def operations(x, y):
    color = (x @ y).relu().sigmoid()
    return color, F.mse_loss(color, y)


for there in ("cuda", "cpu"):
    print(there, probe(operations, (4, 4), (4, 4), device=there, dtype=torch.float16))

# %% [markdown]
# ## 5.2 One number
#
# A gradient is linear in the loss. Multiply the loss by $S$, and every gradient on the way back is $S$ times as large,
# far from the end of float16. Divide by $S$ when they have arrived in the float32 parameters. That is **loss scaling**.
# With $S = 2^{16}$:

# %% tags=["nbval-check-output"]
S = 2.0**16
arrives = (S * largest).half()
print(f"{arrives.item():.2e} → {(arrives * 0.25).item():.2e} → divided by S: {(arrives * 0.25).item() / S:.2e}")

# %% [markdown]
# **Predict.** Multiply, compute, divide: what does it cost in precision?

# %%
quiz("05.power_of_two")

# %% tags=["nbval-check-output", "C18"]
unscaled, _ = fit(None, steps=40)  # float32, so that only the scale can differ
for S in (2.0**16, 60000.0):
    model, _ = fit(None, torch.amp.GradScaler(kind, init_scale=S), steps=40)
    same = all(map(torch.equal, model.parameters(), unscaled.parameters()))
    print(f"scale {S:g}: the same weights as without a scale, to the last bit: {same}")

# %% [markdown]
# **Explain.** A power of two changes the exponent and no bit of the mantissa (lesson 1), as long as nothing leaves
# float32's range. After 40 steps not one bit is different. 60 000 is no power of two: each product is rounded, and the
# runs part. So take powers of two, as PyTorch's constants do.
#
# Does it matter which one? Train with a fixed $S$ and no scaler, for many $S$:


# %%
def static(S, steps=20):
    """The loss after some steps in float16 with a fixed scale."""
    model, optimizer, features = fresh()
    for _ in range(steps + 1):
        with torch.autocast(kind, dtype=torch.float16):
            loss = F.mse_loss(model(features).sigmoid(), image)
        optimizer.zero_grad()
        (S * 1e-3 * loss).backward()
        for p in model.parameters():
            p.grad /= S
        optimizer.step()
    return loss.item()


# %%
powers = [0, 2, 4, 6, 8, 16, 24, 28, 32, 36, 40]
swept = [static(2.0**k) for k in powers]

# %%
from ampedu.plots import curves

curves(
    [2.0**k for k in powers],
    {"loss after 20 steps": swept},
    title="Too small: flat. Too large: NaN. Between: it does not matter",
    xlabel="loss scale S",
    ylabel="loss",
    xscale="log2",
    alt="Loss against a fixed loss scale. At 1 the loss is that of the start, it falls up to 2^8, is level from there "
    "over more than twenty powers of two, and is NaN from 2^32 on.",
)

# %%
plateau = [loss for k, loss in zip(powers, swept, strict=True) if 8 <= k <= 24]
print(f"S = 1: {swept[0]:.4f}, 2^8 to 2^24: {min(plateau):.4f} to {max(plateau):.4f}, 2^40: {swept[-1]}")
assert swept[0] == runs["float16"][1][0] and max(plateau) < 1.1 * min(plateau) < 0.6 * swept[0]
assert swept[-1] != swept[-1]  # NaN

# %% [markdown]
# A wide plateau with a cliff on the right. The exact scale is unimportant; staying off the cliff is not.
#
# ## 5.3 Where gradients lie
#
# The picture network is an extreme. Here is the ordinary case, a small transformer that is trained in float32 for a
# moment. We collect the gradients that flow back between its layers, in float32, before anything can get lost. Every
# fourth of them will do.


# %%
class Tiny(nn.Module):
    def __init__(self, vocabulary=64, width=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


# %%
torch.manual_seed(seed)
text, tokens = Tiny().to(device), torch.randint(0, 64, (32, 64)).to(device)
adam = torch.optim.Adam(text.parameters(), lr=3e-3)


def loss_of(model):
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


# %%
from ampedu.gradients import GradientRange


def gradients():
    """What flows back through the layers in one step."""
    with GradientRange(text) as seen:
        text.zero_grad()
        loss_of(text).backward()
    return torch.cat([gradient.flatten() for gradient in seen.tensors("activations")])[::4]


# %%
new = gradients()
for _ in range(20):
    adam.zero_grad()
    loss_of(text).backward()
    adam.step()
trained = gradients()

# %% [markdown]
# **Predict.** The slider multiplies all gradients by a power of two. Where would you put it for float16?

# %%
from ampedu.magnitudes import exponent_counts
from ampedu.widgets import gradient_range

gradient_range(*exponent_counts(trained), label="gradients of a small transformer")

# %%
found = trained[trained != 0].abs().log2().sort().values
low, high = found[len(found) // 1000].item(), found[-1].item()
print(f"all but a thousandth of them lie between 2^{low:.1f} and 2^{high:.1f}")
assert high - low < 20 and high < -8

# %% [markdown]
# **Explain.** That is less than twenty powers of two. float16 has room for forty, from $2^{-24}$ to $2^{15}$, thirty of
# them with full precision. So they fit, once they are moved, and there is much choice.
#
# The slider counts whole bins. `landed` looks at each value and is exact:

# %% tags=["C41"]
from ampedu.gradients import landed

scales = {"1": 0, "8": 3, "2^10": 10, "2^16": 16, "2^32": 32}
shares = {name: landed(trained, "fp16", 2.0**k) for name, k in scales.items()}
for name, share in shares.items():
    print(f"S = {name:5}", "  ".join(f"{what} {part:7.3%}" for what, part in share.items()))
lost = [share["zero"] for share in shares.values()]
assert lost == sorted(lost, reverse=True) and lost[0] > 4 * lost[1]
assert shares["1"]["subnormal"] > 0.9 and shares["2^10"]["normal"] > 0.9
assert shares["1"]["overflow"] == shares["2^16"]["overflow"] == 0 < shares["2^32"]["overflow"]

# %% [markdown]
# Without a scale nearly all of these gradients are subnormal: they are there, with fewer digits. And some are gone. At
# $S = 8$ most of the lost ones are back, at $2^{10}$ nearly all, and most have all their digits. (Zeros that are zero
# in float32 already, such as those of a ReLU, are not counted.)
#
# "A scaler is needed because it prevents overflow" is the wrong way round. Unscaled, nothing overflows here. The scale
# prevents **underflow**, and *causes* overflow when it is too large. Overflow is what a scaler *detects*.
#
# The gradients shrink while the model learns. Compare with the new model, and see what float16 makes of it in the end:
# the error of all weight gradients against float32. (Lesson 4 has traced this kind of model: up to the logits, CPU and
# CUDA compute it in the same dtypes. The loss is float32 on both; only the cast is made in another place.)


# %%
def weight_gradients(S, dtype=None):
    text.zero_grad()
    with torch.autocast(kind, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = loss_of(text)
    (S * loss).backward()
    return torch.cat([p.grad.flatten().cpu().double() for p in text.parameters()]) / S


# %%
print(f"lost at S = 1: new model {landed(new, 'fp16')['zero']:.2%}, trained {lost[0]:.2%}")
exact = weight_gradients(1)
errors = {
    k: ((weight_gradients(2.0**k, torch.float16) - exact).norm() / exact.norm()).item() for k in (0, 3, 10, 16, 32)
}
print("relative error of the weight gradients:", {f"2^{k}": round(error, 5) for k, error in errors.items()})
assert lost[0] > 2 * landed(new, "fp16")["zero"] and errors[0] > 2 * errors[10] and not errors[32] < 1

# %% [markdown]
# So here nothing fails outright. The unscaled gradient is a few times less accurate than it could be, more is lost the
# longer you train, and no message says so. The picture network is where this road ends.
#
# ## 5.4 The rule
#
# Gradients change during training, and now and then a batch has large ones. So the scale follows a rule. Try it, and
# if it was too large, throw the step away and halve it. If it went well for a while, double it.

# %%
from ampedu.plots import scaler_loop

scaler_loop()

# %% [markdown]
# Written down, it is this class. It has the methods of PyTorch's scaler, so that the loop above can use it.


# %%
class Scaler:
    def __init__(self, scale=2.0**16, growth_interval=2000):
        self.factor, self.interval, self.clean = scale, growth_interval, 0

    def scale(self, loss):
        return loss * self.factor

    def step(self, optimizer):
        found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.found_inf = not all(gradient.isfinite().all() for gradient in found)
        for gradient in found:
            gradient.mul_(1 / self.factor)
        if not self.found_inf:
            optimizer.step()

    def update(self):
        self.clean = 0 if self.found_inf else self.clean + 1
        if self.found_inf or self.clean == self.interval:
            self.factor, self.clean = self.factor * (0.5 if self.found_inf else 2), 0


# %% tags=["nbval-check-output"]
model, _ = fit(torch.float16, Scaler())
print("equal to PyTorch's run:", all(map(torch.equal, model.parameters(), runs["float16 + scaler"][0].parameters())))

# %% [markdown]
# Bit for bit. PyTorch's version looks at all gradients in one pass, leaves the answer on the GPU until it needs it, and
# knows several optimizers. Its constants:

# %% tags=["nbval-check-output", "C19"]
scaler = torch.amp.GradScaler(kind)
print(scaler.state_dict())

# %% [markdown]
# The **growth tracker** is our `clean`: the number of clean steps in a row. When it reaches `growth_interval`, our
# `interval`, the scale grows and the tracker starts again at 0.
#
# **Predict.** Which way does the scale go?

# %%
quiz("05.next_scale")

# %% [markdown]
# Here are these seven steps, and some more. Click a step to make it infinite, and watch scale and tracker:

# %%
from ampedu.scaling import LossScale
from ampedu.widgets import scaler_simulator

scaler_simulator("..x....x............", start=LossScale(scale=1024.0, growth_interval=4))

# %% [markdown]
# The simulator follows `LossScale`, the same rule as a plain value, without tensors. Is it what PyTorch does? Let both
# walk through 3000 random steps, one in twenty infinite, and compare all five entries of their state after each:


# %%
def torch_states(pattern, growth_interval):
    """The state of a real GradScaler after each step; its gradients are infinite where the pattern says so."""
    weight = nn.Parameter(torch.ones(1, device=device))
    optimizer, scaler = torch.optim.SGD([weight], lr=0), torch.amp.GradScaler(kind, growth_interval=growth_interval)
    for bad in pattern:
        scaler.scale(weight.sum())
        weight.grad = torch.full_like(weight, torch.inf if bad else 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield scaler.state_dict()


# %% tags=["nbval-check-output", "C18"]
pattern = (torch.rand(3000, generator=torch.Generator().manual_seed(seed)) < 0.05).tolist()
states = list(torch_states(pattern, growth_interval=7))
print("equal in all steps:", states == [state.state_dict() for state in LossScale(growth_interval=7).trace(pattern)])

# %% [markdown]
# Nothing in this rule knows about "training that settles". The scale is not lowered step by step to gain precision, as
# one can read; it *rises* for as long as it can. Left alone, it climbs to the cliff of 5.2, falls off it once, and
# climbs again. Here with an interval of 5 instead of 2000, to see it:

# %%
from ampedu.plots import scale_history
from ampedu.scaling import ScalerLog

scaler = torch.amp.GradScaler(kind, init_scale=2.0**26, growth_interval=5)
with ScalerLog(scaler) as log:
    _, sawtooth = fit(torch.float16, scaler, steps=70)
scale_history(log)

# %% tags=["C18"]
_, calm = fit(torch.float16, torch.amp.GradScaler(kind), steps=70)
highest = max(row.scale_before for row in log.rows if not row.skipped)
print(f"{len(log.skips)} skips in 70 steps, loss {sawtooth[-1]:.4f}; without skips {calm[-1]:.4f}")
assert log.skips and highest >= 2.0**28 and sawtooth[-1] < 1.5 * calm[-1]

# %% [markdown]
# Skips are how the rule finds out; a few of them cost a few batches. The start value 65 536 is a guess, so a run may
# begin with several. This loss is a *sum* over 4096 rows and not a mean, and its gradients are large:


# %%
def large():
    """A model whose weight has the gradient -12 288 in every step, its optimizer, a scaler."""
    net = nn.Linear(1, 1).to(device)
    return net, torch.optim.SGD(net.parameters(), lr=1e-5), torch.amp.GradScaler(kind)


def iterate(net, optimizer, scaler):
    x, y = torch.full((4096, 1), 3.0, device=device), torch.full((4096, 1), 1e4, device=device)
    optimizer.zero_grad()
    with torch.autocast(kind, dtype=torch.float16):
        loss = F.l1_loss(net(x), y, reduction="sum")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


# %% tags=["nbval-check-output", "R49"]
parts = large()
with ScalerLog(parts[2]) as log:
    for _ in range(20):
        iterate(*parts)
print([int(row.scale) for row in log.rows])
print(len(log.skips), "skips, then none. Largest gradient, scaled:", 4 * 12288, "and one step before:", 8 * 12288)

# %% [markdown]
# "Gradient overflow, skipping step" at the start, and once in a few thousand steps, is the rule at work. Skips without
# end are a fault, and 5.6 is about them.
#
# Late in training, is a longer growth interval the cure for instability? Take a model whose gradients overflow above
# $2^{20}$, and count:

# %% tags=["nbval-check-output", "C54"]
for interval in (5, 50, 500, 2000):
    state, skips = LossScale(scale=2.0**20, growth_interval=interval), 0
    for _ in range(20000):
        found_inf = state.scale > 2.0**20
        skips, state = skips + found_inf, state.update(found_inf)
    print(f"growth_interval {interval:4}: {skips:4} of 20000 steps skipped")

# %% [markdown]
# It makes skips rarer, one in interval + 1 steps, and that is all. No gradient gets smaller by it.
#
# ## 5.5 What a skip does not undo
#
# A skipped step leaves weights and optimizer state as they were. Everything else in your loop goes on as if nothing had
# happened.
#
# ### The learning rate
#
# The scheduler is not told. The model with the large gradients skips 14 times; give it a warm-up over ten steps: a
# learning rate that grows from a tenth to its full value.


# %%
import warnings


def warm_up(aware):
    """Learning rates of the updates that really happened, in parts of the full one, and the warnings."""
    net, optimizer, scaler = large()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / 10))
    used = []
    with ScalerLog(scaler) as log, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            iterate(net, optimizer, scaler)
            if log.stepped:
                used.append(round(optimizer.param_groups[0]["lr"] / 1e-5, 1))
            if log.stepped or not aware:
                schedule.step()
    return used, [str(warning.message) for warning in caught]


# %% tags=["nbval-check-output", "R65", "C20"]
for aware in (False, True):
    used, caught = warm_up(aware)
    print("told about skips:" if aware else "in every iteration:", used, "warnings:", len(caught))
    assert aware or "`lr_scheduler.step()` before `optimizer.step()`" in caught[0]

# %% [markdown]
# In the first run the warm-up was over before the first update. The warning says "`lr_scheduler.step()` before
# `optimizer.step()`" although your order is right: the optimizer's first step was skipped. Torch looks only at that
# first time. Skips later on shift the schedule without a word.
#
# ### Did it step?
#
# `scaler.step` returns what the optimizer returned: `None` if it stepped, `None` if not. There is no `_found_inf`
# either, although tutorials read it. Three ways that people use, in three situations where the gradient is infinite:


# %%
def infinite(fused=False, backoff=0.5):
    """What scaler.step returned; whether the scale fell; whether a hook on the optimizer ran; what ScalerLog says."""
    weight = nn.Parameter(torch.ones(2, device=device))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1, fused=fused), torch.amp.GradScaler(kind)
    scaler.set_backoff_factor(backoff)
    hook = []
    optimizer.register_step_post_hook(lambda *_: hook.append("ran"))
    with ScalerLog(scaler) as log:
        scaler.scale((weight * torch.inf).sum()).backward()
        before, returned = scaler.get_scale(), scaler.step(optimizer)
        scaler.update()
    assert torch.equal(weight, torch.ones_like(weight))
    return returned, scaler.get_scale() < before, bool(hook), log.stepped


# %% tags=["nbval-check-output", "C17", "R66"]
print("scaler._found_inf exists:", hasattr(scaler, "_found_inf"))
print("returned, scale fell, hook ran, ScalerLog says it stepped:")
print("usual           ", infinite())
print("fused optimizer ", infinite(fused=True))
print("backoff set to 1", infinite(backoff=1.0))

# %% [markdown]
# None of the weights moved. The scale tells it, unless somebody sets the backoff factor to 1 (the constructor refuses
# that, the setter does not) or gives `update` a new scale. The hook is wrong for fused optimizers, whose step is always
# called and decides inside. `ScalerLog.stepped` asks for the result of the check. In your own loop the comparison of
# `get_scale()` before and after `update()` will do. It waits for the GPU, so once per step is enough.
#
# ### Running statistics
#
# **Predict.** A network with BatchNorm meets one bad step. The scaler skips it, and training goes on.

# %%
quiz("05.batch_norm")


# %%
def batch_norm(bad, steps=30):
    """Train; step 10 has infinite gradients only, or an infinite forward pass, or nothing bad."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).to(device)
    x, optimizer = torch.randn(32, 4).to(device), torch.optim.SGD(net.parameters(), 0.05)
    scaler = torch.amp.GradScaler(kind, init_scale=256.0)
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.float16):
            loss = F.mse_loss(net(x * (1e6 if bad == "forward" and step == 10 else 1)), x[:, :1])
        (scaler.scale(loss) * (1e30 if bad == "gradients" and step == 10 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        answers = net.eval()(x)
    return loss.item(), net[1].running_mean.isfinite().all().item(), answers.isfinite().all().item()


# %% tags=["nbval-check-output", "C20"]
for bad in ("nothing", "gradients", "forward"):
    loss, statistics, answers = batch_norm(bad)
    print(f"{bad:10} training loss below 0.01: {loss < 0.01}, statistics finite: {statistics}, eval finite: {answers}")

# %% [markdown]
# **Explain.** BatchNorm updates its running mean in the *forward* pass. If that pass is not finite, the mean is NaN
# from then on, because a running mean keeps a share of what it was. Training does not notice, since it uses the
# statistics of the batch; `eval()` returns NaN. If only the gradients overflow, the forward pass was fine, and so are
# the statistics. So: after a non-finite *forward*, restore the buffers (`reset_running_stats()`, or a copy).
#
# ### Logs
#
# Counters count iterations, not updates: in the run above, 20 iterations were 6 updates. A running mean of the loss
# becomes NaN by the same mechanism as BatchNorm's. Log updates and skips, not only iterations:

# %% tags=["nbval-check-output", "C20"]
print(len(log.rows), "iterations,", sum(all(row.stepped.values()) for row in log.rows), "updates")

# %% [markdown]
# ## 5.6 What no scale can cure, and what has no floor
#
# A scale acts on the way back. If the forward pass overflows, the loss is inf or NaN at any scale. Lesson 2 has seen a
# network that starts so. More often it is a *trained* one that continues in float16, while a fresh one is fine. Here
# the targets are prices around 100 000, and the float32 training has learned to say such numbers.


# %%
torch.manual_seed(seed)
x = torch.randn(256, 8).to(device)
price = 1e5 * (1 + 0.2 * x[:, :1])
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)


def largest_outputs(dtype):
    """The largest magnitude that comes out of each layer: forward hooks."""
    seen = {}
    hooks = [
        layer.register_forward_hook(lambda _, args, out, name=name: seen.update({name: out.abs().max().item()}))
        for name, layer in net.named_children()
    ]
    with torch.autocast(kind, dtype=dtype), torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return seen


# %%
before = largest_outputs(torch.float16)
adam = torch.optim.Adam(net.parameters(), lr=1.0)
for _ in range(200):
    adam.zero_grad()
    F.mse_loss(net(x) / 1e5, price / 1e5).backward()
    adam.step()

# %% tags=["R54"]
after = largest_outputs(torch.float16)
for name, seen in (("new", before), ("trained", after), ("trained, bfloat16", largest_outputs(torch.bfloat16))):
    print(f"{name:18}", *(f"layer {layer}: {value:<8.4g}" for layer, value in seen.items()))
assert before["2"] < 100 and after["1"] < 65504 and after["2"] == torch.inf

# %% [markdown]
# The hooks name the layer: the first one whose largest output is inf. The cures are those of lesson 2: bfloat16,
# float32 for this layer, or targets of a sensible size. What would a scaler do? Skip every step, and halve every time.
#
# **Predict.** And if nobody looks, for a hundred steps and more? Then one healthy batch comes.

# %%
quiz("05.no_floor")


# %%
def after_skips(skips, fused=False, unscale_first=False):
    """A weight of 1 after so many skips in a row and one healthy step: gradient 1, learning rate 0.5."""
    weight = nn.Parameter(torch.ones(1))  # on the CPU
    optimizer, scaler = torch.optim.SGD([weight], lr=0.5, fused=fused), torch.amp.GradScaler("cpu")
    for gradient in [torch.inf] * skips + [1.0]:
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return weight.item()


# %% tags=["nbval-check-output", "C20", "R51"]
print("skips in a row           ", *(f"{skips:>6}" for skips in (142, 143, 144, 165, 166)))
ways = {"not fused": {}, "fused": {"fused": True}, "fused, after unscale_": {"fused": True, "unscale_first": True}}
for name, options in ways.items():
    print(f"{name:25}", *(f"{after_skips(skips, **options):>6}" for skips in (142, 143, 144, 165, 166)))

# %% [markdown]
# **Explain.** From $2^{16}$, after 143 skips the scale is $2^{-127}$ and its reciprocal $2^{127}$, which float32 holds.
# After 144 the reciprocal would be $2^{128}$: inf. The check looks at the gradient *before* it is multiplied, finds it
# finite, and lets the step happen. A fused optimizer that unscales by itself divides by the scale instead; it lasts
# until the scale is 0, at 166. These numbers hold for the default constants, with no growth in between, for gradients
# that are float32 all the way; run on the CPU.
#
# With float16 on the way the model freezes long before: at a scale of $2^{-24}$ the gradients are too small again.


# %%
def moved(skips):
    """How many of 72 weights a healthy step moves after so many skips; a Linear(8, 8) under float16 autocast."""
    torch.manual_seed(seed)
    net, x, scaler = nn.Linear(8, 8).to(device), torch.randn(4, 8).to(device), torch.amp.GradScaler(kind)
    start, optimizer = [p.clone() for p in net.parameters()], torch.optim.SGD(net.parameters(), lr=0.5)
    for bad in [True] * skips + [False]:
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.float16):
            loss = net(x).float().square().mean()
        scaler.scale(loss * torch.inf if bad else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return sum((p != q).sum().item() for p, q in zip(net.parameters(), start, strict=True))


# %% tags=["nbval-check-output", "C20", "R51"]
print({skips: moved(skips) for skips in (0, 20, 40)})

# %% [markdown]
# PyTorch does not stop this, on purpose: to look at the scale would make it wait for the GPU. So look yourself, now and
# then. **A scale below 1, or 20 skips in a row, is an alarm: stop, and find the first tensor that is not finite.**
#
# ## 5.7 What a scaler complains about
#
# A scaler wants three calls in each step: `scale(loss).backward()`, `step`, `update`. Its errors say which one is
# missing, or that there are no gradients which it can divide, if one can read them.


# %%
def attempt(action):
    """The result of action(), or the error as text."""
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def parts_of(*parameters, **options):
    return torch.optim.SGD(parameters, lr=0.1, **options), torch.amp.GradScaler(kind)


# %% tags=["nbval-check-output", "R60"]
weight = nn.Parameter(torch.ones(2, device=device))
weight.sum().backward()  # the loss was not scaled
optimizer, scaler = parts_of(weight)
scaler.load_state_dict(scaler.state_dict())  # as after a resume
print(attempt(lambda: scaler.step(optimizer)).split("  ")[0])

# %% [markdown]
# `scale` was never called on this scaler: forgotten, or called on another one, or the run was resumed and its first
# call is `step`. Loading a state does not replace it.

# %% tags=["nbval-check-output", "R62"]
scaler.scale(weight.sum()).backward()
scaler.step(optimizer)
print(attempt(lambda: scaler.step(optimizer)))
scaler.update()

# %% [markdown]
# `update` is missing. It is due once per iteration, after all optimizers.

# %% tags=["nbval-check-output", "R59"]
moved_away = nn.Parameter(torch.ones(2, device=device))  # what the optimizer holds; the loss uses `weight`
optimizer, scaler = parts_of(moved_away)
scaler.scale(weight.sum()).backward()
print(attempt(lambda: scaler.step(optimizer)))

# %% [markdown]
# None of the parameters of *this* optimizer has a gradient: they are frozen, or the loss does not depend on them, or
# the model was replaced after the optimizer was made. All three are `AssertionError` or `RuntimeError`, so an
# `except RuntimeError` misses some.
#
# ### Attempting to unscale FP16 gradients

# %% tags=["nbval-check-output", "R58", "C47"]
net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(device)
net[1].half()  # one layer is enough


def step_of(net, fused):
    optimizer, scaler = parts_of(*net.parameters(), fused=fused)
    with torch.autocast(kind, dtype=torch.float16):
        loss = net(torch.ones(1, 2, device=device)).float().sum()
    scaler.scale(loss).backward()
    return attempt(lambda: scaler.step(optimizer))


print("usual:", step_of(net, fused=False))
print("fused:", step_of(net, fused=True))
print("float16 parameters:", [name for name, p in net.named_parameters() if p.dtype == torch.float16])

# %% [markdown]
# A *trainable* parameter is float16: `model.half()`, a checkpoint loaded as float16, an adapter on a half base.
# Autocast wants float32 parameters and casts them itself. The fused optimizer prints `None`: it raises nothing, and
# goes on with the faults of lesson 2, such as updates that do not land. With `unscale_` called first, as for clipping,
# it raises as well. Find the parameter by its name, and make it float32.

# %% tags=["nbval-check-output", "C47"]
optimizer, scaler = parts_of(*net.parameters(), fused=True)
scaler.scale(net[1].weight.sum()).backward()
print(attempt(lambda: scaler.unscale_(optimizer)))

# %% [markdown]
# ### A scaler that is not one
#
# `GradScaler()` without a device means CUDA. Where there is none, it warns and is off: `scale` returns the loss as
# it is, `step` just steps. Float16 on a CPU is then unscaled. Name the device.

# %% tags=["nbval-check-output", "C13"]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    scaler = torch.amp.GradScaler()
print("on, exactly where there is CUDA:", scaler.is_enabled() == torch.cuda.is_available())
print("a warning, exactly if it is off:", len(caught) == (not scaler.is_enabled()))
print("GradScaler('cpu'):", torch.amp.GradScaler("cpu").is_enabled())

# %% [markdown]
# And old code that is moved from `torch.cuda.amp` keeps its positional argument, which was the initial scale. It is the
# device now:

# %% tags=["nbval-check-output", "C12"]
print("GradScaler(1024.0) starts at", torch.amp.GradScaler(1024.0).get_scale())
print("GradScaler(device, init_scale=1024.0) at", torch.amp.GradScaler(kind, init_scale=1024.0).get_scale())

# %% [markdown]
# One for Apple GPUs, which we do not have: with 16-bit *parameters*, unscaling made all their gradients zero. The
# kernel took the reciprocal of the scale for a 16-bit number, and was given a 32-bit one. Read it that way:

# %% tags=["nbval-check-output", "R91"]
reciprocal = torch.tensor([1 / 65536])  # float32
print("first half of its bytes, as float16:", reciprocal.view(torch.float16)[0].item())
print("as bfloat16:", reciprocal.view(torch.bfloat16)[0].item())

# %% [markdown]
# A power of two has no mantissa bits, so its lower half is zero, and every gradient was multiplied by that. A change of
# May 2026 repairs it. With float32 parameters, as autocast wants them, it never happened.
#
# ## 5.8 Without a scaler: bfloat16
#
# The gradients of 5.3 once more, unscaled, in bfloat16:

# %% tags=["nbval-check-output", "C42", "R56"]
print("normal numbers in bfloat16:", landed(trained, "bf16")["normal"] == 1)
scaled, _ = fit(torch.bfloat16, torch.amp.GradScaler(kind))
print("with a scaler the same weights:", all(map(torch.equal, scaled.parameters(), runs["bfloat16"][0].parameters())))

# %% [markdown]
# Not one is lost, or even subnormal. bfloat16 has the exponents of float32, nothing is rescued by a scale, and a scaler
# changes not one bit: `enabled=(dtype is torch.float16)`.
#
# Does it do harm? It costs a pass over all gradients. And since nothing overflows, it climbs, until bfloat16 overflows,
# too. With an interval of 1 one sees it at once; with the default it takes some 200 000 steps:

# %% tags=["nbval-check-output", "C43"]
weight, scaler = nn.Parameter(torch.ones(1, 8, device=device)), torch.amp.GradScaler(kind, growth_interval=1)
optimizer = torch.optim.SGD([weight], lr=0)
with ScalerLog(scaler) as log:
    for _ in range(120):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = F.linear(torch.full((1, 8), 8.0, device=device), weight).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
first = log.rows[log.skips[0]]
print("first skip in step", first.step, "at scale 2^125:", first.scale_before == 2.0**125)
print("clean steps until then with growth_interval 2000:", first.step * 2000)

# %% [markdown]
# That is with float32 parameters. With bfloat16 *parameters* the CPU takes the scaler, while CUDA is reported to raise
# `NotImplementedError` (not run here; a pull request of August 2026 proposes to add the missing kernel).

# %% tags=["nbval-check-output", "C43"]
weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))  # on the CPU
optimizer, scaler = torch.optim.SGD([weight], lr=0.5), torch.amp.GradScaler("cpu")
scaler.scale(weight.sum()).backward()
scaler.step(optimizer)
print(weight.tolist())

# %% [markdown]
# ### What you owe then
#
# A scaler does a second job that is easily forgotten: no step with a non-finite gradient passes it. Without it, one
# broken sample is enough. `clip_grad_norm_` returns the norm, and the norm is finite exactly if all gradients are (and
# their squares do not overflow):


# %%
def broken_sample(dtype, scaled=False, check=False):
    """Train for six steps; a feature of the third batch is infinite. Are the weights finite afterwards?"""
    torch.manual_seed(seed)
    net, x = nn.Linear(8, 1).to(device), torch.randn(6, 16, 8).to(device)
    x[2, 0, 0] = torch.inf
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler(kind, enabled=scaled)
    for batch in x:
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype):
            loss = net(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if norm.isfinite() or not check:
            scaler.step(optimizer)
        scaler.update()
    return net.weight.isfinite().all().item()


# %% tags=["nbval-check-output", "C42"]
print("float16 with a scaler:         ", broken_sample(torch.float16, scaled=True))
print("bfloat16:                      ", broken_sample(torch.bfloat16))
print("bfloat16, step if norm finite: ", broken_sample(torch.bfloat16, check=True))

# %% [markdown]
# So bfloat16 on hardware that has it (A100, H100, RTX 30 and later), without a scaler, *and* with these two lines.
#
# ## 5.9 Resume
#
# The scale is something that the run has learned. If a checkpoint forgets it, the new process learns it again:


# %%
def resumed(state):
    """Skips in the first twenty steps of a new process that loads this scaler state, or none."""
    net, optimizer, scaler = large()
    if state is not None:
        scaler.load_state_dict(state)
    with ScalerLog(scaler) as log:
        for _ in range(20):
            iterate(net, optimizer, scaler)
    return len(log.skips)


# %% tags=["nbval-check-output", "R80"]
saved = parts[2].state_dict()  # of the run in 5.4
print("scale saved:", saved["scale"])
print("skips without it:", resumed(None), " with it:", resumed(saved))
off = torch.amp.GradScaler(kind, enabled=False)
print("a scaler that is off saves", off.state_dict(), "→", attempt(lambda: resumed(off.state_dict())).split(",")[0])

# %% [markdown]
# Fourteen batches are not much. But the schedule of 5.5 is off by fourteen, and the run is no longer the one that you
# stopped. Save after `update()`, and load into a scaler that exists and is enabled.
#
# "The loss jumps after a reload": it need not be the scale. Stop the picture network after 60 steps and go on in
# four ways:

# %%
import copy


def go_on(model, optimizer, features, scaler, steps=6):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.float16):
            loss = F.mse_loss(model(features).sigmoid(), image)
        scaler.scale(1e-3 * loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


# %%
run = (*fresh(), torch.amp.GradScaler(kind))
go_on(*run, steps=60)
checkpoint = copy.deepcopy([part.state_dict() for part in (run[0], run[1], run[3])])
uninterrupted = go_on(*run)


# %%
def reload(halved=False, moments=True):
    weights, optimizer_state, scaler_state = copy.deepcopy(checkpoint)
    model, optimizer, features = fresh()
    model.load_state_dict({name: w.half() if halved else w for name, w in weights.items()})
    scaler = torch.amp.GradScaler(kind)
    scaler.load_state_dict(scaler_state)
    if moments:
        optimizer.load_state_dict(optimizer_state)
    return go_on(model, optimizer, features, scaler)


# %% tags=["R81"]
ways = {"uninterrupted": uninterrupted, "all restored": reload(), "weights saved as float16": reload(halved=True)}
ways["without Adam's moments"] = reload(moments=False)
for name, losses in ways.items():
    print(f"{name:25}", [round(loss, 7) for loss in losses])
assert ways["all restored"] == uninterrupted != ways["weights saved as float16"]
assert max(ways["without Adam's moments"]) > 2 * max(uninterrupted)

# %% [markdown]
# With everything restored, each loss is the same to the last bit. Weights that were rounded to float16 give a slightly
# different run. The jump comes from the optimizer: without its moments, Adam's first step moves every weight by the
# whole learning rate. Save float32 weights, optimizer, scaler, scheduler. Lesson 10 makes a checkpoint of it.
#
# ## What to take away
#
# - Float16 gradients *underflow*. Multiply the loss by a power of two, divide the gradients: exact, and enough.
# - The scale has a wide plateau and a cliff. The rule walks up to the cliff and back: halve and skip at inf, double
#   after 2000 clean steps.
# - A skip protects weights and optimizer. The scheduler, the counters, and after a non-finite forward pass BatchNorm's
#   statistics are yours.
# - There is no floor. A scale that falls at every step means that the *forward* pass is broken; stop before it is tiny.
# - Trainable parameters are float32. `GradScaler(device)` with a device. `update()` once per iteration.
# - bfloat16: no scaler, but a finite check of your own.
# - A checkpoint holds the scaler's state.
#
# One last question before the lab.

# %%
quiz("05.falling_scale")

# %% [markdown]
# **Now you:** [lab 5](../labs/05_dynamic_loss_scaling.ipynb). You write a scaler that equals PyTorch's, state by state,
# and a scheduler that knows about skips. **Next:** [lesson 6](06_order_of_a_step.ipynb), the order of a step.
#
# **Primary sources.** [Micikevicius et al. 2017][mixed]: loss scaling, and histograms like that of 5.3 ·
# [torch.amp][amp]: `GradScaler` · [AMP examples][examples]: the loop · [grad_scaler.py][source]: the rule's other half
#
# [mixed]: https://arxiv.org/abs/1710.03740
# [amp]: https://docs.pytorch.org/docs/stable/amp.html
# [examples]: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
# [source]: https://github.com/pytorch/pytorch/blob/main/torch/amp/grad_scaler.py
