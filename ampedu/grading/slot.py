"""One job slot: a process of the judge with a warm sandbox of its own. An executor calls these functions in it.

``configure`` comes first, in each process. Everything that goes in or out can be pickled: a cluster can do the same.
"""

import hashlib
import signal
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ampedu.exercises import data, spec
from ampedu.exercises.limits import TimeLimit, limited
from ampedu.grading import answers, cleaning, expected, ingest, judging, notebook, results, stage
from ampedu.grading.course import Lab
from ampedu.grading.ingest import Submission
from ampedu.grading.results import LabResult
from ampedu.grading.sandbox import Sandbox, SandboxDied, SandboxError, patience

TRIES, LOCATE_SECONDS, WARM = 2, 30.0, 2


@dataclass(frozen=True)
class Settings:
    """Of a batch.

    kind: "bwrap" or "none". timeout: seconds for a submission. memory: bytes for a unit. scratch: a folder for what the
    sandboxes need outside; whoever made it removes it.
    """

    kind: str
    secret: bytes
    secret_id: str
    timeout: float
    memory: int
    scratch: str


@dataclass(frozen=True)
class Graded:
    """What comes back of a submission: the result, and by exercise the hash and size of the answer, for comparison.

    reused: whether the result was taken over.
    """

    submission: Submission
    lab: str
    result: LabResult
    trees: dict[str, tuple[str, int]]
    reused: bool


_settings: Settings | None = None
_sandboxes: dict[str, Sandbox] = {}
_bundles: dict[str, data.Bundle] = {}


def configure(settings: Settings) -> None:
    """Prepare a process of an executor. Ctrl-C is left to the main process, which ends this one; it dies with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cleaning.die_with_parent()
    use(settings)


def use(settings: Settings, bundles: dict[str, data.Bundle] | None = None) -> None:
    """Set what the functions below work with. ``bundles``: expected answers that are not in the cache."""
    global _settings
    _settings = settings
    _bundles.clear()
    _bundles.update(bundles or {})
    judging.single_thread()


def close() -> None:
    """End the sandboxes of this process."""
    while _sandboxes:
        _sandboxes.popitem()[1].close()


def _ready(stem: str) -> Sandbox:
    """The sandbox for a lab; those of the WARM labs used last are kept."""
    sandbox = _sandboxes.pop(stem, None)
    if sandbox is None:
        if len(_sandboxes) >= WARM:
            _sandboxes.pop(next(iter(_sandboxes))).close()
        without = stage.forbidden(spec.of_stem(stem))
        seconds = int(_settings.timeout) + 30
        sandbox = Sandbox(_settings.kind, (stem,), without, _settings.memory, seconds, _settings.scratch)
    _sandboxes[stem] = sandbox
    return sandbox


def probe(stem: str, source: str):
    """What a probe sees in this slot's sandbox for a lab."""
    return _ready(stem).probe(source)


def expect(lab: Lab, id: str) -> data.ExerciseData:
    """The right and the typical wrong answers of one exercise."""
    return expected.expect(spec.load(id), lab, _settings.secret, _ready(lab.stem))


def _bundle(lab: Lab) -> data.Bundle:
    if lab.stem not in _bundles:
        bundle = expected.load(lab, _settings.secret)
        if bundle is None:
            raise expected.ExpectedError(f"the expected answers of {lab.stem} are gone from the cache. Run it again.")
        _bundles[lab.stem] = bundle
    return _bundles[lab.stem]


