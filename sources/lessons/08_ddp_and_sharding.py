# %% [markdown]
# # 8 DDP and sharding
#
# Two processes train one network. One of them meets an infinity, and both must skip that step, though no line of your
# code tells the other one. In this lesson you start the processes from the notebook, count what they send, and break
# the agreement on purpose.
#
# **You will be able to** say what DDP sends, in which dtype and how many bytes · say why all ranks skip together, and
# when they do not · accumulate and clip under DDP with a scaler · choose the dtype in which gradients are added · shard
# a model with FSDP2 · start a job that survives the death of a rank · estimate a step on 1024 GPUs.
#
# *45 minutes · after lessons [5](05_dynamic_loss_scaling.ipynb) and [6](06_order_of_a_step.ipynb) · runs in less than
# a minute on two cores · only 20 minutes? Read 8.1, 8.2, 8.3 and 8.6*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("The ranks use gloo on the CPU, or NCCL if there are two GPUs. Times play no part here.")

# %% [markdown]
# ## 8.1 Two processes, one network
#
# *Data parallel* means: every process has the whole network and its own part of each batch. After the backward pass the
# processes exchange gradients, so that all of them make the same step. A process is called a *rank*, and has a number.
# PyTorch's `DistributedDataParallel`, DDP for short, arranges the exchange; a library carries it out, gloo between CPUs
# and NCCL between NVIDIA's GPUs. An exchange in which all ranks take part is a *collective*. The one of this lesson is
# the *all-reduce*: every rank hands in a tensor, and gets back the sum or the mean of all of them.
#
# `run_distributed` starts such processes. It runs `python -m torch.distributed.run`, the command behind `torchrun`,
# with which people start jobs on thousands of GPUs. Try it with a function from this notebook:


# %%
from ampedu.distributed import run_distributed


def attempt(action):
    """The result of action(), or the error as text."""
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


# %% tags=["nbval-check-output"]
def hello():
    return "hello"


print(attempt(lambda: run_distributed(hello)))

# %% [markdown]
# That is the first thing to know about ranks: *they share no memory*, neither with the notebook nor with each other.
# What they run must stand in a file. So we collect functions here and write them to one, with the imports on top.

# %%
imports = """
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from ampedu.distributed import CommLedger, device as rank_device

kind = torch.device(rank_device()).type
"""
exec(imports)


# %% [markdown]
# The network is small, and the same on all ranks. Rank 0 takes the samples with even numbers, rank 1 the odd ones;
# `joint=True` gives the whole batch.


# %%
def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(rank_device())


def data(seed, joint=False):
    stream = torch.Generator().manual_seed(seed)
    x, y = torch.randn(64, 32, generator=stream), torch.randn(64, 8, generator=stream)
    part = slice(None) if joint else slice(dist.get_rank(), None, dist.get_world_size())
    return x[part].to(rank_device()), y[part].to(rank_device())


# %%
def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()]).cpu()


def gradient(net):
    return torch.cat([p.grad.flatten() for p in net.parameters()]).cpu()


def loss_of(net, x, y, dtype=torch.float16):
    with torch.autocast(kind, dtype=dtype or torch.float16, enabled=dtype is not None):
        return F.mse_loss(net(x), y)


def loop_parts(net, enabled=True):
    return torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler(kind, enabled=enabled)


# %% [markdown]
# The training loop is the one of a single process. Nothing in it knows about ranks.


# %%
def train(net, batches, dtype):
    """The weights before the first step and after each: shape (steps + 1, parameters)."""
    optimizer, scaler = loop_parts(net, enabled=dtype is torch.float16)
    weights = [flat(net)]
    for x, y in batches:
        optimizer.zero_grad()
        scaler.scale(loss_of(net, x, y, dtype)).backward()
        scaler.step(optimizer)
        scaler.update()
        weights.append(flat(net))
    return torch.stack(weights)


# %% [markdown]
# **First experiment.** Five steps on two ranks, and five steps of a network that sees the joint batch and has no other
# rank to talk to. Are the weights the same?


# %%
def equality(seed):
    found = {}
    for name, dtype in {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}.items():
        two = train(DDP(network(seed)), [data(seed + step) for step in range(5)], dtype)
        one = train(network(seed), [data(seed + step, joint=True) for step in range(5)], dtype)
        found[name] = [two, one]
    return found


# %% [markdown]
# **Second experiment.** What is sent? `CommLedger` sits below DDP and notes every collective: its dtype and the bytes
# of the buffer handed to it. We count one backward pass in float32, one under float16 autocast, and three with a *hook*
# that casts the gradients for the wire (8.2). The last of them is PyTorch's bfloat16 hook, called by a function with
# another name.


# %%
def other_name(state, bucket):
    return bf16_compress_hook(state, bucket)


