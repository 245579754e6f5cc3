"""What the pages tell to install is what there is, and what their programs need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PIP = re.compile(r"pip install '(\S*?)\[([a-z,]+)\]'")


def extras(page: Path) -> set[str]:
    return {extra for _, several in PIP.findall(page.read_text()) for extra in several.split(",")}


def test_the_extras_of_the_first_page_are_all_there_are() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    assert extras(ROOT / "docs" / "getting-started.md") == there
    assert {extra for page in PAGES for extra in extras(page)} == there


def test_extras_are_of_the_package_or_of_a_checkout() -> None:
    assert {whose for page in PAGES for whose, _ in PIP.findall(page.read_text())} == {".", "outrider"}


def test_the_extra_all_is_all_others() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.pop("all") == [f"outrider[{','.join(sorted(extras))}]"]


def test_a_providers_page_says_what_its_programs_need() -> None:
    assert "aws" in extras(ROOT / "docs" / "providers" / "aws.md")
