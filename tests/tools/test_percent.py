from pathlib import Path

import jupytext
import pytest

from tools import percent
from tools.project import BuildError

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "sources").glob("l*/*.py"))


def test_cells_tags_exercises_and_lines():
    script = percent.parse(
        '# %% [markdown] tags=["C07"]\n# # Title\n#\n# text\n\n# %% tags=["a", "b"]\n\nx = 1\n\n\n'
        '# %% exercise="01.f"\ndef f():\n    return """\n# %% no cell\n"""\n# %%\n\n',
        "s.py",
    )
    assert [(c.kind, c.tags, c.exercise, c.line) for c in script.cells] == [
        ("markdown", ("C07",), None, 2),
        ("code", ("a", "b"), None, 8),
        ("code", (), "01.f", 12),
    ]
    assert script.cells[0].source == "# Title\n\ntext"
    assert script.cells[2].source == 'def f():\n    return """\n# %% no cell\n"""'


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_agrees_with_jupytext_on_every_source(path):
    theirs = [(c.cell_type, c.source) for c in jupytext.read(path, fmt="py:percent").cells if c.source]
    assert [(c.kind, c.source) for c in percent.read(path, path.name).cells] == theirs


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("# %%\nx = 1\ny = = 2\n", 3, "invalid syntax"),
        ("# %% [markdown]\n# a\n\n# %%\n\n\ndef f(:\n    pass\n", 7, "invalid syntax"),
        ("# %% [markdown]\n# a\nb = 1\n", 3, "did you forget"),
        ("import os\n# %%\nx = 1\n", 1, "before the first cell"),
        ('# %% tagz=["a"]\nx = 1\n', 1, "tagz"),
        ("# %% tags=measured\nx = 1\n", 1, "tags=measured"),
        ('# %% tags="measured"\nx = 1\n', 1, "must be a list"),
    ],
)
def test_errors_name_file_line_and_reason(text, line, words):
    with pytest.raises(BuildError) as error:
        percent.parse(text, "sources/lessons/01.py")
    assert f"sources/lessons/01.py, line {line}: " in str(error.value)
    assert words in str(error.value)


def test_magics_are_left_to_ipython():
    cells = percent.parse("# %%\n%matplotlib inline\nx = 1\n\n# %%\n%%writefile f.txt\nnot python at all\n", "s").cells
    assert len(cells) == 2