def traffic(seed):
    hooks = {"float32": None, "AMP": None, "fp16 hook": fp16_compress_hook, "bf16 hook": bf16_compress_hook}
    found = {}
    for name, hook in (hooks | {"other name": other_name}).items():
        net = DDP(network(seed))
        try:
            if hook:
                net.register_comm_hook(None, hook)
        except TypeError as error:
            found[name] = str(error)
            continue
        with CommLedger() as ledger:
            loss_of(net, *data(seed), None if name == "float32" else torch.float16).backward()
        found[name] = [ledger.rows[0].op, ledger.rows[0].dtype, ledger.bytes, str(net.module[0].weight.grad.dtype)]
    return found


# %% [markdown]
# **Third experiment.** Gradients of four micro-batches are accumulated. `no_sync` tells DDP to keep them at home; the
# last backward pass, outside, sends the sum.


# %%
def accumulation(seed):
    x, y = data(seed)
    found = {}
    for way in ("without no_sync", "no_sync around backward", "no_sync around both"):
        net = DDP(network(seed))
        with CommLedger() as ledger:
            for i, (a, b) in enumerate(zip(x.chunk(4), y.chunk(4), strict=True)):
                quiet = net.no_sync if i < 3 else contextlib.nullcontext
                with quiet() if "both" in way else contextlib.nullcontext():
                    loss = loss_of(net, a, b) / 4
                    with quiet() if "around" in way else contextlib.nullcontext():
                        loss.backward()
        found[way] = [ledger.of("all_reduce"), gradient(net)]
    return found


# %% [markdown]
# Now the start. Each rank is a new Python that has to import torch, which is most of what you wait for. Therefore a
# start runs several experiments; this notebook needs five. The file goes to a temporary folder, and when `run` returns,
# file and processes are gone. If you change an experiment, call `run` with it alone. On a machine with two GPUs the
# same ranks talk over NCCL.

# %%
import tempfile
from inspect import getsource
from pathlib import Path

common = [network, data, flat, gradient, loss_of, loop_parts, train, other_name]
backend = "auto" if device.startswith("cuda") else "gloo"


# %%
def run(*experiments):
    """Run every experiment(seed) on two ranks in one start; per experiment the results of rank 0 and rank 1."""
    names = ", ".join(experiment.__name__ for experiment in experiments)
    main = f"def main(seed):\n    return [experiment(seed) for experiment in ({names},)]\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.py")
        file.write_text("\n\n".join([imports, *map(getsource, [*common, *experiments]), main]), encoding="utf-8")
        ranks = run_distributed(f"{file}:main", nproc=2, backend=backend, timeout=240, args=[seed], quiet=True)
    return list(zip(*ranks, strict=True))


# %%
equal, sent, accumulated = run(equality, traffic, accumulation)

# %% [markdown]
# First answer: are the weights equal? `eps` is the distance from 1 to the next number of the format.

# %% tags=["nbval-check-output"]
for name, (two, one) in equal[0].items():
    assert torch.equal(two, equal[1][name][0])
    off, moved = (two - one)[1:].norm(dim=1), (one - one[0])[1:].norm(dim=1)
    largest = (two - one).abs().max()
    eps = torch.finfo(getattr(torch, name)).eps
    bound = "every weight within 1e-6" if name == "float32" else f"within eps = {eps:.1e} of the way moved"
    assert largest < 1e-6 if name == "float32" else (off < eps * moved).all()
    print(f"{name:9} ranks: bit for bit; to one process: {bound}")

# %% [markdown]
# **Explain.** Both ranks end with identical bits after every step, in each dtype: they started equal and added the same
# gradients. To the single process there is a small distance. It rounds the gradient of 64 samples once; two ranks round
# two gradients of 32 samples each, and add them. In float32 no weight is off by more than 1e-6, in 16 bits the distance
# stays below one `eps` of the way that the weights moved.
#
# ## 8.2 What travels, and how much of it
#
# **Predict.** A popular list of AMP's benefits says: "gradients take half the bytes on the network".

# %%
from ampedu.widgets import quiz

quiz("08.bytes_per_parameter")


# %%
from IPython.display import Markdown


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))


# %% tags=["nbval-check-output"]
parameters = sum(p.numel() for p in network(seed).parameters())
measured = {name: sent[0][name] for name in ("float32", "AMP", "fp16 hook")}
rows = [[name, *found, f"{found[2] / parameters:g}"] for name, found in measured.items()]
table(["step", "collective", "dtype on the wire", "bytes", "dtype of `.grad`", "bytes per parameter"], rows)

# %% tags=["nbval-check-output", "C04"]
assert measured["float32"] == measured["AMP"] == ["all_reduce", "float32", 4 * parameters, "torch.float32"]
print("DDP sends the same under AMP as without:", measured["AMP"][2], "bytes =", f"4 · {parameters}")

