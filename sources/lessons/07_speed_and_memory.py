# %% [markdown]
# # 7 Speed and memory of a real model
#
# "Two to three times faster, half the memory." In this lesson you write down where the bytes and the milliseconds of a
# training step go *before* you run it, and then the device says how well you did.
#
# **You will be able to** predict the memory of a step, row by row · say when AMP needs *more* · measure a peak without
# counting the model before · combine AMP, accumulation and checkpointing · say how much faster a step can become at
# most · find out from a profile why AMP made a model slower · climb the ladder of cures, with time and memory before
# and after each rung.
#
# *50 minutes · after lessons [3](03_tensor_cores.ipynb) and [4](04_autocast.ipynb) · runs in 25 s on two cores · only
# 20 minutes? Read 7.1, 7.3, 7.6 and 7.10*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
machine = this_machine(device)
machine.card("Memory is predicted for a GPU's rules and measured here. Times are of this machine, and promise nothing.")

# %% [markdown]
# ## 7.1 Why not half
#
# The running example of the course: a transformer encoder, and a batch of 16 sequences of 64 tokens.

# %%
import torch
import torch.nn.functional as F
from ampedu.memory.formulas import Transformer
from torch import nn

torch.manual_seed(seed)
model = Transformer(width=128, depth=2)
tokens = torch.randint(1000, (16, 64))

# %% tags=["nbval-check-output"]
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {tokens.numel():,} tokens")

# %% [markdown]
# **Predict.** The optimizer is AdamW.

# %%
from ampedu.widgets import quiz

quiz("07.half")

# %% [markdown]
# `predict` runs one training step on *fake* tensors: shapes and dtypes, no numbers, as in lesson 4. It writes down
# every storage, from the operation that makes it until it is freed. Three policies: float32; autocast to bfloat16
# under CUDA's lists; and **pure bfloat16**, the model converted with `.bfloat16()`.

# %%
from ampedu.memory import predict

policies = {"float32": "fp32", "AMP": "bf16", "pure bfloat16": "pure_bf16"}
ledgers = {name: predict(model, (tokens, tokens), policy=policy) for name, policy in policies.items()}

# %%
from ampedu.plots import memory_bars

memory_bars(ledgers)

# %% tags=["nbval-check-output", "C02", "R20"]
full, amp, pure = ledgers.values()
print(f"AMP: {amp.peak / full.peak:.0%} of float32; pure bfloat16: {pure.peak / full.peak:.0%}")
for name in ("parameters", "gradients", "optimizer state", "weight casts", "saved activations"):
    print(f"{name:18}", *(f"{ledger[name] / 2**20:6.2f}" for ledger in ledgers.values()), "MiB")

# %% tags=["nbval-check-output", "C02"]
same = ("parameters", "gradients", "optimizer state")
assert all(amp[row] == full[row] for row in same) and 0.75 < amp.peak / full.peak < 0.85
print("pure bfloat16 / float32:", [round(pure[row] / full[row], 3) for row in same])

# %% [markdown]
# **Explain.** Three rows do not move at all: weights, gradients and optimizer state are float32 under autocast. A new
# row appears, the 16-bit copies of the weights (lesson 4.5). What shrinks is what the forward pass saves for backward,
# and not by half: the residual stream, the norms and the end of the loss stay float32.
#
# Half is what *pure* bfloat16 gives. You know its price from lesson 2: small updates are lost.
#
# The whole ledger of the AMP step. "MiB at the peak" is what a row takes at the worst moment; the rows have their
# largest values at different times, so the peak is less than their sum. Gradients, for one, do not exist yet when it
# comes: at the very start of backward.

# %% tags=["nbval-check-output"]
amp

# %% [markdown]
# Which modules save most? Look at the loss: it keeps 1000 numbers for each token, twice. CUDA's autocast has no rule
# for `F.cross_entropy` itself, only for its parts. It asks for the logarithms of softmax in the dtype of the logits,
# and gets them in 16 bits; then `nll_loss`, which is on the float32 list, makes a copy of them.

# %% tags=["nbval-check-output"]
for part in ("head", "loss", "encoder.layers.0.self_attn", "encoder.layers.0.norm1", "encoder.layers.0.linear1"):
    print(f"{part:26} saves {amp.by_module[part] / 2**20:.2f} MiB")
assert amp.by_module["loss"] == tokens.numel() * 1000 * (2 + 4) + 4  # and one number, the sum of class weights

# %%
amp.picture()

# %% [markdown]
# ### Measured
#
# A prediction is worth what a measurement says. `measure` runs real steps: hooks on saved tensors and on every
# operation give the rows, and the device's own allocator gives the peak. (Without a GPU: CUDA's lists with numbers on
# the CPU.)

# %%
from ampedu.memory import measure

place = device if torch.device(device).type == "cuda" else "cpu"
here = model.to(place), (tokens.to(place), tokens.to(place))
measured = {name: measure(*here, policy=policy) for name, policy in policies.items()}

# %% tags=["measured", "C02"]
from ampedu.memory import reconcile

print(reconcile(amp, measured["AMP"]))

# %% tags=["measured", "C02"]
for name, ours in ledgers.items():
    theirs = measured[name]
    assert all(ours[row] == theirs[row] for row in same)
    pairs = [(ours["saved activations"], theirs["saved activations"])]
    pairs += [(ours.moments[phase].bytes, theirs.moments[phase].bytes) for phase in theirs.moments]
    worst = max(abs(a / b - 1) for a, b in pairs)
    print(f"{name:14} worst {worst:.2%}; against the allocator {ours.peak / theirs.peak - 1:+.2%}")
    assert worst < 0.05

