"""GPUs of a driver's library, here one of a few lines, are on the live page and in the report; so is a profile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.engine.record.report.page import write_report
from outrider.engine.record.runs.reader import Run, runs_in

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
sys.path.insert(0, str(Path(__file__).parents[2]))
from chromium import BROWSER, Chromium
from fake_gpus import built
from served import PATIENCE_S, serving

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")

PROGRAM = """
import time
from pathlib import Path
from outrider import Local, Pool, compute, log_metrics
from outrider.providers.local import computer

@compute
def train(end):
    step = 0
    while not Path(end).exists():
        time.sleep(0.02)
        log_metrics({"loss": 1.0}, step=step)
        step += 1

if __name__ == "__main__":
    import sys
    computer._driver_is_loaded = lambda: sys.argv[2] == "driver"
    with Pool(provider=Local(), nodes=2, run="train", sample_every=0.2, console="silent") as pool:
        train(sys.argv[1]) @ pool
"""
FIGURES = {"GPUs": [41, 42], "GPU memory": [2**30, 2 * 2**30], "GPU power": [300.5, 300.5]}  # as the library says


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    built(tmp_path)
    return tmp_path


def started(folder: Path, driver: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "OUTRIDER_STATE": str(folder),
        "OUTRIDER_RUNS": "1",
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(folder),
    }
    return subprocess.Popen([sys.executable, folder / "train.py", folder / "end", driver], env=environment)


def living_run(folder: Path) -> Run:
    until = time.monotonic() + PATIENCE_S
    while not (found := runs_in(folder / "runs")):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found[0]


def has_panels(browser: Chromium) -> None:
    browser.wait("document.querySelectorAll('#system .chart').length >= 3")
    titles = browser.evaluate("document.getElementById('system').textContent")
    for title in ("GPUs", "GPU memory", "GPU power"):
        assert title in titles
    assert "No node has reported a GPU" not in titles
    assert browser.complaints == []


def test_the_panels_of_the_live_page_and_the_report_show_what_the_driver_says(browser: Chromium, folder: Path) -> None:
    with serving(folder) as ui:
        training = started(folder, "driver")
        try:
            run = living_run(folder)
            browser.show(ui.url.replace("/?", f"/runs/{run.id}?"))
            has_panels(browser)
            for title, values in FIGURES.items():
                browser.wait(f"{_values(title)}.length === {len(values)}")  # a node tells of itself after the other
                assert sorted(browser.evaluate(_values(title))) == pytest.approx(values, rel=1e-4), (
                    f"{title} of both nodes, with a GPU each"
                )
            browser.evaluate("document.querySelector('[data-act=profile]').click()")
            browser.wait("document.querySelector('#profiles a') !== null")
            browser.wait("document.getElementById('told').textContent.startsWith('No straggler can be told')")
            assert "2 ranks" in browser.evaluate("document.getElementById('profiles').textContent")
            href = browser.evaluate("document.querySelector('#profiles a').getAttribute('href')")
            assert re.fullmatch(rf"/runs/{run.id}/profiles/[0-9TZ.]+\.json\.gz", href)
            status = browser.evaluate(f"fetch('{href}').then((answer) => answer.status)")
            assert status == 200
        finally:
            (folder / "end").touch()
            training.wait()
        browser.show(write_report(run))
        has_panels(browser)
        assert browser.evaluate("document.querySelector('#profiles a').getAttribute('href')").startswith("profiles/")
        for title, values in FIGURES.items():
            assert sorted(browser.evaluate(_values(title))) == pytest.approx(values, rel=1e-4)


def test_nodes_without_a_driver_say_so(browser: Chromium, folder: Path) -> None:
    with serving(folder) as ui, started(folder, "no driver") as training:
        try:
            run = living_run(folder)
            browser.show(ui.url.replace("/?", f"/runs/{run.id}?"))
            browser.wait("document.querySelector('#system .chart') !== null")
            assert "No node has reported a GPU." in browser.evaluate("document.getElementById('system').textContent")
        finally:
            (folder / "end").touch()
            training.wait()
    browser.show(write_report(run))
    assert "No node has reported a GPU." in browser.evaluate("document.getElementById('system').textContent")


def _values(title: str) -> str:
    """The newest value of each curve of a chart, by its name."""
    return (
        "(() => { const found = [...document.querySelectorAll('#system .chart')].find((each) => "
        f"each.querySelector('h3').textContent === '{title}'); "
        "return report.said.charts[found.id].curves.map((each) => each.y.at(-1)); })()"
    )