# %% [markdown]
# **Explain.** DDP sends `.grad`, and `.grad` has the dtype of its parameter. Autocast leaves parameters in float32; it
# casts copies. The backward pass of that cast returns the gradient in float32, *before* DDP sees it. AMP alone saves
# nothing on the wire. (DDP collects gradients in *buckets*, and sends each bucket when it is full. Here all gradients
# fit into one.)
#
# To send less, register a hook. It casts each bucket of gradients, adds in 16 bits, and casts back:

# %% tags=["nbval-check-output"]
assert measured["fp16 hook"] == ["all_reduce", "float16", 2 * parameters, "torch.float32"]
print("fp16 hook:", measured["fp16 hook"][2], "bytes; .grad is float32 again afterwards")

# %% [markdown]
# There is one for bfloat16, too. Whether you may register it depends on your PyTorch:

# %%
answer = sent[0]["bf16 hook"]
print(answer if isinstance(answer, str) else f"{answer[1]}: {answer[2]} bytes")
assert "NCCL" in answer if isinstance(answer, str) else answer[1:3] == ["bfloat16", 2 * parameters]

# %% [markdown]
# The message speaks of NCCL, so you may think that gloo cannot add in bfloat16. But nobody looks at what the ranks
# really use. `register_comm_hook` compares the *name* of the function, and asks if PyTorch was built with CUDA or ROCm,
# and NCCL (or if there is an Intel GPU, and XCCL). A build for CPUs was not. The same hook under another name:

# %% tags=["nbval-check-output", "R87"]
print("another name:", *sent[0]["other name"][1:])
assert sent[0]["other name"] == ["all_reduce", "bfloat16", 2 * parameters, "torch.float32"]

# %% [markdown]
# It halves the bytes, over gloo as well. What the two hooks do to the numbers comes in 8.3 and 8.5.
#
# And the third experiment?

# %% tags=["nbval-check-output"]
reference = accumulated[0]["no_sync around both"][1]
for way, (size, sum_of_four) in accumulated[0].items():
    assert torch.allclose(sum_of_four, reference, rtol=1e-3, atol=1e-5)
    print(f"{way:24} {size // (4 * parameters)} × 4 bytes per parameter")

# %% [markdown]
# All three give the same gradient, one of them at a quarter of the traffic. Look at the second line: `no_sync` around
# the backward pass alone changes nothing. DDP decides in the *forward* pass whether the coming backward pass will send,
# so the forward pass belongs into the block. No error tells you.
#
# ## 8.3 Who finds the infinity?
#
# Four experiments on the scaler, in one start. In the first, rank 1 alone gets inputs that overflow in float16. We look
# at the gradient twice: at home (`no_sync`), and after the exchange.


# %%
def one_overflows(seed):
    net, (x, y) = DDP(network(seed)), data(seed)
    optimizer, scaler = loop_parts(net)
    x = 1e6 * x if dist.get_rank() == 1 else x
    before, found = flat(net), {}
    with net.no_sync():
        scaler.scale(loss_of(net, x, y)).backward()
    found["own gradient finite"] = bool(gradient(net).isfinite().all())
    optimizer.zero_grad()
    scaler.scale(loss_of(net, x, y)).backward()
    found["averaged gradient finite"] = bool(gradient(net).isfinite().all())
    scaler.step(optimizer)
    scaler.update()
    return found | {"step skipped": torch.equal(before, flat(net)), "next scale": scaler.get_scale()}


# %% [markdown]
# **Predict.** Nothing in this code tells rank 0 about rank 1.

# %%
quiz("08.inf_on_rank_1")

# %% [markdown]
# In the second, there is no DDP. We average by hand, at two places in the step, or forget it: the way of a
# custom loop, and of anybody who calls `net.module(x)` instead of `net(x)`, which leaves DDP out. One good step, then
# one in which rank 1 overflows.


# %%
def by_hand(seed):
    found = {}
    for order in ("average unscale_ step", "unscale_ average step", "unscale_ step"):
        net = network(seed)
        optimizer, scaler = loop_parts(net)
        for step in range(2):
            x, y = data(seed + step)
            optimizer.zero_grad()
            scaler.scale(loss_of(net, 1e6 * x if step and dist.get_rank() else x, y)).backward()
            for call in order.split():
                if call == "average":
                    for p in net.parameters():
                        dist.all_reduce(p.grad)
                        p.grad /= dist.get_world_size()
                else:
                    getattr(scaler, call)(optimizer)
            scaler.update()
        found[order] = [flat(net), scaler.get_scale()]
    return found


# %% [markdown]
# **Predict** the second of the three orders.

# %%
quiz("08.unscale_then_average")

