"""Several processes from a notebook, what they send to each other, and how that scales.

``run_distributed`` starts real processes under torch's launcher, ``CommLedger`` counts the bytes of every collective,
``step_time`` computes what a step takes on more machines than there are here.
"""

from ampedu.distributed.comm import CommLedger, CommRow
from ampedu.distributed.errors import DistributedError, DistributedTimeout
from ampedu.distributed.launch import device, run_distributed
from ampedu.distributed.paper import StepTime, step_time, wire_bytes

__all__ = [
    "CommLedger",
    "CommRow",
    "DistributedError",
    "DistributedTimeout",
    "StepTime",
    "device",
    "run_distributed",
    "step_time",
    "wire_bytes",
]
