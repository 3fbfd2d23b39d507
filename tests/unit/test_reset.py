"""Restoring a lab: what was there is always kept."""

import json

import pytest

from ampedu.reset import ResetError, find_course, reset


def notebook(decode, encode="raise NotImplementedError"):
    def code(source, grade_id):
        return {
            "cell_type": "code",
            "execution_count": 3,
            "id": grade_id.replace(".", "-"),
            "metadata": {"nbgrader": {"grade_id": grade_id, "schema_version": 3}},
            "outputs": [{"output_type": "stream", "name": "stdout", "text": "old"}],
            "source": source,
        }

    cells = [
        {"cell_type": "markdown", "id": "t", "metadata": {}, "source": "# Übung ½"},
        code(decode, "01.decode-answer"),
        code('check("01.decode", decode)', "01.decode"),
        code(encode, "01.encode-answer"),
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


STUB = "def decode(code):\n    raise NotImplementedError"


@pytest.fixture
def course(tmp_path):
    for folder in ("ampedu", "labs", "work/labs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "labs" / "01_bit_layouts.ipynb").write_text(json.dumps(notebook(STUB)), encoding="utf-8")
    (tmp_path / "labs" / "05_dynamic_loss_scaling.ipynb").write_text(json.dumps(notebook("x")), encoding="utf-8")
    mine = notebook(["def decode(code):\n", "    return 42"], "my encode")
    (tmp_path / "work" / "labs" / "01_bit_layouts.ipynb").write_text(json.dumps(mine, indent=1), encoding="utf-8")
    return tmp_path


def mine(course, name="01_bit_layouts"):
    return course / "work" / "labs" / f"{name}.ipynb"


@pytest.mark.parametrize("lab", ["01", "1", "01_bit_layouts", "01_bit_layouts.ipynb"])
@pytest.mark.parametrize("place", [".", "work", "work/labs", "ampedu"])
def test_whole_lab(course, lab, place):
    before = mine(course).read_bytes()
    said = reset(lab, start=course / place)
    assert mine(course).read_bytes() == (course / "labs" / "01_bit_layouts.ipynb").read_bytes()
    assert mine(course, "01_bit_layouts.backup-1").read_bytes() == before
    assert "01_bit_layouts.backup-1.ipynb" in said
    assert not list(course.rglob("*.part"))


def test_backups_are_numbered_and_none_is_lost(course):
    for n in (1, 2, 3):
        mine(course).write_text(f"version {n}", encoding="utf-8")
        reset("01", start=course)
    texts = [mine(course, f"01_bit_layouts.backup-{n}").read_text() for n in (1, 2, 3)]
    assert texts == ["version 1", "version 2", "version 3"]


def test_an_unchanged_lab_makes_no_backup(course):
    reset("01", start=course)
    assert "nothing to do" in reset("01", start=course)
    assert not mine(course, "01_bit_layouts.backup-2").exists()


def test_a_missing_lab_comes_back(course):
    assert "there again" in reset("05", start=course)
    assert mine(course, "05_dynamic_loss_scaling").exists()


@pytest.mark.parametrize("exercise", ["01.decode", "decode"])
def test_one_answer(course, exercise):
    before = mine(course).read_bytes()
    reset("01", exercise, course)
    cells = json.loads(mine(course).read_text(encoding="utf-8"))["cells"]
    assert cells[1]["source"] == STUB
    assert (cells[1]["outputs"], cells[1]["execution_count"]) == ([], None)
    assert cells[3]["source"] == "my encode" and cells[3]["outputs"]
    assert cells[0]["source"] == "# Übung ½"
    assert mine(course, "01_bit_layouts.backup-1").read_bytes() == before
    assert "nothing to do" in reset("01", exercise, course)


def test_damaged_notebook(course):
    mine(course).write_text('{"cells": [', encoding="utf-8")
    with pytest.raises(ResetError, match=r"damaged.*ampedu reset 01"):
        reset("01", "decode", course)
    assert not mine(course, "01_bit_layouts.backup-1").exists()
    reset("01", start=course)
    assert mine(course, "01_bit_layouts.backup-1").read_text() == '{"cells": ['


@pytest.mark.parametrize("content", ["[]", '{"cells": 3}', '{"cells": [{"source": 1}]}', "\x00",
    '{"cells": [3]}', '{"cells": [{"source": "", "metadata": []}]}',
    '{"cells": [{"source": "", "metadata": {"nbgrader": null}}]}'])  # fmt: skip
def test_json_that_is_no_notebook(course, content):
    mine(course).write_text(content, encoding="utf-8")
    with pytest.raises(ResetError, match="damaged"):
        reset("01", "decode", course)


def test_unknown_lab_and_exercise(course):
    with pytest.raises(ResetError, match=r"no lab '02'.*01_bit_layouts"):
        reset("02", start=course)
    with pytest.raises(ResetError, match="Did you mean 01_bit_layouts"):
        reset("01_bit_layout", start=course)
    with pytest.raises(ResetError, match=r"no exercise 01\.decoed\. Did you mean 01\.decode\?"):
        reset("01", "decoed", course)


def test_answer_cell_deleted_by_the_learner(course):
    found = json.loads(mine(course).read_text(encoding="utf-8"))
    del found["cells"][1]
    mine(course).write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ResetError, match="no longer in"):
        reset("01", "decode", course)


def test_no_work_folder(course):
    import shutil

    shutil.rmtree(course / "work")
    with pytest.raises(ResetError, match="make learn"):
        find_course(course)


def test_a_folder_in_the_place_of_a_lab(course):
    mine = course / "work" / "labs" / "01_bit_layouts.ipynb"
    mine.unlink()
    mine.mkdir()
    with pytest.raises(ResetError, match="is a folder"):
        reset("01", start=course)
    assert mine.is_dir()
