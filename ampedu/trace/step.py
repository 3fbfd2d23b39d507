"""The dtypes that a trace saw on the edges of figure F2, ampedu.plots.amp_step."""

import torch

from ampedu.trace.records import Op, Trace


def step_edges(trace: Trace) -> dict[tuple[str, str], torch.dtype]:
    """The dtype on each edge of the figure, from the input batch to .grad: {(from, to): dtype}.

    trace: of trace_dtypes under autocast, with a loss whose last operation is ``scaler.scale(loss)``. The edges behind
    .grad are not in a trace: it makes no step. ValueError: no autocast, no scaled loss, no backward pass, or an edge on
    which this model has several dtypes, such as layers in different precisions.
    """
    casts = [op for op in trace.autocasts if op.phase == "forward"]
    forward = [op for op in trace.select("forward") if op.computes]
    scaling = next((op for op in reversed(trace.select("loss")) if op.computes), None)
    backward = [op for op in trace.select("backward") if op.module != "loss"]
    if not casts or not backward or scaling is None or scaling.name != "mul":
        raise ValueError(
            "this trace is no scaled step under autocast: "
            "trace_dtypes(model, x, loss=lambda out: scaler.scale(loss_of(out)))"
        )
    found = {
        ("x", "cast"): {op.cast.source for op in casts if op.cast.kind == "input"},
        ("w", "cast"): {op.cast.source for op in casts if op.cast.kind == "weight"},
        ("cast", "matmul"): {op.cast.target for op in casts},
        ("matmul", "loss"): {forward[-1].result},
        ("loss", "scale"): {scaling.inputs[0]},
        ("scale", "loss_b"): {scaling.result},
        ("loss_b", "matmul_b"): {_arriving(backward)},
        ("matmul_b", "cast_b"): {op.cast.source for op in backward if op.cast and op.cast.by == "backward"},
        ("cast_b", "grad"): set(trace.gradients.values()),
    }
    for (start, end), dtypes in found.items():
        if len(dtypes) != 1:
            names = " and ".join(sorted(map(str, dtypes))) or "nothing"
            raise ValueError(f"from {start} to {end} flows {names}: trace a model whose layers share one dtype")
    return {edge: dtypes.pop() for edge, dtypes in found.items()}


def _arriving(backward: list[Op]) -> torch.dtype:
    """Dtype of the gradient that the first operation behind the loss takes."""
    pairs = (pair for op in backward for pair in zip(op.inputs, op.kinds, strict=True))
    return next((dtype for dtype, kind in pairs if kind == "gradient"), backward[0].inputs[0])
