"""gpu_check on small notebooks with planted faults, and (slow) on the course itself without Jupyter's packages."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import gpu_check, gpu_check_cells, gpu_check_compare, gpu_check_shell

ROOT = Path(__file__).resolve().parents[2]
# What a bare GPU machine lacks. IPython stands for all that it brings.
ABSENT = ("IPython", "ipywidgets", "nbformat", "jupyter", "jupyter_client", "papermill", "rich", "safetensors")
BLOCKER = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def stream(text):
    return {"output_type": "stream", "name": "stdout", "text": [text]}


def result(text, **more):
    data = {"text/plain": [text], **{mime.replace("_", "/"): [value] for mime, value in more.items()}}
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}


def joined(output):
    """An output as tools.notebook.load gives it."""
    text = {**output, "data": {mime: "".join(value) for mime, value in output.get("data", {}).items()}}
    return text | ({"text": "".join(output["text"])} if "text" in output else {})


def cell(source, *outputs, exact=True):
    return {"source": source, "outputs": list(outputs), "tags": ["nbval-check-output"] if exact else []}


def write(root, path, *cells):
    made = [
        {
            "cell_type": "code",
            "id": f"{Path(path).stem}-{number}",
            "metadata": {"tags": given["tags"]},
            "execution_count": 1,
            "source": given["source"].splitlines(True),
            "outputs": given["outputs"],
        }
        for number, given in enumerate(cells)
    ]
    made.insert(0, {"cell_type": "markdown", "id": "text", "metadata": {}, "source": ["# A lesson"]})
    file = root / "notebooks" / path if "/" not in path else root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def absent(folder, names=ABSENT):
    """A folder for PYTHONPATH in whose Pythons the packages cannot be imported."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names=set(names)))
    return str(folder)


def run(root, tmp_path, *options, names=ABSENT, env=None):
    """(the finished process, the report or None) of the command, as a person would start it from elsewhere."""
    out = tmp_path / "report.json"
    keep = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
    keep |= {"PYTHONPATH": absent(tmp_path / "absent", names), "OMP_NUM_THREADS": "1"} | (env or {})
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--device", "cpu", "--out", str(out)]
    command += ["--root", str(root), *options]
    done = subprocess.run(command, cwd=tmp_path, env=keep, capture_output=True, text=True, timeout=900)
    return done, json.loads(out.read_text()) if out.exists() else None


FAULTS = (
    cell("import os\nx = 1\nprint(x, os.environ['AMPEDU_DEVICE'])", stream("1 cpu\n")),
    cell("def broken():\n    raise ValueError('planted')\n\ny = broken()"),
    cell("print(y + 1)", stream("2\n")),
    cell("x + 1", result("3")),
    cell("y = 5\ny", result("5")),
    cell("x = 2; print('no result');", stream("no result\n")),
    cell("import matplotlib\nfigures = 1", exact=False),
    cell("figures", result("1")),
)
ENDLESS = (cell("z = 1"), cell("while True:\n    pass", exact=False), cell("print(z)", stream("1\n")))
RECORDS = (
    cell(
        "from ampedu import recorded\nrecorded.record('09.x', 'Time', [{'what': 'a', 'ms': 1.5}], 'cpu')", exact=False
    ),
)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    write(root, "01_faults.ipynb", *FAULTS)
    write(root, "02_endless.ipynb", *ENDLESS)
    write(root, "solutions/03_records.ipynb", *RECORDS)
    folder = tmp_path_factory.mktemp("run")
    done, report = run(root, folder, "--cell-limit-s", "20", names=(*ABSENT, "matplotlib"))
    assert done.returncode == 1, done.stderr
    statuses = {notebook["path"]: [cell["status"] for cell in notebook["cells"]] for notebook in report["notebooks"]}
    return done.stdout, report, statuses, folder


