"""Widgets: one output with everything in it, a quiz that cannot be peeked at, an explorer that tells the truth."""

import importlib
import json
import math
import re
import struct
import subprocess
import sys

import pytest
import torch
from matplotlib.figure import Figure

from ampedu import progress, quizzes, static
from ampedu.formats import FORMATS, FloatFormat, UnknownFormatError
from ampedu.plots import Picture
from ampedu.widgets import (
    bit_explorer,
    bits,
    explorer,
    figure_slider,
    gradient_range,
    gradients,
    output,
    question,
    quiz,
    slider,
)
from ampedu.widgets.output import WIDGET_VIEW

DATA = {
    "stem": "01_bit_layouts",
    "questions": [
        {
            "id": "quiz/01.range",
            "kind": "predict",
            "text": "Which has <more> range, by $2^{8}$?",
            "options": [
                {"text": "`fp16` & co", "correct": False, "reason": "REASON-A: five bits."},
                {"text": "bf16", "correct": True, "reason": "REASON-B: eight <bits>."},
                {"text": "tf16", "correct": False, "reason": "REASON-C: no such thing."},
            ],
        }
    ],
}


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPEDU_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture
def questions(tmp_path, monkeypatch):
    folder = tmp_path / "quizzes"
    folder.mkdir()
    (folder / "01_bit_layouts.json").write_text(json.dumps(DATA))
    monkeypatch.setattr(quizzes, "_folder", lambda: folder)


@pytest.fixture
def shown(monkeypatch):
    """The outputs that were displayed, as (data, metadata)."""
    found = []
    monkeypatch.setattr(output, "display_bundle", lambda data, metadata: found.append((data, metadata)))
    return found


