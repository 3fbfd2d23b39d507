"""What is in every .grad: by which factor it exceeds the true gradient, and what the true gradient is.

The true gradient is the sum of what each backward pass added since the last step or zero_grad, each divided by the
scale of its own loss. It is kept in float64 and is what the right order of calls would have used.
"""

from __future__ import annotations

import torch


class Entry:
    """One parameter."""

    __slots__ = ("applied", "changed", "epochs", "fresh", "grad", "mixed", "name", "param", "scalers", "truth", "unit")

    def __init__(self, param, name):
        self.param, self.name = param, name
        self.clear()
        self.grad = values(param.grad)
        self.changed = version(param.grad)
        if self.grad is not None:
            self.fresh = 1  # from before the watch: its unit is unknown, so that nothing is said about it

    def clear(self) -> None:
        """The gradient is gone."""
        self.unit = None  # factor over the true gradient; None where it has none or it is not known
        self.truth = None
        self.mixed = ""  # id of the rule that contributions of different factors broke
        self.epochs, self.scalers = set(), set()  # numbers of updates at the backward passes; ids of scalers
        self.fresh = 0  # backward passes since it was cleared or used
        self.applied = False  # a step has used what is in it

    @property
    def scaled(self) -> bool:
        """Whether the gradient surely is multiplied by a scaler's scale."""
        return self.unit is not None and bool(self.scalers) and not same(self.unit, 1.0)

    def keep(self) -> None:
        """Remember the gradient as it is now."""
        self.grad, self.changed = values(self.param.grad), version(self.param.grad)

    def touched(self) -> bool:
        """Whether the gradient was written since it was kept, also if it has the same values."""
        return version(self.param.grad) != self.changed or self.differs()

    def differs(self) -> bool:
        """Whether the gradient has other values than those kept."""
        now = self.param.grad
        if now is None or self.grad is None:
            return (now is None) != (self.grad is None)
        return self.moved() or not torch.equal(bits(values(now)), bits(self.grad))

    def moved(self) -> bool:
        """Whether the gradient has another dtype, device or shape than the one kept, as after model.to(...)."""
        now = self.param.grad
        return (now.dtype, now.device, now.shape) != (self.grad.dtype, self.grad.device, self.grad.shape)

    def add(self, unit, epoch, scaler) -> None:
        """A backward pass has added its part. unit: the scale of its loss, 1 for an unscaled one, None if unknown."""
        before = None if self.grad is None or self.moved() else double(self.grad)
        now = double(values(self.param.grad))
        part = now if before is None else now - before
        if not self.fresh:
            self.unit, self.truth = unit, None if unit is None else part / unit
        elif unit is None or self.unit is None:
            self.unit = self.truth = None
        else:
            if not same(unit, self.unit) and not self.mixed:
                self.mixed = self._cause(unit, epoch, scaler)
            self.truth = None if self.truth is None else self.truth + part / unit
        self.fresh += 1
        self.epochs.add(epoch)
        self.scalers |= {scaler} if scaler else set()
        self.keep()

    def _cause(self, unit, epoch, scaler) -> str:
        if scaler and self.scalers - {scaler}:
            return "two-scalers"
        if epoch not in self.epochs:
            return "update-inside-accumulation"
        # Only unscale_ turns a scaled contribution into one of factor 1.
        return "unscale-inside-accumulation" if self.scalers and same(self.unit, 1.0) else "loss-not-scaled"

    def use(self) -> None:
        """A step has used the gradient."""
        if self.grad is not None:
            self.applied = True
        self.fresh, self.unit, self.truth, self.mixed = 0, None, None, ""
        self.epochs, self.scalers = set(), set()
        self.keep()


class Ledger:
    """All parameters of the models and optimizers."""

    def __init__(self):
        self.entries: dict[int, Entry] = {}

    def watch(self, params, names) -> None:
        """Add what is not there yet; names: by id of the parameter."""
        for param in params:
            if id(param) not in self.entries and isinstance(param, torch.Tensor):
                name = names.get(id(param), f"parameter {len(self.entries)}")
                self.entries[id(param)] = Entry(param, name)

    def of(self, params) -> list[Entry]:
        """The entries of these parameters that are watched."""
        return [self.entries[id(param)] for param in params if id(param) in self.entries]

    def changes(self, on_clear) -> list:
        """What happened to gradients without a call that is watched: "zero_grad", "backward", a factor, or "other".

        on_clear: is called with entries that are about to be cleared.
        """
        found = []
        for entry in self.entries.values():
            if not entry.differs():
                entry.changed = version(entry.param.grad)
                continue
            now = values(entry.param.grad)
            if now is None or (not now.any() and entry.grad is not None):
                on_clear([entry])
                entry.clear()
                found.append("zero_grad")
            elif entry.grad is not None and entry.moved():
                entry.truth = None
            elif entry.grad is None or not entry.fresh:  # written by hand, or by a backward that is not watched
                entry.clear()
                entry.fresh = 1
                found.append("backward")
            else:
                found.append(self._rewritten(entry, now))
            entry.keep()
        return found

    @staticmethod
    def _rewritten(entry, now):
        factor = uniform(entry.grad, now)
        if entry.truth is not None and factor is not None:
            if same(factor * entry.unit, 1.0):
                entry.unit = 1.0  # divided by the scale by hand
            else:
                entry.truth = entry.truth * factor
        elif entry.truth is not None and entry.unit is not None and not entry.mixed:
            entry.truth = double(now) / entry.unit
        return "other" if factor is None else factor


def values(grad):
    """A copy of a gradient, dense; None stays None."""
    if grad is None:
        return None
    grad = grad.detach()
    return grad.to_dense() if grad.layout != torch.strided else grad.clone()


def version(grad):
    """Changes with every write. Not public: `_version`; without it a backward pass that adds 0 would not be noticed."""
    return None if grad is None else (id(grad), getattr(grad, "_version", 0))


def double(tensor):
    """As float64, which no autocast policy touches; float32 where the device has none."""
    return tensor.detach().to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def bits(tensor):
    """The values as integers, so that NaN equals NaN."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()]) if not tensor.is_complex() else tensor


def same(a, b) -> bool:
    """Equal factors, up to rounding."""
    return abs(a - b) <= 1e-3 * abs(b)


def uniform(before, now):
    """The factor by which every element was multiplied, or None."""
    before, now = double(before), double(now)
    size = (before * before).sum()
    factor = (before * now).sum() / size
    if not torch.isfinite(factor) or not torch.isfinite(size):
        return None
    close = (now - factor * before).abs().max() <= 1e-5 * now.abs().max()
    return float(factor) if close else None


def norm(tensors) -> float | None:
    """The L2 norm over all tensors, computed in float64; None if there is none."""
    tensors = [tensor for tensor in tensors if tensor is not None]
    return sum(float((double(tensor) ** 2).sum()) for tensor in tensors) ** 0.5 if tensors else None
