"""Who handed in what: names from Canvas, Moodle and students, folders and zip files, rosters."""

import json
import os
import stat
import zipfile

import pytest

from ampedu.grading import ingest, notebook
from ampedu.grading.ingest import SubmissionsError

GOOD = json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}], "nbformat": 4}).encode()


def folder(tmp_path, *names):
    root = tmp_path / "submissions"
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GOOD)
    return root


def ids(collected):
    return {item.shown: item.student_id for item in collected.submissions}


def test_flat_folder(tmp_path):
    root = folder(tmp_path, "ann.ipynb", "bob_01_bit_layouts.ipynb", ".hidden.ipynb", "notes.txt")
    found = ingest.collect(root, labs=["01_bit_layouts"])
    assert ids(found) == {"ann.ipynb": "ann", "bob_01_bit_layouts.ipynb": "bob"}
    assert [item["file"] for item in found.rejected] == ["notes.txt"]


def test_one_folder_for_each_student(tmp_path):
    root = folder(tmp_path, "ann/lab.ipynb", "bob/work/lab.ipynb", "bob/data.csv", "bob/.ipynb_checkpoints/lab.ipynb")
    found = ingest.collect(root)
    assert ids(found) == {"ann/lab.ipynb": "ann", "bob/work/lab.ipynb": "bob"}
    assert [item["file"] for item in found.rejected] == ["bob/data.csv"]


def test_canvas(tmp_path):
    root = folder(tmp_path, "doejane_1001_778_lab1.ipynb", "roejohn_LATE_1002_779_lab1-2.ipynb")
    jane, john = ingest.collect(root).submissions
    assert (jane.student_id, jane.name, jane.late, jane.attempt) == ("1001", "doejane", False, 0)
    assert (john.student_id, john.name, john.late, john.attempt) == ("1002", "roejohn", True, 2)


def test_moodle(tmp_path):
    root = folder(tmp_path, "Jane Doe_4711_assignsubmission_file_/lab1.ipynb", "Ján_4712_assignsubmission_file/x.pdf")
    jane, jan = ingest.collect(root).submissions
    assert (jane.student_id, jane.name, jane.problem) == ("4711", "Jane Doe", "")
    assert (jan.student_id, jan.name) == ("4712", "Ján") and "not a notebook" in jan.problem
    with pytest.raises(notebook.Unreadable, match="not a notebook"):
        ingest.load(jan)


HOSTILE = ("=cmd|' /C calc'!A0.ipynb", "\u202egnp.ipynb", "a\nb.ipynb", "ü" * 120 + ".ipynb", "-rf.ipynb", "a b.ipynb",
           "..ipynb.ipynb", "<script>.ipynb", "'; drop.ipynb", "x" * 249 + ".ipynb")  # fmt: skip


def test_hostile_names_are_graded_under_a_safe_id(tmp_path):
    found = ingest.collect(folder(tmp_path, *HOSTILE))
    assert len({item.student_id for item in found.submissions}) == len(HOSTILE)
    for item in found.submissions:
        assert ingest.ID.fullmatch(item.student_id) and item.student_id.startswith("file-")
        assert item.shown.isprintable() and item.name.isprintable() and len(item.shown) <= 200
        assert ingest.load(item) == GOOD


def test_undecodable_name(tmp_path):
    root = folder(tmp_path, "ann.ipynb")
    with open(os.fsencode(root) + b"/\xff\xfe.ipynb", "wb") as file:
        file.write(GOOD)
    assert len(ingest.collect(root).submissions) == 2


def test_ids_that_a_file_system_would_confuse(tmp_path):
    found = [item.student_id for item in ingest.collect(folder(tmp_path, "ann/l.ipynb", "Ann/l.ipynb")).submissions]
    assert len({id.casefold() for id in found}) == 2


def zipped(tmp_path, members):
    path = tmp_path / "download.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_zip_slip_and_junk(tmp_path):
    path = zipped(tmp_path, {"../../etc/evil.ipynb": GOOD, "/abs.ipynb": GOOD, "..\\win.ipynb": GOOD, "ann.ipynb": GOOD,
                             "__MACOSX/ann.ipynb": b"x", "bob/lab.ipynb": GOOD, "empty/": b""})  # fmt: skip
    found = ingest.collect(path)
    assert [ingest.load(item) for item in found.submissions] == [GOOD] * 5
    assert all(ingest.ID.fullmatch(item.student_id) for item in found.submissions)
    assert {"ann", "bob"} <= {item.student_id for item in found.submissions}
    assert sorted(os.listdir(tmp_path)) == ["download.zip"]


