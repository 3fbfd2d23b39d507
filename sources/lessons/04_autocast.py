# %% [markdown]
# # 4 Autocast and its op lists
#
# Autocast looks at the name of each operation and picks a dtype for it from a list. In this lesson PyTorch itself tells
# you what stands on that list, for a GPU that you need not have.
#
# **You will be able to** predict the dtype of an expression · look up any operation on four devices · find float32
# islands and casts in a model · place regions so that the model trains · repair the errors at a region's border ·
# give an operation of your own its dtype.
#
# *45 minutes · after lessons [1](01_bit_layouts.ipynb) and [2](02_where_precision_is_lost.ipynb) · runs in 15 s on two
# cores · only 20 minutes? Read 4.1, 4.3, 4.5 and 4.6*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("CUDA's rules are read from PyTorch. Without a GPU the CPU follows them, with real numbers.")

# %% [markdown]
# ## 4.1 One region, many dtypes
#
# `probe` answers one question: which dtype has this expression inside `torch.autocast("cuda", dtype=torch.float16)`? It
# runs on *fake* tensors, which have a shape and a dtype and no numbers, so it needs no GPU. The inputs here are
# float32.

# %% tags=["nbval-check-output"]
import torch
from ampedu.policy import probe

print("x @ y       ", probe("x @ y", (4, 4), (4, 4)))
print("x.softmax() ", probe("x.softmax(-1)", (4, 4)))

# %% [markdown]
# **Predict.** Now four results in a row. `x` and `y` are float32.

# %%
import torch.nn.functional as F


def four(x, y):
    h = x @ y
    return h, F.gelu(h), h.softmax(-1), h + x


# %%
from ampedu.widgets import quiz

quiz("04.four_results")

# %% tags=["nbval-check-output", "C23"]
print(probe(four, (4, 4), (4, 4)))

# %% [markdown]
# **Explain.** Autocast decides for each operation alone, by its name. It knows nothing about the layer, the values, or
# what comes next.
#
# - The product is on a list: 16 bits.
# - `gelu` is on *no* list. It runs in the dtype that arrives, and float16 arrived.
# - `softmax` is on another list: float32.
# - `+` is on no list either. Float16 plus float32 is float32, by the promotion that PyTorch always does.
#
# With bfloat16 the lists are the same. And float64 is never touched.

# %% tags=["nbval-check-output"]
print(probe(four, (4, 4), (4, 4), dtype=torch.bfloat16))
double = ((4, 4), torch.float64)
print(probe(four, double, double))

# %% [markdown]
# ## 4.2 The lists, asked from PyTorch
#
# Every call in PyTorch goes through a dispatcher. For some operations it holds an *autocast kernel*: a few lines that
# cast the inputs and then call the real thing. `autocast_policy` calls each of these kernels with empty tensors and
# looks which dtypes come out below. Nobody typed a list, and no GPU takes part.

# %%
from collections import Counter

from ampedu.policy import DEVICES, autocast_policy

lists = {name: autocast_policy(name) for name in DEVICES}

# %%
counts = {name: dict(Counter(policy.value for policy in found.values())) for name, found in lists.items()}
for name, found in counts.items():
    print(f"{name:4} {sum(found.values()):4} operations: {found}")

# %% [markdown]
# The numbers change with the version of torch, and a build for CUDA has an entry or two more. For the one that made
# this page they are known:

# %%
if torch.__version__ == "2.13.0+cpu":
    assert [sum(found.values()) for found in counts.values()] == [119, 127, 95, 117]
    assert counts["cuda"]["lower_precision"] == 35 and counts["cuda"]["banned"] == 1
print("torch", torch.__version__)

# %% [markdown]
# "Autocast has three kinds of operations" is what most texts say. There are five, and a sixth that is by far the
# largest:

# %% tags=["C23"]
for policy in dict.fromkeys(lists["cuda"].values()):
    print(f"{policy:18}", [name for name, p in lists["cuda"].items() if p is policy and name[0] != "_"][:5])
aten = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
listed = {name.partition(".")[0] for name in lists["cuda"]}
print(f"on no list: more than {(len(aten) - len(listed)) // 100 * 100} operations")

# %% [markdown]
# - **lower_precision**: the inputs are cast to 16 bits. Products and convolutions, where matrix units gain (lesson 3).
# - **float32**: the inputs are cast to float32.
# - **float32_set_dtype**: the input stays, the *result* is asked for in float32. Fused kernels read 16 bits and write
#   32, which saves a copy.
# - **promote_widest**: several tensors that must have one dtype get the widest among them.
# - **banned**: raises an error. One operation, which 4.7 is about.
# - Everything else runs in whatever dtype arrives.
#
# **Predict.** One of these four is on no list for CUDA.

# %%
quiz("04.not_listed")

# %%
from ampedu.operations import look_up
from ampedu.plots import policy_grid

chosen = """linear conv2d scaled_dot_product_attention softmax layer_norm rms_norm batch_norm exp sum mean gelu
mse_loss binary_cross_entropy dot cat""".split()

