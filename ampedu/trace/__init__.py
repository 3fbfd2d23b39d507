"""Which dtype each operation of a model has, forward and backward, and what autocast casts on the way.

trace = trace_dtypes(model, x, device_policy="cuda", dtype=torch.float16)
trace                                # as the last line of a cell: a table, folded by module
trace.picture()                      # float32 islands and needless casts at a glance
step_edges(trace)                    # the dtypes on the edges of figure F2 (ampedu.plots.amp_step)
cast_census(model, x)                # how many casts the weight cache saves: counted with and without it
"""

from ampedu.trace.census import Census, cast_census
from ampedu.trace.records import Cast, ModuleCall, Op, Trace
from ampedu.trace.run import TraceError, trace_dtypes
from ampedu.trace.step import step_edges

__all__ = ["Cast", "Census", "ModuleCall", "Op", "Trace", "TraceError", "cast_census", "step_edges", "trace_dtypes"]
