"""A cell that puts the learner's own functions to work, and waits politely for those that are not finished."""

import contextlib
import os
import re

from ampedu.exercises.spec import load

_STUB = re.compile(r"\d\d\.[a-z][a-z0-9_]*(?=:)")


@contextlib.contextmanager
def needs(*ids: str):
    """Run the block; if an answer that it calls is a stub or fails, print one sentence instead of stopping *Run All*.

    ids: the exercises whose answers the block calls. With AMPEDU_STRICT=1 the exception passes through.
    Raises UnknownExercise for an id that does not exist.
    """
    names = [load(id).id for id in ids]
    try:
        yield
    except Exception as error:
        if os.environ.get("AMPEDU_STRICT") == "1":
            raise
        print(_sentence(names, error))


def _sentence(names, error):
    stub = _STUB.match(str(error)) if isinstance(error, NotImplementedError) else None
    if stub:
        return f"This cell waits for {stub[0]}. Finish it, then run the cell again."
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"This cell uses {listed}, and met {type(error).__name__}: {error}. Do the checks above pass?"