@pytest.fixture
def no_widgets(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    output.toolkit.cache_clear()
    yield
    output.toolkit.cache_clear()


def shell(name="01.range"):
    return question.Shell(quizzes.find(name), output.toolkit())


def choose(quiz_shell, index):
    """What the front end does on a click on an option."""
    quiz_shell.choices[index].index = 0


# the output of every widget


def call_all():
    assert quiz("01.range") is None
    assert bit_explorer("fp16", 0.1, compare=("bf16",)) is None
    assert gradient_range({-20: 3, -10: 1}) is None
    assert slider(lambda n: Picture(line(n), f"line {n}"), [1, 2], 2, "size", alt="a line") is None


def line(n):
    figure = Figure(figsize=(3, 2))
    figure.add_subplot().plot([0, n])
    return figure


def test_each_call_is_one_output_with_live_and_static_versions(questions, shown):
    call_all()
    kinds = [set(data) for data, _ in shown]
    both = {"text/plain", "text/html", WIDGET_VIEW}
    assert kinds == [both, *[both | {"image/png"}] * 3]
    assert all(set(data[WIDGET_VIEW]) == {"version_major", "version_minor", "model_id"} for data, _ in shown)
    assert [metadata.get("image/png", {}).get("alt", "")[:4] for _, metadata in shown] == ["", "Bit ", "Hist", "line"]


def test_static_parts_are_the_same_every_time_and_hold_no_address(questions, shown):
    call_all()
    call_all()
    stored = [{kind: text for kind, text in data.items() if kind != WIDGET_VIEW} for data, _ in shown]
    assert stored[:4] == stored[4:]
    for data in stored:
        assert not re.search(r" at 0x|model|object", data["text/plain"])


def test_without_ipywidgets_the_static_version_is_shown(questions, shown, no_widgets):
    call_all()
    assert len(shown) == 4
    assert not any(WIDGET_VIEW in data for data, _ in shown)


def test_ipywidgets_that_cannot_make_a_widget_count_as_missing(questions, shown, monkeypatch):
    import ipywidgets

    output.toolkit.cache_clear()
    monkeypatch.setattr(ipywidgets, "HTML", lambda *_: 1 / 0)
    quiz("01.range")
    output.toolkit.cache_clear()
    assert WIDGET_VIEW not in shown[0][0]


def test_importing_the_widgets_does_not_import_ipywidgets():
    code = "import sys, ampedu.widgets; print({'ipywidgets', 'anywidget'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_no_output_widget_is_ever_made():
    import ipywidgets

    widgets = output.toolkit()
    views = [
        question.Shell(quizzes.Question("quiz/01.a", "quiz", "?", (quizzes.Option("a", True, "b"),)), widgets).view,
        figure_slider.Shell(line, [1, 2], 1, "n", "line", Picture(line(1), "x"), widgets).view,
    ]

    def below(widget):
        yield widget
        for child in getattr(widget, "children", ()):
            yield from below(child)

    assert not any(isinstance(widget, ipywidgets.Output) for view in views for widget in below(view))


# the quiz


def test_the_answer_is_only_inside_the_fold(questions, shown):
    quiz("01.range")
    html = shown[0][0]["text/html"]
    outside = re.sub(r"<details>.*?</details>", "", html, flags=re.DOTALL)
    assert html.count("<details>") == 1 and "<details open" not in html
    assert not re.search("REASON|right|wrong|✓|✗", outside)
    for letter in "ABC":
        assert f"REASON-{letter}" in html
    assert html.count("✓ right") == 1 and html.count("✗ wrong") == 2


def test_static_text_is_escaped_and_does_not_tell(questions, shown):
    quiz("quiz/01.range")
    data = shown[0][0]
    assert "&lt;more&gt;" in data["text/html"] and "<more>" not in data["text/html"]
    assert "<code>fp16</code> &amp; co" in data["text/html"]
    assert data["text/plain"] == "Predict: Which has <more> range, by 2⁸?\n  A fp16 & co\n  B bf16\n  C tf16"


def test_an_unknown_question_is_an_error_not_an_empty_widget(questions, shown):
    with pytest.raises(quizzes.QuizError, match="Did you mean"):
        quiz("01.rang")
    assert shown == []


def test_nothing_can_be_committed_before_a_choice(questions):
    live = shell()
    assert live.commit.disabled and live.chosen is None
    live.commit.click()
    assert live.feedback.value == "" and progress.load()["quizzes"] == {}


def test_choosing_enables_the_commit_and_reveals_nothing(questions):
    live = shell()
    choose(live, 0)
    assert not live.commit.disabled
    choose(live, 1)
    assert [choice.index for choice in live.choices] == [None, 0, None]
    assert live.feedback.value == "" and live.again.layout.display == "none"
    assert progress.load()["quizzes"] == {}


@pytest.mark.parametrize(
    ("index", "right", "said"), [(1, True, "✓ Right."), (0, False, "✗ Not right: the answer is B.")]
)
def test_a_commit_reveals_every_reason_and_is_recorded_once(questions, index, right, said):
    live = shell()
    choose(live, index)
    live.commit.click()
    html = live.feedback.value
    assert said in html and all(f"REASON-{letter}" in html for letter in "ABC")
    assert html.count("your answer") == 1 and "&lt;bits&gt;" in html
    assert progress.load()["quizzes"] == {"quiz/01.range": {"correct": right, "attempts": 1, "first": right}}
    assert live.again.layout.display is None


def test_a_committed_answer_cannot_be_changed(questions):
    live = shell()
    choose(live, 0)
    live.commit.click()
    assert all(choice.disabled for choice in live.choices) and live.commit.disabled
    before = live.feedback.value
    choose(live, 1)  # a front end that ignores `disabled`
    live.commit.click()
    assert live.feedback.value == before and live.commit.disabled
    assert progress.load()["quizzes"]["quiz/01.range"]["attempts"] == 1


def test_a_second_try_is_counted_as_such(questions):
    live = shell()
    choose(live, 0)
    live.commit.click()
    live.again.click()
    assert live.feedback.value == "" and live.chosen is None and live.commit.disabled
    assert not any(choice.disabled for choice in live.choices) and live.again.layout.display == "none"
    choose(live, 1)
    live.commit.click()
    assert "This is try 2; your first answer was wrong." in live.feedback.value
    assert progress.load()["quizzes"]["quiz/01.range"] == {"correct": True, "attempts": 2, "first": False}


def test_controls_are_native_and_focus_is_visible(questions):
    import ipywidgets

    live = shell()
    assert all(isinstance(choice, ipywidgets.RadioButtons) for choice in live.choices)
    assert all(len(choice.options) == 1 for choice in live.choices)  # Tab reaches each: arrow keys are JupyterLab's
    assert isinstance(live.commit, ipywidgets.Button) and isinstance(live.again, ipywidgets.Button)
    assert ":focus-visible" in question.STYLE and "outline:3px" in question.STYLE
    assert 'role="status"' not in live.feedback.value
    choose(live, 1)
    live.commit.click()
    assert 'role="status"' in live.feedback.value


def test_progress_that_cannot_be_saved_is_said_in_the_quiz(questions, monkeypatch):
    def refuse(*_):
        raise OSError("disk <full>")

    monkeypatch.setattr(progress, "record_quiz", refuse)
    live = shell()
    choose(live, 1)
    live.commit.click()
    assert "could not be saved: disk &lt;full&gt;" in live.feedback.value and "✓ Right." in live.feedback.value


# the slider


def test_the_slider_redraws_the_image_and_its_words():
    drawn = []

    def draw(n):
        drawn.append(n)
        return Picture(line(n), f"line to {n}")

    live = figure_slider.Shell(draw, [1, 2.5], 1, "size", "a line", draw(1), output.toolkit())
    before = live.image.value
    live.slider.value = 2.5
    assert drawn == [1, 2.5] and live.image.value != before and "line to 2.5" in live.words.value
    assert live.image.value == draw(2.5).live_png()


def test_a_plain_figure_gets_the_alt_text_of_the_call(shown):
    slider(line, [1, 2], 1, "size", alt="a <line>")
    assert 'alt="a &lt;line&gt;"' in shown[0][0]["text/html"]
    assert "size: 1" in shown[0][0]["text/plain"]


def test_an_error_while_drawing_is_said_beside_the_figure():
    live = figure_slider.Shell(
        lambda n: line(1) if n else 1 / n, [1, 0], 1, "n", "line", Picture(line(1), "x"), output.toolkit()
    )
    live.slider.value = 0
    assert "ZeroDivisionError: division by zero" in live.words.value


def test_wrong_calls_of_slider(shown):
    with pytest.raises(ValueError, match=r"start is 3, but the slider's values are \[1, 2\]"):
        slider(line, [1, 2], 3, "n", "line")
    with pytest.raises(TypeError, match="draw must return a matplotlib Figure or a Picture, not int"):
        slider(lambda n: n, [1, 2], 1, "n", "line")
    assert shown == []


# the explorers


def bits_shown(shown, *args, **options):
    bit_explorer(*args, **options)
    return shown.pop()[0]


def state_of(data):
    """The state in the script of a static explorer."""
    return json.loads(re.search(r"^const state = (\{.*\});$", data["text/html"], re.MULTILINE)[1])


def test_the_static_explorer_holds_script_state_picture_and_table(shown):
    data = bits_shown(shown, "fp16", 0.1, compare=("bf16", "e4m3fn"))
    html = data["text/html"]
    assert state_of(data) == {"format": "fp16", "value": "0.1", "code": "", "compare": ["bf16", "e4m3fn"]}
    assert static.module("bit_explorer").split("export default")[0] in html
    fallback = html[: html.index("<script>")]
    assert data["image/png"] in fallback and 'alt="Bit layouts.' in fallback and "0.0999755859375" in fallback
    assert len(html) < 120_000


@pytest.mark.parametrize("value", [0.1, -0.0, 2049, math.inf, -math.inf, math.nan, 5e-324, 1e308])
def test_the_browser_gets_the_same_number(shown, value):
    text = state_of(bits_shown(shown, "fp64", value))["value"]
    assert struct.pack("d", float(text)) == struct.pack("d", value)


def test_the_live_explorer_has_the_same_state_and_script(shown):
    data = bits_shown(shown, "bf16", 3, compare=["fp16", "bf16", "fp16"])
    widget = sys.modules["ipywidgets"].widgets.widget._instances[data[WIDGET_VIEW]["model_id"]]
    assert {name: getattr(widget, name) for name in ("format", "value", "code", "compare")} == state_of(data)
    assert state_of(data)["compare"] == ["fp16"]
    assert widget._esm == static.module("bit_explorer")
    assert repr(widget) == "BitExplorer(format='bf16', value='3.0', code='', compare=['fp16'])"


@pytest.mark.parametrize("broken", ["missing", "cannot be made"])
def test_without_anywidget_the_static_explorer_is_shown_and_the_quiz_stays_live(questions, shown, monkeypatch, broken):
    if broken == "missing":
        monkeypatch.setitem(sys.modules, "anywidget", None)
        monkeypatch.delitem(sys.modules, "ampedu.widgets.live", raising=False)
    else:
        monkeypatch.setitem(importlib.import_module("ampedu.widgets.live").CLASSES, "bit_explorer", lambda **_: 1 / 0)
    data = bits_shown(shown)
    assert WIDGET_VIEW not in data and "<script>" in data["text/html"] and "image/png" in data
    quiz("01.range")
    assert WIDGET_VIEW in shown[0][0]


def test_colab_is_told_where_the_script_is(shown, monkeypatch):
    live = importlib.import_module("ampedu.widgets.live")
    where = {"colab": {"custom_widget_manager": {"url": "…"}}}
    monkeypatch.setattr(live.Explorer, "_repr_mimebundle_", lambda self: ({}, {WIDGET_VIEW: where}), raising=False)
    bit_explorer()
    assert shown[0][1][WIDGET_VIEW] == where and "alt" in shown[0][1]["image/png"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_can_be_explored(name, shown):
    data = bits_shown(shown, name, 1.5, compare="e2m1")
    assert state_of(data)["format"] == name
    assert "formula" in data["text/plain"]


def test_wrong_calls_of_the_bit_explorer(shown):
    with pytest.raises(UnknownFormatError, match="fp17"):
        bit_explorer("fp17")
    with pytest.raises(UnknownFormatError, match="fp17"):
        bit_explorer("fp16", 0.1, compare=["fp17"])
    with pytest.raises(ValueError, match="compare names 4 formats, bf16, fp32, tf32, fp64: choose at most 3"):
        bit_explorer("fp16", 0.1, compare=["bf16", "fp32", "tf32", "fp64"])
    with pytest.raises(ValueError, match="does not know mine, a format of your own: choose one of fp64, fp32"):
        bit_explorer(FloatFormat("mine", 4, 4, 7))
    with pytest.raises(ValueError, match="NaN"):
        bit_explorer("e2m1", math.nan)
    assert shown == []


def test_python_and_javascript_have_the_same_limits():
    state, gradient = ((static.folder() / f"{name}.js").read_text() for name in ("state", "range_explorer"))
    assert f"MOST_COMPARED = {explorer.MOST_COMPARED};" in state
    assert f"min: {gradients.SMALLEST_SCALE}, max: {gradients.LARGEST_SCALE} " in gradient


COUNTS = {-26: 10, -20: 60, -10: 25, 20: 5}


def test_the_range_explorer(shown):
    gradient_range(COUNTS, 7, ("fp16", "bf16"), 0, "gradients of <a>")
    data = shown[0][0]
    assert state_of(data) == {
        "counts": {str(k): number for k, number in COUNTS.items()},
        "zeros": 7,
        "formats": ["fp16", "bf16"],
        "scale_log2": 0,
        "label": "gradients of <a>",
    }
    assert data["text/plain"].split("\n") == [
        "gradients of <a>, scaled by 2^0: 100 nonzero values; 7 more are zero",
        "  fp16: 10.0 % become zero, 60.0 % subnormal, 25.0 % normal, 5.0 % overflow",
        "  bf16: 0 % become zero, 0 % subnormal, 100 % normal, 0 % overflow",
    ]
    assert "<a>" not in data["text/html"] and "image/png" in data
    widget = sys.modules["ipywidgets"].widgets.widget._instances[data[WIDGET_VIEW]["model_id"]]
    assert repr(widget) == "RangeExplorer(formats=['fp16', 'bf16'], scale_log2=0, label='gradients of <a>')"


def test_wrong_calls_of_the_range_explorer(shown):
    with pytest.raises(ValueError, match="e8m0 has no sign and no zero"):
        gradient_range(COUNTS, formats="e8m0")
    with pytest.raises(ValueError, match="scale_log2 is 40: the slider holds whole powers of two, -8 to 32"):
        gradient_range(COUNTS, scale_log2=40)
    with pytest.raises(ValueError, match="a count is negative"):
        gradient_range({0: -1})
    with pytest.raises(ValueError, match="does not know mine"):
        gradient_range(COUNTS, formats=[FloatFormat("mine", 4, 4, 7)])
    with pytest.raises(ValueError, match="at least one format"):
        gradient_range(COUNTS, formats=[])
    assert shown == []


def test_the_table_says_what_torch_says_of_float16():
    text = bits.text(0.1, 0x2E66, FORMATS["fp16"], ["bf16"])
    half = torch.tensor(0.1).half()
    below, above = (torch.tensor(code, dtype=torch.int16).view(torch.float16).item() for code in (0x2E65, 0x2E67))
    for words in (f"{half.item()!r}", f"{below!r} below", f"{above!r} above", "6.103515625e-05 = 2^-14", "0x1.998p-4"):
        assert words in text
    assert f"bf16       0 01111011 1001101 = {torch.tensor(0.1).bfloat16().item()!r}" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1000000000000000055511151231257827021181583404541015625"),
        (2.0**-24, "5.9604644775390625e-8"),
        (-0.0, "-0"),
        (float("inf"), "inf"),
    ],
)
def test_decimals_are_exact(value, text):
    assert bits.exact_decimal(value) == text


def test_very_long_decimals_say_how_long_they_are():
    text = bits.exact_decimal(5e-324)
    assert text.startswith("4.94065645841246544176") and text.endswith("e-324 (751 digits)")
