"""What autocast does with one operation: on four devices, in two versions of torch, by the documentation, and why."""

import difflib
import functools
import importlib.resources
import json
import re
from dataclasses import dataclass

import torch

from ampedu.policy import DEVICES, Policy, ProbeError, autocast_policy, compare, probe
from ampedu.policy.calls import call_for

# Operations that are on no list, and that people ask for: a call of each, to show that they follow their input.
UNLISTED = {
    **{name: (f"F.{name}(x)", (3, 4)) for name in ("dropout", "gelu", "relu", "silu", "sigmoid", "tanh", "logsigmoid")},
    **{
        name: (f"torch.{name}(x)", (3, 4))
        for name in ("abs", "cos", "erf", "exp2", "mean", "sin", "sqrt", "std", "var")
    },
    "add": ("x + y", (3, 4), (3, 4)),
    "mul": ("x * y", (3, 4), (3, 4)),
    "embedding": ("F.embedding(torch.tensor([0, 2], device=device), x)", (3, 4)),
    "instance_norm": ("F.instance_norm(x)", (1, 2, 6)),
    "avg_pool2d": ("F.avg_pool2d(x, 2)", (1, 2, 6, 6)),
    "max_pool2d": ("F.max_pool2d(x, 2)", (1, 2, 6, 6)),
}
# What people call an operation, without dots, capitals and underscores, and the names under which torch lists it.
SPELLINGS = {
    "@": ("matmul",),
    "**": ("pow",),
    "square": ("pow",),
    "attention": ("scaled_dot_product_attention",),
    "sdpa": ("scaled_dot_product_attention",),
    "bce": ("binary_cross_entropy",),
    "bceloss": ("binary_cross_entropy",),
    "bcewithlogitsloss": ("binary_cross_entropy_with_logits",),
    "crossentropy": ("cross_entropy", "cross_entropy_loss"),
    "crossentropyloss": ("cross_entropy", "cross_entropy_loss"),
    "gridsample": ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
    "interpolate": ("upsample_bilinear2d", "upsample_nearest2d"),
    "kldivloss": ("kl_div",),
    "multidot": ("linalg_multi_dot",),
}
REASONS = {
    Policy.lower_precision: "a sum of products: matrix units take 16-bit inputs, and add up in float32",
    Policy.float32: "in 16 bits its result would lose range or digits",
    Policy.float32_set_dtype: "adds up many numbers: it reads 16 bits and gives a float32 result (dtype=float32)",
    Policy.promote_widest: "its tensors must share one dtype: the widest of them wins",
    Policy.banned: "the log of a saturated 16-bit sigmoid is infinite: use binary_cross_entropy_with_logits",
    None: "on no list: it runs in the dtype that arrives",
}
CLOSER_REASONS = (  # by the name, for operations that some device runs in float32
    (r"exp|pow|cosh|sinh|tan|reciprocal|rsqrt|erfinv", "its result grows fast: past 65504, float16 has only infinity"),
    (r"log\d*|log1p", "near zero it turns small errors of its input into large ones"),
    (r"acos|asin", "steep at -1 and 1, where it turns small errors of its input into large ones"),
    (r".*softmax|logsumexp|softplus", "made of exponentials and their sum"),
    (r".*(layer|group|rms|batch)_norm", "made of means of squares, and a float16 square overflows at 256"),
    (r".*(loss|entropy|kl_div).*|normalize|.*norm|dist|.dist|cosine_similarity", "adds up many terms, large or tiny"),
    (r"cumprod|prod", "products of many factors leave float16's range on either side"),
    (r".*upsample.*|grid_sampler.*", "mixes neighbors with weights that 16 bits round"),
    (
        r"fft_.*|linalg_.*|stft|.*(cholesky|inverse|svd|qr|solve|geqrf|orm|pool|pad).*",
        "few devices have 16-bit kernels for it",
    ),
)


class UnknownOperationError(ValueError):
    """No operation of that name is known here; the text names some that are close."""


@dataclass(frozen=True)
class OnDevice:
    """One device. documented, found, other: policy by the documentation, in the installed torch, in `other_version()`.

    None: it is on no list there. why: of a difference between documentation and torch; empty where there is none.
    """

    device: str
    documented: Policy | None
    found: Policy | None
    other: Policy | None
    why: str = ""


@dataclass(frozen=True)
class Operation:
    """name as it was looked up. families: its names in torch. expression, shapes: a call of it, for `probe`; or ""."""

    name: str
    families: tuple[str, ...]
    devices: tuple[OnDevice, ...]
    expression: str
    shapes: tuple[tuple[int, ...], ...]
    reason: str

    @property
    def code(self) -> str:
        """A line that can be run: the dtype of the call under the CUDA policy."""
        listed = "".join(f", {shape}" for shape in self.shapes)
        return f'probe("{self.expression}"{listed}, device="cuda")' if self.expression else ""


def known() -> tuple[str, ...]:
    """All names that can be looked up, sorted: what some device lists, documented names, and common unlisted ones."""
    return tuple(sorted(set(_names().values())))


