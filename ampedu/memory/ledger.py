"""The ledger: rows of bytes, the moments of a step, and how it is shown."""

from collections import Counter
from dataclasses import dataclass, field, replace
from html import escape

from ampedu.memory.tracker import CASTS, PHASES, ROWS, Tracker

MIB = 2**20
NAMES = {"fp32": "float32", "bf16": "autocast to bfloat16", "fp16": "autocast to float16", "pure_bf16": "pure bfloat16"}
CELL = "text-align:{};padding:.1em .9em .1em 0;vertical-align:top"


@dataclass(frozen=True)
class Row:
    """One kind of memory. bytes: the most that it takes at any moment. at_peak: what it takes at the step's peak."""

    name: str
    bytes: int
    at_peak: int
    meaning: str


@dataclass(frozen=True)
class Moment:
    """What is held at one moment of the step: bytes by row."""

    name: str
    rows: dict[str, int]

    @property
    def bytes(self) -> int:
        """Of all rows together."""
        return sum(self.rows.values())


@dataclass(frozen=True, eq=False)
class Ledger:
    """Where the memory of a training step goes. All figures are bytes; 1 MiB = 2**20 bytes.

    rows: what there is, each at its own largest. moments: "start", "forward end", and the peaks of the three phases
    "forward", "backward" and "optimizer step". by_module, by_dtype: the saved activations at the end of the forward
    pass, by the module that saved them first ("loss" outside of the model) and by dtype such as "float32".
    saved_casts: weight casts that backward needs, which are alive then too. parameters: how many numbers are trained
    or not. allocator_peak: what the allocator said; None for a prediction.
    """

    kind: str
    plan: object = field(repr=False)
    parameters: int
    rows: tuple[Row, ...]
    moments: dict[str, Moment]
    by_module: dict[str, int]
    by_dtype: dict[str, int]
    saved_casts: int
    allocator_peak: int | None = None

    def __getitem__(self, name: str) -> int:
        """Bytes of a row at its own largest; 0 for a row that this step does not have."""
        if name not in ROWS:
            raise KeyError(f"no row is called {name!r}: the rows are {', '.join(ROWS)}")
        return next((row.bytes for row in self.rows if row.name == name), 0)

    @property
    def total(self) -> int:
        """The sum of the rows: more than is ever held at once."""
        return sum(row.bytes for row in self.rows)

    @property
    def peak(self) -> int:
        """The most that is held at once: what the allocator said, or else the largest sum of tensors."""
        return self.moments[self.peak_phase].bytes if self.allocator_peak is None else self.allocator_peak

    @property
    def peak_phase(self) -> str:
        """The phase in which most is held."""
        return max((self.moments[phase] for phase in PHASES), key=lambda moment: moment.bytes).name

    @property
    def bytes_per_parameter(self) -> float:
        """The peak, divided by the number of parameters."""
        return self.peak / self.parameters

    @property
    def title(self) -> str:
        """What the ledger is of."""
        plan = self.plan
        lists = f", {plan.device_policy.upper()} policy" if plan.policy in ("bf16", "fp16") else ""
        optimizer = plan.optimizer if isinstance(plan.optimizer, str) else "an optimizer of yours"
        how = f" ({plan.implementation})" if isinstance(plan.optimizer, str) else ""
        kept = f", {len(plan.blocks)} modules checkpointed" if plan.blocks else ""
        steps = f", {plan.accumulate} micro-batches" if plan.accumulate > 1 else ""
        return f"Memory of a step, {self.kind}: {NAMES[plan.policy]}{lists}, {optimizer}{how}{kept}{steps}"

    def with_allocator(self, peak: int) -> "Ledger":
        """The same ledger with the allocator's peak in bytes."""
        return replace(self, allocator_peak=peak)

    def picture(self):
        """What is held at the peak of forward, backward and optimizer step, as stacked bars."""
        from ampedu.plots.memory import memory_timeline

        return memory_timeline(self)

    def table(self) -> str:
        """The rows as plain text, with the sums below."""
        lines = [HEAD, *_cells(self)]
        widths = [max(len(line[k]) for line in lines) for k in range(len(HEAD))]
        text = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:-1], widths[1:-1]), line[-1]]) for line in lines
        ]
        return "\n".join([self.title, *text, *_sums(self)])

    __str__ = table

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": self.table(), "text/html": _html(self)}


HEAD = ("row", "bytes", "MiB", "MiB at the peak", "what it is")


