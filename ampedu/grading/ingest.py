"""Who handed in what: a folder of notebooks, a folder for each student, or a zip file from Canvas or Moodle.

Names come from students and are hostile: ids are made of a small alphabet, everything shown is scrubbed, a zip is read
member by member and never extracted.
"""

import csv
import difflib
import hashlib
import os
import re
import stat
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from ampedu.grading import notebook

ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+@-]{0,62}[A-Za-z0-9_+@-])?")
CANVAS = re.compile(r"(?P<name>[^_/]+)_(?P<late>LATE_)?(?P<user>\d{1,19})_(?P<upload>\d{1,19})_(?P<file>[^/]+)")
MOODLE = re.compile(r"(?P<name>[^/]+)_(?P<user>\d{1,19})_assignsubmission_[a-z]+_?")
_ATTEMPT = re.compile(r"-(\d{1,4})\.ipynb$")
_JUNK = re.compile(r"(^|/)(\.(?!\.)|__MACOSX(/|$)|Thumbs\.db$|desktop\.ini$)")
MAX_ENTRIES, MAX_DEPTH = 100_000, 4
ROSTER = ("student_id", "name", "file", "lms_id")


class SubmissionsError(ValueError):
    """The submissions or the roster cannot be used; the text names the place and the cure."""


@dataclass(frozen=True)
class Submission:
    """One handed-in file.

    student_id: made of ingest.ID's alphabet. name: what the LMS or the roster calls the student, scrubbed, or "".
    shown: the file's name, scrubbed. path: the file, or the zip that holds it. member: number of the zip's member, or
    None. late: marked so by Canvas. attempt: 0, or the number that Canvas added to the name. problem: a sentence if it
    is no notebook at all.
    """

    student_id: str
    name: str
    shown: str
    path: str
    member: int | None = None
    late: bool = False
    attempt: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Collected:
    """submissions, sorted by student; rejected: {"file", "reason"}; names: id to display name of the whole roster."""

    submissions: list[Submission]
    rejected: list[dict[str, str]]
    names: dict[str, str]


def load(submission: Submission) -> bytes:
    """The bytes of a submission. Raises notebook.Unreadable."""
    if submission.problem:
        raise notebook.Unreadable(submission.problem)
    if submission.member is None:
        return notebook.read_file(submission.path)
    try:
        with zipfile.ZipFile(submission.path) as archive:
            member = archive.infolist()[submission.member]
            if stat.S_ISLNK(member.external_attr >> 16):
                raise notebook.Unreadable("This is a link to another file. Hand in the notebook itself.")
            with archive.open(member) as file:
                return notebook.capped(file)
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        if isinstance(error, notebook.Unreadable):
            raise
        raise notebook.Unreadable(f"The file in the zip archive is damaged ({shown(error, 80)}).") from None
    except Exception as error:  # zlib.error, lzma.LZMAError
        raise notebook.Unreadable(f"The file in the zip archive is damaged ({type(error).__name__}).") from None


def shown(text, limit: int = 200) -> str:
    """A hostile text for display: control, format and surrogate characters as escapes, cut."""
    from ampedu.exercises.report import scrub

    text = scrub(str(text).replace("\n", " "))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def collect(source, roster=None, labs=()) -> Collected:
    """All submissions at ``source``, with ids; ``labs``: stems that may end a file's name. Raises SubmissionsError."""
    source = Path(source)
    people = read_roster(roster) if roster else []
    if source.is_dir():
        found = _from_folder(source)
    elif zipfile.is_zipfile(source):
        found = _from_zip(source)
    elif source.is_file() and source.suffix == ".ipynb":
        found = [(source.name, str(source), None)]
    elif not os.path.lexists(source):
        raise SubmissionsError(f"{source} does not exist. Is the name right?")
    else:
        raise SubmissionsError(f"{source} is neither a folder, nor a zip file, nor a notebook. Is the name right?")
    rejected, submissions = [], []
    by_file = {row["file"]: row for row in people if row.get("file")}
    by_lms = {row["lms_id"]: row for row in people if row.get("lms_id")}
    by_id = {row["student_id"]: row for row in people}
    for name, path, member in found:
        item = _identify(name, path, member, labs)
        if item is None:
            rejected.append({"file": shown(name), "reason": "It is not a notebook (.ipynb)."})
            continue
        # By the whole name: "lab.ipynb" in the roster is one student's, not that of everybody's folder.
        row = by_file.get(name) or by_lms.get(item.student_id) or by_id.get(item.student_id)
        if row is not None:
            item = replace(item, student_id=row["student_id"], name=shown(row.get("name") or item.name))
        submissions.append(item)
    if not submissions:
        raise SubmissionsError(_nothing(source, rejected))
    with_notebook = {item.student_id for item in submissions if not item.problem}
    extra = [item for item in submissions if item.problem and item.student_id in with_notebook]
    rejected += [{"file": item.shown, "reason": "It is not a notebook (.ipynb)."} for item in extra]
    submissions = [item for item in submissions if item not in extra]
    names = {row["student_id"]: shown(row.get("name") or "") for row in people}
    return Collected(sorted(_distinct(submissions), key=lambda s: (s.student_id, s.attempt, s.shown)), rejected, names)


