"""The learner's progress: a JSON file that belongs to the learner, at $AMPEDU_PROGRESS or ~/.ampedu/progress.json.

Writing is atomic and locked, so that notebooks that run at the same time lose no entry. A damaged file is set aside
and said once. A folder that cannot be written is said once, and the notebook goes on: recording never raises.
"""

import contextlib
import csv
import json
import os
import time
from pathlib import Path

SCHEMA = 1
STATUSES = ("not started", "failed", "passed")
LOCK_SECONDS, STALE_SECONDS = 3.0, 10.0
_said: set[str] = set()


class NewerSchema(Exception):
    """The file was written by a newer ampedu."""


def path() -> Path:
    """Where the progress is kept. Raises OSError if this user has no home folder and AMPEDU_PROGRESS is not set."""
    try:
        return Path(os.environ.get("AMPEDU_PROGRESS") or "~/.ampedu/progress.json").expanduser()
    except RuntimeError:
        raise OSError("this user has no home folder") from None


def load() -> dict:
    """{"schema": 1, "exercises".

    {id: {"status", "points", "attempts"}}, "quizzes": {id: {"correct", "attempts", "first"}}}.

    Empty if there is no file. A damaged file is renamed to progress.corrupt-N.json beside it, and said.
    """
    try:
        return _read()
    except (OSError, NewerSchema) as error:
        _say(f"Your progress cannot be read: {_reason(error)}")
        return _empty()


def record_exercise(id: str, status: str, points: int) -> None:
    """Note the result of a check. The best status and the most points are kept; attempts counts the judged ones.

    status: "passed", "failed" or "not started". Anything else raises ValueError; trouble with the file does not raise.
    """
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is not one of {', '.join(STATUSES)}")

    def update(progress):
        entry = progress["exercises"].setdefault(id, {"status": "not started", "points": 0, "attempts": 0})
        entry["status"] = max(entry["status"], status, key=STATUSES.index)
        entry["points"] = max(entry["points"], points)
        entry["attempts"] += status != "not started"

    _change(update)


def record_quiz(id: str, correct: bool) -> None:
    """Note an answer to a quiz question.

    ``first`` keeps whether the first answer was correct, ``correct`` whether any was.
    """

    def update(progress):
        entry = progress["quizzes"].setdefault(id, {"correct": False, "attempts": 0, "first": bool(correct)})
        entry["correct"] = entry["correct"] or bool(correct)
        entry["attempts"] += 1

    _change(update)


def rows() -> list[dict]:
    """One dict per exercise and quiz question, sorted by id: kind, id, status, points, attempts."""
    progress = load()
    result = [{"kind": "exercise", "id": id, **entry} for id, entry in progress["exercises"].items()]
    for id, entry in progress["quizzes"].items():
        status = "passed" if entry["correct"] else "failed"
        result.append({"kind": "quiz", "id": id, "status": status, "points": 0, "attempts": entry["attempts"]})
    return sorted(result, key=lambda row: (row["id"].removeprefix("quiz/"), row["kind"]))


def parse(text: str) -> dict:
    """The progress that a file holds. Raises ValueError if it is damaged, NewerSchema if a newer ampedu wrote it."""
    try:
        progress = json.loads(text)
        if type(progress["schema"]) is int and progress["schema"] > SCHEMA:
            raise NewerSchema
        _validate(progress)
        return progress
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("not a progress file of ampedu, or a damaged one") from None


def combined(older: dict, newer: dict) -> dict:
    """The better of two results for every exercise and question; nothing of either is lost, nothing counts twice."""
    result = _empty()
    for part in (older, newer):
        for id, entry in part["exercises"].items():
            known = result["exercises"].setdefault(id, dict(entry))
            known["status"] = max(known["status"], entry["status"], key=STATUSES.index)
            known["points"] = max(known["points"], entry["points"])
            known["attempts"] = max(known["attempts"], entry["attempts"])
        for id, entry in part["quizzes"].items():
            known = result["quizzes"].setdefault(id, dict(entry))
            known["correct"] = known["correct"] or entry["correct"]
            known["attempts"] = max(known["attempts"], entry["attempts"])
    return result


def merge(saved: dict) -> None:
    """Take in progress that was saved elsewhere. Raises OSError or NewerSchema if the own file cannot be changed."""
    with _locked():
        _write(combined(saved, _read()))


def export(file) -> Path:
    """Write the progress to a .csv or .json file and return its path. Raises ValueError for another suffix."""
    target = Path(file)
    if target.suffix == ".json":
        target.write_text(json.dumps(load(), indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    elif target.suffix == ".csv":
        with open(target, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, ["kind", "id", "status", "points", "attempts"])
            writer.writeheader()
            writer.writerows(rows())
    else:
        raise ValueError(f"{target.name}: the progress can be exported to a .csv or a .json file")
    return target


def _empty():
    return {"schema": SCHEMA, "exercises": {}, "quizzes": {}}


def _change(update):
    try:
        with _locked():
            progress = _read()
            update(progress)
            _write(progress)
    except (OSError, NewerSchema) as error:
        _say(f"Your progress could not be recorded: {_reason(error)} Everything else works.")


def _read():
    if path().exists() and not path().is_file():  # such as /dev/null: setting it aside would rename the device
        raise OSError(f"{path()} is not a regular file")
    try:
        text = path().read_text(encoding="utf-8")
    except FileNotFoundError:
        return _empty()
    except UnicodeDecodeError:
        text = ""
    try:
        return parse(text)
    except ValueError:
        aside = _set_aside()
        _say(f"The progress file was damaged. It is kept as {aside.name}, and a new one is started.")
        return _empty()


def _validate(progress):
    if progress["schema"] != SCHEMA:
        raise ValueError("unknown schema")
    for entry in progress["exercises"].values():
        if entry["status"] not in STATUSES or type(entry["points"]) is not int or type(entry["attempts"]) is not int:
            raise ValueError("malformed exercise")
    for entry in progress["quizzes"].values():
        if type(entry["correct"]) is not bool or type(entry["first"]) is not bool or type(entry["attempts"]) is not int:
            raise ValueError("malformed quiz")


def _set_aside():
    number = 1
    while (aside := path().with_name(f"{path().stem}.corrupt-{number}.json")).exists():
        number += 1
    os.replace(path(), aside)
    return aside


def _write(progress):
    part = path().with_name(f"{path().name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(progress, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(part, path())
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked():
    """Hold PATH.lock; a lock older than STALE_SECONDS was left by a process that died."""
    path().parent.mkdir(parents=True, exist_ok=True)
    lock, deadline = path().with_name(path().name + ".lock"), time.monotonic() + LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime > STALE_SECONDS:
                    lock.unlink()
                    continue
            if time.monotonic() > deadline:
                raise TimeoutError(f"{lock.name} is held by another notebook") from None
            time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _reason(error):
    if isinstance(error, NewerSchema):
        return "the file was written by a newer version of ampedu: update ampedu."
    return f"{error.strerror or error}: choose another file with the environment variable AMPEDU_PROGRESS."


def _say(text):
    # On stdout: a notebook whose cells write to stderr is marked as failing by some graders.
    if text not in _said:
        _said.add(text)
        print(text)
