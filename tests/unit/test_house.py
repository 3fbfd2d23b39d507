"""The files around the course agree: environment, README, license, address and tag."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ampedu import __version__, cli

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, HOUSE = PYPROJECT["project"], PYPROJECT["tool"]["ampedu"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def parts(requirements):
    return {(req := Requirement(text)).name.lower(): (req.specifier, frozenset(req.extras)) for text in requirements}


def drift(environment: str) -> list[str]:
    """How an environment.yml differs from pyproject.toml: packages, bounds, Python."""
    found = yaml.safe_load(environment)
    conda = [entry for entry in found["dependencies"] if isinstance(entry, str)]
    pip = next(entry["pip"] for entry in found["dependencies"] if isinstance(entry, dict))
    python = [entry.removeprefix("python").strip() for entry in conda if entry.partition(" ")[0] == "python"]
    problems = []
    if [SpecifierSet(text) for text in python] != [SpecifierSet(PROJECT["requires-python"])]:
        problems.append(f"python {python}, not {PROJECT['requires-python']}")
    if "-e ." not in pip:
        problems.append("-e . is missing")
    if {entry.partition(" ")[0] for entry in conda} != {"python", "pip"}:
        problems.append(f"conda installs {conda}, not just python and pip")
    here = parts(entry for entry in pip if not entry.startswith("-"))
    wanted = parts(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["course"])
    problems += [
        f"{name} differs" for name in sorted(here.keys() | wanted.keys()) if here.get(name) != wanted.get(name)
    ]
    return problems


ENVIRONMENT = (ROOT / "environment.yml").read_text(encoding="utf-8")


def test_environment_agrees_with_pyproject():
    assert drift(ENVIRONMENT) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("torch>=2.11", "torch>=2.12", "torch differs"),
        ("      - rich>=13\n", "", "rich differs"),
        ("ipykernel>=6.29,<7", "ipykernel>=6.29", "ipykernel differs"),
        ("      - -e .\n", "", "-e . is missing"),
        ("python >=3.11", "python >=3.12", "python"),
        ("  - pip\n", "  - pip\n  - pytorch\n", "conda installs"),
        ("      - numpy\n", "      - numpy\n      - scipy\n", "scipy differs"),
    ],
)
def test_a_drifted_environment_is_found(old, new, problem):
    mutated = ENVIRONMENT.replace(old, new)
    assert mutated != ENVIRONMENT
    assert any(problem in text for text in drift(mutated))


def test_constraints_satisfy_every_bound():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {Requirement(line).name.lower().replace("_", "-"): str(Requirement(line).specifier) for line in lines}
    assert pins["torch"] == "==2.13.0"
    assert all(re.fullmatch(r"==[0-9a-z.]+", pin) for pin in pins.values())  # no local build such as +cpu
    everything = [
        *PROJECT["dependencies"],
        *(text for extra in PROJECT["optional-dependencies"].values() for text in extra),
    ]
    for name, (specifier, _) in parts(everything).items():
        if name != "ampedu":
            assert Version(pins[name.replace("_", "-")][2:]) in specifier, name


def test_one_version_address_and_tag_everywhere():
    assert __version__ == PROJECT["version"]
    assert HOUSE["tag"] == f"v{PROJECT['version']}"
    assert PROJECT["urls"]["Repository"] == HOUSE["repository"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["repository-code"]) == (PROJECT["version"], HOUSE["repository"])
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    owner = HOUSE["repository"].removeprefix("https://github.com/")
    for file in tracked("*.md", "*.py", "*.yml", "*.toml", "*.ipynb"):
        text = file.read_text(encoding="utf-8")
        for found in re.findall(
            r"(?:github\.com|mybinder\.org/v2/gh|research\.google\.com/github)/(ampedu/[\w.-]+)", text
        ):
            assert found.removesuffix(".git").rstrip(".") == owner, file
        for tag in re.findall(rf"{owner}(?:/blob/|/tree/|@|/)(v\d[\w.]*)", text):
            assert tag.rstrip(".") == HOUSE["tag"], file


def tracked(*patterns):
    done = subprocess.run(["git", "ls-files", "-z", *patterns], check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for link in LINK.findall(text):
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif not link.startswith("https://"):
            assert (ROOT / link).exists(), link


def test_every_lesson_is_in_readme_with_its_minutes_and_a_badge():
    owner = HOUSE["repository"].removeprefix("https://github.com/")
    for source in sorted((ROOT / "sources" / "lessons").glob("*.py")):
        row = next(line for line in README.splitlines() if f"notebooks/{source.stem}.ipynb)" in line)
        assert f"research.google.com/github/{owner}/blob/{HOUSE['tag']}/notebooks/{source.stem}.ipynb" in row
        minutes = re.search(r"\*(\d+) minutes", source.read_text(encoding="utf-8"))
        assert minutes and minutes[1] in re.findall(r"\d+", row.split("|")[3]), source.stem
    for source in sorted((ROOT / "sources" / "labs").glob("*.py")):
        assert f"labs/{source.stem}.ipynb" in README and f"solutions/{source.stem}.ipynb" in README
        minutes = re.search(r"(\d+) minutes", source.read_text(encoding="utf-8"))
        assert f"+ {minutes[1]} |" in README, source.stem


def code_of(text):
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join(blocks) + "\n" + "\n".join(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/grading.md"])
def test_commands_named_in_the_texts_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    planned = {line for line in text.splitlines() if "lanned" in line}
    for target in re.findall(r"\bmake ([a-z-]+)", code_of(text)):
        assert target in targets, f"make {target}"
    for command in re.findall(r"^ampedu ([a-z]+)", code_of(text), re.MULTILINE):
        if not any(f"ampedu {command}" in line for line in planned):
            assert command in cli.COMMANDS, f"ampedu {command}"


def test_the_two_commands_stand_in_the_first_screen():
    first = "\n".join(README.splitlines()[:25])
    assert "make learn" in first and "make test" in first


def test_options_named_in_readme_are_options_of_learn():
    from tools import learn

    options = learn.parse(["--no-browser", "--port", "8890", "--torch-index", "URL", "--here"])
    assert (options.no_browser, options.port, options.torch_index, options.here) == (True, 8890, "URL", True)
    for option in ("--no-browser", "--port", "--torch-index", "--here"):
        assert option in README


def test_makefile_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    assert phony == set(re.findall(r"^([a-z-]+):.* ## ", makefile, re.MULTILINE))


def test_licenses():
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
    texts = (ROOT / "LICENSE-texts").read_text(encoding="utf-8")
    assert "https://creativecommons.org/licenses/by/4.0/legalcode" in texts
    assert PROJECT["license"] == "MIT"


def test_ci_calls_make_test_and_workflows_cover_what_is_promised():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in script and script.rstrip().endswith("make test")
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"python": ["3.11", "3.13"], "torch": ["2.11.0", "2.13.0"]}
    gpu = yaml.safe_load((ROOT / ".github/workflows/gpu.yml").read_text())["jobs"]["notebooks"]
    assert gpu["runs-on"] == ["self-hosted", "gpu"]
