"""What the ranks hand to their collectives: calls, dtypes and bytes, counted below DDP and FSDP.

DDP's reducer is C++ and calls the process group itself, so wrapping the functions of torch.distributed would miss it.
But each collective of a process group passes torch's dispatcher as an operation c10d::…, where a TorchDispatchMode
sees it, also the ones made in the backward pass and in communication hooks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operation → (name of the collective, which tensors count: the position of the argument).
# Counted is the whole buffer of an all_gather and a reduce_scatter, as nccl-tests does for its sizes, and of a gather
# or scatter this rank's piece: its other side is empty on all ranks but one.
C10D = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 0),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
    "barrier": ("barrier", None),
    "monitored_barrier_": ("barrier", None),
}
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "isend": "send",
    "irecv": "recv",
    "batch_p2p_ops": "send and recv",
}


@dataclass(frozen=True)
class CommRow:
    """The calls of one collective with one dtype. elements and bytes: of all calls together, on this rank."""

    op: str
    dtype: str
    calls: int
    elements: int
    bytes: int


class CommLedger(TorchDispatchMode):
    """Context manager that counts what this rank hands to collectives: DDP, communication hooks, FSDP2, your own.

        with CommLedger() as ledger:
            loss.backward()
        print(ledger)

    bytes are those of the buffer handed to the collective: the tensor of an all_reduce or broadcast, the whole result
    of an all_gather, the whole input of a reduce_scatter, this rank's piece of a gather or scatter. They are not the
    bytes on the wire: how often a byte travels depends on the algorithm, which `wire_bytes` knows for rings.

    Enter it after the model is wrapped: making a DDP model communicates, too. DDP's second step sends one message
    more, when the reducer sorts its buckets by the order in which gradients came.
    """

    def __init__(self):
        super().__init__()
        self.entries: list[tuple[str, str, int, int]] = []  # op, dtype, elements, bytes, in the order of the calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, _dtensor()) for kind in types):
            return NotImplemented  # DTensor goes first: it breaks the operation into local ones and collectives
        found = _collective(func)
        if found is not None:
            self._enter(func, *found, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _enter(self, func, op, position, args, kwargs):
        if position is None:
            self.entries.append((op, "", 0, 0))
            return
        tensors = _tensors(args[position] if position < len(args) else kwargs[func._schema.arguments[position].name])
        if func.namespace == "_c10d_functional" and op == "all_gather":
            size = args[1] if len(args) > 1 else kwargs["group_size"]
            tensors = [t for t in tensors for _ in range(size)]
        dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors}
        elements = sum(t.numel() for t in tensors)
        self.entries.append((op, " ".join(sorted(dtypes)), elements, sum(t.numel() * t.itemsize for t in tensors)))

    @property
    def rows(self) -> list[CommRow]:
        """One row per collective and dtype, in the order of their first calls."""
        groups: dict[tuple[str, str], list] = {}
        for op, dtype, elements, size in self.entries:
            row = groups.setdefault((op, dtype), [0, 0, 0])
            row[0] += 1
            row[1] += elements
            row[2] += size
        return [CommRow(op, dtype, *numbers) for (op, dtype), numbers in groups.items()]

    @property
    def calls(self) -> int:
        """Collectives so far."""
        return len(self.entries)

    @property
    def bytes(self) -> int:
        """Bytes handed to all collectives so far."""
        return sum(size for *_, size in self.entries)

    def of(self, op: str, dtype: str | None = None) -> int:
        """Bytes handed to one collective, "all_reduce" for example; with `dtype` ("float16"), only in that dtype."""
        return sum(size for name, kind, _, size in self.entries if name == op and dtype in (None, kind))

    def reset(self) -> None:
        """Forget what was counted."""
        self.entries.clear()

    def plain(self) -> list[dict]:
        """The rows as plain data, for a rank's result."""
        return [vars(row) for row in self.rows]

    def __str__(self):
        head = f"{'collective':<15}{'dtype':<10}{'calls':>6}{'elements':>12}{'bytes':>13}"
        lines = [f"{r.op:<15}{r.dtype:<10}{r.calls:>6}{r.elements:>12,}{r.bytes:>13,}" for r in self.rows]
        return "\n".join([head, *(lines or ["no collective"])])


def _collective(func):
    """(name, position of the tensors that count) of a collective, None for any other operation."""
    name = func._schema.name.partition("::")[2]
    if func.namespace == "c10d":
        return C10D.get(name)
    if func.namespace == "_c10d_functional" and name in FUNCTIONAL:
        return FUNCTIONAL[name], 3 if name == "batch_p2p_ops" else 0
    return None


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    return []


def _dtensor():
    from torch.distributed.tensor import DTensor

    return DTensor
