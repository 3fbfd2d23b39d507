"""What the hostile submissions are made of: a record for each, and notebooks around one answer.

A submission that tries to escape gives the right answer if, and only if, it has found a way: points mean a hole.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ampedu.exercises import load, of_stem
from ampedu.grading import answers, notebook

ROOT = Path(__file__).resolve().parents[2]
LAB = "01_bit_layouts"
SOLUTION, BLANK = ROOT / f"solutions/{LAB}.ipynb", ROOT / f"labs/{LAB}.ipynb"
MOST = sum(ex.points for ex in of_stem(LAB))
DECODE, QUANTIZE = load("01.decode").points, load("01.quantize").points
MARK = "ampedu-hostile"  # the name of every process that a hostile submission starts, and of every file it plants


@dataclass(frozen=True)
class Hostile:
    """make(path): writes the submission, by default a notebook at ``path``. points, status: what it must get.

    says: a part of the message or reason of its result. review: whether a person must be told to look.
    """

    name: str
    make: Callable[[Path], None]
    points: int = 0
    status: str = "graded"
    says: str = ""
    review: bool = False


@functools.cache
def right(id: str) -> str:
    """The source of the right answer to one exercise."""
    return answers.locate(notebook.parse(SOLUTION.read_bytes()), of_stem(LAB))[id].source


def ipynb(cells, **more) -> bytes:
    """A notebook. cells: texts of code cells, or (kind, text)."""
    pairs = [("code", cell) if isinstance(cell, str) else cell for cell in cells]
    node = {"cells": [{"cell_type": kind, "source": text, "metadata": {}} for kind, text in pairs]}
    return json.dumps({**node, "nbformat": 4, "nbformat_minor": 5, "metadata": {}, **more}).encode()


def notebook_of(*cells, **more) -> Callable[[Path], None]:
    """Writes these cells."""
    return lambda path: path.write_bytes(ipynb(cells, **more))


def content(data: bytes) -> Callable[[Path], None]:
    """Writes these bytes."""
    return lambda path: path.write_bytes(data)


PREFACE = f'''
import ctypes, glob, json, os, resource, signal, socket, sys, threading, time
import torch
libc = ctypes.CDLL(None, use_errno=True)

def renamed():
    """So that a scan of the processes finds what is left of this one."""
    libc.prctl(15, b"{MARK}", 0, 0, 0)

def worked(action, *arguments):
    """Whether an action did not fail."""
    try:
        return action(*arguments) not in (-1, None, False)
    except BaseException:
        return False
'''


def answer(name: str, body: str, before: str = "", **expected) -> Hostile:
    """A submission whose ``decode`` runs ``body``, in which ``code`` and ``right`` (the right answer) are known."""
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    cell = f"def decode(*code):\n    renamed()\n{lines}\n"
    truth = right("01.decode").replace("def decode(", "def right(")
    return Hostile(name, notebook_of(PREFACE, truth, before, cell), **expected)


def rewarded(name: str, *ways: str, before: str = "", **expected) -> Hostile:
    """A submission that gives the right answer if one of the expressions ``ways`` is true and raises nothing."""
    tries = "\n".join(f"found.append(worked(lambda: bool({way})))" for way in ways)
    return answer(name, f"found = []\n{tries}\nreturn right(*code) if any(found) else None", before, **expected)


def tensor(name: str, expression: str, before: str = "", **expected) -> Hostile:
    """A submission whose ``quantize`` returns an expression of ``good``, the right tensor."""
    truth = right("01.quantize").replace("def quantize(", "def right(")
    cell = f"def quantize(x, *formats, **more):\n    good = right(x, *formats, **more)\n    return {expression}\n"
    return Hostile(name, notebook_of(PREFACE, truth, before, cell), **expected)
