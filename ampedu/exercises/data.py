"""Expected-data files, for each lab ampedu/data/expected/STEM.json and STEM.safetensors: no pickle, at most 64 kB.

They hold, per exercise, the public cases, the expected outcomes, the mutants with their messages and outcomes, the
recorded spread of the solution, and the signature of the answer; and for the lab the hash of what they were made from.
Of a mutant's outcomes the files hold those that differ from the expected ones.
Outcomes are kept per torch version ("2.13") for versioned exercises and under "any" for the others.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from ampedu.exercises import compare, plain
from ampedu.exercises.tensorfile import read_tensors

FORMAT = 1
OUTCOMES = ({"value"}, {"error", "text"}, {"timeout"}, {"unsupported"})
MAX_BYTES = 64_000
DIRECTORY = Path(__file__).parents[1] / "data" / "expected"


class DataMissing(FileNotFoundError):
    """There are no expected data for this lab; the text says how to get them."""


class DataDamaged(ValueError):
    """The expected data of this lab cannot be read; the text says why and what to do."""


@dataclass(frozen=True)
class MutantData:
    """A wrong answer: its name, its message, and its outcomes on all cases per version key."""

    name: str
    message: str
    outcomes: dict[str, list[dict]]


@dataclass(frozen=True)
class ExerciseData:
    """What the check of one exercise needs.

    expected: outcomes per version key. spread: the largest difference of the solution between environments, in units
    of the tolerance (at most 1/8). signature: {"kind": "function" | "class", "text": "(code, exponent_bits)",
    "required": 2}.
    """

    cases: list[dict]
    expected: dict[str, list[dict]]
    mutants: tuple[MutantData, ...] = ()
    spread: float = 0.0
    signature: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Bundle:
    """All exercises of a lab by id; source.

    Hash of what they were made from; torch: "major.minor" they were made with.
    """

    stem: str
    source: str
    torch: str
    exercises: dict[str, ExerciseData]


def save(bundle: Bundle, directory=None, limit: int = MAX_BYTES) -> list[Path]:
    """Write the two files of a bundle; the same bundle gives the same bytes. Returns their paths.

    Needs the safetensors library. Raises ValueError past ``limit`` bytes: make fewer or smaller cases, or reduce values
    to a hash.
    """
    from safetensors.torch import save as dump

    tensors = {}
    body = {
        "format": FORMAT,
        "stem": bundle.stem,
        "source": bundle.source,
        "torch": bundle.torch,
        "exercises": {id: _pack(item, tensors) for id, item in bundle.exercises.items()},
    }
    text = (_lines(body) + "\n").encode()
    binary = dump(tensors)
    if len(text) + len(binary) > limit:
        raise ValueError(
            f"the expected data of {bundle.stem} take {len(text) + len(binary)} bytes of at most {limit}: "
            "make fewer or smaller cases, or reduce large values to a hash"
        )
    json_path, tensor_path = _paths(bundle.stem, directory)
    json_path.parent.mkdir(parents=True, exist_ok=True)
    for path, content in ((tensor_path, binary), (json_path, text)):
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        os.replace(part, path)
    return [json_path, tensor_path]


def load(stem: str, directory=None, limit: int = 2 * MAX_BYTES) -> Bundle:
    """Read a bundle of files up to ``limit`` bytes; needs torch and the standard library only.

    Raises DataMissing or DataDamaged.
    """
    json_path, tensor_path = _paths(stem, directory)
    cure = "Contributors: run `make build`. Everyone else: install ampedu again."
    try:
        text, binary = _read(json_path, limit), _read(tensor_path, limit)
    except FileNotFoundError as error:
        raise DataMissing(
            f"the expected data of lab {stem} are missing ({Path(error.filename).name}). {cure}"
        ) from None
    try:
        body = plain.parse(text)
        tensors = read_tensors(binary)
        if body["format"] != FORMAT:
            raise ValueError(f"they have format {body['format']!r}; this ampedu reads format {FORMAT}")
        items = {id: _unpack(item, tensors) for id, item in body["exercises"].items()}
        return Bundle(body["stem"], body["source"], body["torch"], items)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else error
        raise DataDamaged(f"the expected data of lab {stem} cannot be read: {reason}. {cure}") from None


def merge(new: Bundle, old: Bundle | None) -> Bundle:
    """``new``, with the outcomes that ``old`` holds for other torch versions, if both come from the same sources."""
    if old is None or old.source != new.source or old.stem != new.stem:
        return new
    items = {}
    for id, item in new.exercises.items():
        before = old.exercises.get(id)
        if before is not None and "any" not in item.expected:
            others = {m.name: m.outcomes for m in before.mutants}
            mutants = tuple(
                MutantData(m.name, m.message, _union(m.outcomes, others.get(m.name, {}))) for m in item.mutants
            )
            expected = _union(item.expected, before.expected)
            item = ExerciseData(item.cases, expected, mutants, max(item.spread, before.spread), item.signature)
        items[id] = item
    return Bundle(new.stem, new.source, new.torch, items)


def _union(new, old):
    both = {**old, **new}
    return {key: both[key] for key in sorted(both)}


def _paths(stem, directory):
    folder = DIRECTORY if directory is None else Path(directory)
    return folder / f"{stem}.json", folder / f"{stem}.safetensors"


def _read(path, limit):
    with open(path, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DataDamaged(f"{path.name} is too large to be expected data")
    return content


def _lines(node, depth=0):
    """JSON with one line for what fits on a line: diffs stay readable and the file small."""
    text = json.dumps(node, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if len(text) < 400 or not isinstance(node, (dict, list)):
        return text
    indent = "\n" + " " * (depth + 1)
    if isinstance(node, list):
        return f"[{indent}{f',{indent}'.join(_lines(item, depth + 1) for item in node)}{indent[:-1]}]"
    parts = (f"{json.dumps(key, ensure_ascii=False)}:{_lines(item, depth + 1)}" for key, item in node.items())
    return f"{{{indent}{f',{indent}'.join(parts)}{indent[:-1]}}}"


def _pack(item, tensors):
    def pack(value):
        return plain.to_json(plain.freeze(value), tensors)

    def changed(key, outcomes):
        pairs = zip(outcomes, item.expected[key], strict=True)
        return {str(i): pack(own) for i, (own, right) in enumerate(pairs) if compare.difference(right, own)}

    return {
        "signature": pack(item.signature),
        "spread": item.spread,
        "cases": [pack(case) for case in item.cases],
        "expected": {key: [pack(outcome) for outcome in value] for key, value in item.expected.items()},
        "mutants": [
            {
                "name": m.name,
                "message": m.message,
                "changed": {key: changed(key, own) for key, own in m.outcomes.items()},
            }
            for m in item.mutants
        ],
    }


def _outcome(node, tensors):
    outcome = plain.from_json(node, tensors)
    if type(outcome) is not dict or set(outcome) not in OUTCOMES:
        raise ValueError("an outcome is malformed")
    return outcome


def _unpack(item, tensors):
    cases = plain.from_json(item["cases"], tensors)
    expected = {key: [_outcome(node, tensors) for node in value] for key, value in item["expected"].items()}
    if any(len(value) != len(cases) for value in expected.values()):
        raise ValueError(f"there is not one expected outcome for each of {len(cases)} cases")
    if type(item["spread"]) is not float:
        raise ValueError("the spread is not a float")

    def outcomes(changed):
        found = {key: list(expected[key]) for key in changed}
        for key, own in changed.items():
            for i, outcome in own.items():
                if int(i) not in range(len(cases)):
                    raise ValueError(f"a mutant has an outcome for case {i} of {len(cases)}")
                found[key][int(i)] = _outcome(outcome, tensors)
        return found

    mutants = tuple(MutantData(m["name"], m["message"], outcomes(m["changed"])) for m in item["mutants"])
    signature = plain.from_json(item["signature"], tensors)
    return ExerciseData(cases, expected, mutants, item["spread"], signature)