# %% [markdown]
# Weights, gradients and state agree to the byte; the saved activations and the peak of each phase within 5 %.
#
# ## 7.2 The fixed part: bytes per parameter
#
# "16 bits are 2 bytes per parameter." Count those of an optimizer step: weights, gradients, AdamW's two moments, and
# what the step itself needs while it runs. AdamW comes in three forms. *foreach*, the default on a GPU, handles all
# parameters at once; *for-loop*, the default on a CPU, one after the other; *fused* is one kernel.

# %%
mlp = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)], nn.Linear(512, 10))


def rows(count):
    return torch.empty(count, 512, device="meta"), torch.empty(count, dtype=torch.long, device="meta")


def step_bytes(policy, form):
    ledger = predict(mlp, rows(1), policy=policy, implementation=form)
    return ledger.moments["optimizer step"].bytes / ledger.parameters


# %% tags=["nbval-check-output", "C02", "R24"]
for form in ("foreach", "for-loop", "fused"):
    per = {name: step_bytes(policy, form) for name, policy in policies.items()}
    print(f"{form:9}", {name: round(size, 2) for name, size in per.items()})
    assert abs(per["AMP"] - per["float32"]) < 0.01 and abs(per["pure bfloat16"] / per["AMP"] - 0.5) < 0.01

# %% [markdown]
# 4 + 4 + 8 = 16 with the fused form. The foreach form holds one more copy of everything for a moment, 4 bytes; the
# loop only that of one layer at a time, so its figure depends on the model. And AMP changes nothing here. The same is
# true of the checkpoint file:


# %%
import io