# %% [markdown]
# In the third, a hook casts *scaled* gradients to float16. The largest true gradient is 2. It comes in four
# micro-batches of 0.5 each, so that every single one fits: 0.5 · 65536 = 32768. They add up in `.grad`, which is
# float32.


# %%
def squeezed(seed):
    x, y = data(seed, joint=True)
    found = {}
    for name, hook in {"no hook": None, "fp16 hook": fp16_compress_hook}.items():
        probe, net = network(seed), DDP(network(seed))
        loss_of(probe, x, y).backward()
        factor = 2 / gradient(probe).abs().max().item()
        _ = net.register_comm_hook(None, hook) if hook else None
        optimizer, scaler = loop_parts(net)
        largest = []
        for i in range(4):
            with net.no_sync() if i < 3 else contextlib.nullcontext():
                scaler.scale(factor * loss_of(net, x, y) / 4).backward()
            largest.append(gradient(net).abs().max().item())
        scaler.step(optimizer)
        scaler.update()
        found[name] = [largest, scaler.get_scale()]
    return found


# %% [markdown]
# **Predict.** Four gradients that fit, and a sum.

# %%
quiz("08.fp16_hook")

# %% [markdown]
# In the fourth: a whole window with accumulation, `unscale_` and clipping, as in lesson 6. Once without another rank,
# once with, and once with an overflow in the *first* micro-batch of rank 1, long before anything is sent. While the
# scaler works, the ledger runs.


# %%
def window(seed):
    found = {}
    for case in ("one process", "two ranks", "rank 1 overflows"):
        x, y = data(seed, joint=case == "one process")
        net = network(seed) if case == "one process" else DDP(network(seed))
        (optimizer, scaler), before = loop_parts(net), flat(net)
        for i, (a, b) in enumerate(zip(x.chunk(4), y.chunk(4), strict=True)):
            a = 1e6 * a if i == 0 and case == "rank 1 overflows" and dist.get_rank() == 1 else a
            with net.no_sync() if i < 3 and case != "one process" else contextlib.nullcontext():
                scaler.scale(loss_of(net, a, b) / 4).backward()
        with CommLedger() as ledger:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        found[case] = [flat(net) - before, norm.item(), scaler.get_scale(), ledger.calls]
    return found


# %%
alone, handmade, hooked, windows = run(one_overflows, by_hand, squeezed, window)

# %% tags=["nbval-check-output", "C45"]
for rank, found in enumerate(alone):
    print(f"rank {rank}:", ", ".join(f"{name}: {value}" for name, value in found.items()))
assert alone[0]["own gradient finite"] and not alone[1]["own gradient finite"]
assert not alone[0]["averaged gradient finite"] and alone[0]["step skipped"] and alone[1]["step skipped"]

# %% [markdown]
# **Explain.** Rank 0 had a good gradient. It added the one of rank 1, and infinity plus anything is infinity (or NaN).
# *The reduction is the message.* DDP reduces scaled gradients during `backward`, before `unscale_` looks; both scalers
# look at equal numbers, and come to equal decisions. No scaler sent a byte.
#
# By hand, it depends on where you average:

# %% tags=["nbval-check-output", "C46"]
for order in handmade[0]:
    (w0, s0), (w1, s1) = handmade[0][order], handmade[1][order]
    weights = "equal" if torch.equal(w0, w1) else "not equal"
    finite = [bool(w.isfinite().all()) for w in (w0, w1)]
    print(f"{order:22} weights: {weights:9}  finite: {finite[0]!s:5} and {finite[1]!s:5}  scales: {s0:g} and {s1:g}")
    assert finite == [not order.startswith("unscale_ average"), True]

# %% [markdown]
# - `average unscale_ step` is what DDP does. All is well.
# - `unscale_ average step`: each scaler looks at its own gradient. Rank 0 finds nothing, then receives the infinity
#   and steps with it. Rank 1 skips. One network is ruined, and at the next exchange the other one is, too.
# - `unscale_ step`, without averaging: two networks that have nothing to do with each other, each with its own scale.
#   Nothing raises.
#
# So "every process scales on its own and it just works" is true *if the ranks agree on what they found*. Under DDP
# they do because they look at the same numbers.
#
# ### Float16 on the wire

# %% tags=["nbval-check-output", "R87"]
for name, (largest, scale) in hooked[0].items():
    print(f"{name:9} largest in .grad: {', '.join(f'{value:.1e}' for value in largest)}; next scale {scale:g}")
assert hooked[0]["no hook"][1] == 65536 and hooked[0]["fp16 hook"][1] == 32768

# %% [markdown]
# Without the hook, 131 072 is an ordinary float32 number. With it, the fourth backward pass casts the sum to
# float16, where numbers end at 65 504, and the step is lost. The hook divides by the number of ranks after the cast,
# which is too late. Here the scaler notices and pays with a skipped step and half the scale. With bfloat16 autocast
# there is no scaler, and a gradient beyond 65 504 would go into the weights as an infinity. Bfloat16 on the wire has no
# such limit; what it costs instead comes in 8.5.
#
# ### A whole window

