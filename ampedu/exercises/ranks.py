"""The ranks of lab 08, all in one process: what belongs to a rank stands in a list, one entry per rank.

``Group`` is the wire between them, ``Replicas`` what DistributedDataParallel (DDP) makes of it. Deterministic: sums run
from rank 0 up, in the dtype of the message, as on a wire that adds.
"""

import contextlib

import torch

from ampedu.exercises.clinic import (
    HUGE,
    LEARNING_RATE,
    SCALE,
    batches_of,
    digits,
    drawn,
    interval_of,
    linear,
    loss_of,
    scaler_of,
    sgd,
    signed,
    unit,
)

OPS = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


class Group:
    """The ranks 0 … size − 1 and what they send to each other.

    log: (collective, dtype, elements per rank), in the order of the calls. sent: bytes that each rank has passed on by
    ``pass_right``. rounds: how often it was called.
    """

    def __init__(self, size: int):
        self.size = size
        self.log: list[tuple[str, str, int]] = []
        self.sent = [0] * size
        self.rounds = 0

    def all_reduce(self, tensors: list, op: str = "sum") -> None:
        """Put into each of the tensors, one per rank and alike in shape and dtype, the "sum", "max" or "min" of all.

        Works in place, as torch.distributed.all_reduce does, and returns None.
        """
        tensors = self._one_per_rank(tensors, "all_reduce")
        if op not in OPS:
            raise ValueError(f"op is {op!r}: use 'sum', 'max' or 'min'")
        alike = {(tensor.dtype, tensor.shape) for tensor in tensors}
        if len(alike) > 1:
            kinds = " and ".join(sorted(f"{str(dtype)[6:]} {tuple(shape)}" for dtype, shape in alike))
            raise ValueError(f"all_reduce got tensors that are not alike: {kinds}")
        with torch.no_grad():
            total = tensors[0].detach().clone()
            for tensor in tensors[1:]:
                total = OPS[op](total, tensor.detach())
            for tensor in tensors:
                tensor.copy_(total)
        self.log.append(("all_reduce", str(total.dtype)[6:], total.numel()))

    def pass_right(self, messages: list) -> list:
        """Rank r sends messages[r] to rank r + 1, the last rank to rank 0; returns copies: what each rank received."""
        messages = self._one_per_rank(messages, "pass_right")
        for rank, message in enumerate(messages):
            self.sent[rank] += message.numel() * message.element_size()
        self.rounds += 1
        return [messages[rank - 1].detach().clone() for rank in range(self.size)]

    def _one_per_rank(self, tensors, name):
        tensors = list(tensors) if isinstance(tensors, list | tuple) else tensors
        if not isinstance(tensors, list) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise TypeError(f"{name} takes a list with a tensor of every rank, not {type(tensors).__name__}")
        if len(tensors) != self.size:
            raise ValueError(f"{name} got {len(tensors)} tensors from {self.size} ranks: every rank has to take part")
        return tensors


class Replicas:
    """What DDP does with one model per rank: after backward, all have the mean of their gradients.

    As in DDP, the forward pass decides whether the backward pass that follows reduces: no_sync has to be there before.
    """

    def __init__(self, models: list, group: Group):
        self.models, self.group = models, group
        self._sync = True
        self._armed = True

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients of the passes in this block stay on their ranks and add up in ``.grad``."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def losses(self, batches: list, loss_fn) -> list:
        """loss_fn(outputs, targets) of every rank on its own batch (x, y), under autocast to float16."""
        self._armed = self._sync
        found = []
        for model, (x, y) in zip(self.models, batches, strict=True):
            with torch.autocast(x.device.type, dtype=torch.float16):
                found.append(loss_fn(model(x), y))
        return found

    def backward(self, losses: list) -> None:
        """The backward pass of every rank, then one all-reduce of all gradients and the division by the ranks."""
        for loss in losses:
            loss.backward()
        if not self._armed:
            return
        buckets = [torch.cat([p.grad.flatten() for p in model.parameters()]) / self.group.size
                   for model in self.models]  # fmt: skip
        self.group.all_reduce(buckets)
        for model, bucket in zip(self.models, buckets, strict=True):
            for parameter, part in zip(model.parameters(), split(bucket, model), strict=True):
                parameter.grad.copy_(part)


