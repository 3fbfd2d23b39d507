"""Where a watcher listens: torch's own calls, replaced while at least one watcher is active and put back afterwards.

Classes and modules are patched, never the learner's objects (but for a hook on a compiled model): these can be copied,
pickled and saved inside the loop.
"""

from __future__ import annotations

import contextlib
import functools
import types

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_active: list = []
_installed = contextlib.ExitStack()
CLIPS = ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_")


def attach(watcher) -> None:
    """Tell a watcher about every call from now on."""
    if not _active:
        _install(_installed)
    _active.append(watcher)
    watcher.hooks = _listen_to(watcher)
    for owner in watcher.own_classes():
        for name in ("scale", "unscale_", "step", "update"):
            _patch(_installed, owner, name, f"scaler.{name}")


def detach(watcher) -> None:
    """Stop telling it; after the last watcher torch is as it was."""
    if watcher in _active:
        _active.remove(watcher)
        for hook in watcher.hooks:
            hook.remove()
        if not _active:
            _installed.close()


def _install(stack) -> None:
    try:
        scaler, optimizer = torch.amp.GradScaler, torch.optim.Optimizer
        for name in ("scale", "unscale_", "step", "update"):
            _patch(stack, scaler, name, f"scaler.{name}")
        _patch(stack, optimizer, "zero_grad", "zero_grad")
        _patch(stack, torch.nn.Module, "zero_grad", "zero_grad")
        _patch(stack, torch.autograd, "backward", "backward")  # Tensor.backward calls it, too
        _patch(stack, torch.autograd, "grad", "grad")
        _patch(stack, torch.autocast, "__exit__", "autocast")
        _patch(stack, torch, "clear_autocast_cache", "autocast")
        for kind in _with_subclasses(LRScheduler):
            _patch(stack, kind, "step", "scheduler")
        for name in CLIPS:
            _patch_clip(stack, name)
        for register, tell in (
            (register_optimizer_step_pre_hook, _step_begins),
            (register_optimizer_step_post_hook, _step_ended),
        ):
            stack.callback(register(tell).remove)
    except BaseException:
        stack.close()
        raise


def _listen_to(watcher) -> list:
    """Handles of the hooks that tell a watcher about its models' forward passes."""

    def tell(module, args, output) -> None:
        if not watcher.busy:
            watcher.saw_forward(module)

    models = watcher.model_objects
    # torch.compile warns about global hooks; so a compiled model gets one of its own.
    if any(hasattr(part, "_orig_mod") for model in models for part in model.modules()):
        return [model.register_forward_hook(tell) for model in models]
    return [register_module_forward_hook(tell)] if models else []


def _with_subclasses(kind):
    found = {kind}
    for child in kind.__subclasses__():
        found |= _with_subclasses(child)
    return found


def _patch(stack, owner, name, kind) -> None:
    original = vars(owner).get(name)
    if original is None or getattr(original, "watched", False):
        return
    ours = _around(kind, original)
    setattr(owner, name, ours)
    stack.callback(_put_back, owner, name, ours, original)


def _put_back(owner, name, ours, original) -> None:
    if vars(owner).get(name) is ours:  # otherwise somebody patched it after us; ours then only passes calls on
        setattr(owner, name, original)


def _patch_clip(stack, name) -> None:
    """Not public: torch's clips call a function in a closure cell; replaced there, names imported before are seen."""
    function = getattr(clip_grad, name, None)
    if function is None:
        return
    kind = f"clip:{name.removeprefix('_')}"
    for cell in function.__closure__ or ():
        original = cell.cell_contents
        if original is getattr(function, "__wrapped__", None):
            cell.cell_contents = _around(kind, original)
            stack.callback(setattr, cell, "cell_contents", original)
            return
    for owner in (clip_grad, torch.nn.utils):
        for public in {name, name.removeprefix("_")}:
            _patch(stack, owner, public, kind)


def _around(kind, original):
    @functools.wraps(original)
    def call(*args, **kwargs):
        watchers = [watcher for watcher in _active if not watcher.busy]
        if not watchers:
            return original(*args, **kwargs)
        if args and isinstance(args[0], types.GeneratorType):  # model.parameters() can be read once only
            items = list(args[0])
            seen, args = (items, *args[1:]), ((item for item in items), *args[1:])
        else:
            seen = args
        with contextlib.ExitStack() as stack:
            calls = [stack.enter_context(watcher.observe(kind, original, seen, kwargs)) for watcher in watchers]
            result = original(*args, **kwargs)
            for observed in calls:
                observed["result"] = result
            return result

    call.watched = True
    return call


def _step_begins(optimizer, args, kwargs) -> None:
    for watcher in _active:
        if not watcher.busy:
            watcher.step_begins(optimizer, args, kwargs)


def _step_ended(optimizer, args, kwargs) -> None:
    for watcher in _active:
        if not watcher.busy:
            watcher.step_ended(optimizer)
