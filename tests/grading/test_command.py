"""The command line: what it prints, what it returns, and the secret's file."""

import argparse
import stat
import subprocess
import sys
import types

import pytest

from ampedu import cli
from ampedu.grading import batch, command, results, secret, selftest
from ampedu.grading.results import LabResult, StudentResult

from .conftest import LAB, ROOT, written


def test_make_secret(tmp_path, capsys):
    path = tmp_path / "new" / "secret"
    assert cli.main(["grade", "make-secret", str(path)]) == 0
    key = secret.read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(key) == 64
    out = capsys.readouterr().out
    assert secret.secret_id(key) in out and key.decode() not in out
    assert cli.main(["grade", "make-secret", str(path)]) == 1
    assert "exists" in capsys.readouterr().err and secret.read(path) == key


def test_secrets_that_are_no_secrets(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(secret.SecretError, match="make-secret"):
        secret.read(path)
    path.write_text("short\n")
    path.chmod(0o600)
    with pytest.raises(secret.SecretError, match="5 bytes"):
        secret.read(path)
    path.write_text("long enough to be a secret")
    path.chmod(0o644)
    with pytest.raises(secret.SecretError, match="chmod 600"):
        secret.read(path)


def test_ids_tell_secrets_apart_and_nothing_else():
    assert secret.secret_id(b"a" * 16) != secret.secret_id(b"b" * 16)
    assert secret.secret_id(b"public") == "public"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["grade", "run", "99", "given", "-o", "out"], "There is no lab '99'. The labs are: 01_bit_layouts"),
        (["grade", "run", "01", "nowhere", "-o", "out"], "nowhere does not exist"),
        (["grade", "run", "01", "given", "-o", "out", "--secret", "none-here"], "make-secret"),
        (["grade", "regrade", "out"], "no finished run"),
        (["grade", "preview", "gone.ipynb"], "cannot be opened"),
        (["grade", "preview", "given/a.ipynb", "--lab", "77"], "no lab '77'"),
        (["grade", "preview", "given/a.ipynb"], "defines an answer"),
    ],
)
def test_errors_are_one_sentence_with_the_cure(arguments, text, tmp_path, monkeypatch, capsys):
    written(tmp_path / "given/a.ipynb", ["x = 1"])
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("ampedu: ") and text in error


RUN = ["grade", "run", "1", "x", "-o", "y"]


@pytest.mark.parametrize("arguments", [["grade"], RUN[:4], [*RUN, "--jobs", "0"], [*RUN, "--memory", "nan"]])
def test_wrong_command_lines(arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2


@pytest.mark.parametrize(("counts", "status"), [({"graded": 1}, 0), ({"graded": 1, "infra": 1}, command.INFRA)])
def test_the_exit_status_says_whether_to_run_again(counts, status, monkeypatch, tmp_path, capsys):
    student = StudentResult("ann", "", [LabResult(LAB, "infra", None, 5, reason="Run again.")], "id", {})
    info = results.ExerciseInfo("01.decode", LAB, "decode", "T", 2)
    run = types.SimpleNamespace(
        counts=counts, sandbox="none", exercises=[info], equal=[], rejected=[], regraded=1, reused=0, seconds=1.0
    )
    monkeypatch.setattr(batch, "grade", lambda *a, **k: run)
    monkeypatch.setattr(results, "load_run", lambda out: (run, [student]))
    assert cli.main(["grade", "run", "01", "x", "-o", str(tmp_path)]) == status
    out = capsys.readouterr().out
    assert "UNSANDBOXED" in out and "ann: infra. Run again." in out


def test_ctrl_c_is_one_sentence(monkeypatch, capsys):
    def interrupted(*a, **k):
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "grade", interrupted)
    assert cli.main(["grade", "run", "01", "x", "-o", "y"]) == 130
    assert "run the command again" in capsys.readouterr().err


def test_doctor_fails_when_a_promise_is_broken(monkeypatch, capsys):
    rows = [selftest.Row("no network", True, "refused"), selftest.Row("memory is bounded", False, "64 GiB")]
    monkeypatch.setattr(selftest, "report", lambda: (rows, False))
    assert cli.main(["doctor", "--grading"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "cannot be graded safely" in out


def test_doctor_without_bubblewrap_says_what_to_install(monkeypatch):
    monkeypatch.setattr(selftest.shutil, "which", lambda name: None)
    rows, good = selftest.report()
    assert not good and "apt install bubblewrap" in rows[-1].text


def test_preview_of_the_solution_and_of_a_wrong_answer(inline, tmp_path, capsys):
    assert cli.main(["grade", "preview", str(ROOT / f"solutions/{LAB}.ipynb")]) == 0
    out = capsys.readouterr().out
    assert out.count("✓") == 11 and "21 of 21 points" in out
    path = written(tmp_path / "mine.ipynb", ["def decode(code, e, m):\n    return missing_name"])
    assert cli.main(["grade", "preview", str(path)]) == 0
    out = capsys.readouterr().out
    assert "name 'missing_name' is not defined" in out and "line 2" in out and "0 of 21 points" in out


def test_without_a_terminal_progress_is_lines(capsys):
    with command._Progress() as progress:
        for done in range(31):
            progress(done, 30, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "0 of 30 graded" and lines[-1] == "30 of 30 graded" and len(lines) == 12


def test_help_names_the_steps():
    asked = [sys.executable, "-m", "ampedu", "grade", "--help"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert all(step in done.stdout for step in ("run", "regrade", "preview", "make-secret"))


def test_options_reach_the_batch(monkeypatch, tmp_path):
    seen = {}

    def grade(*arguments, **options):
        seen.update(options)
        raise batch.GradingError("enough")

    monkeypatch.setattr(batch, "grade", grade)
    command.main(argparse.Namespace(step="run", lab="01", submissions="s", out="o", roster=None, secret="k", jobs=3,
                                    sandbox="bwrap", timeout=None, memory=2.0))  # fmt: skip
    del seen["progress"], seen["say"]
    assert seen == {"secret_file": "k", "jobs": 3, "sandbox": "bwrap", "memory": 2.0}