# %%
grid = {name: {on.device: on.found for on in look_up(name).devices} for name in chosen}
policy_grid(grid, title=f"Autocast policies of torch {torch.__version__.split('+')[0]}")

# %% [markdown]
# **Explain.** `batch_norm` is the one. Many texts put it on the float32 list; only Apple's MPS does. It needs no list
# on CUDA: the kernel reads float16, and keeps its statistics in float32 anyway. So feeding it `x.float()`, as some
# advise, buys a cast and a result of twice the size.

# %% tags=["nbval-check-output", "C22", "C27"]
print("half in:   ", probe("nn.BatchNorm1d(4, device=device)(x)", ((8, 4), torch.float16)))
print("x.float(): ", probe("nn.BatchNorm1d(4, device=device)(x.float())", ((8, 4), torch.float16)))
print("statistics:", torch.nn.BatchNorm1d(4).running_mean.dtype)

# %% tags=["nbval-check-output", "C22"]
for name in ("softmax", "log_softmax", "layer_norm", "cross_entropy"):
    operation = look_up(name)
    print(f"{name}: {probe(operation.expression, *[(shape, torch.float16) for shape in operation.shapes])}")

# %% [markdown]
# Look up anything. Try `rms_norm` (two versions of torch differ), `cross_entropy`, `interpolate`, `F.mse_loss`,
# `nn.GRUCell`, `@`. Then find an operation that the CPU lists and CUDA does not.

# %%
from ampedu.widgets import op_explorer

op_explorer("layer_norm")

# %% [markdown]
# The reasons in the explorer are this course's; the documentation gives lists without reasons. It is also a little
# behind. Here it is against what was found, and where the difference comes from:

# %% tags=["C24"]
from ampedu.policy import compare, summary

rows = compare("cuda")
print(summary(rows))
assert not [row.name for row in rows if row.status == "contradicted"]

# %% tags=["C24"]
for row in rows:
    if row.name in ("cross_entropy", "normalize", "einsum", "huber_loss", "logsumexp", "scaled_dot_product_attention"):
        print(f"{row.name} ({row.status}, {row.found or 'no kernel'}): {row.why}")

# %% [markdown]
# "Attention is on the float16 list" is true of `scaled_dot_product_attention`, one operation, with a softmax inside
# that autocast does not see. Written by hand, the softmax is float32 in the middle of it:


# %%
def by_hand(q, k, v):
    scores = q @ k.mT
    weights = scores.softmax(-1)
    return scores, weights, weights @ v, F.scaled_dot_product_attention(q, k, v)


# %% tags=["nbval-check-output", "C24"]
print(probe(by_hand, (1, 2, 8, 4), (1, 2, 8, 4), (1, 2, 8, 4)))

# %% [markdown]
# ## 4.3 CPU autocast is not CUDA autocast
#
# Without a GPU you would try such things with `torch.autocast("cpu")`, and so do many tutorials.
#
# **Predict.** Same code, on the CPU.

# %%
quiz("04.cpu_softmax")

# %% tags=["nbval-check-output", "C22", "C53"]
print(f"{'':12} {'CUDA':10} CPU")
for name in ("softmax", "log_softmax", "layer_norm", "exp", "log", "pow", "sum", "cumsum", "norm"):
    operation = look_up(name)
    shapes = [(shape, torch.float16) for shape in operation.shapes]
    on = [probe(operation.expression, *shapes, device=kind) for kind in ("cuda", "cpu")]
    print(f"{name:12} {str(on[0])[6:]:10} {str(on[1])[6:]}")

# %% [markdown]
# **Explain.** The CPU has lists of its own. None of these nine is on them, so they stay in float16. Whoever learns the
# table from `torch.autocast("cpu")` learns the wrong one.
#
# To run CUDA's lists *with numbers* on a CPU, replace the CPU's autocast kernels. `cuda_policy_on_cpu` does that, for
# the whole process, until its block ends. We wrap both worlds into one name:

# %%
kind = torch.device(device).type
place = device if kind == "cuda" else "cpu"  # where CUDA's rules run with numbers
region = torch.device(place).type  # what torch.autocast is called with there

# %%
from contextlib import contextmanager

from ampedu.policy import cuda_policy_on_cpu


@contextmanager
def cuda_rules(dtype=torch.float16, **options):
    """torch.autocast("cuda") on a GPU; its rules on the CPU where there is none."""
    if kind == "cuda":
        with torch.autocast("cuda", dtype=dtype, **options):
            yield
    else:
        with cuda_policy_on_cpu(dtype), torch.autocast("cpu", dtype=dtype, **options):
            yield


# %% [markdown]
# What difference does it make? `exp(12)` is 162 755, past the end of float16 at 65 504. So is the sum of 70 000 ones.

# %% tags=["nbval-check-output", "C53"]
twelve = torch.full((4,), 12.0, dtype=torch.float16)
ones = torch.ones(70_000, dtype=torch.float16)
with cuda_rules():
    print(f"CUDA: {twelve.to(place).exp()[0].item():.0f} {ones.to(place).sum().item():.0f}")
