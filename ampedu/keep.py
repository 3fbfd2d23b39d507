"""Keeps a learner's lab and progress where the machine does not forget them, and brings them back.

On Colab: in the folder `ampedu` of the learner's Drive, or as a zip that the browser downloads. Elsewhere: as a zip
beside the notebook. Nothing is lost: an earlier notebook stays as a numbered copy, and progress is joined.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
import zlib
from pathlib import Path

from ampedu import progress
from ampedu._keep_both import back_up, numbered, replace

ACTIONS = ("save to Drive", "download", "restore from Drive", "upload")
PROGRESS = "progress.json"
DRIVE = Path("/content/drive")
LARGEST = 100 * 2**20  # bytes of a file in a zip; a lab with outputs takes far less than a megabyte


class KeepError(RuntimeError):
    """Saving or restoring is not possible; the message says why and what to do. Notebooks show the message alone."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


def keep(lab: str, action: str) -> None:
    """Save or restore the lab (a stem such as "01_bit_layouts") and the progress, and say what was done.

    action: "save to Drive" or "download" save; "restore from Drive" or "upload" restore. Where there is no Colab, the
    first two write a zip beside the notebook, and the other two read the newest one. Raises KeepError with the cure.
    """
    if action not in ACTIONS:
        raise KeepError(f"There is no action {action!r}. Choose one of: {', '.join(ACTIONS)}.")
    colab = "google.colab" in sys.modules  # Colab's kernel loads it when it starts
    try:
        if action in ACTIONS[:2]:
            _save(lab, colab, to_drive=action == "save to Drive")
        elif colab and action == "restore from Drive":
            _restore_from_drive(lab)
        else:
            _restore_from_zip(lab, colab)
    except OSError as error:
        reason = f"{error.strerror or error} ({Path(error.filename or '').name or 'file'})"
        raise KeepError(f"A file could not be read or written: {reason}. Make room or choose another action.") from None
    except progress.NewerSchema:
        raise KeepError("The progress was written by a newer ampedu. Update ampedu and run this cell again.") from None


def _save(lab, colab, to_drive):
    work = _notebooks(lab, colab)
    if not work:
        by_hand = "File → Download → Download .ipynb" if colab else "Ctrl+S, and copy the file"
        print(f"Only your progress is saved: {lab}.ipynb was not found. Save the notebook yourself: {by_hand}.")
    work[PROGRESS] = _as_bytes(progress.load())
    if colab and to_drive:
        try:
            return _write_to_drive(work, _drive())
        except KeepError as refused:
            print(f"{refused}\nSo your browser downloads a zip instead.")
    target = numbered(Path(f"{lab}.zip"), "saved")
    replace(target, _zipped(work))
    print(f"Saved: {', '.join(sorted(work))} in {target.name}.")
    if colab:
        from google.colab import files

        files.download(str(target))
        print("Your browser has it now, or asks you where to put it.")
    elif len(work) > 1:
        print("It is beside this notebook. What you have not saved with Ctrl+S is not in it.")


def _write_to_drive(work, folder):
    for name, content in sorted(work.items()):
        target = folder / name
        if name == PROGRESS:
            content = _as_bytes(_joined(target, content))
        elif target.exists() and target.read_bytes() != content:
            print(f"The version from before is {back_up(target).name}.")
        replace(target, content)
    print(f"Saved: {', '.join(sorted(work))} in the folder {folder.name} of your Drive.")


def _joined(target, content):
    """The new progress and the one that is on Drive; a damaged one stays as a numbered copy."""
    mine = progress.parse(content.decode())
    if not target.exists():
        return mine
    try:
        return progress.combined(progress.parse(target.read_bytes().decode()), mine)
    except ValueError:
        print(f"{PROGRESS} on your Drive was damaged; it stays as {back_up(target).name}.")
        return mine


def _restore_from_drive(lab):
    folder = _drive()
    saved, notebook = folder / PROGRESS, folder / f"{lab}.ipynb"
    if not saved.exists() and not notebook.exists():
        raise KeepError(f'Nothing is saved in the folder {folder.name} of your Drive. Choose "save to Drive" first.')
    if saved.exists():
        _take_in(saved.read_bytes(), f"{saved.name} in the folder {folder.name} of your Drive")
    if notebook.exists():
        print(f"Your lab: File → Open notebook → Google Drive → {notebook.name}, in the folder {folder.name}.")


