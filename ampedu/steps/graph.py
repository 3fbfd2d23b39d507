"""By which scale a loss was multiplied, read from its graph."""

from __future__ import annotations

import torch

TAG = "ampedu_scale"  # in Node.metadata of what scaler.scale returned: (scale, id of the scaler)
RAW = "ampedu_scaled_gradient"  # of what autograd.grad returned from a scaled loss: the scale

# Nodes of a penalty that divide by nothing, or whose divisor can be read.
_NAMES = "Add Sub Mul Div Pow Sqrt Sum Mean Norm LinalgVectorNorm Cat Stack View UnsafeView Clone ToCopy Abs T Expand"
PLAIN = {f"{name}Backward{number}" for name in _NAMES.split() for number in range(3)}


def tag(tensors, name, value) -> None:
    """Mark the nodes that made these tensors."""
    for tensor in flat(tensors):
        if tensor.grad_fn is not None:
            tensor.grad_fn.metadata[name] = value


def flat(tensors):
    """The tensors in nested lists and tuples."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    if isinstance(tensors, (list, tuple)):
        return [tensor for item in tensors for tensor in flat(item)]
    return []


def scales(roots, by_hand=()) -> set:
    """(scale, id of the scaler) of every way from a root to a leaf; (1.0, None) for an unscaled one.

    by_hand: scales that count also where the loss was multiplied without scaler.scale.
    """
    found, seen = set(), set()
    todo = [root.grad_fn for root in roots if root.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        marked = node.metadata.get(TAG)
        number = None if marked else _factor(node)
        if marked:
            found.add(marked)
        elif number in by_hand and number != 1.0:
            found.add((number, None))
        else:
            following = [after for after, _ in node.next_functions if after is not None]
            todo += following
            if not following:
                found.add((1.0, None))
    return found or {(1.0, None)}


def has_raw_gradient(roots) -> bool:
    """Whether a loss surely uses gradients of a scaled loss that were not divided by the scale on the way."""
    todo = [(root.grad_fn, 1.0) for root in roots if root.grad_fn is not None]
    seen = {}  # node: the smallest factor with which it was reached
    while todo:
        node, smallest = todo.pop()
        if seen.get(node, 2.0) <= smallest:
            continue
        seen[node] = smallest
        raw = node.metadata.get(RAW)
        if raw and smallest > 2 / raw:
            return True
        if raw or (TAG not in node.metadata and node.name() not in PLAIN):
            continue  # an operation that may divide by anything
        number = _factor(node) if TAG not in node.metadata else None
        smallest = min(smallest, abs(number)) if number is not None else smallest
        todo += [(following, smallest) for following, _ in node.next_functions if following is not None]
    return False


def _factor(node):
    """The number by which a product or quotient changes its input; None for any other node.

    Not public: the attributes `_saved_other` and `_saved_self` of a node.
    """
    name = node.name()
    if name not in ("MulBackward0", "DivBackward0"):
        return None
    for attribute in ("_saved_other", "_saved_self") if name == "MulBackward0" else ("_saved_other",):
        try:
            saved = getattr(node, attribute, None)
        except RuntimeError:  # freed by an earlier backward
            return None
        if isinstance(saved, torch.Tensor) and saved.numel() == 1 and not saved.requires_grad:
            number = float(saved.detach())
            return 1 / number if name == "DivBackward0" and number else number
    return None
