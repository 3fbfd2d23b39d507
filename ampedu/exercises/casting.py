"""What lab 04 calls under autocast: twenty expressions with the reason for their dtype, and the steps of small models.

Nothing here knows an answer by computing it: the reasons are text, the steps are plain torch code.
"""

import contextlib
import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F

# Expression and, for a miss, the reason for its dtype. x, w: float32 (16, 16). h: float16. ids: int64. mean, var:
# float32. All facts hold for the CUDA policy of torch 2.11 to 2.13.
EXPRESSIONS = {
    1: ("x @ w", "matmul is on the lower-precision list: both float32 factors are cast"),
    2: ("x + h", "add is on no list: torch's ordinary promotion of mixed dtypes decides"),
    3: ("F.gelu(h)", "gelu is on no list: it runs in the dtype that arrives"),
    4: ("h.softmax(-1)", "softmax is on the float32 list"),
    5: ("h.softmax(-1, dtype=torch.float16)", "softmax is listed, but a dtype that the caller names is respected"),
    6: ("h.sum()", "sum is on the float32 list"),
    7: ("h.mean()", "mean is on no list, although sum is"),
    8: ("h.exp()", "exp is on the float32 list"),
    9: ("h.exp_()", "in-place variants are never cast: the result must fit into h"),
    10: ("h ** 2", "pow is on the float32 list"),
    11: ("h * h", "mul is on no list"),
    12: ("F.layer_norm(h, (16,))", "layer_norm is on the float32 list"),
    13: (
        "F.batch_norm(h, mean, var)",
        "batch_norm is on no list: its kernel keeps the statistics in float32 by itself",
    ),
    14: ("F.scaled_dot_product_attention(x, x, x)", "the whole of attention is on the lower-precision list"),
    15: ("F.cross_entropy(h, ids)", "the listed losses are computed in float32"),
    16: ("(h - h.roll(1)).abs().mean()", "a loss written by hand is what its operations are: none of them is listed"),
    17: ("h.float() @ w", "matmul casts its inputs, whoever has just made them float32"),
    18: ("torch.cat([h, x])", "cat is on no CUDA list: it promotes mixed dtypes by itself"),
    19: ("torch.tensordot(x, w, dims=1)", "tensordot is on the promote list: the widest input decides"),
    20: ("x.double() @ w.double()", "autocast never touches float64"),
}


_spaces = itertools.count()


class Step(NamedTuple):
    """One step of a model.

    text: the call. function: of the current tensor t, the constants c and the autocast dtype. chain: whether its result
    is the next t. exact: whether its values are the same on every machine, given the same t.
    """

    text: str
    function: object
    chain: bool = False
    exact: bool = False


FINE = torch.tensor([[1.0, 1 + 2.0**-12, 1.0, 1 + 2.0**-12], [1 + 2.0**-12, 1.0, 1 + 2.0**-12, 1.0]])
CANCEL = torch.tensor([[1.0, 0, 1, 0], [-1, 1, 0, 1], [0, -1, 0, 0], [0, 0, -1, -1]])


def _linear(t, c, low):
    return F.linear(t, c.w, bias=c.b)


def _fine(t, c, low):
    # Ones with a last bit that 16 bits cannot hold: 0 if the inputs are cast, not 0 if only the result is.
    return torch.mm(FINE, CANCEL)


