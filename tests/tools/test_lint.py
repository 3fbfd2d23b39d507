import base64
import json

import pytest

from tests.tools.conftest import LAB, LESSON, QUIZ, write
from tools import build, lint
from tools import notebook as files

NOTEBOOK = "notebooks/01_bits.ipynb"
SOURCE = "sources/lessons/01_bits.py"


@pytest.fixture
def built(project, runner, no_expected):
    assert build.build(project) == []
    assert lint.lint(project) == []
    return project


def has(problems, words):
    return any(words in problem for problem in problems)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"measured"', '"slow"', 'line 19 (cell 01_bits-006): unknown tag "slow"'),
        ('"measured"', '"C1"', 'unknown tag "C1"'),
        ('"measured"', '"measured", "measured"', "a tag is given twice"),
        ('"nbval-check-output", "C01"', '"nbval-check-output", "measured"', "exclude each other"),
        ('"nbval-check-output", ', "", "0 of 2 code cells are tagged nbval-check-output"),
        ("x = 3", "\n".join(f"x{n} = 0" for n in range(21)), "21 lines in a code cell; split it, 20 are the limit"),
        ("x = 3", "\n".join(f"x{n} = 0" for n in range(12)), "the median code cell has 7.5 lines"),
        ("x = 3", "from ampedu.helper import a, b, c", "3 names from ampedu in one cell"),
        ("x = 3", "import torch\ntorch.cuda.amp.autocast()", "line 20 (cell 01_bits-006): deprecated torch.cuda.amp"),
        ("x = 3", "from torch.cuda import amp", "deprecated torch.cuda.amp"),
        ("x = 3", "!pip list", "a shell line fails silently"),
        ("x = 3", "x = 3;", "a trailing semicolon"),
        ("**You will be able to**", "You will", 'does not say "**You will be able to** …"'),
        ("*10 minutes*", "", "does not say how long it takes"),
        ('tags=["parameters"]', "", "0 cells are tagged parameters"),
        ("seed = 0", "seed = 1", 'must be exactly device = "auto" and seed = 0'),
        ("../labs/01_bits.ipynb", "../labs/01_bit.ipynb", 'the link "../labs/01_bit.ipynb" leads nowhere'),
        ("See the", "[Here][there], see the", "the link [Here][there] is defined in no line of this cell"),
        ("See the", "[Here][].\n#\n# [here]: none.ipynb\n#\n# See the", 'the link "none.ipynb" leads nowhere'),
        ("See the", "![](picture.png) See the", "an image without alt text"),
        ("See the", '<img src="https://x.y/z.png"> See the', "an image without alt text"),
        ("x = 3", 'quiz("01.bits")', 'there is no question "01.bits"'),
    ],
)
def test_rules_on_sources(built, old, new, words):
    assert old in LESSON
    write(built.root, {SOURCE: LESSON.replace(old, new)})
    problems = lint.lint(built)
    assert has(problems, words), problems


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = 3", "import torch\n'torch.cuda.amp is old'.upper()"),
        ("../labs/01_bits.ipynb", "../notebooks/02_more.ipynb"),
        ("../labs/01_bits.ipynb", "https://pytorch.org"),
        ("See the", "See `[a](b)` and $f[x](y)$ and the"),
        ("See the", "![a bit](../notebooks/01_bits.ipynb) See the"),
    ],
)
def test_what_is_allowed(built, old, new):
    tagged = LESSON.replace('"measured"', '"shows-deprecated"')
    write(built.root, {SOURCE: tagged.replace(old, new)})
    assert lint.lint(built) == []


def test_solution_markers_and_docstrings_do_not_count_as_lines(built):
    long = "\n".join(f"    line_{n} = {n}" for n in range(14))
    write(
        built.root,
        {"sources/labs/01_bits.py": LAB.replace("    half_of_it = x / 2\n", f"{long}\n    half_of_it = x / 2\n")},
    )
    assert not has(lint.lint(built), "split it")


