"""Which operations autocast casts, and to what: probed from the installed torch, for every device, on any machine.

    autocast_policy("cuda")              # {"mm": Policy.lower_precision, "exp": Policy.float32, …}
    probe("x @ y", (2, 3), (3, 4))       # torch.float16: the dtype of any expression under the CUDA policy
    with cuda_policy_on_cpu(): …         # torch.autocast("cpu") follows the CUDA policy, with real numbers
    compare("cuda")                      # what the documentation says beside what torch does

``python -m ampedu.policy --compare cuda`` prints the last one.
"""

from ampedu.policy.documented import Row, compare, documented_policy, documented_source, summary
from ampedu.policy.documented import text as comparison
from ampedu.policy.header import header_policy
from ampedu.policy.kinds import DEVICES, Policy, PolicyError
from ampedu.policy.on_cpu import MissingKernelError, cuda_policy_on_cpu
from ampedu.policy.probing import ProbeError, probe, warm_up
from ampedu.policy.table import autocast_policy, unclassified

__all__ = [
    "DEVICES",
    "MissingKernelError",
    "Policy",
    "PolicyError",
    "ProbeError",
    "Row",
    "autocast_policy",
    "compare",
    "comparison",
    "cuda_policy_on_cpu",
    "documented_policy",
    "documented_source",
    "header_policy",
    "probe",
    "summary",
    "unclassified",
    "warm_up",
]
