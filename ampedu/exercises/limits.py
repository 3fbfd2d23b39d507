"""A time limit for a call of Python code.

In the main thread on Unix an interval timer raises inside the running code, again and again, so that a `finally` or a
bare `except:` in a loop cannot outlive it. Elsewhere a watchdog thread does the same, but only between two Python
instructions: it cannot cut short a long call into C. Neither stops code that never returns to the interpreter, or that
hides in several nested handlers; only another process can.
"""

import ctypes
import signal
import sys
import threading
import time

AGAIN = 0.1


class TimeLimit(BaseException):
    """The call ran past its limit. A BaseException: ``except Exception`` in the code under test must not swallow it."""


def limited(seconds: float, function):
    """The result of ``function()``; TimeLimit if it runs for more than ``seconds``, even if it catches that itself.

    Signal handlers and timers in place before are restored.
    """
    main = threading.current_thread() is threading.main_thread()
    return (_by_alarm if main and hasattr(signal, "setitimer") else _by_watchdog)(seconds, function)


def _by_alarm(seconds, function):
    armed, fired = True, 0

    def on_line(frame, event, argument):
        if event == "line" and armed:
            raise TimeLimit
        return on_line

    def on_alarm(number, frame):
        nonlocal fired
        if not armed:
            return
        fired += 1
        if fired > 2:
            # The code has caught TimeLimit: raise once more from its handler, which stands outside its `try`.
            while frame is not None and frame.f_code is not _by_alarm.__code__:
                frame.f_trace, frame = on_line, frame.f_back
            sys.settrace(on_line)
        raise TimeLimit

    started, tracer_before = time.monotonic(), sys.gettrace()
    handler_before = signal.signal(signal.SIGALRM, on_alarm)
    timer_before = signal.getitimer(signal.ITIMER_REAL)
    try:
        # Not a context manager: a TimeLimit raised between the call and `finally` would leave the timer on.
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
            result = function()
        finally:
            armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if fired > 2:
            sys.settrace(tracer_before)
        signal.signal(signal.SIGALRM, handler_before if handler_before is not None else signal.SIG_DFL)
        if timer_before[0]:
            left = max(timer_before[0] - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, timer_before[1])
    if fired:
        raise TimeLimit
    return result


def _by_watchdog(seconds, function):
    target, lock, done, fired = threading.get_ident(), threading.Lock(), threading.Event(), threading.Event()

    def watch():
        wait = seconds
        while not done.wait(wait):
            with lock:
                if not done.is_set():
                    fired.set()
                    _raise_in(target, TimeLimit)
            wait = AGAIN

    thread = threading.Thread(target=watch, daemon=True)
    try:
        thread.start()
        result = function()
    finally:
        while not done.is_set():
            try:
                with lock:
                    done.set()
                    _raise_in(target, None)
            except TimeLimit:
                done.clear()
    thread.join()
    if fired.is_set():
        raise TimeLimit
    return result


def _raise_in(thread_id, exception):
    kind = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), kind)
