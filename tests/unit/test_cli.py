"""The command line."""

import json
import subprocess
import sys

import pytest

from ampedu import cli, progress


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


HEAVY = {"torch", "numpy", "matplotlib", "IPython", "ipywidgets", "rich", "anywidget"}


def test_import_loads_nothing_heavy():
    bare, with_ampedu = modules_after("pass"), modules_after("import ampedu")
    assert {name for name in with_ampedu - bare if not name.startswith("ampedu")} == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["doctor", "--help"],
        ["reset", "--help"],
        ["grade", "--help"],
        ["grade", "run", "--help"],
        ["--version"],
    ],
)
def test_help_loads_no_torch(arguments):
    code = f"import ampedu.cli\ntry: ampedu.cli.main({arguments})\nexcept SystemExit as stop: assert stop.code == 0"
    assert not modules_after(code) & HEAVY


def test_unknown_command_names_the_near_one(capsys):
    assert cli.main(["dotcor"]) == 2
    assert "ampedu doctor" in capsys.readouterr().err
    assert cli.main(["zzz"]) == 2
    assert "doctor, exercises, grade, progress, reset" in capsys.readouterr().err


def test_no_command_shows_the_help(capsys):
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in cli.COMMANDS)


def test_a_reader_that_stops_early_ends_without_a_traceback():
    command = [sys.executable, "-m", "ampedu", "progress"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


def test_exercises_lists_points_and_claims(monkeypatch, capsys):
    import ampedu.exercises
    from ampedu.exercises.spec import Row

    rows = [Row("01.decode", "Decode a pattern.", 2, 10, 1, ("C07",)), Row("01.encode", "Encode.", 4, 25, 3, ())]
    monkeypatch.setattr(ampedu.exercises, "table", lambda: rows)
    assert cli.main(["exercises"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["01.decode", "2", "10", "●", "C07", "Decode", "a", "pattern."]
    assert lines[1].index("Decode") == lines[2].index("Encode") == lines[0].index("about")


def test_progress(capsys):
    assert cli.main(["progress"]) == 0
    assert "Nothing yet" in capsys.readouterr().out
    progress.record_exercise("01.decode", "passed", 2)
    progress.record_quiz("quiz/01.more_range", False)
    assert cli.main(["progress"]) == 0
    out = capsys.readouterr().out
    assert "01.decode" in out and "quiz/01.more_range" in out and "1 exercise passed, 2 points." in out


def test_progress_export(tmp_path, capsys):
    progress.record_exercise("01.decode", "passed", 2)
    target = tmp_path / "mine.json"
    assert cli.main(["progress", "--export", str(target)]) == 0
    assert json.loads(target.read_text())["exercises"]["01.decode"]["points"] == 2
    assert cli.main(["progress", "--export", str(tmp_path / "missing" / "mine.json")]) == 1
    assert "Name another file" in capsys.readouterr().err
    assert cli.main(["progress", "--export", str(tmp_path / "mine.xls")]) == 1
    assert ".csv or a .json" in capsys.readouterr().err


def test_reset_error_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "labs").mkdir()
    (tmp_path / "ampedu").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["reset", "01"]) == 1
    assert "make learn" in capsys.readouterr().err


def test_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "ampedu", "dcotor"], check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "ampedu doctor" in done.stderr
