import sys

import pytest

from ampedu.exercises.blocking import ForbiddenImport, blocked
from ampedu.exercises.cells import materialize
from ampedu.exercises.closure import analyze, calls, closure, uses


def run(cells, name="f"):
    return materialize(closure(cells, name), name)


def test_takes_imports_definitions_and_constants_and_nothing_else():
    cells = ["import math, json\nfrom os import path as p\nK = 2", "print('no')\nunused = 1/0",
             "def g(x):\n    return math.sqrt(x) * K",
             "def f(x):\n    # a comment stays\n    return g(x) + 1"]  # fmt: skip
    source = closure(cells, "f")
    assert "unused" not in source and "print" not in source and "os" not in source and "# a comment stays" in source
    assert run(cells)(16) == 9.0


def test_the_last_definition_wins():
    cells = ["def f(): return 1", "def g(): return 2", "def f(): return g()", "def g(): return 3"]
    assert run(cells)() == 3


def test_a_value_read_at_once_is_the_one_of_that_time():
    assert run(["k = 1", "def f(x=k): return x", "k = 2"])() == 1
    assert run(["k = 1", "def f(): return k", "k = 2"])() == 2
    assert run(["k = 1", "k = k + 1", "k = k * 10", "def f(): return k"])() == 20
    assert run(["k = 1\nk += 4", "def f(): return k"])() == 5
    assert run(["def g(): return 1", "table = g()", "def g(): return 2", "def f(): return table"])() == 1


def test_changes_in_place_by_assignment_are_kept():
    assert run(["t = {}", "t['a'] = 1\nt['b'] = 2", "def f(): return t"])() == {"a": 1, "b": 2}
    assert run(["class C: pass", "C.step = lambda self: 7", "def f(): return C().step()"])() == 7


def test_local_names_do_not_drag_in_globals():
    found = analyze(["x = 1/0", "y = 1/0", "def f(x):\n    y = x\n    return [z for z in (y,)]", "z = 1/0"], "f")
    assert "1/0" not in found.source and not found.missing


def test_classes_decorators_bases_and_nested_functions():
    cells = ["from dataclasses import dataclass", "K = 3", "class Base:\n    k = K",
             "def twice(g):\n    return lambda *a: 2 * g(*a)",
             "@dataclass\nclass C(Base):\n    n: int\n"
             "    def get(self):\n        def inner():\n            return self.n + K\n        return inner()",
             "@twice\ndef f(n):\n    return C(n).get()"]  # fmt: skip
    assert run(cells)(1) == 8


def test_assigned_answers_aliases_and_guarded_imports():
    assert run(["f = lambda x: x + 1"])(1) == 2
    assert run(["import functools", "def g(a, b): return a - b", "f = functools.partial(g, 1)"])(2) == -1
    assert run(["def g(): return 5", "f = g"])() == 5
    assert (
        run(["try:\n    import nothing_like_it as m\nexcept ImportError:\n    m = None", "def f(): return m"])() is None
    )
    assert run(["from math import *", "def f(): return floor(2.5)"])() == 2
    assert run(["from __future__ import annotations", "def f(x: Undefined): return 4"])(1) == 4
    assert run(["a, (b, *c) = 1, (2, 3, 4)", "def f(): return a, b, c"])() == (1, 2, [3, 4])


@pytest.mark.parametrize(
    "cell",
    ["%matplotlib inline", "!ls", "x = !ls", "%time y = 3", "torch?", "?torch", "def broken(:",
    "%%html\n<b>def f(): return 0</b>",
     "%%bash\ndef f", "return 3", "x = await y", "\ud800", "def g():\n  x\n\ty"],
)  # fmt: skip
def test_magics_and_errors_in_other_cells_do_no_harm(cell):
    assert run([cell, "def f(): return 1", cell])() == 1


def test_magics_in_the_same_cell():
    assert run(["%load_ext autoreload\nimport math\n!pip list\ndef f(x):\n    return math.floor(x)\nf?"])(2.5) == 2
    assert run(["%%time\ndef f(): return 6"])() == 6
    assert run(["x = 7\ny = (x\n  % 4)\ndef f(): return y"])() == 3
    assert run(["a = 1; b = 2\r\ndef f(): return a + b"])() == 3


