"""What an update was, and what it would have been: measured with the loop's own optimizer."""

from __future__ import annotations

import copy

import torch

from ampedu.steps.ledger import norm

HOW = (
    "actual: the change of the weights in this step. Right: the change that a copy of the optimizer makes from the "
    "gradients of the same backward passes, each divided by the scale of its loss{clips}."
)


def parameters(optimizer) -> list:
    """All parameters of an optimizer, in order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def right_update(optimizer, entries, clips) -> float | None:
    """Norm of the update that a copy of the optimizer makes from the true gradients, clipped in the same way.

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
    return distance(before, pairs.values())


def _stand_in(entry):
    """A parameter of another optimizer, whose gradient counts in the norm of a clip."""
    param = torch.empty_like(entry.param, requires_grad=True)
    param.grad = entry.truth.to(param.dtype) if entry.truth is not None else None
    return param


def weights(optimizer) -> list:
    """A copy of an optimizer's parameters."""
    return [param.detach().clone() for param in parameters(optimizer)]


def distance(before, after) -> float:
    """L2 norm of the change of parameters."""
    return norm([now.detach().double() - old.double() for old, now in zip(before, after, strict=True)])