def file_bytes(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer().nbytes / amp.parameters


# %% tags=["nbval-check-output", "R24"]
with torch.autocast(torch.device(place).type, dtype=torch.bfloat16):
    model(tokens.to(place)).float().mean().backward()
state = model.state_dict()
release = {name: tensor.half() for name, tensor in state.items()}  # a copy: the live model stays float32
print(f"after AMP: {file_bytes(state):.1f} bytes per parameter; the release copy: {file_bytes(release):.1f}")
print("dtypes of the live model and its gradients:", {str(t.dtype) for p in model.parameters() for t in (p, p.grad)})

# %% [markdown]
# (`model.half().state_dict()` would convert the live model, too: lesson 10.)
#
# ## 7.3 When AMP needs more
#
# **Predict.** An MLP of seven linear layers, few rows at a time.

# %%
quiz("07.few_rows")


# %%
def pair(count):
    """The ledgers under AMP and in float32."""
    return [predict(mlp, rows(count), policy=policy, implementation="fused") for policy in ("bf16", "fp32")]


# %%
counts = [8, 64, 256, 1024, 4096]
pairs = [pair(count) for count in counts]

# %% tags=["nbval-check-output", "R20"]
amp_few, full_few = pairs[0]
print(f"8 rows: {full_few['saved activations'] - amp_few['saved activations']:,} bytes saved, ", end="")
print(f"{amp_few['weight casts']:,} bytes of copies added")

# %% tags=["nbval-check-output", "C02", "R20"]
shares = {
    "peak": [amp.peak / full.peak for amp, full in pairs],
    "forward end": [amp.moments["forward end"].bytes / full.moments["forward end"].bytes for amp, full in pairs],
}
for moment, found in shares.items():
    print(f"{moment:12}", dict(zip(counts, [round(value, 3) for value in found], strict=True)))
    assert found[0] > 1 > 0.8 > found[-1]

# %% tags=["nbval-check-output", "R20"]
per_row = (full_few["saved activations"] - amp_few["saved activations"]) / 8
print(f"AMP saves {per_row:.0f} bytes per row; break even at {amp_few['weight casts'] / per_row:.0f} rows")
assert shares["forward end"][2] > 1 > shares["forward end"][3]  # 256 rows: more; 1024 rows: less

# %%
from ampedu.plots import curves

curves(
    counts,
    {"peak of the step": shares["peak"], "at the end of the forward pass": shares["forward end"]},
    title="Memory under AMP over memory in float32: layers of 512 × 512",
    xlabel="rows in the batch",
    ylabel="AMP / float32",
    alt="Two falling curves over the rows of a batch. Both begin above 1 with few rows and end below 0.8 at 4096 rows.",
    xscale="log2",
)

# %% [markdown]
# **Explain.** A layer of width $w$ saves $r \cdot w$ numbers for $r$ rows: AMP saves 2 bytes of each. Its weight has
# $w^2$ numbers: AMP adds 2 bytes for each. So break even is near $r = w$: a little above 512 here, since AMP also
# keeps a 16-bit copy of the batch, which takes back what one of the six layers saves. (The peak lies in backward, when
# most copies are gone again; so it suffers less. With AdamW's foreach form the peak of few rows is in the optimizer's
# step, which AMP leaves alone: exactly the same memory. Check it:)

# %% tags=["nbval-check-output", "R20"]
foreach = [predict(mlp, rows(8), policy=policy).peak for policy in ("fp32", "bf16")]
print("foreach, 8 rows: AMP / float32 =", foreach[1] / foreach[0])

# %% [markdown]
# So "memory is slightly *higher* with AMP" is no bug report. AMP pays where activations outweigh weights: many rows,
# long sequences.
#
# ## 7.4 Float32 where you did not want it
#
# Which activations shrink depends on the lists. Here is a block as in models for sound and images: it starts with a
# linear layer, so its residual stream is 16 bits; attention is written by hand.


# %%
class Block(nn.Module):
    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(64, 64), norm(64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.enter(x)
        h = self.norm(x)
        weights = (h @ h.mT / 8).softmax(-1)
        return self.leave(x + weights @ h)


def saved(module, inputs, lists="cuda"):
    return predict(module, inputs, policy="bf16", device_policy=lists)


# %% tags=["nbval-check-output", "R23", "C02"]
sound = torch.empty(4, 128, 64, device="meta")
for lists in ("cpu", "cuda"):
    found = saved(Block(), sound, lists)
    kib = {name: f"{size / 1024:.0f} KiB" for name, size in sorted(found.by_dtype.items())}
    print(f"{lists:4} policy, saved:", kib)

# %% [markdown]
# Same model, same batch. The CPU keeps softmax and norm in 16 bits, CUDA runs them in float32, and what is float32 is
# saved as float32. A ledger measured under `torch.autocast("cpu")` is too small for a GPU.
#
# The norm is the part that you can change: lesson 4.4 wrote one that stays low (the kernel adds up in float32 anyway).


# %%
class LowNorm(nn.LayerNorm):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


# %% tags=["nbval-check-output", "R23"]
listed, low = (saved(Block(norm), sound) for norm in (nn.LayerNorm, LowNorm))
for name, ledger in {"LayerNorm": listed, "LowNorm": low}.items():
    own, whole = ledger.by_module["norm"] / 1024, ledger["saved activations"] / 1024
    print(f"{name:9} saves {own:.0f} KiB, the block {whole:.0f} KiB")
assert low.by_module["norm"] < 0.6 * listed.by_module["norm"]

# %% [markdown]
# And one that people change for the worse: "keep BatchNorm in float32 by feeding it `x.float()`". BatchNorm is on no
# list. It takes 16 bits and keeps float32 statistics anyway.


# %%
class Float32BatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x.float())


def cnn(norm):
    layers = nn.Conv2d(3, 16, 3), norm(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(6272, 5)
    return nn.Sequential(*layers)


# %% tags=["nbval-check-output", "C27"]
images = torch.empty(16, 3, 32, 32, device="meta")
plain, fed = (saved(cnn(norm), images) for norm in (nn.BatchNorm2d, Float32BatchNorm))
for name, ledger in {"as it is": plain, "x.float()": fed}.items():
    print(f"{name:9} norm {ledger.by_module['1'] / 1024:.0f} KiB, ReLU {ledger.by_module['2'] / 1024:.0f} KiB")

# %% tags=["nbval-check-output", "C27"]
print(f"all saved activations: × {fed['saved activations'] / plain['saved activations']:.2f}")

# %% [markdown]
# Twice the bytes in the norm; its float32 result goes on into the ReLU, twice the bytes there, and the next
# convolution casts it back.
#
# ## 7.5 The explorer
#
# Now drag. Find sizes where AMP changes nothing; then raise the sequence until it saves a quarter. Turn checkpointing
# on, and see AMP lose much of its effect: both work on the same row.

# %%
from ampedu.widgets import memory_explorer

memory_explorer(batch=16, sequence=64, width=128, depth=2)

# %% [markdown]
# The explorer computes with formulas, and they are those of the ledger:

# %% tags=["nbval-check-output"]
from ampedu.memory.formulas import transformer_peak

for name, policy in policies.items():
    print(name, transformer_peak(16, 64, 128, 2, policy).bytes == ledgers[name].peak)

# %% [markdown]
# ### The three cures together
#
# "For large models combine AMP, accumulation and checkpointing." True, and the ledger says what each one does.
# *Accumulation* runs the batch in four micro-batches. *Checkpointing* keeps only the input of each layer, and computes
# the layer again when backward comes to it.

# %%
kept = {"checkpoint": "encoder.layers.*"}
quarter = {"accumulate": 4}
cures = {
    "float32": {},
    "AMP": {"policy": "bf16"},
    "accumulation": quarter,
    "checkpointing": kept,
    "all three": {"policy": "bf16", **quarter, **kept},
}

# %%
few = tokens[:4], tokens[:4]
combined = {
    name: predict(model, few if "accumulate" in cure else (tokens, tokens), **cure) for name, cure in cures.items()
}
memory_bars(combined, "AMP, accumulation over 4 micro-batches, checkpointing: the peak of a step")

# %% tags=["nbval-check-output", "C40"]
before = combined["float32"]
for name, ledger in combined.items():
    fixed = sum(ledger[row] for row in same) / sum(before[row] for row in same)
    saved_part = ledger["saved activations"] / before["saved activations"]
    peak = ledger.peak / before.peak
    print(f"{name:14} fixed part × {fixed:.0f}, saved activations × {saved_part:.2f}, peak × {peak:.2f}")
assert combined["all three"].peak < 1.15 * combined["all three"].moments["optimizer step"].bytes
assert combined["all three"].peak < min(ledger.peak for name, ledger in combined.items() if name != "all three")

# %% [markdown]
# **Explain.** None of the three touches the fixed part; all three work on the same row. After all of them the peak is
# close to the 20 bytes per parameter of the optimizer's step, and activations have little more to give. What is left
# is the fixed part: an optimizer with less state, or weights and state split over several GPUs (lesson 8).
#
# What they cost: checkpointing runs each forward pass twice, and accumulation makes smaller products of fewer rows,
# which gain less (lesson 3).
#
# ### Checkpointing inside a region
#
# Old threads warn of `CheckpointError` with autocast: a cached cast is there in the forward pass, and not when it is
# computed again. Try all the ways to place a region: inside, outside, both, with and without the cache, a layer that
# the region has used before, both kinds of checkpointing.

# %%
import itertools
from contextlib import nullcontext

from torch.utils.checkpoint import checkpoint

kind = torch.device(place).type
torch.manual_seed(seed)
small = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(place)


# %%
def checkpointed(inside, outside, cache, used_before, reentrant):
    """Gradient of the first weight, and the dtypes in which its layer ran inside: first, and when computed again."""
    seen, options = [], {"dtype": torch.bfloat16, "cache_enabled": cache}
    handle = small[0].register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))

    def part(h):
        with torch.autocast(kind, **options) if inside else nullcontext():
            return small(h)

    x = torch.ones(4, 16, device=place, requires_grad=True)
    small.zero_grad()
    with torch.autocast(kind, **options) if outside else nullcontext():
        h = small(x) if used_before else x
        loss = (checkpoint(part, h, use_reentrant=reentrant)).float().sum()
    loss.backward()
    handle.remove()
    return small[0].weight.grad.clone(), seen[used_before:]


