"""What an update was, and what it would have been: measured with the loop's own optimizer."""

from __future__ import annotations

import copy

import torch

from ampedu.steps.ledger import double, norm, same

HOW = (
    "the L2 norm of the change of the weights in this step, and of the change that a copy of the optimizer makes from "
    "the gradients of the same backward passes, each divided by the scale of its loss{clips}."
)

LOST = ("zero-grad-before-step", "step-before-backward")  # the right update is that of another backward pass


class Measure:
    """One step of an optimizer that breaks rules: made before the step, asked for results after it.

    names: (rule, index of the event). entries, clips: of what the right update is computed; without entries it is not.
    """

    def __init__(self, optimizer, names, entries=(), clips=()):
        self.optimizer, self.names, self.clips = optimizer, names, list(clips)
        self.before = weights(optimizer)
        self.right = right_update(optimizer, list(entries), self.clips)
        self.moved = None  # norm of the update

    def results(self, thrown, skipped):
        """(rule, index, sentence, measured numbers) of each rule; thrown: norm of the gradients that were lost."""
        update = changes(self.before, parameters(self.optimizer))
        self.moved = norm(update)
        for name, index in self.names:
            if skipped:
                yield name, index, "the step was skipped, because gradients are not finite.", {}
            elif name in LOST:
                lost = f"a gradient of norm {thrown:.3g} is lost; " if thrown is not None else ""
                how = "the L2 norm of the change of the weights in this step."
                text = f"{lost}the step changed the weights by {self.moved:.3g}."
                yield name, index, text, {"actual": self.moved, "how": how}
            elif name == "direct-step-unchecked":
                text = f"this update has norm {self.moved:.3g}; scaler.step would have skipped it."
                how = "the L2 norm of the change of the weights in this step; a skip changes nothing."
                yield name, index, text, {"actual": self.moved, "correct": 0.0, "how": how}
            else:
                yield name, index, *self._compared(update)

    def _compared(self, update):
        actual = self.moved
        if self.right is None:
            return f"this update has norm {actual:.3g}; the right one cannot be computed from what was recorded.", {}
        correct = norm(self.right)
        off = norm([a - b for a, b in zip(update, self.right, strict=True)]) / correct if correct else 0.0
        text = f"this update has norm {actual:.2g}; it would have been {correct:.2g}"
        if off < 1e-3:
            text += f". Here that does no harm: the difference has {off:.0e} of the right one's norm"
        elif same(actual, correct) or f"{actual:.2g}" == f"{correct:.2g}":
            text += f", in another direction: the difference has {off:.0%} of the right one's norm"
        how = HOW.format(clips=", then clipped as in the loop" if self.clips else "")
        return f"{text}.", {"actual": actual, "correct": correct, "off": off, "how": how}


def parameters(optimizer) -> list:
    """All parameters of an optimizer, in order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def right_update(optimizer, entries, clips) -> list | None:
    """The changes of the weights that a copy of the optimizer makes from the true gradients, clipped in the same way.

    clips: (function, ids of parameters, arguments after the parameters). None if the true gradients are not known, not
    finite, or the optimizer cannot be copied.
    """
    truths = {id(entry.param): entry.truth for entry in entries if entry.truth is not None}
    if not truths or not all(torch.isfinite(truth).all() for truth in truths.values()):
        return None
    try:
        twin = copy.deepcopy(optimizer)
    except Exception:  # an optimizer of the learner's own may hold anything
        return None
    pairs = dict(zip(map(id, parameters(optimizer)), parameters(twin), strict=True))
    for key, param in pairs.items():
        param.grad = truths[key].to(param.dtype) if key in truths else None
    for function, keys, args, kwargs in clips:
        concerned = [pairs[key] for key in keys if key in pairs]
        others = [_stand_in(entry) for entry in entries if id(entry.param) in keys and id(entry.param) not in pairs]
        function(concerned + others, *args, **kwargs)
    before = [param.detach().clone() for param in pairs.values()]
    twin.step()
    return changes(before, pairs.values())


def _stand_in(entry):
    """A parameter of another optimizer, whose gradient counts in the norm of a clip."""
    param = torch.empty_like(entry.param, requires_grad=True)
    param.grad = entry.truth.to(param.dtype) if entry.truth is not None else None
    return param


def weights(optimizer) -> list:
    """A copy of an optimizer's parameters."""
    return [param.detach().clone() for param in parameters(optimizer)]


def changes(before, after) -> list:
    """By how much each parameter has changed."""
    return [double(now) - double(old) for old, now in zip(before, after, strict=True)]
