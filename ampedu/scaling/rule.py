"""The rule of dynamic loss scaling as a pure state machine: torch.amp.GradScaler without tensors and optimizers."""

import ctypes
import dataclasses
import decimal
import math
import numbers
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

FLOAT32_MAX = torch.finfo(torch.float32).max
CLEAN, INF = ".0", "x1"  # characters of a pattern: a step with finite gradients, a step with inf or NaN
SIX_DIGITS = decimal.Context(prec=6, rounding=decimal.ROUND_HALF_UP)
DONE = "step"  # what a Row's optimizer is called where there is none


@dataclass(frozen=True)
class LossScale:
    """State and constants of dynamic loss scaling; every method returns a new state and changes nothing.

    scale: what the loss is multiplied by, rounded to float32 as torch stores it. growth_tracker: clean steps since the
    scale last changed or a step was skipped. growth_factor, backoff_factor: what the scale is multiplied by.
    growth_interval: the number of clean steps in a row that makes it grow. Defaults: those of torch.amp.GradScaler.

    Other constants: ``dataclasses.replace(state, growth_interval=100)``, as torch's ``set_growth_interval(100)``. Like
    torch's setters, and unlike its constructor, this takes factors that stop the rule: ``growth_factor=1.0`` pins the
    scale from above, ``backoff_factor=1.0`` from below. TypeError: not a number, or a tracker or interval that is not
    an int. ValueError: a finite scale beyond float32, which torch refuses, too.
    """

    scale: float = 65536.0
    growth_tracker: int = 0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self):
        object.__setattr__(self, "scale", _stored(self.scale, "scale"))
        for name in ("growth_factor", "backoff_factor"):
            object.__setattr__(self, name, _number(getattr(self, name), name))
        for name in ("growth_tracker", "growth_interval"):
            try:
                object.__setattr__(self, name, operator.index(getattr(self, name)))
            except TypeError:
                raise TypeError(f"{name} must be an int, a number of steps, not {getattr(self, name)!r}") from None

    def update(self, found_inf=False, new_scale=None) -> "LossScale":
        """The state after one ``scaler.update()``.

        found_inf: whether any gradient of any optimizer was inf or NaN (a bool, a number or a tensor of one element;
        NaN counts as found, as in torch). new_scale: a float, or a tensor of one element, that becomes the scale; the
        tracker keeps its count and found_inf is ignored. TypeError: an int, which torch's update() fails on.

        The rule is that of torch's kernel ``_amp_update_scale_``: the product is made in float64 and rounded to
        float32. A scale that would become inf stays, and the tracker starts again. Nothing stops a fall to 0.
        """
        if new_scale is not None:
            if isinstance(new_scale, int):
                raise TypeError(f"update(new_scale={new_scale!r}) fails in torch: write a float, {float(new_scale)!r}")
            return dataclasses.replace(self, scale=new_scale)
        if found_inf:
            return dataclasses.replace(self, scale=_rounded(self.scale * self.backoff_factor), growth_tracker=0)
        count = self.growth_tracker + 1
        if count != self.growth_interval:  # above the interval, after it was lowered, it never grows again
            return dataclasses.replace(self, growth_tracker=count)
        grown = _rounded(self.scale * self.growth_factor)
        return dataclasses.replace(self, scale=grown if math.isfinite(grown) else self.scale, growth_tracker=0)

    def trace(self, pattern) -> "list[LossScale]":
        """The states after each step of a pattern (see ``pattern_of``): as many as there are steps."""
        states, state = [], self
        for found_inf in pattern_of(pattern):
            state = state.update(found_inf)
            states.append(state)
        return states

    def simulate(self, pattern) -> "list[Row]":
        """One ``Row`` per step of a pattern, as ``ScalerLog`` would record it: ``plots.scale_history`` draws them."""
        rows, before = [], self
        for number, found_inf in enumerate(pattern_of(pattern)):
            after = before.update(found_inf)
            rows.append(row_of(number, before, after, {DONE: found_inf}, {DONE: not found_inf}))
            before = after
        return rows

    def state_dict(self) -> dict:
        """The dictionary that ``torch.amp.GradScaler.state_dict()`` returns in this state."""
        return {
            "scale": self.scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self.growth_tracker,
        }

    @classmethod
    def from_state_dict(cls, state: dict) -> "LossScale":
        """The state that a GradScaler has after ``load_state_dict(state)``.

        ValueError: an empty dictionary, which a disabled scaler saves, or one that lacks a key.
        """
        if not state:
            raise ValueError("the state is empty: it was saved by a disabled GradScaler, which has no scale")
        names = {field.name: field.name for field in dataclasses.fields(cls)} | {"growth_tracker": "_growth_tracker"}
        missing = [key for key in names.values() if key not in state]
        if missing:
            raise ValueError(f"no state of a GradScaler: it lacks {', '.join(missing)}")
        return cls(**{name: state[key] for name, key in names.items()})