with torch.autocast("cpu", dtype=torch.float16):  # on the CPU
    print(f"CPU:  {twelve.exp()[0].item():.0f} {ones.sum().item():.0f}")

# %% [markdown]
# Range is one thing, digits are the other. Here is layer_norm by both rules, from the same bfloat16 inputs, against
# float64:

# %%
torch.manual_seed(seed)
x = (torch.randn(64, 256) * 3).bfloat16()
exact = F.layer_norm(x.double(), (256,))

# %% tags=["C53"]
with cuda_rules(torch.bfloat16):
    error_cuda = (F.layer_norm(x.to(place), (256,)).cpu() - exact).abs().max().item()
with torch.autocast("cpu", dtype=torch.bfloat16):  # on the CPU
    error_cpu = (F.layer_norm(x, (256,)) - exact).abs().max().item()
print(f"CUDA's rules {error_cuda:.0e}, the CPU's {error_cpu:.0e}")
assert error_cuda < 1e-5 and error_cpu > 100 * error_cuda

# %% [markdown]
# So "keep LayerNorm and softmax in float32 by hand" is superfluous on CUDA, where autocast does it. On the CPU nobody
# does it for you.
#
# Note also the default dtype. It differs, too; always write it down. float16 needs a loss scale (lesson 5), bfloat16
# does not.

# %% tags=["nbval-check-output", "R38"]
print({name: str(torch.get_autocast_dtype(name)) for name in DEVICES})

# %% [markdown]
# ## 4.4 A model under the microscope
#
# The course's running example, small: a transformer encoder. `trace_dtypes` runs it once, forward and backward, and
# writes down every operation with its dtypes.

# %%
from torch import nn


class Tiny(nn.Module):
    def __init__(self, vocabulary=32, width=64, layers=1):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


# %%
torch.manual_seed(seed)
model = Tiny().to(place)
tokens = torch.randint(0, 32, (4, 16), device=place)

# %%
from ampedu.trace import trace_dtypes


def loss_of(logits):
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def traced(dtype, policy="cuda"):
    return trace_dtypes(model, tokens, device_policy=policy, dtype=dtype, loss=loss_of)


# %%
traces = {"fp32": traced(None), "fp16": traced(torch.float16), "bf16": traced(torch.bfloat16)}

# %% [markdown]
# **Predict.** Embedding, attention, addition, norm, linear layers, loss: which of them will be float32 in the float16
# run? Write your list down; then look.

# %%
traces["fp16"].picture()

# %% [markdown]
# **Explain.** Follow the forward column. The embedding is on no list, so it returns its float32 weights. The linear
# layers and attention are 16 bits. Then comes `add`: float32 plus float16 is float32, so the residual stream stays
# float32 through the whole model. The norms are on the float32 list anyway. Each run of blue between orange is a
# **float32 island**, and the linear layer behind it has to cast its input again: the letter A.

# %% tags=["nbval-check-output"]
for name, trace in traces.items():
    casts, weights = trace.count(by="autocast")[0], trace.count(by="autocast", kind="weight")[0]
    print(f"{name}: {casts} casts by autocast, {weights} of weights; float32 islands: {len(trace.islands)}")

# %% [markdown]
# float16 and bfloat16 give the same trace; only the 16 bits differ. In the backward column, each operation has the
# dtype of its forward partner; 4.8 comes back to that.
#
# What if the residual stream is 16 bits? Then the norm casts it to float32 and keeps that copy for the backward pass,
# returns float32, and the next layer casts it back. In a large model that is felt. The remedy: a norm that stays low,
# in a disabled region. The kernel adds up in float32 in any case.


# %%
def low_norm(norm, x):
    with torch.autocast(region, enabled=False):
        return F.layer_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)


# %%
norm, h = nn.LayerNorm(64).to(place), torch.randn(512, 64, device=place).half()
with cuda_rules():
    listed, low = norm(h), low_norm(norm, h)

# %% tags=["R23"]
print(f"input {h.nbytes} bytes, on the list {listed.nbytes}, kept low {low.nbytes}")
same = (low == listed.half()).double().mean().item()
print(f"{same:.1%} of the low results are the float32 results, rounded once")
assert listed.nbytes == 2 * low.nbytes and same > 0.9

# %% [markdown]
# And under the CPU's own lists? Trace both, and list the forward operations whose dtypes differ.


# %%
import copy


def differences(model, x):
    """(module, call, dtype by CUDA's lists, by the CPU's) for each forward operation that differs; on the CPU."""
    on_cpu = copy.deepcopy(model).cpu()
    both = [trace_dtypes(on_cpu, x.cpu(), device_policy=policy, dtype=torch.float16) for policy in ("cuda", "cpu")]
    pairs = zip(*([op for op in trace.select("forward") if op.computes] for trace in both), strict=True)
    return [(a.module, a.call, str(a.floats[0]), str(b.floats[0])) for a, b in pairs if a.floats != b.floats]


# %% tags=["nbval-check-output", "C53"]
print("text:  ", differences(model, tokens))