def test_zip_bomb_link_and_damage(tmp_path):
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = zipped(tmp_path, {"bomb.ipynb": bytes(30 << 20), link: "/etc/passwd", "good.ipynb": GOOD})
    content = path.read_bytes().replace(GOOD[-20:], b"x" * 20)
    bomb, good, odd = ingest.collect(path).submissions
    with pytest.raises(notebook.Unreadable, match="20 MiB"):
        ingest.load(bomb)
    assert ingest.load(good) == GOOD
    with pytest.raises(notebook.Unreadable, match="link"):
        ingest.load(odd)
    damaged = tmp_path / "damaged.zip"
    start = content.index(b"good.ipynb") + len("good.ipynb")
    damaged.write_bytes(content[:start] + bytes(8) + content[start + 8 :])
    item = next(item for item in ingest.collect(damaged).submissions if item.student_id == "good")
    with pytest.raises(notebook.Unreadable, match="damaged"):
        ingest.load(item)


def test_a_zip_that_understates_its_sizes_is_still_capped(tmp_path):
    path = zipped(tmp_path, {"ann.ipynb": bytes(30 << 20)})
    content = path.read_bytes().replace((30 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(content)
    (ann,) = ingest.collect(path).submissions
    with pytest.raises(notebook.Unreadable):
        ingest.load(ann)


def roster(tmp_path, text):
    path = tmp_path / "roster.csv"
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_a_roster_may_hold_other_columns(tmp_path):
    path = roster(tmp_path, "student_id,email,section,,\nann,ann@example.org,B,,\n")
    assert ingest.read_roster(path)[0]["student_id"] == "ann"


def test_roster_maps_files_and_lms_ids_and_names_the_absent(tmp_path):
    root = folder(tmp_path, "odd name.ipynb", "doejane_1001_778_lab1.ipynb")
    path = roster(tmp_path, "student_id,name,file,lms_id\nann,Ann A,odd name.ipynb,\njane,Jane D,,1001\nzoe,Zoë,,\n")
    found = ingest.collect(root, path)
    assert ids(found) == {"odd name.ipynb": "ann", "doejane_1001_778_lab1.ipynb": "jane"}
    assert found.names == {"ann": "Ann A", "jane": "Jane D", "zoe": "Zoë"}


def test_a_bare_file_name_in_the_roster_is_not_the_file_in_everybodys_folder(tmp_path):
    root = folder(tmp_path, "lab.ipynb", "bob/lab.ipynb", "cyd/lab.ipynb", "dan/other.ipynb")
    found = ingest.collect(root, roster(tmp_path, "student_id,file\nann,lab.ipynb\neve,dan/other.ipynb\n"))
    seen = sorted((item.student_id, item.shown) for item in found.submissions)
    assert seen == [
        ("ann", "lab.ipynb"), ("bob", "bob/lab.ipynb"), ("cyd", "cyd/lab.ipynb"), ("eve", "dan/other.ipynb"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name\nAnn\n", "column student_id; it has name"),
        ("", "it has nothing"),
        ("student_id,filename\nann,a.ipynb\n", "column 'filename'. Should it be file"),
        ("student_id,Name\nann,Ann\n", "column 'Name'. Should it be name"),
        ("student_id;name\nann;Ann\n", "semicolons"),
        ("student_id,name,name\nann,Ann,A\n", "two columns"),
        ("student_id\n../x\n", "line 2"),
        ("student_id\nann\nANN\n", "line 3.*twice"),
    ],
)
def test_bad_rosters_name_the_line(tmp_path, text, problem):
    with pytest.raises(SubmissionsError, match=problem):
        ingest.collect(folder(tmp_path, "a.ipynb"), roster(tmp_path, text))


def test_places_that_are_no_submissions(tmp_path):
    (tmp_path / "text.zip").write_text("no zip")
    (tmp_path / "empty").mkdir()
    for name, problem in (("gone", "does not exist"), ("text.zip", "neither"), ("empty", "is empty")):
        with pytest.raises(SubmissionsError, match=problem):
            ingest.collect(tmp_path / name)
    (tmp_path / "empty/essay.pdf").write_text("x")
    with pytest.raises(SubmissionsError, match=r"no notebook .* only essay\.pdf"):
        ingest.collect(tmp_path / "empty")
    with pytest.raises(SubmissionsError, match="cannot be opened"):
        ingest.collect(folder(tmp_path, "a.ipynb"), tmp_path / "no.csv")
