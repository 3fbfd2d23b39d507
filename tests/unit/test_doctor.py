"""The machine report: each row can be OK, and each can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ampedu import doctor
from ampedu._facts import Gpu
from ampedu.device import describe
from tests.unit.test_device import facts, nvidia


def one(rows, name):
    return next(row for row in rows if row.name == name)


def versions(**changes):
    found = {
        "ipykernel": "6.31.0",
        "numpy": "2.1",
        "matplotlib": "3.10",
        "ipywidgets": "8.1.9",
        "jupyterlab": "4.6",
        "jupyterlab_widgets": "3.0.17",
    } | changes
    return lambda name: found.get(name)


def test_python():
    assert doctor.python_version("3.11.0")[0].status == "OK"
    old = doctor.python_version("3.10.14")[0]
    assert old.status == "problem" and "3.11" in old.cure


@pytest.mark.parametrize(
    ("version", "status"), [("2.11.0+cu128", "OK"), ("2.13.0", "OK"), ("2.10.1", "problem"), ("2.14.0a0", "note")]
)
def test_torch(version, status):
    assert doctor.torch_version(version)[0].status == status


def test_torch_missing(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    assert doctor.torch_version()[0].cure == "pip install torch"


def test_packages_of_a_good_environment():
    assert {row.status for row in doctor.packages(versions())} == {"OK"}


@pytest.mark.parametrize(
    ("change", "name", "status", "word"),
    [
        ({"ipykernel": "7.4.0"}, "ipykernel", "note", "<7"),
        ({"ipykernel": None}, "ipykernel", "problem", "pip install"),
        ({"ipywidgets": None}, "ipywidgets", "note", "static"),
        ({"ipywidgets": "7.6.5"}, "ipywidgets", "problem", "7.7.1"),
        ({"jupyterlab_widgets": "1.1.0"}, "Widgets in JupyterLab", "problem", ">=3,<4"),
        ({"jupyterlab_widgets": None}, "Widgets in JupyterLab", "problem", ">=3,<4"),
        ({"ipywidgets": "7.7.1"}, "Widgets in JupyterLab", "problem", ">=1,<2"),
        ({"numpy": None}, "numpy", "problem", "pip install numpy"),
    ],
)
def test_packages_that_do_not_fit(change, name, status, word):
    row = one(doctor.packages(versions(**change)), name)
    assert row.status == status and word in row.cure


def test_colab_has_no_jupyterlab_and_that_is_fine():
    rows = doctor.packages(versions(ipywidgets="7.7.1", jupyterlab=None, jupyterlab_widgets=None, ipykernel="6.17.1"))
    assert {row.status for row in rows} == {"OK"}


def test_device_rows_of_a_t4():
    rows = doctor.device_rows(nvidia("Tesla T4", (7, 5)))
    bf16 = one(rows, "bf16")
    assert (bf16.status, bf16.value) == ("note", "emulated") and "is_bf16_supported" in bf16.cure
    assert one(rows, "Matrix units").status == "OK"


def test_device_rows_of_a_gpu_that_torch_dropped():
    row = one(doctor.device_rows(nvidia("Tesla V100-SXM2-16GB", (7, 0))), "Device")
    assert row.status == "problem" and "kernels" in row.cure


def test_device_rows_of_mps_and_of_a_plain_cpu():
    mps = doctor.device_rows(describe("mps", facts(Gpu("mps", "Apple M2"), None, "arm64")))
    assert one(mps, "bf16").value == "unknown" and not doctor.has_problem(mps)
    plain = doctor.device_rows(describe("cpu", facts(flags=frozenset({"avx2"}))))
    assert one(plain, "bf16").value == "emulated" and one(plain, "Matrix units").value == "none"


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ((("cuda.matmul", "none"), ("cudnn.conv", "tf32")), "OK"),
        ((("cuda.matmul", "tf32"),), "note"),
        ((("cuda.matmul", "none"), ("mkldnn.matmul", "bf16")), "note"),
        ((("float32_matmul_precision", "high"),), "note"),
        ((("float32_matmul_precision", "highest"),), "OK"),
    ],
)
def test_reduced_float32_products_are_said(flags, status):
    rows = doctor.device_rows(describe("cpu", facts(float32_flags=flags)))
    assert one(rows, "float32 products").status == status


def test_more_threads_than_cores_is_said():
    row = one(doctor.device_rows(describe("cpu", facts(threads=64))), "Threads")
    assert row.status == "note" and "OMP_NUM_THREADS=8" in row.cure


def test_little_memory_is_said():
    assert one(doctor.device_rows(describe("cpu", facts(memory_bytes=2**30))), "Memory").status == "note"


def test_unknown_device_in_the_environment_is_a_problem(monkeypatch):
    monkeypatch.setenv("AMPEDU_DEVICE", "warp")
    rows = doctor.device()
    assert one(rows, "Device").status == "problem" and "warp" in one(rows, "Device").cure
    assert one(rows, "Memory").status in ("OK", "note")


def test_sandbox():
    assert doctor.sandbox(lambda name: "/usr/bin/bwrap")[0].status == "OK"
    assert "apt" in doctor.sandbox(lambda name: None, "Linux")[0].cure
    assert "apt" not in doctor.sandbox(lambda name: None, "Windows")[0].cure


def test_disk(monkeypatch, tmp_path):
    assert doctor.disk(tmp_path)[0].status in ("OK", "note")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**8}))
    assert doctor.disk(tmp_path)[0].status == "note"


def test_progress_path(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPEDU_PROGRESS", str(tmp_path / "new" / "folder" / "progress.json"))
    assert doctor.progress_path()[0].status == "OK"
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("AMPEDU_PROGRESS", str(tmp_path))
    assert doctor.progress_path()[0].status == "problem"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPEDU_PROGRESS", str(tmp_path / "file" / "progress.json"))
    assert doctor.progress_path()[0].status == "problem"


def test_the_report_shows_no_path_of_this_machine():
    rows = doctor.report()
    assert not [row for row in rows if str(Path.home()) + "/" in row.value or "/tmp" in row.value]


def repository(folder, version):
    (folder / "ampedu").mkdir()
    (folder / "ampedu" / "doctor.py").write_text("")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "ampedu"\nversion = "{version}"\n')
    return folder


def test_package_of_another_version_than_the_repository(tmp_path, monkeypatch):
    assert doctor.package(version_of=lambda name: None)[0].status == "problem"
    row = doctor.package(repository(tmp_path, "9.9.9"), lambda name: "0.1.0")[0]
    assert row.status == "problem" and "9.9.9" in row.cure
    assert doctor.package(tmp_path, lambda name: "9.9.9")[0].status == "note"  # right version, other folder
    monkeypatch.chdir(tmp_path / "ampedu")
    assert doctor.package(version_of=lambda name: "0.1.0")[0].status == "problem"


def test_a_check_that_fails_becomes_a_row(monkeypatch):
    def broken_check():
        raise ZeroDivisionError("no")

    monkeypatch.setattr(doctor, "CHECKS", (broken_check,))
    rows = doctor.report()
    assert rows[0].name == "broken check" and "ZeroDivisionError" in rows[0].value


@pytest.mark.parametrize("status", ["OK", "note", "problem"])
def test_exit_status_and_formats(monkeypatch, capsys, status):
    rows = [doctor.Check("Thing", status, "<1>", "cure it" if status != "OK" else "")]
    monkeypatch.setattr(doctor, "report", lambda: rows)
    expected = int(status == "problem")
    assert doctor.main(json_wanted=True) == expected
    found = json.loads(capsys.readouterr().out)
    assert found["problem"] is bool(expected) and found["checks"][0]["value"] == "<1>"
    assert doctor.main() == expected
    assert "Thing" in capsys.readouterr().out
    html = doctor.as_html(rows)
    assert "&lt;1&gt;" in html and status in html and 'scope="col"' in html


def test_plain_table_without_rich(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.table", None)
    doctor.print_table([doctor.Check("Thing", "note", "value", "cure it")])
    assert capsys.readouterr().out == "note    Thing  value\n               → cure it\n"


def test_show_displays_the_table(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "report", lambda: [doctor.Check("Thing", "OK", "value")])
    doctor.show()
    assert "Thing" in capsys.readouterr().out


def test_a_machine_without_torch_still_gets_a_report():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from ampedu import doctor\n"
        "doctor.installed = lambda name: None\n"
        "sys.exit(doctor.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "problem torch" in done.stdout and "pip install torch" in done.stdout and not done.stderr
