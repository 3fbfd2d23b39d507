"""What a class got right and wrong, as numbers: the content of the class report."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ampedu.grading.results import ExerciseInfo, LabResult, Run, StudentResult

JUDGED = ("graded", "timeout", "crashed")  # in these, the exercises say something of the class
MOST_BARS = 11


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram: the points it stands for, from first to last, and how many students have them."""

    first: int
    last: int
    count: int


@dataclass(frozen=True)
class Distribution:
    """Scores of one lab. scored: students with a score; median: None without any."""

    lab: str
    max_score: int
    scored: int
    median: float | None
    full: int
    bars: list[Bar]


@dataclass(frozen=True)
class Difficulty:
    """One exercise: how many answers were judged, and how they ended."""

    info: ExerciseInfo
    judged: int
    passed: int
    failed: int
    open: int

    @property
    def share(self) -> float:
        """Passed, as a share of judged."""
        return self.passed / self.judged if self.judged else 0.0


@dataclass(frozen=True)
class Misconception:
    """A recognized wrong answer: in which exercise, the sentence for it, how many gave it, of how many."""

    info: ExerciseInfo
    message: str
    count: int
    judged: int


@dataclass(frozen=True)
class Flag:
    """Something that a person should look at."""

    student: StudentResult
    exercise: str
    reason: str


@dataclass(frozen=True)
class Trouble:
    """A lab of a student that was not graded to the end."""

    student: StudentResult
    lab: LabResult


@dataclass(frozen=True)
class ClassData:
    """Everything that the class report shows. other: failures that no known mistake explains, by exercise id."""

    distributions: list[Distribution]
    difficulties: list[Difficulty]
    misconceptions: list[Misconception]
    other: list[tuple[ExerciseInfo, int]]
    flags: list[Flag] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    absent: list[StudentResult] = field(default_factory=list)


def collect(run: Run, students: list[StudentResult]) -> ClassData:
    """Count everything."""
    infos = {info.id: info for info in run.exercises}
    verdicts, mistakes, unexplained = defaultdict(Counter), Counter(), Counter()
    messages = {}
    for item in (x for s in students for lab in s.labs if lab.status in JUDGED for x in lab.exercises):
        if item.id not in infos or item.points is None or item.verdict == "not judged":
            continue
        verdicts[item.id][item.verdict] += 1
        if item.verdict == "failed" and item.mutant:
            mistakes[item.id, item.mutant] += 1
            messages[item.id, item.mutant] = item.message
        elif item.verdict == "failed":
            unexplained[item.id] += 1
    difficulties = [_difficulty(info, verdicts[info.id]) for info in run.exercises]
    judged = {row.info.id: row.judged for row in difficulties}
    order = {info.id: place for place, info in enumerate(run.exercises)}
    return ClassData(
        [_distribution(lab, students) for lab in run.labs],
        sorted(difficulties, key=lambda row: (not row.judged, row.share, order[row.info.id])),
        [
            Misconception(infos[id], messages[id, name], count, judged[id])
            for (id, name), count in sorted(mistakes.items(), key=lambda kv: (-kv[1], order[kv[0][0]], kv[0][1]))
        ],
        [(infos[id], count) for id, count in sorted(unexplained.items(), key=lambda kv: (-kv[1], order[kv[0]]))],
        [
            Flag(student, item.id, reason)
            for student in students for lab in student.labs for item in lab.exercises for reason in item.review
        ],
        [
            Trouble(student, lab)
            for student in students for lab in student.labs if lab.status not in ("graded", "absent")
        ],
        [student for student in students if all(lab.status == "absent" for lab in student.labs)],
    )  # fmt: skip


def _difficulty(info, counts) -> Difficulty:
    passed, failed = counts["passed"], counts["failed"]
    unanswered = counts["not started"] + counts["missing"]
    return Difficulty(info, passed + failed + unanswered, passed, failed, unanswered)


def _distribution(stem, students) -> Distribution:
    labs = [lab for student in students for lab in student.labs if lab.lab == stem]
    scores = [lab.score for lab in labs if lab.score is not None]
    most = max((lab.max_score for lab in labs), default=0)
    median = statistics.median(scores) if scores else None
    return Distribution(stem, most, len(scores), median, sum(score == most for score in scores), bars(scores, most))


def bars(scores: list[int], most: int) -> list[Bar]:
    """Bars of equal width over 0 … most, except that the last may be narrower: at most MOST_BARS, full points alone."""
    width = max(1, -(-most // (MOST_BARS - 1)))
    edges = [*range(0, most, width), most] if most else [0]
    ends = [*(edge - 1 for edge in edges[1:]), most]
    return [
        Bar(first, last, sum(first <= score <= last for score in scores))
        for first, last in zip(edges, ends, strict=True)
    ]
