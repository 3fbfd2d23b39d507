"""The stored lesson exported to HTML: its explorer works from a file, without a network and without a kernel."""

import subprocess
import sys

import pytest

from tests.browser.window import ROOT, Watched

CARD = '.card[aria-label="Bit explorer"]'


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The stored lesson 01 as HTML, made by nbconvert."""
    folder = tmp_path_factory.mktemp("exported")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(ROOT / "notebooks" / "01_bit_layouts.ipynb")]
    done = subprocess.run(
        [*command, "--output-dir", str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "01_bit_layouts.html"


@pytest.fixture
def reader(browser):
    """A page without a network: nbconvert's own page wants scripts for mathematics, which is not what is tested."""
    view = Watched(browser)
    view.context.set_offline(True)
    yield view
    view.context.close()


def test_the_exported_explorer_works(reader, exported):
    reader.page.goto(exported.as_uri(), wait_until="domcontentloaded")
    card = reader.page.locator(CARD)
    card.scroll_into_view_if_needed(timeout=30_000)
    card.get_by_role("button", name="sign bit: 0").click()
    assert card.locator(".value").inner_text() == "= −0.0999755859375"
    card.get_by_role("button", name="sign bit: 1").press("ArrowUp")
    assert card.locator(".value").inner_text() == "= −0.09991455078125"
    assert reader.page.locator(".ampedu-explorer img").count() == 0
    reader.shot("exported")


def test_without_scripts_the_picture_and_the_table_stay(browser, exported):
    view = Watched(browser, java_script_enabled=False)
    view.context.set_offline(True)
    view.page.goto(exported.as_uri(), wait_until="domcontentloaded")
    box = view.page.locator(".ampedu-explorer")
    assert "0.0999755859375" in box.locator("table").first.inner_text()
    assert box.locator("img").get_attribute("alt").startswith("Bit layouts.")
    view.context.close()
