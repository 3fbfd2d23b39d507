"""The order of calls in a live training loop, and the first thing that is wrong with it, with its measured consequence.

with StepWatcher(model, optimizer, scaler, scheduler) as watch:
    ...                              # the loop, as it is
watch.report()                       # what is wrong, what it did to this run, what to do
watch.events                         # forward, backward, unscale_, clip, step, update, scheduler, zero_grad
plots.step_timeline(watch)           # the same as a picture
"""

from ampedu.steps.records import RULES, Event, Violation
from ampedu.steps.watcher import StepWatcher

__all__ = ["RULES", "Event", "StepWatcher", "Violation"]
