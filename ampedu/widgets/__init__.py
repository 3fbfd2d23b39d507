"""Interactive cells: a quiz, explorers of bits, ranges, updates, GPUs, operations and scales, a figure with a slider.

Each call shows one output that holds the live widget and, for readers without a kernel, a static version of it.
Without ipywidgets, or where it is broken, the static version is all there is. Nothing is returned.
"""

from ampedu.widgets.distributed import step_explorer
from ampedu.widgets.explorer import bit_explorer
from ampedu.widgets.figure_slider import slider
from ampedu.widgets.gpus import gpu_explorer
from ampedu.widgets.gradients import gradient_range
from ampedu.widgets.landing import update_explorer
from ampedu.widgets.memory import memory_explorer
from ampedu.widgets.operation import op_explorer
from ampedu.widgets.question import quiz
from ampedu.widgets.scaler import scaler_simulator

__all__ = [
    "bit_explorer",
    "gpu_explorer",
    "gradient_range",
    "memory_explorer",
    "op_explorer",
    "quiz",
    "scaler_simulator",
    "slider",
    "step_explorer",
    "update_explorer",
]