# %% tags=["nbval-check-output", "C53"]
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
sound = nn.Sequential(nn.Linear(20, 64), nn.TransformerEncoder(layer, 1, nn.LayerNorm(64), enable_nested_tensor=False))
for difference in differences(sound, torch.randn(4, 16, 20)):
    print("sound: ", *difference)

# %% [markdown]
# No difference at all in our model, and that is luck: its norms see a float32 residual stream, so "as it arrives" is
# float32, too. A model for sound or images starts with a linear layer instead of an embedding, and its residual stream
# is 16 bits from the start. By CUDA's lists its norms are float32, by the CPU's they are not. Never conclude from one
# model, and not from the CPU to a GPU.

# %% [markdown]
# ## 4.5 The weight cache
#
# Autocast leaves the parameters in float32 and casts them when they are used. A weight that is used twice in a region
# would be cast twice; so autocast keeps its casts, and forgets them when the *outermost* region ends.
#
# Count casts with a dispatch mode, as in lesson 3. **Predict** both numbers before you run the second cell: a `Linear`
# with bias is called three times, with three inputs.

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Casts(TorchDispatchMode):
    """Counts copies into another dtype."""

    def __enter__(self):
        self.count = 0
        return super().__enter__()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op is torch.ops.aten._to_copy.default
        return op(*args, **(kwargs or {}))


# %%
linear = nn.Linear(8, 8).to(place)
inputs = [torch.randn(4, 8, device=place) for _ in range(3)]

# %% tags=["nbval-check-output"]
for cache in (True, False):
    with Casts() as casts, cuda_rules(cache_enabled=cache):
        for x in inputs:
            linear(x)
    print("with cache:   " if cache else "without cache:", casts.count, "casts")

# %% [markdown]
# **Explain.** Weight, bias and three inputs make 5. Without the cache it is three times weight, bias, input. The cache
# holds only float32 *leaves that require gradients*: the parameters that you train. Freeze them, and each use casts
# again. A frozen backbone under autocast pays for that; cast it once with `.half()` or `.bfloat16()` instead.

# %% tags=["nbval-check-output"]
linear.requires_grad_(False)
with Casts() as casts, cuda_rules():
    for x in inputs:
        linear(x)
print("frozen:", casts.count, "casts")

# %% [markdown]
# ### A training loop that never trains
#
# "Forgets them when the outermost region ends." Then what if the region is the whole loop?
#
# **Predict.** Five steps of SGD. In one run each forward pass has a region; in the other, a second region lies around
# the loop.

# %%
quiz("04.whole_loop")


# %%
def train(outer, steps=5):
    """Five losses inside `outer`, and the loss after it, in float32."""
    torch.manual_seed(seed)
    net, x = nn.Linear(16, 1).to(device), torch.randn(64, 16).to(device)
    y = x @ torch.linspace(-1, 1, 16, device=device)[:, None]
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.2), []
    with outer:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(kind, dtype=torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, F.mse_loss(net(x), y).item()


# %%
from contextlib import nullcontext

good, good_after = train(nullcontext())
bad, bad_after = train(torch.autocast(kind, dtype=torch.bfloat16))

# %% tags=["R46"]
print("one region per forward:", [round(loss, 3) for loss in good], "then", round(good_after, 3))
print("one around the loop:   ", [round(loss, 3) for loss in bad], "then", round(bad_after, 3))
assert len(set(bad)) == 1 and bad_after > bad[0] and good[-1] < good[0] / 5

# %% [markdown]
# **Explain.** The optimizer changes the weights *in place*. The cache does not notice: its casts are those of the first
# step. So every forward pass uses the weights of the first step, and every backward pass gives the gradient of the
# first step. The weights do move, five times in the same direction, blindly. Once the region ends, the model is worse
# than at the start.

# %%
from ampedu.plots import curves

curves(
    range(1, 6),
    {"one region per forward": good, "one around the loop": bad},
    title="The same loop, with a second region around it",
    xlabel="step",
    ylabel="loss",
    alt="Loss over five steps. With one region per forward pass it falls from step to step. With a region around the "
    "loop it is the same number five times.",
)

# %% [markdown]
# A reader might turn the outer region off to be safe. It makes no difference: a disabled region is a region, and the
# cache lives until the outermost one ends.

# %% tags=["R46"]
off, _ = train(torch.autocast(kind, enabled=False))
print("one around the loop, disabled:", [round(loss, 3) for loss in off])
assert off == bad

# %% [markdown]
# The same in three lines: a weight of 1 is tripled inside a region.

# %%
linear = nn.Linear(1, 1, bias=False).to(device)
nn.init.ones_(linear.weight)
one = torch.ones(1, 1, device=device)

# %% tags=["nbval-check-output", "R46"]
with torch.autocast(kind, dtype=torch.bfloat16), torch.no_grad():
    print("before:", linear(one).item(), end="  ")
    linear.weight.mul_(3)
    print("after:", linear(one).item(), end="  ")
    torch.clear_autocast_cache()
    print("cache cleared:", linear(one).item())

# %% [markdown]
# So: **one region per forward pass, and nothing else in it**. The same goes for weight averaging, weight clipping, and
# swapping LoRA weights inside a region.
#
# Old advice says that a forward pass under `no_grad` poisons the cache for the next one, so that gradients go missing.
# That was true of old versions; those that this course supports are repaired:

# %% tags=["nbval-check-output", "R44"]
linear = nn.Linear(2, 2).to(device)
with torch.autocast(kind, dtype=torch.bfloat16):
    with torch.no_grad():
        linear(torch.ones(1, 2, device=device))
    linear(torch.ones(1, 2, device=device)).sum().backward()
print("gradient arrived:", linear.weight.grad is not None)

# %% [markdown]
# Two more places where the cache shows. `torch.jit.trace` (deprecated itself) finds a cached cast and takes it for a
# constant. And the state of autocast belongs to a *thread*: a thread of your own starts without it.

# %%
import warnings


def attempt(action):
    """The result of action(), or the error as text."""
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


# %% tags=["R47"]
twice = nn.Sequential(linear, linear)
for cache in (True, False):
    with warnings.catch_warnings(), torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=cache):
        warnings.simplefilter("ignore")
        found = attempt(lambda: type(torch.jit.trace(twice, torch.ones(1, 2, device=device))).__name__)
        print("jit.trace with cache:   " if cache else "jit.trace without cache:", found)
        assert ("Cannot insert a Tensor" in found) == cache

