"""Folds a trace for reading: one row per call, repeated layers and repeated calls once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import takewhile

import torch

from ampedu.trace.records import Cast, Op, Trace, short

LONGEST = 16  # rows of a repeated piece that is found


@dataclass(frozen=True)
class Row:
    """One call and its backward. Dtypes are those of floating-point tensors; times: how often in a row it occurs."""

    module: tuple[str, ...]  # parts of the path; a part such as "0–3" stands for several layers
    call: str
    phase: str  # "forward", "loss" or "recomputed"
    source: tuple[torch.dtype, ...]  # what the arithmetic gets, after the casts
    inside: tuple[torch.dtype, ...]  # in which it computes
    result: tuple[torch.dtype, ...]
    casts: tuple[Cast, ...]
    hits: int
    back: tuple[tuple[str, torch.dtype, int], ...]  # operations in backward: name, dtype of the result, number
    back_casts: tuple[Cast, ...]
    times: int = 1

    @property
    def path(self) -> str:
        """The module's path."""
        return ".".join(self.module)

    @property
    def forward_dtypes(self) -> str:
        """For example "f16", or "f16 → f32" where the result has another dtype than what goes in."""
        # The dtype that goes in is the widest: a mix of f32 and f16 is computed in f32.
        steps = [max(self.source, key=lambda dtype: dtype.itemsize)] if self.source else []
        steps += [dtype for dtype in self.inside if dtype not in (*steps, *self.result)][:1]
        steps += list(self.result)
        return " → ".join(short(dtype) for k, dtype in enumerate(steps) if k == 0 or dtype != steps[k - 1])

    @property
    def computes_in(self) -> torch.dtype | None:
        """The widest dtype in which it computes; of a cast, the dtype of the result."""
        return max(self.inside or self.result, key=lambda dtype: dtype.itemsize, default=None)

    @property
    def back_dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which its backward computes, in order."""
        return tuple(dict.fromkeys(dtype for _, dtype, _ in self.back))


def fold(trace: Trace) -> list[Row]:
    """The rows of a trace. Left out: views, allocations, copies within a dtype, and what backward does for these."""
    groups: dict[int, list[Op]] = {}
    backward: dict[int, list[Op]] = {}
    for op in trace.ops:
        later = op.phase == "backward" and not op.recomputed
        if later and op.of is None:
            continue
        (backward if later else groups).setdefault(op.group, []).append(op)
    rows = [_row(ops, backward.get(group, [])) for group, ops in groups.items()]
    return _repeats(_layers([row for row in rows if row is not None]))


def _row(ops: list[Op], back: list[Op]) -> Row | None:
    computing = [op for op in ops if op.computes]
    casts = tuple(op.cast for op in ops if op.cast is not None)
    if not computing and not casts:
        return None
    last = computing[-1] if computing else ops[-1]
    kernel = [cast.source for cast in casts if cast.by == "kernel"]
    if kernel:  # what it was given, before it changed the dtype on its own
        source = tuple(dict.fromkeys(kernel[:1]))
    elif computing:
        given = zip(computing[0].inputs, computing[0].kinds, strict=True)
        first = [(dtype, kind) for dtype, kind in given if dtype.is_floating_point]
        data = [dtype for dtype, kind in first if kind not in ("weight", "buffer")]
        source = tuple(dict.fromkeys(data or [dtype for dtype, _ in first]))
    else:
        source = tuple(dict.fromkeys(cast.source for cast in casts))
    counted = Counter((op.name, op.result) for op in back if op.computes)
    return Row(
        module=tuple(last.module.split(".")) if last.module else (),
        call=last.call,
        phase="recomputed" if last.recomputed else last.phase,
        source=source,
        inside=tuple(dict.fromkeys(op.result for op in computing)),
        result=_result(ops),
        casts=casts,
        hits=sum(len(op.hits) for op in ops),
        back=tuple((name, dtype, number) for (name, dtype), number in counted.items()),
        back_casts=tuple(op.cast for op in back if op.cast is not None),
    )


def _result(ops: list[Op]) -> tuple[torch.dtype, ...]:
    for op in reversed(ops):
        if op.floats:
            return op.floats[:1]
    return ()


def _layers(rows: list[Row], start: int = 0) -> list[Row]:
    """Consecutive layers such as layers.0 and layers.1 become one if all their rows are equal."""
    folded, at = [], 0
    while at < len(rows):
        path = rows[at].module
        place = next((k for k in range(start, len(path)) if path[k].isdigit()), None)
        if place is None:
            folded.append(rows[at])
            at += 1
            continue
        layers = []
        while at < len(rows) and rows[at].module[:place] == path[:place] and rows[at].module[place:][:1]:
            number = rows[at].module[place]
            if not number.isdigit():
                break
            layer = _beginning(rows[at:], (*path[:place], number))
            layers.append((number, layer))
            at += len(layer)
        folded += _merged(layers, place)
    return folded


def _beginning(rows: list[Row], path: tuple[str, ...]) -> list[Row]:
    """The rows at the front that belong to a path."""
    return list(takewhile(lambda row: row.module[: len(path)] == path, rows))


def _merged(layers, place: int) -> list[Row]:
    folded, at = [], 0
    while at < len(layers):
        number, layer = layers[at]
        same = at + 1
        while same < len(layers) and _without(layers[same][1], place) == _without(layer, place):
            same += 1
        name = number if same == at + 1 else f"{number}–{layers[same - 1][0]}"
        rows = [
            replace(row, module=(*row.module[:place], name, *row.module[place + 1 :]), times=row.times * (same - at))
            for row in _layers(layer, place + 1)
        ]
        folded += rows
        at = same
    return folded


def _without(layer: list[Row], place: int) -> list[Row]:
    """A layer's rows without what always differs between layers: its number and the names of its weights."""
    return [
        replace(
            row,
            module=(*row.module[:place], *row.module[place + 1 :]),
            casts=_nameless(row.casts),
            back_casts=_nameless(row.back_casts),
        )
        for row in layer
    ]


def _nameless(casts) -> tuple[Cast, ...]:
    return tuple(replace(cast, name="") for cast in casts)


def _repeats(rows: list[Row]) -> list[Row]:
    """A piece that follows itself, as the steps of a loop do, is kept once, with the number of times."""
    folded, at = [], 0
    while at < len(rows):
        for size in range(1, min(LONGEST, (len(rows) - at) // 2) + 1):
            piece, times = rows[at : at + size], 1
            while rows[at + size * times : at + size * (times + 1)] == piece:
                times += 1
            if times > 1:
                folded += [replace(row, times=row.times * times) for row in piece]
                at += size * times
                break
        else:
            folded.append(rows[at])
            at += 1
    return folded
