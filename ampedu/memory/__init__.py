"""Where the memory of a training step goes: a ledger, predicted without running at full size, or measured.

    predicted = predict(model, (x, target), optimizer="adamw", policy="bf16")    # shapes and dtypes only
    predicted                            # as the last line of a cell: the table
    predicted.picture()                  # what is held at the peak of forward, backward and optimizer step
    measured = measure(model, (x, target), optimizer="adamw", policy="bf16")     # real tensors, the real allocator
    print(reconcile(predicted, measured))
"""

from ampedu.memory.ledger import Ledger, Moment, Row, mib, reconcile
from ampedu.memory.measuring import measure
from ampedu.memory.plan import LedgerError
from ampedu.memory.predicting import predict
from ampedu.memory.tracker import ROWS, Tracker

__all__ = ["ROWS", "Ledger", "LedgerError", "Moment", "Row", "Tracker", "measure", "mib", "predict", "reconcile"]