# %%
seen = []


def state():
    seen.append((torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))))


# %% tags=["nbval-check-output", "R48", "R39"]
import threading

with torch.autocast("cpu", dtype=torch.float16):  # on the CPU
    state()
    other = threading.Thread(target=state)
    other.start()
    other.join()
print("this thread:", seen[0], " another:", seen[1])

# %% [markdown]
# The other thread knows neither the region nor its dtype. `DataParallel` hands the state over; for threads of your own
# open a region in each. On CUDA the backward pass runs in threads of its own, and by a report from 2024 recomputed
# bfloat16 operations came back in the *default* float16 there. (This needs a GPU and was not run here.)
#
# ## 4.6 Off, nested, and out of the region
#
# Regions nest; the innermost one counts; after it the state is as before. `enabled=False` switches off.
#
# **Predict.** To protect one product from 16 bits, people write `.float()` before it.

# %%
quiz("04.float")

# %% tags=["nbval-check-output", "R40", "C26", "C49"]
x, w = torch.ones(4, 4, device=place), torch.ones(4, 4, device=place)
with cuda_rules():
    h = x @ w
    print("h.float() @ w:                 ", (h.float() @ w).dtype)
    with torch.autocast(region, enabled=False):
        print("h.float() @ w, region disabled:", (h.float() @ w).dtype)
    with torch.autocast(region, dtype=torch.bfloat16):
        print("nested bfloat16 region:        ", (x @ w).dtype)
    print("afterwards:                    ", (x @ w).dtype)

# %% [markdown]
# **Explain.** Autocast casts again: the product is on the list, whatever arrives. An island of float32 needs *both*: a
# disabled region, and `.float()` on what comes in. Leave one out, and it is either 16 bits, or an error:

# %% tags=["nbval-check-output", "R29"]
with cuda_rules(), torch.autocast(region, enabled=False):
    print(attempt(lambda: h @ w).split(":")[0])
print("outside:", attempt(lambda: h @ w).split(":")[0], "and with .float():", (h.float() @ w).dtype)
with cuda_rules():
    print("float64 @ float32:", attempt(lambda: x.double() @ w).split(":")[0])

# %% [markdown]
# "mat1 and mat2 must have the same dtype", "expected Half but found Float": this is the most common error of all with
# AMP. A low-precision tensor has left its region, or meets a dtype that autocast does not touch: float64, integers.
# Extend the region, or write `.float()` at the border.
#
# "An island in the middle slows everything down, by promotion." No: the next listed operation casts back. What it costs
# are the casts, and one activation of twice the size. Count:


# %%
def stack(x, island):
    h = x @ w
    h = h.float().exp().log() if island else h.relu()
    return h @ w


# %% tags=["nbval-check-output", "C49"]
for island in (False, True):
    with Casts() as casts, cuda_rules():
        print("island:" if island else "none:  ", stack(x, island).dtype, casts.count, "casts")

# %% [markdown]
# ### A float32 region is no float32 region
#
# `torch.autocast(..., dtype=torch.float32)` looks like an island. CUDA takes it; the others warn and switch *off*, so
# that 16-bit inputs meet float32 weights. It used to be an error on the CPU.

