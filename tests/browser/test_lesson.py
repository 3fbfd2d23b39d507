"""Lesson 01 as a learner meets it: opened in JupyterLab, run, used by mouse and by keyboard."""

import json
import shutil
import statistics

import pytest

from tests.browser.jupyterlab import open_notebook, run_all, serving, show_cell, trusted_copy
from tests.browser.window import ROOT, Watched

NAME = "01_bit_layouts.ipynb"
TRUSTED = "trusted.ipynb"
EXPLORER = 'bit_explorer("fp16", 0.1'
CARD = '.jp-OutputArea .card[aria-label="Bit explorer"]'
CLICKS = """(times) => {
  const root = document.querySelector('[data-lm-suppress-shortcuts]').shadowRoot;
  const took = [];
  for (let i = 0; i < times; i += 1) {
    const bit = root.querySelectorAll(".bit")[(i * 7) % 16];
    const [before, start] = [bit.textContent, performance.now()];
    bit.click();
    root.querySelector(".card").getBoundingClientRect();  // the layout belongs to the answer
    took.push(performance.now() - start);
    if (bit.textContent === before) throw new Error("the click changed nothing");
  }
  return took;
}"""
ACTIVE = "() => document.querySelector('[data-lm-suppress-shortcuts]').shadowRoot.activeElement?.ariaLabel"


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """Address of a JupyterLab with a copy of the stored lesson, and the file of its progress."""
    folder, scratch = tmp_path_factory.mktemp("lessons"), tmp_path_factory.mktemp("jupyter")
    shutil.copy(ROOT / "notebooks" / NAME, folder)
    trusted_copy(ROOT / "notebooks" / NAME, folder / TRUSTED, scratch)
    with serving(folder, scratch) as address:
        yield address, scratch / "progress.json"


@pytest.fixture(scope="module")
def lesson(browser, lab):
    """The lesson in a window, opened and not yet run."""
    view = Watched(browser)
    open_notebook(view.page, lab[0], NAME)
    yield view
    view.context.close()


@pytest.fixture(scope="module")
def ran(lesson):
    """The same window after Run All."""
    lesson.cells = run_all(lesson.page)
    return lesson


def card(view):
    show_cell(view.page, EXPLORER)
    found = view.page.locator(CARD)
    found.wait_for(timeout=30_000)
    return found


def value(view):
    return view.page.locator(f"{CARD} .value").inner_text()


def test_stored_outputs_show_without_running(lesson):
    page = lesson.page
    show_cell(page, EXPLORER)
    picture = page.locator(".ampedu-explorer img")
    picture.wait_for(timeout=30_000)
    assert picture.evaluate("(image) => image.naturalWidth") > 500
    assert "fp16" in picture.get_attribute("alt")
    table = page.locator(".ampedu-explorer table").first
    assert "0.0999755859375" in table.inner_text() and table.is_visible()
    assert page.locator(CARD).count() == 0, "an untrusted notebook runs no script"
    lesson.shot("lesson-stored")


def test_the_stored_explorer_works_in_a_trusted_notebook_without_running(watched, lab):
    view = watched()
    open_notebook(view.page, lab[0], TRUSTED)
    box = card(view)
    box.get_by_role("button", name="2049", exact=True).click()
    assert value(view) == "= 2048"
    assert not view.page.locator(".ampedu-explorer img").count()


