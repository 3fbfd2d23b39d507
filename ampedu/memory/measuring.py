"""The ledger of a real training step, on the device where the model is."""

import torch

from ampedu.memory import allocator
from ampedu.memory.ledger import Ledger, recorded
from ampedu.memory.plan import Step, planned, replaced, split
from ampedu.memory.tracker import Tracker


def measure(
    model,
    batch,
    *,
    optimizer="adamw",
    policy="fp32",
    device_policy=None,
    checkpoint=None,
    loss=None,
    implementation=None,
    accumulate=1,
) -> Ledger:
    """Measure the memory of a training step by running three of them on a copy of the model, where the model is.

    The arguments are those of `predict`. device_policy: None is "cuda" for a model on a GPU and for one on a CPU too,
    where it means the CUDA policy with real numbers (ampedu.policy.cuda_policy_on_cpu); "cpu" is the CPU's own.
    The first step makes the optimizer's state. In the second, every storage is followed by hooks on saved tensors and
    on operations: the rows. The third runs alone, and the allocator says its peak (`Ledger.allocator_peak`):
    torch.cuda.max_memory_allocated on a GPU, the profiler's record of allocations on a CPU.
    ValueError: batch and model are on different devices, or on one that is neither "cpu" nor "cuda".
    """
    place = _device(model, batch)
    device = place.type
    device_policy = device_policy or "cuda"
    if (device, device_policy) == ("cuda", "cpu"):
        raise ValueError("the model is on a GPU, where autocast follows the policy of 'cuda': move it to the CPU first")
    plan = planned(model, policy, device_policy, device, optimizer, implementation, checkpoint, loss, accumulate)

    def real(tensor):
        dtype = plan.dtype if plan.dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(dtype, copy=True)

    with torch.random.fork_rng(devices=[place] if device == "cuda" else []), torch.enable_grad():
        step = Step(plan, *replaced(model, batch, real))
        step.run()
        tracker = Tracker(step.model, device)
        ledger = recorded(step, tracker, kind="measured")
        start = sum(ledger.moments["start"].rows.values())
        del tracker
        return ledger.with_allocator(start + allocator.growth(step.run, place))


def _device(model, batch) -> torch.device:
    """The device of model and batch."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: the ledger needs a torch.nn.Module")
    inputs, target = split(batch)
    tensors = [item for item in (*model.parameters(), *inputs, *target) if isinstance(item, torch.Tensor)]
    places = sorted({str(tensor.device) for tensor in tensors})
    if len(places) > 1:
        raise ValueError(f"model and batch are on {' and '.join(places)}: move them to one device with .to(device)")
    if not places or torch.device(places[0]).type not in ("cpu", "cuda"):
        found = places[0] if places else "no device"
        raise ValueError(f"the model is on {found}: measure runs on 'cpu' and 'cuda'; predict needs no device")
    return torch.device(places[0])
