"""A page of a browser that is watched: what went wrong in it, what it requested, what it looks like."""

from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"


class Watched:
    """A page and what must stay empty: messages of errors, and requests to anywhere but this machine."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        self.page = self.context.new_page()
        self.errors, self.outside, self.requests = [], [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("websocket", lambda socket: self._count(socket.url))
        self.context.on("request", lambda request: self._count(request.url))

    def _count(self, url: str) -> None:
        self.requests.append(url)
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob", "file") and parts.hostname not in ("127.0.0.1", "localhost"):
            self.outside.append(url)

    def shot(self, name: str, whole: bool = False) -> None:
        """Save what the window shows now, or the whole page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)

    def check(self) -> None:
        """Fail if anything was logged as an error or requested from outside."""
        assert self.outside == [], "requests that leave this machine"
        assert self.errors == [], "errors on the console"
