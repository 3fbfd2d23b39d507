"""`make learn`: copies that are never overwritten, an environment that is made once, errors that say the cure."""

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools import copies, environment, learn

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def places(tmp_path):
    repository, work = tmp_path / "repository", tmp_path / "work"
    for folder in copies.FOLDERS:
        (repository / folder).mkdir(parents=True)
        (repository / folder / "01_bit_layouts.ipynb").write_text(f"{folder} version 1")
    copies.deliver(repository, work)
    return repository, work


NAME = "notebooks/01_bit_layouts.ipynb"
NEW = "notebooks/01_bit_layouts.new.ipynb"


def test_first_time_copies_everything(places):
    repository, work = places
    assert (work / "labs/01_bit_layouts.ipynb").read_text() == "labs version 1"
    assert (work / "solutions/01_bit_layouts.ipynb").read_text() == "solutions version 1"
    assert copies.deliver(repository, work) == []


def test_an_untouched_file_is_updated(places):
    repository, work = places
    (repository / NAME).write_text("version 2")
    assert copies.deliver(repository, work) == ["work/notebooks/01_bit_layouts.ipynb: updated to the newer version."]
    assert (work / NAME).read_text() == "version 2"
    assert not (work / NEW).exists()


def test_a_changed_file_stays_and_the_newer_one_is_laid_beside_it_once(places):
    repository, work = places
    (work / NAME).write_text("mine")
    assert copies.deliver(repository, work) == []
    (repository / NAME).write_text("version 2")
    said = copies.deliver(repository, work)
    assert len(said) == 1 and "01_bit_layouts.new.ipynb" in said[0] and "stays" in said[0]
    assert ((work / NAME).read_text(), (work / NEW).read_text()) == ("mine", "version 2")
    (work / NEW).unlink()
    assert copies.deliver(repository, work) == []
    assert not (work / NEW).exists()


def test_a_second_update_replaces_only_an_untouched_offer(places):
    repository, work = places
    (work / NAME).write_text("mine")
    (repository / NAME).write_text("version 2")
    copies.deliver(repository, work)
    (repository / NAME).write_text("version 3")
    copies.deliver(repository, work)
    assert (work / NEW).read_text() == "version 3"
    (work / NEW).write_text("mine too")
    (repository / NAME).write_text("version 4")
    copies.deliver(repository, work)
    assert (work / NEW).read_text() == "mine too"
    assert (work / "notebooks/01_bit_layouts.new-2.ipynb").read_text() == "version 4"
    assert (work / NAME).read_text() == "mine"


def test_a_deleted_file_comes_back(places):
    repository, work = places
    (work / NAME).unlink()
    copies.deliver(repository, work)
    assert (work / NAME).read_text() == "notebooks version 1"


def test_a_learner_who_takes_the_new_version_gets_updates_again(places):
    repository, work = places
    (work / NAME).write_text("mine")
    (repository / NAME).write_text("version 2")
    copies.deliver(repository, work)
    (work / NEW).replace(work / NAME)
    copies.deliver(repository, work)
    (repository / NAME).write_text("version 3")
    copies.deliver(repository, work)
    assert (work / NAME).read_text() == "version 3"


@pytest.mark.parametrize(
    "manifest",
    ["", "{", "[]", '{"a": 3}', f'{{"{NAME}": {{"delivered": 3}}}}', f'{{"{NAME}": {{"offered": "x"}}}}',
     f'{{"{NAME}": {{"offered": 7}}}}'],
)  # fmt: skip
def test_without_a_usable_manifest_nothing_is_overwritten(places, manifest):
    repository, work = places
    (work / copies.MANIFEST).write_text(manifest)
    (work / NAME).write_text("mine")
    (repository / NAME).write_text("version 2")
    copies.deliver(repository, work)
    assert (work / NAME).read_text() == "mine"
    assert (work / NEW).read_text() == "version 2"


def test_files_of_the_learner_are_left_alone(places):
    repository, work = places
    (work / "notebooks/my_own.ipynb").write_text("own")
    (work / "labs/01_bit_layouts.backup-1.ipynb").write_text("backup")
    copies.deliver(repository, work)
    assert (work / "notebooks/my_own.ipynb").read_text() == "own"
    assert not list(work.rglob("*.part"))
    assert set(json.loads((work / copies.MANIFEST).read_text())) == {
        f"{f}/01_bit_layouts.ipynb" for f in copies.FOLDERS
    }


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["torch>=2.11", "ipywidgets>=7.7.1"]\n'
        '[project.optional-dependencies]\ncourse = ["jupyterlab>=4"]\n'
    )
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\nnumpy==2.4.6\nJinja2==3.1.6\n")
    folder = tmp_path / ".venv"
    python = environment.python_of(folder)
    python.parent.mkdir(parents=True)
    python.write_text("")
    return tmp_path, folder, python


