"""The loss-scale simulator as a static page in Chromium: mouse, keyboard, typing, zoom, no network, no messages."""

import dataclasses

import pytest

from ampedu import static
from ampedu.scaling import LossScale
from ampedu.scaling.rule import number_text

FIVE = LossScale(growth_interval=5)
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def visit(watched, tmp_path):
    """Open the simulator from a file; at the end no message on the console, and no request but the file itself."""
    problems, opened = [], []

    def open_page(pattern="....................", start=FIVE, **options):
        file = tmp_path / "simulator.html"
        state = {"pattern": pattern, **dataclasses.asdict(start)}
        file.write_text(static.page("scaler_simulator", state, "Simulator"), encoding="utf-8")
        view = watched(**({"viewport": {"width": 940, "height": 900}} | options))
        view.page.on("console", lambda message: problems.append(message.text))
        view.page.on("pageerror", lambda error: problems.append(str(error)))
        view.page.goto(file.as_uri())
        view.page.wait_for_selector(".card .picture svg")
        opened.append((view, file.as_uri()))
        return view

    yield open_page
    assert problems == []
    for view, address in opened:
        assert view.requests == [address]


def told(page) -> list[str]:
    """The last column of the table, and before it scale and tracker: what LossScale says, too."""
    if page.locator("details[open]").count() == 0:
        page.locator("summary").click()
        page.wait_for_selector("details tbody tr")
    rows = page.locator("details tbody tr")
    return [" ".join(rows.nth(k).locator("td").all_text_contents()[1:]) for k in range(rows.count())]


def expected(pattern, start=FIVE) -> list[str]:
    rows = start.simulate(pattern)
    texts = [f"{number_text(r.scale_before)} {number_text(r.scale)} {r.tracker} {r.event}" for r in rows]
    return [text.replace("^-", "−").replace("^", "") for text in texts]


def test_a_click_makes_a_step_overflow_and_back(visit):
    page = visit().page
    pattern = page.get_by_label("pattern")
    page.get_by_role("button", name="step 3: finite").click()
    assert pattern.input_value() == "...x................"
    assert told(page) == expected("...x................")
    story = page.locator(".story").inner_text()
    assert story == "Step 3: inf or NaN found: step skipped, scale 65536 → 32768. Growth tracker: 0."
    assert page.locator("path.skip").count() == 1
    page.get_by_role("button", name="step 3: inf or NaN").click()
    assert told(page) == expected("." * 20) and page.locator("path.skip").count() == 0


def test_the_keyboard_alone(visit):
    page = visit().page
    page.get_by_role("button", name="step 0:").focus()
    for key in ("ArrowRight", "ArrowRight", "Space", "End", "Enter", "Home", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.get_by_label("pattern").input_value() == "..x................x"
    assert page.locator(".story").inner_text().startswith("Step 0: clean step 1 of 5")
    assert page.locator(".cell[tabindex='0']").count() == 1


def test_examples_and_constants(visit):
    page = visit().page
    page.get_by_role("button", name="every forward non-finite").click()
    assert "has no floor" in page.locator(".story").inner_text()
    assert told(page) == expected("x" * 40, LossScale())
    page.get_by_label("scale at the start").fill("2^10")
    page.get_by_label("scale at the start").press("Enter")
    page.get_by_label("growth interval").fill("3")
    page.get_by_label("growth interval").press("Enter")
    page.get_by_label("backoff factor").fill("0.3")
    page.get_by_label("backoff factor").press("Enter")
    page.get_by_label("growth factor").fill("1.1")
    page.get_by_label("growth factor").press("Enter")
    page.get_by_label("pattern").fill("xx...... x....")
    assert told(page) == expected("xx......x....", LossScale(1024.0, 0, 1.1, 0.3, 3))
    assert page.locator(".cell").count() == 13


def test_wrong_input_is_explained_and_forgotten_with_the_next_change(visit):
    page = visit().page
    for name, value, words in (
        ("growth interval", "0", "must be a whole number from 1"),
        ("growth factor", "1", "must be a number above 1"),
        ("backoff factor", "", "must be a number between 0 and 1"),
        ("scale at the start", "2^128", "must be a positive number below 2^128"),
        ("pattern", "..a", "“a” is no sign"),
    ):
        field = page.get_by_label(name)
        field.fill(value)
        field.press("Enter")
        assert words in page.locator(".error").inner_text(), name
        assert field.get_attribute("aria-invalid") == "true"
        assert told(page) == expected("." * 20)
        page.get_by_role("button", name="step 0:").click()
        page.get_by_role("button", name="step 0:").click()
        assert page.locator(".error").inner_text() == "" and field.get_attribute("aria-invalid") is None
        assert field.input_value() not in ("", "..a", "2^128"), name


def test_nothing_overflows_at_400_percent_zoom(visit):
    page = visit("x" * 60, viewport={"width": 320, "height": 256}).page
    assert page.evaluate(OVERFLOW) == 0
    page.locator("summary").click()
    assert page.evaluate(OVERFLOW) == 0


def test_scales_that_cannot_be_drawn_do_not_break_the_picture(visit):
    page = visit("x" * 60, LossScale(2.0**-100)).page
    assert "NaN" not in page.locator(".picture").inner_html() and told(page)[-1].startswith("0 0 0 inf or NaN found")


@pytest.mark.parametrize("name, options", {"light": {}, "dark": {"color_scheme": "dark"}}.items())
def test_screenshots(visit, name, options):
    view = visit("..........x.....x.....x.....x.....x.....", **options)
    view.page.get_by_role("button", name="step 16:").hover()
    view.shot(f"simulator-{name}", whole=True)
