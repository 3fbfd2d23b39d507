"""The log of a live GradScaler: every scale, every skip, and whether the last step happened.

The scaler's methods ``unscale_``, ``step`` and ``update`` are shadowed on this one object while the log is attached.
They pass everything through, and nothing is kept but Python numbers.
"""

import contextlib
import dataclasses
import inspect
import json
import math
import weakref
from pathlib import Path

import torch

from ampedu.scaling.rule import LossScale, Row, number_text, row_of

WATCHED = ("unscale_", "step", "update")
PRIVATE = "_found_inf_per_device"  # the one private name: torch has no public way to the result of unscale_


class ScalerLog:
    """Records what a ``torch.amp.GradScaler`` does, from ``with ScalerLog(scaler) as log:`` to the end of the block.

    optimizers: names by keyword, ``ScalerLog(scaler, generator=opt_g, critic=opt_d)``; others are named after their
    class. ``attach()`` and ``detach()`` do the same as the block. The run computes what it would compute without the
    log, to the last bit; reading the scale costs a synchronization with the GPU per step. TypeError: no GradScaler.
    """

    def __init__(self, scaler, **optimizers):
        if not isinstance(scaler, torch.amp.GradScaler):
            raise TypeError(f"ScalerLog takes a torch.amp.GradScaler, not {type(scaler).__name__}")
        self._scaler = scaler
        self._names = weakref.WeakKeyDictionary({optimizer: name for name, optimizer in optimizers.items()})
        self._taps: list[_Tap] = []
        self._clear()
        self.rows: list[Row] = []

    def _clear(self) -> None:
        self._unscaled: dict[str, weakref.ref] = {}
        self._found: dict[str, bool | None] = {}
        self._done: dict[str, bool] = {}

    def attach(self) -> "ScalerLog":
        """Start to record; a log that is attached stays as it is. RuntimeError: a torch that this cannot read."""
        if not self._taps:
            _check(self._scaler)
            self._taps = [_Tap(self._scaler, name, getattr(self, f"_{name}")) for name in WATCHED]
        return self

    def detach(self) -> None:
        """Stop to record, and leave the scaler as it was."""
        for tap in self._taps:
            tap.remove()
        self._taps = []
        self._clear()

    def __enter__(self) -> "ScalerLog":
        return self.attach()

    def __exit__(self, *error) -> None:
        self.detach()

    @property
    def stepped(self) -> bool:
        """Whether the last iteration updated the weights: of all optimizers that took part, and of at least one.

        Before ``update()`` it speaks of the iteration that is under way, from its first ``step`` on. Correct where the
        scale does not tell it: with ``backoff_factor`` 1.0, with a new scale given to ``update``, with a scale that
        overflow keeps at 0. For one optimizer of several: ``stepped_by``.
        """
        done = self._last()
        return bool(done) and all(done.values())

    def stepped_by(self, optimizer) -> bool:
        """Whether the last iteration updated the weights of this optimizer (the object, or its name in the log)."""
        name = optimizer if isinstance(optimizer, str) else self._names.get(optimizer)
        return self._last().get(name, False)

    def _last(self) -> dict[str, bool]:
        return self._done or (self.rows[-1].stepped if self.rows else {})

    @property
    def skips(self) -> list[int]:
        """Numbers of the iterations, from 0, in which inf or NaN kept an optimizer from its step."""
        return [row.step for row in self.rows if row.skipped]

    def to_jsonl(self, path) -> None:
        """Write one JSON object a line, the fields of ``Row``; numbers that JSON lacks become "inf" and "nan"."""
        lines = [json.dumps(_plain(dataclasses.asdict(row)), allow_nan=False, ensure_ascii=False) for row in self.rows]
        Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def __repr__(self) -> str:
        if not self.rows:
            return "ScalerLog: no update() yet"
        first, last = number_text(self.rows[0].scale_before), number_text(self.rows[-1].scale)
        skips = self.skips
        listed = ", ".join(map(str, skips[:8])) + (", …" if len(skips) > 8 else "")
        which = f" (steps {listed})" if skips else ""
        return f"ScalerLog: {len(self.rows)} steps, {len(skips)} skipped{which}, scale {first} → {last}"

    def _name(self, optimizer) -> str:
        if optimizer not in self._names:
            base, taken = type(optimizer).__name__, set(self._names.values())
            names = (base, *(f"{base} {n}" for n in range(2, len(taken) + 3)))
            self._names[optimizer] = next(name for name in names if name not in taken)
        return self._names[optimizer]

    def _unscale_(self, call, optimizer):
        result = call(optimizer)
        self._unscaled[self._name(optimizer)] = weakref.ref(optimizer)
        return result

    def _step(self, call, optimizer, *args, **kwargs):
        name, ran = self._name(optimizer), []
        with _watched(optimizer, ran) as hooked:
            result = call(optimizer, *args, **kwargs)
        if not self._scaler.is_enabled():
            self._found[name], self._done[name] = None, True
            return result
        if ran and ran[-1] is not None:
            found = bool(ran[-1])
        elif hooked and not _checks_itself(optimizer):
            found = not ran
        else:
            found = _found_inf(self._scaler, optimizer)
        self._found[name], self._done[name] = found, not found
        return result

    def _update(self, call, *args, **kwargs):
        before = _state(self._scaler)
        for name, reference in self._unscaled.items():
            if name not in self._done and (optimizer := reference()) is not None:
                self._found[name], self._done[name] = _found_inf(self._scaler, optimizer), False
        result = call(*args, **kwargs)
        after = _state(self._scaler)
        story = ""
        if not self._scaler.is_enabled():
            story = "scaler disabled: no scale, no check, every step is taken"
        elif any(value is not None for value in (*args, *kwargs.values())):
            story = f"scale set to {number_text(after.scale)}, the count goes on"
        self.rows.append(row_of(len(self.rows), before, after, self._found, self._done, story))
        self._clear()
        return result