def test_every_cell_runs(ran):
    assert ran.cells and all(cell["count"] for cell in ran.cells)
    kinds = {output["output_type"] for cell in ran.cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert not any(output.get("name") == "stderr" for cell in ran.cells for output in cell["outputs"])


def test_the_explorer_by_mouse(ran, capsys):
    box = card(ran)
    ran.shot("lesson-light")
    assert value(ran) == "= 0.0999755859375"
    box.get_by_role("button", name="sign bit: 0").click()
    assert value(ran) == "= −0.0999755859375"
    box.get_by_role("button", name="65520", exact=True).click()
    assert value(ran) == "+∞" and "goes to the even side" in box.locator(".story").inner_text()
    took = [time for _ in range(4) for time in ran.page.evaluate(CLICKS, 50)]
    with capsys.disabled():
        print(f"\nclick in JupyterLab: median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms")


def test_the_explorer_by_keyboard_keeps_its_keys(ran):
    box = card(ran)
    number = box.get_by_label("real number")
    number.fill("1")
    number.press("Enter")
    box.get_by_role("button", name="NaN", exact=True).focus()
    keys = ran.page.keyboard
    keys.press("Tab")
    assert ran.page.evaluate(ACTIVE) == "sign bit: 0"
    keys.press("ArrowRight")
    keys.press("Space")
    assert (ran.page.evaluate(ACTIVE), value(ran)) == ("exponent bit worth 16: 1", "+∞")
    keys.press("0")
    keys.press("0")  # twice: JupyterLab would restart the kernel
    assert (ran.page.evaluate(ACTIVE), value(ran)) == ("exponent bit worth 4: 1", "= 0.00390625")
    cell = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    before = ran.page.evaluate(cell)
    keys.press("ArrowDown")
    assert value(ran) == "= 0.0039043426513671875"  # 2^-8 - 2^-19
    keys.press("ArrowUp")
    keys.press("ArrowUp")
    assert value(ran) == "= 0.003910064697265625"  # 2^-8 + 2^-18
    assert ran.page.evaluate(cell) == before, "arrow keys went to JupyterLab"
    assert ran.page.locator(".jp-Dialog").count() == 0


def quiz_box(view, source):
    show_cell(view.page, source)
    cell = view.page.locator(".jp-Cell").filter(has_text=source).locator(".ampedu-quiz")
    cell.wait_for(timeout=30_000)
    return cell


def recorded(lab):
    return json.loads(lab[1].read_text())["quizzes"]


def test_a_quiz_by_mouse(ran, lab):
    quiz = quiz_box(ran, 'quiz("01.one")')
    quiz.get_by_role("radio").first.check()
    quiz.get_by_role("button", name="Commit answer").click()
    quiz.get_by_role("status").wait_for(timeout=30_000)
    assert "ight" in quiz.get_by_role("status").inner_text()
    assert set(recorded(lab)) == {"quiz/01.one"}
    ran.shot("lesson-quiz")


def test_a_quiz_by_keyboard(ran, lab):
    quiz = quiz_box(ran, 'quiz("01.more_range")')
    choices = quiz.get_by_role("radio")
    choices.first.focus()
    keys = ran.page.keyboard
    keys.press("Tab")
    keys.press("Space")
    commit = quiz.get_by_role("button", name="Commit answer")
    commit.and_(ran.page.locator(":enabled")).wait_for(timeout=30_000)
    assert choices.nth(1).is_checked()
    for _ in range(choices.count() - 1):
        keys.press("Tab")
    assert commit.evaluate("(node) => node === document.activeElement")
    keys.press("Space")
    quiz.get_by_role("status").wait_for(timeout=30_000)
    assert set(recorded(lab)) == {"quiz/01.one", "quiz/01.more_range"}


def test_dark_theme(ran):
    ran.page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    card(ran)
    ran.page.locator(f"{CARD}[data-theme=dark]").wait_for(timeout=30_000)
    ran.shot("lesson-dark")


def test_nothing_failed_and_nothing_left_this_machine(ran, capsys):
    with capsys.disabled():
        print(f"\n{len(ran.requests)} requests, {len(ran.outside)} of them beyond this machine")
    ran.check()


def test_the_explorer_goes_on_without_a_kernel(ran):
    ran.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    box = card(ran)
    box.get_by_role("button", name="2049", exact=True).click()
    assert value(ran) == "= 2048"
    assert ran.outside == []
