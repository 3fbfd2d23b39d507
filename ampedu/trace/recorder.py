"""Watches operations below autograd and autocast, where the casts that autocast adds are operations like others."""

import threading
from dataclasses import dataclass, replace

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.weak import WeakTensorKeyDictionary

from ampedu.policy import DEVICES, Policy, PolicyError, autocast_policy
from ampedu.trace import frames
from ampedu.trace.names import Names
from ampedu.trace.records import Cast, ModuleCall, Op
from ampedu.trace.state import AsBefore


@dataclass(frozen=True)
class Value:
    """What is known of a tensor: the value it holds, and where that comes from."""

    token: int  # tensors with the same token hold the same numbers in the same dtype
    version: int
    kind: str
    name: str
    group: int  # call that made it
    before: torch.dtype | None = None  # of the value from which it was cast
    weight_cast: str = ""  # name of the weight of which this is autocast's low-precision copy


class Recorder(TorchDispatchMode):
    """Records operations while it is entered. phase is set by the caller; backward is recognized by itself."""

    def __init__(self, names: Names, low: torch.dtype | None, device: str, policy: str):
        super().__init__()
        self.names, self.low, self.device = names, low, device
        self.policy = policy
        self.rules = _rules(policy)
        self.kept: AsBefore | None = None
        self.phase = "forward"
        self.ops: list[Op] = []
        self.modules: list[ModuleCall] = []
        self.enabled = False  # whether an autocast region is open at the level of Python
        self.values = WeakTensorKeyDictionary()
        self.done: set = set()
        self.hits: set[tuple[str, int]] = set()
        self.by_sequence: dict[int, int] = {}
        self.stacks: dict[int, list[str]] = {}
        self.tokens = self.group = self.calls = 0
        self.place, self.place_name, self._computed = None, "", False
        self.undo: list = []

    def __enter__(self):
        self.undo = [
            register_module_forward_pre_hook(self._enter_module).remove,
            register_module_forward_hook(self._leave_module, always_call=True).remove,
        ]
        original = torch.set_autocast_enabled
        owner = threading.get_ident()

        def set_autocast_enabled(device, enabled):
            if device == self.device and threading.get_ident() == owner:
                self.enabled = enabled
            return original(device, enabled)

        torch.set_autocast_enabled = set_autocast_enabled
        self.undo.append(lambda: setattr(torch, "set_autocast_enabled", original))
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            for undo in self.undo:
                undo()
            self.place = None  # a frame keeps its variables alive

    def _watching(self) -> bool:
        """Whether this thread runs under the recorder: hooks of modules see all threads."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def _enter_module(self, module, args):
        if self._watching():
            self.calls += 1
            self.kept.keep_module(module)
            stack = self.stacks.setdefault(threading.get_ident(), [])
            stack.append(self.names.path(module, stack[-1] if stack else ""))

    def _leave_module(self, module, args, output):
        stack = self.stacks.get(threading.get_ident())
        if stack and self._watching():
            self.calls += 1
            path = stack.pop()
            dtypes = tuple(tensor.dtype for tensor in tensors(output))
            self.modules.append(ModuleCall(path, type(module).__name__, dtypes))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = list(tensors((args, kwargs)))
        before = [(tensor, self._value(tensor)) for tensor in given]
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        sequence = torch._C._autograd._get_sequence_nr() - 1
        result = func(*args, **kwargs)
        made = list(tensors(result))
        op = self._operation(func, before, made, node, sequence)
        self.ops.append(op)
        self._remember(func, op, before, made)
        return result

    def _operation(self, func, before, made, node, sequence) -> Op:
        name = func.name().removeprefix("aten::").split(".")[0]
        recomputed = node is not None and torch.is_grad_enabled()
        op = Op(
            index=len(self.ops),
            name=name,
            phase=self.phase,
            module="",
            call=name,
            group=self.group,
            inputs=tuple(tensor.dtype for tensor, _ in before),
            outputs=tuple(tensor.dtype for tensor in made),
            kinds=tuple(value.kind for _, value in before),
            view=bool(made) and all(r.alias_info and not r.alias_info.is_write for r in func._schema.returns),
            recomputed=recomputed,
        )
        if node is not None and not recomputed:
            op = self._backward(op, node)
        else:
            stack = self.stacks.get(threading.get_ident())
            called = self._call(before, not op.view and name != "_to_copy")
            module = stack[-1] if stack else ("loss" if self.phase == "loss" else "")
            known = frames.is_operation(called) or (name == "_to_copy" and called in frames.EXPLICIT)
            op = replace(op, module=module, call=called if known else name, group=self.group)
            self.by_sequence.setdefault(sequence, op.index)
            op = replace(op, hits=self._hits(before))
        cast = self._cast(op, before, made)
        return op if cast is None else replace(op, cast=cast)

    def _call(self, before, computes) -> str:
        """Name of the call in Python to which an operation belongs; starts a new group where a new call begins."""
        frame = frames.caller()
        place = (frame, None if frame is None else frame.f_lasti, self.calls)
        same = self.place is not None and place[0] is self.place[0] and place[1:] == self.place[1:]
        if same and self._computed and before:
            # A loop that repeats one call: nothing of the last one is used, a weight's cast is from the cache.
            same = any(value.group == self.group or value.weight_cast for _, value in before)
        if not same:
            self.group += 1
            self.place = place
            self.place_name = "" if frame is None else frames.called(frame.f_code, frame.f_lasti)
            self._computed = False
        self._computed = self._computed or computes
        return self.place_name

    def _backward(self, op: Op, node) -> Op:
        self.place = None
        self.group += 1
        label = node.name().removeprefix("torch::autograd::")
        if label == "AccumulateGrad":
            name = self.names.parameter(node.variable)
            return replace(op, node=label, module=name.rpartition(".")[0], call=f".grad of {name or 'a leaf'}")
        number = node._sequence_nr()
        if number not in self.by_sequence:  # a node made after its operation, as for changes of views in place
            number = max((n for n in self.by_sequence if n <= number), default=None)
        if number is None:
            return replace(op, node=label, module="unknown")
        forward = self.ops[self.by_sequence[number]]
        return replace(op, node=label, module=forward.module, call=forward.call, group=forward.group, of=forward.index)

    def _hits(self, before) -> tuple[str, ...]:
        weights = {value.weight_cast: value.group for _, value in before if value.weight_cast}
        hits = {(name, self.group) for name, group in weights.items() if group != self.group}
        new = hits - self.hits  # a call that uses the weight at each of its steps asked the cache once
        self.hits |= new
        return tuple(sorted(name for name, _ in new))

    def _cast(self, op: Op, before, made) -> Cast | None:
        if op.name != "_to_copy" or len(before) != 1 or len(made) != 1:
            return None
        (source, value), target = before[0], made[0]
        if not (source.is_floating_point() and target.is_floating_point()) or source.dtype == target.dtype:
            return None
        key = value.token, target.dtype
        needless = "again" if key in self.done else "back" if value.before == target.dtype else ""
        needless = "" if op.recomputed else needless
        self.done.add(key)
        if op.of is not None or op.node:
            by, kind = "backward", "gradient"
            forward = self.ops[op.of].cast if op.of is not None else None
            name = forward.name if forward is not None else ""
            fused = forward is not None and forward.fused
            return Cast(source.dtype, target.dtype, kind, name, by, target.nbytes, needless, fused)
        if self.place_name in frames.EXPLICIT:
            by = "explicit"
        elif self.enabled and value.group != self.group and self._listed(target.dtype):
            by = "autocast"
        else:
            by = "kernel"
        # ATen's softmax(half, dtype=float32) is one kernel on a GPU; with bfloat16 it copies there too.
        softmax = self.place_name in ("softmax", "log_softmax") and source.dtype == torch.float16
        fused = softmax and by == "autocast" and (self.policy, self.device) == ("cuda", "cpu")
        return Cast(source.dtype, target.dtype, value.kind, value.name, by, target.nbytes, needless, fused)

    def _listed(self, target) -> bool:
        """Whether autocast may cast to this dtype in the running call, as far as its lists name the call."""
        rule = self.rules.get(self.place_name)
        if rule is Policy.lower_precision:
            return target == self.low
        return target == torch.float32 or rule not in (Policy.float32, Policy.float32_set_dtype)

    def _value(self, tensor) -> Value:
        version = 0 if tensor.is_inference() else tensor._version
        value = self.values.get(tensor)
        if value is None:
            kind, name = self.names.tensor(tensor)
            if kind == "activation" and self.phase == "backward":
                kind = "gradient"
            value = self._new(version, kind, name, -1)
        elif value.version != version:
            value = replace(value, version=version, token=self._token(), before=None, weight_cast=value.weight_cast)
        else:
            return value
        self.values[tensor] = value
        return value

    def _new(self, version, kind, name, group, **more) -> Value:
        return Value(self._token(), version, kind, name, group, **more)

    def _token(self) -> int:
        self.tokens += 1
        return self.tokens

    def _remember(self, func, op: Op, before, made):
        """Notes for each result what it holds: the value of its input, a part of it, a cast of it or something new."""
        first, origin = before[0] if before else (None, None)
        for tensor in made:
            if any(tensor is known for known, _ in before):
                continue  # changed in place: its version says so
            version = 0 if tensor.is_inference() else tensor._version
            if op.view and origin is not None:
                whole = tensor.numel() == first.numel() and tensor.dtype == first.dtype
                token = origin.token if whole else self._token()
                keep = origin if origin.kind in ("weight", "buffer", "input") else replace(origin, group=op.group)
                value = replace(keep, token=token, version=version, weight_cast="")
            elif op.cast is not None:
                kept = op.cast.by == "autocast" and op.cast.kind == "weight" and op.cast.target == self.low
                kind = "gradient" if op.cast.kind == "gradient" else "activation"
                value = self._new(version, kind, "", op.group, before=op.cast.source)
                value = replace(value, weight_cast=op.cast.name if kept else "")
            else:
                kind = "gradient" if op.phase == "backward" and not op.recomputed else "activation"
                value = self._new(version, kind, "", op.group)
            self.values[tensor] = value


def _rules(policy: str) -> dict[str, Policy]:
    """The lists of a policy; nothing if there is none, or if this torch does not let it be read."""
    try:
        return autocast_policy(policy) if policy in DEVICES else {}
    except PolicyError:
        return {}


def tensors(item):
    """The tensors in nested tuples, lists and dictionaries, in order."""
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, (tuple, list)):
        for part in item:
            yield from tensors(part)
    elif isinstance(item, dict):
        for part in item.values():
            yield from tensors(part)