@contextlib.contextmanager
def _watched(optimizer, ran: list):
    """Note in ran each call of optimizer.step, with the found_inf that a scaler lends to a fused one; yields if it can.

    A fused step is always called, and its kernel leaves the weights alone where inf or NaN was found.
    """
    try:
        handle = optimizer.register_step_post_hook(lambda seen, *_: ran.append(getattr(seen, "found_inf", None)))
    except AttributeError:  # something that only looks like an optimizer
        yield False
        return
    try:
        yield True
    finally:
        handle.remove()


def _checks_itself(optimizer) -> bool:
    """Whether its step is given the scaler, torch's older contract, and is called also where it will do nothing."""
    return "grad_scaler" in inspect.signature(optimizer.step).parameters


class _Tap:
    """Stands in front of a bound method of the scaler; a copy or a pickle of the scaler gets the plain method."""

    def __init__(self, scaler, name: str, record):
        self._scaler, self._name, self._record = scaler, name, record
        self._call = getattr(scaler, name)
        setattr(scaler, name, self)

    def __call__(self, *args, **kwargs):
        if self._record is None:
            return self._call(*args, **kwargs)
        return self._record(self._call, *args, **kwargs)

    def remove(self) -> None:
        # Where somebody has shadowed the method after us, this stays in the chain and only passes on.
        self._record = None
        if self._scaler.__dict__.get(self._name) is not self:
            return
        before = self._call
        while isinstance(before, _Tap) and before._record is None:
            before = before._call
        delattr(self._scaler, self._name)
        if before != getattr(self._scaler, self._name):  # a method of the class comes back by itself
            setattr(self._scaler, self._name, before)

    def __reduce__(self):
        return getattr, (self._scaler, self._name)


def _state(scaler) -> LossScale:
    return LossScale.from_state_dict(scaler.state_dict()) if scaler.is_enabled() else LossScale(scale=1.0)


def _check(scaler) -> None:
    if scaler.is_enabled() and not callable(getattr(scaler, PRIVATE, None)):
        kind = f"{type(scaler).__name__} of torch {torch.__version__}"
        raise RuntimeError(f"ScalerLog cannot read the {kind}: it has no {PRIVATE}(optimizer)")


def _found_inf(scaler, optimizer) -> bool:
    return any(bool(found) for found in getattr(scaler, PRIVATE)(optimizer).values())


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