def test_each_planted_fault_is_found_where_it_is(faults):
    _, report, statuses, _ = faults
    one = ["ok", "failed", "skipped", "mismatch", "ok", "ok", "skipped", "skipped"]
    assert statuses["notebooks/01_faults.ipynb"] == one
    (differs,) = report["mismatches"]
    assert (differs["cell"], differs["expected"], differs["got"]) == ("01_faults-3", "text/plain: 3", "text/plain: 2")
    failed = report["failures"][0]
    assert failed["cell"] == "01_faults-1" and failed["reason"] == "ValueError: planted"
    assert "line 2, in broken" in failed["traceback"] and "gpu_check_cells" not in failed["traceback"]


def test_what_cannot_run_is_skipped_with_its_reason(faults):
    _, report, _, _ = faults
    assert [(item["cell"], item["reason"]) for item in report["skipped"]] == [
        ("01_faults-2", "needs y, which cell 01_faults-1 was to set"),
        ("01_faults-6", "matplotlib is missing on this machine"),
        ("01_faults-7", "needs figures, which cell 01_faults-6 was to set"),
    ]
    assert "matplotlib" in report["missing"]


def test_an_endless_cell_is_stopped_and_the_next_notebook_runs(faults):
    _, report, statuses, _ = faults
    assert statuses["notebooks/02_endless.ipynb"] == ["ok", "failed", "not run"]
    assert statuses["solutions/03_records.ipynb"] == ["ok"]
    stopped = next(item for item in report["failures"] if item["cell"] == "02_endless-1")
    assert stopped["reason"] == "did not finish in 20 s and was stopped"
    assert 'File "<cell 02_endless-1>", line' in stopped["traceback"]


def test_the_report_says_where_it_ran_and_the_table_agrees(faults):
    printed, report, _, _ = faults
    assert report["command"] == "python tools/gpu_check.py --device cpu" and report["passed"] is False
    assert report["machine"]["device"] == "cpu" and report["versions"]["python"] == ".".join(
        map(str, sys.version_info[:3])
    )
    assert all(cell["seconds"] >= 0 for item in report["notebooks"] for cell in item["cells"] if cell["status"] == "ok")
    row = next(line.split() for line in printed.splitlines() if line.startswith("notebooks/01_faults"))
    assert row[1:6] == ["4", "4", "1", "1", "3"]
    assert "Not passed." in printed and str(ROOT) not in json.dumps(report)


def test_measurements_are_collected_and_kept(faults, tmp_path, capsys):
    _, report, _, folder = faults
    (item,) = report["recorded"]
    assert (item["name"], item["command"], item["cell"]) == ("09.x", report["command"], "03_records-0")
    assert gpu_check.main(["--keep", str(folder / "report.json"), "--root", str(tmp_path)]) == 0
    kept = json.loads((tmp_path / "ampedu" / "data" / "recorded" / "09.x.json").read_text())
    assert kept["rows"] == [{"what": "a", "ms": 1.5}] and kept["date"] == report["date"]
    assert kept["command"] == report["command"] and "cell" not in kept