# %% tags=["nbval-check-output", "R106"]
tried = list(itertools.product((True, False), repeat=5))
results = [checkpointed(*way) for way in tried]
again = {str(dtypes[0]) + " → " + str(dtypes[1]) for way, (_, dtypes) in zip(tried, results, strict=True)}
print(len(results), "ways, no error; first run → second run:", sorted(again))
assert all(len(dtypes) == 2 and dtypes[0] == dtypes[1] for _, dtypes in results)
for k in range(0, len(tried), 2):  # both kinds of checkpointing give the same gradient, up to rounding
    assert (results[k][0] - results[k + 1][0]).norm() <= 0.02 * results[k][0].norm()

# %% [markdown]
# None fails in this version. `checkpoint` notes the state of autocast and restores it for the second run: the dtypes
# are the same.
#
# ## 7.6 Measuring a peak
#
# On a GPU the recipe is: `empty_cache()`, `reset_peak_memory_stats()`, run, `max_memory_allocated()`. It is right
# **if** nothing of the model before is alive.

# %%
quiz("07.second_model")

# %% [markdown]
# The ledger's own tracker follows storages on every device. Run a first model, keep some of its variables, and see
# what stays and what the second one's peak becomes.


# %%
import gc

from ampedu.memory import Tracker


def first_run():
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(place)
    inputs = torch.ones(512, 512, device=place)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    net(inputs).square().mean().backward()
    optimizer.step()
    return {"model": net, "optimizer": optimizer, "output": net(inputs)}


# %%
def second_run(keep):
    """MiB of the first model that are alive when the second one starts, and the peak of the second."""
    with Tracker(nn.Module(), kind) as watch:
        first = first_run()
        first = {name: first[name] for name in keep}
        gc.collect()
        left = watch.total
        watch.forget_peaks()  # as reset_peak_memory_stats does
        first_run()
        return left / 2**20, sum(watch.peaks["forward"].values()) / 2**20


# %% tags=["nbval-check-output", "C36"]
nothing_left, true_peak = second_run([])
for keep in ([], ["output"], ["model"], ["optimizer"], ["model", "optimizer", "output"]):
    left, peak = second_run(keep)
    print(f"kept {', '.join(keep) or 'nothing':25} {left:5.1f} MiB alive, peak of the second {peak:5.1f} MiB")
    assert abs(peak - true_peak - left) < 0.01
assert nothing_left == 0

# %% [markdown]
# **Explain.** Whatever stays is added to the second peak, byte for byte. The model keeps its gradients. The optimizer
# keeps the parameters, *their* gradients, and its moments: everything. An output keeps the graph behind it: the
# activations, the weights, and with the weights their gradients. So before a second measurement: `del` all of them,
# `gc.collect()`, and check that `torch.cuda.memory_allocated()` is where it was. In a notebook `_` and `Out[…]` hold
# results, too.
#
# ### nvidia-smi shows something else
#
# torch keeps freed blocks for the next use. `memory_allocated` is what tensors occupy; `memory_reserved` is what torch
# holds from the driver; `nvidia-smi` adds the context of each process, and other programs. `empty_cache()` gives back
# what is reserved and unused, and never a living tensor. Only a GPU can show it: this is a run there, or there is
# none.

# %%
from ampedu import recorded


def smi(moment):
    free, total = torch.cuda.mem_get_info(device)
    names = ("allocated MiB", "reserved MiB", "whole GPU MiB")
    sizes = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), total - free
    return {"moment": moment, **{name: size / 2**20 for name, size in zip(names, sizes, strict=True)}}


# %% tags=["measured", "recorded-only"]
if kind == "cuda":
    lines, gib = [smi("start")], torch.empty(2**30, dtype=torch.uint8, device=device)
    lines.append(smi("1 GiB allocated"))
    del gib
    lines.append(smi("del"))
    torch.cuda.empty_cache()
    lines.append(smi("empty_cache()"))
    print(recorded.record("07.allocator", "What the allocator and the driver say", lines, device=device))
else:
    recorded.show("07.allocator")

# %% [markdown]
# ## 7.7 Where the time of a step goes
#
# "Two to three times faster" is true of the products, if there is a matrix unit. What share of the step is that?
# Count. `WorkCounter` is a dispatch mode as in lesson 3: it sees every operation of forward, backward and optimizer,
# and notes the arithmetic of the products, and for all others the bytes that they read and write.

# %% tags=["nbval-check-output"]
from ampedu.counting import WorkCounter

with WorkCounter() as count:
    (torch.ones(64, 32) @ torch.ones(32, 16)).bfloat16()
print(dict(count.calls), dict(count.flops), dict(count.bytes))

# %% [markdown]
# Two training steps: seven large linear layers, and twenty small ones. The batch is wide enough to be worth a matrix
# unit on a GPU, and small enough for your CPU.

# %%
low_name = "fp16" if device != "cpu" and machine.bf16 != "native" else "bf16"
low = {"fp16": torch.float16, "bf16": torch.bfloat16}[low_name]
place_kind = torch.device(device).type


