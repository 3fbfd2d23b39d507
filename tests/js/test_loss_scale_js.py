"""The simulator's JavaScript against LossScale, which test_scaling.py holds against torch: states and words."""

import dataclasses
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ampedu import static
from ampedu.scaling import LossScale
from ampedu.scaling.rule import number_text
from ampedu.widgets.scaler import LONGEST

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
PATTERNS = ["..x", " . 1 0 X", "", "..y", "." * 61]


def single(x: float) -> float:
    return torch.tensor(x).item()


def requests():
    """500 runs, of round constants and of odd ones, and as many numbers from all over float32."""
    generator = random.Random(0)
    runs = [(LossScale(2.0**126, growth_interval=1), "...x"), (LossScale(2.0**-147, growth_interval=1), "xxxx..")]
    runs += [(LossScale(8.0, growth_tracker=5, growth_interval=3), "....x....")]
    for _ in range(500):
        odd = generator.random() < 0.5
        growth = generator.uniform(1.001, 3) if odd else 2.0
        backoff = generator.uniform(0.01, 0.999) if odd else 0.5
        scale = single(2 ** generator.uniform(-140, 127)) if odd else 2.0 ** generator.randrange(-140, 127)
        start = LossScale(scale, generator.randrange(4), growth, backoff, generator.randrange(1, 7))
        chance = generator.random()
        runs.append((start, "".join(".x"[generator.random() < chance] for _ in range(40))))
    numbers = [single(2 ** generator.uniform(-149, 128 - 1e-6)) for _ in range(500)]
    numbers += [2.0**k for k in range(-149, 128)] + [3 * 2.0**k for k in range(-149, 120)]
    return runs, [*numbers, 0.0, 123456.5, 0.1, 99999.95, 999999.5, 0.000099999951, 2.0**24 + 2]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loss_scale")
    text = (static.folder() / "loss_scale.js").read_text(encoding="utf-8")
    (folder / "loss_scale.mjs").write_text(text, encoding="utf-8")
    runs, numbers = requests()
    asked = [{"start": dataclasses.asdict(start), "pattern": pattern} for start, pattern in runs]
    request = {"runs": asked, "numbers": numbers, "patterns": PATTERNS}
    (folder / "request.json").write_text(json.dumps(request))
    script = Path(__file__).with_name("loss_scale_run.mjs")
    done = subprocess.run(["node", script, folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return runs, numbers, json.loads((folder / "response.json").read_text())


def test_every_state_and_every_word_is_pythons(ran):
    runs, _, response = ran
    for (start, pattern), got in zip(runs, response["runs"], strict=True):
        expected = [(row.scale, row.tracker, row.event) for row in start.simulate(pattern)]
        assert [(float(scale), tracker, event) for scale, tracker, event in got] == expected, (start, pattern)


def test_numbers_are_written_as_in_python(ran):
    _, numbers, response = ran
    assert response["texts"] == [number_text(x) for x in numbers]


def test_typed_patterns(ran):
    *_, response = ran
    good, mixed, empty, wrong, long = response["patterns"]
    assert (good, mixed) == ("..x", ".x.x")
    assert "at least one step" in empty and "“y” is no sign" in wrong and "61 steps" in long


def test_presets_do_what_their_sentences_say(ran):
    *_, response = ran
    assert response["longest"] == LONGEST
    runs = {each["name"]: LossScale(**each["start"]).simulate(each["pattern"]) for each in response["presets"]}
    assert list(runs) == ["clean run", "one overflow", "every forward non-finite", "growth interval 5"]
    assert {len(rows) for rows in runs.values()} == {40}
    assert {row.scale for row in runs["clean run"]} == {65536} and runs["clean run"][-1].tracker == 40
    assert [row.step for row in runs["one overflow"] if row.skipped] == [12] and runs["one overflow"][-1].scale == 32768
    assert [row.scale for row in runs["every forward non-finite"]] == [2.0 ** (15 - k) for k in range(40)]
    saw = runs["growth interval 5"]
    assert {row.scale_before for row in saw if row.skipped} == {2.0**18}
    assert [row.skipped for row in saw] == [row.scale_before == 2.0**18 for row in saw]
    starts = [{**each["start"], "growth_interval": 2000} for each in response["presets"]]
    assert starts == [dataclasses.asdict(LossScale())] * 4
