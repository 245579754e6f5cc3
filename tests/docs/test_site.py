"""The site that `make site` makes of the pages: whole, without a broken link or a request to anywhere else."""

from __future__ import annotations

import fcntl
import functools
import inspect
import os
import re
import resource
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import outrider

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "record" / "report"))
from chromium import BROWSER, Chromium

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "docs" / "build_site.py"
BUILD_LIMIT_S = 30
LISTED_BY_THEIR_INDEX = ("decisions/", "examples/")  # in the navigation there is the index alone
DIALOG = "[...document.querySelectorAll('*')].find((each) => each.shadowRoot)?.shadowRoot"
TYPED = f"""(() => {{
    const field = {DIALOG}.querySelector('input');
    field.value = '%s';
    field.dispatchEvent(new Event('input', {{bubbles: true}}));
}})()"""

links_of_the_site = runpy.run_path(str(BUILDER))["with_links_of_the_site"]


class Page(HTMLParser):
    """``links``: where it leads, some of it by ``navigation``; ``ids``: its anchors; ``loads``: what it needs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.navigation: list[str] = []
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self._navs = 0
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        self._navs += tag == "nav"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            self.navigation += [given["href"]] if self._navs else []
        elif tag == "link" and given.get("rel") not in {"canonical", "prev", "next"}:
            self.loads.append(given["href"])
        self.loads += [given[name] for name in ("src", "srcset") if name in given]

    def handle_endtag(self, tag: str) -> None:
        self._navs -= tag == "nav"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built once for all processes of this run of the tests."""
    for name in ("zensical", "mkdocstrings_handlers.python"):
        pytest.importorskip(name, reason=f"{name} is not installed: make .venv/.dev installs it")
    shared = tmp_path_factory.getbasetemp()
    shared = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "documentation"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        took = shared / "took_s"
        if not took.exists():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(
                [sys.executable, BUILDER, shared / "build"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.write_text(str(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return shared / "build" / "site"


@functools.cache  # to read nine million characters takes seconds
def pages(site: Path) -> dict[str, Page]:
    return {str(path.relative_to(site)): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def target(page: str, link: str) -> tuple[str, str] | None:
    """The file of the site that a link leads to, and the anchor; None for what is elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = os.path.normpath(Path(page).parent / unquote(parts.path)) if parts.path else page
    return ("index.html" if path == "." else path), unquote(parts.fragment)


def test_it_takes_less_than_30_seconds_of_a_processor(site: Path) -> None:
    assert float((site.parents[1] / "took_s").read_text()) < BUILD_LIMIT_S


def test_every_page_is_reached_and_no_link_is_broken(site: Path) -> None:
    found, broken = pages(site), []
    seen, waiting = set[str](), ["index.html"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for link in found[name].links:
            there = target(name, link)
            if there is None:
                continue
            path, anchor = there
            if not (site / path).is_file() or (anchor and path in found and anchor not in found[path].ids):
                broken.append(f"{name}: {link}")
            elif path in found:
                waiting.append(path)
    assert broken == []
    assert set(found) - seen == set()


def test_every_page_stands_in_the_navigation(site: Path) -> None:
    found = pages(site)
    listed = {there[0] for link in found["index.html"].navigation if (there := target("index.html", link))}
    absent = set(found) - listed
    assert {name for name in absent if not name.startswith(LISTED_BY_THEIR_INDEX)} == set()
    assert {f"{folder}index.html" for folder in LISTED_BY_THEIR_INDEX} <= listed


def test_every_source_has_its_page(site: Path) -> None:
    sources = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")}
    examples = {f"examples/{path.stem}.html" for path in (ROOT / "examples").glob("*.py")}
    assert sources | examples <= set(pages(site))


def test_home_page_has_the_first_screen_of_the_readme(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert "survives the loss of its machines" in text
    assert 'src="pictures/losses-light.svg"' in text
    assert (site / "pictures" / "losses-light.svg").is_file()
    assert re.search(r"Train.*Embed.*Test", text, re.DOTALL)


def test_every_public_name_is_on_a_page_of_the_api(site: Path) -> None:
    anchors = {
        name.rpartition(".")[2] for page, each in pages(site).items() if page.startswith("api/") for name in each.ids
    }
    names = {name for name in outrider.__all__ if not inspect.ismodule(getattr(outrider, name))}
    names |= {*dir(outrider.plugins), *outrider.trackers.__all__, *outrider.events.__all__} - {"Ranks"}
    names = {name for name in names if not name.startswith("_")} - {"plugins", "ComputePool"}  # Pool under another name
    assert names - anchors == set()
    assert {"run", "from_config"} <= anchors  # methods have anchors, too


def test_options_of_a_pool_are_on_its_page(site: Path) -> None:
    text = (site / "api" / "pools.html").read_text()
    options = {*inspect.signature(outrider.Pool).parameters}
    assert {name for name in options if f"<code>{name}</code>" not in text and f">{name}<" not in text} == set()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    outside = [load for page in pages(site).values() for load in page.loads if re.match(r"(?:\w+:)?//", load)]
    styles = [
        path for path in site.rglob("*.css") if re.search(r"(?:url\(|@import )['\"]?(?:\w+:)?//", path.read_text())
    ]
    assert (outside, styles) == ([], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](../../examples/03_map.py)", "[a](../examples/03_map.md)"),
        ("[a](../../examples/)", "[a](../examples/index.md)"),
        ("[a](../../CONTRIBUTING.md#the-tests)", "[a](../project/contributing.md#the-tests)"),
        ("[`a[0]`](../providers/aws.md)", "[`a[0]`](../providers/aws.md)"),
        ("[a](../../tests/chaos/README.md)", "a (`tests/chaos/README.md`)"),
        ("[a](https://example.org/b) and [b](#c)", "[a](https://example.org/b) and [b](#c)"),
        ("```\n[a](../../Makefile)\n```", "```\n[a](../../Makefile)\n```"),
    ],
)
def test_links_to_other_files_of_the_repository(text: str, expected: str) -> None:
    assert links_of_the_site(text, Path("docs/guides/x.md"), Path("guides/x.md")) == expected


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    """Of one page alone: zensical's own check is what is asked for here, and that the builder heeds it."""
    pytest.importorskip("zensical", reason="zensical is not installed: make .venv/.dev installs it")
    builder: dict[str, Any] = runpy.run_path(str(BUILDER))
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    (tmp_path / "docs" / "index.md").write_text("# A page\n\n[to](nowhere.md)\n")
    with pytest.raises(SystemExit, match="page does not exist"):
        builder["run_zensical"](tmp_path)


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_browser_asks_nobody_else_and_the_search_finds(served: str, tmp_path: Path) -> None:
    browser = Chromium(tmp_path)
    try:
        browser.show(f"{served}guides/report.html")  # it has a picture, and code
        browser.evaluate("document.querySelector('.md-search__button').click()")
        browser.wait(f"{DIALOG}?.querySelector('input') != null")
        browser.evaluate(TYPED % "preemption notice")
        browser.wait(f"{DIALOG}.querySelectorAll('[role=listbox] a').length > 0")
        found = browser.evaluate(f"[...{DIALOG}.querySelectorAll('[role=listbox] a')].map((each) => each.href)")
        asked = [url for url in browser.requests if not url.startswith("data:")]
        assert any(url.startswith(f"{served}guides/preemption.html") for url in found), found
        assert {url for url in asked if not url.startswith(served)} == set()
        assert f"{served}search.json" in asked
        assert browser.complaints == []
    finally:
        browser.close()
