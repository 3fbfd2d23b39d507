"""The probed policies, kept in memory and on disk: one small JSON file per build of torch, in the user's cache folder.

Writing is atomic. A file that is damaged, unreadable or about other operations than torch registers now is ignored,
and a folder that cannot be written costs a tenth of a second per process, nothing else.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from ampedu.policy import dispatcher
from ampedu.policy.kinds import Policy, Rule, check_device, check_dtype

SCHEMA = 1
_memory: dict[tuple[str, torch.dtype], tuple[dict[str, Rule], dict[str, str]]] = {}


def path() -> Path:
    """The file for the installed torch. Its name holds the version and a hash of the build."""
    build = hashlib.sha256(f"{torch.__version__} {torch.version.git_version}".encode()).hexdigest()[:8]
    return folder() / f"autocast-{torch.__version__}-{build}.json"


def folder() -> Path:
    """The user's cache folder, by the custom of the system."""
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "ampedu" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ampedu"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampedu"


def rules(device: str, dtype: torch.dtype) -> tuple[dict[str, Rule], dict[str, str]]:
    """({operation: Rule}, {operation that fits no policy: what was seen}) from memory, from disk, or probed."""
    key = (check_device(device), check_dtype(dtype))
    if key not in _memory:
        found = _read(device, dtype)
        if found is None:
            found = dispatcher.rules(device, dtype)
            if not found[1]:
                _write(device, dtype, found[0])
        _memory[key] = found
    return _memory[key]


def _entry(device, dtype):
    return f"{device} {str(dtype).removeprefix('torch.')}"


def _load():
    content = json.loads(path().read_text(encoding="utf-8"))
    return content["entries"] if content["schema"] == SCHEMA else {}


def _read(device, dtype):
    try:
        stored = _load()[_entry(device, dtype)]
        found = {name: Rule(Policy(policy), target) for name, (policy, target) in stored.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (found, {}) if tuple(sorted(found)) == dispatcher.registered(device) else None


def _write(device, dtype, found):
    try:
        entries = dict(_load())
    except (OSError, ValueError, KeyError, TypeError):
        entries = {}
    entries[_entry(device, dtype)] = {name: [rule.policy.value, rule.target] for name, rule in found.items()}
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        folder().mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder(), suffix=".tmp")
        try:
            with open(handle, "w", encoding="utf-8") as stream:
                json.dump({"schema": SCHEMA, "entries": entries}, stream)
            os.replace(temporary, path())
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
