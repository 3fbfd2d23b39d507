"""Answers that are equal up to layout, comments and docstrings: to the published solution, or between students."""

from ampedu.exercises import of_stem
from ampedu.grading import answers, notebook
from ampedu.grading.course import Lab
from ampedu.grading.results import Equal

SMALLEST = 60  # nodes of the syntax tree: below that, equal answers say nothing


def published(lab: Lab) -> dict[str, str]:
    """The hash of each answer in the published solution."""
    found = answers.locate(notebook.parse(lab.solution.read_bytes()), of_stem(lab.stem))
    return {id: answer.normal for id, answer in found.items()}


def groups(graded, solutions: dict[str, str], not_started) -> list[Equal]:
    """Groups of equal answers, in order of exercises and students.

    graded: slot.Graded of all submissions. solutions: hashes by exercise. not_started: pairs (student, exercise) that
    hold no answer of the student's own.
    """
    found = {}
    for item in graded:
        for exercise, (tree, nodes) in item.trees.items():
            student = item.submission.student_id
            if nodes >= SMALLEST and (student, exercise) not in not_started:
                found.setdefault((exercise, tree), set()).add(student)
    return [
        Equal(exercise, sorted(students), solutions.get(exercise) == tree)
        for (exercise, tree), students in sorted(found.items())
        if len(students) > 1 or solutions.get(exercise) == tree
    ]
