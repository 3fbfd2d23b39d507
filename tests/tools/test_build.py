"""The build: what is executed when, and what a failure says. `runner` stands for papermill and counts executions."""

import json

import pytest

from tests.tools.conftest import LESSON, QUIZ, write
from tools import build, execute
from tools.project import BuildError

LESSON_FILE = "sources/lessons/01_bits.py"


def snapshot(project):
    folders = ("notebooks", "labs", "solutions", "docs", "ampedu/data")
    return {p: p.read_bytes() for f in folders for p in (project.root / f).rglob("*") if p.is_file()}


def load(project, folder="notebooks"):
    return json.loads((project.root / folder / "01_bits.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def built(project, runner, no_expected):
    assert build.build(project) == []
    return project


def test_builds_all_kinds_and_executes_two(built, runner):
    assert runner.calls == ["# 1 Bits", "# Lab 1 Bits"]
    assert load(built)["cells"][3]["outputs"][0]["text"] == ["42\n"]
    assert load(built, "solutions")["cells"][-2]["outputs"][0]["text"] == ["01.halve 2.0\n"]
    assert all(not cell.get("outputs") for cell in load(built, "labs")["cells"])
    assert (built.root / "docs" / "coverage.md").exists()


def test_a_second_build_executes_nothing_and_changes_no_byte(built, runner):
    before, calls = snapshot(built), len(runner.calls)
    assert build.build(built) == []
    assert len(runner.calls) == calls
    assert snapshot(built) == before


def test_a_changed_source_executes_its_notebook_only(built, runner):
    write(built.root, {LESSON_FILE: LESSON.replace("# See the", "# Look at the")})
    runner.calls.clear()
    build.build(built)
    assert runner.calls == ["# 1 Bits"]
    assert "Look at the" in json.dumps(load(built))


def test_a_changed_module_executes_the_notebooks_that_import_it(built, runner):
    runner.calls.clear()
    write(built.root, {"ampedu/unrelated.py": "x = 1\n"})
    build.build(built)
    assert runner.calls == []
    write(built.root, {"ampedu/helper.py": "def two():\n    return 2.0\n"})
    build.build(built)
    assert runner.calls == ["# 1 Bits"]


def test_an_edited_output_or_cell_is_executed_again(built, runner):
    good = snapshot(built)
    path = built.root / "notebooks" / "01_bits.ipynb"
    for old, new in (('"42\\n"', '"43\\n"'), ("double(21)", "double(22)")):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        runner.calls.clear()
        build.build(built)
        assert runner.calls == ["# 1 Bits"]
        assert snapshot(built) == good


def test_a_notebook_saved_by_an_editor_is_restored_without_execution(built, runner):
    good = snapshot(built)
    path = built.root / "notebooks" / "01_bits.ipynb"
    notebook = load(built)
    notebook["metadata"]["language_info"]["version"] = "3.11.7"
    path.write_text(json.dumps(notebook, indent=4), encoding="utf-8")
    runner.calls.clear()
    build.build(built)
    assert runner.calls == []
    assert snapshot(built) == good


def test_force_executes_everything_and_names_outputs_that_moved(built, runner, capsys):
    runner.calls.clear()
    build.build(built, force=True)
    assert runner.calls == ["# 1 Bits", "# Lab 1 Bits"]
    assert "note:" not in capsys.readouterr().out
    runner.suffix = "!"
    build.build(built, force=True)
    assert "notebooks/01_bits.ipynb, cell 01_bits-004: the outputs differ" in capsys.readouterr().out


def test_one_stem(project, runner, no_expected):
    write(project.root, {"sources/lessons/02_more.py": LESSON.replace("# 1 Bits", "# 2 More")})
    build.build(project, ("02_more",))
    assert runner.calls == ["# 2 More"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            execute.CellError(3, 3, "ValueError: no"),
            "sources/lessons/01_bits.py, line 13 (cell 01_bits-004): ValueError: no",
        ),
        (execute.CellError(1, 5, "RuntimeError: no"), "setup cell (01_bits-002): RuntimeError: no"),
        (execute.NotebookTimeout(300), "did not finish in 300 s and was killed; make the notebook shorter"),
        (RuntimeError("papermill failed: no kernel"), "sources/lessons/01_bits.py: papermill failed: no kernel"),
    ],
)
def test_a_failure_names_source_line_and_reason(project, no_expected, monkeypatch, error, words):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(execute, "run", fail)
    target = project.targets(kinds=("lesson",))[0]
    with pytest.raises(BuildError) as raised:
        build.build_notebook(project, target)
    assert words in str(raised.value)
    assert not target.path.exists()


def test_stderr_and_addresses_are_errors_with_their_line(project, runner, no_expected):
    text = LESSON.replace("x = 3", "class Thing: ...\nprint(Thing())")
    write(project.root, {LESSON_FILE: text})
    problems = build.build(project)
    line = text.split("\n").index("class Thing: ...") + 1
    assert any(f"line {line} (cell 01_bits-006): it prints an address" in problem for problem in problems)


def test_a_syntax_error_stops_only_its_notebook(project, runner, no_expected):
    write(project.root, {"sources/lessons/02_more.py": "# %% [markdown]\n# # 2\n\n# %%\nx = = 1\n"})
    problems = build.build(project)
    assert runner.calls == ["# 1 Bits", "# Lab 1 Bits"]
    assert [p for p in problems if "sources/lessons/02_more.py, line 5: invalid syntax" in p]


def test_quizzes_are_made_and_stale_ones_named_by_nobody_after_it(built):
    write(built.root, {"sources/quizzes/01_bits.toml": QUIZ})
    assert build.build(built) == []
    made = json.loads((built.root / "ampedu/data/quizzes/01_bits.json").read_text(encoding="utf-8"))
    assert made["stem"] == "01_bits"
    assert made["questions"][0]["options"][0] == {"text": "8", "correct": True, "reason": "By definition today."}


def test_the_command_line_prints_problems_and_returns_one(project, monkeypatch, capsys):
    monkeypatch.setattr(build, "ROOT", project.root)
    assert build.main(["07_nothing"]) == 1
    assert "no lesson or lab called 07_nothing" in capsys.readouterr().err
