"""scores.csv, feedback and class report of a made-up run with every status and hostile names."""

import csv
import dataclasses
import io
import re
import statistics
import sys
import tomllib
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampedu.grading import report, results
from ampedu.grading.report import class_data, class_report, feedback, links, pages, scores
from ampedu.grading.results import Equal, ExerciseInfo, ExerciseResult, LabResult, Run, StudentResult
from tests.grading import demo

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def run_and_students():
    return demo.batch()


@pytest.fixture(scope="module")
def all_pages(run_and_students):
    run, students = run_and_students
    return [class_report.render(run, students), *(feedback.render(run, student) for student in students)]


def small(text="x", **changes):
    """A run with one student whose every free text is ``text``."""
    texts = {"message": f"{text}!", "student_error": f"e{text}", "notes": [text], "title": text, "review": [text]}
    given = {"verdict": "failed", "points": 0, "max_points": 2, "end": "ok"} | texts | changes
    item = ExerciseResult("01.f", **given)
    lab = LabResult("01_bit_layouts", "timeout", 0, 2, [item], f"r{text}", f"f{text}", "ab", notes=[text])
    student = StudentResult("ann", f"n{text}", [lab], "0123", {"torch": "2.13.0"})
    run = Run(["01_bit_layouts"], [ExerciseInfo("01.f", "01_bit_layouts", "f", text, 2)], ["ann"],
              [{"file": text, "reason": text}], {"timeout": 1}, [], [], "0123", {"torch": "2.13.0"}, "bwrap", {}, "s",
              "2026-11-29T20:00:00+00:00", 1.0, 1, 0)  # fmt: skip
    return run, student


def test_no_page_and_no_table_shows_what_is_secret(run_and_students, all_pages):
    run, students = run_and_students
    stored = "".join(results.to_json(student) for student in students)
    assert demo.SECRET in stored
    for text in [*all_pages, scores.text(run, students)]:
        assert demo.SECRET not in text
    for page in all_pages[1:]:
        assert "uses torch.finfo" not in page  # what is to be reviewed is not for students


def test_pages_hold_no_script_and_load_nothing(all_pages):
    for text in all_pages:
        page = Page(text)
        assert not {"script", "img", "link", "iframe", "object", "embed", "form", "base"} & set(page.tags)
        names = {name for _, attributes in page.attributes for name in attributes}
        assert not {name for name in names if name.startswith("on")} and not {"src", "style", "srcset"} & names
        assert all(a["href"].startswith(("https://github.com/", "#")) for _, a in page.attributes if "href" in a)
        meta = [a for tag, a in page.attributes if tag == "meta"]
        policy = next(a["content"] for a in meta if a.get("http-equiv") == "Content-Security-Policy")
        expected = r"default-src 'none'; style-src 'sha256-[\w+/]+=*'; base-uri 'none'; form-action 'none'"
        assert re.fullmatch(expected, policy)
        assert "@import" not in text and "url(" not in text


def test_pages_hold_no_hidden_characters(all_pages):
    for text in all_pages:
        assert not {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}


def test_pages_are_well_nested_and_every_picture_has_words(all_pages):
    for text in all_pages:
        page = Page(text)
        stack = []
        for tag in page.tags:
            if tag in ("meta", "br", "/rect", "/line") or tag in ("rect", "line"):
                continue
            if tag.startswith("/"):
                assert stack.pop() == tag[1:]
            else:
                stack.append(tag)
        assert stack == []
        ids = [a["id"] for _, a in page.attributes if "id" in a]
        assert len(ids) == len(set(ids))
        assert {a["aria-labelledby"] for _, a in page.attributes if "aria-labelledby" in a} <= set(ids)
        for tag, attributes in page.attributes:
            if tag == "svg":
                assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
        assert page.tags.count("h1") == page.tags.count("main") == page.tags.count("title") == 1


@given(st.text(st.characters(codec=None), min_size=1, max_size=40))
def test_no_text_changes_the_structure_of_a_page(text):
    for render in (lambda run, one: feedback.render(run, one), lambda run, one: class_report.render(run, [one])):
        plain, hostile = (Page(render(*small(value))) for value in ("x", text))
        # Backticks mark code, which is meant.
        assert [tag for tag in hostile.tags if tag.strip("/") != "code"] == [
            tag for tag in plain.tags if tag.strip("/") != "code"
        ]


