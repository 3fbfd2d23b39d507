"""Where jobs run. The one seam to a cluster: anything that gives concurrent.futures.Executor objects fits.

Processes of this machine, each with its own sandbox. One that dies (the kernel ran out of memory, say) breaks the pool:
what was under way is tried again, in the end alone, and given up as "infra", never as a zero.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

BREAKS = 2


def local(jobs: int, prepare: Callable, *arguments) -> Executor:
    """An executor of ``jobs`` processes, each of which first calls ``prepare(*arguments)``.

    Each has cores of its own as far as there are enough, so that no submission can take the time of another.
    """
    # A fork shares what is imported; elsewhere forking a process that has loaded torch is not safe.
    method = "fork" if sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(method)
    return ProcessPoolExecutor(jobs, context, _prepared, (context.Value("i", 0), jobs, prepare, arguments))


def _prepared(counter, jobs, prepare, arguments):
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number % len(cores) :: jobs])
    prepare(*arguments)


class Pool:
    """Runs functions on an executor and makes a new executor when one breaks.

    make(jobs): gives the executor. jobs: at most this many tasks at a time.
    """

    def __init__(self, make: Callable[[int], Executor], jobs: int):
        self.make, self.jobs = make, jobs
        self.executor = make(jobs)

    def each(self, function, tasks: list[tuple]) -> Iterator[tuple[int, object]]:
        """(index, result) for each task in the order they end; the result is an exception if the task raised one."""
        queue, breaks = list(range(len(tasks))), dict.fromkeys(range(len(tasks)), 0)
        while queue:
            alone = max(breaks[i] for i in queue) >= BREAKS
            broken = yield from self._some(function, tasks, queue, 1 if alone else 2 * self.jobs)
            for i in broken:
                breaks[i] += 1
            if broken:
                self._renew()
            if alone and broken:
                (lost,) = broken
                queue.remove(lost)
                yield lost, BrokenProcessPool("the process that graded it died; is there enough memory?")

    def _some(self, function, tasks, queue, most):
        """Run until the queue is empty or the executor breaks; the tasks that were under way then."""
        pending = {}
        while queue or pending:
            try:
                while len(pending) < min(most, len(queue)):
                    index = next(i for i in queue if i not in pending.values())
                    pending[self.executor.submit(function, *tasks[index])] = index
            except BrokenProcessPool:
                return list(pending.values()) or queue[:1]
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                return list(pending.values())
            for future in done:
                index = pending.pop(future)
                queue.remove(index)
                yield index, future.exception() or future.result()
        return []

    def _renew(self):
        self.stop()
        self.executor = self.make(self.jobs)

    def stop(self) -> None:
        """End all processes at once; their sandboxes die with them."""
        processes = list((getattr(self.executor, "_processes", None) or {}).values())
        self.executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def default_jobs() -> int:
    """As many jobs as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
