"""A report in a browser: it draws, asks for nothing, complains of nothing. Skipped where there is no Chromium."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.actors import events as ev
from outrider.engine.record.report.page import write_report

sys.path.insert(0, str(Path(__file__).parent))
from chromium import BROWSER, Chromium
from records import BEGAN, Record, training

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")

DRAWN = "document.querySelectorAll('.chart canvas').length === document.querySelectorAll('.chart').length"
SCROLLED = """(async () => {
    document.documentElement.style.scrollBehavior = 'auto';
    for (let y = 0; y < document.body.scrollHeight; y += 400) {
        scrollTo(0, y);
        await new Promise(requestAnimationFrame);
    }
})()"""
INK = """[...document.querySelectorAll('.chart canvas')].map((canvas) => {
    const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    const found = new Set();
    for (let at = 0; at < pixels.length; at += 4) if (pixels[at + 3] > 200) found.add(pixels.slice(at, at + 3).join());
    return found.size;
})"""
CONTRAST = """(() => {
    const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
    const parsed = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
    const ground = (node) => {
        for (; node; node = node.parentElement) {
            const c = parsed(getComputedStyle(node).backgroundColor);
            if (c.length === 3 || c[3] === 1) return c;
        }
        return [255, 255, 255];
    };
    const bad = [];
    for (const node of document.querySelectorAll('main *, footer *, .bar *')) {
        const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
        if (!own || node.closest('svg, [hidden], .hidden') || node.getAttribute('aria-pressed') === 'false') continue;
        const style = getComputedStyle(node);
        const [a, b] = [light(parsed(style.color)), light(ground(node))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) bad.push(`${node.tagName} ${node.className} ${ratio.toFixed(2)}`);
    }
    return bad;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(training(tmp_path_factory.mktemp("runs"), steps=120))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_it_draws_all_curves_and_asks_for_nothing(browser: Chromium, report: Path, width: int, dark: bool) -> None:
    browser.show(report, width=width, dark=dark)
    browser.evaluate(SCROLLED)
    browser.wait(DRAWN)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [report.as_uri()]
    assert all(colours > 4 for colours in browser.evaluate(INK)), "something is drawn in each"
    assert browser.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the screen"
    assert browser.evaluate(CONTRAST) == []


def test_every_node_and_generation_has_a_bar_and_every_rank_a_curve(browser: Chromium, report: Path) -> None:
    browser.show(report)
    assert browser.evaluate("document.querySelectorAll('[data-bar=generation]').length") == 4
    names = browser.evaluate("[...document.querySelectorAll('.row-name')].map((each) => each.textContent)")
    assert [name for name in names if name] == ["train", *(f"node {number}" for number in range(7))]
    widths = browser.evaluate(
        "[...document.querySelectorAll('[data-bar]')].map((e) => e.getBoundingClientRect().width)"
    )
    assert min(widths) > 0
    browser.evaluate(SCROLLED)
    browser.wait(DRAWN)
    legends = browser.evaluate("[...document.querySelectorAll('#m0 .legend button')].map((each) => each.dataset.label)")
    assert legends == [f"rank {rank}" for rank in range(4)]


def test_a_closer_look_moves_bars_and_curves_together_and_back(browser: Chromium, report: Path) -> None:
    browser.show(report)
    first = "document.querySelector('[data-bar=generation]').getBoundingClientRect().left"
    before = browser.evaluate(first)
    browser.evaluate("""(() => {
        const track = document.querySelector('.track'), box = track.getBoundingClientRect(), y = box.top + 4;
        const kind = {clientY: y, bubbles: true, button: 0, pointerType: 'mouse'};
        const at = (part) => ({...kind, clientX: box.left + part * box.width});
        track.dispatchEvent(new PointerEvent('pointerdown', at(0.5)));
        track.dispatchEvent(new PointerEvent('pointermove', at(0.7)));
        dispatchEvent(new PointerEvent('pointerup', at(0.7)));
    })()""")
    assert browser.evaluate(first) < before - 200
    assert browser.evaluate("document.querySelector('.zoomed').hidden") is False
    browser.evaluate("document.querySelector('.zoomed button').click()")
    assert browser.evaluate(first) == pytest.approx(before, abs=1)


def test_each_checkpoint_is_a_mark_on_its_broadcast(browser: Chromium, report: Path) -> None:
    browser.show(report)
    marks = browser.evaluate("""(() => {
        const row = [...document.querySelectorAll('.row')].find((each) => each.textContent.startsWith('train'));
        const track = row.querySelector('.track').getBoundingClientRect();
        return [...row.querySelectorAll('.save')].map((each) => {
            const path = each.querySelector('path'), box = path.getBoundingClientRect();
            const there = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === path;
            const inside = box.left >= track.left && box.top >= track.top && box.bottom <= track.bottom;
            return {tip: each.querySelector('title').textContent, fill: getComputedStyle(path).fill, there, inside};
        });
    })()""")
    assert [each["tip"].partition(" at ")[0] for each in marks] == [
        f"digits: step {step} is saved, 201 kB" for step in (20, 40, 60, 80, 100)
    ]
    assert all(each["inside"] and each["fill"] != "rgb(0, 0, 0)" for each in marks)
    assert all(each["there"] for each in marks[:-1]), "the last one is at the very edge"
    assert "a checkpoint is complete" in browser.evaluate("document.querySelector('.key').textContent")


def test_the_axes_and_the_colours_can_be_switched(browser: Chromium, report: Path) -> None:
    browser.show(report)
    for switch in ("[data-axis=time]", "[data-scale=log]", "[data-axis=step]", "[data-scale=linear]", "#theme"):
        browser.evaluate(f"document.querySelector('{switch}').click()")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    browser.evaluate("document.querySelector('#m0 .legend button').click()")
    assert browser.evaluate("document.querySelector('#m0 .legend button').getAttribute('aria-pressed')") == "false"
    assert browser.complaints == []


def test_a_search_shows_the_lines_that_have_the_words(browser: Chromium, report: Path) -> None:
    browser.show(report)
    browser.evaluate("""(() => {
        const search = document.getElementById('search');
        search.value = 'STEP 117';
        search.dispatchEvent(new Event('input'));
    })()""")
    browser.wait("document.getElementById('found').textContent !== ''")
    assert browser.evaluate("document.getElementById('found').textContent") == "1 line in 1 of 4 logs"
    assert browser.evaluate("document.querySelector('.log mark').textContent") == "step 117"


def test_scripts_in_a_record_never_run(browser: Chromium, tmp_path: Path) -> None:
    """Not even where escaping failed: the policy knows the digest of one script."""
    record = Record(tmp_path, events=[ev.NodeReady(0, 0, 1, 1, at=BEGAN)])
    path = write_report(record.write())
    text = path.read_text()
    path.write_text(
        text.replace("<h1>", "<script>document.title = 'broken'</script><img src='http://127.0.0.1:9/x'><h1>")
    )
    browser.show(path)
    assert browser.evaluate("document.title") == "train: ended well - Outrider report"
    assert len(browser.complaints) >= 2, "the browser says that it refuses both"
    assert not [url for url in browser.requests if url.startswith("http")] or "blocked" in "".join(browser.complaints)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_thousand_nodes_fit(browser: Chromium, tmp_path: Path, width: int) -> None:
    run = training(tmp_path, nodes=1000, losses=3, steps=20, log_every=5, sample_s=30.0)
    browser.show(write_report(run), width=width)
    browser.evaluate(SCROLLED)
    browser.wait(DRAWN)
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('*').length") < 6_000
