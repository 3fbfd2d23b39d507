"""One training step as the ledger runs it: the policy's region, the loss, checkpointing, the optimizer."""

import contextlib
import copy
import fnmatch
import functools
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint as checkpointed

from ampedu.memory.kernels import gpu_kernels
from ampedu.memory.tracker import BACKWARD, BUFFERS, FORWARD, GRADIENTS, INPUTS, OPTIMIZER, PARAMETERS, STATE, Tracker
from ampedu.policy import cuda_policy_on_cpu

POLICIES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "pure_bf16": None}
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=1e-3),
    "momentum": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adam": functools.partial(torch.optim.Adam, lr=1e-3),
    "adamw": functools.partial(torch.optim.AdamW, lr=1e-3),
}
IMPLEMENTATIONS = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


class LedgerError(RuntimeError):
    """This step cannot be predicted or measured in this way; the message says why and what to do."""


@dataclass(frozen=True)
class Plan:
    """What is asked of a ledger. device: where the step runs; the other fields are the arguments of `predict`."""

    policy: str
    device_policy: str
    device: str
    optimizer: object
    implementation: str
    checkpoint: object
    loss: object
    accumulate: int
    blocks: tuple[str, ...] = field(default=(), compare=False)

    @property
    def dtype(self) -> torch.dtype | None:
        """To which parameters and inputs are converted before anything else; None: they stay as they are."""
        return torch.bfloat16 if self.policy == "pure_bf16" else None


