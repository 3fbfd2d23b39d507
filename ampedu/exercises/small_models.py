"""Small models for lab 07: each keeps something for backward in a way of its own."""

import torch
from torch import nn


class Halves(nn.Module):
    """A linear layer whose output is used in two halves: one is the gate of the other."""

    def __init__(self, width, hidden):
        super().__init__()
        self.both = nn.Linear(width, 2 * hidden)

    def forward(self, x):
        """Rows of width to rows of hidden."""
        a, b = self.both(x).chunk(2, dim=-1)
        return a * torch.sigmoid(b)


class Slice(nn.Module):
    """A linear layer of whose output only some columns are used."""

    def __init__(self, width, hidden):
        super().__init__()
        self.layer = nn.Linear(width, hidden)

    def forward(self, x):
        """Rows of width to rows of three."""
        return self.layer(x)[:, :3] ** 2


class Tied(nn.Module):
    """One linear layer, used twice."""

    def __init__(self, width, hidden):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        """Rows of width to rows of width."""
        return self.layer(torch.tanh(self.layer(x))).exp()


def perceptron(width, hidden):
    """Two linear layers with a ReLU."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def normalized(width, hidden):
    """The same with BatchNorm, which has buffers."""
    return nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 2))


def pooled(width, hidden):
    """A convolution and a pooling layer, which keeps indices."""
    return nn.Sequential(nn.Conv2d(width, hidden, 3), nn.MaxPool2d(2))


MODELS = {
    "a perceptron": perceptron, "with BatchNorm": normalized, "two halves of one output": Halves,
    "columns of an output": Slice, "one layer used twice": Tied, "a convolution with max pooling": pooled,
}  # fmt: skip
