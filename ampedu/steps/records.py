"""What a watcher keeps: the calls of a loop, and what is wrong with their order."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("forward", "backward", "unscale_", "clip", "step", "update", "scheduler", "zero_grad")

# id: (what is wrong, what to do). The ids are stable.
RULES = {
    "clip-before-unscale": (
        "The gradients were clipped while they were still multiplied by the scale.",
        "Call scaler.unscale_(optimizer) before the clip: backward, unscale_, clip, step, update.",
    ),
    "clip-by-scaled-norm": (
        "The clip used a norm that was measured before unscale_.",
        "Measure the norm after scaler.unscale_(optimizer), or use clip_grad_norm_, which measures it itself.",
    ),
    "clip-after-step": (
        "The gradients were clipped after the optimizer had used them.",
        "Clip before the step, and with a scaler after scaler.unscale_(optimizer).",
    ),
    "step-before-backward": (
        "The optimizer stepped, but no backward pass has run since its last step or zero_grad.",
        "Call backward before the step: zero_grad, forward, backward, step.",
    ),
    "zero-grad-before-step": (
        "zero_grad threw the gradients away before the step could use them.",
        "Call zero_grad after the step, or before the forward pass.",
    ),
    "zero-grad-missing": (
        "Gradients that an earlier step has already used are still there; this step used them again.",
        "Call optimizer.zero_grad() once per step, after the step or before the next backward.",
    ),
    "direct-step": (
        "optimizer.step() was called directly while the gradients were still multiplied by the scale.",
        "Call scaler.step(optimizer) instead: it divides by the scale and skips infinite gradients.",
    ),
    "direct-step-unchecked": (
        "optimizer.step() was called directly, so that nobody asked whether unscale_ had found inf or NaN.",
        "Call scaler.step(optimizer) instead: after unscale_ it only skips infinite gradients.",
    ),
    "optimizer-bypasses-scaler": (
        "One optimizer steps through the scaler, this one directly, with gradients that are multiplied by the scale.",
        "Call scaler.step() for every optimizer whose gradients come from a scaled loss, then scaler.update() once.",
    ),
    "missing-update": (
        "scaler.update() was not called at the end of a step.",
        "Call scaler.update() once after the steps of all optimizers, also if you skip a step yourself.",
    ),
    "update-before-step": (
        "scaler.update() was called before scaler.step() had used the gradients.",
        "Call scaler.step(optimizer) first, then scaler.update().",
    ),
    "update-per-optimizer": (
        "scaler.update() was called between the steps of two optimizers whose gradients come from the same scale.",
        "Step all optimizers first, then call scaler.update() once.",
    ),
    "update-twice": (
        "scaler.update() was called again although no gradients were checked since the last update.",
        "Call scaler.update() once per step.",
    ),
    "update-inside-accumulation": (
        "scaler.update() was called inside an accumulation window: gradients of several scales are added up.",
        "Call step, update and zero_grad only at the end of the window.",
    ),
    "unscale-twice": (
        "scaler.unscale_() was called twice for the same optimizer before the update.",
        "Call scaler.unscale_(optimizer) once per step, after the last backward.",
    ),
    "unscale-inside-accumulation": (
        "scaler.unscale_() was called before the last backward of the window: scaled gradients are added to unscaled.",
        "Call scaler.unscale_(optimizer) only once, after the last backward of the window.",
    ),
    "unscale-after-step": (
        "scaler.unscale_() was called after scaler.step(), which has already divided by the scale.",
        "Call scaler.unscale_(optimizer) between backward and step, or not at all.",
    ),
    "scheduler-after-skip": (
        "The scheduler was stepped although every optimizer step since its last call was skipped.",
        "Step the scheduler only if the optimizer did: compare scaler.get_scale() before and after scaler.update().",
    ),
    "scheduler-before-step": (
        "The scheduler was stepped between backward and the optimizer's step.",
        "Call scheduler.step() after the optimizer's step.",
    ),
    "loss-not-scaled": (
        "backward ran on a loss that was not scaled, but the step divides the gradients by the scale.",
        "Call scaler.scale(loss).backward() for every loss.",
    ),
    "loss-scaled-twice": (
        "The loss was multiplied by the scale twice; the step divides by it once.",
        "Call scaler.scale() once, on the loss from which backward starts.",
    ),
    "two-scalers": (
        "The gradients were scaled by one scaler and are divided by another one.",
        "Use one scaler for the losses and the steps of the same parameters.",
    ),
    "penalty-from-scaled-gradients": (
        "A gradient penalty was built from gradients that are still multiplied by the scale.",
        "Multiply what torch.autograd.grad returns by 1 / scaler.get_scale() before you use it in the loss.",
    ),
    "scaler-disabled": (
        "The scaler is disabled, but the forward pass runs in float16.",
        'Construct it for the device you use, GradScaler("cpu") or GradScaler("cuda"), or use bfloat16 without scaler.',
    ),
    "fp16-parameters": (
        "Trainable parameters are float16, so their gradients are, too.",
        "Keep the parameters float32 (no model.half()) and run the forward pass under torch.autocast.",
    ),
    "no-gradients": (
        "No parameter of this optimizer has a gradient.",
        "Give the optimizer the parameters that are trained, and check that they have requires_grad=True.",
    ),
    "loop-in-autocast": (
        "Forward passes before and after a step share one autocast region, which keeps casts of the old weights.",
        "Open one torch.autocast region per forward pass.",
    ),
    "wrong-units": (
        "The gradients that this step used are not those of the loss: they are off by a factor.",
        "Divide by the scale exactly once: scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update().",
    ),
}


@dataclass
class Event:
    """One call in the loop. Gradient norms are over the parameters concerned, as they stand after the call."""

    index: int
    kind: str  # one of KINDS
    step: int  # counted from 0: a new one begins with the first call after the last step or, with a scaler, update
    who: str = ""  # name of the optimizer, model or scheduler
    call: str = ""  # as it would be written, such as "scaler.step"
    scale: float | None = None  # after the call; None without an enabled scaler
    norm: float | None = None  # L2 norm of the gradients; None where the call has nothing to do with them
    skipped: bool = False  # a step that did not happen, because gradients were not finite
    training: bool = True  # False for a forward pass without gradients
    error: str = ""  # the exception that the call raised

    def __str__(self) -> str:
        parts = [f"{self.index:>3}  step {self.step}  {self.call or self.kind}"]
        parts += [self.who] if self.who else []
        parts += [f"|grad| = {self.norm:.3g}"] if self.norm is not None else []
        parts += ["skipped"] * self.skipped + ["no gradients"] * (not self.training) + [self.error] * bool(self.error)
        return "  ".join(parts)


@dataclass
class Violation:
    """One thing that is wrong with the order of calls, at its first occurrence.

    actual, correct: norms of the update that was made and of the update that the right order makes, both measured, and
    off, the norm of their difference over that of the right one; None where nothing was to be compared. For a penalty:
    norms of the gradients in it. how: what exactly was computed.
    """

    id: str
    step: int
    index: int  # of the event
    consequence: str = ""
    actual: float | None = None
    correct: float | None = None
    off: float | None = None
    how: str = ""
    times: int = 1  # how often it occurred

    @property
    def text(self) -> str:
        """What is wrong."""
        return RULES[self.id][0]

    @property
    def cure(self) -> str:
        """What to do."""
        return RULES[self.id][1]

    def __str__(self) -> str:
        often = f", {self.times} times" if self.times > 1 else ""
        lines = [f"{self.id} (first in step {self.step}{often}): {self.text}"]
        lines += [f"  Consequence: {self.consequence}"] if self.consequence else []
        lines += [f"  Computed: {self.how}"] if self.how else []
        return "\n".join([*lines, f"  Cure: {self.cure}"])


class Report(str):
    """Text that shows itself without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
