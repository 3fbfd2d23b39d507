"""Puts back what a run changes: gradients and buffers."""

import torch


class AsBefore:
    """Context manager: gradients and buffers that are kept inside it have their old values after it."""

    def __enter__(self):
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._modules: dict[torch.nn.Module, dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
        return self

    def keep(self, found) -> None:
        """Keep the gradients of leaf tensors; until the end they have none."""
        for tensor in found:
            if tensor.is_leaf and tensor.requires_grad and id(tensor) not in self._gradients:
                self._gradients[id(tensor)] = (tensor, tensor.grad)
                tensor.grad = None

    def keep_module(self, module: torch.nn.Module) -> None:
        """Keep the gradients and buffers of a module and of those inside it."""
        if module in self._modules:
            return
        for part in module.modules():
            self._modules[part] = {
                name: (buffer, buffer.detach().clone())
                for name, buffer in part._buffers.items()
                if buffer is not None and not buffer.is_inference()
            }
            self.keep(part.parameters(recurse=False))

    def __exit__(self, *error):
        for tensor, gradient in self._gradients.values():
            tensor.grad = gradient
        for module, buffers in self._modules.items():
            for name, (buffer, old) in buffers.items():
                if not torch.equal(buffer, old):  # batch_norm changes them without a new version
                    with torch.no_grad():
                        buffer.copy_(old)
                module._buffers[name] = buffer
        return False
