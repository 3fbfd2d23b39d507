"""The guard around cells that use a learner's own functions."""

import pytest

from ampedu.exercises import needs
from ampedu.exercises.spec import UnknownExercise


def test_a_block_that_works_is_left_alone(capsys):
    with needs("01.decode"):
        print("done")
    assert capsys.readouterr().out == "done\n"


def test_a_stub_is_named_even_when_another_exercise_called_it(capsys):
    with needs("01.encode", "01.decode"):
        raise NotImplementedError("01.ulp: Return the gap.")
    assert capsys.readouterr().out == "This cell waits for 01.ulp. Finish it, then run the cell again.\n"


def test_a_failing_answer_does_not_stop_run_all(capsys):
    with needs("01.encode", "01.decode"):
        raise ZeroDivisionError("division by zero")
    assert capsys.readouterr().out == (
        "This cell uses 01.encode and 01.decode, and met ZeroDivisionError: division by zero. "
        "Do the checks above pass?\n"
    )


def test_strict_mode_lets_the_error_through(monkeypatch):
    monkeypatch.setenv("AMPEDU_STRICT", "1")
    with pytest.raises(NotImplementedError), needs("01.decode"):
        raise NotImplementedError("01.decode: Return the value.")


def test_an_interrupt_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt), needs("01.decode"):
        raise KeyboardInterrupt


def test_an_unknown_exercise_is_refused():
    with pytest.raises(UnknownExercise, match=r"01\.decod"), needs("01.decod"):
        pass
