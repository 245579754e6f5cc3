"""What the files beside the code promise: the package is whole, the pins are complete, the tree names no foreign place."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points, requires, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def normal(requirement: str) -> str:
    """The project's name in a requirement, as package indexes compare it."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_every_package_is_shipped() -> None:
    present = {
        ".".join(["outrider", *path.parent.relative_to(ROOT / "src").parts]) for path in ROOT.glob("src/**/__init__.py")
    }
    assert present == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_module_is_in_a_package() -> None:
    assert [path for path in (ROOT / "src").rglob("*.py") if not (path.parent / "__init__.py").exists()] == []


def test_types_are_shipped() -> None:
    assert (ROOT / "src" / "py.typed").exists()
    assert PROJECT["tool"]["setuptools"]["package-data"]["outrider"] == ["py.typed"]


def test_entry_points_load() -> None:
    for entry in entry_points(group="outrider.plugins"):
        assert callable(entry.load())


def test_installed_metadata_is_this_tree() -> None:
    assert version("outrider") == PROJECT["project"]["version"]
    core = {normal(line) for line in requires("outrider") or [] if "extra ==" not in line}
    assert core == {"anyio", "asyncssh", "cloudpickle", "msgpack", "rich", "structlog"}


def test_every_requirement_is_pinned() -> None:
    groups = [PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"].values()]
    groups += PROJECT["project"]["optional-dependencies"].values()
    pinned = {normal(name) for name in PINS}
    assert {normal(line) for group in groups for line in group} - pinned == set()


def test_torch_is_installed_first_and_as_pinned() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"TORCH  := torch=={PINS['torch']}" in makefile
    assert makefile.index("$(PIP) $(TORCH)") < makefile.index("--editable .")
    assert not any(
        "torch" in line for line in PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["examples"]
    )


def test_ci_runs_both_commands() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert {"make test", "make demo"} <= set(re.findall(r"^make \w+", script.read_text(), re.MULTILINE))


def test_changelog_has_this_version() -> None:
    assert re.search(
        rf"^## (Unreleased|{re.escape(PROJECT['project']['version'])})", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


@pytest.mark.parametrize(
    "pattern",
    [
        r"py"
        + r"pi\.org|python"
        + r"hosted\.org|download\."
        + r"pytorch\.org",  # whose index: the machine's own choice
        r"--(extra-)?index" + r"-url|--find" + r"-links|--trusted" + r"-host",
        r"(^|[^\w.])/(work|far" + r"m)/",
        r"\.\./" + r"shared",
    ],
)
def test_tree_names_no_foreign_place(pattern: str) -> None:
    skipped = {".git", ".venv", "node_modules", "out", "__pycache__", ".shim"}
    named = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in ROOT.rglob("*")
        if path.is_file()
        and not skipped & set(path.relative_to(ROOT).parts)
        and ".egg-info" not in str(path)
        and not {part for part in path.relative_to(ROOT).parts if part.endswith("_cache") or part == ".hypothesis"}
        for line in path.read_text(errors="replace").splitlines()
        if re.search(pattern, line)
    ]
    assert named == []
