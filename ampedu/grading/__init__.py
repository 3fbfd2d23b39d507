"""Grading: from a folder of notebooks to results. ``from ampedu.grading import grade``; this alone loads no torch."""


def __getattr__(name):
    if name == "grade":
        from ampedu.grading.batch import grade

        return grade
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
