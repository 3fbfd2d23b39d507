"""Codes of number formats as cases of exercises: edges, random normal numbers, and how they are written."""

import math

import torch

from ampedu.exercises import compare
from ampedu.exercises.plain import NotPlain

# Widths (exponent bits, mantissa bits) of IEEE-like formats: fp16, bf16, e5m2, e4m3, e3m4, and two that nobody ships.
SMALL = ((5, 10), (8, 7), (5, 2), (4, 3), (3, 4), (6, 9), (4, 5))


def bias_of(exponent_bits):
    """Bias of an IEEE-like format; also the exponent of its top binade."""
    return 2 ** (exponent_bits - 1) - 1


def in_gaps(steps, exponent, mantissa_bits):
    """steps times the gap between numbers in the binade of 2**exponent; exact in a Python float."""
    return math.ldexp(steps, exponent - mantissa_bits)


def call_text(answer, value, widths):
    """The call in words."""
    return f"{answer}({value}, exponent_bits={widths[0]}, mantissa_bits={widths[1]})"


def binary(code, widths):
    """A code as Python writes it, with an underscore between the fields. Raises NotPlain for what is no such code."""
    exponent_bits, mantissa_bits = widths
    if type(code) is not int:
        raise NotPlain(f"{compare.show(code, 60)} of type {type(code).__name__}, but a code is an int")
    if not 0 <= code < 2 ** (1 + exponent_bits + mantissa_bits):
        raise NotPlain(f"{code:#x} is not a code of {1 + exponent_bits + mantissa_bits} bits")
    bits = f"{code:0{1 + exponent_bits + mantissa_bits}b}"
    return f"0b{bits[0]}_{bits[1 : 1 + exponent_bits]}_{bits[1 + exponent_bits :]}"


def as_float(value):
    """An int as a float: 0 and 0.0 are the same answer here. Anything else unchanged."""
    return float(value) if type(value) is int else value


def form(value):
    """What an answer is, in words: a tensor of which dtype and shape, or the type of anything else."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"


def demand_form(value, like):
    """Raise NotPlain unless the value is a tensor of the dtype and shape of ``like``."""
    if form(value) != form(like):
        raise NotPlain(f"the type is {form(value)} instead of {form(like)}")


def edge_codes(widths):
    """Codes at the edges of a format, without their sign bit, by name."""
    infinity = (2 ** widths[0] - 1) << widths[1]
    return {
        "zero": 0,
        "smallest subnormal": 1,
        "largest subnormal": (1 << widths[1]) - 1,
        "smallest normal": 1 << widths[1],
        "largest": infinity - 1,
        "infinity": infinity,
        "nan": infinity + 1,
        "quiet nan": infinity + (1 << (widths[1] - 1)),
    }


def coded_cases(stream, names, normals):
    """Cases {"code", "widths"}: every (edge name, sign) in `names`, then random normal numbers; formats drawn anew."""
    cases = []
    for name, sign in names:
        widths = stream.choice(SMALL)
        cases.append({"code": edge_codes(widths)[name] + (sign << sum(widths)), "widths": list(widths)})
    for index in range(normals):
        widths = stream.choice(SMALL)
        exponent = stream.integer(1, 2 ** widths[0] - 2)
        magnitude = (exponent << widths[1]) + stream.integer(0, 2 ** widths[1] - 2)
        cases.append({"code": magnitude + ((index % 2) << sum(widths)), "widths": list(widths)})
    return cases
