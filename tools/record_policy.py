"""Writes the autocast lists of the torch that runs it into ampedu/data/autocast_recorded.json, beside other versions.

    PYTHONPATH=. SOME_ENVIRONMENT/bin/python tools/record_policy.py

Run it with each supported version of torch; the op explorer compares the installed version with a recorded one.
"""

import json
import platform
from pathlib import Path

import torch

from ampedu.policy import DEVICES, autocast_policy

TARGET = Path(__file__).parent.parent / "ampedu" / "data" / "autocast_recorded.json"
ONLY_CUDA_BUILDS = {"_cudnn_rnn"}  # whether it is there is a property of the build, not of the version
NOTE = "Found by tools/record_policy.py under each version of torch. Overloads of one operation share a policy."


def lists(device: str) -> dict[str, list[str]]:
    """{policy: operations, without their overloads} for one device."""
    found: dict[str, set[str]] = {}
    for operation, policy in autocast_policy(device).items():
        family = operation.partition(".")[0]
        if family not in ONLY_CUDA_BUILDS:
            found.setdefault(policy.value, set()).add(family)
    return {policy: sorted(found[policy]) for policy in sorted(found)}


def merged(content: dict, version: str, build: str) -> dict:
    """The content of the file with this version's lists in it."""
    versions = {**content.get("versions", {}), version: {device: lists(device) for device in DEVICES}}
    builds = {**content.get("builds", {}), version: build}
    return {"note": NOTE, "builds": dict(sorted(builds.items())), "versions": dict(sorted(versions.items()))}


def main() -> None:
    """Reads, merges and writes the file."""
    content = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
    version = torch.__version__.split("+")[0]
    build = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    TARGET.write_text(json.dumps(merged(content, version, build), indent=1) + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {version}")


if __name__ == "__main__":
    main()