def split(bucket, model):
    """The parts of a flat bucket in the shapes of the model's parameters."""
    parts = bucket.split([p.numel() for p in model.parameters()])
    return [part.view_as(p) for part, p in zip(parts, model.parameters(), strict=True)]


def case(stream, sizes, *, interval=1000, tiny=False, infinite=(), **more) -> dict:
    """The inputs of a case: weights and batches in quarters (see clinic), and settings.

    sizes: per micro-batch the rows of each rank. infinite: pairs (micro-batch, rank) whose gradients overflow.
    """
    batches = [drawn(stream, [n for n in rows if n]) for rows in sizes]
    for index, rows in enumerate(sizes):
        filled = iter(batches[index])
        batches[index] = [next(filled) if n else [] for n in rows]
    for index, rank in infinite:
        batches[index][rank][0][2] = HUGE
    settings = {"tiny": True} if tiny else {}
    settings |= {"interval": interval} if interval != 1000 else {}
    return {"weights": [signed(stream, 1, 4) for _ in range(2)], "batches": batches, **settings, **more}


class Ranks:
    """Models, optimizers and scalers of a case, alike on all ranks, and the group that connects them."""

    def __init__(self, case: dict):
        self.case = case
        size = len(case["batches"][0])
        self.models = [linear(case["weights"]) for _ in range(size)]
        self.optimizers = [sgd(case, model) for model in self.models]
        self.scalers = [scaler_of(case) for _ in range(size)]
        self.group = Group(size)
        self.loss_fn = loss_of(case)
        self.start = self.models[0].weight.detach().double().clone()

    def batches(self) -> list[list[tuple]]:
        """Per micro-batch and rank (x, y), of shapes (rows, 2) and (rows, 1)."""
        empty = torch.zeros(0, 2), torch.zeros(0, 1)
        return [[batches_of({"batches": [rows]})[0] if rows else empty for rows in ranks]
                for ranks in self.case["batches"]]  # fmt: skip

    def only(self, rank: int) -> "Ranks":
        """The same with one entry in each list, for the process that is this rank."""
        for name in ("models", "optimizers", "scalers"):
            setattr(self, name, [getattr(self, name)[rank]])
        return self

    def observed(self) -> dict:
        """moved: how far the weights of each rank moved, in units of the learning rate; scales: in units of SCALE."""
        moved = [(model.weight.detach().double() - self.start).flatten() / LEARNING_RATE for model in self.models]
        scales = [scaler.get_scale() / SCALE * unit(self.case) for scaler in self.scalers]
        return {"moved": [digits(each) for each in moved], "scales": scales}


def in_words(case: dict) -> str:
    """The ranks, the batches and the settings of a case."""
    sizes = [[len(rows) for rows in ranks] for ranks in case["batches"]]
    same = len({n for ranks in sizes for n in ranks}) == 1
    rows = f"{sizes[0][0]} rows" if same else f"{' then '.join(map(str, sizes))} rows"
    many = f"{len(sizes)} batches" if len(sizes) > 1 else "a batch"
    text = f"{len(sizes[0])} ranks with {many} of {rows} each" if same else f"{len(sizes[0])} ranks with {rows}"
    bad = [f"batch {i} of rank {r}" for i, ranks in enumerate(case["batches"], 1) for r, rows in enumerate(ranks)
           if any(row[2] == HUGE for row in rows)]  # fmt: skip
    text += f", gradients overflow in {' and '.join(bad)}" if bad else ""
    text += f", growth_interval={interval_of(case)}" if "interval" in case else ""
    return text + (", a loss of about 1e-7" if "tiny" in case else "")
