"""CSV files written cell by cell, with what an independent reader should find: expected bytes come from here."""

import csv
import io

from hypothesis import strategies as st

HOSTILE = [
    "", " ", "=1+1", "@x", "-1", "a,b", "a;b", 'say "hi"', '"', '""', "two\nlines", "two\r\nlines",
    "\u202egpj.exe", "../../x", "Ünïcode", "李小龙", "x" * 255, "\u200b", "'", "Points possible", "1.5", "1,5",
    "\ufeff", "tab\there", ";;;", ",,,",
]  # fmt: skip
texts = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


def encode(text: str, delimiter: str, quoted: bool) -> bytes:
    """One cell as RFC 4180 has it."""
    if quoted or any(c in text for c in (delimiter, '"', "\n", "\r")):
        text = '"' + text.replace('"', '""') + '"'
    return text.encode()


def written(rows, delimiter=",", end="\r\n", bom=False, last=True) -> bytes:
    """A file of rows of encoded cells. last: whether the last line ends."""
    lines = [delimiter.encode().join(row) for row in rows]
    return b"\xef\xbb\xbf" * bom + end.encode().join(lines) + end.encode() * last


def read(content: bytes, delimiter=",") -> list[list[str]]:
    """What Python's csv module reads, without empty lines."""
    text = content.decode("utf-8-sig")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [row for row in rows if row and row != [""]]
