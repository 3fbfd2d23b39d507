"""Every test starts from the same place: one thread, no variables of the caller, progress in a temporary file."""

import os
import signal

# Before anything imports torch.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings

settings.register_profile("ampedu", derandomize=True, deadline=None, database=None, max_examples=100)
settings.load_profile("ampedu")


# A run started in the background inherits an ignored SIGINT; tests of Ctrl-C need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path_factory):
    for name in ("AMPEDU_DEVICE", "AMPEDU_STRICT", "AMPEDU_SOURCE", "NBGRADER_EXECUTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AMPEDU_PROGRESS", str(tmp_path_factory.mktemp("progress") / "progress.json"))
