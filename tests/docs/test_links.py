"""Every link between the project's pages leads somewhere."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r'(?:src|srcset)="([^"\s]+)"')


@functools.cache
def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


@functools.cache
def anchors(page: Path) -> set[str]:
    """The names a page's headings get on the sites that show them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    dead = []
    for link in LINK.findall(prose(page)) + PICTURE.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(link)
    assert dead == []


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(page))]
        waiting += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert sorted(str(page.relative_to(ROOT)) for page in set(PAGES) - seen) == []
