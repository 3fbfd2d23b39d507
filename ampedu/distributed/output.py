"""What the ranks print, line by line and tagged with the rank."""

import re
from pathlib import Path

# gloo's C++ code prints this on standard output.
CHATTER = re.compile(r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.")


class Output:
    """Reads the log files that torchrun writes, one per rank and attempt, and prints whole lines as they come.

    folder: torchrun's --log-dir. ranks: how many. quiet: print nothing, only collect. `text` is {rank: all lines}.
    """

    def __init__(self, folder: Path, ranks: int, quiet: bool):
        self.folder, self.quiet = folder, quiet
        self.text = dict.fromkeys(range(ranks), "")
        self.attempts = 0
        self._read: dict[Path, int] = {}
        self._half: dict[Path, bytes] = {}

    def poll(self, last: bool = False) -> None:
        """Print what is new. last: print unfinished lines, too."""
        for attempt in sorted(self.folder.glob("*/attempt_*"), key=lambda place: int(place.name[8:])):
            number = int(attempt.name[8:])
            if number > self.attempts:
                self.attempts = number
                self._print(f"[torchrun] a rank is gone: all ranks start again (restart {number})")
            for rank in self.text:
                self._poll(attempt / str(rank) / "stdout.log", rank, last)

    def errors(self, rank: int) -> str:
        """What the last attempt of a rank wrote to standard error before its own output began."""
        files = sorted(self.folder.glob(f"*/attempt_*/{rank}/stderr.log"))
        return files[-1].read_text(encoding="utf-8", errors="replace").strip() if files else ""

    def _poll(self, file, rank, last):
        try:
            with file.open("rb") as stream:
                stream.seek(self._read.get(file, 0))
                new = stream.read()
        except FileNotFoundError:
            return
        self._read[file] = self._read.get(file, 0) + len(new)
        *lines, half = (self._half.get(file, b"") + new).split(b"\n")
        if last and half:
            lines, half = [*lines, half], b""
        self._half[file] = half
        for raw in lines:
            line = raw.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
            if not CHATTER.match(line):
                self.text[rank] += line + "\n"
                self._print(f"[rank {rank}] {line}")

    def _print(self, line):
        if not self.quiet:
            print(line, flush=True)
