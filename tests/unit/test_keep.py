"""Saving and restoring a lab, on a stand-in for Colab and elsewhere: nothing of the learner is ever lost."""

import io
import json
import sys
import zipfile
from types import ModuleType, SimpleNamespace

import pytest

from ampedu import keep as module
from ampedu import progress
from ampedu.keep import KeepError, keep

LAB = "01_bit_layouts"


def quiz(correct, first, attempts):
    return {"correct": correct, "first": first, "attempts": attempts}


def exercise(status, points, attempts):
    return {"status": status, "points": points, "attempts": attempts}


def record(exercises=(), quizzes=()):
    return {"schema": 1, "exercises": dict(exercises), "quizzes": dict(quizzes)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder of the notebook, with the lab in it and one exercise passed."""
    folder = tmp_path / "labs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / f"{LAB}.ipynb").write_text('{"mine": 1}', encoding="utf-8")
    progress.record_exercise("01.decode", "passed", 2)
    return folder


class Colab:
    """What google.colab does, as far as the cell uses it."""

    def __init__(self, root):
        self.root, self.downloads, self.upload, self.refusal, self.open = root, {}, {}, None, {"cells": ["é"]}

    def mount(self, place):
        if self.refusal:
            raise self.refusal
        (self.root / "MyDrive").mkdir(parents=True, exist_ok=True)

    def download(self, name):
        self.downloads[name] = open(name, "rb").read()

    def request(self, name, request="", timeout_sec=5):
        assert name == "get_ipynb"
        if self.open is None:
            raise TimeoutError
        return {"ipynb": self.open}

    @property
    def folder(self):
        return self.root / "MyDrive" / "ampedu"


@pytest.fixture
def colab(tmp_path, monkeypatch, here):
    """Colab: the open notebook is no file, the current folder is empty."""
    (here / f"{LAB}.ipynb").unlink()
    fake = Colab(tmp_path / "drive")
    package = ModuleType("google.colab")
    package.drive = SimpleNamespace(mount=fake.mount)
    package.files = SimpleNamespace(download=fake.download, upload=lambda: fake.upload)
    package._message = SimpleNamespace(blocking_request=fake.request)
    google = ModuleType("google")
    google.colab = package
    monkeypatch.setitem(sys.modules, "google", google)
    monkeypatch.setitem(sys.modules, "google.colab", package)
    monkeypatch.setattr(module, "DRIVE", fake.root)
    return fake


def forget():
    """What a disconnected machine does."""
    progress.path().unlink()


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def test_elsewhere_a_zip_beside_the_notebook_brings_everything_back(here, capsys):
    keep(LAB, "download")
    assert f"{LAB}.saved-1.zip" in capsys.readouterr().out
    before = progress.load()
    forget()
    (here / f"{LAB}.ipynb").unlink()
    keep(LAB, "upload")
    assert progress.load() == before
    assert (here / f"{LAB}.ipynb").read_text(encoding="utf-8") == '{"mine": 1}'
    assert "1 exercise passed" in capsys.readouterr().out


def test_a_second_save_has_a_new_name_and_the_newest_is_restored(here):
    for n in range(1, 12):
        (here / f"{LAB}.ipynb").write_text(f'{{"mine": {n}}}', encoding="utf-8")
        keep(LAB, "save to Drive")
    assert len(list(here.glob("*.zip"))) == 11
    (here / f"{LAB}.ipynb").unlink()
    keep(LAB, "restore from Drive")
    assert (here / f"{LAB}.ipynb").read_text(encoding="utf-8") == '{"mine": 11}'


def test_restoring_never_overwrites_a_notebook(here):
    keep(LAB, "download")
    (here / f"{LAB}.ipynb").write_text('{"mine": 2}', encoding="utf-8")
    keep(LAB, "upload")
    keep(LAB, "upload")
    assert (here / f"{LAB}.ipynb").read_text(encoding="utf-8") == '{"mine": 2}'
    for n in (1, 2):
        assert (here / f"{LAB}.restored-{n}.ipynb").read_text(encoding="utf-8") == '{"mine": 1}'
    assert not list(here.glob("*.part"))


def test_only_this_lab_and_no_backups_are_saved(here):
    for name in ("other", f"{LAB}.backup-1", f"{LAB}.new", f"{LAB}-Copy1"):
        (here / f"{name}.ipynb").write_text("{}", encoding="utf-8")
    keep(LAB, "download")
    with zipfile.ZipFile(f"{LAB}.saved-1.zip") as archive:
        assert set(archive.namelist()) == {"progress.json", f"{LAB}.ipynb", f"{LAB}-Copy1.ipynb"}


def test_a_notebook_that_is_not_there_is_said(here, capsys):
    (here / f"{LAB}.ipynb").unlink()
    keep(LAB, "download")
    assert "Only your progress is saved" in capsys.readouterr().out


def test_restoring_joins_progress_and_counts_nothing_twice(here):
    keep(LAB, "download")
    forget()
    progress.record_exercise("01.decode", "failed", 0)
    progress.record_exercise("01.ulp", "failed", 0)
    keep(LAB, "upload")
    keep(LAB, "upload")
    assert progress.load()["exercises"] == {"01.decode": exercise("passed", 2, 1), "01.ulp": exercise("failed", 0, 1)}


def test_combined_progress():
    older = record({"a": exercise("passed", 2, 3), "b": exercise("not started", 0, 0)}, {"q": quiz(False, False, 1)})
    newer = record({"a": exercise("failed", 0, 5), "c": exercise("failed", 0, 1)}, {"q": quiz(True, True, 1)})
    before = json.dumps([older, newer])
    both = progress.combined(older, newer)
    assert both["exercises"] == {
        "a": exercise("passed", 2, 5),
        "b": exercise("not started", 0, 0),
        "c": exercise("failed", 0, 1),
    }
    assert both["quizzes"] == {"q": quiz(True, False, 1)}  # the first answer was the older one
    assert json.dumps([older, newer]) == before
    assert progress.combined(both, both) == both


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, f"No {LAB}.saved-1.zip in labs"),
        (b"PK no zip", f"{LAB}.saved-1.zip is damaged"),
        (zipped(**{"../evil.ipynb": "{}", "02_x.ipynb": "{}"}), "holds nothing of lab"),
        (zipped(**{"progress.json": '{"schema": 1}'}), "progress.json in .* is damaged. Nothing was changed"),
        (zipped(**{"progress.json": '{"schema": 99}'}), "Update ampedu"),
    ],
)
def test_a_bad_zip_changes_nothing_and_the_message_names_it(here, content, words):
    if content is not None:
        (here / f"{LAB}.saved-1.zip").write_bytes(content)
    files, before = sorted(here.parent.rglob("*")), progress.load()
    with pytest.raises(KeepError, match=words):
        keep(LAB, "upload")
    assert (sorted(here.parent.rglob("*")), progress.load()) == (files, before)


def test_a_zip_that_would_fill_the_disk_is_refused(here, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 10)
    (here / f"{LAB}.saved-1.zip").write_bytes(zipped(**{f"{LAB}.ipynb": "x" * 11}))
    with pytest.raises(KeepError, match="too large"):
        keep(LAB, "upload")


def test_an_unknown_action_is_named_with_the_choices(here):
    with pytest.raises(KeepError, match=r"'save'.*save to Drive, download"):
        keep(LAB, "save")


def test_a_folder_that_cannot_be_written_is_said(here, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(module, "replace", full)
    with pytest.raises(KeepError, match=r"No space left on device \(01_bit_layouts.saved-1.zip\).*Make room"):
        keep(LAB, "download")


def test_the_message_stands_alone_in_a_notebook():
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    with capture_output() as shown:
        InteractiveShell().run_cell("from ampedu.keep import keep; keep('x', 'y')")
    assert shown.stdout.strip().startswith("KeepError: There is no action 'y'")
    assert "Traceback" not in shown.stdout


def test_drive_keeps_the_open_notebook_and_the_progress(colab, here, capsys):
    keep(LAB, "save to Drive")
    assert json.loads((colab.folder / f"{LAB}.ipynb").read_text(encoding="utf-8")) == {"cells": ["é"]}
    before = progress.load()
    assert json.loads((colab.folder / "progress.json").read_text(encoding="utf-8")) == before
    assert list(here.iterdir()) == []
    forget()
    keep(LAB, "restore from Drive")
    assert progress.load() == before
    assert f"Google Drive → {LAB}.ipynb" in capsys.readouterr().out


def test_drive_keeps_earlier_versions_and_the_progress_of_other_labs(colab, capsys):
    keep(LAB, "save to Drive")
    keep(LAB, "save to Drive")
    assert not list(colab.folder.glob("*.backup-*"))  # the same once more is no new version
    forget()
    progress.record_exercise("02.sum", "passed", 1)
    for n in (2, 3):
        colab.open = {"cells": [n]}
        keep(LAB, "save to Drive")
    versions = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in colab.folder.glob("*.ipynb")}
    assert versions == {
        f"{LAB}.backup-1.ipynb": {"cells": ["é"]},
        f"{LAB}.backup-2.ipynb": {"cells": [2]},
        f"{LAB}.ipynb": {"cells": [3]},
    }
    assert f"{LAB}.backup-2.ipynb" in capsys.readouterr().out
    saved = json.loads((colab.folder / "progress.json").read_text(encoding="utf-8"))
    assert set(saved["exercises"]) == {"01.decode", "02.sum"}


def test_damaged_progress_on_drive_is_kept_beside(colab):
    colab.folder.mkdir(parents=True)
    (colab.folder / "progress.json").write_text("{half", encoding="utf-8")
    keep(LAB, "save to Drive")
    assert (colab.folder / "progress.backup-1.json").read_text(encoding="utf-8") == "{half"
    assert progress.parse((colab.folder / "progress.json").read_text(encoding="utf-8")) == progress.load()


def test_without_permission_saving_turns_into_a_download(colab, capsys):
    colab.refusal = ValueError("mount failed")
    keep(LAB, "save to Drive")
    assert list(colab.downloads) == [f"{LAB}.saved-1.zip"]
    shown = capsys.readouterr().out
    assert "Your Drive is not available (mount failed)" in shown
    assert "downloads a zip instead" in shown


def test_without_permission_restoring_names_the_cure(colab):
    colab.refusal = RuntimeError("Error: credential propagation was unsuccessful")
    with pytest.raises(KeepError, match=r'credential propagation.*allow the access, or choose "download" or "upload"'):
        keep(LAB, "restore from Drive")


def test_nothing_on_drive_is_said(colab):
    with pytest.raises(KeepError, match=r'Nothing is saved.*Choose "save to Drive" first'):
        keep(LAB, "restore from Drive")


def test_a_download_comes_back_by_upload(colab, capsys):
    keep(LAB, "download")
    ((name, content),) = colab.downloads.items()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert json.loads(archive.read(f"{LAB}.ipynb")) == {"cells": ["é"]}
    before = progress.load()
    forget()
    colab.upload = {name: content}
    keep(LAB, "upload")
    assert progress.load() == before
    assert f"Upload notebook → {LAB}.ipynb" in capsys.readouterr().out


def test_an_upload_that_was_canceled_is_said(colab):
    with pytest.raises(KeepError, match="Choose one file"):
        keep(LAB, "upload")


def test_when_colab_does_not_hand_over_the_notebook_the_progress_is_saved(colab, capsys):
    colab.open = None
    keep(LAB, "download")
    assert "Download .ipynb" in capsys.readouterr().out
    with zipfile.ZipFile(io.BytesIO(colab.downloads[f"{LAB}.saved-1.zip"])) as archive:
        assert archive.namelist() == ["progress.json"]
