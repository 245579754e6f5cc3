"""What the pages tell to install is what there is, and what their programs need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PIP = re.compile(r"pip install '(\S*?)\[([a-z,]+)\]'")


def extras(page: Path) -> set[str]:
    return {extra for _, several in PIP.findall(page.read_text()) for extra in several.split(",")}


def test_the_extras_of_the_first_page_are_all_there_are() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    assert extras(ROOT / "docs" / "getting-started.md") == there
    assert {extra for page in PAGES for extra in extras(page)} == there


def test_extras_are_those_of_a_checkout() -> None:
    """The name alone would be looked up in an index, where somebody else may have it."""
    assert {whose for page in PAGES for whose, _ in PIP.findall(page.read_text())} == {"."}


@pytest.mark.parametrize(("page", "needed"), [("aws", {"aws", "image"}), ("ssh", {"image"})])
def test_a_providers_page_says_what_its_programs_need(page: str, needed: set[str]) -> None:
    path = ROOT / "docs" / "providers" / f"{page}.md"
    assert "Image(pip=" in path.read_text()
    assert needed <= extras(path)
