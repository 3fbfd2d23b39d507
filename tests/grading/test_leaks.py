"""What a student reads tells nothing of the secret inputs, however an answer tries to send them."""

import textwrap

import pytest

from ampedu.exercises import load
from ampedu.exercises.data import ExerciseData
from ampedu.grading import answers, judging
from ampedu.grading.report import feedback

DECODE = load("01.decode")
LETTERS = str.maketrans("0123456789", "abcdefghij")
BEFORE = """
import os, signal, sys
def spelled(value):
    return str(value).translate(str.maketrans("0123456789", "abcdefghij"))
"""
WAYS = {  # name: (body of decode, whether the instructor reads the first code in the error)
    "the text of an exception": ("raise ValueError(f'the code is {spelled(code)}')", True),
    "the text as digits": ("raise RuntimeError(code)", False),
    "the name of a class": ("raise type('E' + spelled(code), (Exception,), {})('x')", True),
    "a known name of another class": ("raise type('ValueError', (Exception,), {})(spelled(code))", True),
    "the stub's exception": ("raise NotImplementedError('01.decode: ' + spelled(code))", False),
    "a forged import error": (
        "from ampedu.exercises.blocking import ForbiddenImport as E\nraise E(spelled(code))", True,
    ),
    "an assertion": ("assert False, spelled(code)", True),
    "an exit": ("raise SystemExit(spelled(code))", True),
    "the exit status": ("os._exit(code % 251 + 1)", False),
    "the signal": ("os.kill(os.getpid(), (9, 6, 11)[code % 3])", False),
    "the name of a type": ("return type(spelled(code), (), {})()", False),
    "a line that is empty": (
        "exec(compile('\\n' * (99 + code % 800) + 'raise ValueError', '<answer x>', 'exec'))", False,
    ),
    "a frame": ("os.write(4, (spelled(code) * 9).encode())\nos._exit(0)", False),
}  # fmt: skip
AT_DEFINITION = """
frame = sys._getframe()
while frame is not None and "job" not in frame.f_locals:
    frame = frame.f_back
raise ValueError(spelled(frame.f_locals["job"]["cases"][0]["code"]))
"""


def judged(sandbox, source, secret):
    """(result, cases) of an answer to 01.decode; each case is said to expect None, so that all differ."""
    cases = DECODE.cases(secret)
    observed = sandbox.observe(DECODE, source, "decode", cases)
    item = ExerciseData(cases, {"any": [{"value": None}] * len(cases)})
    return judging.judged(DECODE, item, answers.Answer(source, "decode", "name"), observed), cases


def assert_says_nothing(sandbox, source):
    """The instructor's result for the first secret."""
    texts = []
    for secret in (b"one", b"another"):
        result, cases = judged(sandbox, source, secret)
        part = feedback.part(result)
        texts.append([part.message, part.code, *part.notes])
        codes = {str(case["code"]) for case in cases if case["code"] > 999}
        assert codes
        shown = " ".join(texts[-1])
        assert not [code for code in codes if code in shown or code.translate(LETTERS) in shown]
    assert texts[0] == texts[1]
    return judged(sandbox, source, b"one")


@pytest.mark.parametrize("name", WAYS)
def test_nothing_of_an_input_reaches_the_student(warm, name):
    body, kept = WAYS[name]
    source = f"{BEFORE}def decode(code, *more):\n{textwrap.indent(body, '    ')}\n" + "\n" * 1000
    result, cases = assert_says_nothing(warm, source)
    assert result.points == 0
    if kept:
        assert str(cases[0]["code"]).translate(LETTERS) in result.error


def test_nor_what_the_definition_finds_in_its_process(warm):
    result, cases = assert_says_nothing(warm, f"{BEFORE}{AT_DEFINITION}def decode(code, *more):\n    return 0.0\n")
    assert str(cases[0]["code"]).translate(LETTERS) in result.error


def test_the_student_learns_the_type_and_the_line_and_where_to_see_more(warm):
    source = "import math\n\ndef helper(x):\n    y = x\n    return math.sqrt(-1 - y)\n\ndef decode(code, *more):\n"
    result, _ = judged(warm, source + "    return helper(code)\n", b"one")
    assert result.student_error == (
        "It raised `ValueError` in line 3 of `helper`. `check` shows the text of the error on the public cases."
    )
    assert "math domain error" in result.error and "return math.sqrt(-1 - y)" in result.error
    result, _ = judged(warm, "class Odd(Exception): pass\ndef decode(*a):\n    raise Odd('x')\n", b"one")
    assert result.student_error.startswith("It raised an error of its own class in line 2 of `decode`. `check`")
    result, _ = judged(warm, "x = 1 / 0\ndef decode(*a):\n    return x\n", b"one")
    assert "It raised `ZeroDivisionError` in line 1 of what `decode` needs." in result.message
