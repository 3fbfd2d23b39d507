"""What the ranks of test_08_ddp_and_sharding do in real processes."""

import itertools

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ampedu.distributed import CommLedger
from ampedu.exercises.ranks import Ranks

DTYPES = {None: None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZES = (8, 16, 4, 8)  # of three linear layers; the one in the middle is frozen


def layers():
    """Three linear layers; the middle one is frozen, and gradients flow through it."""
    torch.manual_seed(0)
    made = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(SIZES)]
    made[1].requires_grad_(False)
    return torch.nn.Sequential(*made)


def ledgers(kinds):
    """For each kind, what `ledger` gives."""
    return [ledger(*kind) for kind in kinds]


def ledger(way, param_dtype, reduce_dtype):
    """The bytes of the second training step, by collective, and the dtypes of the gradients."""
    model = layers()
    if way == "fsdp2":
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[param_dtype], reduce_dtype=DTYPES[reduce_dtype])
        for layer in model:
            fully_shard(layer, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mp_policy=policy, reshard_after_forward=True)
    else:
        model = DistributedDataParallel(model)
    if way == "ddp+fp16 hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(2):
        with CommLedger() as counted, torch.autocast("cpu", torch.bfloat16, enabled=way == "ddp+amp"):
            model(torch.ones(4, SIZES[0])).float().square().mean().backward()
    found = {op: counted.of(op) for op in ("all_reduce", "all_gather", "reduce_scatter")}
    return found, sorted({str(p.grad.dtype) for p in model.parameters() if p.grad is not None})


def accumulated(case):
    """Windows of a case of 08.accumulate under real DDP with no_sync; what Ranks.observed gives, of this rank."""
    rank = dist.get_rank()
    ranks = Ranks(case).only(rank)
    model, optimizer, scaler = DistributedDataParallel(ranks.models[0]), ranks.optimizers[0], ranks.scalers[0]
    batches = [batch[rank] for batch in ranks.batches()]
    with CommLedger() as counted:
        for start in range(0, len(batches), case["steps"]):
            window = batches[start : start + case["steps"]]
            optimizer.zero_grad()
            for i, (x, y) in enumerate(window):
                model.require_backward_grad_sync = i == len(window) - 1
                with torch.autocast("cpu", torch.float16):
                    loss = ranks.loss_fn(model(x), y) / len(window)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), case["max_norm"])
            scaler.step(optimizer)
            scaler.update()
    return {**ranks.observed(), "all-reduces": [dtype for op, dtype, *_ in counted.entries if op == "all_reduce"]}


def forward_decides():
    """Bytes reduced if only backward is in no_sync, and if only forward is."""
    model, x, counts = DistributedDataParallel(torch.nn.Linear(2, 1)), torch.ones(1, 2), []
    for forward_inside in (False, True):
        with CommLedger() as counted:
            if forward_inside:
                with model.no_sync():
                    loss = model(x).sum()
                loss.backward()
            else:
                loss = model(x).sum()
                with model.no_sync():
                    loss.backward()
        counts.append(counted.of("all_reduce"))
    return counts
