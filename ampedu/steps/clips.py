"""Clips of gradients in the current step, and the mistakes that are made with them."""

from __future__ import annotations

import torch

from ampedu.steps.ledger import norm, same


class Clips:
    """Records the clips of one step."""

    def __init__(self, watch, judge):
        self.watch, self.judge = watch, judge
        self.calls = []  # (function, ids of parameters, arguments after the parameters, keyword arguments)
        self.early = []  # (event index, ids of parameters) of clips of scaled gradients

    def clip(self, name, original, args, kwargs):
        """A clip function of torch is called; returns what is to be done after it."""
        params = args[0] if args else kwargs.get("parameters", ())
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        entries = self.watch.ledger.of(params)
        if not entries:
            return None
        rest = list(args[1:])
        options = {key: value for key, value in kwargs.items() if key != "parameters"}
        early = {id(entry.param) for entry in entries if entry.scaled}
        index = len(self.watch.events)
        if name == "clip_grads_with_norm_" and not early:
            self._foreign_norm(entries, rest, options, index)
        used = all(entry.applied and not entry.fresh for entry in entries if entry.grad is not None)
        before = norm(entry.grad for entry in entries)

        def after(result, error):
            for entry in entries:
                entry.keep()
            left = norm(entry.grad for entry in entries)
            self.watch.record("clip", call=name, norm=left, error=error)
            if used and before and left < before and not same(left, before):  # no clip that only measures the norm
                text = f"the step used gradients of norm {before:.3g}; clipped they have norm {left:.3g}."
                self.judge.found("clip-after-step", index, text)
            if error is None and name != "clip_grads_with_norm_":  # its norm is a number of the wrong gradients
                self.calls.append((original, [id(entry.param) for entry in entries], rest, options))
            if early:
                self.early.append((index, early))

        return after

    def first_early(self, params) -> int | None:
        """Index of the first clip that saw these parameters' gradients scaled."""
        return next((index for index, clipped in self.early if clipped & params), None)

    def used(self, params) -> None:
        """A step has used the gradients of these parameters."""
        self.early = [(index, clipped) for index, clipped in self.early if not clipped & params]

    def _foreign_norm(self, entries, rest, options, index) -> None:
        """A norm that was measured on scaled gradients is passed for unscaled ones."""
        total = options.get("total_norm", rest[1] if len(rest) > 1 else None)
        maximum = options.get("max_norm", rest[0] if rest else None)
        grads = [entry.param.grad for entry in entries if entry.param.grad is not None]
        if total is None or maximum is None or not grads:
            return
        total, maximum = float(total), float(maximum)
        largest = max(float(grad.detach().abs().max()) for grad in grads)
        for scale in self.watch.current_scales():
            for now in (norm(grads), largest):  # of order 2, and of order inf
                if scale != 1.0 and now and same(total, now * scale):
                    text = (
                        f"the norm passed is {total:.3g}, the gradients' is {now:.3g}: the clip leaves "
                        f"{now * min(1, maximum / total):.2g}; it should have left {min(now, maximum):.2g}."
                    )
                    self.judge.found("clip-by-scaled-norm", index, text)
                    return
