"""What a trace holds: operations, casts, calls of modules, and what can be counted from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import torch

PHASES = ("forward", "loss", "backward")
SHORT = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def short(dtype: torch.dtype) -> str:
    """A dtype in few letters: f32, f16, bf16, f64; others as torch writes them, without "torch."."""
    return SHORT.get(dtype, str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Cast:
    """One copy of a floating-point tensor into another floating-point dtype."""

    source: torch.dtype
    target: torch.dtype
    kind: str  # what is cast: "weight", "buffer", "input", "activation" or "gradient"
    name: str  # of the weight or buffer, "" for other tensors
    by: str  # "autocast", "explicit" (.to, .float …), "kernel" (inside an operation) or "backward"
    bytes: int  # that the copy takes
    needless: str = ""  # "again": this value was cast to this dtype before; "back": it existed in this dtype before
    fused: bool = False  # a GPU does this inside the operation's kernel, without a copy


@dataclass(frozen=True)
class Op:
    """One aten operation, as autograd and autocast hand it to the device's kernel."""

    index: int
    name: str  # of aten's operation, for example "addmm"
    phase: str  # one of PHASES
    module: str  # path of the module that called it; in backward: of the module of the forward operation
    call: str  # the call that it is part of, for example "linear"
    group: int  # operations of one call have the same number
    inputs: tuple[torch.dtype, ...]  # of the tensors, in the order of the arguments
    outputs: tuple[torch.dtype, ...]
    kinds: tuple[str, ...] = ()  # of the inputs: "weight", "buffer", "input", "activation", "gradient"
    view: bool = False  # shares its input's memory: computes nothing
    cast: Cast | None = None
    hits: tuple[str, ...] = ()  # weights whose cast came from the cache
    node: str = ""  # backward: name of the autograd node, for example "AddmmBackward0"
    of: int | None = None  # backward: index of the forward operation
    recomputed: bool = False  # a forward operation run again in backward, by checkpointing

    @property
    def floats(self) -> tuple[torch.dtype, ...]:
        """Dtypes of the floating-point results."""
        return tuple(dtype for dtype in self.outputs if dtype.is_floating_point)

    @property
    def result(self) -> torch.dtype | None:
        """Dtype of the first floating-point result; what comes after it are statistics, for example."""
        return self.floats[0] if self.floats else None

    @property
    def computes(self) -> bool:
        """Whether it does arithmetic with floating-point numbers: no view, no cast, no allocation."""
        return not self.view and self.cast is None and bool(self.floats) and self.name not in ALLOCATES


ALLOCATES = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones "
    "full full_like new_full scalar_tensor clone copy_ _unsafe_view _reshape_copy zero_ fill_ bernoulli_ arange "
    "_to_copy lift_fresh contiguous select_backward slice_backward unfold_backward".split()
)


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module: its path, its class, and the dtypes of the tensors it returned."""

    path: str
    kind: str
    outputs: tuple[torch.dtype, ...]


@dataclass(frozen=True, repr=False)
class Trace:
    """All operations of one forward and backward pass. Shows itself as a table; ``picture()`` draws it."""

    ops: tuple[Op, ...]
    modules: tuple[ModuleCall, ...]
    gradients: dict[str, torch.dtype]  # of each parameter's .grad
    policy: str  # whose: "cuda", "cpu" …; "none" without autocast
    dtype: torch.dtype | None  # to which autocast casts, None without autocast
    device: str
    cache_enabled: bool = True
    notes: tuple[str, ...] = field(default=())

    def select(self, phase=None, module=None, name=None) -> tuple[Op, ...]:
        """The operations of a phase, below a module's path, or of one name (aten's or the call's)."""
        return tuple(
            op
            for op in self.ops
            if phase in (None, op.phase)
            and (module in (None, "", op.module) or op.module.startswith(f"{module}."))
            and name in (None, op.name, op.call)
        )

    @property
    def casts(self) -> tuple[Op, ...]:
        """The operations that are casts, in order."""
        return tuple(op for op in self.ops if op.cast is not None)

    @property
    def autocasts(self) -> tuple[Op, ...]:
        """The casts that autocast made: none of them is in backward unless it is recomputed."""
        return tuple(op for op in self.casts if op.cast.by == "autocast")

    @property
    def needless(self) -> tuple[Op, ...]:
        """The casts to a dtype in which the same value existed already."""
        return tuple(op for op in self.casts if op.cast.needless)

    @property
    def cache_hits(self) -> int:
        """How often a weight's cast came from autocast's cache."""
        return sum(len(op.hits) for op in self.ops)

    @property
    def islands(self) -> tuple[tuple[Op, ...], ...]:
        """Runs of forward arithmetic with float32 results between arithmetic in lower precision."""
        if self.dtype is None:
            return ()
        computing = [op for op in self.ops if op.phase == "forward" and op.computes]
        runs = [tuple(run) for _, run in groupby(computing, key=lambda op: op.result == torch.float32)]
        return tuple(run for run in runs[1:-1] if run[0].result == torch.float32)

    def count(self, kind=None, by=None, phase=None) -> tuple[int, int]:
        """Number and bytes of the casts of a kind ("weight" …), of an origin ("autocast" …), of a phase."""
        found = [
            op.cast.bytes
            for op in self.casts
            if kind in (None, op.cast.kind) and by in (None, op.cast.by) and phase in (None, op.phase)
        ]
        return len(found), sum(found)

    def rows(self):
        """The calls folded by module, as the table and the picture show them: a list of ampedu.trace.folding.Row."""
        from ampedu.trace.folding import fold

        return fold(self)

    def table(self) -> str:
        """The trace as aligned text, folded by module."""
        from ampedu.trace.table import as_text

        return as_text(self)

    def picture(self, title: str | None = None):
        """The trace as a Picture: rows are calls in order, forward and backward side by side, width = bits."""
        from ampedu.plots.trace import dtype_trace

        return dtype_trace(self, title)

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from ampedu.trace.table import as_html

        return as_html(self)
