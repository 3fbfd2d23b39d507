"""What every lab must satisfy. A lab's test file derives from LabTests, names its stem, and adds what is special."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from ampedu.exercises import cells, data, judge, of_stem
from ampedu.exercises.mutants import load_mutants
from tools import labs, percent, specs
from tools.project import Project

ROOT = Path(__file__).parents[2]
DIFFICULTY = {1: "●○○", 2: "●●○", 3: "●●●"}
OTHER_SECRETS = (b"another", b"a third", b"a fourth")
LONGEST_MESSAGE = 320  # characters: three sentences at most
WIDEST_STUB = 110  # columns that JupyterLab shows without scrolling

RUN_ALL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
with capture_output() as seen:
    results = [shell.run_cell(cell, store_history=True) for cell in json.load(sys.stdin)]
errors = [repr(result.error_in_exec or result.error_before_exec) for result in results if not result.success]
reports = [output.data["text/plain"] for output in seen.outputs]
print(json.dumps({"errors": errors, "stderr": seen.stderr, "reports": reports, "stdout": seen.stdout}))
"""


class Lab:
    """The sources and the shipped data of one lab."""

    def __init__(self, stem: str):
        project = Project(ROOT)
        self.stem = stem
        self.script = percent.read(ROOT / "sources" / "labs" / f"{stem}.py", stem)
        self.blank = labs.cut(self.script, specs.read(project, stem))
        self.exercises = {ex.id: ex for ex in of_stem(stem)}
        self.mutants = load_mutants(ROOT / "sources" / "mutants" / f"{stem}.py")
        self.bundle = data.load(stem)

    def answer(self, id: str, blank: bool = False):
        """The function or class that the solution (or the blank lab) gives for an exercise."""
        ex = self.exercises[id]
        source = cells.closure(self.definitions(blank), ex.answer)
        return cells.materialize(source, ex.answer, ex.forbids, id)

    def definitions(self, blank: bool = False) -> list[str]:
        """Code cells without the checks."""
        chosen = self.blank if blank else self.script.cells
        return [cell.source for cell in chosen if cell.kind == "code" and not labs.check_of(cell)]

    def verdict(self, id: str, answer) -> judge.Verdict:
        """The verdict on an answer, from the shipped data."""
        ex, item = self.exercises[id], self.bundle.exercises[id]
        return judge.verdict(ex, item, judge.observe(ex, answer, item.cases))

    def run_all(self, blank: bool, **environment: str) -> dict:
        """Run every code cell in IPython, in a process of its own: {"errors", "stderr", "reports", "stdout"}."""
        chosen = self.blank if blank else self.script.cells
        sources = [cell.source for cell in chosen if cell.kind == "code"]
        done = subprocess.run([sys.executable, "-c", RUN_ALL], input=json.dumps(sources), text=True, cwd=ROOT,
                              capture_output=True, timeout=300, env={**os.environ, **environment})  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])


lab = functools.cache(Lab)


