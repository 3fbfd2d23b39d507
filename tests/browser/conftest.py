"""Chromium for the browser tests; without it they are skipped and say why."""

import shutil

import pytest

from tests.browser.window import Watched

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # a longer life would keep playwright's event loop running under other tests
def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def watched(browser):
    """A function that opens a watched page; all of them are checked and closed at the end."""
    opened = []

    def open_page(**options) -> Watched:
        opened.append(Watched(browser, **options))
        return opened[-1]

    yield open_page
    for page in opened:
        page.context.close()
    for page in opened:
        page.check()
