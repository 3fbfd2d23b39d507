"""Outputs as they are stored: the same bytes for the same results, on every run."""

import hashlib
import json
import re

WIDGET_MIMES = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def outputs(raw: list[dict], count: int) -> list[dict]:
    """Stored form of one cell's outputs: neighbouring streams merged, widget views dropped, counts set to `count`."""
    kept: list[dict] = []
    for output in raw:
        output = dict(output)
        if output["output_type"] == "stream" and kept and kept[-1].get("name") == output["name"]:
            kept[-1]["text"] += output["text"]
            continue
        if "data" in output:
            output["data"] = {mime: value for mime, value in output["data"].items() if mime not in WIDGET_MIMES}
            if not output["data"]:
                continue
        if output["output_type"] == "execute_result":
            output["execution_count"] = count
        output.pop("transient", None)
        kept.append(output)
    return kept


def texts(output: dict) -> list[str]:
    """Everything in an output that is text: a stream, or the plain, HTML and Markdown forms of a display."""
    if output["output_type"] == "stream":
        return [output["text"]]
    data = output.get("data", {})
    return [data[mime] for mime in ("text/plain", "text/html", "text/markdown") if mime in data]


def problems(cell_outputs: list[dict]) -> list[str]:
    """What must not be stored: text on stderr, and addresses of objects."""
    found = []
    for output in cell_outputs:
        if output["output_type"] == "stream" and output["name"] == "stderr":
            found.append(f'it writes to stderr ("{_first_line(output["text"])}"); cure the warning or catch it.')
        for text in texts(output):
            match = ADDRESS.search(text)
            if match:
                around = text[max(0, match.start() - 40) : match.end()].strip().split("\n")[-1]
                found.append(f'it prints an address ("{around}"); print a value or give the object a __repr__.')
    return found


def digest(notebook: dict) -> str:
    """SHA-256 of all outputs and execution counts of a notebook, so that an edited output is noticed."""
    kept = [(cell.get("execution_count"), cell.get("outputs")) for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.split("\n") if line.strip()), "")
