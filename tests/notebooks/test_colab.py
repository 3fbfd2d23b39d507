"""Every notebook on a simulated Colab: its versions, no repository, an empty folder, ampedu from a wheel."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.notebooks import colab_machine
from tools import execute, normalise, setup_cell
from tools import notebook as files
from tools.project import Project

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [path for folder in ("notebooks", "solutions", "labs") for path in sorted((ROOT / folder).glob("*.ipynb"))]
RUNNER = Path(__file__).with_name("colab_cells.py")
SECONDS = 300

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Colab:
    """The environment after the setup cell has run in it; `versions` are those from before."""

    python: Path
    wheel: Path
    versions: dict[str, str]
    setup_output: str


def call(command: list, folder: Path, wheel: Path) -> str:
    """Run a command with nothing of the caller's environment, in a new empty folder; returns what it printed."""
    home, empty = folder / "home", folder / "content"
    home.mkdir()
    empty.mkdir()
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "AMPEDU_SOURCE": str(wheel), "OMP_NUM_THREADS": "1"}
    env |= {"JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1", "AMPEDU_DEVICE": "cpu"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([str(part) for part in command], cwd=empty, env=env, **pipes)
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        execute.kill_tree(process)
    assert process.returncode == 0, output[-4000:]
    return output


@pytest.fixture(scope="module")
def colab(tmp_path_factory) -> Colab:
    """The environment, with ampedu installed by the setup cell itself."""
    try:
        python = colab_machine.python()
    except colab_machine.NotAvailable as reason:
        pytest.skip(f"pip cannot install Colab's packages here: {reason}")
    folder = tmp_path_factory.mktemp("colab")
    wheel = colab_machine.wheel(folder / "wheel")
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "ampedu"], check=True, capture_output=True)
    ask = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    found = subprocess.run([python, "-c", ask, *colab_machine.KEPT], check=True, capture_output=True, text=True)
    project = Project(ROOT)
    setup = setup_cell.render(project.repository, project.tag)
    printed = call([python, "-c", setup], folder, wheel)
    return Colab(python, wheel, json.loads(found.stdout), printed)


def text_on_stderr(cells: list[dict]) -> str:
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    return "".join(output["text"] for output in outputs if output.get("name") == "stderr")


def comparable(outputs: list[dict], count: int) -> list[dict]:
    """Stored form of outputs without pictures: another version of matplotlib draws other pixels."""
    stored = normalise.outputs(outputs, count)
    for output in stored:
        data = output.get("data", {})
        output["data"] = {mime: value for mime, value in data.items() if not mime.startswith("image/")}
    return stored


def test_the_versions_are_those_of_colab(colab):
    pins = dict(pin.split("==") for pin in colab_machine.PINS if "==" in pin)
    assert {name: colab.versions[name] for name in colab.versions if name in pins} == {
        name: pins[name] for name in colab.versions if name in pins
    }


def test_the_setup_cell_prints_nothing(colab):
    assert colab.setup_output == ""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_runs_and_shows_what_is_stored(path, colab, tmp_path):
    made, start = tmp_path / "made.ipynb", time.perf_counter()
    call([colab.python, RUNNER, path, made, *colab_machine.KEPT], tmp_path, colab.wheel)
    *cells, probe = files.load(made)["cells"]
    assert [output for cell in cells for output in cell.get("outputs", []) if output["output_type"] == "error"] == []
    assert text_on_stderr(cells) == ""

    ran = json.loads(probe["outputs"][0]["text"])
    assert Path(ran["prefix"]) == colab.python.parent.parent
    assert ran["versions"] == colab.versions  # nothing was replaced

    stored = files.load(path)["cells"]
    assert [cell["source"] for cell in cells] == [cell["source"] for cell in stored]
    exact = [n for n, cell in enumerate(stored) if "nbval-check-output" in cell["metadata"].get("tags", [])]
    if path.parent.name == "labs":
        checks = [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("grade")]
        shown = ["".join(text for output in cell["outputs"] for text in normalise.texts(output)) for cell in checks]
        assert shown
        assert [text for text in shown if "not started" not in text] == []
    else:
        for n in exact:
            count = stored[n]["execution_count"]
            assert comparable(cells[n]["outputs"], count) == comparable(stored[n]["outputs"], count), stored[n]["id"]
    seconds = time.perf_counter() - start
    print(f"{path.parent.name}/{path.stem}: {len(cells)} cells, {len(exact)} exact, {seconds:.1f} s")