def test_stamp(project):
    repository, folder, python = project
    mark = environment.fingerprint(repository, python, None)
    assert not environment.is_ready(folder, python, "course", mark)
    environment.write_stamp(folder, "course", mark, None)
    assert environment.is_ready(folder, python, "course", mark)
    assert not environment.is_ready(folder, python, "dev", mark)
    environment.write_stamp(folder, "dev", mark, None)
    assert environment.is_ready(folder, python, "course", mark) and environment.is_ready(folder, python, "dev", mark)
    python.unlink()
    assert not environment.is_ready(folder, python, "course", mark)


@pytest.mark.parametrize("stamp", ["", "[]", '{"fingerprint": 1}', '{"extras": ["course"]}'])
def test_a_damaged_stamp_means_not_ready(project, stamp):
    repository, folder, python = project
    (folder / environment.STAMP).write_text(stamp)
    assert not environment.is_ready(folder, python, "course", environment.fingerprint(repository, python, None))


def test_fingerprint_changes_with_what_it_stands_for(project):
    repository, _, python = project
    marks = [
        environment.fingerprint(repository, python, None),
        environment.fingerprint(repository, python, "2.11.0"),
        environment.fingerprint(repository, python, None, (3, 99)),
        environment.fingerprint(repository, "other", None),
    ]
    for name in ("pyproject.toml", "constraints.txt"):
        (repository / name).write_text("changed")
        marks.append(environment.fingerprint(repository, python, None))
    assert len(set(marks)) == len(marks)


def prepare(monkeypatch, project, present, **options):
    """Runs prepare with pip and venv replaced; returns (pip commands, venv commands' see_base, constraints used)."""
    repository, folder, _ = project
    ran, made = [], []
    monkeypatch.setattr(environment, "installed_torch", lambda: present)
    monkeypatch.setattr(environment, "installed_names", lambda: ["numpy", "jinja2", "torch"])
    monkeypatch.setattr(environment, "run_pip", ran.append)
    monkeypatch.setattr(environment, "make_venv", lambda folder, python, see_base, say: made.append(see_base))
    environment.prepare(repository, say=lambda text: None, **options)
    used = folder if not options.get("here") else repository / "build"
    return ran, made, (used / "constraints-used.txt").read_text()


def test_prepare_installs_once(monkeypatch, project):
    ran, made, used = prepare(monkeypatch, project, None)
    assert made == [False] and used == (project[0] / "constraints.txt").read_text()
    assert len(ran) == 1 and ran[0][-1] == f"{project[0]}[course]" and "-c" in ran[0]
    assert prepare(monkeypatch, project, None)[:2] == ([], [])


def test_prepare_again_when_the_project_changed(monkeypatch, project):
    prepare(monkeypatch, project, None)
    (project[0] / "pyproject.toml").write_text("changed")
    assert len(prepare(monkeypatch, project, None)[0]) == 1


def test_dev_serves_learners_too(monkeypatch, project):
    prepare(monkeypatch, project, None, extra="dev")
    assert prepare(monkeypatch, project, None, extra="course")[0] == []


def test_an_installed_torch_stays(monkeypatch, project):
    ran, made, used = prepare(monkeypatch, project, "2.11.0+cu128")
    assert made == [True]
    # JupyterLab in full, from the known-good set; then ampedu, under the constraint that keeps torch.
    assert ran[0][-3:] == ["--ignore-installed", "ipywidgets>=7.7.1", "jupyterlab>=4"]
    assert ran[1][-1] == f"{project[0]}[course]" and "--ignore-installed" not in ran[1]
    assert used == "torch==2.11.0\n"  # and what the interpreter has already is not pinned to anything else


def test_here_makes_no_environment(monkeypatch, project):
    ran, made, used = prepare(monkeypatch, project, "2.12.1", here=True)
    assert made == [] and ran[0][0] == sys.executable and "torch==2.12.1" in used


def test_another_version_of_torch_on_request(monkeypatch, project):
    ran, made, used = prepare(monkeypatch, project, "2.13.0", torch="2.11.0", torch_index="https://example.org/cpu")
    assert made == [False] and "torch==2.11.0" in used and "torch==2.13.0" not in used and "numpy==2.4.6" in used
    assert ran[0][ran[0].index("--extra-index-url") + 1] == "https://example.org/cpu"


@pytest.mark.parametrize(
    ("version", "expected"), [("2.11.0", True), ("2.13.0+cu130", True), ("3.0", True), ("2.9.1", False), ("x", False)]
)
def test_new_enough_compares_numbers_not_text(version, expected):
    assert environment.new_enough(version) is expected


