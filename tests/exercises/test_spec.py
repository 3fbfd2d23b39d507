import pytest

from ampedu.exercises import exercise, load, of_stem, spec, stems, table
from ampedu.exercises.mutants import load_mutants


class Body:
    """A title.

    More text.
    """

    tolerance = "exact"

    def cases(self, stream):
        return [{"n": stream.integer(0, 9)} for _ in range(6)]

    def run(self, answer, case):
        return answer(case["n"])

    def describe(self, case):
        return "f"


GOOD = {"answer": "f", "points": 1, "minutes": 1, "difficulty": 1}


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    monkeypatch.setattr(spec, "_registry", dict(spec._registry))


def register(id="97.thing", body=Body, module="ampedu.exercises.ex97_memory", **changes):
    cls = type(body.__name__, (body,), {"__doc__": body.__doc__, "__module__": module, "__qualname__": body.__name__})
    exercise(id, **{**GOOD, **changes})(cls)
    return spec._registry[id]


def test_metadata():
    made = register(settles=("C08", "R02"), forbids=("a.b",), seconds=3)
    assert (made.id, made.stem, made.title, made.points) == ("97.thing", "97_memory", "A title.", 1)
    assert made.seconds == 3.0 and made.settles == ("C08", "R02") and made.forbids == ("a.b",)
    assert made.reduce({}, "raw") == "raw"
    assert len(made.cases()) == 6 and made.cases() == made.cases(b"public") != made.cases(b"other")


def body_with(**changes):
    return type("Body", (Body,), {"__doc__": "T.", **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "1.x"}, "NN.snake_case"), ({"id": "97.Thing"}, "NN.snake_case"), ({"id": 97}, "NN.snake_case"),
        ({"points": 0}, "at least 1"), ({"points": 1.5}, "whole number"), ({"points": True}, "whole number"),
        ({"minutes": 0}, "minutes=0"), ({"difficulty": 4}, "1, 2 or 3"), ({"answer": "a b"}, "Python name"),
        ({"seconds": 0}, "seconds=0"), ({"versioned": 1}, "versioned=1"), ({"settles": ("claim 8",)}, "'C08'"),
        ({"forbids": "ampedu.formats"}, "tuple of strings"), ({"forbids": ("a-b",)}, "dotted names"),
        ({"id": "96.thing"}, "must start with 97"),
        ({"body": body_with(tolerance="about")}, "tolerance must be"),
        ({"body": body_with(tolerance={})}, "tolerance must be"),
        ({"body": body_with(tolerance={"rtol": 1e-3})}, "tolerance must be"),
        ({"body": body_with(tolerance={"rtol": 0.0, "atol": 0.0})}, "tolerance must be"),
        ({"body": body_with(tolerance={"rtol": -1, "atol": 0.0})}, "tolerance must be"),
        ({"body": body_with(tolerance={"x": {"y": "exact"}})}, "tolerance['x']"),
        ({"body": body_with(run=None)}, "needs the method run"), ({"body": body_with(__doc__="")}, "docstring"),
    ],
)  # fmt: skip
def test_bad_metadata_is_refused_by_name(changes, words):
    with pytest.raises(spec.SpecError) as caught:
        register(**changes)
    assert words in str(caught.value) and str(changes.get("id", "97.thing")) in str(caught.value)


def test_duplicates():
    register()
    register()
    with pytest.raises(spec.SpecError, match=r"97\.thing is defined twice, as Body and Other"):
        register(body=type("Other", (Body,), {"__doc__": "T."}))
    with pytest.raises(spec.SpecError, match="same answer name 'f'"):
        register(id="97.other", body=type("Other", (Body,), {"__doc__": "T."}))


@pytest.mark.parametrize("cases", [[], [{}] * 5, ({},) * 6, [1] * 6, [{"x": {1}}] * 6, [{"x": len}] * 6])
def test_cases_must_be_at_least_six_dicts_of_plain_data(cases):
    made = register(body=body_with(cases=lambda self, stream: cases))
    with pytest.raises(spec.SpecError, match=r"97\.thing: cases"):
        made.cases()


def test_look_up(fake):
    assert load("99.double").answer == "double" and "99_fake" in stems()
    assert [ex.id for ex in of_stem("99_fake")] == ["99.double", "99.scale_all", "99.by_version", "99.counter"]
    assert ("99.double", "Twice a number.", 2, 5, 1, ("C08",)) in table()
    for id, near in (("99.duoble", "99.double"), ("98.double", "99.double"), ("double", "99.double")):
        with pytest.raises(spec.UnknownExercise, match=near):
            load(id)
    with pytest.raises(spec.UnknownExercise, match="99_fake"):
        of_stem("99_fak")
    with pytest.raises(spec.UnknownExercise, match="a string such as"):
        load(99)


def test_mutant_files(tmp_path):
    path = tmp_path / "mutants.py"
    head = "from ampedu.exercises import mutant\n"
    path.write_text(head + "@mutant('99.a', 'One\\n   two.')\ndef f(): pass\n@mutant('99.b', 'B')\nclass f: pass\n")
    first, second = load_mutants(path)
    assert (first.exercise, first.name, first.message) == ("99.a", "f", "One two.") and isinstance(second.answer, type)
    path.write_text(head + "@mutant('99.a', 'A')\ndef f(): pass\n@mutant('99.a', 'B')\ndef f(): pass\n")
    with pytest.raises(spec.SpecError, match=r"mutants\.py: two mutants of 99\.a are named f"):
        load_mutants(path)
    path.write_text(head + "@mutant('99.a', ' ')\ndef f(): pass\n")
    with pytest.raises(spec.SpecError, match="no message"):
        load_mutants(path)
