"""A CSV file as bytes and cells: single cells can be replaced, and no other byte changes.

Python's csv module cannot do that: it does not keep which cells were quoted, nor the line ends.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from ampedu.grading.export import ExportError

MAX_BYTES = 64 * 2**20
DELIMITERS = (",", ";", "\t")
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Cell:
    """text: decoded, without quotes. start, end: its bytes in the file, quotes included."""

    text: str
    start: int
    end: int
    quoted: bool


@dataclass(frozen=True)
class Row:
    """line: number of its first line in the file, from 1."""

    cells: list[Cell]
    line: int

    @property
    def texts(self) -> list[str]:
        """The texts of the cells."""
        return [cell.text for cell in self.cells]


@dataclass(frozen=True)
class CsvFile:
    """A whole file. rows: without empty lines. encoding: "utf-8" or "cp1252"."""

    content: bytes
    rows: list[Row]
    delimiter: str
    encoding: str

    def filled(self, changes: dict[tuple[int, int], str]) -> bytes:
        """The bytes with the cells at (row, column) replaced; a quoted cell stays quoted."""
        parts, at = [], 0
        for place in sorted(changes):
            cell = self.rows[place[0]].cells[place[1]]
            parts += [self.content[at : cell.start], self._encoded(changes[place], cell.quoted)]
            at = cell.end
        return b"".join([*parts, self.content[at:]])

    def _encoded(self, text, quoted):
        if quoted or any(c in text for c in (self.delimiter, '"', "\n", "\r")):
            text = '"' + text.replace('"', '""') + '"'
        return text.encode(self.encoding, "xmlcharrefreplace")


def parse(content: bytes, name: str) -> CsvFile:
    """Split the bytes of a file into cells; the delimiter is that of ``DELIMITERS`` that cuts the first row most often.

    Raises ExportError with ``name``, the line and a cure.
    """
    if len(content) > MAX_BYTES:
        raise ExportError(f"{name} has more than {MAX_BYTES >> 20} MiB. Is it the CSV file that the LMS gave you?")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content:
        raise ExportError(f"{name} is no CSV file in UTF-8. Download it again, and do not save it from a spreadsheet.")
    encoding = "utf-8"
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        encoding = "cp1252"  # what a spreadsheet on Windows makes of it; every byte is kept in any case
    best = max(DELIMITERS, key=lambda mark: _width(content, mark, encoding, name))
    return CsvFile(content, _rows(content, best, encoding, name), best, encoding)


def _width(content, delimiter, encoding, name):
    """The number of cells in the first row, or 0 if quotes and this delimiter do not go together."""
    try:
        return len(_rows(content, delimiter, encoding, name, first=True)[0].cells)
    except ExportError:
        return 0


def _rows(content, delimiter, encoding, name, first=False):
    mark = re.escape(delimiter.encode())
    pattern = re.compile(rb'(?:"((?:[^"]|"")*+)"|((?!")[^%b\r\n]*))(%b|\r\n|\n|\r|\Z)' % (mark, mark))
    at = len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0
    rows, cells, line, begun = [], [], 1, 1
    while at < len(content) or cells:
        found = pattern.match(content, at)
        if found is None:
            raise ExportError(f"{name}, line {line}: a quoted cell does not end where it should. Download it again.")
        quoted = found[1] is not None
        raw = found[1].replace(b'""', b'"') if quoted else found[2]
        cells.append(Cell(raw.decode(encoding, "replace"), at, found.end(2 if not quoted else 1) + quoted, quoted))
        line += len(_LINE_END.findall(found[0]))
        at = found.end()
        if found[3] != delimiter.encode():
            if len(cells) > 1 or cells[0].quoted or cells[0].text:
                rows.append(Row(cells, begun))
                if first:
                    return rows
            cells, begun = [], line
    if not rows:
        raise ExportError(f"{name} is empty. Download it again.")
    return rows
