"""Watches the storages of a training step: which are held at any moment, how large they are and what they are for.

A storage is counted once, however many tensors share it, from the operation that makes it until it is freed. What a
kernel allocates and frees inside one operation is not a tensor, and is not seen here.
"""

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import weakref

PARAMETERS, BUFFERS, INPUTS = "parameters", "buffers", "inputs"
GRADIENTS, STATE, STEP = "gradients", "optimizer state", "optimizer temporaries"
CASTS, SAVED, RECOMPUTED, WORKING = "weight casts", "saved activations", "recomputed activations", "working tensors"
ROWS = {  # in the order of the table, with what each is
    PARAMETERS: "the weights, in their own dtype",
    BUFFERS: "such as the running statistics of BatchNorm",
    INPUTS: "the batch: inputs and targets",
    GRADIENTS: "the .grad of each parameter",
    STATE: "what the optimizer keeps from step to step",
    STEP: "what the optimizer holds only during its step",
    CASTS: "autocast's low-precision copies of weights",
    SAVED: "what the forward pass keeps for backward",
    RECOMPUTED: "what checkpointing computes again in backward",
    WORKING: "other tensors of forward and backward while they are needed",
}
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer step"
PHASES = (FORWARD, BACKWARD, OPTIMIZER)


@dataclass
class Block:
    """A storage that is alive: its bytes, its row; if backward needs it, who saved it first and in which dtype."""

    bytes: int
    row: str
    ref: object = field(repr=False)
    module: str | None = None
    dtype: torch.dtype | None = None


class Tracker(TorchDispatchMode):
    """Counts the live storages by row while it is entered; the caller sets `phase` and says what it knows.

    model: for the paths of its modules. device: only storages on this kind of device count ("cpu" or "cuda").
    held: bytes by row now. peaks: for each phase, the bytes by row at the moment when their sum was largest.
    """

    def __init__(self, model: torch.nn.Module, device: str = "cpu"):
        super().__init__()
        self.device = device
        self.phase = FORWARD
        self.blocks: dict[int, Block] = {}
        self.held: Counter = Counter()
        self.most: Counter = Counter()
        self.peaks: dict[str, dict[str, int]] = {}
        self.total = 0
        self._highest: dict[str, int] = {}
        self._paths = {module: path for path, module in model.named_modules()}
        self._stack: list[str] = []
        self._handles: list = []
        self._saving = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self):
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._saving.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            self._saving.__exit__(*error)
            for handle in self._handles:
                handle.remove()
            self._stack.clear()

    def know(self, tensors, row: str) -> None:
        """Put the storages of these tensors into a row, whether they were seen before or not."""
        for tensor in tensors:
            block = self._block(tensor, row)
            if block is not None:
                self._move(block, row)
        self._note()

    def of(self, tensor: torch.Tensor) -> Block | None:
        """The block of a tensor; None if it is not known."""
        return self.blocks.get(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else None

    def saved(self) -> list[tuple[str, str, int]]:
        """(path of the module, name of the dtype, bytes) of each storage of saved activations that is alive."""
        alive = [block for block in self.blocks.values() if block.row == SAVED]
        return [(block.module, str(block.dtype).removeprefix("torch."), block.bytes) for block in alive]

    def start_phase(self, phase: str) -> None:
        """What is made from now on belongs to this phase."""
        self.phase = phase
        self._note()

    def forget_peaks(self) -> None:
        """Begin anew to look for peaks: what was is not counted, what is alive is."""
        self.most, self.peaks, self._highest = Counter(self.held), {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        fresh = not any(value.alias_info for value in func._schema.returns)
        row = None
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            if row is None:
                row = self._row(func, args, tensor)
            if fresh or self.of(tensor) is not None:  # a view of what was there before is nothing new
                self._block(tensor, row)
        self._note()
        return result

    def _row(self, func, args, made) -> str:
        """What a new tensor is for, as far as it is known when it is made."""
        if self.phase == OPTIMIZER:
            return STEP
        if func is torch.ops.aten._to_copy.default and made.dtype != args[0].dtype:
            source = self.of(args[0])
            if source is not None and source.row == PARAMETERS:
                return CASTS
        # A node of the graph runs without grad mode, unless it recomputes what checkpointing did not keep.
        again = self.phase == BACKWARD and torch.is_grad_enabled() and torch._C._current_autograd_node() is not None
        return RECOMPUTED if again else WORKING

    def _block(self, tensor, row) -> Block | None:
        """The block of a tensor's storage, made in that row if it is not known; None if it has no one storage here."""
        if tensor.device.type != self.device or tensor.layout != torch.strided:  # sparse tensors have several
            return None
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = Block(0, row, weakref.ref(storage, lambda _, key=key: self._freed(key)))
        self._add(block.row, size - block.bytes)  # a storage can be resized
        block.bytes = size
        return block

    def _freed(self, key) -> None:
        block = self.blocks.pop(key, None)
        if block is not None:
            self._add(block.row, -block.bytes)

    def _move(self, block, row) -> None:
        self._add(block.row, -block.bytes)
        block.row = row
        self._add(row, block.bytes)

    def _add(self, row, size) -> None:
        self.held[row] += size
        self.total += size

    def _note(self) -> None:
        """Keep what is held now if it is the most so far, for a row alone or for all together."""
        for row, size in self.held.items():
            if size > self.most[row]:
                self.most[row] = size
        if self.total > self._highest.get(self.phase, -1):
            self._highest[self.phase] = self.total
            self.peaks[self.phase] = dict(self.held)

    def _pack(self, tensor):
        block = self.of(tensor)
        if block is not None:
            if block.row in (WORKING, RECOMPUTED):
                self._move(block, SAVED)
            if block.row == SAVED and block.module is None:
                block.module, block.dtype = self._stack[-1] if self._stack else "loss", tensor.dtype
        # A node that held its own output by way of this hook would never be freed without a backward pass.
        return tensor if tensor.grad_fn is None else tensor.detach()

    def _enter_module(self, module, args):
        self._stack.append(self._paths.get(module, type(module).__name__))

    def _leave_module(self, module, args, output):
        if self._stack:
            self._stack.pop()