# %% tags=["R41", "R42"]
for name in ("cpu", "mps", "xpu"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.autocast(name, dtype=torch.float32)
        torch.autocast(name, dtype=torch.float32, enabled=False)
    print(f"{name}: {len(caught)} warning: {str(caught[0].message).splitlines()[0]}")
    assert "Disabling autocast" in str(caught[0].message)


# %%
def float32_region(x):
    with torch.autocast("cuda", dtype=torch.float32):
        return x.half() @ x


# %% tags=["nbval-check-output", "R42"]
print("CUDA:", probe(float32_region, (4, 4)))

# %% [markdown]
# The form that works everywhere: `enabled=False`, and `.float()`.
#
# ### Five errors at the border
#
# Writes through an *index tensor* do not cast and do not promote. `h` is float16, the buffer float32.

# %%
rows, index = torch.tensor([0, 1], device=place), torch.zeros(1, 4, dtype=torch.long, device=place)
buffer = torch.zeros(4, 4, device=place)
writes = {
    "buffer[rows] = h[:2]": lambda: buffer.__setitem__(rows, h[:2]),
    "buffer.index_add_(0, rows, h[:2])": lambda: buffer.index_add_(0, rows, h[:2]),
    "buffer.scatter_add_(0, index, h[:1])": lambda: buffer.scatter_add_(0, index, h[:1]),
    "buffer[rows] = h[:2].to(buffer.dtype)": lambda: buffer.__setitem__(rows, h[:2].to(buffer.dtype)),
    "buffer.index_put((rows,), h[:2])": lambda: buffer.index_put((rows,), h[:2]).dtype,
}

# %% tags=["nbval-check-output", "R30"]
with cuda_rules():
    for text, write in writes.items():
        print(f"{text:38}", str(attempt(write)).split(":")[0])

# %% [markdown]
# The last one is out of place, and on CUDA's promote list. The general rule: **in-place operations and `out=` never
# autocast**. They have a tensor to write to, and its dtype stands.

# %% tags=["nbval-check-output", "R105"]
with cuda_rules():
    print("mm", torch.mm(x, w).dtype, " mm(out=)", torch.mm(x, w, out=torch.empty_like(x)).dtype)
    print("exp", h.exp().dtype, " exp_", h.clone().exp_().dtype)
    print("h + x", (h + x).dtype, " h += x", h.clone().add_(x).dtype)

# %% [markdown]
# NumPy has no bfloat16, and sparse products have few 16-bit kernels. Both cure the same way: `.float()`, and for the
# product a disabled region around it.

# %% tags=["R31"]
refused = attempt(lambda: h.bfloat16().cpu().numpy())
print(refused, "→", h.bfloat16().float().cpu().numpy().dtype)
assert refused.startswith("TypeError")

# %% tags=["R33"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that CSR is in beta
    sparse, dense = torch.eye(4).to_sparse_csr(), torch.ones(4, 4)  # on the CPU
with torch.autocast("cpu", dtype=torch.bfloat16):
    refused = attempt(lambda: torch.sparse.mm(sparse, dense).dtype)
    print(refused)
    with torch.autocast("cpu", enabled=False):
        print("disabled, float32 inputs:", torch.sparse.mm(sparse, dense).dtype)
assert "Error" in str(refused)

# %% [markdown]
# ## 4.7 Losses
#
# "The loss inside autocast is float16." Which loss?

# %%
half = ((4, 4), torch.float16)
losses = {
    "cross_entropy": "F.cross_entropy(x, torch.tensor([0, 1, 2, 3], device=device))",
    "mse_loss": "F.mse_loss(x, y)",
    "by hand, squares": "(x - y).square().mean()",
    "by hand, distances": "(x - y).abs().mean()",
}

# %% tags=["nbval-check-output", "C21"]
for name, text in losses.items():
    on = [str(probe(text, half, half, device=there)) for there in ("cuda", "cpu")]
    print(f"{name:20} CUDA {on[0]}  CPU {on[1]}")

# %% [markdown]
# Nearly all losses of PyTorch end in float32, on both devices. A loss of your own is a chain of operations like any
# other. `square` is `pow`, which is float32 on CUDA, and the mean then stays there; `abs` is on no list, nor is `mean`.
# In such a chain write `.float()` first.
#
# A wrapper that writes `.float()` on *both* arguments, as is often recommended, breaks class indices; float targets
# (probabilities) survive it.

# %% tags=["C26"]
logits, classes = torch.randn(4, 4, device=place), torch.arange(4, device=place)
refused = attempt(lambda: F.cross_entropy(logits.float(), classes.float()))
print(refused)
assert "Long" in refused
print(F.cross_entropy(logits.float(), logits.softmax(-1).float()).dtype)

# %% [markdown]
# ### The banned one
#
# `BCELoss` takes probabilities. Logit 12, target 0: the loss is 12.

# %% tags=["nbval-check-output", "R27"]
logit, target = torch.full((1,), 12.0, device=place), torch.zeros(1, device=place)
with cuda_rules():
    print("BCELoss:", attempt(lambda: F.binary_cross_entropy(logit.half().sigmoid(), target)).split(":")[0])
    print("with logits:", round(F.binary_cross_entropy_with_logits(logit.half(), target).item(), 4))

# %% tags=["nbval-check-output", "R27"]
p = logit.half().sigmoid()
print("what it would have seen: p =", p.item(), "and a loss of", F.binary_cross_entropy(p.float(), target).item())

# %% [markdown]
# In float16, a sigmoid of 12 is exactly 1. The logarithm of $1 - p$ is $-\infty$, which PyTorch cuts off at −100, and
# the slope of the sigmoid is 0 there, so that no gradient comes through. No cast can bring back what the sigmoid
# rounded away; that is why CUDA's autocast refuses instead of casting. `BCEWithLogitsLoss` takes the logit. If there is
# no way around probabilities: a disabled region with `.float()`, and the sigmoid inside as well. Not every device
# refuses, so code that was tried on a CPU can raise on a GPU:

# %% tags=["nbval-check-output", "R27"]
bce = "F.binary_cross_entropy(x, y)"
for there in DEVICES:
    print(there, str(attempt(lambda there=there: probe(bce, half, half, device=there))).split(":")[0])

# %% [markdown]
# ## 4.8 The way back
#
# `backward()` stands outside the region. Why? The usual answer is that the backward pass must be float32. Look at it.

# %%
net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(place)
x, classes, outputs = torch.ones(4, 8, device=place), torch.zeros(4, dtype=torch.long, device=place), []


def keep(layer, inputs, output):
    output.retain_grad()
    outputs.append(output)


# %%
for layer in net:
    layer.register_forward_hook(keep)
with cuda_rules():
    loss = F.cross_entropy(net(x), classes)
loss.backward()

# %% tags=["nbval-check-output", "C60", "R25"]
for layer, output in zip(net, outputs, strict=True):
    weights = {str(p.grad.dtype) for p in layer.parameters()} or "none"
    print(f"{type(layer).__name__:10} activation gradient {output.grad.dtype}, parameter gradients {weights}")

# %% [markdown]
# Each activation's gradient has the dtype of the activation. The backward pass needs no region, because autograd
# remembers what the forward pass ran in. And the cast of a weight is an operation with a gradient, too: it casts back.
# So the gradients of float32 parameters are float32, and "gradients are float32, is autocast broken?" is answered: it
# works as meant. But a gradient that was 0 in float16 on its way is 0 in float32.


# %%
def zeros(dtype, scale):
    """Share of a weight's gradients that are exactly zero; the loss is small, as auxiliary losses are."""
    torch.manual_seed(seed)
    linear, x = nn.Linear(64, 64).to(place), torch.randn(64, 64).to(place)
    with cuda_rules(dtype):
        loss = 1e-5 * linear(x).float().square().mean()
    (scale * loss).backward()
    return f"{(linear.weight.grad == 0).double().mean().item():.0%}"


# %% tags=["nbval-check-output", "R38"]
print("fp16", zeros(torch.float16, 1), " fp16 with a loss scale", zeros(torch.float16, 65536), end="")
print("  bf16", zeros(torch.bfloat16, 1))

# %% [markdown]
# Lesson 5 is about that scale. And if `backward` *is* inside the region? Two forward passes, in a region and in
# float32, each with both ways back:


# %%
def gradient(forward, backward):
    torch.manual_seed(seed)
    linear, x = nn.Linear(64, 64), torch.randn(8, 64)  # on the CPU
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=forward):
        loss = linear(x).float().square().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=backward):
        loss.backward()
    return linear.weight.grad