def look_up(name: str) -> Operation:
    """The operation of a name such as "softmax", "F.softmax", "nn.Softmax", "torch.mm" or "@".

    UnknownOperationError: no such operation; functions made of others, such as nn.Transformer, are not among them.
    """
    shown = _resolve(name)
    families = SPELLINGS.get(_plain(shown), (shown,))
    devices = tuple(_on(device, families) for device in DEVICES)
    expression, shapes = _call(families, devices)
    return Operation(shown, families, devices, expression, shapes, _reason(families, devices))


def results(operation: Operation, device: str, dtype: torch.dtype = torch.float16) -> tuple[str, str]:
    """Dtype of the operation's call from float32 inputs, and from inputs in the autocast dtype; by `probe`.

    "raises" where it is banned, "unknown" where fake tensors cannot run it or no call is known.
    """
    policy = next(on.found for on in operation.devices if on.device == device)
    if policy is Policy.banned:
        return "raises", "raises"
    if not operation.expression:
        return "unknown", "unknown"
    calls = (tuple((shape, given) for shape in operation.shapes) for given in (torch.float32, dtype))
    return tuple(_probed(operation.expression, shapes, device, dtype) for shapes in calls)


@functools.cache
def _probed(expression, shapes, device, dtype):
    try:
        return str(probe(expression, *shapes, device=device, dtype=dtype)).removeprefix("torch.")
    except ProbeError:
        return "unknown"


def other_version() -> str:
    """The version of torch that the installed one is compared with: the newest recorded one that differs from it."""
    installed = torch.__version__.split("+")[0]
    versions = sorted(_recorded(), key=lambda text: [int(part) for part in text.split(".")])
    return [version for version in versions if version != installed][-1]


def _recorded() -> dict:
    """{version: {device: {policy: [families]}}}, as tools/record_policy.py wrote it under each version of torch."""
    file = importlib.resources.files("ampedu") / "data" / "autocast_recorded.json"
    return json.loads(file.read_text(encoding="utf-8"))["versions"]


@functools.cache
def _other(device: str) -> dict[str, Policy]:
    lists = _recorded()[other_version()][device]
    return {family: Policy(policy) for policy, families in lists.items() for family in families}


@functools.cache
def _found(device: str) -> dict[str, Policy]:
    """{family: Policy}; all overloads of an operation have the same one, which a test checks."""
    return {operation.partition(".")[0]: policy for operation, policy in autocast_policy(device).items()}


@functools.cache
def _rows(device: str):
    return tuple(compare(device))


@functools.cache
def _names() -> dict[str, str]:
    """{name without capitals and underscores: name}."""
    names = {row.name for device in DEVICES for row in _rows(device)}
    names |= {family for device in DEVICES for family in (*_found(device), *_other(device))}
    names = {name for name in names | set(UNLISTED) if not name.startswith("__")}
    names -= {"cross_entropy_loss", "linalg_multi_dot"}  # they stand under the names that people use
    return {_plain(name): name for name in sorted(names | {"interpolate", "multi_dot"})}


def _plain(name: str) -> str:
    return name if name in SPELLINGS else re.sub(r"[^a-z0-9@*]", "", name.lower())


def _resolve(name: str) -> str:
    text = name.strip().removesuffix("()")
    plain = _plain(text.rpartition(".")[2])
    tries = (plain, re.sub(r"\dd$", "", plain), plain.removesuffix("loss"), plain + "loss")
    for attempt in tries:
        if attempt in _names():
            return _names()[attempt]
    if plain in SPELLINGS:
        return SPELLINGS[plain][0]
    close = difflib.get_close_matches(plain, _names(), n=3)
    hint = f" Do you mean {', '.join(_names()[match] for match in close)}?" if close else ""
    raise UnknownOperationError(f"no operation called {name.strip()!r} is known here.{hint}")


def _on(device: str, families) -> OnDevice:
    rows = [
        row
        for row in _rows(device)
        if row.name in families or any(operation.partition(".")[0] in families for operation in row.operations)
    ]
    documented = next((row.documented for row in rows if row.documented), None)
    why = "; ".join(dict.fromkeys(row.why for row in rows if row.why))
    found, other = (
        next((policies[family] for family in families if family in policies), None)
        for policies in (_found(device), _other(device))
    )
    return OnDevice(device, documented, found, other, why)


def _call(families, devices):
    for row in _rows("cuda"):
        if row.name in families and row.expression:
            return row.expression, row.shapes
    for family in families:
        if family in UNLISTED:
            return UNLISTED[family][0], UNLISTED[family][1:]
        overloads = [name for on in devices for name in autocast_policy(on.device) if name.partition(".")[0] == family]
        for name in (*overloads, family):  # family: it may be listed in the other version only
            call = call_for(name)
            if call is not None:
                return call.expression, call.shapes
    return "", ()


def _reason(families, devices) -> str:
    policies = [on.found or on.documented or on.other for on in devices]
    policy = next((policy for policy in policies if policy), None)
    if policy in (Policy.float32, Policy.float32_set_dtype):
        for pattern, reason in CLOSER_REASONS:
            if any(re.fullmatch(pattern, family) for family in families):
                return reason
    return REASONS[policy]
