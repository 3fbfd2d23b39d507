"""Which dtype each operation of a model has, forward and backward, and what autocast casts on the way.

trace = trace_dtypes(model, x, device_policy="cuda", dtype=torch.float16)
trace                                # as the last line of a cell: a table, folded by module
trace.picture()                      # float32 islands and needless casts at a glance
cast_census(model, x)                # how many casts the weight cache saves: counted with and without it
"""

from ampedu.trace.census import Census, cast_census
from ampedu.trace.records import Cast, ModuleCall, Op, Trace
from ampedu.trace.run import TraceError, trace_dtypes

__all__ = ["Cast", "Census", "ModuleCall", "Op", "Trace", "TraceError", "cast_census", "trace_dtypes"]