# %% tags=["nbval-check-output", "C61"]
for forward in (True, False):
    without, inside = gradient(forward, False), gradient(forward, True)
    print("forward in a region:" if forward else "forward in float32: ", "same bits:", torch.equal(without, inside))

# %% [markdown]
# Nothing is gained where autocast was on, and where you had kept it off, it now casts the gradient's products as well.
# So leave `backward()` outside; the reason is not that it must be float32.
#
# ## 4.9 Operations of your own
#
# An `autograd.Function` saves tensors in the forward pass. In the region autocast has cast some of what you compute
# with; in backward, outside, nothing is cast. The gradient that arrives is 16 bits, what you saved is float32:


# %%
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w.T, x.T @ gradient


# %% [markdown]
# The decorators `custom_fwd` and `custom_bwd` let backward run under the same autocast as forward did, dtype
# included. With `cast_inputs`, the inputs are cast to that dtype first, and autocast is off inside both.


# %%
from torch.amp import custom_bwd, custom_fwd


def decorated(device_type, **options):
    """Product with both decorators."""

    class Decorated(torch.autograd.Function):
        forward = staticmethod(custom_fwd(Product.forward, device_type=device_type, **options))
        backward = staticmethod(custom_bwd(Product.backward, device_type=device_type))

    return Decorated


# %%
def use(function):
    x, w = (torch.ones(4, 4, device=device, requires_grad=True) for _ in range(2))
    with torch.autocast(kind, dtype=torch.bfloat16):
        result = function.apply(x, w)
    result.float().sum().backward()
    return result.dtype, w.grad.dtype


# %%
functions = {
    "as it stands": Product,
    "custom_fwd, custom_bwd": decorated(kind),
    "cast_inputs=float32": decorated(kind, cast_inputs=torch.float32),
    "for another device": decorated("xpu"),
}

# %% tags=["nbval-check-output", "R36", "R37"]
for name, function in functions.items():
    print(f"{name:24}", str(attempt(lambda function=function: use(function))).split(":")[0])

# %% [markdown]
# The last line is a trap: decorators for another device do nothing, without a word.
#
# A custom operation of `torch.library` is on no list. If its kernel wants one dtype, a mix raises:


