"""A JupyterLab with a folder of notebooks, set up as `make learn` does it, and what its window can be asked."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
from nbformat.sign import NotebookNotary

from tools import learn
from tools.execute import kill_tree

OWN = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")  # folders named like this
START = 60  # seconds
RUN = 120_000  # milliseconds
# Resolves when every cell has run; a cell that hangs ends it with "timeout".
RUN_ALL = f"""() => Promise.race([
  window.jupyterapp.commands.execute("notebook:run-all-cells"),
  new Promise((resolve) => setTimeout(() => resolve("timeout"), {RUN})),
])"""
CELLS = """() => [...window.jupyterapp.shell.currentWidget.content.widgets]
  .filter((cell) => cell.model.type === "code")
  .map((cell) => ({
    source: cell.model.sharedModel.getSource(),
    count: cell.model.executionCount,
    outputs: cell.model.outputs.toJSON(),
  }))"""
SHOW = """async (text) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  const index = notebook.widgets.findIndex((cell) => cell.model.sharedModel.getSource().includes(text));
  notebook.activeCellIndex = index;
  notebook.mode = "command";
  await notebook.scrollToItem(index, "start");
  return index;
}"""


@contextmanager
def serving(folder: Path, scratch: Path):
    """Address of a JupyterLab for the notebooks in `folder`; its settings and its progress file are in `scratch`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", f"--ServerApp.root_dir={folder}"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    command += ["--LabApp.expose_app_in_browser=True"]
    own = {name: str(scratch / name.lower()) for name in OWN}
    own |= {"AMPEDU_PROGRESS": str(scratch / "progress.json"), "JUPYTER_PREFER_ENV_PATH": "1"}
    with (scratch / "jupyterlab.log").open("w+") as log:
        process = subprocess.Popen(
            command, env=learn.jupyter_environment(scratch, sys.executable) | own, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(address, process, log)
            yield address
        finally:
            kill_tree(process)


def _wait_for(address: str, process, log) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        try:
            urlopen(f"{address}/api", timeout=2).close()
            return
        except (URLError, OSError):
            time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"JupyterLab did not start within {START} s:\n{log.read()[-2000:]}")


def trusted_copy(source: Path, copy: Path, scratch: Path) -> None:
    """Copy a notebook and sign the copy: the JupyterLab of `scratch` trusts its outputs, as it does with one's own."""
    notebook = nbformat.read(source, as_version=4)
    notebook.metadata["title"] = copy.stem  # the same content would be trusted under every name
    nbformat.write(notebook, copy)
    data = scratch / "jupyter_data_dir"
    data.mkdir(exist_ok=True)
    NotebookNotary(data_dir=str(data)).sign(nbformat.read(copy, as_version=4))


def open_notebook(page, address: str, name: str) -> None:
    """Open a notebook and wait until its cells are there."""
    page.goto(f"{address}/doc/tree/{name}", wait_until="load")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=START * 1000)
    page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.context?.isReady", timeout=RUN)


def run_all(page) -> list[dict]:
    """Run all cells once the kernel is idle; return the code cells: source, execution count, outputs."""
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'", timeout=RUN
    )
    assert page.evaluate(RUN_ALL) is True
    return page.evaluate(CELLS)


def show_cell(page, text: str) -> None:
    """Scroll to the first cell whose source holds `text`, and make it the active one."""
    assert page.evaluate(SHOW, text) >= 0, text