def test_feedback_says_in_words_what_is_wrong_and_where_to_read(run_and_students):
    run, students = run_and_students
    for student in students:
        page = Page(feedback.render(run, student))
        (lab,) = student.labs
        for item in lab.exercises:
            if item.verdict != "passed" and item.end != "infra":
                assert item.message.replace("`", "") in page.text.replace(" ,", ",") or "`" in item.message
        hrefs = {a["href"] for _, a in page.attributes if "href" in a}
        if any(item.verdict != "passed" for item in lab.exercises):
            assert {links.lesson(lab.lab), links.lab(lab.lab)} <= hrefs
        if lab.score is not None and lab.status != "absent":
            assert f"{lab.score} of {lab.max_score} points" in page.text


def test_feedback_marks_code_and_shows_the_own_exception():
    page = feedback.render(*small(message="Use `a < b`.", student_error="It raised `ValueError` <b>"))
    assert "Use <code>a &lt; b</code>." in page
    assert "It raised <code>ValueError</code> &lt;b&gt;" in page
    # The message of a definition that does not run holds the exception already.
    assert feedback.render(*small(message="No. Own: x", student_error="Own: x")).count("Own: x") == 1


def test_what_was_not_graded_is_nobodys_zero(run_and_students):
    run, students = run_and_students
    status = {student.labs[0].status: student for student in students}
    text = Page(feedback.render(run, status["infra"])).text
    assert "no points yet" in text and "not because of your answers" in text and "The sandbox failed" not in text
    assert "Nothing was handed in" in Page(feedback.render(run, status["absent"])).text
    assert "not a notebook" in Page(feedback.render(run, status["unreadable"])).text


def test_scores_read_back_as_they_are(run_and_students):
    run, students = run_and_students
    rows = list(csv.DictReader(io.StringIO(scores.text(run, students), newline="")))
    assert [row["student_id"] for row in rows] == [student.student_id for student in students]
    for row, student in zip(rows, students, strict=True):
        (lab,) = student.labs
        assert row["status"] == row["status_01_bit_layouts"] == lab.status
        assert row["score"] == ("" if lab.score is None else str(lab.score))
        assert row["max_score"] == str(lab.max_score)
        for item in lab.exercises:
            assert row[item.id] == ("" if item.points is None else str(item.points))
        if not lab.exercises:
            assert {row[info.id] for info in run.exercises} == {""}
        assert (row["sha256_01_bit_layouts"], row["secret_id"]) == (lab.sha256, student.secret_id)
        assert row["version_torch"] == "2.13.0" and row["sandboxed"] == "yes"
        assert not row["name"].startswith(("=", "+", "-", "@"))
    assert rows[4]["review"] == "01.decode: uses torch.finfo"
    assert rows[3]["review"] == "01.decode: equal to the published solution"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["graded", "graded"], "graded"),
        (["graded", "absent"], "graded"),
        (["absent", "absent"], "absent"),
        (["graded", "infra"], "infra"),
        (["timeout", "unreadable"], "unreadable"),
    ],
)
def test_the_status_over_several_labs_is_the_worst(statuses, expected):
    labs = [LabResult(f"0{n}_x", status, None, 1) for n, status in enumerate(statuses)]
    assert scores.status(StudentResult("a", "", labs, "", {})) == expected


def test_class_numbers_agree_with_a_count_by_hand(run_and_students):
    run, students = run_and_students
    data = class_data.collect(run, students)
    items = [item for s in students for lab in s.labs for item in lab.exercises if lab.status != "infra"]
    for row in data.difficulties:
        mine = Counter(item.verdict for item in items if item.id == row.info.id)
        assert (row.passed, row.failed) == (mine["passed"], mine["failed"])
        assert row.open == mine["missing"] + mine["not started"] == row.judged - row.passed - row.failed
    assert [row.share for row in data.difficulties] == sorted(row.share for row in data.difficulties)
    mistakes = Counter((item.id, item.mutant) for item in items if item.verdict == "failed" and item.mutant)
    assert sum(row.count for row in data.misconceptions) == sum(mistakes.values())
    assert [row.count for row in data.misconceptions] == sorted(mistakes.values(), reverse=True)
    unexplained = [item for item in items if item.verdict == "failed" and not item.mutant]
    assert sum(count for _, count in data.other) == len(unexplained)
    (points,) = data.distributions
    scored = [s.labs[0].score for s in students if s.labs[0].score is not None]
    assert sum(bar.count for bar in points.bars) == points.scored == len(scored) == 28
    assert points.median == statistics.median(scored)
    assert {trouble.student.student_id for trouble in data.troubles} == {"s02", "s05", "s08", "s12"}
    assert [student.student_id for student in data.absent] == ["s15"]


