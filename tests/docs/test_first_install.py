"""Whoever installs the package, whole or from its sources, has what the README begins with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
BUILT_FROM = [
    *["src", "docs", "examples", "tests", "benchmarks", ".ci"],
    *(each.name for each in ROOT.iterdir() if each.is_file()),
]
PYENV = Path.home() / ".pyenv" / "versions"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the archive of the sources and of the wheel that is made from it."""
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "out"))
        else:
            shutil.copy(ROOT / name, tree)
    run(find_uv_bin(), "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", made, cwd=tree)
    return made


def test_the_archive_has_the_tests_the_pages_and_the_examples(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("*.md"), *(each for name in BUILT_FROM for each in (ROOT / name).rglob("*"))]
        if path.is_file() and not {"__pycache__", "out"} & set(path.parts)
    }
    assert expected - names == set()


def test_links_of_the_description_hold_on_any_page(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
    description = metadata.partition("\n\n")[2]
    assert description.startswith("# Outrider\n\n**Your training survives")
    assert "<picture>" not in description
    assert re.findall(r"\]\((?!https?:)[^)]*\)", description) == []
    assert "`docs/getting-started.md`" in description


def cases() -> list[object]:
    """The wheel for this Python; both for each of the others that is here, at night."""
    others = [
        pytest.param(version, kind, marks=pytest.mark.nightly)
        for version in ("3.11", "3.12", "3.13")
        for kind in ("whl", "tar.gz")
    ]
    return [(HERE, "whl"), *(each for each in others if each.values != (HERE, "whl"))]


def interpreter(version: str) -> Path:
    if version == HERE:
        return Path(sys.executable)
    found = next(PYENV.glob(f"{version}.*/bin/python"), None) or shutil.which(f"python{version}")
    if found is None:
        pytest.skip(f"there is no Python {version} on this computer")
    return Path(found)


@pytest.mark.parametrize(("version", "kind"), cases())
def test_the_first_program_of_the_readme_runs_where_nothing_else_is_installed(
    built: Path, version: str, kind: str, tmp_path: Path
) -> None:
    run(interpreter(version), "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    # Nothing is compiled that is not imported, which took half of the time.
    installing = "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet", "--no-compile"
    run(sys.executable, *installing, next(built.glob(f"*.{kind}")), cwd=tmp_path)
    first = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert first is not None
    (tmp_path / "first.py").write_text(first[1])
    right = "weight 3.000, resumed at step 20"  # rank 0 is killed after it
    assert run(python, "first.py", cwd=tmp_path).splitlines()[-1] == str([right, right])
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run(tmp_path / "env" / "bin" / "outrider", "--version", cwd=tmp_path))
