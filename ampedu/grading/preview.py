"""What a learner can expect: the public cases, through the same steps as grading, without a secret or solutions."""

import tempfile

from ampedu.exercises import data, of_stem, stems
from ampedu.exercises.stream import PUBLIC
from ampedu.grading import notebook, selftest, slot
from ampedu.grading.batch import TIMEOUT
from ampedu.grading.confine import SandboxError
from ampedu.grading.course import Lab
from ampedu.grading.ingest import Submission, shown
from ampedu.grading.machine import MEMORY_GIB
from ampedu.grading.results import LabResult


def preview(path, lab: str | None = None) -> LabResult:
    """Grade one notebook on the public cases. lab: by default the one that it answers most of.

    Raises data.DataMissing, notebook.Unreadable, SandboxError.
    """
    bundles = {}
    for stem in stems():
        if lab in (None, stem, stem[:2]):
            try:
                bundles[stem] = data.load(stem)
            except data.DataMissing:
                continue
    if not bundles:
        raise data.DataMissing(f"there is no lab {lab!r} here. The labs are: {', '.join(stems())}.")
    opened = notebook.parse(notebook.read_file(path))
    labs = [Lab(stem, None, None, None) for stem in bundles]
    submission = Submission("preview", "", shown(path), str(path))
    chosen, located = slot.choose(submission, opened, labs)
    if not located:
        names = ", ".join(ex.answer for ex in of_stem(chosen.stem)[:3])
        raise notebook.Unreadable(f"No cell of {shown(path)} defines an answer of a lab, such as {names}.")
    with tempfile.TemporaryDirectory(prefix="ampedu-preview-") as scratch:
        try:
            return _graded(submission, chosen, bundles, selftest.choose("auto", []), scratch)
        except SandboxError:  # one's own notebook needs no protection from itself
            return _graded(submission, chosen, bundles, "none", scratch)


def _graded(submission, lab, bundles, kind, scratch):
    slot.use(slot.Settings(kind, PUBLIC, "public", TIMEOUT, int(MEMORY_GIB * 2**30), scratch), bundles)
    try:
        if kind == "bwrap":
            slot.probe(lab.stem, "def probe():\n    return []")
        return slot.grade(submission, [lab], []).result
    finally:
        slot.close()
