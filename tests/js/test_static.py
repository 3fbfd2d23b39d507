"""How the explorers' files become one text."""

import re
import shutil
import subprocess

import pytest

from ampedu import static


@pytest.mark.parametrize("name", static.EXPLORERS)
def test_module_is_self_contained_and_small(name):
    text = static.module(name)
    assert not re.search(r"^import |\bimport\(", text, re.MULTILINE)
    assert re.findall(r"^export .*", text, re.MULTILINE) == ["export default { render };"]
    assert not re.search(r"https?://(?!www\.w3\.org)", text), "a static page must work without a network"
    assert not re.search(r"^\s*//|/\*\*", text, re.MULTILINE)
    assert len(text.encode()) < 64_000


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("name", static.EXPLORERS)
def test_module_has_the_default_export_that_anywidget_wants(name, tmp_path):
    (tmp_path / "explorer.mjs").write_text(static.module(name), encoding="utf-8")
    script = 'import("./explorer.mjs").then((m) => console.log(typeof m.default.render, Object.keys(m).join()))'
    done = subprocess.run(["node", "-e", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "function default", done.stderr


def test_every_file_is_used_by_an_explorer():
    used = set()
    for name in static.EXPLORERS:
        static._inlined(name, used)
    assert used == {path.name.removesuffix(".js") for path in static.folder().iterdir() if path.name.endswith(".js")}


def test_an_unknown_explorer_is_refused():
    with pytest.raises(ValueError, match="choose one of bit_explorer, range_explorer"):
        static.module("style")


def test_state_cannot_end_the_script():
    text = static.html("bit_explorer", {"value": "</script><b>"}, "<p>no script</p>")
    assert "</script><b>" not in text and text.count("</script>") == 1
    assert '<div class="ampedu-explorer"><p>no script</p></div>' in text
