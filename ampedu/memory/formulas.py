"""The ledger of the course's transformer as formulas in batch, sequence, width and depth: no step has to run.

The largest of a few sums is the peak: what is held after an operation of the step is a polynomial with whole numbers.
`tools/memory_formulas.py` reads the polynomials off predictions and leaves out what can never be the largest.
"""

import functools
import json
from importlib import resources

import torch

from ampedu.memory.ledger import Moment

VOCABULARY, HEADS = 1000, 4
POLICIES = ("fp32", "bf16", "pure_bf16")


class Transformer(torch.nn.Module):
    """The running example: tokens of shape (batch, sequence) to logits; layers with twice the width inside."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, width)
        layer = torch.nn.TransformerEncoderLayer(width, HEADS, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        """Logits of shape (batch, sequence, VOCABULARY)."""
        return self.head(self.encoder(self.embed(tokens)))


def monomials(batch: int, sequence: int, width: int) -> tuple[int, ...]:
    """What the polynomials are made of; each comes once alone and once times depth - 1."""
    rows = batch * sequence
    return 1, width, width * width, rows, rows * width


def transformer_peak(
    batch: int, sequence: int, width: int, depth: int, policy: str = "fp32", checkpoint: bool = False
) -> Moment:
    """The peak of a step of `Transformer` with AdamW (foreach) under the CUDA policy: its phase and its bytes by row.

    The same as the peak of ``predict(Transformer(width, depth), (tokens, tokens), policy=policy, checkpoint=…)``.
    width must be a multiple of 4, the number of heads; sizes up to 512, 8192, 4096 and 64 have been looked through for
    what can be the peak. ValueError: a size below 1, or an unknown policy.
    """
    if min(batch, sequence, width, depth) < 1 or width % HEADS:
        raise ValueError(f"sizes must be at least 1 and width a multiple of {HEADS}")
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}: choose one of {', '.join(map(repr, POLICIES))}")
    once = monomials(batch, sequence, width)
    values = (*once, *((depth - 1) * value for value in once))
    moments = []
    for phase, rows in formulas()[f"{policy} checkpointed" if checkpoint else policy]:
        held = {name: sum(c * value for c, value in zip(row, values, strict=True)) for name, row in rows.items()}
        moments.append(Moment(phase, held))
    return max(moments, key=lambda moment: moment.bytes)


@functools.cache
def formulas() -> dict[str, list]:
    """{policy: [[phase, {row: coefficients of the monomials}], …]}; with " checkpointed" behind it, every layer is."""
    path = resources.files("ampedu") / "data" / "memory" / "transformer.json"
    return json.loads(path.read_text(encoding="utf-8"))