# %%
@torch.library.custom_op("lesson04::blend", mutates_args=())
def blend(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.lerp(b, 0.5)


# %% tags=["nbval-check-output", "R35"]
def in_region():
    with torch.autocast(kind, dtype=torch.bfloat16):
        return blend(one @ one, one).dtype


print(attempt(in_region).split(":")[0])

# %% tags=["nbval-check-output", "R35"]
torch.library.register_autocast("lesson04::blend", kind, torch.float32)
print(in_region())

# %% [markdown]
# `register_autocast` gives it a dtype: the inputs are cast, and autocast is off inside. A tutorial's
# `torch.amp.register_op_dtype` does not exist:

# %% tags=["nbval-check-output", "C25"]
print(hasattr(torch.amp, "register_op_dtype"), hasattr(torch.library, "register_autocast"))

# %% [markdown]
# ## 4.10 Calls that no longer work
#
# Copied code often fails here.

# %% tags=["shows-deprecated", "C11"]
from torch.cuda.amp import autocast as old_autocast

calls = {
    "torch.cuda.amp.autocast(device_type='cuda')": lambda: old_autocast(device_type="cuda"),
    "torch.amp.autocast(enabled=False)": lambda: torch.amp.autocast(enabled=False),
    "torch.amp.autocast(dtype=torch.bfloat16)": lambda: torch.amp.autocast(dtype=torch.bfloat16),
    "torch.amp.autocast(torch.device('cpu'))": lambda: torch.amp.autocast(torch.device("cpu")),
}

# %% tags=["nbval-check-output", "C11", "C12"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for text, call in calls.items():
        print(f"{text:44}", attempt(call).split(":")[0])
print("GradScaler(1024.0) starts at", torch.amp.GradScaler(1024.0).get_scale())

# %% [markdown]
# "Only the import path has changed" is false: the device moved to the front. The old class knows no `device_type`; the
# new one insists on it, as a string. And `GradScaler(1024.0)` takes 1024.0 for a device and says nothing (lesson 2).
# Write `torch.autocast("cuda", dtype=torch.bfloat16)`.
#
# There is no switch for bfloat16 as a whole either:

# %% tags=["nbval-check-output", "C15", "C16"]
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
print(attempt(lambda: matmul.allow_bf16).split(":")[0], attempt(lambda: cudnn.allow_bf16).split(":")[0])
print(attempt(lambda: setattr(matmul, "allow_bf16_reduced_precision", True)).split(":")[0])
cudnn.allow_bf16_reduced_precision = True  # accepted, and without any effect: it is a new attribute
del cudnn.allow_bf16_reduced_precision
print("real, and about sums:", matmul.allow_bf16_reduced_precision_reduction)

# %% [markdown]
# The flag that does exist, `…_reduction`, is about the sums inside bfloat16 products; float16 has one of its own. It
# does not choose a dtype. The cuDNN spelling is accepted because Python lets you set any attribute.
#
# One for Apple: `GradScaler` on MPS raised an error, because the scale was made float64, which MPS does not have. We
# have no such machine; the source shows that the device `mps:0` goes another way today.

# %% tags=["R89"]
import inspect

source = inspect.getsource(torch.amp.GradScaler.unscale_)
print([line.strip() for line in source.splitlines() if "mps" in line or "double()" in line])
assert "mps" in source or "double()" not in source  # float64 is not made on MPS

# %% [markdown]
# ## What to take away
#
# - Autocast looks up each operation by name. Products get 16 bits; exponentials, sums, layer norms and PyTorch's
#   losses float32 (on CUDA); the many others run in what arrives.
# - CPU autocast has other lists: softmax and norms stay in 16 bits there. Never learn CUDA's table from it.
# - One region per forward pass. The cache of casts lives until the outermost region ends, and does not see the
#   optimizer.
# - A float32 island needs `enabled=False` *and* `.float()`. At the border: `.float()`, or `.to(buffer.dtype)`.
# - In-place and `out=` never autocast. Hand-written losses: `.float()` first. Logits, not probabilities.
# - Activation gradients have the dtype of the activation, parameter gradients that of the parameter. `backward()`
#   stands outside.
# - Your own operations: `custom_fwd` and `custom_bwd` with the right device, or `register_autocast`.
#
# One last question before the lab.

# %%
quiz("04.which_fix")

# %% [markdown]
# **Now you:** [lab 4](../labs/04_autocast.ipynb). You predict twenty dtypes, write an autocast of your own in forty
# lines, and repair five errors at the border.
#
# **Primary sources.** [Micikevicius et al. 2017][mixed]: which operations in which precision, and why ·
# [torch.amp][amp]: the documented lists · [AMP examples][examples]: custom functions · [autocast_mode.h][header]: the
# lists as PyTorch compiles them · [torch.library][library]: `register_autocast`
#
# [mixed]: https://arxiv.org/abs/1710.03740
# [amp]: https://docs.pytorch.org/docs/stable/amp.html
# [examples]: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
# [header]: https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/autocast_mode.h
# [library]: https://docs.pytorch.org/docs/stable/library.html