# %% tags=["nbval-check-output"]
(one, norm, *_), (two, norm_two, scale, calls) = windows[0]["one process"], windows[0]["two ranks"]
assert (two - one).norm() < 2**-10 * one.norm() and abs(norm_two / norm - 1) < 2**-10
print("update and norm as in one process, scale", scale)
print("both ranks found the same norm:", norm_two == windows[1]["two ranks"][1])
print("collectives during unscale_, clip, step, update:", calls)

# %% tags=["nbval-check-output", "C45"]
for rank in (0, 1):
    update, _, scale, _ = windows[rank]["rank 1 overflows"]
    print(f"rank {rank}: length of the update {update.norm():g}, next scale {scale:g}")

# %% [markdown]
# Under DDP, `unscale_` and clipping stand where lesson 6 put them: after the last backward pass of the window, the one
# that sends. The averaged gradients are equal, so their norms are equal, and nobody has to ask. The overflow waited in
# `.grad` of rank 1 for three micro-batches, and came to light at the exchange.
#
# ## 8.4 Shards
#
# DDP holds everything on every rank. *Fully sharded data parallel*, FSDP, cuts each parameter into as many pieces as
# there are ranks; a rank keeps one piece, with its gradient and its optimizer state. Before a layer runs, the pieces of
# its parameters are gathered. After its backward pass the gradients of all ranks are averaged, and each rank keeps its
# piece of the mean. The present form is `fully_shard`, called FSDP2. Its mixed precision has three dtypes:


# %%
def sharded(seed):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    half, full = torch.bfloat16, torch.float32
    policies = {
        "all float32": {}, "param bf16": {"param_dtype": half},
        "param bf16, reduce float32": {"param_dtype": half, "reduce_dtype": full},
        "param bf16, output float32": {"param_dtype": half, "reduce_dtype": full, "output_dtype": full},
    }
    (x, y), found = data(seed), {}
    for name, options in policies.items():
        net = network(seed)
        for module in (net[0], net[2], net):
            fully_shard(module, mp_policy=MixedPrecisionPolicy(**options))
        with CommLedger() as ledger:
            output = net(x)
            F.mse_loss(output.float(), y).backward()
        dtypes = [str(t.dtype).removeprefix("torch.") for t in (output, net[0].weight, net[0].weight.grad)]
        whole = torch.cat([p.grad.full_tensor().flatten() for p in net.parameters()]).cpu()
        found[name] = [dtypes, ledger.plain(), whole, list(net[0].weight.to_local().shape)]
    return found


# %% [markdown]
# **Predict.** Only `param_dtype` is set.

# %%
quiz("08.reduce_dtype")

# %% [markdown]
# Two more for the same start. A rank may own *nothing*: layers with one output have one row each, and rank 0 has it. An
# infinity is put into its piece of the gradient. Rank 1 has no number to look at; does it skip?


# %%
def owns_nothing(seed):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(32, 1, bias=False), nn.Linear(1, 1, bias=False)).to(rank_device())
    fully_shard(net)
    optimizer, scaler = loop_parts(net)
    scaler.scale(net(torch.randn(8, 32).to(rank_device())).square().mean()).backward()
    pieces = [p.grad.to_local() for p in net.parameters()]
    pieces[0].fill_(torch.inf)
    with CommLedger() as ledger:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return {"numbers": sum(piece.numel() for piece in pieces), "next scale": scaler.get_scale(), "sent": ledger.bytes}


# %% [markdown]
# And FSDP's policy together with autocast: which one wins? Here autocast follows CUDA's lists, with float16, while
# `param_dtype` says bfloat16.


# %%
def which_wins(seed):
    from ampedu.policy import cuda_policy_on_cpu
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    found = {}
    for autocast in (False, True):
        net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)).to(rank_device())
        fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        seen = []
        for layer in net:
            layer.register_forward_hook(lambda m, inputs, out, seen=seen: seen.append([m.weight.dtype, out.dtype]))
        with cuda_policy_on_cpu(torch.float16) if kind == "cpu" else contextlib.nullcontext():
            with torch.autocast(kind, dtype=torch.float16, enabled=autocast):
                net(torch.randn(8, 32).to(rank_device()))
        found["with autocast" if autocast else "alone"] = [[str(dtype)[6:] for dtype in pair] for pair in seen]
    return found


# %%
shards, nothing, mixed = run(sharded, owns_nothing, which_wins)

