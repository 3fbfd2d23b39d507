"""How many casts the weight cache saves: the same model counted with it and without it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import torch

from ampedu.trace.records import Trace
from ampedu.trace.run import trace_dtypes
from ampedu.trace.table import aligned, amount


@dataclass(frozen=True, repr=False)
class Census:
    """The casts of a run with autocast's weight cache, and of the same run without it. Shows itself as a table."""

    cached: Trace
    uncached: Trace

    @property
    def casts(self) -> int:
        """Casts that autocast made with the cache."""
        return self.cached.count(by="autocast")[0]

    @property
    def casts_without(self) -> int:
        """Casts that autocast made without the cache."""
        return self.uncached.count(by="autocast")[0]

    @property
    def saved(self) -> int:
        """Casts that the cache saved."""
        return self.casts_without - self.casts

    @property
    def saved_bytes(self) -> int:
        """Bytes that these casts would have written."""
        return self.uncached.count(by="autocast")[1] - self.cached.count(by="autocast")[1]

    def rows(self) -> list[tuple[str, str, str]]:
        """Heading, with the cache, without it."""
        both = self.cached, self.uncached
        found = [("", "with the cache", "without")]
        for kind in ("weight", "input", "activation"):
            counts = [trace.count(kind=kind, by="autocast") for trace in both]
            found.append((f"casts of {kind}s", *(f"{number} ({amount(size)})" for number, size in counts)))
        for by, text in (("autocast", "all casts by autocast"), ("backward", "casts in backward")):
            counts = [trace.count(by=by) for trace in both]
            found.append((text, *(f"{number} ({amount(size)})" for number, size in counts)))
        found.append(("hits of the cache", *(str(trace.cache_hits) for trace in both)))
        return found

    def __repr__(self) -> str:
        return "\n".join([*aligned(self.rows()), self._sum()])

    def _sum(self) -> str:
        return f"The weight cache saved {self.saved} casts, {amount(self.saved_bytes)}."

    def _repr_html_(self) -> str:
        first, *rows = self.rows()
        heads = "".join(f'<th scope="col" style="text-align:left">{escape(text)}</th>' for text in first)
        body = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(row[0])}</th>'
            + "".join(f'<td style="text-align:left">{escape(text)}</td>' for text in row[1:])
            + "</tr>"
            for row in rows
        )
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table><p>{escape(self._sum())}</p>"


def cast_census(model, *inputs, device_policy=None, dtype=torch.float16, loss=None, backward=True) -> Census:
    """Run the model twice, with and without autocast's weight cache, and count the casts. Arguments: trace_dtypes."""
    options = {"device_policy": device_policy, "dtype": dtype, "loss": loss, "backward": backward}
    if dtype is None:
        raise ValueError("without autocast there is no cast to count: give dtype=torch.float16 or torch.bfloat16")
    return Census(trace_dtypes(model, *inputs, **options), trace_dtypes(model, *inputs, cache_enabled=False, **options))
