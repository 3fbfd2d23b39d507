"""The ledger without running at full size: a training step on fake tensors, which have a shape and a dtype only."""

import contextlib

import torch

from ampedu.memory.ledger import Ledger, recorded
from ampedu.memory.plan import LedgerError, Step, planned, replaced
from ampedu.memory.tracker import Tracker


def predict(
    model,
    batch,
    *,
    optimizer="adamw",
    policy="fp32",
    device_policy="cuda",
    checkpoint=None,
    loss=None,
    implementation=None,
    accumulate=1,
) -> Ledger:
    """Predict the memory of a training step from shapes and dtypes: nothing is computed, nothing large is allocated.

    model: a module on any device, also built under ``torch.device("meta")``. batch: a tensor, or (inputs, target) as a
    DataLoader gives it; meta tensors do. optimizer: "adamw", "adam", "momentum", "sgd", or a function from parameters
    to an optimizer. implementation: "foreach", "for-loop" or "fused"; None is torch's choice, foreach on a GPU,
    for-loop on a CPU. policy: "fp32", autocast to "bf16" or "fp16", or "pure_bf16" (model and batch converted).
    device_policy: whose autocast lists and kernels, "cuda" or "cpu". checkpoint: paths of modules that keep only their
    inputs and are computed again in backward, such as "encoder.layers.*"; True means all members of ModuleLists.
    loss: a function of output and target, run inside the region; without it cross entropy for classes, mean squared
    error for numbers, the mean without a target. accumulate: micro-batches in a step.

    The step is not the first one: the optimizer has its state. Not counted: what kernels and libraries allocate inside
    an operation (workspaces), what the allocator adds in rounding, and the CUDA context. In "pure_bf16" the statistics
    of norms count as bfloat16, as on a CPU; a GPU keeps them in float32. The model stays as it is.
    LedgerError: the model asks for values, which fake tensors do not have. ValueError, TypeError: a bad argument.
    """
    plan = planned(model, policy, device_policy, "cpu", optimizer, implementation, checkpoint, loss, accumulate)
    from torch._subclasses import fake_tensor  # slow to import, and most who import this module do not predict

    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor):
        dtype = plan.dtype if plan.dtype is not None and tensor.is_floating_point() else tensor.dtype
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="cpu")

    step_model, step_batch = replaced(model, batch, fake)
    with _explained(fake_tensor), torch.enable_grad(), mode:
        step = Step(plan, step_model, step_batch)
        step.run()
        tracker = Tracker(step.model)
        return recorded(step, tracker)


@contextlib.contextmanager
def _explained(fake_tensor):
    try:
        yield
    except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException) as error:
        raise LedgerError(
            f"the model asks for values ({error}), and a prediction has shapes and dtypes only: use measure, or leave "
            "out what depends on values, such as .item(), nonzero() and masks as indices"
        ) from error
