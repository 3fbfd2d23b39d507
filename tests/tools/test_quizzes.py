import json

import pytest

from tests.tools.conftest import QUIZ, write
from tools import quizzes
from tools.project import BuildError

NAME = "sources/quizzes/01_bits.toml"


def render(project, text):
    write(project.root, {NAME: text})
    return quizzes.render(project, project.root / NAME)


def test_a_good_file(project):
    made = json.loads(render(project, QUIZ))
    assert list(made) == ["stem", "questions"]
    assert [option["correct"] for option in made["questions"][0]["options"]] == [True, False]
    assert quizzes.ids(project) == {"quiz/01.bits": NAME}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("correct = true", "correct = false", "0 options are correct; exactly one must be"),
        ("correct = false", "correct = true", "2 options are correct"),
        ("correct = false", "", "option 2 needs correct = true or correct = false"),
        ('reason = "That is ASCII."', "", "option 2 has no reason"),
        ('reason = "That is ASCII."', 'reason = " "', "option 2 has no reason"),
        ('text = "7"', 'text = "8"', 'option 1 repeats "8"'),
        ('text = "7"', "", "option 2 has no text"),
        ('"quiz/01.bits"', '"quiz/02.bits"', 'the id must be of the form "quiz/01.snake_case"'),
        ('"quiz/01.bits"', '"01.bits"', "the id must be of the form"),
        ('kind = "predict"', 'kind = "guess"', "kind must be one of predict, quiz"),
        ('text = "How many bits has a byte?"', "", "the question has no text"),
        ('text = "How many', 'hint = "no"\ntext = "How many', 'unknown key "hint"'),
        ('reason = "That', 'why = "no"\nreason = "That', 'option 2 has an unknown key "why"'),
        ("[[question]]", "[[questions]]", 'unknown table "questions"'),
        ("[[question]]", "[[question]", "correct the TOML"),
    ],
)
def test_faults_are_named(project, old, new, words):
    with pytest.raises(BuildError) as error:
        render(project, QUIZ.replace(old, new, 1))
    assert words in str(error.value)
    assert all(line.startswith(NAME) for line in str(error.value).split("\n"))


@pytest.mark.parametrize(("extra", "words"), [(0, "it has 1 options; write 2 to 6"), (6, "it has 7 options")])
def test_number_of_options(project, extra, words):
    head, first, _ = QUIZ.split("[[question.option]]")
    more = "".join(
        f'[[question.option]]\ntext = "{n}"\ncorrect = false\nreason = "no"\n' for n in range(100, 100 + extra)
    )
    with pytest.raises(BuildError, match=words):
        render(project, f"{head}[[question.option]]{first}{more}")


def test_an_id_used_twice(project):
    with pytest.raises(BuildError, match="used twice"):
        render(project, QUIZ + QUIZ)
