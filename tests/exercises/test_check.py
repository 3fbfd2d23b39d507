"""`check` in a plain Python file: what it says about right, wrong, unfinished and misplaced answers."""

import re
import sys
import warnings

import pytest
import torch

from ampedu.exercises import check, checking, data, judge, load, plain, report


def test_right(script, fake, recorded):
    out = script("""
        def double(x):
            return 2 * x
        assert check("99.double", double) is None
    """)
    assert out == "✓ 99.double – passed – 2 of 2 points\nAll 6 cases agree.\n"
    assert recorded()["99.double"] == {"status": "passed", "points": 2, "attempts": 1}


def test_a_mutant_gets_its_own_message_and_the_first_difference(script, fake, recorded):
    out = script("""
        def double(x):
            return x ** 2
        check("99.double", double)
    """)
    lines = out.splitlines()
    assert lines[:2] == ["✗ 99.double – not yet – 0 of 2 points", "You squared the number. Twice is x + x."]
    x = load("99.double").cases()[0]["x"]
    assert lines[2:] == [f"  case      double({x})", f"  expected  {2 * x}", f"  got       {x * x}"]
    assert recorded()["99.double"] == {"status": "failed", "points": 0, "attempts": 1}


def test_mutants_within_the_tolerance(script, fake):
    text = "def scale_all(x, factor):\n    return x * factor * factor * (1 + {})\ncheck('99.scale_all', scale_all)"
    assert "You scaled twice." in script(text.format("2e-7"))
    assert "You scaled twice." not in script(text.format("1e-3"))
    assert "passed" in script(text.format("2e-7").replace("factor * factor", "factor"))


def test_another_wrong_answer(script, fake):
    out = script("""
        import torch
        def scale_all(x, factor):
            x *= factor
            return x.double()
        check("99.scale_all", scale_all)
    """)
    assert "6 of 6 cases differ." in out and "expected at ['scaled']" in out
    assert "the dtype is torch.float64 instead of torch.float32" in out


def test_last_digits_are_hexadecimal(script, fake):
    out = script("import math\ndef double(x): return math.nextafter(2 * x, 99)\ncheck('99.double', double)")
    assert len(re.findall(r"in hexadecimal -?0x1\.", out)) == 2


def test_the_stub(script, fake, recorded):
    text = """
        def double(x):
            raise NotImplementedError("99.double: Twice a number.")
        check("99.double", double)
    """
    assert script(text).splitlines() == [
        "○ 99.double – not started – 0 of 2 points",
        "double is still the stub. Replace the line that raises NotImplementedError.",
    ]
    assert recorded()["99.double"] == {"status": "not started", "points": 0, "attempts": 0}
    other = script(text.replace("99.double: Twice", "todo"))
    assert "not yet" in other and "NotImplementedError: todo a number." in other


def test_a_stub_inside_a_class(script, fake):
    out = script("""
        class Counter:
            def __init__(self, start):
                self.n = start
            def step(self):
                if self.n > 2:
                    raise NotImplementedError("99.counter: A class that counts.")
                self.n += 1
                return self.n
        check("99.counter", Counter)
    """)
    assert "A part of Counter is still the stub." in out


def test_an_exception_shows_only_the_learners_lines(script, fake):
    out = script("""
        def helper(x):
            y = 0
            return torch.ones(2) @ torch.ones(3)

        import torch
        def double(x):
            # a comment
            return helper(x)
        check("99.double", double)
    """)
    assert "in double, line 3:  return helper(x)" in out
    assert "in helper, line 3:  return torch.ones(2) @ torch.ones(3)" in out
    assert "RuntimeError: inconsistent tensor size" in out
    assert "site-packages" not in out and "judge" not in out and "ampedu" not in out and "Traceback" not in out


def test_a_mutant_that_raises_or_hangs_is_recognized(script, fake):
    assert "You divided by zero." in script("def double(x): return x / 0\ncheck('99.double', double)")
    out = script("def double(x):\n    while 1: pass\ncheck('99.double', double)")
    assert "You never stop." in out and "no result: stopped after 0.3 s" in out


def test_a_hang_that_catches_exceptions(script, fake):
    out = script("""
        def double(x):
            while x > 0:
                try:
                    x + 1
                except Exception:
                    pass
            return 2 * x
        check("99.double", double)
    """)
    assert "stopped after 0.3 s" in out