@dataclass(frozen=True)
class Row:
    """What one ``scaler.update()`` closed: an iteration of a live run, or of a simulated one.

    step: number of the iteration, from 0. scale_before, scale: what the loss was multiplied by, and what the next loss
    will be. tracker_before, tracker: clean steps in a row before and after. found_inf: for each optimizer by name,
    whether its gradients held inf or NaN; None where nobody checked (a disabled scaler). stepped: for each optimizer
    by name, whether its weights were updated; False for one that was unscaled and then never stepped. growth_interval:
    as it stood. event: what happened to the scale, in words.
    """

    step: int
    scale_before: float
    scale: float
    tracker_before: int
    tracker: int
    found_inf: dict[str, bool | None] = field(default_factory=dict)
    stepped: dict[str, bool] = field(default_factory=dict)
    growth_interval: int = 2000
    event: str = ""

    @property
    def skipped(self) -> bool:
        """Whether an optimizer was kept from its step by inf or NaN."""
        return any(self.found_inf[name] and not self.stepped[name] for name in self.found_inf)


def row_of(step: int, before: LossScale, after: LossScale, found_inf: dict, stepped: dict, story: str = "") -> Row:
    """A Row from the states around an update; story replaces the words that follow from the rule."""
    skipped = [name for name, found in found_inf.items() if found]
    only = f" of {', '.join(skipped)}" if len(found_inf) > len(skipped) else ""
    story = story or event(before, after, bool(skipped), f"step{only} skipped")
    scales, trackers = (before.scale, after.scale), (before.growth_tracker, after.growth_tracker)
    return Row(step, *scales, *trackers, found_inf, stepped, before.growth_interval, story)


def event(before: LossScale, after: LossScale, found_inf: bool, skip: str = "step skipped") -> str:
    """What an update did to the scale, in words; loss_scale.js in ``static`` says the same."""
    old, new = number_text(before.scale), number_text(after.scale)
    moved = f"scale stays {new}" if after.scale == before.scale else f"scale {old} → {new}"
    if found_inf:
        return f"inf or NaN found: {skip}, {moved}"
    count, interval = before.growth_tracker + 1, before.growth_interval
    if count == interval:
        refused = not math.isfinite(_rounded(before.scale * before.growth_factor))
        why = ", since float32 ends before the next one" if refused else ", the count starts again"
        return f"clean step {count} of {interval}: {moved}{why}"
    if count > interval:
        return f"clean step {count}, past the interval {interval}: {moved} and cannot grow"
    return f"clean step {count} of {interval}: {moved}"


def number_text(scale: float) -> str:
    """A scale as text: whole numbers below 2^24 in digits, powers of two from there on or below 1/16 as 2^k.

    The rest has six digits. loss_scale.js in ``static`` writes the same.
    """
    if not math.isfinite(scale) or scale == 0:
        return f"{scale:g}"
    if scale == int(scale) and abs(scale) < 2**24:
        return str(int(scale))
    mantissa, exponent = math.frexp(scale)
    if mantissa == 0.5 and not 1 / 16 <= scale < 1:
        return f"2^{exponent - 1}"
    # Halves go up, as in the browser.
    return f"{float(SIX_DIGITS.create_decimal_from_float(scale)):g}"


def pattern_of(pattern) -> list[bool]:
    """Which steps of a pattern find inf or NaN: a string such as "..x..", x or 1 for inf, or an iterable of truths.

    Spaces in a string are skipped. ValueError: another character. TypeError: not an iterable.
    """
    if isinstance(pattern, str):
        signs = "".join(pattern.split())
        wrong = sorted(set(signs) - set(CLEAN + INF))
        if wrong:
            raise ValueError(f"unknown sign {wrong[0]!r} in the pattern: write . for a clean step and x for inf or NaN")
        return [sign in INF for sign in signs]
    if not isinstance(pattern, Iterable):
        raise TypeError(f"a pattern is a string such as '..x..' or a list of bools, not {type(pattern).__name__}")
    return [bool(found_inf) for found_inf in pattern]


def _rounded(x: float) -> float:
    """A float64 rounded to float32, to inf beyond it: a cast in C."""
    return ctypes.c_float(x).value


def _number(x, name: str) -> float:
    if isinstance(x, torch.Tensor) and x.numel() == 1:
        return float(x)
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(x).__name__}")
    return float(x)


def _stored(x, name: str) -> float:
    value = _number(x, name)
    if FLOAT32_MAX < abs(value) < math.inf:
        raise ValueError(f"{name} is {value:g}: torch stores it in float32, which ends at {FLOAT32_MAX:g}")
    return _rounded(value)
