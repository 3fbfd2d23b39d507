"""Quiz files: what is refused, with which words, and what texts become."""

import copy
import json

import pytest

from ampedu import quizzes
from ampedu._quiz_text import to_html, to_plain
from ampedu.quizzes import QuizError

GOOD = {
    "stem": "01_bit_layouts",
    "questions": [
        {
            "id": "quiz/01.more_range",
            "kind": "predict",
            "text": "Which has more range?",
            "options": [
                {"text": "fp16", "correct": False, "reason": "Five exponent bits."},
                {"text": "bf16", "correct": True, "reason": "Eight exponent bits."},
            ],
        }
    ],
}


def changed(path, value):
    """GOOD with one place changed; None deletes it."""
    data = copy.deepcopy(GOOD)
    *way, last = path
    place = data
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(quizzes, "_folder", lambda: tmp_path)
    (tmp_path / "01_bit_layouts.json").write_text(json.dumps(GOOD))
    return tmp_path


def test_a_good_file_gives_its_questions():
    (question,) = quizzes.validate(GOOD, "here")
    assert (question.id, question.kind, question.correct) == ("quiz/01.more_range", "predict", 1)
    assert [option.reason for option in question.options] == ["Five exponent bits.", "Eight exponent bits."]


QUESTION = ("questions", 0)
OPTION = (*QUESTION, "options", 0)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("questions",), [], "at least one"),
        (("questions",), "text", "at least one"),
        (("stem",), "bit layouts", "stem must look like"),
        (QUESTION, "text", "question 1: a question is a table"),
        ((*QUESTION, "id"), "01.more_range", "id must look like quiz/01.more_range"),
        ((*QUESTION, "id"), None, "question 1: the id must look like"),
        ((*QUESTION, "id"), "quiz/02.more_range", "must start with quiz/01."),
        ((*QUESTION, "kind"), "exam", "kind must be one of predict, quiz, not 'exam'"),
        ((*QUESTION, "text"), " ", "text is missing or empty"),
        ((*QUESTION, "text"), "a `code", "` in its text is opened and not closed"),
        ((*QUESTION, "text"), "$5", "\\$ in its text is opened and not closed"),
        ((*QUESTION, "hint"), "no", "unknown key 'hint'"),
        ((*QUESTION, "options"), None, "at least two options"),
        ((*QUESTION, "options"), GOOD["questions"][0]["options"][:1], "at least two options"),
        (OPTION, "fp16", "option 1: an option is a table"),
        ((*OPTION, "correct"), True, "exactly one option must be correct, here 2 are"),
        ((*OPTION, "correct"), "yes", "option 1: correct must be true or false"),
        ((*OPTION, "correct"), 0, "option 1: correct must be true or false"),
        ((*OPTION, "reason"), None, "option 1: reason is missing or empty; every option needs one"),
        ((*OPTION, "text"), "bf16", "two options have the same text"),
    ],
)
def test_a_bad_file_is_refused_in_words(path, value, said):
    with pytest.raises(QuizError, match=said) as caught:
        quizzes.validate(changed(path, value), "some/file.json")
    assert str(caught.value).startswith("some/file.json")


def test_no_correct_option_is_refused():
    data = changed((*QUESTION, "options", 1, "correct"), False)
    with pytest.raises(QuizError, match="exactly one option must be correct, here 0 are"):
        quizzes.validate(data, "here")


def test_two_questions_of_one_id_are_refused():
    data = copy.deepcopy(GOOD)
    data["questions"] *= 2
    with pytest.raises(QuizError, match=r"two questions are called quiz/01\.more_range"):
        quizzes.validate(data, "here")


def test_a_question_is_found_by_either_form_of_its_id(folder):
    assert quizzes.find("01.more_range") == quizzes.find("quiz/01.more_range") == quizzes.load("01_bit_layouts")[0]


def test_an_unknown_id_is_answered_with_a_close_one(folder):
    with pytest.raises(QuizError, match=r"Did you mean quiz/01\.more_range\?"):
        quizzes.find("01.mor_range")


@pytest.mark.parametrize("name", ["more_range", "01", "", "01.More Range", "1.x"])
def test_what_is_no_id_is_refused(folder, name):
    with pytest.raises(QuizError, match=r"an id looks like 01\.more_range"):
        quizzes.find(name)


def test_missing_files_name_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(quizzes, "_folder", lambda: tmp_path / "nothing")
    with pytest.raises(QuizError, match="run `make build`"):
        quizzes.load("01_bit_layouts")
    with pytest.raises(QuizError, match="No quiz file is installed: run `make build`"):
        quizzes.find("01.more_range")


def test_broken_json_names_the_file_and_the_cure(folder):
    (folder / "01_bit_layouts.json").write_text('{"stem": ')
    with pytest.raises(QuizError, match=r"01_bit_layouts\.json is not valid JSON .*make build"):
        quizzes.load("01_bit_layouts")


def test_every_shipped_quiz_is_sound():
    assert quizzes.stems()
    for stem in quizzes.stems():
        assert quizzes.load(stem)


@pytest.mark.parametrize(
    ("text", "html", "plain"),
    [
        ("a < b & c", "a &lt; b &amp; c", "a < b & c"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;", "<script>alert(1)</script>"),
        ("`x<y` **very**", "<code>x&lt;y</code> <strong>very</strong>", "x<y very"),
        ("**`a` $b^2$**", None, "a b²"),
        ('"><img onerror=x>', "&quot;&gt;&lt;img onerror=x&gt;", '"><img onerror=x>'),
        ("`**not bold** $x$`", "<code>**not bold** $x$</code>", "**not bold** $x$"),
        (r"$\frac{1}{2}$", r"$\frac{1}{2}$", r"\frac{1}{2}"),
        ("one\n\ntwo\nthree", "one<br><br>two\nthree", "one two three"),
    ],
)
def test_texts_become_safe_html_and_plain_text(text, html, plain):
    assert html is None or to_html(text) == html
    assert to_plain(text) == plain


def test_math_needs_no_script():
    html = to_html(r"$1.0 \times 2^{-24} \le x_1$")
    assert "1.0 × 2<sup>−24</sup> ≤ x<sub>1</sub>" in html and "$" not in html and "\\" not in html
    assert to_plain(r"$1.0 \times 2^{-24} \le x_1$") == "1.0 × 2⁻²⁴ ≤ x₁"


def test_math_cannot_smuggle_html():
    assert "<b>" not in to_html("$<b>^{<i>}$")
