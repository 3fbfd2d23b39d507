"""Whether the outputs of an exact cell are the stored ones: text only, as nbval compares it."""

import configparser
import re
from pathlib import Path

TEXTS = ("text/plain", "text/markdown", "text/latex", "text/html")
GAP = re.compile(r"\s+")
OPENING = re.compile(r"([\[({]) ")
MOST_SHOWN = 2_000


def sanitizer(file: Path):
    """A function that replaces what may differ, by the rules of nbval's file (sections with regex and replace)."""
    rules = configparser.RawConfigParser()
    rules.read(file, encoding="utf-8")
    pairs = [(re.compile(rules[name]["regex"]), rules[name]["replace"]) for name in rules.sections()]

    def sanitize(text: str) -> str:
        for pattern, replacement in pairs:
            text = pattern.sub(replacement, text)
        return text

    return sanitize


def difference(stored: list[dict], got: list[dict], sanitize=str) -> dict | None:
    """{"expected": text, "got": text} of the first output that differs, or None where all agree.

    Pictures are not compared, nor HTML that holds one. In results of expressions the breaking of lines is free:
    IPython wraps long lists, plain Python does not.
    """
    expected, found = [_texts(output) for output in stored], [_texts(output) for output in got]
    for index in range(max(len(expected), len(found))):
        kind_a, texts_a = expected[index] if index < len(expected) else ("nothing", {})
        kind_b, texts_b = found[index] if index < len(found) else ("nothing", {})
        if kind_a != kind_b:
            return {"expected": _shown(kind_a, texts_a), "got": _shown(kind_b, texts_b)}
        for mime in [mime for mime in TEXTS if mime in texts_a or mime in texts_b] or list(texts_a):
            a, b = sanitize(texts_a.get(mime, "")), sanitize(texts_b.get(mime, ""))
            if _free(a, mime) != _free(b, mime):
                return {"expected": _shown(mime, {mime: a}), "got": _shown(mime, {mime: b})}
    return None


def _texts(output: dict) -> tuple[str, dict]:
    """(what kind of output it is, its texts): both kinds of displays count as one."""
    if output["output_type"] == "stream":
        return output["name"], {output["name"]: output["text"]}
    if output["output_type"] == "error":
        return "error", {"error": f"{output['ename']}: {output['evalue']}"}
    data = {mime: text for mime, text in output["data"].items() if mime in TEXTS}
    return "display", {mime: text for mime, text in data.items() if mime != "text/html" or ";base64," not in text}


def _free(text: str, mime: str) -> str:
    return OPENING.sub(r"\1", GAP.sub(" ", text)).strip() if mime == "text/plain" else text.rstrip("\n")


def _shown(what: str, texts: dict) -> str:
    text = "\n".join(texts.values())
    return f"{what}: {text[:MOST_SHOWN]}" if text else what
