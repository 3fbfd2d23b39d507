"""Exercises: what is called on which inputs, how answers are compared, and ``check`` for the notebook.

In a notebook ``from ampedu.exercises import check``; in an exercise file ``exercise``; in a file of wrong answers
``mutant``.
"""

from ampedu.exercises.checking import check
from ampedu.exercises.guard import needs
from ampedu.exercises.mutants import mutant
from ampedu.exercises.spec import Exercise, exercise, load, of_stem, stems, table
from ampedu.exercises.stream import Stream

__all__ = ["Exercise", "Stream", "check", "exercise", "load", "mutant", "needs", "of_stem", "stems", "table"]