def test_old_python_is_said_with_the_cure():
    with pytest.raises(environment.Stop, match=r"3\.9.*too old.*3\.11(?s:.*)PYTHON="):
        environment.check_python((3, 9, 2), "/usr/bin/python3")
    environment.check_python((3, 11, 0))


@pytest.mark.parametrize("name", ["learn", "copies", "environment"])
def test_scripts_parse_on_old_python_and_need_only_the_standard_library(name):
    tree = ast.parse((ROOT / "tools" / f"{name}.py").read_text(encoding="utf-8"), feature_version=(3, 6))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"tools"}


def test_no_venv_module(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "_importable", lambda name: name != "ensurepip")
    with pytest.raises(environment.Stop, match=r"ensurepip(?s:.*)apt install python3(?s:.*)--here"):
        environment.make_venv(tmp_path / ".venv", tmp_path / ".venv/bin/python", False, print)


def test_full_disk_before_the_download(monkeypatch, tmp_path):
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10**8}))
    with pytest.raises(environment.Stop, match=r"0\.1 GB free"):
        environment.check_disk(tmp_path)


@pytest.mark.parametrize(
    ("output", "word"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError('... [Errno -3] Temporary failure in name resolution')", "No connection"),
        ("ERROR: No matching distribution found for torch==2.13.0", "TORCH_INDEX"),
        ("error: externally-managed-environment", "--here"),
        ("OSError: [Errno 13] Permission denied: '/x'", "may not be written"),
    ],
)
def test_failures_of_pip_are_explained(output, word):
    assert word in environment.explain(output)
    script = f"import sys; print({output!r}, file=sys.stderr); sys.exit(1)"
    with pytest.raises(environment.Stop, match=word):
        environment.run_pip([sys.executable, "-c", script])


def test_no_network_wins_over_no_distribution():
    # Without a network pip ends with "No matching distribution"; the cause stands above it.
    output = "WARNING: Retrying ... NewConnectionError\nERROR: No matching distribution found for torch==2.13.0"
    assert "No connection" in environment.explain(output)


def test_unknown_failure_shows_the_message():
    with pytest.raises(environment.Stop, match="something odd"):
        environment.run_pip([sys.executable, "-c", "import sys; sys.exit('something odd')"])
    environment.run_pip([sys.executable, "-c", "import sys; print('only a warning', file=sys.stderr)"])


def test_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(environment.Stop, match=f"Port {port} is taken"):
            learn.check_port(port)
    learn.check_port(port)
    with pytest.raises(environment.Stop, match="no port"):
        learn.check_port(70000)


def test_command_line_of_jupyter(tmp_path):
    options = learn.parse(["--no-browser", "--port", "8890", "--", "--ip=0.0.0.0", "--no-mathjax"])
    command = learn.jupyter_command("python", tmp_path, options)
    assert command[:3] == ["python", "-m", "jupyterlab"] and command[-2:] == ["--ip=0.0.0.0", "--no-mathjax"]
    assert {"--no-browser", "--ServerApp.port=8890", "--ServerApp.port_retries=0"} <= set(command)
    assert not any("default_url" in part for part in command)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / learn.FIRST).write_text("")
    plain = learn.jupyter_command("python", tmp_path, learn.parse([]))
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in plain and "--no-browser" not in plain


def test_jupyter_asks_for_no_news_and_touches_only_work(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/theirs")
    folder, theirs = learn.jupyter_environment(tmp_path, "python")["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert theirs == "/theirs"
    settings = json.loads((Path(folder) / "labconfig" / "default_setting_overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert tmp_path in Path(folder).parents


def test_terminals_find_the_commands_of_the_environment_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/theirs")
    python = tmp_path / "bin" / "python"
    assert learn.jupyter_environment(tmp_path, python)["PATH"].split(os.pathsep) == [str(python.parent), "/theirs"]


def test_an_error_is_one_sentence_and_status_1(monkeypatch, capsys):
    def stop(options):
        raise environment.Stop("Do this.")

    monkeypatch.setattr(learn, "learn", stop)
    assert learn.main([]) == 1
    assert capsys.readouterr().err == "\nDo this.\n"


def test_a_folder_in_the_way_is_named(monkeypatch, capsys):
    def stop(options):
        raise IsADirectoryError(21, "Is a directory", "work/labs/01_bit_layouts.ipynb")

    monkeypatch.setattr(learn, "learn", stop)
    assert learn.main([]) == 1
    assert capsys.readouterr().err.startswith("\nwork/labs/01_bit_layouts.ipynb: Is a directory. Move it away")


def test_help_of_the_script_works_from_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "learn.py"), "--help"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "--no-browser" in done.stdout
