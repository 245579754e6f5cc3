"""What the files beside the code promise: a whole package, complete pins, a tree that names no foreign place."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points, version
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


def test_what_reports_are_made_of_is_shipped_with_its_licence() -> None:
    assets = ROOT / "src" / "engine" / "record" / "report" / "assets"
    assert PROJECT["tool"]["setuptools"]["package-data"]["outrider.engine.record.report"] == ["assets/*"]
    assert PROJECT["tool"]["setuptools"]["package-data"]["outrider.engine.record.ui"] == ["assets/*"]
    licences = [f"{path.relative_to(ROOT)}" for path in assets.glob("*.LICENSE")]
    assert set(licences) <= set(PROJECT["project"]["license-files"])
    foreign = {path.name.partition(".")[0] for path in assets.iterdir()} - {"page"}
    assert foreign == {Path(path).name.partition(".")[0] for path in licences}


def test_entry_points_load() -> None:
    for entry in entry_points(group="outrider.plugins"):
        assert callable(entry.load())


def test_what_every_user_installs_is_this_and_no_more() -> None:
    assert version("outrider") == PROJECT["project"]["version"]
    core = {normal(line) for line in PROJECT["project"]["dependencies"]}
    assert core == {
        "anyio",
        "asyncssh",
        "cloudpickle",
        "cryptography",
        "cyclopts",
        "msgpack",
        "packaging",
        "pathspec",
        "rich",
        "uv",
    }


def test_every_requirement_is_pinned() -> None:
    groups = [PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"].values()]
    groups += PROJECT["project"]["optional-dependencies"].values()
    pinned = {normal(name) for name in (*PINS, "outrider")}
    assert {normal(line) for group in groups for line in group} - pinned == set()


def test_torch_is_installed_first_and_as_pinned() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"TORCH  := torch=={PINS['torch']}" in makefile
    assert makefile.index("$(PIP) $(TORCH)") < makefile.index("--editable .")
    groups = PROJECT["dependency-groups"]
    assert not any("torch" in line for line in PROJECT["project"]["dependencies"] + groups["examples"])
    assert not any(line.startswith("torch") for line in groups["frameworks"])


def test_ci_runs_every_command() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    commands = set(re.findall(r"\bmake [a-z-]+", script.read_text()))
    assert {"make test", "make test-lab", "make test-frameworks", "make chaos", "make demo"} <= commands


def test_a_test_that_failed_has_no_second_try() -> None:
    settings = [ROOT / name for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run")]
    assert [path.name for path in settings if re.search(r"rerun|flaky", path.read_text())] == []


def test_release_builds_and_uploads_nothing() -> None:
    script = ROOT / ".ci" / "release"
    assert script.stat().st_mode & 0o111
    assert not re.search(r"twine\S* upload|uv\S* publish", script.read_text())
    recipe = re.search(r"^release:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1].startswith(".ci/release ")


def test_changelog_has_this_version() -> None:
    assert re.search(
        rf"^## (Unreleased|{re.escape(PROJECT['project']['version'])})", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


@pytest.mark.parametrize(
    "pattern",
    [
        r"py[p]i\.org|python[h]osted\.org|download\.py[t]orch\.org",  # which index is the machine's own choice
        r"--(extra-)?inde[x]-url|--find-link[s]|--trusted-hos[t]",
        r"(^|[^\w.])/(work|far[m])/",
        r"\.\./share[d]",
    ],
)
def test_tree_names_no_foreign_place(pattern: str) -> None:
    texts = ((path, path.read_text(errors="replace")) for path in files())
    named = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path, text in texts
        if re.search(pattern, text, re.MULTILINE)  # one look at each file, and at each line only where it is needed
        for line in text.splitlines()
        if re.search(pattern, line)
    ]
    assert named == []


def files() -> Iterator[Path]:
    """Those of the tree that nothing has made from others."""
    made = re.compile(
        r"\.git|\.venv.*|\.shim|\.\w+_cache|\.hypothesis|\.coverage.*|.*\.egg-info|__pycache__|out|build|dist"
    )
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not made.fullmatch(name)]
        yield from (Path(folder, name) for name in names if not made.fullmatch(name))


def test_the_newest_versions_are_installed_without_pins_and_tested_each_night() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (upgrade,) = re.findall(r"^UPGRADE = (.*)", makefile, re.M)
    assert "--upgrade-strategy eager" in upgrade
    assert "constraint" not in upgrade
    recipes = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", makefile, re.M))
    assert " newest\n" in recipes["nightly"]
    assert recipes["newest-versions"].count("$(UPGRADE)") == 3
    assert "$(QUICK)" in recipes["newest"]
