"""Blocking the import of modules that would be the answer key of an exercise."""

import contextlib
import importlib.abc
import sys


class ForbiddenImport(ImportError):
    """The answer imports a module that holds the answer to this exercise."""


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, modules, exercise):
        self.modules, self.exercise = modules, exercise

    def find_spec(self, name, path=None, target=None):
        for module in self.modules:
            if name == module or name.startswith(module + "."):
                raise ForbiddenImport(
                    f"{self.exercise} must be solved without {module}: it holds the answer", name=name
                )
        return None


@contextlib.contextmanager
def blocked(modules: tuple[str, ...], exercise: str):
    """Within the block every way of importing these modules or their submodules raises ForbiddenImport.

    Also covers `from package import module`, importlib.import_module, and attribute access on a package that had
    loaded the module.
    """
    hidden = {name: sys.modules[name] for name in list(sys.modules) if _hits(name, modules)}
    attributes = []
    for name in modules:
        parent, _, child = name.rpartition(".")
        package = sys.modules.get(parent)
        if package is not None and child in vars(package):
            attributes.append((package, child, vars(package)[child]))
            delattr(package, child)
    for name in hidden:
        del sys.modules[name]
    finder = _Finder(modules, exercise)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)
        for package, child, value in attributes:
            setattr(package, child, value)


def _hits(name, modules):
    return any(name == module or name.startswith(module + ".") for module in modules)
