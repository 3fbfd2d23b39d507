"""The rules: what each call means for the gradients, and which order of calls is wrong."""

from __future__ import annotations

import torch

from ampedu.steps.clips import Clips
from ampedu.steps.effect import Measure, parameters
from ampedu.steps.ledger import norm, same
from ampedu.steps.records import Violation


class Window:
    """What one optimizer has seen since the scaler's last update."""

    def __init__(self):
        self.unscaled = self.stepped = False
        self.backward_since = False  # a backward pass since unscale_ or the step
        self.cleared_since = False  # its gradients were zeroed since unscale_


class Judge:
    """Keeps the state of one watched loop and names what is wrong."""

    def __init__(self, watch):
        self.watch = watch
        self.windows: dict[int, Window] = {}
        self.epochs = {}  # by id of a scaler: number of its updates
        self.raw = None  # norm of the gradients of a scaled loss that were asked for with a graph, and the scale
        self.clips = Clips(watch, self)
        self.pending = {}  # of the scaler.step that is running: id of the optimizer to what is measured
        self.thrown = {}  # id of a parameter to (event index, gradient) that zero_grad threw away
        self.backwards = 0  # number of backward passes
        self.at_step = {}  # id of an optimizer to self.backwards when it stepped or was cleared
        self.attempts = []  # of all steps: (id of the optimizer, whether it was skipped)
        self.scheduled = {}  # by id of a scheduler: number of attempts at its last call
        self.early_schedule = {}  # by id of an optimizer: (event index, rates before and after)
        self.update_at = 0  # index of the last update
        self.updates = 0
        self.stepped_by_scaler = set()
        self.stepped = set()  # ids of optimizers, in this step
        self.in_region = False  # a forward pass ran in the autocast region that is open
        self.stale = set()  # ids of parameters that a step has changed since then
        self.reached = False  # the scaler.step that is running has called the optimizer
        self.direct_at = None  # last step in which scaled gradients were used directly
        self.mixed_at = None  # index of the backward pass that added scaled gradients to unscaled ones
        self.half = False  # the last forward pass ran under autocast to float16 with a disabled scaler
        self.moved = 0.0  # norm of the last update in an autocast region

    # ---- naming

    def found(self, name, index, consequence="", **measured) -> Violation:
        """Add a violation, or count it once more; numbers fill in what an earlier one left open."""
        watch = self.watch
        for known in watch.violations:
            if known.id == name:
                known.times += 1
                break
        else:
            known = Violation(name, watch.step, index, consequence)
            watch.violations.append(known)
        if known.actual is None and measured:
            known.consequence = consequence
            for name, value in measured.items():
                setattr(known, name, value)
        return known

    def next_index(self) -> int:
        """Index of the event that the running call will be."""
        return len(self.watch.events)

    # ---- forward and backward

    def forward(self, module, training) -> None:
        """A forward pass of a watched model has run."""
        if training and self.thrown:  # zero_grad at the start of a step throws away what the last step left
            self.thrown.clear()
            self.at_step = {id(optimizer): self.backwards for optimizer in self.watch.optimizer_objects}
        device = next((p.device.type for p in module.parameters()), "cpu")
        if not torch.is_autocast_enabled(device):
            self.region_left()
            return
        stale = any(id(param) in self.stale for param in module.parameters())
        if stale and torch.is_autocast_cache_enabled():
            text = f"the step changed the weights by {self.moved:.2g}; this forward pass uses the casts made before it."
            self.found("loop-in-autocast", len(self.watch.events) - 1, text)
        self.in_region = True
        scaler = self.watch.scaler
        if training and scaler is not None and not scaler.is_enabled():
            self.half = torch.get_autocast_dtype(device) == torch.float16

    def region_left(self) -> None:
        """An autocast region has ended."""
        self.in_region = False
        self.stale = set()

    def penalty(self) -> None:
        """backward begins on a loss with gradients of a scaled loss in it."""
        size, scale = self.raw
        text = f"the penalty is computed from gradients of norm {size:.3g}; their true norm is {size / scale:.3g}."
        how = "the norm of what torch.autograd.grad returned, and the same divided by the scale of the loss."
        measured = {"actual": size, "correct": size / scale, "how": how}
        self.found("penalty-from-scaled-gradients", self.next_index(), text, **measured)

    def backward(self, touched, found) -> None:
        """A backward pass has added its part to these entries; found: the scales of its loss."""
        self.backwards += 1
        self.early_schedule.clear()
        for entry in touched:
            self.thrown.pop(id(entry.param), None)
            if len(found) == 1:
                scale, scaler = next(iter(found))
                entry.add(scale, self.epochs.get(scaler or id(self.watch.scaler), 0), scaler)
            else:
                entry.add(None, self.epochs.get(id(self.watch.scaler), 0), None)
                entry.mixed = "loss-not-scaled" if 1.0 in {scale for scale, _ in found} else ""
            if entry.mixed == "unscale-inside-accumulation":
                self.mixed_at = self.next_index()
        for window in self.windows.values():
            window.backward_since = True
        if self.half and touched:
            grads = [entry.grad for entry in touched]
            zero = sum(int((grad == 0).sum()) for grad in grads) / max(1, sum(grad.numel() for grad in grads))
            self.found("scaler-disabled", self.next_index(), f"{zero:.0%} of this step's gradients are 0.")
            self.half = False

    def cleared(self, entries) -> None:
        """zero_grad is about to run on these entries."""
        keys = {id(entry.param) for entry in entries}
        for optimizer in self.watch.optimizer_objects:
            if any(id(param) in keys for param in parameters(optimizer)):
                for key, window in self.windows.items():
                    window.cleared_since |= key[1] == id(optimizer)
        for entry in entries:
            if entry.fresh and not entry.applied:
                self.thrown[id(entry.param)] = (self.next_index(), entry.grad)

    # ---- the scaler

    def window(self, scaler, optimizer) -> Window:
        """The state of an optimizer since the scaler's last update."""
        return self.windows.setdefault((id(scaler), id(optimizer)), Window())

    def unscale(self, scaler, optimizer, inner):
        """scaler.unscale_ is called by the loop, or (inner) by scaler.step."""
        entries = self.watch.ledger.of(parameters(optimizer))
        window = self.window(scaler, optimizer)
        scale = scaler.get_scale()
        refused = self._refused(window) if scaler.is_enabled() and not inner else None

        def after(result, error):
            if error is None and scaler.is_enabled():
                window.unscaled, window.backward_since, window.cleared_since = True, False, False
                for entry in entries:
                    if entry.unit is not None:
                        entry.unit = entry.unit / scale
            for entry in entries:
                entry.keep()
            if not inner:
                grads = norm(entry.grad for entry in entries)
                self.watch.record("unscale_", self._name(optimizer), "scaler.unscale_", grads, error=error)
            if error is not None and refused:
                refused.consequence = _stops(error)
            elif error is not None and not inner:
                self._raised(error, optimizer, entries)

        return after

    def _refused(self, window) -> Violation | None:
        """What is wrong with an unscale_ that torch is going to refuse."""
        if window.stepped:
            return self.found("missing-update" if window.backward_since else "unscale-after-step", self.next_index())
        if window.unscaled:
            name = "unscale-inside-accumulation" if window.backward_since else "unscale-twice"
            return self.found("missing-update" if window.cleared_since else name, self.next_index())
        return None

    def _raised(self, error, optimizer, entries) -> None:
        """torch has refused a call of the scaler; the message is torch's."""
        text, index = str(error), len(self.watch.events) - 1
        stops = _stops(error)
        if "FP16 gradients" in text:
            half = [entry.name for entry in entries if entry.param.dtype == torch.float16]
            self.found("fp16-parameters", index, f"{stops} First of {len(half)}: {half[0] if half else '?'}.")
        elif "_scale is None" in text:
            self.found("loss-not-scaled", index, stops)
        elif "No inf checks were recorded for this optimizer" in text:
            self._no_gradients(optimizer, entries, index, stops)

    def _no_gradients(self, optimizer, entries, index, stops) -> None:
        thrown = self._thrown(entries)
        if thrown:
            size = norm(grad for _, grad in thrown)
            lost = f"a gradient of norm {size:.3g} is lost. {stops}"
            self.found("zero-grad-before-step", min(at for at, _ in thrown), lost)
        elif self.at_step.get(id(optimizer), 0) == self.backwards:
            self.found("step-before-backward", index, stops)
        else:
            frozen = sum(not entry.param.requires_grad for entry in entries)
            self.found("no-gradients", index, f"{frozen} of {len(entries)} parameters are frozen. {stops}")

    def _thrown(self, entries):
        return [self.thrown[id(entry.param)] for entry in entries if id(entry.param) in self.thrown]

    def scaler_step(self, scaler, optimizer):
        """scaler.step is called."""
        entries = self.watch.ledger.of(parameters(optimizer))
        window, index = self.window(scaler, optimizer), self.next_index()
        enabled = scaler.is_enabled()
        refused = self.found("missing-update", index) if enabled and window.stepped else None
        divisor = 1.0 if window.unscaled or not enabled else scaler.get_scale()
        names = self._wrong(entries, divisor, scaler if enabled else None, optimizer)
        if not names and (window.unscaled or any(entry.grad is not None for entry in entries)):
            names = self._nothing(optimizer, entries)
        measure = self._prepare(optimizer, names)
        self.reached = False
        size = norm(entry.grad for entry in entries)

        def after(result, error):
            skipped = error is None and not self.reached
            self.watch.record("step", self._name(optimizer), "scaler.step", size, skipped, error=error)
            if error is not None:
                if refused:
                    refused.consequence = _stops(error)
                else:
                    self._raised(error, optimizer, entries)
                return
            window.stepped, window.backward_since = True, False
            self.stepped_by_scaler.add(id(optimizer))
            self._finish(optimizer, entries, measure, skipped)

        return after

    def step_reached(self, optimizer) -> None:
        """scaler.step has called the optimizer; a fused one decides by itself whether to skip."""
        found_inf = getattr(optimizer, "found_inf", None)
        self.reached = found_inf is None or not float(found_inf)

    def update(self, scaler, args):
        """scaler.update is called."""
        index = self.next_index()
        entries = list(self.watch.ledger.entries.values())
        checked = any(window.unscaled or window.stepped for key, window in self.windows.items() if key[0] == id(scaler))
        given = len(args) > 1 and args[1] is not None

        def after(result, error):
            self.watch.record("update", call="scaler.update", error=error)
            if error is not None and not checked and not given:
                stops = _stops(error)
                waiting = any(entry.fresh and entry.scaled for entry in entries)
                none = not self.updates and "_scale is None" in str(error)
                name = "loss-not-scaled" if none else "update-before-step" if waiting else "update-twice"
                if self.direct_at != self.watch.step:  # otherwise that is why no gradients were checked
                    self.found(name, index, stops)
            if error is None:
                self.epochs[id(scaler)] = self.epochs.get(id(scaler), 0) + 1
                self.updates += scaler.is_enabled()
                self.update_at = index
                self.windows = {key: window for key, window in self.windows.items() if key[0] != id(scaler)}
                self.watch.close_step()

        return after

    # ---- steps

    def direct_step_begins(self, optimizer, closure) -> None:
        """optimizer.step runs, not called by a scaler."""
        entries = self.watch.ledger.of(parameters(optimizer))
        names = [] if closure else self._wrong(entries, 1.0, None, optimizer, direct=True)
        if not closure and not names:
            names = self._nothing(optimizer, entries) or self._unchecked(entries)
        size = norm(entry.grad for entry in entries)
        self.pending[id(optimizer)] = (self._prepare(optimizer, names), entries, size, closure)

    def direct_step_ended(self, optimizer) -> None:
        """optimizer.step has run."""
        measure, entries, size, closure = self.pending.pop(id(optimizer), (None, [], None, False))
        if closure:
            for name, index in self._wrong(entries, 1.0, None, optimizer, direct=True):
                self.found(name, index, "the closure scales the loss, and nothing divides the gradients by the scale.")
        self.watch.record("step", self._name(optimizer), "optimizer.step", size)
        self._finish(optimizer, entries, measure, skipped=False)

    def _nothing(self, optimizer, entries):
        index = self.next_index()
        thrown = self._thrown(entries)
        if any(entry.fresh for entry in entries):
            return []
        if thrown:
            return [("zero-grad-before-step", min(i for i, _ in thrown))]
        if self.at_step.get(id(optimizer), 0) == self.backwards:
            return [("step-before-backward", index)]
        return []

    def _unchecked(self, entries):
        """A direct step with gradients of a scaled loss that are not finite: scaler.step would have skipped it."""
        scaled = [entry.grad for entry in entries if entry.fresh and entry.scalers and entry.grad is not None]
        broken = any(not torch.isfinite(grad).all() for grad in scaled)
        return [("direct-step-unchecked", self.next_index())] if broken else []

    def _wrong(self, entries, divisor, scaler, optimizer, direct=False):
        """Names of the rules that this step breaks, each with the index of the event at which it broke."""
        index, names = self.next_index(), {}
        fresh = [entry for entry in entries if entry.fresh]
        keys = {id(entry.param) for entry in fresh}
        epoch = self.epochs.get(id(scaler), 0)
        if scaler is not None:
            early = self.clips.first_early(keys)
            names |= {"clip-before-unscale": early} if early is not None else {}
        for entry in fresh:
            if entry.mixed:
                at = {"unscale-inside-accumulation": self.mixed_at, "update-inside-accumulation": self.update_at}
                names.setdefault(entry.mixed, at.get(entry.mixed, index))
            elif entry.unit is None:  # nothing is known
                pass
            elif scaler is not None and entry.scalers - {id(scaler)}:
                names.setdefault("two-scalers", index)
            elif scaler is not None and max(entry.epochs, default=epoch) < epoch:
                others = self.stepped_by_scaler - {id(optimizer)}
                names.setdefault("update-per-optimizer" if others else "update-before-step", self.update_at)
            elif scaler is not None and len(entry.epochs) > 1:
                names.setdefault("update-inside-accumulation", self.update_at)
            elif not same(entry.unit / divisor, 1.0):
                names.setdefault(self._by_factor(entry, divisor, optimizer, direct), index)
            if entry.applied:
                names.setdefault("zero-grad-missing", index)
        return list(names.items())

    def _by_factor(self, entry, divisor, optimizer, direct) -> str:
        if direct and entry.scalers:
            self.direct_at = self.watch.step
            others = self.stepped_by_scaler - {id(optimizer)}
            return "optimizer-bypasses-scaler" if others else "direct-step"
        if not direct and not entry.scalers:
            return "loss-not-scaled"
        if not direct and any(same(entry.unit / divisor, scale) for scale in self.watch.current_scales()):
            return "loss-scaled-twice"
        return "wrong-units"

    def _prepare(self, optimizer, names) -> Measure | None:
        """What is measured of a step that breaks rules, or that may leave stale casts."""
        known = {violation.id for violation in self.watch.violations if violation.actual is not None}
        if any(name not in known for name, _ in names):
            return Measure(optimizer, names, self.watch.ledger.entries.values(), self.clips.calls)
        return Measure(optimizer, names) if names or self.in_region else None

    def _finish(self, optimizer, entries, measure, skipped) -> None:
        """After a step: what it did, and what is in the gradients now."""
        self.attempts.append((id(optimizer), skipped))
        if measure:
            thrown = norm(grad for _, grad in self._thrown(entries))
            for name, index, text, numbers in measure.results(thrown, skipped):
                self.found(name, index, text, **numbers)
            if self.in_region and measure.moved:
                self.stale, self.moved = self.stale | {id(entry.param) for entry in entries}, measure.moved
        if id(optimizer) in self.early_schedule:
            index, old, new = self.early_schedule.pop(id(optimizer))
            self.found("scheduler-before-step", index, f"this step used the learning rate {new:g} instead of {old:g}.")
        keys = {id(entry.param) for entry in entries}
        self.clips.used(keys)
        self.at_step[id(optimizer)] = self.backwards
        for entry in entries:
            self.thrown.pop(id(entry.param), None)
            entry.use()
        self.stepped.add(id(optimizer))
        if self.stepped >= set(self.watch.optimizers):
            self.watch.close_step()

    def new_step(self) -> None:
        """A new step begins."""
        self.clips.calls = []
        self.stepped = set()

    # ---- scheduler and the end

    def scheduler(self, scheduler, name):
        """scheduler.step is called by the loop."""
        optimizer = getattr(scheduler, "optimizer", None)
        before = _rates(optimizer)
        index = self.next_index()
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)  # goes by the loss
        waiting = optimizer is not None and any(e.fresh for e in self.watch.ledger.of(parameters(optimizer)))

        def after(result, error):
            self.watch.record("scheduler", name, "scheduler.step", error=error)
            new = self.attempts[self.scheduled.get(id(scheduler), 0) :]
            self.scheduled[id(scheduler)] = len(self.attempts)
            skipped = [skip for owner, skip in new if optimizer is None or owner == id(optimizer)]
            if plateau or before is None:
                return
            now = _rates(optimizer)
            if skipped and all(skipped):
                text = f"the learning rate went from {before:g} to {now:g}, but no step was made."
                self.found("scheduler-after-skip", index, text)
            if waiting and not skipped:
                self.early_schedule[id(optimizer)] = (index, before, now)

        return after

    def end(self, error) -> None:
        """The block is left."""
        if error is None and self.stepped_by_scaler and not self.updates and self._enabled():
            last = max(event.index for event in self.watch.events if event.call == "scaler.step")
            self.found("missing-update", last, "the scale never adapts, and torch refuses the next scaler.step.")

    def _enabled(self) -> bool:
        return self.watch.scaler is not None and self.watch.scaler.is_enabled()

    def _name(self, optimizer) -> str:
        return self.watch.optimizers.get(id(optimizer), type(optimizer).__name__)


def _stops(error) -> str:
    """torch's own words."""
    return f"torch raises {type(error).__name__}: {error}"


def _rates(optimizer):
    """The first group's learning rate, None without an optimizer."""
    return float(optimizer.param_groups[0]["lr"]) if optimizer is not None else None