# %% tags=["nbval-check-output"]
rows = []
for name, (dtypes, ledger, _, shape) in shards[0].items():
    gathered, scattered = ({row["op"]: row for row in ledger}[op] for op in ("all_gather", "reduce_scatter"))
    sizes = [f"{row['dtype']}, {row['bytes'] / parameters:g}" for row in (gathered, scattered)]
    rows.append([name, *sizes, *dtypes, " × ".join(map(str, shape))])
each = "bytes per parameter"
table(["policy", f"gathered, {each}", f"reduced, {each}", "output", "weight", "`.grad`", "piece of `net[0]`"], rows)

# %% tags=["nbval-check-output", "R85"]
for name, (dtypes, ledger, *_) in shards[0].items():
    reduced = {row["op"]: row["dtype"] for row in ledger}["reduce_scatter"]
    print(f"{name:27} added in {reduced:9} weight and .grad: {dtypes[1]}, {dtypes[2]}")
    assert dtypes[1:] == ["float32", "float32"]

# %% [markdown]
# **Explain.** The stored weight, its gradient and so the optimizer stay in float32, whatever the policy: FSDP2 has
# master weights built in. It gathers weights twice, before forward and again before backward (a layer is freed in
# between), in `param_dtype`. And `reduce_dtype` *inherits* `param_dtype`. Whoever sets bfloat16 for the layers adds
# gradients in bfloat16 too. Users of a fine-tuning library asked it to take float32 instead ([torchtune#2267][tune]),
# after a bfloat16 run that converged badly. It is no cure for everything: that run kept its optimizer state in bfloat16
# as well, and adding in float32 alone did not save it ([torchtune#2254][bad]).
#
# [tune]: https://github.com/meta-pytorch/torchtune/issues/2267
# [bad]: https://github.com/meta-pytorch/torchtune/issues/2254
#
# ## 8.5 The price of adding in bfloat16
#
# With two ranks the price is one more rounding:

# %% tags=["nbval-check-output", "R85"]
gradients = {name: found[2] for name, found in shards[0].items()}
exact = gradients["param bf16, reduce float32"]
error = ((gradients["param bf16"] - exact).norm() / exact.norm()).item()
print("relative difference of the gradient, between 2⁻¹¹ and 2⁻⁷:", 2**-11 < error < 2**-7)

# %% [markdown]
# On more ranks it grows. A ring adds one rank after the other, and each sum is rounded. We can play that in one
# process, with 1024 gradients that agree in part: a signal of size 1, and noise of size 1 that differs from rank to
# rank.


# %%
def ring(parts, dtype):
    """The mean of the rows, added one after the other; every partial sum is rounded to dtype."""
    total = parts[0].to(dtype)
    for part in parts[1:]:
        total = total + part.to(dtype)
    return total.double() / len(parts)


# %%
torch.manual_seed(seed)
parts = torch.randn(2000) + torch.randn(1024, 2000)
counts = [2**k for k in range(1, 11)]
errors = {}
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    exact = {n: parts[:n].double().mean(0) for n in counts}
    errors[str(dtype)[6:]] = [((ring(parts[:n], dtype) - exact[n]).norm() / exact[n].norm()).item() for n in counts]

# %%
from ampedu.plots import curves

curves(
    counts,
    errors,
    title="Error of the mean gradient, added around a ring",
    xlabel="ranks",
    ylabel="relative error",
    alt="Three rising curves over 2 to 1024 ranks. Bfloat16 rises from less than a hundredth to more than a tenth, "
    "float16 lies below it, float32 stays below a millionth.",
    xscale="log2",
    yscale="log",
)

# %% tags=["nbval-check-output", "R85"]
bf16, fp16, fp32 = errors.values()
print("bfloat16, 2 ranks: below 1 %:", bf16[0] < 0.01, "· 1024 ranks: above 10 %:", bf16[-1] > 0.1)
print("float16 at least 4 times better:", 4 * fp16[-1] < bf16[-1], "· float32 below 1e-6:", max(fp32) < 1e-6)

# %% [markdown]
# Bfloat16 has 8 bits of mantissa, counting the hidden one. Once the sum is more than 512 times as large as what
# one rank adds, the addition changes nothing: lesson 2's stagnation, on the network. Libraries that add in trees
# round less often. Adding in float32 makes the question go away, at 4 bytes per parameter.
#
# ### Does a rank skip that owns nothing?

# %% tags=["nbval-check-output", "C46", "R82", "R83"]
for rank, found in enumerate(nothing):
    print(f"rank {rank}:", ", ".join(f"{name}: {value:g}" for name, value in found.items()))
assert nothing[0]["numbers"] == 32 + 1 and nothing[1]["numbers"] == 0