# %%
def make_step(layers, width, autocast=False):
    torch.manual_seed(seed)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]).to(device)
    inputs, optimizer = torch.randn(width, width).to(device), torch.optim.AdamW(net.parameters(), fused=True)

    def step():
        with torch.autocast(place_kind, dtype=low, enabled=autocast):
            loss = net(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# %%
wide = 4096 if device != "cpu" else 512
networks = {"large": (7, wide), "small": (20, 64)}

# %%
def counted(name, autocast):
    step = make_step(*networks[name], autocast)
    step()
    with WorkCounter() as count:
        step()
    return count


# %% tags=["C03"]
work = {name: [counted(name, autocast) for autocast in (False, True)] for name in networks}
for name, (plain, cast) in work.items():
    moved = cast.total_bytes / plain.total_bytes
    print(f"{name}: {plain.total_flops / 1e9:.3f} GFLOP in products, AMP as well; all others:", end=" ")
    print(f"traffic × {moved:.2f}, calls {plain.total_calls} → {cast.total_calls}")
    assert plain.total_flops == cast.total_flops and cast.total_bytes >= plain.total_bytes

# %%
def optimizer_bytes(enabled):
    """Bytes per parameter that an optimizer step reads, after a pass with or without autocast; on the CPU."""
    net = nn.Linear(512, 512, bias=False)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        loss = net(torch.ones(4, 512)).float().square().mean()
    loss.backward()
    with WorkCounter() as count:
        optimizer.step()
    return count.bytes["_fused_adamw_"] / net.weight.numel()


# %% tags=["nbval-check-output", "C03"]
for enabled in (False, True):
    name = "with AMP" if enabled else "float32"
    print(f"optimizer step, {name}: {optimizer_bytes(enabled):.1f} bytes per parameter")

# %% [markdown]
# Look at the traffic outside of the products: it does not halve; it does not even fall. The optimizer reads and writes
# float32, the gradients are cast, and every weight is read once more to be copied. "The bandwidth is halved" is true
# only of tensors that are 16 bits: the products', and what runs between them in 16 bits.
#
# Now the roofline of your machine turns counts into time: products at their peak, the rest at the memory's speed, and
# a price for every call.

# %% tags=["measured", "C01"]
from ampedu.roofline import roofline

roof = roofline(device, seconds=1.0)


def seconds(count, fmt):
    """Predicted: of the products, of the traffic, of the calls."""
    calls = count.total_calls * roof.overheads["fp32"]
    return count.total_flops / roof.peaks[fmt], count.total_bytes / roof.bandwidth, calls


# %% tags=["measured", "C01"]
from ampedu.timing import compare, speedup

for name, size in networks.items():
    now, then = seconds(work[name][0], "fp32"), seconds(work[name][1], low_name)
    share = now[0] / sum(now)
    times = compare({"float32": make_step(*size), "AMP": make_step(*size, True)}, device, min_seconds=0.1)
    found = speedup(times["float32"], times["AMP"])
    print(f"{name}: products {share:.0%} of the step, traffic {now[1] / sum(now):.0%}, calls {now[2] / sum(now):.0%}")
    print(f"   at most {1 / (1 - share):.1f} times faster; predicted {sum(now) / sum(then):.2f}, ", end="")
    print(f"measured {found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})")

# %% tags=["nbval-check-output", "C01"]
for share in (0.3, 0.5, 0.7, 0.9):
    print(f"products {share:.0%} of the time: at most {1 / (1 - share):.1f} times faster")

# %% [markdown]
# **Explain.** If products take the share $p$ and vanish altogether, the step becomes $1 / (1 - p)$ times faster:
# faster products alone cannot beat that (Amdahl's law, lesson 3.1). The prediction is rough: a real kernel does not
# reach its peak, and a GPU hides calls behind work. But it tells the two networks apart *before* you run anything.
#
# ## 7.8 Autopsy of a slowdown
#
# The small network is slower with AMP on most machines. Do not guess; ask `torch.profiler`. (`profiled` runs it after
# a warm-up, without its library's messages, and returns torch's own averages.)

# %% tags=["measured", "R10"]
from ampedu.profiling import profiled

profiles = {autocast: profiled(make_step(20, 64, autocast), place) for autocast in (False, True)}
tables = {autocast: {event.key: event for event in events} for autocast, events in profiles.items()}
names = sorted(tables[True], key=lambda key: -tables[True][key].self_cpu_time_total)
print(f"{'operation':34}{'float32: calls, µs':>22}{'AMP: calls, µs':>22}   per step")
for name in [name for name in names if name.startswith(("aten::", "cuda"))][:10]:
    found = [tables[autocast].get(name) for autocast in (False, True)]
    cells = [f"{e.count / 5:.0f}, {e.self_cpu_time_total / 5:.0f}" if e else "0, 0" for e in found]
    print(f"{name:34}{cells[0]:>22}{cells[1]:>22}")

# %%
def calls(autocast, *keys):
    return sum(event.count for event in profiles[autocast] if event.key in keys) // 5


# %% tags=["R10"]
for name, keys in {"products": ("aten::mm", "aten::addmm"), "casts": ("aten::_to_copy",)}.items():
    print(f"{name}: {calls(False, *keys)} in float32, {calls(True, *keys)} with AMP")
assert calls(False, "aten::mm", "aten::addmm") == calls(True, "aten::mm", "aten::addmm")
assert calls(True, "aten::_to_copy") >= calls(False, "aten::_to_copy") + 2 * 40 + 1

# %% tags=["measured", "R10"]
parts = {"products": ("aten::mm", "aten::addmm"), "casts": ("aten::_to_copy", "aten::copy_", "aten::empty_strided")}
for name, keys in parts.items():
    spent = [sum(e.self_cpu_time_total for e in profiles[a] if e.key in keys) / 5 for a in (False, True)]
    print(f"{name}: {spent[0]:.0f} µs in float32, {spent[1]:.0f} µs with AMP, of the CPU's time per step")

# %% [markdown]
# **Explain.** As many products as before. On top: a cast of each weight and bias on the way there and of each of their
# gradients on the way back, forty and forty, and a few for input and loss. (On a CPU forty copies are in
# both columns: the optimizer adds 1 to the count of steps of each parameter.) The times are the CPU's; on a GPU they
# are what it takes to *call* the kernels, and a small network waits for just that. `aten::_to_copy` is the cast,
# `aten::copy_` and `aten::empty_strided` are inside it. On a GPU each cast is a *launch* (`cudaLaunchKernel` in the
# table) that takes longer than 64 × 64 numbers.
#
# As many, but are they as fast? Compare their times, in the last two lines. On a CPU, 16-bit products can be
# another library's kernels, which may have more to prepare at each call than 64 × 64 numbers take to multiply. Then
# the products themselves are slower, and no profile of the casts alone would tell you.
#
# The report that "AMP is twice as slow although memory falls" is the same story in a large model whose time is in
# gathers, sums by index and elementwise work. A layer of a graph network, as an example:


# %%
def messages(h, edges):
    """Along each edge: gather two rows, softplus, exp, and sum by index."""
    each = F.softplus(h[edges[0]]) * h[edges[1]].exp()
    return h.new_zeros(h.shape).index_add(0, edges[0], each.to(h.dtype))


def region_everywhere(x, weight, edges):
    return messages(x @ weight, edges)


def region_for_the_product(x, weight, edges):
    h = x @ weight
    with torch.autocast("cpu", enabled=False):
        return messages(h.float(), edges)


# %%
torch.manual_seed(seed)
nodes, weight = torch.randn(1000, 32), torch.randn(32, 32)  # on the CPU, under CUDA's lists
graph = nodes.requires_grad_(), weight.requires_grad_(), torch.randint(1000, (2, 8000))


def traffic(function, rules):
    stored = {}

    def note(tensor):
        stored[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with WorkCounter() as count, hooks, rules, torch.autocast("cpu", dtype=torch.float16, enabled=rules is not off):
        result = function(*graph)
    return count.total_bytes, sum(stored.values()), count.calls["_to_copy"], result


# %% tags=["nbval-check-output", "R14"]
from ampedu.policy import cuda_policy_on_cpu

off = nullcontext()
base = traffic(region_everywhere, off)
print(f"float32: {base[2]} casts, {base[1] / 1e6:.2f} MB saved, {base[0] / 1e6:.1f} MB of traffic")

# %% tags=["nbval-check-output", "R14"]
for function in (region_everywhere, region_for_the_product):
    moved, kept_bytes, made, _ = traffic(function, cuda_policy_on_cpu(torch.float16))
    print(f"{function.__name__:23} {made} casts, saved × {kept_bytes / base[1]:.2f}, traffic × {moved / base[0]:.2f}")

# %% [markdown]
# Memory falls, traffic rises: softplus and exp are on CUDA's float32 list, so what was cast down for the product is
# cast up again, twice. With the region round the product alone the traffic is back, and so is the memory. Which is
# better, a profile says; on your GPU.
#
# ### Four more reasons for "no speed-up"
#
# **The GPU has no matrix unit.** Before capability 7.0 (K40, P100) AMP saves memory, as the ledger says without asking
# for a GPU, but there is no unit that would make the products faster. The casts come on top.

# %% tags=["nbval-check-output", "R11"]
from ampedu.device import TENSOR_CORES

for gpu, capability in {"K40": (3, 5), "P100": (6, 0), "T4": (7, 5)}.items():
    print(f"{gpu:4} matrix units: {capability in TENSOR_CORES}")

# %% [markdown]
# **Inference casts every weight at every call.** The cache of casts ends with its region, so each call begins anew.
# Convert a copy of the model once:

# %%
import copy

trained = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)])
converted, request = copy.deepcopy(trained).bfloat16(), torch.ones(1, 64)  # on the CPU

