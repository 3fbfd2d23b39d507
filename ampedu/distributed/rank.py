"""``torchrun … -m ampedu.distributed.rank FOLDER``: what one rank of `run_distributed` does.

Reads FOLDER/job.json, and writes pid.RANK, and result.RANK.json or error.RANK.json, to FOLDER.
"""

import faulthandler
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from ampedu.distributed import packing


def main(folder: Path) -> None:
    """Do this rank's part of the job in the folder, and end the process."""
    rank = int(os.environ["RANK"])
    packing.write(folder / f"pid.{rank}", str(os.getpid()))
    _hold_on_to_the_notebook()
    os.dup2(1, 2)  # one stream, so that the order of prints and warnings is kept
    if hasattr(faulthandler, "register"):
        stack = open(folder / f"stack.{rank}", "w", encoding="utf-8")
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        value = run(job)
        try:
            result = packing.pack(value)
        except packing.NotPlain as error:
            raise TypeError(f"rank {rank} returned what cannot be sent back: {error}") from None
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            result = packing.pack(None)
        else:
            report = {"when": time.time(), "rank": rank, "text": describe(error), "type": type(error).__name__}
            packing.write(folder / f"error.{rank}.json", json.dumps(report))
            sys.stdout.flush()
            os._exit(1)  # the others may be gone: to take leave of them could wait for ever
    packing.write(folder / f"result.{rank}.json", result)


def run(job: dict):
    """The value that the function returns, or the variable `result` of the script."""
    args = packing.unpack(job["args"])
    if job["kind"] == "script":
        sys.argv = [job["target"], *(str(arg) for arg in args)]
        sys.path.insert(0, str(Path(job["target"]).parent))
        return runpy.run_path(job["target"], run_name="__main__").get("result")
    import torch
    import torch.distributed as dist

    cuda = job["backend"] == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else None
    if cuda:
        torch.cuda.set_device(device)
    function = getattr(_module(job), job["function"], None)
    if not callable(function):
        raise AttributeError(f"{Path(job['target']).name} has no function {job['function']}")
    dist.init_process_group(job["backend"], device_id=device)
    result = function(*args)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def _module(job):
    if job["kind"] == "module":
        return importlib.import_module(job["target"])
    path = Path(job["target"])
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def describe(error: BaseException) -> str:
    """The traceback from the learner's code on: of the frames inside torch only the last, none of this file."""
    own = (__file__, packing.__file__, runpy.__file__)
    shown = traceback.TracebackException.from_exception(error)
    frames = [f for f in shown.stack if f.filename not in own and not f.filename.startswith("<frozen ")]
    frames = [f for f in frames if f is frames[-1] or "torch" not in Path(f.filename).parts]
    shown.stack = traceback.StackSummary.from_list(frames)
    return "".join(shown.format()).rstrip()


def _hold_on_to_the_notebook() -> None:
    """End this process, and what it started, when the notebook's end of standard input closes."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait():
        while os.read(lifeline, 1):
            pass
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