# %% [markdown]
# Yes. Under FSDP ranks look at *different* numbers, so agreement must be made. The gradients are `DTensor`s, tensors
# that know about their pieces; when `unscale_` asks whether one of them holds an infinity, they take the maximum of the
# answers over all ranks. It costs one float32, 4 bytes, for both layers together (one for each dtype that gradients
# have), and a plain `GradScaler` suffices.
#
# The older FSDP1 needs `ShardedGradScaler`, and this is where it went wrong: with CPU offload the answer was copied
# before its reduction had ended, and only rank 0 skipped; and a rank without a piece raised "No inf checks were
# recorded". Both are of FSDP1 on CUDA and cannot be run here; their situations can, and FSDP2 agrees.
#
# ### FSDP's policy, or autocast?

# %% tags=["nbval-check-output", "R86"]
layers = "linear", "norm", "linear"
for name, pairs in mixed[0].items():
    print(f"{name:14}", *(f"{layer}: {w} → {out}  " for layer, (w, out) in zip(layers, pairs, strict=True)))
assert [pair[1] for pair in mixed[0]["alone"]] == ["bfloat16"] * 3
assert [pair[1] for pair in mixed[0]["with autocast"]] == ["float16", "float32", "float16"]

# %% [markdown]
# Left of the arrow is the gathered weight, right of it the output. FSDP changes what the *module* holds and is given.
# Autocast changes what each *operation* receives, later and on top. So autocast has the last word, on weights that FSDP
# has rounded to bfloat16 before. Pick one. With FSDP's policy alone the norm runs in bfloat16, as everything does:
# there is no list of operations that want float32.
#
# ## 8.6 The recipe for many machines, and the death of a rank
#
# Everything of this lesson and of lessons 5 and 6 stands in one script,
# [`examples/train_ddp_amp.py`](https://github.com/ampedu/ampedu/blob/main/examples/train_ddp_amp.py): DDP, float16 with
# a scaler, accumulation under `no_sync`, clipping, a schedule that waits on skipped steps, and checkpoints. On four
# machines with eight GPUs each you run on each of them:
#
#     export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
#     torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 --rdzv-id run1 \
#         --max-restarts 3 train_ddp_amp.py --checkpoint /shared/run1.pt
#
# HOST is one of the four, where all of them meet (the *rendezvous*), and 29400 any free port there. The checkpoint lies
# on a disk that all of them see. The variable in the first line is for restarts: without it, new ranks can find the
# addresses of the dead ones and fail to connect ([pytorch#135712](https://github.com/pytorch/pytorch/issues/135712)).
#
# Here we run it with `--standalone --nproc-per-node 2`, which is what `run_distributed` does. The growth interval is
# short, so that the scale moves.

# %%
import ampedu

home = Path(ampedu.__file__).parent
places = [folder / "examples" / "train_ddp_amp.py" for folder in (home.parent, home / "data")]
script = next(place for place in places if place.is_file())