def mib(size: int) -> str:
    """Bytes in MiB, for example "3.25 MiB"; below a hundredth of it in bytes."""
    return f"{size / MIB:,.2f} MiB" if abs(size) >= MIB / 100 else f"{size:,} B"


def recorded(step, tracker: Tracker, kind: str = "predicted") -> Ledger:
    """Run a step under the tracker and make its ledger. The optimizer must have its state already."""
    undo = step.label_gradients(tracker)
    try:
        with tracker:
            for row, tensors in step.tensors().items():
                tracker.know(tensors, row)
            tracker.forget_peaks()
            start = dict(tracker.held)
            end = step.run(tracker)
    finally:
        undo()
    moments = {"start": Moment("start", start), "forward end": Moment("forward end", end["held"])}
    moments |= {phase: Moment(phase, tracker.peaks[phase]) for phase in PHASES}
    most = max((moments[phase] for phase in PHASES), key=lambda moment: moment.bytes).rows
    rows = [Row(name, tracker.most[name], most.get(name, 0), text) for name, text in ROWS.items() if tracker.most[name]]
    modules, dtypes = Counter(), Counter()
    for module, dtype, size in end["saved"]:
        modules[module] += size
        dtypes[dtype] += size
    return Ledger(
        kind=kind,
        plan=step.plan,
        parameters=sum(weight.numel() for weight in step.model.parameters()),
        rows=tuple(rows),
        moments=moments,
        by_module=dict(modules),
        by_dtype=dict(dtypes),
        saved_casts=end["held"].get(CASTS, 0),
    )


def reconcile(predicted: Ledger, measured: Ledger) -> str:
    """Prediction beside measurement, row by row, in bytes, with the error in percent of the measurement."""
    names = [name for name in ROWS if predicted[name] or measured[name]]
    pairs = [(name, predicted[name], measured[name]) for name in names]
    pairs += [
        (f"peak of {name}", predicted.moments[name].bytes, measured.moments[name].bytes)
        for name in predicted.moments
        if name in PHASES
    ]
    whose = "tensors" if measured.allocator_peak is None else "allocator"
    pairs.append((f"peak of the step ({whose})", predicted.peak, measured.peak))
    wide = max(len(name) for name, _, _ in pairs)
    lines = [f"{'':{wide}}  {'predicted':>15}  {'measured':>15}  error"]
    for name, ours, theirs in pairs:
        error = f"{100 * (ours - theirs) / theirs:+.2f} %" if theirs else "not measured"
        lines.append(f"{name:{wide}}  {ours:>15,}  {theirs:>15,}  {error}")
    return "\n".join(lines)


def _cells(ledger) -> list[tuple[str, ...]]:
    return [
        (row.name, f"{row.bytes:,}", f"{row.bytes / MIB:,.2f}", f"{row.at_peak / MIB:,.2f}", row.meaning)
        for row in ledger.rows
    ]


def _sums(ledger) -> list[str]:
    """The sentences below the table."""
    said = [f"{phase} {mib(ledger.moments[phase].bytes)}" for phase in PHASES]
    lines = [
        f"Sum of the rows: {mib(ledger.total)}; they are never all there at once.",
        f"Peak of the tensors: {mib(ledger.moments[ledger.peak_phase].bytes)}, in {ledger.peak_phase} "
        f"(peaks: {', '.join(said)}).",
    ]
    if ledger.allocator_peak is not None:
        rest = ledger.allocator_peak - ledger.moments[ledger.peak_phase].bytes
        lines.append(f"Peak by the allocator: {mib(ledger.allocator_peak)}, {mib(rest)} more than in tensors.")
    lines.append(f"Peak per parameter: {ledger.bytes_per_parameter:,.2f} B, with {ledger.parameters:,} parameters.")
    dtypes = ", ".join(f"{name} {mib(size)}" for name, size in sorted(ledger.by_dtype.items()))
    if dtypes:
        lines.append(f"Saved activations by dtype: {dtypes}.")
    return lines


def _html(ledger) -> str:
    sides = ("left", "right", "right", "right", "left")
    heads = "".join(
        f'<th scope="col" style="{CELL.format(side)}">{name}</th>' for name, side in zip(HEAD, sides, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{CELL.format(s)}">{escape(text)}</td>' for text, s in zip(line, sides, strict=True))
        + "</tr>"
        for line in _cells(ledger)
    )
    caption = f'<caption style="text-align:left;font-weight:600">{escape(ledger.title)}</caption>'
    return (
        f'<table style="font-size:90%">{caption}'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table><p>{'<br>'.join(map(escape, _sums(ledger)))}</p>"
    )