CHAINS = (
    Step("t = F.linear(t, w, bias=b)", _linear, chain=True, exact=True),
    Step("t = t @ w", lambda t, c, low: t @ c.w, chain=True, exact=True),
    Step("t = F.relu(t)", lambda t, c, low: F.relu(t), chain=True, exact=True),
    Step("t = t + x", lambda t, c, low: t + c.x, chain=True, exact=True),
    Step("t = F.gelu(t)", lambda t, c, low: F.gelu(t), chain=True),
    Step("t = t.softmax(-1)", lambda t, c, low: t.softmax(-1), chain=True),
    Step(
        "t = F.layer_norm(t, (4,), weight=b, bias=b)",
        lambda t, c, low: F.layer_norm(t, (4,), weight=c.b, bias=c.b),
        chain=True,
    ),
)
EXACT = (
    Step("torch.mm(fine, cancel)", _fine, exact=True),
    Step("(t + 300) ** 2", lambda t, c, low: (t + 300) ** 2, exact=True),
    Step("(t + 5000).sum()", lambda t, c, low: (t + 5000).sum(), exact=True),
    Step("F.mse_loss(t, x)", lambda t, c, low: F.mse_loss(t, c.x), exact=True),
    Step("torch.mm(x, w, out=empty)", lambda t, c, low: torch.mm(c.x, c.w, out=torch.empty(4, 4)), exact=True),
    Step("torch.addcmul(x, t, t)", lambda t, c, low: torch.addcmul(c.x, t, t), exact=True),
    Step("torch.tensordot(x, w, dims=1)", lambda t, c, low: torch.tensordot(c.x, c.w, dims=1), exact=True),
    Step("torch.index_put(x, (ids,), t)", lambda t, c, low: torch.index_put(c.x, (c.ids,), t), exact=True),
    Step("torch.linalg.multi_dot([t, w])", lambda t, c, low: torch.linalg.multi_dot([t, c.w]), exact=True),
    Step('torch.einsum("ij,jk->ik", t, w)', lambda t, c, low: torch.einsum("ij,jk->ik", t, c.w), exact=True),
    Step("x.double() @ w.double()", lambda t, c, low: c.x.double() @ c.w.double(), exact=True),
    Step("torch.cat([t, x])", lambda t, c, low: torch.cat([t, c.x]), exact=True),
)
OTHERS = (
    Step("t.mean()", lambda t, c, low: t.mean()),
    Step("t.exp()", lambda t, c, low: t.exp()),
    Step("t.to(low, copy=True).exp_()", lambda t, c, low: t.to(low, copy=True).exp_()),
    Step("torch.atan2(t, x)", lambda t, c, low: torch.atan2(t, c.x)),
    Step("torch.atan2(t.to(low), t.to(low))", lambda t, c, low: torch.atan2(t.to(low), t.to(low))),
    Step("t.softmax(-1, dtype=low)", lambda t, c, low: t.softmax(-1, dtype=low)),
    Step("F.nll_loss(F.log_softmax(t, -1), ids)", lambda t, c, low: F.nll_loss(F.log_softmax(t, -1), c.ids)),
    Step("F.scaled_dot_product_attention(x, x, x)", lambda t, c, low: F.scaled_dot_product_attention(c.x, c.x, c.x)),
    Step(
        "F.binary_cross_entropy(x.sigmoid(), x.relu() / 8)",
        lambda t, c, low: F.binary_cross_entropy(c.x.sigmoid(), c.x.relu() / 8),
    ),
    Step("F.embedding(ids, w)", lambda t, c, low: F.embedding(c.ids, c.w)),
)
STEPS = {step.text: step for step in (*CHAINS, *EXACT, *OTHERS)}


def weighed(values: torch.Tensor) -> float:
    """One number that stands for all values: their sum, each times its position, from 1."""
    flat = values.detach().double().flatten()
    return (flat * torch.arange(1, len(flat) + 1)).sum().item()


def walk(program, constants, low) -> list[str]:
    """Run the steps of a program (texts of STEPS) in order; for each the dtype and a number, or the name of an error.

    constants: an object with x, w, b, ids. low: the autocast dtype. The number is ``weighed``; it is given as
    long as the values are the same on every machine.
    """
    t, exact, seen = constants.x, True, []
    for text in program:
        step = STEPS[text]
        try:
            result = step.function(t, constants, low)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError) and str(error).startswith("04."):  # a stub
                raise
            seen.append(type(error).__name__)
            continue
        if step.chain:
            t, exact = result, exact and step.exact
        dtype = str(result.dtype).removeprefix("torch.")
        seen.append(f"{dtype} {weighed(result):g}" if step.exact and exact else dtype)
    return seen


@contextlib.contextmanager
def restored():
    """Give back the autocast state of this thread as it was, whatever the block leaves behind."""
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])
        torch.set_autocast_cache_enabled(before[2])
        torch.clear_autocast_cache()


@contextlib.contextmanager
def region(low: str | None):
    """torch.autocast("cpu") with this dtype by name, or no region for None; the state is restored in any case."""
    with restored():
        if low is None:
            yield
        else:
            with torch.autocast("cpu", dtype=getattr(torch, low)):
                yield


@contextlib.contextmanager
def strict_operations(names):
    """Custom operations that subtract two tensors of the same dtype; yields their namespace, which is new every time.

    Rules outlive the operation that they are registered for, so that no name may be used twice in a process.
    """

    def subtract(x, y):
        if x.dtype != y.dtype:
            raise RuntimeError(f"expected two tensors of the same dtype, got {x.dtype} and {y.dtype}")
        return x - y

    space = f"lab04_{next(_spaces)}"
    library = torch.library.Library(space, "FRAGMENT")
    try:
        for name in names:
            library.define(f"{name}(Tensor x, Tensor y) -> Tensor")
            library.impl(name, subtract, "CPU")
        yield space
    finally:
        library._destroy()


class BannedLoss(torch.overrides.TorchFunctionMode):
    """Refuses binary_cross_entropy in a region of torch.autocast("cpu"), as CUDA's autocast does and the CPU's not."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Raises RuntimeError for the banned loss; calls everything else."""
        if func.__name__ == "binary_cross_entropy" and torch.is_autocast_enabled("cpu"):
            raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.")
        return func(*args, **(kwargs or {}))


class Descent:
    """torch.optim.SGD with momentum, for one weight. (torch.optim loads the compiler, which takes seconds.)"""

    def __init__(self, weight: torch.nn.Parameter, lr: float, momentum: float):
        self.weight, self.lr, self.momentum = weight, lr, momentum
        self.velocity = torch.zeros_like(weight, requires_grad=False)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.weight.grad = None

    def step(self) -> None:
        """One update of the weight, in its own dtype."""
        with torch.no_grad():
            if self.weight.grad is not None:
                self.velocity = self.momentum * self.velocity + self.weight.grad
                self.weight -= self.lr * self.velocity
