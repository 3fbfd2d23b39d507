"""What the loops of lab 06 train, and what is observed of them.

Models of a few weights and batches of small multiples of 1/4, so that float16 rounds little. Gradients stay at least
four times below float16's largest number, except in a batch that is meant to overflow: one of its targets is huge.
"""

import torch
import torch.nn.functional as F

from ampedu.exercises.casting import restored

TINY = 2.0**-26  # a loss with this factor has gradients that float16 rounds to 0, unless they are scaled
HUGE = 2**16
SCALE, LEARNING_RATE, DEFAULT_INTERVAL = 128.0, 2.0**-5, 1000


def signed(stream, low: int, high: int) -> int:
    """An integer with a magnitude between low and high and a random sign."""
    return stream.integer(low, high) * (1 - 2 * stream.bits(1))


def drawn(stream, sizes, *, infinite=(), targets=1, overflowing=0) -> list[list[list[int]]]:
    """Batches of rows [x, x, target, …], in quarters.

    sizes: rows per batch. infinite: indices of batches whose first row has a huge target, in column ``overflowing``.
    """
    batches = []
    for index, size in enumerate(sizes):
        rows = [[*(signed(stream, 2, 4) for _ in range(2)), *(signed(stream, 12, 24) for _ in range(targets))]
                for _ in range(size)]  # fmt: skip
        if index in infinite:
            rows[0][2 + overflowing] = HUGE
        batches.append(rows)
    return batches


def case(stream, sizes, *, weights=2, tiny=False, interval=DEFAULT_INTERVAL, infinite=(), targets=1, overflowing=0,
         **more) -> dict:  # fmt: skip
    """The inputs of one case: initial weights and batches in quarters, and the settings of optimizer and scaler.

    tiny: a loss of the size of TINY. interval: the growth_interval.
    """
    batches = drawn(stream, sizes, infinite=infinite, targets=targets, overflowing=overflowing)
    numbers = [signed(stream, 1, 4) for _ in range(weights)]
    settings = {"tiny": True} if tiny else {}
    settings |= {"interval": interval} if interval != DEFAULT_INTERVAL else {}
    return {"weights": numbers, "batches": batches, **settings, **more}


def unit(case: dict) -> float:
    """The factor of the loss."""
    return TINY if "tiny" in case else 1.0


def batches_of(case: dict) -> list[tuple[torch.Tensor, ...]]:
    """Per batch (x, target, …): float32 of shapes (rows, 2) and (rows, 1)."""
    tensors = [torch.tensor(rows, dtype=torch.float32) / 4 for rows in case["batches"]]
    return [(rows[:, :2].clone(), *(rows[:, i : i + 1].clone() for i in range(2, rows.shape[1]))) for rows in tensors]


def loss_of(case: dict):
    """The loss function of a case: the mean squared error, times the unit of the case."""
    factor = unit(case)

    def loss_fn(outputs, targets):
        return factor * F.mse_loss(outputs, targets)

    return loss_fn


def linear(numbers, inputs: int = 2) -> torch.nn.Linear:
    """A linear layer without bias; its weights are the numbers, in quarters."""
    weight = torch.tensor(numbers, dtype=torch.float32).reshape(-1, inputs) / 4
    layer = torch.nn.Linear(inputs, weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def sgd(case: dict, *modules, factor: float = 1.0) -> torch.optim.SGD:
    """Plain SGD for the parameters of the modules: an update is proportional to the gradient."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.SGD(parameters, lr=factor * LEARNING_RATE / unit(case))


def interval_of(case: dict) -> int:
    """The growth_interval of the scaler."""
    return case.get("interval", DEFAULT_INTERVAL)


def scaler_of(case: dict) -> torch.amp.GradScaler:
    """A scaler that starts at SCALE, times ``start`` if the case has it, in units of the case's loss."""
    start = case.get("start", 1) * SCALE / unit(case)
    return torch.amp.GradScaler("cpu", init_scale=start, growth_interval=interval_of(case))


def digits(values) -> list[float]:
    """Five significant digits of each number."""
    return [float(f"{float(value):.5g}") for value in values]


def observed(case: dict, modules, scaler, act, *args, factor: float = 1.0) -> dict:
    """Call ``act(*args)`` and say what it did.

    moved: how far each weight moved, in units of the learning rate, factor · LEARNING_RATE. scale: in units of SCALE.
    """
    parameters = [parameter for module in modules for parameter in module.parameters()]
    starts = [parameter.detach().double().clone() for parameter in parameters]
    with restored():
        act(*args)
    moved = [(new.detach().double() - old).flatten() for new, old in zip(parameters, starts, strict=True)]
    moved = torch.cat(moved) / (factor * LEARNING_RATE)
    return {"moved": digits(moved), "scale": scaler.get_scale() / SCALE * unit(case)}


class Dtypes:
    """Notes the dtypes of a module's outputs while it is called."""

    def __init__(self, module: torch.nn.Module):
        self.seen = set()
        module.register_forward_hook(lambda module, inputs, output: self.seen.add(str(output.dtype)[6:]))

    def __str__(self):
        return " ".join(sorted(self.seen)) or "none"


class TwoHeads(torch.nn.Module):
    """Two outputs of one input, each from a layer of its own: ``main`` and ``side``, both of shape (rows, 1)."""

    def __init__(self, numbers):
        super().__init__()
        self.main, self.side = linear(numbers[:2]), linear(numbers[2:])

    def forward(self, x):
        """The pair of outputs."""
        return self.main(x), self.side(x)


def in_words(case: dict) -> str:
    """The batches and the settings of a case."""
    sizes = [len(rows) for rows in case["batches"]]
    text = f"{len(sizes)} batches of {sizes[0]} rows" if len(set(sizes)) == 1 else f"batches of {sizes} rows"
    infinite = [str(number) for number, rows in enumerate(case["batches"], 1) if HUGE in rows[0]]
    if infinite:
        text += f", gradients overflow in batch {' and '.join(infinite)}"
    if "interval" in case:
        text += f", growth_interval={case['interval']}"
    return text + (", a loss of about 1e-7" if "tiny" in case else "")


def symptom(id: str, answer) -> None:
    """Print the first public case of an exercise, and what an answer does there: its result or its error."""
    from ampedu.exercises import judge, spec

    ex = spec.load(id)
    first, *_ = ex.cases()
    (outcome,) = judge.observe(ex, answer, [first])
    print(f"{answer.__name__} on {ex.describe(first)}\n    {_outcome(id, ex, outcome)}")


def _outcome(id, ex, outcome):
    from ampedu.exercises import judge

    if judge.is_stub(ex, outcome):
        return f"waits for {id}"
    if "value" not in outcome:
        return judge.describe_outcome(outcome)
    value = outcome["value"]
    words = [f"moved {' '.join(f'{number:.3g}' for number in value['moved'])}"]
    words += [f"learning rate × {value['rate']:g}"] if "rate" in value else []
    return ", ".join([*words, f"scale × {value['scale']:g}"])
