"""The autocast policy as a table: operation → Policy."""

import torch

from ampedu.policy import stored
from ampedu.policy.kinds import Policy


def autocast_policy(device: str, dtype: torch.dtype = torch.float16) -> dict[str, Policy]:
    """{operation: Policy} for every aten operation and overload that has an autocast kernel for the device.

    Probed from the installed torch without the device, and kept on disk. device: "cuda", "cpu", "mps" or "xpu".
    dtype: that of autocast, float16 or bfloat16. Names are those of torch.ops.aten: "mm", "sum.dim_IntList". What is
    not in the dict is not touched by autocast. ValueError: another device or dtype.
    """
    return {name: rule.policy for name, rule in stored.rules(device, dtype)[0].items()}


def unclassified(device: str, dtype: torch.dtype = torch.float16) -> dict[str, str]:
    """{operation: what was seen} for registered operations that follow none of the policies; empty on torch 2.13."""
    return dict(stored.rules(device, dtype)[1])