def _restore_from_zip(lab, colab):
    name, content = _uploaded() if colab else _newest(lab)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            wanted = [each for each in archive.infolist() if each.filename == PROGRESS or _is_lab(each.filename, lab)]
            if any(each.file_size > LARGEST for each in wanted):
                raise KeepError(f"{name} holds a file that is too large for a lab. Choose a zip that this cell saved.")
            work = {each.filename: archive.read(each) for each in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        raise KeepError(f"{name} is damaged or no zip. Choose a zip that this cell saved.") from None
    if not work:
        raise KeepError(f"{name} holds nothing of lab {lab}. Choose a zip that this cell saved in this lab.")
    if PROGRESS in work:
        _take_in(work.pop(PROGRESS), f"{PROGRESS} in {name}")
    for notebook, text in sorted(work.items()):
        if colab:
            print(f"Your lab: unpack {name} on your computer, then File → Upload notebook → {notebook}.")
        else:
            _lay_beside(Path(notebook), text)


def _lay_beside(target, content):
    if target.exists() and target.read_bytes() != content:
        target = numbered(target, "restored")
    replace(target, content)
    print(f"Your lab is {target.name}; open it.")


def _take_in(content, where):
    try:
        saved = progress.parse(content.decode())
    except ValueError:
        raise KeepError(f"{where} is damaged. Nothing was changed. Choose an earlier copy.") from None
    progress.merge(saved)
    passed = sum(entry["status"] == "passed" for entry in progress.load()["exercises"].values())
    print(f"Your progress is back: {passed} exercise{'s' * (passed != 1)} passed.")


def _notebooks(lab, colab):
    """File name → content of this lab: the open notebook on Colab, elsewhere what lies in the current folder."""
    if colab:
        content = _open_notebook()
        return {f"{lab}.ipynb": content} if content else {}
    return {path.name: path.read_bytes() for path in sorted(Path().glob("*.ipynb")) if _is_lab(path.name, lab)}


def _is_lab(name, lab):
    """Whether this is the lab or a copy that its learner made (`01_bit_layouts-Copy1.ipynb`), and no backup."""
    stem = name.removesuffix(".ipynb")
    return name != stem and stem.startswith(lab) and not set(stem) & set("./\\:")


def _open_notebook():
    """The notebook that is open in Colab, which is no file of its machine; None if Colab does not hand it over."""
    try:
        from google.colab import _message  # there is no public way

        answer = _message.blocking_request("get_ipynb", request="", timeout_sec=30)
        return (json.dumps(answer["ipynb"], indent=1, ensure_ascii=False) + "\n").encode()
    except Exception:
        return None


def _drive():
    """The folder `ampedu` of the learner's Drive; Colab asks for the permission."""
    from google.colab import drive

    try:
        if not (DRIVE / "MyDrive").is_dir():
            drive.mount(str(DRIVE))
        folder = DRIVE / "MyDrive" / "ampedu"
        folder.mkdir(exist_ok=True)
    except Exception as error:  # Colab raises one of several kinds, one of them when the learner refuses
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        cure = 'Run this cell again and allow the access, or choose "download" or "upload".'
        raise KeepError(f"Your Drive is not available ({reason}). {cure}") from None
    return folder


def _uploaded():
    from google.colab import files

    chosen = files.upload()
    if len(chosen) != 1:
        raise KeepError("Choose one file: the zip that this cell saved. Run this cell again.")
    return next(iter(chosen.items()))


def _newest(lab):
    numbers = [path.stem.rsplit("-", 1)[1] for path in Path().glob(f"{lab}.saved-*.zip")]
    if not any(number.isdigit() for number in numbers):
        raise KeepError(f"No {lab}.saved-1.zip in {Path.cwd().name}. Put the saved zip beside this notebook.")
    newest = Path(f"{lab}.saved-{max(int(number) for number in numbers if number.isdigit())}.zip")
    return newest.name, newest.read_bytes()


def _as_bytes(record):
    return (json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _zipped(work):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(work.items()):
            archive.writestr(name, content)
    return buffer.getvalue()
