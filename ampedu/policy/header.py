"""A second witness: the lists in ATen/autocast_mode.h, which come with torch.

CUDA, XPU and others are registered from these macros; CUDA adds two cuDNN operations and a ban of its own.
"""

import re
from pathlib import Path

import torch

from ampedu.policy.kinds import Policy

MACROS = {
    "AT_FORALL_LOWER_PRECISION_FP": Policy.lower_precision,
    "AT_FORALL_FP32": Policy.float32,
    "AT_FORALL_FP32_SET_OPT_DTYPE": Policy.float32_set_dtype,
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": Policy.float32_set_dtype,
    "AT_FORALL_PROMOTE": Policy.promote_widest,
}


def header_policy(text: str | None = None) -> dict[str, Policy]:
    """{operation: Policy} as the macros list them; empty if torch came without its headers.

    text: the header; by default that of the installed torch.
    """
    if text is None:
        path = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            return {}
    found = {}
    for macro, body in re.findall(r"#define (AT_FORALL_\w+)\(_\)((?:.*\\\n)+.*\n)", text):
        policy = MACROS.get(macro)
        if policy is None:
            continue
        body = body.replace("\\\n", " ")
        if macro == "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE":
            names = re.findall(r'"([\w.]+)"', body)
        else:
            names = [re.sub(r"\s*,\s*", ".", entry) for entry in re.findall(r"_\(([\w, ]+)\)", body)]
        found.update(dict.fromkeys(names, policy))
    return found
