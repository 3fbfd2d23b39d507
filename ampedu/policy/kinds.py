"""The five things that autocast can do with an operation, and what is known about one registered operation."""

import enum
from dataclasses import dataclass

DEVICES = ("cuda", "cpu", "mps", "xpu")


class Policy(enum.StrEnum):
    """What autocast does with the floating-point inputs of an operation. float64 inputs are never touched."""

    lower_precision = "lower_precision"  # casts them to the autocast dtype, float16 or bfloat16
    float32 = "float32"  # casts them to float32
    float32_set_dtype = "float32_set_dtype"  # leaves them and asks the operation for a float32 result (dtype=float32)
    promote_widest = "promote_widest"  # casts them to the widest dtype among them
    banned = "banned"  # raises an error


@dataclass(frozen=True)
class Rule:
    """policy of one operation. target: the overload that runs in its place, for example norm.ScalarOpt_dtype."""

    policy: Policy
    target: str


class PolicyError(RuntimeError):
    """The installed torch does not let the policy be read."""


def check_device(device: str) -> str:
    """The device type if it is one of DEVICES; ValueError otherwise."""
    if device in DEVICES:
        return device
    hint = " Give the type without an index." if isinstance(device, str) and device.split(":")[0] in DEVICES else ""
    raise ValueError(f"device {device!r} is not one of {', '.join(DEVICES)}.{hint}")


def check_dtype(dtype):
    """The dtype if autocast casts to it on every device, float16 or bfloat16; ValueError otherwise."""
    import torch

    if dtype in (torch.float16, torch.bfloat16):
        return dtype
    raise ValueError(f"autocast does not cast to {dtype!r}. Use torch.float16 or torch.bfloat16.")
