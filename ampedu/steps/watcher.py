"""A context manager around a live training loop that records its calls and judges their order."""

from __future__ import annotations

import contextlib

import torch

from ampedu.steps import patches
from ampedu.steps.effect import parameters
from ampedu.steps.graph import RAW, TAG, flat, has_raw_gradient, scales, tag
from ampedu.steps.judge import Judge
from ampedu.steps.ledger import Ledger, norm, same
from ampedu.steps.records import Event, Report, Violation


class StepWatcher:
    """Watches the training loop inside its with-block; the loop stays as it is, and so does every number in it.

    model: a module or several in a list; it may be None. optimizers, scheduler: one, or several in a list, or a dict
    with their names. scaler: a GradScaler; without it, the one that the loop uses is found.
    Afterwards: events, violations, first, report(). Everything is put back at the end of the block, also after an
    exception. It copies all gradients at each call: for loops of a lesson's size, not for long runs.
    """

    def __init__(self, model, optimizers, scaler=None, scheduler=None):
        self.models = named(model, "model", torch.nn.Module)
        self.optimizers = named(optimizers, "optimizers", torch.optim.Optimizer)
        if not self.optimizers:
            raise ValueError("StepWatcher needs at least one optimizer: StepWatcher(model, optimizer, scaler)")
        self.schedulers = named(scheduler, "scheduler", object)
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}")
        self.scaler = scaler
        # Kept alive, so that no other object gets their ids.
        self.model_objects, self.optimizer_objects = items(model), items(optimizers)
        self._names = {id(p): name for module in items(model) for name, p in module.named_parameters()}
        self.events: list[Event] = []
        self.violations: list[Violation] = []
        self.busy = False  # the watcher itself computes: nothing of that is an event
        self.ledger = Ledger()
        self.inside: list[str] = []  # kinds of the calls that are running
        self.problem: Exception | None = None  # why it stopped watching before the end of the block
        self.hooks = []  # on forward passes
        self._scalers = {} if scaler is None else {id(scaler): scaler}
        self.step = 0
        self.used = False
        self._judge = Judge(self)
        self._closed = False  # the next call begins a new step

    def __enter__(self):
        if self.used:
            raise RuntimeError("a StepWatcher watches one block: make a new one for the next")
        self.used = True
        self._find_parameters()
        patches.attach(self)
        return self

    def __exit__(self, kind, error, trace):
        patches.detach(self)
        if self.problem is None:
            with self._own_work():
                self._judge.end(error)
        self.ledger.entries.clear()  # copies of gradients
        self._judge = None
        return False

    @property
    def first(self) -> Violation | None:
        """The violation whose call came first; None if the loop is right."""
        return min(self.violations, key=lambda violation: violation.index, default=None)

    def report(self) -> Report:
        """What the loop did, what is wrong with it, the first thing first, and what to do."""
        steps = [event for event in self.events if event.kind == "step"]
        skipped = sum(event.skipped for event in steps)
        lines = [f"{len(self.events)} calls, {len(steps)} optimizer steps, {skipped} of them skipped."]
        found = sorted(self.violations, key=lambda violation: violation.index)
        lines += [str(violation) for violation in found]
        if self.problem is not None:
            lines += [f"The watcher could not follow this loop further: {type(self.problem).__name__}: {self.problem}"]
        elif not found:
            lines += ["The order of the calls is right."]
        return Report("\n".join(lines))

    def __repr__(self) -> str:
        return str(self.report())

    # ---- what the patches call

    def own_classes(self) -> list[type]:
        """Classes of the scaler that come with their own versions of the calls."""
        kinds = type(self.scaler).__mro__ if self.scaler is not None else ()
        return [kind for kind in kinds if issubclass(kind, torch.amp.GradScaler)]

    @contextlib.contextmanager
    def observe(self, kind, original, args, kwargs):
        """Around one call. The caller puts its result under "result" in what this yields."""
        observed = {"result": None}
        family = kind.partition(":")[0]
        if family in self.inside:  # a call that the outer call makes
            yield observed
            return
        after = None
        with self._own_work():
            before = self._before(family)
            after = self._begin(kind, original, args, kwargs, before)
        self.inside.append(family)
        error = None
        try:
            yield observed
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.inside.pop()
            if after is not None and self.problem is None:
                with self._own_work():
                    after(observed["result"], error)

    def saw_forward(self, module) -> None:
        """After the forward pass of any module."""
        if "backward" in self.inside or id(module) not in self.models:  # a checkpoint's second forward is none
            return
        training = torch.is_grad_enabled()
        with self._own_work():
            self._before("forward" if training else "evaluation")
            self.record("forward", who=self.models[id(module)], training=training)
            self._judge.forward(module, training)

    def step_begins(self, optimizer, args, kwargs) -> None:
        """Before any optimizer's step runs; not called if a scaler skips it."""
        if not self._owns(optimizer):
            return
        with self._own_work():
            self._find_parameters()
            if "scaler.step" not in self.inside:
                self._before("step")
                closure = any(callable(arg) for arg in (*args, *kwargs.values()))
                self._judge.direct_step_begins(optimizer, closure)
            else:
                self._judge.step_reached(optimizer)

    def step_ended(self, optimizer) -> None:
        """After any optimizer's step has run."""
        if id(optimizer) in self._judge.pending:
            with self._own_work():
                self._judge.direct_step_ended(optimizer)

    # ---- events

    def _begin(self, kind, original, args, kwargs, before):
        """What is to be done before a call; returns what is to be done after it."""
        family, _, name = kind.partition(":")
        target = args[0] if args else None
        if family == "backward":
            return self._backward(args, kwargs)
        if family == "grad":
            return self._grad(args, kwargs)
        if family == "zero_grad":
            return self._zero_grad(target, before)
        if family == "clip":
            return self._judge.clips.clip(name, original, args, kwargs)
        if family == "scheduler":
            return self._scheduler(target)
        if family == "autocast":
            return lambda result, error: self._judge.region_left()
        return self._scaler(family.partition(".")[2], target, args)

    def _scaler(self, name, scaler, args):
        self.scaler = self.scaler or scaler
        self._scalers[id(scaler)] = scaler
        if name == "scale":
            return lambda result, error: self._scaled(scaler, args, result)
        if name == "update":
            return self._judge.update(scaler, args)
        optimizer = args[1] if len(args) > 1 else None
        if optimizer is None or not self._owns(optimizer):
            return None
        if name == "unscale_":
            return self._judge.unscale(scaler, optimizer, inner="scaler.step" in self.inside)
        return self._judge.scaler_step(scaler, optimizer)

    def _scaled(self, scaler, args, result):
        if result is None or not scaler.is_enabled():
            return
        roots = flat(args[1]) if len(args) > 1 else []
        tags = [root.grad_fn.metadata.get(TAG) for root in roots if root.grad_fn is not None]
        already = max((found[0] for found in tags if found), default=1.0)  # scaled twice
        tag(result, TAG, (scaler.get_scale() * already, id(scaler)))

    def _backward(self, args, kwargs):
        roots = flat(args[0] if args else kwargs.get("tensors", ()))
        starts = flat(kwargs.get("grad_tensors", args[1] if len(args) > 1 else ()))
        found = scales(roots, by_hand=self.current_scales())
        if self._judge.raw and has_raw_gradient(roots):
            self._judge.penalty()
        for start in starts:
            if start.numel() == 1 and float(start.detach()) in self.current_scales():  # backward(gradient=scale)
                found = {(scale * float(start.detach()), name) for scale, name in found}
            elif not bool((start == 1).all()):
                found = {(None, None)}

        def after(result, error):
            touched = self.ledger.of([entry.param for entry in self.ledger.entries.values() if entry.touched()])
            if touched or error is not None:  # otherwise it is about other parameters
                self._judge.backward(touched, found)
                self.record("backward", norm=norm(entry.grad for entry in touched), error=error)

        return after

    def _grad(self, args, kwargs):
        roots = flat(args[0] if args else kwargs.get("outputs", ()))
        found = {scale for scale, name in scales(roots) if name}
        if not kwargs.get("create_graph") or not found:
            return None

        def after(result, error):
            if result is not None:
                tag(result, RAW, max(found))
                self._judge.raw = norm(flat(result)), max(found)

        return after

    def _zero_grad(self, target, before):
        owner = parameters(target) if isinstance(target, torch.optim.Optimizer) else list(target.parameters())
        entries = self.ledger.of(owner)
        if not entries:
            return None

        def after(result, error):
            self._judge.cleared(entries)
            for entry in entries:
                entry.clear()
                entry.keep()
            who = self.optimizers.get(id(target)) or self.models.get(id(target)) or type(target).__name__
            self.record("zero_grad", who=who, error=error)

        return after

    def _scheduler(self, scheduler):
        name = self.schedulers.get(id(scheduler))
        optimizer = getattr(scheduler, "optimizer", None)
        if name is None and not (self._owns(optimizer) and not getattr(scheduler, "_is_initial", False)):
            return None
        return self._judge.scheduler(scheduler, name or type(scheduler).__name__)

    def record(self, kind, who="", call="", norm=None, skipped=False, training=True, error=None) -> Event:
        """Append an event."""
        enabled = self.scaler is not None and self.scaler.is_enabled()
        scale = self.scaler.get_scale() if enabled else None
        text = f"{type(error).__name__}: {error}" if error is not None else ""
        event = Event(len(self.events), kind, self.step, who, call or kind, scale, norm, skipped, training, text)
        self.events.append(event)
        return event

    def close_step(self) -> None:
        """The step is complete: the next forward, backward or zero_grad at the loop's start begins a new one."""
        self._closed = True

    def _before(self, kind) -> list:
        """Before a call: what happened since the last one without a call that is watched."""
        if kind in ("scaler.scale", "autocast", "grad"):
            return []
        self._find_parameters()
        changes = self.ledger.changes(self._judge.cleared)
        starts = self._zero_grad_first() if kind == "zero_grad" or "zero_grad" in changes else False
        if self._closed and (kind in ("forward", "backward") or starts):
            self._closed = False
            self.step += 1
            self._judge.new_step()
        if "zero_grad" in changes:
            self.record("zero_grad", call="gradients cleared by hand")
        if "backward" in changes:
            self.record("backward", call="gradients written by hand", norm=self._all())
        factors = [change for change in changes if isinstance(change, float)]
        for scale in self.current_scales():
            if factors and same(factors[0] * scale, 1.0) and scale != 1.0:
                self.record("unscale_", call="divided by hand", norm=self._all())
                return changes
        if factors or "other" in changes:
            self.record("clip", call="changed by hand", norm=self._all())
        return changes

    def _zero_grad_first(self) -> bool:
        return not self.events or self.events[0].kind == "zero_grad"

    def _all(self):
        return norm(entry.grad for entry in self.ledger.entries.values())

    def current_scales(self) -> set[float]:
        """The scales of the enabled scalers that the loop uses."""
        return {scaler.get_scale() for scaler in self._scalers.values() if scaler.is_enabled()}

    def _find_parameters(self) -> None:
        for optimizer in self.optimizer_objects:
            self.ledger.watch(parameters(optimizer), self._names)
        for model in self.model_objects:
            self.ledger.watch(model.parameters(), self._names)

    def _owns(self, optimizer) -> bool:
        if id(optimizer) in self.optimizers:
            return True
        if not isinstance(optimizer, torch.optim.Optimizer):
            return False
        return any(id(param) in self.ledger.entries for param in parameters(optimizer))

    @contextlib.contextmanager
    def _own_work(self):
        """Nothing in here is recorded, and nothing gets a graph."""
        before, self.busy = self.busy, True
        try:
            with torch.no_grad():
                yield
        except Exception as error:  # a fault of the watcher must not end the learner's loop: it stops watching
            self.problem, before = error, True
        finally:
            self.busy = before


def items(given) -> list:
    """One object, or several in a list, tuple or dict, as a list."""
    if given is None:
        return []
    if isinstance(given, dict):
        return list(given.values())
    return list(given) if isinstance(given, (list, tuple)) else [given]


def named(given, role, kind) -> dict[int, str]:
    """Names of objects by id: the keys of a dict, or the class, numbered if there are several."""
    for item in items(given):
        if not isinstance(item, kind):
            raise TypeError(f"{role}: expected {kind.__name__} or a list of them, not {type(item).__name__}")
    if isinstance(given, dict):
        return {id(item): str(name) for name, item in given.items()}
    found = items(given)
    numbers = [f" {k + 1}" if len(found) > 1 else "" for k in range(len(found))]
    return {id(item): f"{type(item).__name__}{number}" for item, number in zip(found, numbers, strict=True)}