# %% tags=["nbval-check-output", "R12"]
with WorkCounter() as by_autocast, torch.no_grad():
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            trained(request)
print("autocast, three calls:", by_autocast.calls["_to_copy"], "casts")
assert by_autocast.calls["_to_copy"] == 3 * (20 + 20 + 1)

# %% tags=["nbval-check-output", "R12"]
with WorkCounter() as by_hand, torch.no_grad():
    for _ in range(3):
        converted(request.bfloat16())
print("converted, three calls:", by_hand.calls["_to_copy"], "casts, all of the input")

# %% [markdown]
# **Odd sizes.** GPT-2's vocabulary, 50 257, is no multiple of 8 (lesson 3.6). Padding it to 50 304 costs the ledger
# almost nothing; what it gains depends on GPU and library, so time both.


# %%
def language_head(vocabulary):
    return nn.Sequential(nn.Embedding(vocabulary, 64), nn.Linear(64, vocabulary, bias=False))


# %% tags=["nbval-check-output", "R13"]
words = torch.empty(128, dtype=torch.long, device="meta")
peaks = {size: predict(language_head(size), (words, words), policy="bf16").peak for size in (50257, 50304)}
print({size: f"{size % 8} left over by 8" for size in peaks}, f"memory + {peaks[50304] / peaks[50257] - 1:.2%}")
assert 1 < peaks[50304] / peaks[50257] < 1.002

