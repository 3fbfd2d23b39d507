import json
import struct
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from ampedu.exercises import compare, data, plain
from ampedu.exercises.tensorfile import read_tensors


@pytest.fixture(scope="module")
def everything():
    """One tensor of each dtype with all byte values, an empty one, and a scalar."""
    raw = bytes(range(256))
    result = {}
    for name, dtype in plain.DTYPES.items():
        bytes_of = bytes(b & 1 for b in raw) if name == "BOOL" else raw
        result[name] = torch.frombuffer(bytearray(bytes_of), dtype=dtype).clone().reshape(2, -1)
    return {**result, "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)}


def test_the_reader_agrees_with_the_library(everything):
    content = safetensors.torch.save(everything, metadata={"a": "b"})
    ours, theirs = read_tensors(content), safetensors.torch.load(content)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert compare.difference(theirs[name], ours[name]) is None
    assert read_tensors(safetensors.torch.save({})) == {}


def file_of(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype="F32", shape=(1,), offsets=(0, 4), **more):
    return {"t": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00" * 7, struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 3) + b"{}", file_of(b"[]"),
        file_of(b"{"),
        file_of(b'{"a":1,"a":2}'), file_of(b"\xff\xff"), file_of({}, b"rest"), file_of(entry(), b"123"),
        file_of(entry(), b"12345"),
        file_of(entry("F31"), b"1234"), file_of(entry(["F32"]), b"1234"), file_of(entry(shape=(2,)), b"1234"),
        file_of(entry(shape=(-1,)), b"1234"), file_of(entry(shape=(1.0,)), b"1234"),
        file_of(entry(shape=(True,)), b"1234"),
        file_of(entry(offsets=(0, 4, 8)), b"1234"), file_of(entry(offsets=(4, 0)), b"1234"),
        file_of(entry(offsets=(4, 8)), b"1234"),
        file_of(entry(shape=(1 << 40, 0), offsets=(0, 0))), file_of(entry(shape=(1,) * 20), b"1234"),
        file_of(entry(extra=1), b"1234"),
        file_of(entry("BOOL", (1,), (0, 1)), b"\x02"), file_of({"t": 3}), file_of({f"t{i}": 0 for i in range(5000)}),
        file_of({**entry(), "u": entry()["t"]}, b"1234"),
        file_of({**entry(), "u": entry(offsets=(8, 12))["t"]}, b"x" * 12),
    ],
)  # fmt: skip
def test_damaged_tensor_files_are_refused(content):
    with pytest.raises(ValueError, match=r"\w"):
        read_tensors(content)


def test_every_truncation_is_refused(everything):
    content = safetensors.torch.save({name: everything[name] for name in ("F16", "BOOL", "scalar")})
    for size in range(0, len(content), 7):
        with pytest.raises(ValueError, match=r"\w"):
            read_tensors(content[:size])


def bundle(**changes):
    cases = [{"x": torch.tensor([1.0, float("nan")]), "n": i} for i in range(6)]
    expected = [{"value": {"y": torch.arange(i), "pair": (float("inf"), -0.0)}} for i in range(5)] + [
        {"error": "E", "text": ""}
    ]
    wrong = [*expected[:3], {"timeout": 2.0}, {"unsupported": "ü"}, {"value": None}]
    item = data.ExerciseData(
        cases, {"any": expected}, (data.MutantData("m", "Message é", {"any": wrong}),), 0.01, {"kind": "class"}
    )
    return data.Bundle("98_x", "abc", "2.13", {"98.a": replace(item, **changes)})


def test_save_and_load(tmp_path):
    made = bundle()
    first = [path.read_bytes() for path in data.save(made, tmp_path)]
    back = data.load("98_x", tmp_path)
    a, b = made.exercises["98.a"], back.exercises["98.a"]
    assert (back.stem, back.source, back.torch, b.spread, b.signature) == (
        "98_x",
        "abc",
        "2.13",
        0.01,
        {"kind": "class"},
    )
    assert (
        compare.difference([a.cases, a.expected, a.mutants[0].outcomes], [b.cases, b.expected, b.mutants[0].outcomes])
        is None
    )
    assert b.mutants[0].message == "Message é"
    assert [path.read_bytes() for path in data.save(back, tmp_path)] == first, "the same data give the same bytes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["98_x.json", "98_x.safetensors"]


def test_too_large(tmp_path):
    with pytest.raises(ValueError, match=r"98_x take \d+ bytes of at most 64000"):
        data.save(bundle(cases=[{"x": torch.zeros(3000)}] * 6), tmp_path)
    assert not list(tmp_path.iterdir())


def test_missing(tmp_path):
    with pytest.raises(data.DataMissing, match=r"98_x are missing \(98_x.json\).*make build.*install ampedu again"):
        data.load("98_x", tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda j, t: (j[:-20], t), lambda j, t: (j, t[:-1]), lambda j, t: (b"", t),
        lambda j, t: (b"[]", t), lambda j, t: (b"{}", t),
        lambda j, t: (j.replace(b'"format":1', b'"format":2'), t),
        lambda j, t: (j.replace(b'"spread":0.01', b'"spread":"x"'), t),
        lambda j, t: (j.replace(b'"tensor":"t0"', b'"tensor":"t99"'), t),
        lambda j, t: (j.replace(b'{"error":"E","text":""}', b"[]"), t),
        lambda j, t: (j.replace(b'"changed":{"any":{"3"', b'"changed":{"any":{"33"'), t),
        lambda j, t: (j + b" " * 200_000, t),
    ],
)  # fmt: skip
def test_damaged(tmp_path, damage):
    paths = data.save(bundle(), tmp_path)
    before = [path.read_bytes() for path in paths]
    after = damage(*before)
    assert list(after) != before
    for path, content in zip(paths, after, strict=True):
        path.write_bytes(content)
    with pytest.raises(data.DataDamaged, match=r"98_x|is too large"):
        data.load("98_x", tmp_path)


def test_merge_keeps_other_versions_of_the_same_sources():
    def versioned(key, source="s"):
        outcomes = {key: [{"value": key}] * 6}
        item = data.ExerciseData([{}] * 6, outcomes, (data.MutantData("m", "M", outcomes),))
        return data.Bundle("98_x", source, key, {"98.a": item})

    both = data.merge(versioned("2.13"), versioned("2.11")).exercises["98.a"]
    assert list(both.expected) == ["2.11", "2.13"] == list(both.mutants[0].outcomes)
    assert list(data.merge(versioned("2.13"), versioned("2.11", "other")).exercises["98.a"].expected) == ["2.13"]
    assert list(data.merge(bundle(), bundle()).exercises["98.a"].expected) == ["any"]