def test_a_hang_at_the_top_level_of_what_the_answer_needs(script, fake, monkeypatch):
    monkeypatch.setattr(checking, "DEFINITION_SECONDS", 0.3)
    out = script("""
        import sys
        def table():
            while "__answer__" in __name__:
                pass
            return 2
        TABLE = table()
        def double(x): return TABLE * x
        check("99.double", double)
    """)
    assert "and what it needs did not finish: stopped after 0.3 s" in out


def test_printing_is_folded_and_capped_and_stderr_is_silent(script, fake, capsys):
    out = script("""
        import sys, warnings
        def double(x):
            print("looking at", x)
            print("oops", file=sys.stderr)
            warnings.warn("never shown")
            return 2 * x
        check("99.double", double)
        def double(x):
            print("y" * 10_000)
            return 2 * x
        check("99.double", double)
    """)
    first, second = out.split("✓")[1:]
    assert "Printed while it was checked:" in first and "looking at" in first and "oops" in first
    assert "never shown" not in out and len(second) < 4500 and "(cut)" in second


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("check('99.double', None)", 'The answer is None. Pass the function itself, without parentheses: check("99.d'),
        ("check('99.double', 'double')", "The answer is 'double' of type str, not a function."),
        ("check('99.double', 3)", "The answer is 3 of type int, not a function."),
        ("check('99.double', double(1.0))", "The answer is 2.0 of type float, not a function."),
        ("import math; check('99.double', math)", "The answer is the module math."),
        ("check(double, '99.double')", 'The arguments are in the wrong order. Write check("99.double", double)'),
        ("check('99.double', Counter)", "The answer is the class Counter, not a function."),
        ("check('99.counter', Counter(1))", "The answer is an object of the class Counter. Pass the class itself"),
        ("check('99.counter', double)", "The answer is a function, not a class."),
        ("check('99.double', lambda: 3)", "double takes (x); yours takes ()."),
        ("check('99.double', lambda x, y: 3)", "double takes (x); yours takes (x, y)."),
        ("check('99.scale_all', lambda x, *, factor: x)", "scale_all takes (x, factor); yours takes (x, factor)."),
        ("check('99.duoble', double)", "There is no exercise '99.duoble'. Did you mean 99.double"),
        ("check(99, double)", "An exercise id is a string such as '01.decode', not int"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_answer(script, fake, tmp_path, call, words):
    out = script(f"def double(x): return 2 * x\nclass Counter:\n    def __init__(self, start): pass\n{call}")
    assert words in out
    assert not (tmp_path / "progress.json").exists(), "not counted as an attempt"


def test_extra_defaults_and_other_parameter_names_are_fine(script, fake):
    assert "passed" in script("def double(number, times=2): return times * number\ncheck('99.double', double)")
    assert "passed" in script("def double(*numbers): return 2 * numbers[0]\ncheck('99.double', double)")


def test_unsupported_results(script, fake):
    out = script("import numpy as np\ndef double(x): return np.float64(2 * x)\ncheck('99.double', double)")
    assert "the value is a numpy scalar (numpy.float64); convert it with .item()" in out
    out = script("def scale_all(x, factor): return (x * factor).numpy()\ncheck('99.scale_all', scale_all)")
    assert "the value['scaled'] is a numpy array (numpy.ndarray); convert it with torch.from_numpy" in out


def test_generators_and_coroutines_are_named_and_stderr_is_silent(script, fake, recwarn):
    assert "a generator: use `return`, not `yield`" in script("def double(x): yield x\ncheck('99.double', double)")
    out = script("async def double(x): return 2 * x\ncheck('99.double', double)\nimport gc\ngc.collect()")
    assert "a coroutine: write `def`, not `async def`" in out
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


def test_cases_that_were_not_run_are_not_called_different(script, fake):
    out = script("def scale_all(x, factor):\n    while True: pass\ncheck('99.scale_all', scale_all)")
    assert "2 of 2 cases differ. The other 4 were not run, because 2 in a row ran out of time." in out


def test_the_answer_to_another_exercise(script, fake):
    text = "def scale_all(x, factor=3): return x * factor\ndef double(x): return 2 * x\n"
    note = "you passed `scale_all`, the answer to 99.scale_all. This check is for `double`."
    assert note.replace("`", "") in script(text + "check('99.double', scale_all)").replace("`", "")
    assert "you passed" not in script(text + "check('99.double', double)")


def test_reduce_says_in_words_what_it_cannot_take(fake, monkeypatch):
    ex = load("99.double")
    item = data.load("99_fake").exercises[ex.id]

    def refuse(self, case, raw):
        raise plain.NotPlain("a code is an int")

    monkeypatch.setattr(type(ex.spec), "reduce", refuse, raising=False)
    verdict = judge.verdict(ex, item, judge.observe(ex, lambda x: x, item.cases))
    assert verdict.difference.got == "no usable result: a code is an int"


def test_objects_with_lying_operators_do_not_pass(script, fake):
    out = script("""
        class Yes(float):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
        def double(x): return Yes(0)
        check("99.double", double)
    """)
    assert "not yet" in out and "subclass of float" in out


def test_changing_the_input_does_not_hurt_other_cases(script, fake):
    assert "passed" in script("def scale_all(x, factor): return x.mul_(factor)\ncheck('99.scale_all', scale_all)")
    assert "passed" in script("""
        kept = []
        def scale_all(x, factor):
            kept.append(x)
            for old in kept: old.zero_() if old is not x else None
            return x * factor
        check("99.scale_all", scale_all)
    """)


def test_aliases_lambdas_and_partials(script, fake):
    assert "passed" in script("def mine(x): return 2 * x\ncheck('99.double', mine)")
    assert "passed" in script("def mine(x): return 2 * x\nalias = mine\ndel mine\ncheck('99.double', alias)")
    assert "passed" in script("double = lambda x: 2 * x\ncheck('99.double', double)")
    out = script("k = 2\ncheck('99.double', lambda x: 3 * x)\ncheck('99.double', lambda x: k * x)")
    assert re.findall("not yet|passed", out) == ["not yet", "passed"] and "Note:" not in out
    assert "passed" in script(
        "import functools\ndef f(a, b): return a * b\ncheck('99.double', functools.partial(f, 2))"
    )
    assert "passed" in script("def f(x): return 2 * x\nfor id, a in [('99.double', f)]: check(id, a)")
    assert "passed" in script("def judge(g): check('99.double', g)\ndef f(x): return 2 * x\njudge(f)")


def test_without_source_the_object_itself_is_checked(script, fake):
    out = script("""
        space = {"__name__": "__main__", "check": check}
        exec("def double(x): return 2 * x\\ncheck('99.double', double)", space)
    """)
    assert "passed" in out and "Note: the source of the answer was not found" in out


def test_a_forbidden_module(script, fake):
    out = script("def double(x):\n    from ampedu import formats\n    return 2 * x\ncheck('99.double', double)")
    assert "99.double must be solved without ampedu.formats: it holds the answer." in out and "got" not in out
    out = script(
        "from ampedu.formats import decode\ndef double(x):\n    decode\n    return 2 * x\ncheck('99.double', double)"
    )
    assert "99.double must be solved without ampedu.formats: it holds the answer." in out
    assert "passed" in script("import ampedu.formats\ndef double(x): return 2 * x\ncheck('99.double', double)")


def test_an_equivalent_is_noted_and_not_punished(script, fake, recorded):
    out = script(
        "import torch\ndef double(x): return torch.mul(torch.tensor(x).double(), 2).item()\ncheck('99.double', double)"
    )
    assert "passed – 2 of 2 points" in out and "Note: uses torch.mul: an instructor may want to look at it." in out
    assert recorded()["99.double"]["points"] == 2


def test_a_variable_that_other_cells_change(script, fake):
    out = script("""
        table = {}
        def fill():
            table["factor"] = 2
        fill()
        def double(x): return table["factor"] * x
        check("99.double", double)
    """)
    assert "gives the right results in this notebook, but only because of table, which other cells set or change" in out
    assert "not yet" in out
    out = script("for k in range(3): pass\ndef double(x): return k * x\ncheck('99.double', double)")
    assert "only because of k, which" in out
    out = script("for k in range(4): pass\ndef double(x): return k * x\ncheck('99.double', double)")
    assert "NameError: name 'k' is not defined" in out


def test_strict(script, fake, monkeypatch):
    wrong = "def double(x): return x + 1\ncheck('99.double', double)"
    stub = "def double(x): raise NotImplementedError('99.double: x')\ncheck('99.double', double)"
    for name, value in (("AMPEDU_STRICT", "1"), ("NBGRADER_EXECUTION", "autograde")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            for text, words in (
                (wrong, "6 of 6 cases differ"),
                (stub, "is still the stub"),
                ("check('99.double', None)", "is None"),
            ):
                with pytest.raises(AssertionError, match=words):
                    script(text)
            script("def double(x): return 2 * x\ncheck('99.double', double)")
    monkeypatch.setenv("AMPEDU_STRICT", "0")
    script(wrong)


def test_missing_and_damaged_data(script, data_copy):
    answer = "def double(x): return 2 * x\ncheck('99.double', double)"
    path = data_copy / "99_fake.json"
    content = path.read_text()
    path.write_text(content[:100])
    assert "The expected data of lab 99_fake cannot be read" in script(answer)
    path.unlink()
    out = script(answer)
    assert out.startswith("– 99.double – not judged") and "Contributors: run `make build`".replace("`", "") in out


def test_versioned_data(script, fake, monkeypatch):
    answer = "def by_version(n): return n + 1\ncheck('99.by_version', by_version)"
    assert "passed" in script(answer)
    monkeypatch.setattr(judge, "torch_version", lambda: "9.99")
    out = script(answer)
    assert "not judged" in out and "this is torch 9.99" in out
    assert "passed" in script("def double(x): return 2 * x\ncheck('99.double', double)")


def test_the_learners_state_is_left_alone(script, fake):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    filters = list(warnings.filters)
    try:
        with torch.no_grad(), torch.autocast("cpu"):
            out = script("""
                import torch, random
                def double(x):
                    assert torch.get_num_threads() == 1 and torch.get_default_dtype() == torch.float32
                    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
                    torch.manual_seed(99); torch.rand(9); random.random()
                    torch.set_default_dtype(torch.float16); torch.set_grad_enabled(False)
                    torch.set_default_dtype(torch.float32); torch.set_grad_enabled(True)
                    return 2 * x
                check("99.double", double)
            """)
            assert "passed" in out and not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        assert torch.get_num_threads() == 2 and torch.get_default_dtype() == torch.float64
        assert torch.equal(torch.rand(2, dtype=torch.float32), expected) and list(warnings.filters) == filters
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("change", "restore"),
    [
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
        (lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    ],
    ids=["default dtype", "default device", "flushed subnormals"],
)
def test_run_and_reduce_see_the_same_neutral_state(fake, monkeypatch, change, restore):
    ex, seen = load("99.double"), []

    def look(self, case, raw):
        made = torch.ones(1)
        seen.append((made.dtype, made.device.type, 2.0**-1074 > 0, (made * 2.0**-149).item() > 0))
        return raw

    monkeypatch.setattr(type(ex.spec), "reduce", look, raising=False)
    change()
    try:
        outcomes = judge.observe(ex, lambda x: look(None, None, 2 * x), ex.cases())
        judge.reduce(ex, ex.cases(), outcomes)
        flushed_outside = sys.float_info.min / 2 == 0.0
    finally:
        restore()
    assert set(seen) == {(torch.float32, "cpu", True, True)} and len(seen) == 12
    assert flushed_outside == (change.__code__.co_names == ("torch", "set_flush_denormal")), (
        "the learner's state is back"
    )


def test_random_answers_are_the_same_in_every_case(fake):
    ex = load("99.double")
    outcomes = judge.observe(ex, lambda x: torch.rand(()).item(), ex.cases())
    assert len({outcome["value"] for outcome in outcomes}) == 1


def test_keyboard_interrupt_reaches_the_learner(fake):
    def double(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge.observe(load("99.double"), double, load("99.double").cases())


def test_exit_and_strange_exceptions_are_outcomes(script, fake):
    assert "SystemExit: 3" in script("import sys\ndef double(x): sys.exit(3)\ncheck('99.double', double)")
    out = script(
        "class Odd(Exception):\n    def __str__(self): raise ValueError\ndef double(x): raise Odd\n"
        "check('99.double', double)"
    )
    assert "Odd: (the text of this exception cannot be shown)" in out
    assert "RecursionError" in script("def double(x): return double(x)\ncheck('99.double', double)")


def test_the_report_is_accessible_escaped_and_deterministic():
    made = report.Report(
        "failed",
        "99.x",
        "A `title`",
        "Use `a < b`.\u202e",
        "0 of 1 points",
        [("got", "<script>\x1b[31m\x00\ud800")],
        "in f, line 1:  <x>",
    )
    page = made._repr_html_()
    assert page == made._repr_html_() and "<script>" not in page and "<code>a &lt; b</code>" in page
    for hidden in ("\u202e", "\x1b", "\x00", "\ud800"):
        assert hidden not in page and hidden not in repr(made)
    assert 'aria-label="Check of 99.x"' in page and '<th scope="row"' in page and "not yet" in page
    assert "background: transparent" in page and not re.search(r"(?<!-)color: #", page), (
        "text has the color of the page"
    )


def test_check_has_one_name(fake):
    assert check is checking.check and data.load("99_fake").exercises.keys() == {
        ex.id for ex in map(load, data.load("99_fake").exercises)
    }