def test_a_global_that_is_only_assigned_in_the_function():
    f = run(["n = 40", "def f():\n    global n\n    n += 1\n    return n"])
    assert f() == 41 and f() == 42
    assert run(["def f():\n    global z\n    z = 1\n    return z"])() == 1


@pytest.mark.parametrize("separator", ["\u2028", "\x0c", "\x1d", "\x85"])
def test_lines_end_only_where_python_ends_them(separator):
    assert run([f's = "a{separator}b"\nk = 5\ndef f():\n    return s, k'])() == (f"a{separator}b", 5)


def test_a_cell_of_many_lines_that_ran_twice():
    cells = ["\n".join(f"x{i} = {i}" for i in range(4000)) + "\ndef f(): return x7"]
    assert run(cells)() == 7 and run(cells)() == 7


def test_missing_and_unkept_names():
    found = analyze(["for k in range(3): pass\nwith open('x') as h: pass", "def f(): return k, h, nowhere, len"], "f")
    assert found.missing == {"k", "h", "nowhere"} and found.unkept == {"k", "h"}
    with pytest.raises(LookupError, match="no cell that has run defines g"):
        closure(["def f(): pass"], "g")


def test_recursion_and_mutual_recursion():
    assert run(["def f(n): return 1 if n == 0 else n * g(n - 1)", "def g(n): return f(n)"])(5) == 120


def test_the_namespace_is_fresh():
    source = closure(["k = []", "def f():\n    k.append(1)\n    return len(k)"], "f")
    assert materialize(source, "f")() == 1 and materialize(source, "f")() == 1


IMPORTS = [
    "import ampedu.formats", "from ampedu import formats", "from ampedu.formats import decode",
    "import ampedu.formats as f",
    "import importlib; importlib.import_module('ampedu.formats')", "__import__('ampedu.formats')",
    "import ampedu; ampedu.formats",
    "from ampedu.formats import *", "import importlib as i; i.import_module('.formats', 'ampedu')",
    "import importlib.util as u; u.find_spec('ampedu.formats')", "import sys; sys.modules['ampedu.formats']",
]  # fmt: skip


@pytest.mark.parametrize("statement", IMPORTS)
def test_forbidden_imports_are_blocked_whether_loaded_before_or_not(statement):
    import ampedu.formats as loaded

    with pytest.raises((ForbiddenImport, AttributeError, KeyError)), blocked(("ampedu.formats",), "99.x"):
        exec(statement, {})
    if "import *" not in statement:
        with pytest.raises((ForbiddenImport, AttributeError, KeyError)):
            materialize(f"{statement}\ndef f(): pass", "f", ("ampedu.formats",))
    assert sys.modules["ampedu.formats"] is loaded and sys.modules["ampedu"].formats is loaded


def test_submodules_are_blocked_and_other_modules_are_not():
    with blocked(("xml",), "99.x"):
        with pytest.raises(ForbiddenImport, match=r"99\.x must be solved without xml: it holds the answer"):
            exec("import xml.dom", {})
        import json  # noqa: F401
        import xmlrpc  # noqa: F401


def test_equivalents_by_any_name():
    wanted = ("torch.finfo", "numpy.float16")
    assert uses("import torch\nx = torch.finfo(torch.float16).max", wanted) == ["torch.finfo"]
    assert uses("import torch as t\nx = t.finfo", wanted) == ["torch.finfo"]
    assert uses("from torch import finfo as info\ninfo(1)", wanted) == ["torch.finfo"]
    assert uses("import numpy as np\nnp.float16(1)", wanted) == ["numpy.float16"]
    assert uses("finfo = 3\nself.torch.finfo\n'torch.finfo'  # torch.finfo", wanted) == []


def test_calls():
    assert [node.lineno for node in calls("%time\ncheck('a', b)\nfor x in y:\n    check('c', d)", "check")] == [2, 4]