def test_measurements_of_a_notebook_that_failed_are_refused(faults, tmp_path, capsys):
    _, report, _, _ = faults
    report = {**report, "recorded": [{**report["recorded"][0], "notebook": "notebooks/01_faults.ipynb"}]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert gpu_check.main(["--keep", str(tmp_path / "report.json"), "--root", str(tmp_path)]) == 1
    assert "did not pass" in capsys.readouterr().out
    assert not (tmp_path / "ampedu").exists()


def test_what_is_no_report_is_refused(tmp_path, capsys):
    (tmp_path / "other.json").write_text("[]")
    assert gpu_check.main(["--keep", str(tmp_path / "other.json"), "--root", str(tmp_path)]) == 1
    assert "is no report of gpu_check" in capsys.readouterr().out


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A function that runs the command in this process, without asking for the machine; (exit status, report)."""
    facts = {"machine": {"device": "cpu", "name": "a CPU"}, "versions": {"torch": "2", "numpy": None}}
    monkeypatch.setattr(gpu_check, "machine_facts", lambda options: facts)

    def check(*options):
        out = tmp_path / "report.json"
        status = gpu_check.main(["--device", "cpu", "--root", str(tmp_path), "--out", str(out), *options])
        return status, json.loads(out.read_text())

    return check


def test_the_whole_run_has_a_limit(tmp_path, quick):
    write(tmp_path, "01_endless.ipynb", *ENDLESS)
    write(tmp_path, "02_late.ipynb", cell("print(1)", stream("1\n")))
    started = time.monotonic()
    status, report = quick("--limit-s", "4")
    assert status == 1 and time.monotonic() - started < 20
    assert report["failures"][0]["reason"] == "the time for everything (4 s) was over"
    assert report["notebooks"][1]["note"] == "not begun: the time for everything (4 s) was over"


def test_a_process_that_dies_is_one_failure(tmp_path, quick):
    write(tmp_path, "01_dies.ipynb", cell("import os\nos.abort()", exact=False), cell("1", result("1")))
    write(tmp_path, "02_lives.ipynb", cell("print(1)", stream("1\n")))
    status, report = quick()
    assert status == 1
    assert [cell["status"] for cell in report["notebooks"][0]["cells"]] == ["failed", "not run"]
    assert report["failures"][0]["reason"] == "the process died"
    assert [cell["status"] for cell in report["notebooks"][1]["cells"]] == ["ok"]


def test_a_check_that_is_ended_leaves_its_report_and_no_process(tmp_path, quick, monkeypatch):
    write(tmp_path, "01_first.ipynb", cell("print(1)", stream("1\n")))
    write(tmp_path, "02_endless.ipynb", *ENDLESS)
    write(tmp_path, "03_late.ipynb", cell("print(1)", stream("1\n")))
    made, real = [], gpu_check.Child

    class Ended(real):
        def next(self, seconds):
            event = super().next(seconds)
            made.append(self.process)
            if event == {"start": 2}:
                os.kill(os.getpid(), signal.SIGTERM)
            return event

    monkeypatch.setattr(gpu_check, "Child", Ended)
    with pytest.raises(SystemExit, match="ended from outside"):
        quick()
    report = json.loads((tmp_path / "report.json").read_text())
    notes = [notebook.get("note") for notebook in report["notebooks"]]
    assert notes == [None, "not begun: the check itself was ended", "not begun: the check itself was ended"]
    assert report["passed"] is False and all(process.poll() is not None for process in made)


def test_what_a_cell_starts_ends_with_it(tmp_path, quick):
    code = "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    write(
        tmp_path,
        "01_child.ipynb",
        cell(code + f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); child = 0"),
    )
    quick()
    for _ in range(50):
        if not Path("/proc", (tmp_path / "pid").read_text(), "cmdline").exists():
            break
        if Path("/proc", (tmp_path / "pid").read_text(), "cmdline").read_bytes() == b"":
            break  # dead, and not yet collected by its new parent
        time.sleep(0.1)
    else:
        pytest.fail("the child is still there")


@pytest.mark.parametrize(
    "value",
    [{3, 1, 2}, int, (1,), ([int], {"a": {2, 1}}), set(), frozenset({"b", "a"}), list(range(60)), "a'b", Path, 1e-8],
    ids=str,
)
def test_values_print_as_in_ipython(value):
    from IPython.lib.pretty import pretty

    ours, theirs = result(gpu_check_shell.plain(value)), result(pretty(value))
    assert gpu_check_compare.difference([joined(theirs)], [joined(ours)]) is None


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("'a'\n# a comment", "'a'"),
        ("_ = 3\nNone", None),
        ("4\n_ = 5", None),
        ("4;", None),
        ("", None),
        ("from IPython.display import Markdown\nMarkdown('**a**')", "<IPython.core.display.Markdown object>"),
    ],
)
def test_the_last_expression_is_shown(source, shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    for name in ("IPython", "IPython.display", *gpu_check_shell.BLOCKED):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    done = gpu_check_cells.Cells(gpu_check_shell.install()).run("x", source)
    assert done["status"] == "ok"
    assert [output["data"]["text/plain"] for output in done["outputs"]] == ([] if shown is None else [shown])


def test_wrong_commands_name_the_cure(tmp_path, monkeypatch):
    write(tmp_path, "01_a.ipynb", cell("1", result("1")))
    with pytest.raises(SystemExit, match="there is no notebook 02_b; there are 01_a"):
        gpu_check.main(["--only", "02_b", "--root", str(tmp_path)])
    with pytest.raises(SystemExit, match="no notebooks in notebooks and solutions"):
        gpu_check.main(["--root", str(tmp_path / "elsewhere")])
    monkeypatch.setattr(gpu_check, "machine_facts", lambda options: (_ for _ in ()).throw(SystemExit("no device")))
    with pytest.raises(SystemExit, match="no device"):
        gpu_check.main(["--root", str(tmp_path)])


def test_a_device_that_is_not_there_is_said(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    write(tmp_path, "01_a.ipynb", cell("1", result("1")))
    with pytest.raises(SystemExit, match="torch finds no such device here"):
        gpu_check.main(["--root", str(tmp_path), "--device", "cuda"])


@pytest.mark.parametrize(
    ("stored", "got", "differs"),
    [
        ([stream("a 1\n")], [stream("a 1\n")], False),
        ([stream("a 1\n")], [stream("a  1\n")], True),
        ([stream("took 1.5 s\n")], [stream("took 22 s\n")], False),
        ([stream("1\n")], [stream("1\n"), {**stream("oh\n"), "name": "stderr"}], True),
        ([stream("1\n")], [], True),
        ([result("[1,\n 2]")], [result("[1, 2]")], False),
        ([result("{'a': [1,\n       2]}")], [result("{'a': [1, 2]}")], False),
        ([result("1 2")], [result("12")], True),
        ([result("[1, 2]")], [{**result("[1, 2]"), "output_type": "display_data"}], False),
        ([result("x", text_html="<b>1</b>")], [result("x", text_html="<b>2</b>")], True),
        ([result("x", text_html="<b>1</b>")], [result("x")], True),
        ([result("F", text_html="<img src='data:image/png;base64,A'>")], [result("F")], False),
        ([result("M", text_markdown="| 1 |")], [result("M", text_markdown="| 2 |")], True),
    ],
)
def test_comparison(stored, got, differs):
    sanitize = gpu_check_compare.sanitizer(ROOT / "tests" / "sanitize.cfg")
    assert (gpu_check_compare.difference([*map(joined, stored)], [*map(joined, got)], sanitize) is not None) == differs


@pytest.mark.slow
def test_the_whole_course_runs_without_jupyter(tmp_path):
    done, report = run(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert report["passed"] and report["seconds"] < 480
    ran = {notebook["path"] for notebook in report["notebooks"]}
    assert ran == {str(p.relative_to(ROOT)) for f in gpu_check.FOLDERS for p in (ROOT / f).glob("*.ipynb")}
    # The comparison saw something in every notebook, and nothing was left out.
    assert all(any(cell.get("exact") for cell in notebook["cells"]) for notebook in report["notebooks"])
    assert report["skipped"] == []


@pytest.mark.slow
def test_the_course_runs_without_matplotlib_as_far_as_it_can(tmp_path):
    # NumPy stays: torch's fake tensors, with which lesson 4 probes, cannot do without.
    done, report = run(ROOT, tmp_path, names=(*ABSENT, "matplotlib", "PIL"))
    assert report["failures"] == report["mismatches"] == [], done.stdout
    assert {"PIL", "matplotlib"} <= set(report["missing"]) and report["skipped"]
    solution = next(notebook for notebook in report["notebooks"] if notebook["path"].startswith("solutions/"))
    assert sum(cell.get("exact", False) for cell in solution["cells"]) > 5