@given(st.integers(0, 60), st.data())
def test_bars_cover_every_score_once(most, data):
    found = data.draw(st.lists(st.integers(0, most), max_size=30))
    bars = class_data.bars(found, most)
    covered = [value for bar in bars for value in range(bar.first, bar.last + 1)]
    assert covered == list(range(most + 1))
    assert sum(bar.count for bar in bars) == len(found)
    assert len(bars) <= class_data.MOST_BARS + 1
    assert bars[-1].first == bars[-1].last == most  # all points stand alone


def test_class_report_names_the_commonest_mistake_first(run_and_students):
    run, students = run_and_students
    top = class_data.collect(run, students).misconceptions[0]
    page = Page(class_report.render(run, students))
    begin = page.text.index("Teach again tomorrow")
    assert page.text.index(f"{top.count} of {top.judged} gave this answer to {top.info.id}", begin) > begin
    private = page.text.index("From here on with names")
    assert all(page.text.find(student.student_id) in (-1, *range(private, len(page.text))) for student in students)


def test_equal_answers_are_grouped_by_who_gave_them():
    run, students = demo.batch(4)
    pairs = [Equal(id, ["s00", "s01"], False) for id in ("01.b", "01.a")]
    run = dataclasses.replace(run, equal=[*pairs, Equal("01.c", ["s01", "s02"], True)])
    assert class_report.equal(run) == [
        (True, ["s01"], ["01.c"]),
        (True, ["s02"], ["01.c"]),
        (False, ["s00", "s01"], ["01.a", "01.b"]),
    ]
    assert "the published solution" in class_report.render(run, students)


def test_a_run_without_a_sandbox_says_so():
    run, students = demo.batch(4, sandbox="none")
    assert "Unsandboxed." in class_report.render(run, students)
    assert "do not count" in feedback.render(run, students[0])


@pytest.mark.parametrize("students", [0, 1, 2])
def test_tiny_classes_have_reports(students):
    run, made = demo.batch(students)
    Page(class_report.render(run, made))
    assert scores.text(run, made).count("\r\n") == students + 1


def test_write_replaces_old_pages_and_needs_a_run(tmp_path):
    with pytest.raises(FileNotFoundError):
        report.write(tmp_path)
    demo.write(tmp_path, 5)
    (tmp_path / "feedback").mkdir()
    (tmp_path / "feedback" / "gone.html").write_text("old")
    done = report.write(tmp_path)
    names = {path.name for path in (tmp_path / "feedback").iterdir()}
    assert names == {f"s0{n}.html" for n in range(5)}
    assert {path.relative_to(tmp_path).as_posix() for path in done} == {
        "scores.csv", "class.html", *(f"feedback/{name}" for name in names)
    }  # fmt: skip
    before = {path: path.read_bytes() for path in done}
    report.write(tmp_path)
    assert before == {path: path.read_bytes() for path in done}


def test_without_jinja2_the_scores_are_written_and_the_cure_is_named(tmp_path, monkeypatch):
    demo.write(tmp_path, 3)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    pages._environment.cache_clear()
    with pytest.raises(report.ReportError, match=r"need jinja2\. pip install 'ampedu\[grade\]'.*regrade"):
        report.write(tmp_path)
    assert (tmp_path / "scores.csv").exists() and not (tmp_path / "class.html").exists()


def test_addresses_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ampedu"]
    start = f"{project['repository']}/blob/{project['tag']}"
    assert links.lesson("01_bit_layouts") == f"{start}/notebooks/01_bit_layouts.ipynb"
    for path in (links.lesson("01_bit_layouts"), links.lab("01_bit_layouts")):
        assert (ROOT / path.split(f"/{project['tag']}/")[1]).is_file()


def test_colors_reach_the_contrast_of_wcag_in_both_themes():
    style = (pages.FOLDER / "style.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    themes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks]
    assert len(themes) == 3  # light, dark, paper
    for theme in themes:
        for ground in ("page", "card"):
            for ink in ("ink", "soft", "link", "passed", "failed", "open"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
            for mark in ("passed", "failed", "fill"):
                assert contrast(theme[mark], theme[ground]) >= 3, (mark, ground)
        assert contrast(theme["ink"], theme["notice"]) >= 4.5


def contrast(one, other):
    """WCAG 2.2, relative luminance and contrast ratio."""
    lights = []
    for color in (one, other):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        lights.append(sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return (max(lights) + 0.05) / (min(lights) + 0.05)
