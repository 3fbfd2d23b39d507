"""The report of gpu_check: one line per notebook, one JSON document, and the measurements in it."""

import json
from pathlib import Path

SCHEMA = 1
WIDTH = 38
HEAD = f"{'notebook':<{WIDTH}}{'ran':>5}{'exact':>7}{'differ':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"
BAD = ("failed", "mismatch", "not run")


def count(done: dict, *statuses: str) -> int:
    """How many cells of a notebook have one of the statuses."""
    return sum(cell["status"] in statuses for cell in done["cells"])


def line(done: dict) -> str:
    """A notebook as a line of the table; "failed" counts cells that were not reached too."""
    exact = sum(cell.get("exact", False) for cell in done["cells"])
    numbers = (count(done, "ok", "mismatch"), exact, count(done, "mismatch"), count(done, "failed", "not run"))
    text = f"{done['path'].removesuffix('.ipynb'):<{WIDTH}}"
    for width, number in zip((5, 7, 8, 8, 9), (*numbers, count(done, "skipped")), strict=True):
        text += f"{number:>{width}}"
    return text + f"{done['seconds']:>9.1f}" + (f"  {done['note']}" if "note" in done else "")


def document(head: dict, facts: dict, done: list[dict]) -> dict:
    """The whole report; `passed` is False if a cell failed, differed or was not run, or a notebook was not begun."""
    found = [(notebook["path"], cell) for notebook in done for cell in notebook["cells"]]
    driver = facts["versions"].get("driver")
    recorded = []
    for notebook in done:
        for item in notebook["recorded"]:
            versions = item["versions"] | ({"driver": driver} if driver else {})
            recorded.append({**item, "versions": versions, "command": head["command"], "notebook": notebook["path"]})
    return {
        "schema": SCHEMA,
        **head,
        "passed": not any(cell["status"] in BAD for _, cell in found) and all(notebook["cells"] for notebook in done),
        "seconds": round(sum(notebook["seconds"] for notebook in done), 1),
        **facts,
        "missing": [name for name, version in facts["versions"].items() if version is None],
        "notebooks": [{key: value for key, value in item.items() if key != "recorded"} for item in done],
        "failures": _picked(found, ("failed", "not run"), ("reason", "traceback")),
        "mismatches": _picked(found, ("mismatch",), ("expected", "got")),
        "skipped": _picked(found, ("skipped",), ("reason",)),
        "recorded": recorded,
    }


def _picked(found: list, statuses: tuple, keys: tuple) -> list[dict]:
    """The cells with these statuses, by notebook and id, with some of what is known about them."""
    return [
        {"notebook": path, "cell": cell["id"], **{key: cell[key] for key in keys if key in cell}}
        for path, cell in found
        if cell["status"] in statuses
    ]


def summary(document: dict) -> str:
    """What a person wants to read at the end."""
    machine = document["machine"]
    lines = [f"{machine['device']}: {machine['name']}, {document['seconds']:g} s in all"]
    lines += [f"missing here: {name}" for name in document["missing"]]
    reached = [item for item in document["failures"] if "reason" in item]
    for item in reached:
        lines += [f"FAILED   {item['cell']}: {item['reason']}", *_indented(item.get("traceback", ""), 6)]
    for item in document["mismatches"]:
        lines += [f"DIFFERS  {item['cell']}", *_indented("expected " + item["expected"], 6)]
        lines += _indented("got      " + item["got"], 6)
    lines += [f"skipped  {item['cell']}: {item['reason']}" for item in document["skipped"]]
    lines += [f"recorded {item['name']}: {item['title']}" for item in document["recorded"]]
    return "\n".join([*lines, "All cells ran and agreed." if document["passed"] else "Not passed."])


def _indented(text: str, most: int) -> list[str]:
    return ["    " + line for line in text.splitlines()[-most:]]


def keep(file: Path, root: Path) -> int:
    """Writes the measurements in a report to ampedu/data/recorded; returns the exit status.

    A measurement of a cell that failed later on is not there; one whose exact neighbors differ is refused, since the
    machine that made it did not do what the lesson says.
    """
    from ampedu import recorded

    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        items = report["recorded"]
        bad = {item["notebook"] for item in report["failures"] + report["mismatches"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"gpu_check: {file} is no report of gpu_check ({type(error).__name__}: {error})")
        return 1
    kept = 0
    for item in items:
        if item["notebook"] in bad:
            print(f"not kept: {item['name']}, since {item['notebook']} did not pass")
            continue
        data = {key: value for key, value in item.items() if key not in ("notebook", "cell")}
        result = recorded.parse(data, f"{file.name}, {item['name']}")
        path = root / "ampedu" / "data" / "recorded" / f"{result.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(recorded.as_json(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"kept: {path.relative_to(root).as_posix()}, measured on {result.machine}")
        kept += 1
    if not items:
        print(f"gpu_check: {file.name} holds no measurements")
    return int(kept < len(items))
