"""Addresses of lessons and labs of this version, and their names in words."""

from ampedu import __version__

REPOSITORY = "https://github.com/ampedu/ampedu"  # as in pyproject.toml; a test compares them


def lesson(stem: str) -> str:
    """The address of the lesson that goes with a lab."""
    return f"{REPOSITORY}/blob/v{__version__}/notebooks/{stem}.ipynb"


def lab(stem: str) -> str:
    """The address of a lab."""
    return f"{REPOSITORY}/blob/v{__version__}/labs/{stem}.ipynb"


def title(stem: str) -> str:
    """The name of a lab in words: "01 · Bit layouts"."""
    number, _, words = stem.partition("_")
    return f"{number} · {words.replace('_', ' ').capitalize()}"
