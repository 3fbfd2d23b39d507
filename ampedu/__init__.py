"""ampedu: the helper package of a course on mixed-precision training with PyTorch AMP.

Importing it loads nothing heavy: import the submodule that you need, as in ``from ampedu.formats import FORMATS``.
"""

__version__ = "0.1.0"
