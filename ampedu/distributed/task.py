"""What the ranks shall run: a function that a fresh process can import, or a script."""

import importlib.util
import inspect
from pathlib import Path

CURE = (
    "Write it to a file: put %%writefile job.py on the first line of the cell, run the cell, and call "
    'run_distributed("job.py:{name}", …).'
)


def describe(what) -> dict:
    """The task as plain data: {"kind": "module" | "file" | "script", "target": name or path, "function": name}.

    what: a function of an importable module, "module:function", "file.py:function", or the path of a script.
    TypeError: a function that a new process cannot import. ValueError: a name or file that does not exist.
    """
    if isinstance(what, Path):
        what = str(what)
    if isinstance(what, str):
        return _named(what)
    if not callable(what):
        raise TypeError(f"give a function, \"module:function\" or the path of a script, not {type(what).__name__}")
    name = getattr(what, "__qualname__", None) or type(what).__qualname__
    if not inspect.isfunction(what):
        raise TypeError(f"{name} is not a plain function: put the call into one (def main(): …) in a file or module")
    short = what.__name__
    if short == "<lambda>":
        raise TypeError("a lambda has no name to import it by. Write it as a function. " + CURE.format(name="main"))
    if what.__module__ == "__main__":
        raise TypeError(
            f"{short} was typed in this notebook. Each rank is a new process that starts with an empty memory and "
            f"cannot import it. " + CURE.format(name=short)
        )
    if name != short:
        raise TypeError(f"{name} is defined inside another function or class, so that no process can import it. Move "
                        "it to the top level of its file.")  # fmt: skip
    return {"kind": "module", "target": what.__module__, "function": short}


def _named(what: str) -> dict:
    target, colon, function = what.rpartition(":")
    if not colon or not function.isidentifier():
        if what.endswith(".py"):
            return {"kind": "script", "target": _file(what), "function": None}
        raise ValueError(f"{what!r} names nothing to run: give 'module:function', 'file.py:function' or 'file.py'")
    if target.endswith(".py"):
        return {"kind": "file", "target": _file(target), "function": function}
    try:
        known = importlib.util.find_spec(target)
    except (ImportError, ValueError):
        known = None
    if known is None:
        raise ValueError(f"there is no module {target!r} to import {function} from")
    return {"kind": "module", "target": target, "function": function}


def _file(name: str) -> str:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {name}. Run the %%writefile cell that writes it, or check the folder: "
                         f"this one is {Path.cwd().name}/")  # fmt: skip
    return str(path)
