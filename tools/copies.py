"""The learner's own copies in work/: made from the shipped notebooks, never overwritten once the learner changed them.

Standard library only: this runs before anything is installed.
"""

import hashlib
import json
import os
import shutil

FOLDERS = ("notebooks", "labs", "solutions")
MANIFEST = ".ampedu/manifest.json"


def sha256(path):
    """The SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_manifest(work):
    """What was delivered before: {relative path: {"delivered": sha256, "offered": [file name, sha256] or None}}.

    A manifest that is missing or damaged is an empty one: then every file that differs from the shipped one counts as
    changed by the learner, and is kept.
    """
    try:
        found = json.loads((work / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(map(_is_entry, found.values())) else {}


def _is_entry(entry):
    """Whether an entry of the manifest has the form that read_manifest describes."""
    if not isinstance(entry, dict) or not isinstance(entry.get("delivered"), (str, type(None))):
        return False
    offered = entry.get("offered")
    return offered is None or (
        isinstance(offered, list) and len(offered) == 2 and all(isinstance(part, str) for part in offered)
    )


def deliver(repository, work):
    """Brings work/ up to date with the shipped notebooks; returns sentences that the learner should read.

    A file that is missing is copied; one that the learner has not touched is updated; one that the learner changed
    stays as it is, and a newer shipped version is laid beside it, once, as NAME.new.ipynb.
    """
    manifest, news = read_manifest(work), []
    for folder in FOLDERS:
        for source in sorted((repository / folder).glob("*.ipynb")):
            name = f"{folder}/{source.name}"
            entry = manifest.get(name, {})
            manifest[name], said = _deliver_one(source, work / folder / source.name, entry)
            news.extend(said)
    _write(work / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return news


def _deliver_one(source, target, entry):
    shipped = sha256(source)
    offered = entry.get("offered")
    if not target.exists():
        _copy(source, target)
        return {"delivered": shipped, "offered": offered}, []
    present = sha256(target)
    if present == shipped:
        return {"delivered": shipped, "offered": None}, []
    if present == entry.get("delivered"):
        _copy(source, target)
        return {"delivered": shipped, "offered": None}, [f"{_short(target)}: updated to the newer version."]
    if shipped == entry.get("delivered") or (offered and offered[1] == shipped):
        return entry, []
    beside = _free_name(target, offered)
    _copy(source, beside)
    said = f"{_short(target)}: you changed it, so it stays. The newer version lies beside it as {beside.name}."
    # "delivered" stays: it says which version the learner's changes started from.
    return {"delivered": entry.get("delivered"), "offered": [beside.name, shipped]}, [said]


def _free_name(target, offered):
    """NAME.new.ipynb, or NAME.new-2.ipynb … if the learner changed the earlier offer too."""
    number = 1
    while True:
        beside = target.with_name("{}.new{}.ipynb".format(target.stem, "" if number == 1 else f"-{number}"))
        untouched = offered and beside.name == offered[0] and beside.exists() and sha256(beside) == offered[1]
        if untouched or not beside.exists():
            return beside
        number += 1


def _short(target):
    return f"work/{target.parent.name}/{target.name}"


def _copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    shutil.copyfile(str(source), str(partial))
    os.replace(str(partial), str(target))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(str(partial), str(path))
