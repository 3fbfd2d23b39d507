"""What the documentation lists, and how that compares with what torch does."""

import importlib.resources
import json
from dataclasses import dataclass
from functools import cache

import torch

from ampedu.policy.explained import ALIASES, BY_DEVICE, COMPOSED, FAMILIES, FOUND_ONLY
from ampedu.policy.kinds import Policy, check_device
from ampedu.policy.table import autocast_policy

STATUSES = ("documented and found", "contradicted", "documented only", "found only")


@cache
def _data() -> dict:
    file = importlib.resources.files("ampedu") / "data" / "autocast_documented.json"
    return json.loads(file.read_text(encoding="utf-8"))


def documented_policy(device: str) -> dict[str, Policy]:
    """{name as the documentation spells it: Policy} for a device; empty for mps, for which there is no list.

    A copy of the lists in the documentation of torch: `documented_source` says which. ValueError: another device.
    """
    lists = _data()["lists"].get(check_device(device), {})
    return {name: Policy(policy) for policy, names in lists.items() for name in names}


def documented_source() -> dict[str, str]:
    """Where the documented lists come from: repository, path, commit, version, note."""
    return dict(_data()["source"])


@dataclass(frozen=True)
class Row:
    """One name in the comparison. documented, found: its policy there, None if it is not. why: empty, or a sentence.

    operations: the registered operations that the name stands for. expression and shapes, where it has none of its
    own: a call that shows what happens to it, for `probe`.
    """

    name: str
    status: str
    documented: Policy | None
    found: Policy | None
    operations: tuple[str, ...]
    why: str = ""
    expression: str = ""
    shapes: tuple = ()


def compare(device: str) -> list[Row]:
    """One Row per documented name and per family of operations that is not documented, in the order of STATUSES.

    float32 and float32_set_dtype count as the same: the documentation does not distinguish them.
    """
    found = autocast_policy(device)
    documented = documented_policy(device)
    families: dict[str, list[str]] = {}
    for operation in found:
        families.setdefault(operation.partition(".")[0], []).append(operation)
    rows, covered = [], set()
    for name, policy in documented.items():
        row = _documented_row(name, policy, families, found)
        covered |= {operation.partition(".")[0] for operation in row.operations}
        rows.append(row)
    for family, operations in families.items():
        if family not in covered:
            rows.append(_found_row(family, tuple(operations), found[operations[0]], device))
    return sorted(rows, key=lambda row: (STATUSES.index(row.status), row.name))


def _documented_row(name, policy, families, found):
    targets = ALIASES.get(name, (name.strip("_") if name.startswith("__") else name,))
    operations = tuple(operation for target in targets for operation in families.get(target, ()))
    if not operations:
        composed = COMPOSED.get(name)
        if composed is None or not any(part in families for part in composed.through):
            return Row(name, "documented only", policy, None, ())
        why = f"has no kernel of its own: it is computed from {', '.join(p for p in composed.through if p in families)}"
        return Row(name, "documented only", policy, None, (), why, composed.expression, composed.shapes)
    policies = {found[operation] for operation in operations}
    same = {_plain(item) for item in policies} == {_plain(policy)}
    seen = found[operations[0]]
    return Row(name, "documented and found" if same else "contradicted", policy, seen, operations)


def _found_row(family, operations, policy, device):
    why = BY_DEVICE.get((device, family)) or FOUND_ONLY.get(family)
    why = why or next((text for beginning, text in FAMILIES if family.startswith(beginning)), "")
    elsewhere = documented_policy("cuda").get(family)
    if not why and elsewhere is not None and _plain(elsewhere) == _plain(policy):
        why = "documented for CUDA, with the same policy"
    return Row(family, "found only", None, policy, operations, why)


def _plain(policy):
    return Policy.float32 if policy is Policy.float32_set_dtype else policy


def summary(rows: list[Row]) -> dict[str, int]:
    """{status: number of rows}, and under "explained" how many of the rows not found, or not documented, have a why."""
    counts = {status: sum(row.status == status for row in rows) for status in STATUSES}
    counts["explained"] = sum(bool(row.why) for row in rows if row.status != STATUSES[0])
    return counts


def text(device: str) -> str:
    """The comparison as a table in plain text, with its totals."""
    rows = compare(device)
    source = documented_source()
    cells = [("name", "documented", "found", "status", "why")]
    cells += [(row.name, row.documented or "-", row.found or "-", row.status, row.why) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["  ".join([*map(str.ljust, line, widths), line[4]]).rstrip() for line in cells]
    counts = summary(rows)
    documented = sum(row.documented is not None for row in rows)
    known = sum(row.documented is not None and (row.status == STATUSES[0] or bool(row.why)) for row in rows)
    share = f" ({known / documented:.1%})" if documented else ""
    lines += [
        "",
        f"{device}: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES),
        f"documented names found or explained: {known} of {documented}{share}",
        f"torch {torch.__version__}; documentation: {source['version']}, {source['path']} at {source['commit'][:10]}",
    ]
    return "\n".join(lines)
