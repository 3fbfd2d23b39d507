"""Feedback and class report in a browser: readable on a phone and on paper, and nothing that a page holds can run."""

import pytest

from ampedu.grading import report
from tests.grading import demo

PAGES = ["class.html", "feedback/s01.html", "feedback/s02.html", "feedback/s10.html", "feedback/s12.html"]
THEMES = {"light": "rgb(246, 245, 241)", "dark": "rgb(20, 23, 27)"}  # --page in style.css


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graded")
    demo.write(folder)
    report.write(folder)
    return folder


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [360, 1000])
def test_pages_fit_and_take_the_theme(watched, out, width, theme):
    window = watched(viewport={"width": width, "height": 900}, color_scheme=theme)
    for name in PAGES:
        window.page.goto((out / name).as_uri())
        assert window.page.evaluate("document.documentElement.scrollWidth") <= width, name
        # The style sheet has the hash that the policy asks for, or the page would be white.
        assert window.page.evaluate("getComputedStyle(document.body).backgroundColor") == THEMES[theme]
        window.shot(f"grading-{name.replace('/', '-')[:-5]}-{theme}-{width}", whole=True)
    assert [url for url in window.requests if not url.startswith("file:")] == []


def test_bars_are_as_long_as_their_shares(watched, out):
    window = watched()
    window.page.goto((out / "class.html").as_uri())
    run, _ = demo.batch()
    found = window.page.evaluate("""() => [...document.querySelectorAll('#hard ~ table tbody tr')].map(row => [
        row.querySelector('code').textContent, Number(row.cells[2].textContent), Number(row.cells[3].textContent),
        Number(row.cells[4].textContent), row.querySelector('rect.passed')?.getBoundingClientRect().width ?? 0,
        row.querySelector('rect.track').getBoundingClientRect().width])""")
    assert {row[0] for row in found} == {info.id for info in run.exercises}
    for _, passed, failed, unanswered, drawn, whole in found:
        assert abs(drawn / whole - passed / (passed + failed + unanswered)) < 0.01


def test_what_is_folded_is_on_paper(watched, out):
    window = watched()
    window.page.goto((out / "class.html").as_uri())
    rows = window.page.locator("details tbody tr")
    assert rows.count() > 5 and not rows.first.is_visible()
    window.page.emulate_media(media="print")
    assert rows.first.bounding_box()["height"] > 10
    assert window.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_policy_stops_what_escaping_would_miss(browser, out, tmp_path):
    page_text = (out / "feedback/s00.html").read_text(encoding="utf-8")
    attack = (
        "<script>document.title = 'owned'</script><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' "
        "onerror=\"document.title = 'owned'\"><style>main { display: none }</style><p style='color: red' id='x'>x</p>"
    )
    (tmp_path / "page.html").write_text(page_text.replace("<main>", f"<main>{attack}"), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.title() == "Feedback for s00"
    assert page.locator("main").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('#x')).color") != "rgb(255, 0, 0)"
    assert page.evaluate("[...document.images].every(image => image.naturalWidth === 0)")
    page.close()