# %% [markdown]
# **A format without fast kernels in this version.** "bfloat16 four times slower than float32 on an A100", said a report
# on convolutions with torch 1.10; probably that release had no fast kernel for them. No theory foresees that. So time
# all formats, and note the versions:

# %% tags=["measured", "R15"]
image, filters = torch.randn(8, 16, 32, 32, device=device), torch.randn(16, 16, 3, 3, device=device)
formats = {str(d): (image.to(d), filters.to(d)) for d in (torch.float32, torch.bfloat16, torch.float16)}
convolutions = {name: lambda x=x, w=w: F.conv2d(x, w) for name, (x, w) in formats.items()}
for name, timing in compare(convolutions, device, min_seconds=0.05, max_samples=9).items():
    print(f"convolution, {name:15} {timing}")
print("torch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())

# %% [markdown]
# ## 7.9 What the compiler does, and what it does not
#
# **Predict.** A float32 model is compiled, without autocast.

# %%
quiz("07.compile")

# %% [markdown]
# `torch.compile` first writes the function down as a *graph*, then a backend makes code of it. Our backend only reads
# the dtypes in the graph and runs it as it is, so this needs no compiler.


# %%
def graph_dtypes(function, x):
    """The dtypes of the results of all operations in the graph."""
    found = set()

    def look(graph, inputs):
        results = [node.meta.get("example_value") for node in graph.graph.nodes if node.op != "placeholder"]
        found.update(str(value.dtype) for value in results if isinstance(value, torch.Tensor))
        return graph.forward

    torch.compile(function, backend=look)(x)
    return sorted(found)


# %%
block = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64)).to(place)
x = torch.randn(128, 64, device=place)


# %%
def with_amp(x):
    with torch.autocast(kind, dtype=torch.bfloat16):
        return block(x)


# %% tags=["nbval-check-output", "C37"]
plain, cast = graph_dtypes(block, x), graph_dtypes(with_amp, x)
print("compiled:", plain, block[0].weight.dtype)
print("compiled with AMP: bfloat16 among them:", "torch.bfloat16" in cast)
assert plain == ["torch.float32"] and block[0].weight.dtype is torch.float32 and "torch.bfloat16" in cast

# %% [markdown]
# **Explain.** A compiled float32 model is a float32 model. What compiling does is to fuse operations into fewer
# kernels, and to choose again what is kept for backward: what is cheap to compute twice need not be saved. The second
# part works without a C++ compiler, too; the backend's name is `aot_eager_decomp_partition`. So count the saved bytes:


# %%
def saved_bytes(function, x):
    """Bytes that a forward pass keeps for backward, without the parameters themselves."""
    stored, own = {}, {p.data_ptr() for p in block.parameters()}

    def note(tensor):
        stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function(x)
    return sum(size for address, size in stored.items() if address not in own), result.dtype


# %% tags=["C37"]
for name, function in {"float32": block.forward, "AMP": with_amp}.items():
    eager, dtype = saved_bytes(function, x)
    chosen, compiled_dtype = saved_bytes(torch.compile(function, backend="aot_eager_decomp_partition"), x)
    print(f"{name:8} saved {eager / 1024:.0f} KiB, compiled {chosen / 1024:.0f} KiB, result {compiled_dtype}")
    assert chosen < eager and dtype == compiled_dtype

# %% [markdown]
# One trap that has been reported with `compile` and autocast: "invalid dtype for bias - should match query's dtype",
# from attention with a *mask of numbers*. (It came from CUDA's kernels and was not run here.) The rule behind it shows
# on a CPU, with the other 16-bit format: boolean masks always fit, others should have the dtype of the query.


# %%
def attend(mask, q):
    try:
        return str(F.scaled_dot_product_attention(q, q, q, attn_mask=mask).dtype)
    except RuntimeError as error:
        return str(error).split(",")[0]


# %% tags=["nbval-check-output", "R107"]
q, mask = torch.ones(1, 2, 8, 16, dtype=torch.bfloat16), torch.zeros(8, 8)  # on the CPU
with torch.autocast("cpu", dtype=torch.bfloat16):
    print("cast by autocast: ", attend(mask.half(), q))

# %% tags=["nbval-check-output", "R107"]
print("float32 mask:     ", attend(mask, q))
print("float16 mask:     ", attend(mask.half(), q))
print("mask.to(q.dtype): ", attend(mask.half().to(q.dtype), q))
print("boolean mask:     ", attend(mask == 0, q))

# %% [markdown]
# ## 7.10 The honest ladder
#
# One model, one batch, one cure at a time, each on top of the ones before; time *and* memory before and after. First
# what each rung must do to the ledger. TF32 rounds inside the product: its tensors stay float32 (lesson 3.7).

# %%
ladder_tokens = torch.empty(8, 64, dtype=torch.long, device="meta")
rungs = {
    "float32": {},
    "+ autocast": {"policy": "bf16"},
    "+ fused optimizer": {"policy": "bf16", "implementation": "fused"},
    "+ checkpointing": {"policy": "bf16", "implementation": "fused", **kept},
}
steps = {name: predict(model, (ladder_tokens, ladder_tokens), **rung) for name, rung in rungs.items()}

# %% tags=["nbval-check-output", "C40"]
from ampedu.memory import ROWS

last = steps["float32"]
for name, ledger in steps.items():
    changed = [row for row in ROWS if ledger[row] != last[row]]
    print(f"{name:18} peak {ledger.peak / 2**20:5.2f} MiB in {ledger.peak_phase}; changed: {', '.join(changed) or '-'}")
    assert all(ledger[row] == steps["float32"][row] for row in same)
    last = ledger

# %% tags=["nbval-check-output"]
from ampedu.roofline import float32_precision

with float32_precision("tf32"):
    result = torch.ones(4, 4) @ torch.ones(4, 4)
