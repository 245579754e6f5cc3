"""A living run's page in a browser: it goes on, complains of nothing, and asks nobody else."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.engine.record.runs.reader import Run, runs_in

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from chromium import BROWSER, Chromium
from living import living
from records import training
from served import PATIENCE_S, serving

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")

LIVE = "document.getElementById('link').textContent === 'live'"
HOSTILE = "</pre><script>document.title = 'broken'</script><img src=x onerror=\"document.title = 'broken'\">"
PROGRAM = """
import sys, time
from outrider import Local, Pool, compute, log_metrics

@compute
def train(seconds):
    end, step = time.time() + seconds, 0
    while time.time() < end:
        log_metrics({"loss": 1 / (step + 1)}, step=step)
        step += 1
        time.sleep(0.05)

if __name__ == "__main__":
    with Pool(provider=Local(), nodes=1, run="train", console="silent") as pool:
        train(float(sys.argv[1])) >> pool
"""
LAGS = """(async (began, ms) => {
    const curve = () => report.said.charts.m0.curves[0], lags = [];
    let seen = curve().t.length;
    for (const until = Date.now() + ms; Date.now() < until;) {
        await new Promise((done) => setTimeout(done, 10));
        const ys = [...report.plots.get('m0').plot.data[1]], now = Date.now();
        const drawn = ys.filter((y) => y !== undefined && y !== null); // the others are of other curves
        if (drawn.length !== curve().t.length) continue;
        for (; seen < drawn.length; seen++) lags.push(now - 1000 * began - curve().t[seen]);
    }
    return lags;
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return training(tmp_path_factory.mktemp("whole"), nodes=2, losses=1, steps=60, every=10)


def is_overloaded() -> bool:
    """Whether twice as much has been running of late as there are processors."""
    return os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


def test_a_point_is_drawn_within_a_second_of_its_call(browser: Chromium, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "OUTRIDER_STATE": str(tmp_path), "OUTRIDER_RUNS": "1"}
    with serving(tmp_path) as ui, subprocess.Popen([sys.executable, program, "600"], env=environment) as training_:
        try:
            until = time.monotonic() + PATIENCE_S
            while not (found := [run for run in runs_in(tmp_path / "runs") if "began" in run.status]):
                assert time.monotonic() < until
                time.sleep(0.05)
            browser.show(ui.url)
            browser.wait("location.search === '' && document.querySelector('#runs a') !== null")
            browser.evaluate("document.querySelector('#runs a').click()")
            browser.wait("document.getElementById('metrics') !== null")
            browser.wait("document.querySelector('#m0') !== null")
            browser.evaluate("document.querySelector('#m0').scrollIntoView()")
            browser.wait(f"{LIVE} && report.plots.has('m0')")
            until = time.monotonic() + PATIENCE_S
            while True:  # an overloaded computer may take longer for some, and for a while for all
                lags = browser.evaluate(f"{LAGS}({found[0].status['began']}, 4000)")
                assert not lags or min(lags) > -50, "the clocks are the same"
                late_ms = sorted(lags)[len(lags) * 9 // 10] if len(lags) > 40 else math.inf
                if late_ms < 1000 or (time.monotonic() > until and late_ms < 30_000 and is_overloaded()):
                    break
                assert time.monotonic() < until or is_overloaded(), sorted(lags)
                assert time.monotonic() < until + PATIENCE_S, sorted(lags)
            assert browser.complaints == []
            browser.evaluate("document.querySelector('[data-act=stop]').click()")
            assert training_.poll() is None, "it asks once more"
            browser.evaluate("document.querySelector('[data-act=stop]').click()")
            browser.wait("document.getElementById('link').textContent === 'ended'")
            assert browser.evaluate("document.querySelector('.state').textContent") == "failed"  # RunStopped
            assert browser.evaluate("document.getElementById('acts')") is None
            assert training_.wait(PATIENCE_S) == 1
            assert browser.complaints == []
            assert all(url.startswith((f"http://127.0.0.1:{ui.port}/", "data:")) for url in browser.requests)
        finally:
            training_.kill()


@pytest.mark.parametrize("dark", [False, True])
def test_what_the_reader_has_opened_and_written_stays(
    browser: Chromium, whole: Run, tmp_path: Path, dark: bool
) -> None:
    with living(whole, tmp_path / "runs") as run, serving(tmp_path) as ui:
        run.grow(0.5)
        browser.show(ui.url, dark=dark)
        browser.wait("location.search === ''")
        browser.show(ui.url.partition("?")[0] + f"runs/{run.run.id}", dark=dark)
        browser.wait(LIVE)
        assert browser.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        browser.evaluate("""(() => {
            for (const each of document.querySelectorAll('#timeline details, #m0 details')) each.open = true;
            const search = document.getElementById('search');
            search.value = 'STEP';
            search.dispatchEvent(new Event('input', {bubbles: true}));
        })()""")
        browser.wait("document.getElementById('found').textContent !== ''")
        before = browser.evaluate("[document.getElementById('found').textContent, report.said.seconds]")
        run.grow(0.9)
        browser.wait(f"document.getElementById('found').textContent !== '{before[0]}'")
        browser.wait("document.querySelectorAll('[data-bar=generation]').length === 2")
        opened = "[...document.querySelectorAll('#timeline details, #m0 details')].map((each) => each.open)"
        assert set(browser.evaluate(opened)) == {True}
        assert browser.evaluate("document.getElementById('search').value") == "STEP"
        with (run.directory / "logs" / "rank-000.log").open("a") as log:
            log.write(f"\n2026-11-25T08:00:00.000Z stdout STEP {HOSTILE}\n")
        browser.wait("document.querySelector('#logs').textContent.includes('onerror')")
        assert "broken" not in browser.evaluate("document.title")
        run.end()
        browser.wait("document.getElementById('link').textContent === 'ended'")
        assert browser.evaluate("document.querySelector('.state').textContent") == "ended well"
        assert browser.complaints == []
        assert all(url.startswith((f"http://127.0.0.1:{ui.port}/", "data:")) for url in browser.requests)


def test_a_page_that_nobody_sees_lets_go_and_has_everything_when_it_is_seen_again(
    browser: Chromium, whole: Run, tmp_path: Path
) -> None:
    def seen(hidden: bool) -> None:
        browser.evaluate(f"""(() => {{
            Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {str(hidden).lower()}}});
            document.dispatchEvent(new Event('visibilitychange'));
        }})()""")

    with living(whole, tmp_path / "runs") as run, serving(tmp_path) as ui:
        run.grow(0.3)
        browser.show(ui.url)
        browser.wait("location.search === ''")
        browser.show(ui.url.partition("?")[0] + f"runs/{run.run.id}")
        browser.wait(LIVE)
        count = "report.said.charts.m0.curves.reduce((sum, each) => sum + each.t.length, 0)"
        seen(hidden=True)
        browser.wait("document.getElementById('link').textContent === 'not connected'")
        before = browser.evaluate(count)
        run.grow(0.6)
        time.sleep(0.5)  # in which a page that is seen would have it
        assert browser.evaluate(count) == before
        seen(hidden=False)
        browser.wait(f"{LIVE} && {count} > {before}")
        assert browser.complaints == []


def test_no_token_no_page(browser: Chromium, whole: Run, tmp_path: Path) -> None:
    with living(whole, tmp_path / "runs") as run, serving(tmp_path) as ui:
        browser.show(f"http://127.0.0.1:{ui.port}/runs/{run.run.id}")
        assert "has the token" in browser.evaluate("document.body.textContent")
        assert run.run.id not in browser.evaluate("document.body.textContent")


def test_what_was_done_is_the_same_page_as_the_report(browser: Chromium, whole: Run, tmp_path: Path) -> None:
    with living(whole, tmp_path / "runs") as run, serving(tmp_path) as ui:
        run.end()
        browser.show(ui.url)
        browser.wait("location.search === ''")
        browser.show(ui.url.partition("?")[0] + f"runs/{run.run.id}", width=390)
        assert browser.evaluate("document.querySelectorAll('[data-bar=generation]').length") == 2
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.complaints == []
        assert json.loads(browser.evaluate("document.getElementById('data').textContent")).get("live") is None


def test_header_of_a_living_run_fits_a_phone(browser: Chromium, whole: Run, tmp_path: Path) -> None:
    with living(whole, tmp_path / "runs") as run, serving(tmp_path) as ui:
        browser.show(ui.url)
        browser.wait("location.search === ''")
        browser.show(ui.url.partition("?")[0] + f"runs/{run.run.id}", width=390)
        browser.wait("document.querySelectorAll('#acts button').length === 3")
        covered = browser.evaluate(
            """[...document.querySelectorAll('.bar .mark, .bar #theme, #acts button')].filter((each) => {
                const box = each.getBoundingClientRect();
                const spots = [1, box.width / 2, box.width - 1].map((x) => [box.left + x, box.top + box.height / 2]);
                return spots.some(([x, y]) => !each.contains(document.elementFromPoint(x, y)));
            }).map((each) => each.textContent)"""
        )
        assert covered == [], "nothing in the header lies over another part of it"
