"""Figures of the course. Each function returns a Picture: a matplotlib figure with alt text that displays itself."""

from ampedu.plots.distributed import step_scaling
from ampedu.plots.drawing import Picture, picture
from ampedu.plots.gradients import gradient_histogram, gradient_layers
from ampedu.plots.images import images
from ampedu.plots.ladder import ladder
from ampedu.plots.layout import bit_layout
from ampedu.plots.line import number_line
from ampedu.plots.loss import landing, landing_zones
from ampedu.plots.memory import memory_bars, memory_timeline
from ampedu.plots.plain import curves, matrices
from ampedu.plots.policies import policy_grid
from ampedu.plots.ranges import density, range_precision
from ampedu.plots.roofline import roofline, tile_product, useful_work, waves
from ampedu.plots.scaling import scale_history, scaler_loop
from ampedu.plots.step import amp_step
from ampedu.plots.timeline import step_timeline

__all__ = [
    "Picture",
    "amp_step",
    "bit_layout",
    "curves",
    "density",
    "gradient_histogram",
    "gradient_layers",
    "images",
    "ladder",
    "landing",
    "landing_zones",
    "matrices",
    "memory_bars",
    "memory_timeline",
    "number_line",
    "picture",
    "policy_grid",
    "range_precision",
    "roofline",
    "scale_history",
    "scaler_loop",
    "step_scaling",
    "step_timeline",
    "tile_product",
    "useful_work",
    "waves",
]
