"""Submitted files as they come: damaged, huge, not files at all."""

import json
import os

import pytest

from ampedu.grading import notebook
from ampedu.grading.notebook import Cell, Unreadable


def as_bytes(cells, **more):
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, **more}).encode()


CODE = {"cell_type": "code", "source": ["a = 1\n", "b = 2"]}


def test_lists_and_strings_bom_and_crlf():
    assert notebook.parse(as_bytes([CODE])).cells == [Cell("code", "a = 1\nb = 2")]
    assert notebook.parse(b"\xef\xbb\xbf" + as_bytes([{**CODE, "source": "a = 1\r\nb = 2"}])).cells == [
        Cell("code", "a = 1\r\nb = 2")
    ]
    assert notebook.parse(as_bytes([CODE]).replace(b", ", b",\r\n")).cells == [Cell("code", "a = 1\nb = 2")]


@pytest.mark.parametrize("more", [{}, {"nbformat_minor": 0}, {"nbformat_minor": 99}, {"metadata": "gone"}, {"x": [1]}])
def test_any_nbformat_4(more):
    assert len(notebook.parse(as_bytes([CODE], **more)).cells) == 1


def test_metadata_is_not_looked_at():
    cell = {**CODE, "metadata": {"nbgrader": {"grade_id": "x"}}, "id": 7, "outputs": "none", "execution_count": "many"}
    assert notebook.parse(as_bytes([cell])).cells == [Cell("code", "a = 1\nb = 2")]


def test_duplicate_keys_the_last_one_counts():
    text = b'{"cells": [], "nbformat": 4, "cells": [{"cell_type": "code", "source": "x", "source": "y"}]}'
    assert notebook.parse(text).cells == [Cell("code", "y")]


def test_damaged_cells_are_left_out_with_a_note():
    cells = [CODE, 7, {**CODE, "source": 5}, {"cell_type": "heading"}, {**CODE, "source": "x" * 300_000}]
    found = notebook.parse(as_bytes(cells))
    assert found.cells == [Cell("code", "a = 1\nb = 2")] and found.notes[0].startswith("4 cells")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (as_bytes([CODE])[:-20], "not valid JSON"),
        (b"[" * 200_000, "nested"),
        (b'{"a":' * 200_000, "nested"),
        (b"[1, 2]", "not a notebook"),
        (b'"text"', "not a notebook"),
        (b'{"cells": {}}', "not a notebook"),
        (b'{"nbformat": 3, "worksheets": []}', "old format"),
        (b'{"nbformat": 3, "cells": []}', "old format"),
        (b"\x00\xff" * 100, "not valid JSON"),
        (b"%PDF-1.7", "not valid JSON"),
    ],
)
def test_damaged_files_say_what_to_do(content, text):
    with pytest.raises(Unreadable, match=text):
        notebook.parse(content)


def test_megabytes_of_code_are_not_parsed():
    found = notebook.parse(as_bytes([{**CODE, "source": "x = 1\n" * 40_000}] * 20))
    assert sum(len(cell.source) for cell in found.cells) <= notebook.MAX_CODE
    assert len(found.cells) + int(found.notes[0].split()[0]) == 20


def test_endless_numbers_do_no_harm():
    assert notebook.parse(as_bytes([CODE])[:-1] + b', "n": ' + b"9" * 100_000 + b"}").cells


def test_files_that_are_no_files(tmp_path):
    good = tmp_path / "good.ipynb"
    good.write_bytes(as_bytes([CODE]))
    assert notebook.read_file(good) == as_bytes([CODE])
    (tmp_path / "link.ipynb").symlink_to(good)
    os.mkfifo(tmp_path / "fifo.ipynb")
    (tmp_path / "folder.ipynb").mkdir()
    with open(tmp_path / "sparse.ipynb", "wb") as file:
        file.truncate(300 << 20)
    for name, text in (("link", "link"), ("fifo", "regular"), ("folder", "regular"), ("sparse", "20 MiB")):
        with pytest.raises(Unreadable, match=text):
            notebook.read_file(tmp_path / f"{name}.ipynb")
    with pytest.raises(Unreadable, match="regular"):
        notebook.read_file("/dev/zero")
    with pytest.raises(Unreadable, match="cannot be opened"):
        notebook.read_file(tmp_path / "gone.ipynb")
