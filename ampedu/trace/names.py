"""Names for modules and tensors: paths such as "layers.0.linear1", also for models that are plain functions."""

import torch


class Names:
    """Paths of the modules of a model, and of modules that turn up during the run; names of weights and buffers."""

    def __init__(self, model, inputs):
        self._paths: dict[torch.nn.Module, list[str]] = {}
        self._tensors: dict[int, tuple[str, str, torch.Tensor]] = {}
        self._roots: set[str] = set()
        for tensor in inputs:
            self._tensors[id(tensor)] = ("input", "", tensor)
        if isinstance(model, torch.nn.Module):
            self.add(model, "")

    def add(self, root: torch.nn.Module, prefix: str) -> None:
        """Learn the names below a module whose own path is `prefix`."""
        for path, module in root.named_modules(remove_duplicate=False, prefix=prefix):
            self._paths.setdefault(module, []).append(path)
        for kind, found in (("weight", root.named_parameters(prefix)), ("buffer", root.named_buffers(prefix))):
            for name, tensor in found:
                self._tensors.setdefault(id(tensor), (kind, name, tensor))

    def path(self, module: torch.nn.Module, parent: str) -> str:
        """Path of a module that is called inside `parent`; a module used in several places has several."""
        if module not in self._paths:
            name, number = type(module).__name__, 1
            while name in self._roots:
                number += 1
                name = f"{type(module).__name__}_{number}"
            self._roots.add(name)
            self.add(module, name)
        paths = self._paths[module]
        inside = [path for path in paths if not parent or path.startswith(f"{parent}.")]
        return (inside or paths)[0]

    def tensor(self, tensor: torch.Tensor) -> tuple[str, str]:
        """Kind and name of a tensor that no recorded operation made."""
        kind, name, known = self._tensors.get(id(tensor), ("", "", None))
        if known is tensor:
            return kind, name
        if isinstance(tensor, torch.nn.Parameter) or (tensor.is_leaf and tensor.requires_grad):
            return "weight", ""
        return "activation", ""

    def parameter(self, tensor: torch.Tensor) -> str:
        """Name of a parameter, "" if it has none."""
        return self.tensor(tensor)[1]

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """All named parameters seen so far."""
        return [(name, tensor) for kind, name, tensor in self._tensors.values() if kind == "weight"]
