"""A trace as a table: plain text for a terminal, HTML for a notebook, the same rows in both."""

from collections import Counter
from html import escape

import torch

from ampedu.trace.folding import Row
from ampedu.trace.records import Cast, Trace, short

HEAD = ("Module", "Call", "Casts before it", "Dtype", "Backward", "Casts in backward")
ORDER = ("weight", "buffer", "input", "activation", "gradient")
OPS = 3  # names of backward operations in a cell
MARK = {torch.float32: "#56B4E9", torch.float64: "#CC79A7", torch.float16: "#E69F00", torch.bfloat16: "#009E73"}
CELL = "text-align:left;padding:.1em .7em .1em 0;vertical-align:top;"
MONO = "font-family:monospace;"


def head(trace: Trace) -> str:
    """One line that says what was run."""
    if trace.dtype is None:
        return f"Dtypes without autocast, run on {trace.device}"
    own = "" if trace.policy == trace.device else f", with real numbers on {trace.device}"
    cache = "" if trace.cache_enabled else ", without the weight cache"
    return f"Dtypes under autocast to {str(trace.dtype).removeprefix('torch.')}, {trace.policy} policy{own}{cache}"


def summary(trace: Trace) -> list[str]:
    """The sums below the table, a sentence each."""
    number, size = trace.count(by="autocast")
    weights = trace.count(kind="weight", by="autocast")[0]
    lines = [
        f"Autocast casts: {number} ({amount(size)}), {weights} of weights; weight cache: {trace.cache_hits} hits.",
        f"Explicit casts: {trace.count(by='explicit')[0]}; inside kernels: {trace.count(by='kernel')[0]}; "
        f"in backward: {trace.count(by='backward')[0]} ({amount(trace.count(by='backward')[1])}).",
    ]
    if trace.dtype is not None:
        again = sum(op.cast.needless == "again" for op in trace.needless)
        back = len(trace.needless) - again
        lines.append(f"Needless casts: {again} repeat an earlier one, {back} go back to where the value came from.")
        lines.append(f"Float32 islands in the forward pass: {len(trace.islands)}.")
    fused = sum(op.cast.fused for op in trace.casts)
    if fused:
        lines.append(f"{fused} of these casts exist on the CPU alone: a GPU's softmax takes float16 and gives float32.")
    return lines + list(trace.notes)


def amount(size: int) -> str:
    """Bytes as text, for example "512 B" or "1.2 kB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def casts_text(casts: tuple[Cast, ...], hits: int = 0) -> str:
    """For example "2 weights, 1 activation f32→f16; 1 needless; 2 from cache"."""
    counted = Counter((short(cast.source), short(cast.target), cast.kind) for cast in casts)
    parts = []
    for source, target in dict.fromkeys((source, target) for source, target, _ in counted):
        kinds = [(kind, counted[source, target, kind]) for kind in ORDER if counted[source, target, kind]]
        listed = ", ".join(f"{number} {kind}{'s' * (number > 1)}" for kind, number in kinds)
        parts.append(f"{listed} {source}→{target}")
    needless = sum(bool(cast.needless) for cast in casts)
    parts += [f"{needless} needless"] * bool(needless) + [f"{hits} from cache"] * bool(hits)
    return "; ".join(parts)


def back_text(row: Row) -> str:
    """For example "mm ×2, sum f16; add f32"."""
    parts = []
    for dtype in row.back_dtypes:
        names = [f"{name} ×{number}" if number > 1 else name for name, kind, number in row.back if kind == dtype]
        parts.append(f"{', '.join(names[:OPS])}{', …' * (len(names) > OPS)} {short(dtype)}")
    return "; ".join(parts)


def cells(trace: Trace) -> list[tuple[str, ...]]:
    """The table's rows as text; a module's path stands in its first row only."""
    lines, before = [], None
    for row in trace.rows():
        path = row.path or "(model)"
        path += " recomputed" if row.phase == "recomputed" else ""
        call = f"{row.call} ×{row.times}" if row.times > 1 else row.call
        shown = "" if path == before else path
        before = path
        casts = casts_text(row.casts, row.hits), casts_text(row.back_casts)
        lines.append((shown, call, casts[0], row.forward_dtypes, back_text(row), casts[1]))
    return lines


def as_text(trace: Trace) -> str:
    """Aligned columns, then the sums."""
    lines = [HEAD, *cells(trace)]
    return "\n".join([head(trace), *aligned(lines), *summary(trace)])


def aligned(lines) -> list[str]:
    """Rows of texts as lines with columns of the same width."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def as_html(trace: Trace) -> str:
    """A table with headings; the dtype's cell has a colored edge beside its name."""
    heads = "".join(f'<th scope="col" style="{CELL}">{text}</th>' for text in HEAD)
    body = []
    for row, line in zip(trace.rows(), cells(trace), strict=True):
        mark = MARK.get(row.computes_in, "gray")
        styles = [MONO, MONO, "", f"{MONO}white-space:nowrap;border-left:.6em solid {mark};padding-left:.4em;", "", ""]
        row = [f'<td style="{CELL}{style}">{escape(text)}</td>' for text, style in zip(line, styles, strict=True)]
        body.append(f"<tr>{''.join(row)}</tr>")
    below = "".join(f"<br>{escape(text)}" for text in summary(trace))
    return (
        f'<div style="max-height:36em;overflow:auto"><table style="font-size:90%"><caption style="text-align:left;'
        f'font-weight:600">{escape(head(trace))}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div><p>{below.removeprefix('<br>')}</p>"
    )