def test_quizzes_must_be_asked(built):
    write(built.root, {"sources/quizzes/01_bits.toml": QUIZ})
    assert has(lint.lint(built), "sources/quizzes/01_bits.toml: quiz/01.bits is asked in no lesson or lab")
    write(built.root, {SOURCE: LESSON.replace("x = 3", 'quiz("quiz/01.bits")')})
    assert lint.lint(built) == []


def with_output(project, output):
    path = project.root / NOTEBOOK
    notebook = files.load(path)
    notebook["cells"][-1]["outputs"] = [output]
    path.write_text(files.dumps(notebook), encoding="utf-8")
    return lint.lint(project)


def display(data, metadata=None):
    return {"output_type": "display_data", "data": data, "metadata": metadata or {}}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (display({"image/png": "iVBORw0KGgo="}), "a figure without alt text"),
        (display({"image/png": "iVBORw0KGgo="}, {"image/png": {"alt": " "}}), "a figure without alt text"),
        (
            display({"image/png": base64.b64encode(bytes(100_500)).decode()}, {"image/png": {"alt": "x"}}),
            "a figure of 100 kB",
        ),
        (display({"text/html": '<img src="data:image/png;base64,AA">'}), "an <img> without alt text"),
        (display({"text/plain": "/home/me/x"}), 'a path of this machine ("/home/me")'),
        (display({"text/plain": "at C:\\Users\\me"}), "a path of this machine"),
        (display({"text/plain": "on 2026-01-31"}), 'a date or a time of day ("2026-01-31")'),
        (display({"text/plain": "<object at 0x7f0012>"}), "prints an address"),
        ({"output_type": "stream", "name": "stderr", "text": "Warning\n"}, "writes to stderr"),
        (display({"text/plain": "x" * 1_000_001}), "1.0 MB of outputs; at most 1 MB"),
    ],
)
def test_rules_on_outputs(built, output, words):
    problems = with_output(built, output)
    assert has(problems, words), problems


@pytest.mark.parametrize(
    "output",
    [
        display({"image/png": "iVBORw0KGgo="}, {"image/png": {"alt": "A number line"}}),
        display({"text/html": '<img alt="bits" src="x"><script>var p = "/tmp/x";</script>'}),
        display({"text/plain": "1/2 and 3/usr and ratio 10:30"}),
        display({"text/plain": "0x3C00 is 1.0"}),
    ],
)
def test_outputs_that_are_allowed(built, output):
    assert with_output(built, output) == []


def test_a_compared_cell_must_show_something(built):
    path = built.root / NOTEBOOK
    notebook = files.load(path)
    notebook["cells"][3]["outputs"] = []
    path.write_text(files.dumps(notebook), encoding="utf-8")
    assert has(lint.lint(built), "tagged nbval-check-output but shows nothing")


def test_fix_restores_what_is_mechanical(built):
    good = {name: (built.root / name).read_bytes() for name in (NOTEBOOK, SOURCE)}
    notebook = json.loads(good[NOTEBOOK])
    notebook["metadata"]["papermill"] = {"duration": 3}
    notebook["metadata"]["widgets"] = {}
    notebook["metadata"]["kernelspec"]["display_name"] = "my env"
    del notebook["metadata"]["accelerator"]
    for cell in notebook["cells"]:
        cell["metadata"]["papermill"], cell["id"] = {}, cell["id"].replace("01_bits", "x")
    write(
        built.root,
        {
            NOTEBOOK: json.dumps(notebook),
            SOURCE: LESSON.replace("x = 3\n", "x = 3; \n\n\n").replace('"measured"', '"measured", "measured"'),
        },
    )
    assert has(lint.lint(built), "python -m tools.lint --fix")
    assert {path.name for path in lint.fix(built)} == {"01_bits.ipynb", "01_bits.py"}
    assert {name: (built.root / name).read_bytes() for name in (NOTEBOOK, SOURCE)} == good
    assert lint.fix(built) == []
    assert lint.lint(built) == []
