import signal
import sys
import threading
import time

import pytest

from ampedu.exercises.limits import TimeLimit, limited


def endless():
    while True:
        pass


def swallow_exception():
    while True:
        try:
            endless()
        except Exception:
            pass


def swallow_everything():
    while True:
        try:
            endless()
        except:  # noqa: E722
            pass


def swallow_and_return():
    try:
        endless()
    except BaseException:
        return 3


def in_thread(function):
    box = []

    def work():
        try:
            box.append(function())
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return box[0]


@pytest.mark.parametrize("function", [endless, swallow_exception, swallow_everything, swallow_and_return])
def test_stops_in_the_main_thread(function):
    before = signal.getsignal(signal.SIGALRM), sys.gettrace()
    started = time.monotonic()
    with pytest.raises(TimeLimit):
        limited(0.2, function)
    assert 0.15 < time.monotonic() - started < 5
    assert (signal.getsignal(signal.SIGALRM), sys.gettrace()) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    time.sleep(0.15)  # nothing fires afterwards


@pytest.mark.parametrize("function", [endless, swallow_exception, swallow_and_return])
def test_stops_in_another_thread(function):
    assert isinstance(in_thread(lambda: limited(0.2, function)), TimeLimit)


def test_a_sleep_is_interrupted():
    started = time.monotonic()
    with pytest.raises(TimeLimit):
        limited(0.2, lambda: time.sleep(30))
    assert time.monotonic() - started < 5


def test_results_and_exceptions_pass_through():
    assert limited(5, lambda: 7) == 7 and in_thread(lambda: limited(5, lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        limited(5, lambda: 1 / 0)
    assert isinstance(in_thread(lambda: limited(5, lambda: 1 / 0)), ZeroDivisionError)
    assert not issubclass(TimeLimit, Exception)


def test_an_earlier_timer_still_fires_and_its_handler_is_back():
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(time.monotonic()))
    try:
        started = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        with pytest.raises(TimeLimit):
            limited(0.1, endless)
        assert not fired
        while not fired and time.monotonic() - started < 5:
            time.sleep(0.01)
        assert 0.35 < fired[0] - started < 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_nested_limits():
    def inner():
        with pytest.raises(TimeLimit):
            limited(0.1, endless)
        return "ok"

    assert limited(5, inner) == "ok"