class LabTests:
    """Derive, set ``stem``, add tests of your own."""

    stem: str

    @property
    def lab(self) -> Lab:
        return lab(self.stem)

    def test_sources_and_shipped_data_hold_the_same_exercises(self):
        answers = [cell.exercise for cell in self.lab.script.cells if cell.exercise]
        checks = [labs.check_of(cell)["id"] for cell in self.lab.script.cells if labs.check_of(cell)]
        assert answers == checks == list(self.lab.exercises) == list(self.lab.bundle.exercises)
        for id, ex in self.lab.exercises.items():
            assert judge.equal([{"value": case} for case in ex.cases()], [{"value": case} for case in
                               self.lab.bundle.exercises[id].cases], "exact"), f"{id}: run `make build`"  # fmt: skip

    def test_the_solution_earns_every_point(self):
        verdicts = {id: self.lab.verdict(id, self.lab.answer(id)) for id in self.lab.exercises}
        assert {id: v.status for id, v in verdicts.items()} == dict.fromkeys(verdicts, "passed")
        assert sum(v.points for v in verdicts.values()) == sum(ex.points for ex in self.lab.exercises.values())

    def test_the_blank_lab_earns_nothing_and_is_not_started(self):
        verdicts = {id: self.lab.verdict(id, self.lab.answer(id, blank=True)) for id in self.lab.exercises}
        assert {id: (v.status, v.points) for id, v in verdicts.items()} == dict.fromkeys(verdicts, ("not started", 0))

    def test_each_mutant_is_rejected_with_its_own_message(self):
        for mutant in self.lab.mutants:
            verdict = self.lab.verdict(mutant.exercise, mutant.answer)
            seen = (verdict.status, verdict.points, verdict.mutant, verdict.message)
            assert seen == ("failed", 0, mutant.name, mutant.message)

    def test_every_exercise_has_two_mutants_and_messages_are_short_and_different(self):
        counts = dict.fromkeys(self.lab.exercises, 0)
        for mutant in self.lab.mutants:
            counts[mutant.exercise] += 1
            assert len(mutant.message) <= LONGEST_MESSAGE, f"{mutant.name}: {len(mutant.message)} characters"
        assert min(counts.values()) >= 2, counts
        messages = [mutant.message for mutant in self.lab.mutants]
        assert len(set(messages)) == len(messages)

    def test_other_secrets_tell_solution_and_mutants_apart_too(self):
        for secret in OTHER_SECRETS:
            for id, ex in self.lab.exercises.items():
                cases = ex.cases(secret)
                seen = {"the solution": judge.reduce(ex, cases, judge.observe(ex, self.lab.answer(id), cases))}
                assert all("value" in outcome for outcome in seen["the solution"]), f"{id} with the secret {secret}"
                for mutant in self.lab.mutants:
                    if mutant.exercise == id:
                        outcomes = judge.reduce(ex, cases, judge.observe(ex, mutant.answer, cases))
                        for other, theirs in seen.items():
                            assert not judge.equal(theirs, outcomes, ex.tolerance), (
                                f"{id}, {secret}: {mutant.name} = {other}"
                            )
                        seen[mutant.name] = outcomes

    def test_run_all_on_the_blank_lab_reaches_the_end(self):
        seen = self.lab.run_all(blank=True)
        assert (seen["errors"], seen["stderr"]) == ([], "")
        headings = [report.splitlines()[0] for report in seen["reports"] if report.startswith("○")]
        assert headings == [f"○ {id} – not started – 0 of {ex.points} points" for id, ex in self.lab.exercises.items()]

    def test_run_all_on_the_solution_passes_in_strict_mode(self):
        seen = self.lab.run_all(blank=False, AMPEDU_STRICT="1")
        assert (seen["errors"], seen["stderr"]) == ([], "")
        assert "waits for" not in seen["stdout"]
        assert sum(report.startswith("✓") for report in seen["reports"]) == len(self.lab.exercises)

    def test_headings_and_table_agree_with_the_specification(self):
        text = "\n".join(cell.source for cell in self.lab.script.cells if cell.kind == "markdown")
        headings = re.findall(r"^### (\d+\.\d+) (.+?) (●[●○]{2}) (\d+) minutes$", text, re.MULTILINE)
        rows = re.findall(r"^\| .*?\| (\d+\.\d+) (.+?) \| (●[●○]{2}) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
        specified = [(DIFFICULTY[ex.difficulty], str(ex.minutes)) for ex in self.lab.exercises.values()]
        assert [heading[2:] for heading in headings] == specified
        assert [row[:4] for row in rows] == headings
        assert [int(row[4]) for row in rows] == [ex.points for ex in self.lab.exercises.values()]
        assert [heading[1].rstrip("?.") for heading in headings] == [
            ex.title.rstrip("?.") for ex in self.lab.exercises.values()
        ]
        assert f"*{sum(ex.minutes for ex in self.lab.exercises.values())} minutes" in text

    def test_the_map_of_lesson_0_gives_the_minutes(self):
        text = (ROOT / "sources" / "lessons" / "00_start_here.py").read_text(encoding="utf-8")
        minutes = sum(ex.minutes for ex in self.lab.exercises.values())
        assert re.search(rf"\[lab \d+\]\S+, {minutes} \|", text), f"no lab of {minutes} minutes in the map"

    def test_every_exercise_has_a_hint_and_points_to_the_solution(self):
        after = {}
        for cell in self.lab.script.cells:
            if labs.check_of(cell):
                after[labs.check_of(cell)["id"]] = ""
            elif after and cell.kind == "markdown":
                after[list(after)[-1]] += cell.source
        for id, text in after.items():
            assert "<details><summary>" in text, f"{id} has no hint"
            assert text.count("<details>") == text.count("</details>"), id
            assert f"../solutions/{self.stem}.ipynb" in text, f"{id} does not say when to read the solution"

    def test_stubs_fit_on_the_screen(self):
        lines = [line for cell in self.lab.blank if cell.exercise for line in cell.source.splitlines()]
        assert [line for line in lines if len(line) > WIDEST_STUB] == []
