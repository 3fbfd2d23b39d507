"""The quiz: an answer is committed before it is judged, and every option has its reason."""

import html

from ampedu import progress
from ampedu._quiz_text import to_html, to_plain
from ampedu.quizzes import Question, find
from ampedu.widgets.output import BOX, LINE, show, toolkit

TITLES = {"predict": "Predict", "quiz": "Quiz"}
STYLE = f"""<style>
.ampedu-quiz {{border:{LINE}; border-left:4px solid #0072B2; border-radius:4px; padding:.5em 1em; max-width:52em;
  color:var(--jp-ui-font-color1, inherit); overflow:visible}}
.ampedu-quiz .widget-html-content, .ampedu-quiz label {{font-size:var(--jp-content-font-size1, 14px); line-height:1.5}}
.ampedu-quiz .widget-radio-box label {{height:auto; min-height:1.6em; white-space:normal; margin:0;
  color:var(--jp-ui-font-color1, inherit); display:flex; align-items:center; gap:.5em}}
.ampedu-quiz .widget-radio, .ampedu-quiz .widget-radio-box {{margin:0; padding:0}}
.ampedu-quiz .widget-radio-box label input {{flex:none; order:-1; margin:0}}
.ampedu-quiz input:focus-visible, .ampedu-quiz button:focus-visible
  {{outline:3px solid var(--jp-brand-color1, #0072B2); outline-offset:2px}}
.ampedu-quiz ul {{list-style:none; padding:0; margin:.4em 0}}
.ampedu-quiz li {{margin:.4em 0}}
</style>"""


def quiz(id: str) -> None:
    """Show a question, for example ``quiz("01.more_range")``: choose, commit, then read why.

    An answer that is committed cannot be changed; a further try is allowed and counted as such. Without a kernel the
    question and its options are shown and the answer is folded. An unknown id raises QuizError with close names.
    """
    question = find(id)
    widgets = toolkit()
    view = Shell(question, widgets).view if widgets else None
    show(static_html(question), static_text(question), view=view)


def letters(question: Question) -> list[tuple[str, object]]:
    """Options with their letters: [("A", option), …]."""
    return list(zip("ABCDEFGHIJ", question.options, strict=False))


def heading(question: Question) -> str:
    """The question's kind and text as HTML."""
    return f"<strong>{TITLES[question.kind]}.</strong> {to_html(question.text)}"


def reasons(question: Question, chosen: int | None = None) -> str:
    """HTML list of every option, marked right or wrong in words and by symbol, with its reason."""
    items = []
    for index, (letter, option) in enumerate(letters(question)):
        mark = "✓ right" if option.correct else "✗ wrong"
        yours = ", your answer" if index == chosen else ""
        head = f"<strong>{letter} {to_html(option.text)}</strong> ({mark}{yours})"
        items.append(f'<li style="margin:.4em 0">{head}<br>{to_html(option.reason)}</li>')
    return f'<ul style="list-style:none;padding:0">{"".join(items)}</ul>'


def static_html(question: Question) -> str:
    """The question for readers without a kernel; the answer is folded and needs no script."""
    # Letters are written out: readers that strip attributes would number the options.
    items = [f"<li><strong>{letter}</strong> {to_html(option.text)}</li>" for letter, option in letters(question)]
    options = f'<ul style="list-style:none;padding-left:1em">{"".join(items)}</ul>'
    return (
        f'<div style="{BOX}"><p>{heading(question)}</p>{options}'
        f"<details><summary>Choose first, then unfold the answer</summary>{reasons(question)}</details></div>"
    )


def static_text(question: Question) -> str:
    """The question as plain text, without the answer."""
    lines = [f"{TITLES[question.kind]}: {to_plain(question.text)}"]
    lines += [f"  {letter} {to_plain(option.text)}" for letter, option in letters(question)]
    return "\n".join(lines)


class Shell:
    """The live quiz: native radio buttons and buttons, so that the keyboard works as everywhere."""

    def __init__(self, question: Question, widgets):
        self.question = question
        self.tries: list[bool] = []
        self.committed = False
        # One group per option, since JupyterLab keeps the arrow keys to itself: Tab reaches each, Space chooses.
        self.choices = [
            widgets.RadioButtons(
                options=[f"{letter}  {to_plain(option.text)}"],
                index=None,
                layout=widgets.Layout(width="100%", height="auto"),
            )
            for letter, option in letters(question)
        ]
        self.commit = widgets.Button(description="Commit answer", disabled=True, button_style="primary")
        self.again = widgets.Button(description="Try again", layout=widgets.Layout(display="none"))
        self.feedback = widgets.HTML("")
        keys = widgets.HTML("<small>Keys: Tab moves, Space chooses.</small>")
        buttons = widgets.HBox([self.commit, self.again, keys])
        top = widgets.HTML(STYLE + heading(question))
        self.view = widgets.VBox([top, *self.choices, buttons, self.feedback])
        self.view.add_class("ampedu-quiz")
        for choice in self.choices:
            choice.observe(self._on_choice, names="index")
        self.commit.on_click(self._on_commit)
        self.again.on_click(self._on_again)

    @property
    def chosen(self) -> int | None:
        """Index of the option that is chosen now."""
        return next((n for n, choice in enumerate(self.choices) if choice.index is not None), None)

    def _on_choice(self, change) -> None:
        if change["new"] is not None:
            for choice in self.choices:
                if choice is not change["owner"]:
                    choice.index = None
        self.commit.disabled = self.committed or self.chosen is None

    def _on_commit(self, _button) -> None:
        chosen = self.chosen
        if chosen is None or self.committed:  # a click that was on its way when the state changed
            return
        self._freeze(True)
        right = chosen == self.question.correct
        self.tries.append(right)
        trouble = _record(self.question.id, right)
        self.feedback.value = self._verdict(chosen, right) + trouble
        self.again.layout.display = None

    def _verdict(self, chosen: int, right: bool) -> str:
        answer = letters(self.question)[self.question.correct][0]
        said = "✓ Right." if right else f"✗ Not right: the answer is {answer}."
        if len(self.tries) > 1:
            first = "right" if self.tries[0] else "wrong"
            said += f" This is try {len(self.tries)}; your first answer was {first}."
        return f'<div role="status"><strong>{said}</strong>{reasons(self.question, chosen)}</div>'

    def _on_again(self, _button) -> None:
        self.feedback.value = ""
        self._freeze(False)
        for choice in self.choices:
            choice.index = None
        self.again.layout.display = "none"

    def _freeze(self, committed: bool) -> None:
        self.committed = committed
        for choice in self.choices:
            choice.disabled = committed
        self.commit.disabled = True


def _record(id: str, right: bool) -> str:
    """Record an answer; what kept it from being recorded is said in HTML, since a callback cannot raise to anyone."""
    try:
        progress.record_quiz(id, right)
    except OSError as error:
        return f"<p>Your progress could not be saved: {html.escape(str(error))}</p>"
    return ""
