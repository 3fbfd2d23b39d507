"""A learner's ddp_step (lab 08) on two real processes, beside torch's DistributedDataParallel."""

import sys

CASE = 2  # of 08.ddp_step: two ranks, and the second batch overflows on rank 1


class ProcessGroup:
    """What ``ranks.Group`` is, for real ranks: the lists have one entry, that of this process."""

    def __init__(self):
        import torch.distributed as dist

        self.size, self.log = dist.get_world_size(), []

    def all_reduce(self, tensors: list, op: str = "sum") -> None:
        """torch.distributed.all_reduce of this rank's tensor, the only one of the list; op: "sum", "max" or "min"."""
        import torch.distributed as dist

        (tensor,) = tensors
        dist.all_reduce(tensor.detach(), getattr(dist.ReduceOp, op.upper()))
        self.log.append(("all_reduce", str(tensor.dtype)[6:], tensor.numel()))


def on_two_processes(answer, timeout: float = 120) -> list[dict]:
    """Train three steps on two gloo processes, by the learner's step and by DDP; a dict per rank.

    hand, ddp: {"moved": per weight, in units of the learning rate, "scales": after each step, in units of the first}.
    bytes, dtypes: what DDP's all-reduces were given in a step, and in which dtypes. Raises what the answer raises on
    simulated ranks, before any process starts, and DistributedError for a failure of a rank.
    """
    from ampedu.distributed import run_distributed
    from ampedu.exercises import load
    from ampedu.exercises.locate import call_from, locate

    definition = locate("08.ddp_step", answer, call_from(sys._getframe(1)))
    ex = load("08.ddp_step")
    case = ex.cases()[CASE]
    ex.run(answer, case)
    job = definition.source, definition.name, definition.borrowed, case
    return run_distributed(both, nproc=2, backend="gloo", timeout=timeout, args=job, quiet=True)


def both(source: str, name: str, borrowed: dict, case: dict) -> dict:
    """On each rank: train by the answer, then by DDP. See on_two_processes."""
    import torch
    import torch.distributed as dist

    from ampedu.distributed import CommLedger
    from ampedu.exercises import cells
    from ampedu.exercises.ranks import Ranks

    answer = cells.namespace(source, name, extra=borrowed)[name]
    rank, group = dist.get_rank(), ProcessGroup()

    def by_hand(model, batch, loss_fn, optimizer, scaler):
        answer([model], [batch], loss_fn, [optimizer], [scaler], group)

    def by_ddp(model, batch, loss_fn, optimizer, scaler):
        x, y = batch
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    def trained(step, wrap=lambda model: model):
        ranks = Ranks(case).only(rank)
        model, scales = wrap(ranks.models[0]), []
        with CommLedger() as ledger:
            for batch in ranks.batches():
                step(model, batch[rank], ranks.loss_fn, ranks.optimizers[0], ranks.scalers[0])
                scales.append(ranks.observed()["scales"][0])
        return {"moved": ranks.observed()["moved"][0], "scales": scales}, ledger

    hand, _ = trained(by_hand)
    ddp, ledger = trained(by_ddp, torch.nn.parallel.DistributedDataParallel)
    dtypes = " ".join(sorted({row.dtype for row in ledger.rows if row.op == "all_reduce"}))
    steps = len(case["batches"])
    return {"hand": hand, "ddp": ddp, "bytes": ledger.of("all_reduce") // steps, "dtypes": dtypes}
