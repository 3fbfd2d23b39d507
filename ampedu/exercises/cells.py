"""The cells that have run in this kernel, and an answer's definition taken from them into a fresh namespace."""

import linecache
import sys

from ampedu.exercises.blocking import blocked
from ampedu.exercises.closure import Closure, analyze, calls, closure, forget, imported, parsed, until, uses

__all__ = [
    "Closure", "Recorder", "analyze", "calls", "closure", "forget", "imported", "materialize", "parsed", "recorder",
    "until", "uses",
]  # fmt: skip


class Recorder:
    """The sources of the executed cells of one IPython shell, in order, whether the kernel stores history or not.

    It listens to pre_run_cell and post_run_cell; the cells before it was made come from the stored history.
    """

    def __init__(self, shell):
        self.shell, self.cells, self._last = shell, [], None
        history = getattr(getattr(shell, "history_manager", None), "input_hist_raw", None) or []
        self.cells += [cell for cell in history if cell]
        self._in_history = self.cells[-1] if self.cells else None
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def _before(self, info):
        self._last = info
        self._in_history = None
        self.cells.append(info.raw_cell or "")

    def _after(self, result):
        # Registered while a cell runs, this is the first event: that cell may be in the stored history already.
        if result.info is not self._last and result.info.raw_cell != self._in_history:
            self.cells.append(result.info.raw_cell or "")
        self._last, self._in_history = result.info, None


def recorder() -> Recorder | None:
    """The recorder of the running IPython shell, made on the first call; None in plain Python."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    if shell is None or not hasattr(shell, "events"):
        return None
    if not hasattr(shell, "_ampedu_recorder"):
        shell._ampedu_recorder = Recorder(shell)
    return shell._ampedu_recorder


def materialize(source: str, name: str, forbids: tuple[str, ...] = (), exercise: str = ""):
    """Run ``source`` in a fresh namespace with the imports of ``forbids`` blocked; return the object it calls ``name``.

    Raises whatever the source raises; LookupError if it does not define the name.
    """
    return namespace(source, name, forbids, exercise)[name]


def namespace(
    source: str, name: str, forbids: tuple[str, ...] = (), exercise: str = "", extra: dict | None = None
) -> dict:
    """The namespace that ``materialize`` looks in. ``extra``: names that exist before the source runs."""
    filename = f"<answer {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    space = {"__name__": "__answer__", "__builtins__": __builtins__, **(extra or {})}
    with blocked(forbids, exercise or "this exercise"):
        exec(compile(source, filename, "exec", dont_inherit=True), space)
    if name not in space:
        raise LookupError(f"the source does not define {name}")
    return space