print("with TF32 allowed:", result.dtype, result.nbytes, "bytes")

# %% [markdown]
# The fused optimizer removes the temporaries of the step. It lowers the peak only where the peak is in the step. Now
# run it.


# %%
from functools import partial

big = kind == "cuda"
batch = torch.randint(1000, (32, 512) if big else (8, 64)).to(device)


def network(checkpointing):
    torch.manual_seed(seed)
    net = Transformer(*((1024, 4) if big else (128, 2))).to(device)
    for layer in net.encoder.layers if checkpointing else ():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return net


# %%
def training_step(tf32=False, autocast=False, compiled=False, fused=None, checkpointing=False):
    net = network(checkpointing)
    run = torch.compile(net) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), fused=fused)
    scaler = torch.amp.GradScaler(place_kind, enabled=autocast and low is torch.float16)

    def step():
        with float32_precision("tf32" if tf32 else "ieee"):
            with torch.autocast(place_kind, dtype=low, enabled=autocast):
                loss = F.cross_entropy(run(batch).flatten(0, 1), batch.flatten())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    step()  # the first one compiles, and makes the optimizer's state
    return step


# %% [markdown]
# The compiler's rung needs a C++ compiler, on a GPU Triton as well, and some time. On a CPU that can be minutes, so it
# is left out, unless you write `True` here. If it fails, the ladder says so and goes on.

# %%
compile_on_cpu = False


# %%
def try_compile(**options):
    if place_kind == "cpu" and not compile_on_cpu:
        return None, "not run: compile_on_cpu is False"
    try:
        return training_step(compiled=True, **options), "compiled"
    except Exception as error:
        return None, f"not run: {type(error).__name__}"


# %% tags=["measured"]
on, options = {}, {}
on["float32"] = training_step()
if machine.tf32 == "yes" and kind == "cuda":
    options["tf32"] = True
    on["+ TF32"] = training_step(**options)
options["autocast"] = True
on["+ autocast"] = training_step(**options)

# %% tags=["measured"]
compiled, said = try_compile(**options)
print("compiler:", said)
if compiled:
    options["compiled"] = True
    on["+ compile"] = compiled

# %%
on["+ fused optimizer"] = training_step(**options, fused=True)
on["+ checkpointing"] = training_step(**options, fused=True, checkpointing=True)

# %% tags=["measured", "C40", "R15"]
from ampedu.memory.allocator import growth

times = compare(on, device, min_seconds=0.25)
spot = torch.device(device)
held = 12 * sum(p.numel() for p in network(False).parameters())  # weights and AdamW's moments, between two steps
sizes = {name: held + growth(step, spot) if spot.type in ("cpu", "cuda") else None for name, step in on.items()}

# %% tags=["measured", "C01", "R10"]
before = None
for name, timing in times.items():
    gain = speedup(times[before], timing)[0] if before else 1.0
    print(f"{name:18} {timing}, {gain:.2f} × as fast as the rung before; peak {(sizes[name] or 0) / 2**20:.2f} MiB")
    before = name
print(f"{low_name}, torch {torch.__version__}, {machine.name}")

# %% tags=["measured"]
from ampedu.plots import ladder

ladder(times, sizes, "The ladder on this machine")

# %% [markdown]
# **Explain.** Read your own ladder, and look at the quartiles before you believe a gain. Three things hold on every
# machine: what each rung does to the ledger; that TF32 and the compiler leave the fixed part alone; that checkpointing
# computes each layer's forward pass once more. (A CPU's ladder is not a GPU's: its lists differ.) A rung that gains
# nothing on your machine is a result. Step off it: every rung is also a thing that can break.
#
# ## What to take away
#
# - Weights, gradients and optimizer state stay float32 under AMP: 16 bytes per parameter with AdamW, and up to 4 more
#   during its step. AMP shrinks saved activations, and not all of them.
# - It adds 2 bytes per weight that is cast. With fewer rows than the layers are wide, AMP needs more.
# - What is float32 on CUDA's lists is saved as float32. A ledger under CPU autocast is another ledger.
# - Before the second measurement free model, optimizer and outputs of the first. `nvidia-smi` counts what is reserved.
# - If products are the share $p$ of the step, faster products make it at most $1 / (1 - p)$ times faster. Count
#   before you hope.
# - Slower with AMP: profile, and look for `aten::_to_copy`.
# - `torch.compile` keeps dtypes. AMP, compiling, a fused optimizer, checkpointing are separate rungs: measure each.
#
# One last question before the lab.

# %%
quiz("07.which_cure")

# %% [markdown]
# **Now you:** [lab 7](../labs/07_speed_and_memory.ipynb). You predict ledgers, fit a batch into a budget, and find
# what made a model slow. **Next:** [lesson 8](08_ddp_and_sharding.ipynb), several processes.
#
# **Primary sources.** [Chen et al. 2016][checkpointing]: checkpointing · [torch.utils.checkpoint][checkpoint] · [CUDA
# semantics][cuda]: the caching allocator · [torch.profiler][profiler] · [torch.compile][compile] · [Amdahl
# 1967][amdahl] · [Micikevicius et al. 2017][mixed]: where mixed precision saves memory
#
# [checkpointing]: https://arxiv.org/abs/1604.06174
# [checkpoint]: https://docs.pytorch.org/docs/stable/checkpoint.html
# [cuda]: https://docs.pytorch.org/docs/stable/notes/cuda.html
# [profiler]: https://docs.pytorch.org/docs/stable/profiler.html
# [compile]: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
# [amdahl]: https://doi.org/10.1145/1465482.1465560
# [mixed]: https://arxiv.org/abs/1710.03740
