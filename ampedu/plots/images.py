"""Color pictures side by side: what a network that maps places to colors has learned."""

import torch

from ampedu.plots.drawing import Picture, new_figure, styled


@styled
def images(panels, title: str, alt: str) -> Picture:
    """Draw color pictures in a row, each under its label.

    panels: {label: tensor of shape (height, width, 3)}, of any dtype and device, values from 0 to 1. Values outside
    are clipped; inf and NaN have no color and are drawn white. ValueError: no panel, or another shape.
    """
    if not panels:
        raise ValueError("images needs at least one picture: {label: tensor of shape (height, width, 3)}")
    figure = new_figure(height=7.5 / max(3, len(panels)) + 0.75)
    spots = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (label, values) in zip(spots, panels.items(), strict=True):
        colors = torch.as_tensor(values).detach().float().cpu()
        if colors.dim() != 3 or colors.shape[2] != 3:
            shape = tuple(colors.shape)
            raise ValueError(f"{label!r} has shape {shape}: a color picture has shape (height, width, 3)")
        white = torch.where(colors.isfinite(), colors, 1.0).clamp(0, 1)
        axes.imshow(white.numpy(), interpolation="nearest")
        axes.set_title(label, fontsize=10, fontweight="normal")
        axes.set(xticks=[], yticks=[])
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return Picture(figure, alt)