def _nothing(source, rejected):
    if not rejected:
        return f"{source} is empty. Put the notebooks (.ipynb) there, or name another folder."
    files = ", ".join(item["file"] for item in rejected[:3]) + (", …" if len(rejected) > 3 else "")
    return f"{source} holds no notebook (.ipynb), only {files}. Is it the right folder?"


def _distinct(submissions):
    """Ids that a file system would confuse ("Ann", "ann") are told apart."""
    spelled = {}
    for item in submissions:
        first = spelled.setdefault(item.student_id.casefold(), item.student_id)
        if first != item.student_id:
            item = replace(item, student_id=f"{item.student_id[:50]}-{_digest(item.student_id)}")
        yield item


def _digest(text):
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def _from_folder(root):
    pending, found, count = [(root, "", 0)], [], 0
    while pending:
        folder, prefix, depth = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise SubmissionsError(f"{folder} cannot be read: {error.strerror}.") from None
        for entry in entries:
            count += 1
            if count > MAX_ENTRIES:
                raise SubmissionsError(f"{root} holds more than {MAX_ENTRIES} files. Is it the right folder?")
            name = f"{prefix}{entry.name}"
            if _JUNK.search(name):
                continue
            if entry.is_dir(follow_symlinks=False) and not entry.name.endswith(".ipynb"):
                if depth < MAX_DEPTH:
                    pending.append((entry.path, f"{name}/", depth + 1))
            else:
                found.append((name, entry.path, None))
    return sorted(found)


def _from_zip(path):
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise SubmissionsError(f"{path} cannot be read as a zip file: {error}. Download it again.") from None
    if len(members) > MAX_ENTRIES:
        raise SubmissionsError(f"{path} holds more than {MAX_ENTRIES} files. Is it the right file?")
    named = [(member.filename.replace("\\", "/"), number) for number, member in enumerate(members)]
    return [(name, str(path), number) for name, number in named if not name.endswith("/") and not _JUNK.search(name)]


def _identify(name, path, member, labs):
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    last = parts[-1] if parts else ""
    is_notebook = last.casefold().endswith(".ipynb")
    problem = "" if is_notebook else "This is not a notebook. Hand in the .ipynb file of the lab."
    attempt = int(found[1]) if (found := _ATTEMPT.search(last)) else 0
    shared = {"shown": shown(name), "path": path, "member": member, "problem": problem}
    if match := CANVAS.fullmatch(last):
        return Submission(match["user"], shown(match["name"]), late=bool(match["late"]), attempt=attempt, **shared)
    for part in reversed(parts[:-1]):
        if match := MOODLE.fullmatch(part):
            return Submission(match["user"], shown(match["name"]), **shared)
    if len(parts) > 1 and parts[:-1] == name.split("/")[:-1]:
        return Submission(_id(parts[0]), "" if ID.fullmatch(parts[0]) else shown(parts[0]), **shared)
    if not is_notebook:
        return None
    stem = last[: -len(".ipynb")]
    for lab in labs:
        if stem.endswith((f"_{lab}", f"-{lab}")):
            stem = stem[: -len(lab) - 1]
    return Submission(_id(stem), "" if ID.fullmatch(stem) else shown(stem), **shared)


def _id(text):
    """The text itself if it is a good id, else one made from its hash: no submission is lost for its name."""
    return text if ID.fullmatch(text) else f"file-{_digest(text)}"


def _columns(columns):
    """What is wrong with the first line of a roster: a misspelled column would be ignored without a word."""
    if len(columns) == 1 and ";" in columns[0]:
        return "is separated by semicolons. Save it with commas."
    for name in columns:
        plain = re.sub(r"[^a-z]+", "_", name.casefold()).strip("_")
        near = ["file"] if plain.startswith("file") else difflib.get_close_matches(plain, ROSTER, n=1, cutoff=0.75)
        if name not in ROSTER and near and near[0] not in columns:
            return f"has the column {shown(name, 60)!r}. Should it be {near[0]}?"
    if len(set(columns)) < len(columns):
        return "has two columns of one name. Delete one."
    if "student_id" not in columns:
        names = ", ".join(shown(name, 40) for name in columns[:6]) or "nothing"
        return f"needs a first line with the column student_id; it has {names}. Other columns: {', '.join(ROSTER[1:])}."
    return ""


def read_roster(path) -> list[dict[str, str]]:
    """Rows of roster.csv: ``student_id``, and optionally ``name``, ``file`` (the submission, with folders), ``lms_id``.

    Other columns are left alone, unless they look like one of these. Raises SubmissionsError, naming the line.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = [(name or "").strip() for name in reader.fieldnames or ()]
            rows = [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    except OSError as error:
        raise SubmissionsError(f"the roster {path} cannot be opened: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SubmissionsError(f"the roster {path} cannot be read ({error}). Save it as CSV in UTF-8.") from None
    if problem := _columns([name for name in reader.fieldnames if name]):
        raise SubmissionsError(f"the roster {path} {problem}")
    seen = set()
    for number, row in enumerate(rows, 2):
        id = row["student_id"]
        if not ID.fullmatch(id):
            text = f"{shown(id, 60)!r} is not a student id. Use letters, digits and ._+@-"
            raise SubmissionsError(f"the roster {path}, line {number}: {text}")
        if id.casefold() in seen:
            raise SubmissionsError(f"the roster {path}, line {number}: {id} stands there twice.")
        seen.add(id.casefold())
    return rows