def grade(submission: Submission, labs: list[Lab], old: list[LabResult]) -> Graded:
    """Grade one submission for the lab among ``labs`` that it answers; take over a result in ``old`` with its key."""
    started = time.monotonic()
    shared = {
        "file": submission.shown,
        "late": submission.late,
        "sandboxed": _settings.kind == "bwrap",
        "graded_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        content = ingest.load(submission)
        shared["sha256"] = hashlib.sha256(content).hexdigest()
        opened = notebook.parse(content)
        lab, located = _located(submission, opened, labs)
    except notebook.Unreadable as error:
        lab = named(submission, labs)
        points = sum(ex.points for ex in spec.of_stem(lab.stem))
        found = LabResult(lab.stem, "unreadable", 0, points, reason=str(error), **shared)
        return Graded(submission, lab.stem, found, {}, False)
    key = _key(lab, located)
    trees = {id: (answer.normal, answer.nodes) for id, answer in located.items()}
    for item in old:
        if item.key == key and item.lab == lab.stem and item.status != "infra":
            shared |= {"graded_at": item.graded_at, "notes": list(opened.notes)}
            return Graded(submission, lab.stem, replace(item, **shared), trees, True)
    done = _exercises(lab, located, started)
    status, reason = overall(done)
    score = None if status == "infra" else sum(item.points for item in done)
    found = LabResult(
        lab.stem, status, score, sum(item.max_points for item in done), done, reason, notes=list(opened.notes),
        key=key, seconds=round(time.monotonic() - started, 3), **shared,
    )  # fmt: skip
    return Graded(submission, lab.stem, found, trees, False)


def named(submission: Submission, labs: list[Lab]) -> Lab:
    """The lab whose stem the file's name holds; else the first."""
    return next((lab for lab in labs if lab.stem in submission.shown), labs[0])


def _located(submission, opened, labs):
    try:
        return limited(LOCATE_SECONDS, lambda: choose(submission, opened, labs))
    except TimeLimit:
        text = "The code of this notebook takes too long to read. Remove what is not code."
        raise notebook.Unreadable(text) from None


def choose(submission: Submission, opened: notebook.Notebook, labs: list[Lab]):
    """The lab of which the notebook defines most answers, and the answers."""
    best = None
    for lab in [named(submission, labs), *labs]:
        located = answers.locate(opened, spec.of_stem(lab.stem))
        if best is None or len(located) > len(best[1]):
            best = lab, located
    return best


def _key(lab, located):
    parts = [str(results.FORMAT), lab.stem, _settings.secret_id, _bundle(lab).source, _settings.kind]
    parts += [str(_settings.timeout), str(_settings.memory)]
    for id, answer in sorted(located.items()):
        parts += [id, answer.name, answer.rule, answer.source, *answer.notes, *answer.review]
    digest = hashlib.sha256()
    for part in parts:
        block = part.encode("utf-8", "surrogatepass")
        digest.update(len(block).to_bytes(8, "big") + block)
    return digest.hexdigest()


def _exercises(lab, located, started):
    """All exercises, and then those once more that ran out of time: a busy machine must not cost points."""
    end = started + _settings.timeout
    done = []
    for ex in spec.of_stem(lab.stem):
        answer = located.get(ex.id)
        if answer is None:
            done.append(judging.missing(ex))
        elif time.monotonic() > end:
            text = f"It was not run: the {_settings.timeout:g} s for the whole notebook were over."
            done.append(judging.not_run(ex, answer, "timeout", text))
        else:
            done.append(_one(ex, _bundle(lab).exercises[ex.id], answer, end - time.monotonic()))
    late = [number for number, item in enumerate(done) if item.end == "timeout"]
    for count, number in enumerate(late):
        left = end - time.monotonic()
        if left > 0:
            ex = spec.load(done[number].id)
            share = left / (len(late) - count)  # no loop takes the second chance of the others
            again = _one(ex, _bundle(lab).exercises[ex.id], located[ex.id], share, patience())
            done[number] = done[number] if again.end == "timeout" else again
    return done


def _one(ex, item, answer, within, slack=1.0):
    for attempt in range(TRIES):
        try:
            observed = _ready(ex.stem).observe(
                ex, answer.source, answer.name, item.cases, within=max(1.0, within), slack=slack
            )
            return judging.judged(ex, item, answer, observed)
        except SandboxError as error:
            text = f"The sandbox failed, which says nothing of the answer: {error}"
            return judging.not_run(ex, answer, "infra", text)
        except SandboxDied:
            if attempt + 1 == TRIES:
                text = "The sandbox ended twice while it ran; is there enough memory for all jobs?"
                return judging.not_run(ex, answer, "infra", text)


def overall(done) -> tuple[str, str]:
    """The status of a lab from those of its exercises, and a sentence."""
    for end, text in (
        ("infra", "Could not be graded for a reason that is not the student's: {}. Run the command again."),
        ("timeout", "Ran out of time: {}."),
        ("crashed", "Ended its process: {}."),
    ):
        if ids := [item.id for item in done if item.end == end]:
            return end, text.format(", ".join(ids))
    return "graded", ""
