"""Make the expected data of one lab; run by tools.expected in a process of its own, with the job as JSON on stdin."""

import json
import sys
from pathlib import Path

from ampedu.exercises import buildlib, data


def main() -> int:
    """Make and write the data; on a problem print one sentence a line and return 1."""
    job = json.load(sys.stdin)
    folder = Path(job["folder"])
    try:
        bundle = buildlib.make_expected(job["stem"], job["cells"], job["mutants"])
        data.save(data.merge(bundle, _stored(job["stem"], folder)), folder)
    except (buildlib.BuildError, ValueError, LookupError) as error:
        print(error)
        return 1
    return 0


def _stored(stem: str, folder: Path) -> data.Bundle | None:
    """What is there: other torch versions' outcomes are kept while the sources are the same."""
    try:
        return data.load(stem, folder)
    except (data.DataMissing, data.DataDamaged):
        return None


if __name__ == "__main__":
    sys.exit(main())