# %%
def recipe(*more, max_restarts=0):
    """Result of rank 0, and the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.pt")
        args = ["--steps", 60, "--growth-interval", 8, "--seed", seed, "--checkpoint", str(file), *more]
        results = run_distributed(script, nproc=2, backend=backend, timeout=240, args=args, max_restarts=max_restarts)
        return results[0], torch.load(file, weights_only=True)


# %%
undisturbed, checkpoint = recipe()

# %% [markdown]
# Now the same run, and before step 45 rank 1 is killed by SIGKILL: no exception, no last words, as when a machine is
# lost. A checkpoint is written every 20 steps.

# %%
disturbed, _ = recipe("--die-at", 45, max_restarts=1)

# %% tags=["nbval-check-output"]
print("restarts:", undisturbed["restarts"], "and", disturbed["restarts"])
print("same scale:", disturbed["scale"] == undisturbed["scale"], "· same number of skips:",
      disturbed["skipped"] == undisturbed["skipped"])  # fmt: skip
print("same loss:", abs(disturbed["loss"] / undisturbed["loss"] - 1) < 1e-3)
assert disturbed["weights"] == undisturbed["weights"] or torch.cuda.is_available()

# %% [markdown]
# **Explain.** Alone, rank 0 cannot go on: half of its gradient is missing. `torchrun` sees that a process is gone,
# ends the others, and starts all of them again. Each reads the checkpoint of step 40 and repeats five steps. On the CPU
# the weights at the end are those of the undisturbed run, bit for bit. That takes a complete checkpoint:

# %% tags=["nbval-check-output"]
print(", ".join(checkpoint))
print("scaler:", ", ".join(key for key in checkpoint["scaler"]))

# %% [markdown]
# The scaler has five entries. Two of them change: the scale, and the number of steps since the last skip.

# %%
print({key: checkpoint["scaler"][key] for key in ("scale", "_growth_tracker")})
assert checkpoint["scaler"]["scale"] == undisturbed["scale"] != 2**16  # a scaler that begins anew has another one

# %%
quiz("08.restart")

# %% [markdown]
# ## 8.7 On paper: 8 to 1024 GPUs
#
# The bytes that a rank hands over are not the bytes on the wire. In a ring of $n$ ranks an all-reduce passes
# $2(n-1)/n$ of the buffer through each link, nearly twice the buffer, however many ranks there are. A gather and a
# reduce-scatter pass half of that.

# %% tags=["nbval-check-output"]
from ampedu.distributed import wire_bytes

for n in (8, 64, 1024):
    ddp = wire_bytes(4, n)
    hook = wire_bytes(2, n)
    fsdp = 2 * wire_bytes(2, n, op="all_gather") + wire_bytes(4, n, op="reduce_scatter")
    print(f"{n:5} ranks, bytes per parameter and link: DDP {ddp:.2f}, 16-bit hook {hook:.2f}, FSDP2 {fsdp:.2f}")

# %% [markdown]
# FSDP2 with bfloat16 weights and float32 reduction sends exactly as much as plain DDP, and holds a fraction of the
# memory.
#
# How long does it take? With $P$ parameters of $b$ bytes, links of $B$ bytes per second and a latency $\alpha$ per
# message, a ring takes
#
# $$t_{\text{comm}} = 2(n-1)\,\alpha + \frac{2(n-1)}{n} \cdot \frac{P\,b}{B}, \qquad
# t_{\text{step}} = t_{\text{compute}} + \max(0,\; t_{\text{comm}} - \omega\, t_{\text{compute}}).$$
#
# DDP sends while the backward pass still runs; $\omega$ is the share of the compute time that can hide it, 2/3 if
# backward takes twice as long as forward. The first part is Patarasuk and Yuan's ring with Thakur's cost of a message;
# the second is an estimate of ours that leaves out the last bucket and slow ranks. Move the bandwidth, and put in the
# numbers of your own model.

# %%
from ampedu.widgets import step_explorer

step_explorer(parameters=1e9, bandwidth=200, compute=200, latency=5)

# %% [markdown]
# Three regimes, for a model of a billion parameters and 200 ms of compute:

# %% tags=["nbval-check-output"]
from ampedu.distributed import step_time

for gigabits in (10, 200, 1600):
    full, half = (step_time(1e9, b, 1024, gigabits * 1e9 / 8, 0.2, overlap=2 / 3, latency=5e-6) for b in (4, 2))
    print(f"{gigabits:4} Gb/s: {full.total:.2f} s with float32 gradients, {half.total:.2f} s with 16-bit ones")

# %% [markdown]
# On slow links nearly all time is communication, and the hook almost halves the step. In the middle it saves what could
# not be hidden. On fast links the backward pass hides everything, and the hook only costs digits. *First ask whether
# communication is exposed at all, then shrink it.* The curves are flat: a ring sends hardly more on 1024 GPUs than on
# 8, and only the latency grows with their number.
#
# ## What to take away
#
# - DDP sends `.grad`, and `.grad` is float32 under AMP. AMP alone saves nothing on the network.
# - The scaled gradients are reduced during `backward`. An infinity on one rank is then on all ranks, and all skip.
# - By hand: average first, then `unscale_`. Per-rank scalers on gradients that were not reduced drift apart.
# - `no_sync` goes around forward *and* backward. `unscale_` and clipping come after the last backward pass.
# - The fp16 hook halves the bytes and can overflow scaled gradients. The bf16 hook has the range, and fewer digits.
# - FSDP2 keeps float32 weights. Set `reduce_dtype=torch.float32`, or it inherits `param_dtype`.
# - A checkpoint holds the scaler. Then a killed run ends where the undisturbed one does.
#
# **Now you:** [lab 8](../labs/08_ddp_and_sharding.ipynb), where you write the reduction yourself. Before this lesson:
# [lesson 7](07_speed_and_memory.ipynb). **Next:** lesson 9, when training breaks.
#
# **Primary sources.** [DDP][ddp]: buckets, `no_sync`, order of calls · [communication hooks][hooks] ·
# [fully_shard][fsdp]: `MixedPrecisionPolicy` · [torchrun][run]: restarts and rendezvous ·
# [Li et al. 2020][li]: how DDP overlaps · [Patarasuk and Yuan 2009][ring]: the ring and its bound ·
# [Thakur et al. 2005][thakur]: latency and bandwidth ·
# [torchtune#2267][tune]: float32 as the default, and why
#
# [ddp]: https://docs.pytorch.org/docs/stable/notes/ddp.html
# [hooks]: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
# [fsdp]: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
# [run]: https://docs.pytorch.org/docs/stable/elastic/run.html
# [li]: https://arxiv.org/abs/2006.15704
# [ring]: https://doi.org/10.1016/j.jpdc.2008.09.002
# [thakur]: https://doi.org/10.1177/1094342005051521
# [tune]: https://github.com/meta-pytorch/torchtune/issues/2267
