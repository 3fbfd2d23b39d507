"""The real course, built twice by force in a copy: only outputs of cells tagged `measured` may differ."""

import shutil
from pathlib import Path

import pytest

from tools import build, normalise
from tools import notebook as files
from tools.project import EXECUTED, Project

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_two_forced_builds_differ_in_measured_cells_only(tmp_path):
    for folder in ("sources", "ampedu", "tools", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    project = Project(tmp_path)
    targets = project.targets(kinds=EXECUTED)
    assert build.build(project, force=True) == []
    first = {target: files.load(target.path) for target in targets}
    others = snapshot(tmp_path)
    assert build.build(project, force=True) == []
    assert snapshot(tmp_path) == others
    for target in targets:
        second = files.load(target.path)
        for notebook in (first[target], second):
            assert notebook["metadata"]["ampedu"].pop("outputs_sha256") == normalise.digest(notebook)
            for cell in notebook["cells"]:
                if "measured" in cell["metadata"].get("tags", []):
                    cell["outputs"] = []
        assert second == first[target]


def snapshot(root: Path) -> dict[str, bytes]:
    """All files that a build writes, without the executed notebooks."""
    kept = [*(root / "labs").glob("*"), *(root / "ampedu" / "data").rglob("*"), *(root / "docs").glob("*")]
    return {str(path): path.read_bytes() for path in kept if path.is_file()}