def planned(model, policy, device_policy, device, optimizer, implementation, checkpoint, loss, accumulate) -> Plan:
    """Check what was asked; ValueError or TypeError names what cannot be had, LedgerError says what is in the way."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: the ledger needs a torch.nn.Module")
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError("the model has no parameter that requires a gradient: there is no training step to count")
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}: choose one of {', '.join(map(repr, POLICIES))}")
    if device_policy not in ("cuda", "cpu"):
        raise ValueError(f"device_policy is {device_policy!r}: choose 'cuda' or 'cpu', whose autocast lists are meant")
    if not callable(optimizer) and optimizer not in OPTIMIZERS:
        known = ", ".join(map(repr, OPTIMIZERS))
        raise ValueError(f"optimizer is {optimizer!r}: choose one of {known}, or a function params -> Optimizer")
    if callable(optimizer) and implementation is not None:
        raise ValueError("implementation goes with the name of an optimizer; your function decides for itself")
    if implementation is None:  # what torch.optim chooses by itself
        implementation = "foreach" if device_policy == "cuda" else "for-loop"
    if implementation not in IMPLEMENTATIONS:
        known = ", ".join(map(repr, IMPLEMENTATIONS))
        raise ValueError(f"implementation is {implementation!r}: choose one of {known}")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate is {accumulate!r}: give the number of micro-batches of a step, 1 or more")
    if loss is not None and not callable(loss):
        raise TypeError("loss must be a function of the output and, if the batch has one, the target")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise LedgerError("the ledger opens its own autocast region: call it outside of torch.autocast")
    blocks = checkpointed_blocks(model, checkpoint)
    return Plan(policy, device_policy, device, optimizer, implementation, checkpoint, loss, accumulate, blocks)


def checkpointed_blocks(model, checkpoint) -> tuple[str, ...]:
    """Paths of the modules to checkpoint. True: the members of the outermost ModuleLists."""
    if checkpoint is None or checkpoint is False:
        return ()
    paths = [path for path, _ in model.named_modules() if path]
    if checkpoint is True:
        lists = [path for path, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)]
        found = [path for path in paths if path.rpartition(".")[0] in lists]
        cure = "the model has no ModuleList: name the modules to checkpoint, such as checkpoint='blocks.*'"
    else:
        patterns = [checkpoint] if isinstance(checkpoint, str) else list(checkpoint)
        found = [path for path in paths if any(_matches(path, pattern) for pattern in patterns)]
        some = ", ".join(paths[:8])
        cure = f"no module is called {checkpoint!r}: the model has {some}{', …' * (len(paths) > 8)}"
    if not found:
        raise ValueError(cure)
    return tuple(path for path in found if not any(path.startswith(f"{other}.") for other in found))


def _matches(path, pattern) -> bool:
    """As file names match, part by part: 'layers.*' names layers.0 and not layers.0.norm."""
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def split(batch) -> tuple[tuple, tuple]:
    """(arguments of the model, target or nothing): batch is a tensor, or (inputs, target) as a DataLoader gives it."""
    if isinstance(batch, torch.Tensor):
        return (batch,), ()
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, target = batch
        return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), (target,)
    raise TypeError("batch must be a tensor, or (inputs, target), where inputs is a tensor or a tuple of tensors")


def replaced(model, batch, convert):
    """(copy of the model, batch) in which each tensor is what `convert` makes of it; shared ones stay shared."""
    memo = {}
    lazy = [name for name, tensor in model.named_parameters() if torch.nn.parameter.is_lazy(tensor)]
    if lazy:
        raise LedgerError(f"{lazy[0]} has no shape yet: run the model once, so that its lazy modules get theirs")
    for tensor in (*model.parameters(), *model.buffers()):
        new = convert(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = new
    try:
        copied = copy.deepcopy(model, memo)
    except RuntimeError as error:
        raise LedgerError(f"the model cannot be copied with copy.deepcopy: {error}") from error
    return copied, tree_map(lambda x: convert(x) if isinstance(x, torch.Tensor) else x, batch)


class Step:
    """A model, its batch and its optimizer, ready to run training steps as planned. The model is changed."""

    def __init__(self, plan: Plan, model, batch):
        self.plan, self.model = plan, model
        self.inputs, self.target = split(batch)
        for path in plan.blocks:
            module = model.get_submodule(path)
            module.forward = functools.partial(
                checkpointed, module.forward, use_reentrant=False, preserve_rng_state=False
            )
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        make = plan.optimizer
        if not callable(make):
            make = functools.partial(OPTIMIZERS[make], **IMPLEMENTATIONS[plan.implementation])
        self.optimizer = make(weights)
        model.train()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """What is held between two steps, by row."""
        state = [item for entry in self.optimizer.state.values() for item in tree_leaves(entry)]
        return {
            PARAMETERS: list(self.model.parameters()),
            BUFFERS: list(self.model.buffers()),
            INPUTS: [item for item in tree_leaves((self.inputs, self.target)) if isinstance(item, torch.Tensor)],
            STATE: [item for item in state if isinstance(item, torch.Tensor)],
        }

    def run(self, tracker: Tracker | None = None) -> dict[str, list]:
        """One step, with zero_grad at its end. Returns what the tracker held when a forward pass had ended."""
        end = {}
        with contextlib.ExitStack() as stack:
            self._policy(stack)
            for _ in range(min(self.plan.accumulate, 2)):  # from the second one on, nothing new
                _phase(tracker, FORWARD)
                with self._region():
                    loss = self._loss(self.model(*self.inputs))
                if tracker is not None:
                    end = {"held": dict(tracker.held), "saved": tracker.saved()}
                _phase(tracker, BACKWARD)
                loss.backward()
            _phase(tracker, OPTIMIZER)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return end

    def label_gradients(self, tracker: Tracker):
        """From now on, a gradient is in the row of gradients from when it is accumulated. Returns what undoes it."""
        handles = [
            weight.register_post_accumulate_grad_hook(lambda done: tracker.know([done.grad], GRADIENTS))
            for weight in self.model.parameters()
            if weight.requires_grad
        ]
        return lambda: [handle.remove() for handle in handles]

    def _policy(self, stack) -> None:
        if self.plan.device_policy == "cuda" and self.plan.device == "cpu":
            stack.enter_context(gpu_kernels())
            if POLICIES[self.plan.policy] is not None:
                stack.enter_context(cuda_policy_on_cpu())

    def _region(self):
        low = POLICIES[self.plan.policy]
        return contextlib.nullcontext() if low is None else torch.autocast(self.plan.device, dtype=low)

    def _loss(self, output):
        given = self.plan.loss
        loss = given(output, *self.target) if given is not None else _usual_loss(output, self.target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ValueError("loss must return a tensor with one number that depends on the model")
        return loss


def _phase(tracker, phase) -> None:
    if tracker is not None:
        tracker.start_phase(phase)


def _usual_loss(output, target):
    """Cross entropy with a target of classes, mean squared error with another one, the mean without a target."""
    if not isinstance(output, torch.Tensor):
        raise ValueError(f"the model returns a {type(output).__name__}, not a tensor: give loss=, a function of it")
    if not target:
        return output.float().mean()
    if target[0].is_floating_point():
        return F.mse_loss(output, target[0])
    return F.cross_entropy(output.flatten(0, -2), target[0].flatten())
