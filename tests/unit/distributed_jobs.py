"""What the ranks of the tests run."""

import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

VALUES = {
    "none": None,
    "tuple": (1, -2.5, "ü", True),
    "nan": [float("inf"), float("-inf")],
    "bf16": torch.tensor([1.5, -0.0, float("inf")], dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
}


def everything(base, values):
    """Talk, add, count bytes, and say where this rank is."""
    from ampedu.distributed import CommLedger, device

    rank = dist.get_rank()
    print("half a line,", end="", flush=True)
    time.sleep(0.2 * rank)
    print(f" the other half of {rank}")
    print("to stderr", file=sys.stderr)
    total = torch.full((3,), base + rank)
    with CommLedger() as ledger:
        dist.all_reduce(total)
    return {
        "sum": total,
        "values": values,
        "ledger": ledger.plain(),
        "backend": dist.get_backend(),
        "device": device(),
        "threads": torch.get_num_threads(),
        "env": {key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "LOCAL_RANK", "MASTER_PORT")},
        "group": os.getpgrp() == os.getpid(),
        "stdin": sys.stdin.read(),
    }


def crash():
    """Rank 1 raises, rank 0 waits for it."""
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 1:
        raise ValueError("the loss is nan")
    dist.barrier()


def killed():
    """Rank 1 is killed, rank 0 waits for it."""
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hang():
    """Rank 1 sleeps with a child of its own, rank 0 waits in a collective."""
    if dist.get_rank() == 1:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("asleep", flush=True)
        time.sleep(600)
        child.wait()
    dist.all_reduce(torch.ones(2))


def no_plain_data():
    """Return what cannot be sent."""
    return object()


def leaves():
    """End without a word."""
    os._exit(3)


def ledgers():
    """The rows of a step of DDP, DDP with the fp16 hook, and FSDP2 with both reduce dtypes; number of parameters."""
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from ampedu.distributed import CommLedger

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.Linear(64, 16))

    def step(model, scaler=None, optimizer=None):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(4, 48)).float().square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(optimizer)
            scaler.update()

    found = {"parameters": sum(p.numel() for p in network().parameters())}
    for name, hook in (("ddp", None), ("fp16 hook", fp16_compress_hook)):
        model = nn.parallel.DistributedDataParallel(network())
        if hook:
            model.register_comm_hook(None, hook)
        step(model)
        step(model)
        with CommLedger() as ledger:
            step(model)
        found[name] = ledger.plain()
    for name, dtype in (("fsdp float32", torch.float32), ("fsdp bfloat16", torch.bfloat16)):
        model = network()
        for part in (*model, model):
            fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=dtype))
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        with CommLedger() as ledger:
            step(model, scaler, optimizer)
        found[name] = ledger.plain()
    return found
