"""Time from a learner's hand to what the eye sees: a slider that redraws a figure, a click in the bit explorer.

    python benchmarks/interaction.py [--moves N] [--no-browser] [--write FILE]

- slider, in Python: the slider's value changes → draw → PNG → the Image widget has it. CPU time, which other work on
  the machine hardly changes, and wall-clock time.
- slider, in JupyterLab: key press → kernel → the new image is loaded in the page (Chromium, headless).
- bit explorer, in Chromium: click → the card is laid out again. No kernel takes part.

The browser's rows are wall-clock time. They are not judged on a busy machine, which is one where the slider takes 1.5
times as long by the clock as it computes. They need playwright and chromium; without them they are left out.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

LIMITS = {"slider, CPU time": 90.0, "slider, in JupyterLab": 90.0, "bit explorer, a click": 16.0}
DRAW = """\
from matplotlib.figure import Figure


def draw(bits):
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.bar(0.5, 2 ** (15 - bits), width=2**bits, color="#0072B2")
    axes.set(xlim=(-140, 140), ylim=(0, 2200), xlabel="exponent", ylabel="numbers in a binade")
    axes.set_title(f"{bits} exponent bits, {15 - bits} mantissa bits")
    return figure
"""
VALUES = list(range(4, 9))
SHOW = f"from ampedu.widgets import slider\nslider(draw, {VALUES}, 5, 'exponent bits', 'A bar')"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WATCH = """() => {
  const image = document.querySelector("img.ampedu-figure, .ampedu-figure img");
  window.took = [];
  let start = null;
  document.addEventListener("keydown", () => { start = performance.now(); }, true);
  image.addEventListener("load", () => {
    if (start !== null) { window.took.push(performance.now() - start); start = null; }
  });
}"""
CLICKS = """(times) => {
  const root = document.querySelector(".ampedu-explorer > div").shadowRoot;
  const took = [];
  for (let i = 0; i < times; i += 1) {
    const bits = root.querySelectorAll(".bit");
    const start = performance.now();
    bits[(i * 7) % bits.length].click();
    root.querySelector(".card").getBoundingClientRect();
    took.push(performance.now() - start);
  }
  return took;
}"""


def slider_in_python(moves):
    """(wall-clock, CPU) milliseconds per move of the slider."""
    from ampedu.widgets import figure_slider
    from ampedu.widgets.output import toolkit

    space = {}
    exec(DRAW, space)
    first = figure_slider.as_picture(space["draw"](5), "A bar")
    shell = figure_slider.Shell(space["draw"], VALUES, 5, "exponent bits", "A bar", first, toolkit())
    wall, cpu = [], []
    for move in range(moves + 2):
        before, start, used = shell.image.value, time.perf_counter(), time.process_time()
        shell.slider.value = VALUES[move % len(VALUES)]
        wall.append((time.perf_counter() - start) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
        if move and shell.image.value == before:
            raise RuntimeError("the slider moved and the figure did not")
    return wall[2:], cpu[2:]


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_lab(folder):
    """(process, port) of a JupyterLab on `folder` that answers."""
    port = free_port()
    env = dict(os.environ, JUPYTER_CONFIG_DIR=str(folder / "config"), IPYTHONDIR=str(folder / "ipython"))
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", f"--port={port}"]
    command += ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True", f"--ServerApp.root_dir={folder}"]
    lab = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(240):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return lab, port
        except OSError:
            time.sleep(0.25)
    lab.kill()
    raise RuntimeError("JupyterLab did not start in 60 s")


def slider_in_lab(browser, moves):
    """Milliseconds from a key press to the loaded image, in JupyterLab."""
    cells = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for n, source in enumerate((DRAW, SHOW))
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "slider.ipynb").write_text(json.dumps(book))
        lab, port = start_lab(folder)
        try:
            page = browser.new_page(viewport={"width": 1200, "height": 1000})
            page.goto(f"http://127.0.0.1:{port}/doc/tree/slider.ipynb", wait_until="load")
            page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
            page.wait_for_timeout(3_000)  # the kernel starts, and the command would be lost before
            page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
            handle = page.wait_for_selector(".noUi-handle", timeout=120_000)
            page.wait_for_selector("img.ampedu-figure, .ampedu-figure img", timeout=60_000)
            page.evaluate(WATCH)
            for move in range(moves + 2):
                handle.focus()
                page.keyboard.press("ArrowRight" if move // 3 % 2 == 0 else "ArrowLeft")
                page.wait_for_function(f"window.took.length > {move}", timeout=20_000)
                page.wait_for_timeout(100)
            return page.evaluate("window.took")[2:]
        finally:
            lab.terminate()
            lab.wait(30)


def explorer_clicks(browser, clicks):
    """Milliseconds per click on a bit, in a static page."""
    from ampedu import static

    state = {"format": "fp16", "value": "0.1", "code": "", "compare": ["bf16", "fp32"]}
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "bits.html")
        file.write_text(static.page("bit_explorer", state, "Bits"), encoding="utf-8")
        page.goto(file.as_uri(), wait_until="load")
        page.wait_for_function("document.querySelector('.ampedu-explorer > div')?.shadowRoot?.querySelector('.bit')")
        return page.evaluate(CLICKS, clicks + 10)[10:]


def in_browser(moves):
    """({row: milliseconds}, notes) of what needs a browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}, ["playwright is not installed: no browser rows"]
    if chromium is None:
        return {}, ["chromium is not installed: no browser rows"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        rows = {
            "slider, in JupyterLab": slider_in_lab(browser, moves),
            "bit explorer, a click": explorer_clicks(browser, 10 * moves),
        }
        note = f"Chromium {browser.version}, JupyterLab {importlib.metadata.version('jupyterlab')}"
        browser.close()
    return rows, [note]


def processor():
    """The name of the processor, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def main():
    """Measure, print the table and write it where asked; exit status 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    wall, cpu = slider_in_python(options.moves)
    rows, notes = ({}, ["no browser rows asked for"]) if options.no_browser else in_browser(options.moves)
    rows = {"slider, CPU time": cpu, "slider, wall clock": wall} | rows
    busy = statistics.median(wall) > 1.5 * statistics.median(cpu)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("matplotlib", "ipywidgets"))
    lines = [
        f"{processor()}, {os.cpu_count()} cores{', busy' * busy}, {datetime.date.today()}",
        f"Python {platform.python_version()}, {versions}; {'; '.join(notes)}",
        f"Milliseconds: median of {options.moves} moves, {10 * options.moves} clicks (9 of 10 below; largest).",
        "",
    ]
    broken = []
    for row, times in rows.items():
        middle, ninth = statistics.median(times), statistics.quantiles(times, n=10)[-1]
        text = f"{row:24}{middle:8.1f} ({ninth:.1f}; {max(times):.1f})"
        if limit := LIMITS.get(row):
            judged = not busy or row == "slider, CPU time"
            verdict = "kept" if middle <= limit else "BROKEN" if judged else "not judged, the machine is busy"
            text = f"{text:52}limit {limit:g}: {verdict} ({middle / limit:.2f} of it)"
            broken += [row] if verdict == "BROKEN" else []
        lines.append(text)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.write:
        Path(options.write).write_text(text, encoding="utf-8")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
