"""The README's first screen, its table of providers, and the pages that have parts of it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from outrider.providers.registry import PROVIDERS, Registered

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FIRST_SCREEN = "\n".join(README.splitlines()[:40])
PAGES = ROOT / "docs" / "providers"
REAL = "tests run against the real thing"
SIMULATED = "tests run against a simulator held to the vendor's published schema; not yet run against the real service"
ROW = re.compile(r"^\| \[`(?P<name>\w+)`\]\((?P<page>[^)]+)\) \| [^|]+ \| (?P<status>[^|]+) \|$", re.MULTILINE)
STATUS = re.compile(r"\A# .+\n\n\*Status: (?P<status>.+)\.\*\n\n")


def code_of_first_screen() -> str:
    match = re.search(r"^```python\n(.*?)^```$", FIRST_SCREEN, re.MULTILINE | re.DOTALL)
    assert match, "the first screen has no whole program"
    return match[1]


def statuses() -> dict[str, tuple[str, str]]:
    """Return page and status by provider, as the README's table has them."""
    return {match["name"]: (match["page"], match["status"]) for match in ROW.finditer(README)}


def test_first_screen_has_promise_picture_code_and_commands() -> None:
    assert "survives the loss of its machines, and you can test that" in FIRST_SCREEN
    assert "docs/pictures/losses-light.svg" in FIRST_SCREEN
    assert re.search(r"^pip install \. .*\nmake demo ", FIRST_SCREEN, re.MULTILINE)


def test_first_program_is_short_and_loses_a_node() -> None:
    lines = [line for line in code_of_first_screen().splitlines() if line.strip()]
    assert len(lines) <= 20
    assert "Kill(" in code_of_first_screen()


def test_table_has_all_providers() -> None:
    assert set(statuses()) == {entry.provider.partition(":")[2] for entry in PROVIDERS.values()}


@pytest.mark.parametrize("entry", PROVIDERS.values(), ids=list(PROVIDERS))
def test_clouds_are_simulated_and_others_real(entry: Registered) -> None:
    _, status = statuses()[entry.provider.partition(":")[2]]
    assert status.startswith(SIMULATED if entry.rents else REAL)


def test_every_page_of_a_provider_is_in_the_table() -> None:
    pages = {f"docs/providers/{page.name}" for page in PAGES.glob("*.md")} - {"docs/providers/writing-one.md"}
    assert {page for page, _ in statuses().values()} - {"docs/getting-started.md"} == pages


@pytest.mark.parametrize(("name", "page", "status"), [(name, *row) for name, row in statuses().items()])
def test_status_is_the_one_at_the_top_of_the_page(name: str, page: str, status: str) -> None:
    if name != "Local":
        top = STATUS.match((ROOT / page).read_text())
        assert top, f"{page} begins without its status"
        assert top["status"] == status


def test_aws_says_how_it_is_tested() -> None:
    assert "\n## How it is tested\n" in (PAGES / "aws.md").read_text()


def test_first_command_needs_no_package_index() -> None:
    for page in (README, (ROOT / "docs" / "getting-started.md").read_text()):
        commands = re.findall(r"pip install (\S+)", page)
        assert commands
        assert {command.strip("'`")[0] for command in commands} == {"."}


def test_site_begins_with_the_first_screen() -> None:
    builder: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "build_site.py"))
    screen = builder["first_screen"]()
    assert code_of_first_screen() in screen
    assert '="pictures/losses-light.svg"' in screen
    assert "docs/" not in screen
    assert builder["FIRST_SCREEN"] in (ROOT / "docs" / "index.md").read_text()
