"""Recorded results: only complete ones are shown, with their origin; what is missing or damaged is said."""

import copy
import json
import subprocess
import sys

import pytest

from ampedu import recorded
from tools import modules

GOOD = {
    "schema": 1,
    "name": "09.example",
    "title": "An example with <angle> brackets",
    "rows": [{"dtype": "fp16", "time in ms": 1.23456}, {"dtype": "bf16", "time in ms": None}],
    "machine": "an example machine",
    "device": "cuda",
    "versions": {"python": "3.12.3", "torch": "2.11.0"},
    "date": "2026-01-31",
    "command": "python tools/gpu_check.py --device cuda",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "_folder", lambda: tmp_path)
    return tmp_path


def put(folder, data, name="09.example"):
    (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")


def test_a_recorded_result_is_shown_with_all_of_its_origin(folder, capsys):
    put(folder, GOOD)
    recorded.show("09.example")
    printed = capsys.readouterr().out
    for text in (
        "an example machine",
        "2.11.0",
        "3.12.3",
        "2026-01-31",
        GOOD["command"],
        "Recorded, not measured here",
    ):
        assert text in printed
    assert printed.splitlines()[1:4] == ["dtype  time in ms", "fp16   1.235", "bf16   –"]


def test_html_holds_the_same_and_escapes(folder):
    put(folder, GOOD)
    page = recorded.load("09.example")._repr_html_()
    assert "&lt;angle&gt;" in page and "<angle>" not in page
    for text in ("an example machine", "2026-01-31", "2.11.0", "<td>1.235</td>", "<code>python tools/gpu_check.py"):
        assert text in page


def test_where_none_exists_that_is_said(folder, capsys):
    recorded.show("09.example")
    assert "no recorded result 09.example" in capsys.readouterr().out
    assert recorded.load("09.example") is None and recorded.names() == []


def test_every_shipped_file_is_valid():
    for name in recorded.names():
        assert recorded.load(name).name == name


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("schema", 2, "schema is 2"),
        ("name", "09.other", "it must be that of the file"),
        ("name", "example", "is no name of a result"),
        ("title", " ", "title must be text"),
        ("machine", "", "machine must be text"),
        ("command", "", "command must be text"),
        ("date", "31.1.2026", "date must look like 2026-01-31"),
        ("date", "2026-02-31", "date must look like 2026-01-31"),
        ("versions", {"python": "3.12"}, "at least python and torch"),
        ("versions", {"python": "3.12", "torch": 2.11}, "version of torch must be text"),
        ("rows", [], "rows must be a list of 1 to 500"),
        ("rows", {"a": 1}, "rows must be a list of 1 to 500"),
        ("rows", [{"a": 1}] * 501, "rows must be a list of 1 to 500"),
        ("rows", [{}], "row 1 must be a dictionary"),
        ("rows", [{"a": 1}, {"b": 1}], "row 2 has the columns"),
        ("rows", [{"a": [1]}], "row 1, 'a': list is not plain"),
        ("rows", [{"a": float("nan")}], "row 1, 'a' is nan"),
        ("extra", 1, "unknown key 'extra'"),
    ],
)
def test_a_damaged_file_is_refused_by_name(folder, key, value, said):
    put(folder, {**GOOD, key: value})
    with pytest.raises(recorded.RecordError, match=r"recorded/09\.example\.json") as caught:
        recorded.show("09.example")
    assert said in str(caught.value)


@pytest.mark.parametrize("key", GOOD)
def test_every_key_is_needed(folder, key):
    data = copy.deepcopy(GOOD)
    del data[key]
    put(folder, data)
    with pytest.raises(recorded.RecordError, match=f"{key} is missing"):
        recorded.load("09.example")


def test_broken_json_and_malformed_names(folder):
    (folder / "09.example.json").write_text("{")
    with pytest.raises(recorded.RecordError, match="not valid JSON"):
        recorded.load("09.example")
    for name in ("../gpus", "9.x", "09.X", None):
        with pytest.raises(recorded.RecordError, match="no name of a result"):
            recorded.show(name)


def test_a_measurement_names_this_machine_and_is_collected_once():
    import torch

    recorded.taken()
    result = recorded.record("09.example", "Example", [{"a": 1}], device="cpu")
    assert result.device == "cpu" and result.versions["torch"] == torch.__version__ and "thread" in result.machine
    assert repr(result).startswith("Example\na\n1\nMeasured here: cpu") and result.date not in repr(result)
    assert recorded.taken() == [result] and recorded.taken() == []
    with pytest.raises(recorded.RecordError, match=r"Tensor is not plain; use \.item"):
        recorded.record("09.example", "Example", [{"a": torch.ones(1)}], device="cpu")
    assert recorded.taken() == []
    # What was measured here is no file yet: it lacks the command.
    with pytest.raises(recorded.RecordError, match="command must be text"):
        recorded.parse(recorded.as_json(result), "here")


def test_what_is_saved_loads_again(folder):
    put(folder, GOOD)
    assert recorded.as_json(recorded.load("09.example")) == GOOD


def test_a_new_result_makes_the_lesson_that_shows_it_stale(tmp_path):
    data = tmp_path / "ampedu" / "data" / "recorded"
    data.mkdir(parents=True)
    (tmp_path / "ampedu" / "__init__.py").write_text("")
    source = 'recorded.show("09.example")'
    before = modules.hashes(tmp_path, [source])
    put(data, GOOD)
    (data / "09.other.json").write_text("{}")
    assert set(modules.hashes(tmp_path, [source])) - set(before) == {"ampedu/data/recorded/09.example.json"}


def test_loading_needs_no_torch():
    code = "import sys; from ampedu import recorded; recorded.show('09.none'); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
