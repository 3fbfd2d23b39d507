"""Where the gradients of a live backward pass lie: collected by layer, and counted exactly in a format's range."""

import dataclasses
from collections.abc import Iterable, Mapping

import torch

from ampedu import formats
from ampedu.magnitudes import OUTCOMES, bounds, exponent_counts

KINDS = ("parameters", "activations")
_MARK = "ampedu.gradients"


def landed(tensors, fmt, scale: float = 1.0, count_zeros: bool = False) -> dict[str, float]:
    """Fractions of values by what a format makes of each once a loss scale has multiplied it, exact to the last one.

    tensors: a floating-point tensor or several, of any shape and device. fmt: a format with a sign and a zero. The
    product with the scale is made in float64, exact for values and scales of float32, then rounded once, to nearest.
    Returns {"zero", "subnormal", "normal", "overflow"}: zero and subnormal are what is stored after rounding; overflow
    is what rounds beyond the largest number, whether the format makes inf, NaN or its largest number of it, and inf
    and NaN that were there before. Counted are the values that were not 0 before, or with count_zeros all of them;
    without any, all fractions are 0. ``magnitudes.shares`` does the same from a histogram, whose bins it counts whole.
    TypeError: not floating-point tensors. ValueError: no tensor, a scale that is not positive, an unsigned format.
    """
    fmt = formats.get(fmt)
    bounds(fmt)
    if not scale > 0:
        raise ValueError(f"the scale is {scale}: a loss scale is positive")
    found, total = dict.fromkeys(OUTCOMES, 0), 0
    for tensor in _listed(tensors):
        values = tensor.detach().flatten().to("cpu").double().abs()  # a GPU may lack float64
        nonzero = values[values != 0]
        counted = values.numel() if count_zeros else nonzero.numel()
        found["zero"] += counted - nonzero.numel()
        total += counted
        for kind, number in _outcomes(nonzero * scale, fmt).items():
            found[kind] += number
    return {kind: number / (total or 1) for kind, number in found.items()}


def _outcomes(x: torch.Tensor, fmt) -> dict[str, int]:
    over = ~(x < fmt.overflow_threshold)  # NaN counts, too
    stored = formats.decode(formats.encode(x[~over], fmt), fmt)
    zero, small = int((stored == 0).sum()), int((stored < fmt.min_normal).sum())
    counts = (zero, small - zero, stored.numel() - small, int(over.sum()))
    return dict(zip(OUTCOMES, counts, strict=True))


def _listed(tensors) -> list[torch.Tensor]:
    found = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    found = list(found) if isinstance(found, Iterable) and not isinstance(found, str | Mapping) else [found]
    if not found:
        raise ValueError("there is no tensor: did backward() run?")
    for tensor in found:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            kind = f"a tensor of {tensor.dtype}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"gradients are floating-point tensors, not {kind}")
    return found


class GradientRange:
    """Collects the gradients of a model while its block lasts: ``with GradientRange(model) as seen: loss.backward()``.

    The forward pass must run inside the block, too, for the gradients of activations, which autograd makes and throws
    away. parameters: {name: list of what .grad held after each backward pass}, scaled as the loss was. activations:
    {module name: list of the gradients of the tensors that the module returned, those in tuples, lists, dictionaries
    and dataclasses as well}, in the dtype in which they flow; "" is the model itself. A tensor that a parent only
    passes on counts for the module that made it. Each is a copy: use it for a step, not for an epoch. model: as given.
    Neither pass computes anything else than without it, and modules that work in place are fine.
    """

    def __init__(self, model: torch.nn.Module):
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"GradientRange takes a torch.nn.Module, not {type(model).__name__}")
        self.model = model
        self._handles: list = []
        self.parameters: dict[str, list[torch.Tensor]] = {}
        self.activations: dict[str, list[torch.Tensor]] = {}

    def __enter__(self) -> "GradientRange":
        if self._handles:
            raise RuntimeError("this GradientRange is collecting already: make a second one")
        for name, module in self.model.named_modules():
            self._handles.append(module.register_forward_hook(self._follow(name)))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._keep_grad(name)))
        return self

    def __exit__(self, *error) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        # Backward finds the last layer first.
        self.activations = _ordered(self.activations, self.model.named_modules())
        self.parameters = _ordered(self.parameters, self.model.named_parameters())

    def tensors(self, of: str | None = None) -> list[torch.Tensor]:
        """All gradients of ``of``, "parameters" or "activations"; without it those of both."""
        if of is not None and of not in KINDS:
            raise ValueError(f"{of!r} is not collected: choose from {', '.join(KINDS)}")
        kinds = KINDS if of is None else (of,)
        return [tensor for kind in kinds for each in getattr(self, kind).values() for tensor in each]

    def landed(self, fmt, scale: float = 1.0, of: str | None = None, count_zeros: bool = False) -> dict[str, float]:
        """Fractions by outcome, as the function ``landed`` counts them."""
        return landed(self.tensors(of), fmt, scale, count_zeros)

    def counts(self, of: str | None = None) -> tuple[dict[int, int], int]:
        """(histogram in powers of two, zeros) of the finite gradients: ``widgets.gradient_range(*seen.counts())``."""
        return exponent_counts(*(tensor[tensor.isfinite()] for tensor in _listed(self.tensors(of))))

    def _follow(self, name: str):
        def hook(_module, _inputs, output):
            for tensor in _tensors_in(output):
                node = tensor.grad_fn
                if node is None or not tensor.is_floating_point():
                    continue
                # A parent that hands on what its child made gets the same node, with our mark on it.
                marks = node.metadata.setdefault(_MARK, set())
                mark = (id(self), tensor.output_nr)
                if mark not in marks:
                    marks.add(mark)
                    self._register(name, tensor)

        return hook

    def _register(self, name: str, tensor: torch.Tensor) -> None:
        came = False

        def keep(gradient):
            nonlocal came
            came = True
            if self._handles:
                self.activations.setdefault(name, []).append(gradient.detach().clone())

        tensor.register_hook(keep)
        base = tensor._base
        if base is None or base.grad_fn is None or base.numel() != tensor.numel():
            return
        # A later in-place operation on a view cuts the view's node, with our hook, out of the graph; its base stays.
        # Linear returns a view of its product if its input has three dimensions.
        size, strides = tensor.size(), tensor.stride() if base.is_contiguous() else None

        def keep_of_base(gradient):
            if not came and self._handles:
                gradient = gradient.detach().clone(memory_format=torch.contiguous_format)
                gradient = gradient if strides is None else gradient.as_strided(size, strides)
                self.activations.setdefault(name, []).append(gradient)

        base.register_hook(keep_of_base)

    def _keep_grad(self, name: str):
        def hook(parameter):
            gradient = parameter.grad.detach()
            gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
            self.parameters.setdefault(name, []).append(gradient.clone())

        return hook


def _ordered(found: dict, named) -> dict:
    return {name: found[name] for name, _ in named if name in found}


def _tensors_in(output):
    if isinstance(output, torch.Tensor):
        yield output
        return
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, list | tuple):
        parts = output
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        parts = [getattr(output, each.name) for each in dataclasses.fields(output)]
    else:
        return
    for part in parts:
        yield from _tensors_in(part)
