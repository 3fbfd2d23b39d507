"""Eight recorded training runs for lab 05: the loss and the loss scale of ten steps, and what could be their cause.

Each run was made by torch with the cause planted; the tests of the lab make them again.
"""

import math

CAUSES = {
    "A": "Nothing is wrong: the scaler is searching for its scale.",
    "B": "Nothing is wrong: one bad batch was skipped.",
    "C": "Nothing is wrong: the scale grew and was taken back.",
    "D": "There is no scaling, and all float16 gradients underflow to zero.",
    "E": "A constant scale is too large, and every step is skipped.",
    "F": "The weights are NaN: no scale can help.",
    "G": "The loss is fine, but a gradient is infinite or NaN at every scale.",
    "H": "The run was resumed without the state of its scaler.",
    "I": "The scale has grown past the range of float32.",
    "J": "The learning rate is too small.",
}

_nan, _inf = math.nan, math.inf
# number of the run: (loss, scale that this step was made with), one pair a step
RUNS = {
    1: tuple((10.1, 2.0 ** (10 - k)) for k in range(10)),
    2: ((10.1, 2048.0), (6.4, 2048.0), (4.08, 2048.0), (2.6, 2048.0), (1.66, 2048.0),
        (1.06, 65536.0), (1.06, 32768.0), (1.06, 16384.0), (0.684, 16384.0), (0.44, 16384.0)),
    3: ((1.01e-08, 1.0),) * 10,
    4: ((10.1, 65536.0), (10.1, 32768.0), (10.1, 16384.0), (10.1, 8192.0), (10.1, 4096.0),
        (6.4, 4096.0), (4.08, 4096.0), (2.6, 4096.0), (1.66, 4096.0), (1.06, 4096.0)),
    5: ((10.1, 1024.0), (6.4, 1024.0), (4.08, 1024.0), (2.6, 1024.0),
        (_nan, 1024.0), (_nan, 512.0), (_nan, 256.0), (_nan, 128.0), (_nan, 64.0), (_nan, 32.0)),
    6: ((10.1, 4096.0), (6.4, 4096.0), (4.08, 8192.0), (2.6, 8192.0), (1.66, 16384.0),
        (1.06, 16384.0), (0.684, 32768.0), (0.684, 16384.0), (0.44, 16384.0), (0.284, 32768.0)),
    7: ((10.1, 2.0**30),) * 10,
    8: ((10.1, 1024.0), (6.4, 1024.0), (4.08, 1024.0), (2.6, 1024.0), (1.66, 1024.0),
        (_inf, 1024.0), (1.06, 512.0), (0.684, 512.0), (0.44, 512.0), (0.284, 512.0)),
}  # fmt: skip

# What to look at, for a miss.
LOOK = {
    1: "the scale halves in every step, the loss stays finite and never changes",
    2: "in step 6 the scale jumps to a number that you know",
    3: "the scale is 1, and the loss is the same to the last digit",
    4: "the scale halves four times, then the loss falls",
    5: "the loss itself is NaN, whatever the scale",
    6: "the scale doubles every second step, until a step is skipped",
    7: "neither the scale nor the loss ever changes",
    8: "one step has an infinite loss, and the scale halves once",
}
