"""The table of peers: README.md and docs/benchmarks/peers.md have the one that the stored results give."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "peers" / "page.py"))
STORED = json.loads(PAGES["RESULTS"].read_text())


def part(page: Path, begin: str, end: str) -> str:
    return page.read_text().partition(begin)[2].partition(end)[0].strip()


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks/peers.md"])
def test_page_has_the_table_of_the_stored_results(page: str) -> None:
    assert part(ROOT / page, PAGES["BEGIN"], PAGES["END"]) == PAGES["table"](STORED).strip()


def test_page_of_the_measurement_has_least_and_most() -> None:
    page = part(PAGES["PAGE"], PAGES["SPREAD_BEGIN"], PAGES["SPREAD_END"])
    assert page == PAGES["spread"](STORED).strip()


def test_readme_says_how_the_figures_were_measured() -> None:
    assert "](docs/benchmarks/peers.md)" in (ROOT / "README.md").read_text()


def test_table_has_medians_in_the_unit_of_the_row() -> None:
    figures = {
        "outrider": {row: [0.001, 0.002, 0.003] for row in PAGES["ROWS"]},
        "ray": {key: [] for key in PAGES["ROWS"]},
    }
    stored = PAGES["results"](figures, {"outrider": "1.2"}, rounds=3)
    lines = PAGES["table"](stored).splitlines()
    assert "medians of 3 rounds" in lines[0]
    assert lines[2] == "| | Outrider 1.2 | Ray |"
    assert lines[5] == "| no-op, one after the other, ms | 2.00 | failed |"


def test_stored_results_keep_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGES["store"].__globals__, "RESULTS", tmp_path / "peers.json")
    figures = {"dask": {row: [0.25, 0.125] for row in PAGES["ROWS"]}}
    measured = PAGES["results"](figures, {"dask": "2"}, rounds=2)
    PAGES["store"](measured)
    assert json.loads((tmp_path / "peers.json").read_text()) == measured


def test_text_around_the_markers_stays() -> None:
    assert PAGES["between"]("a <b> old <e> c", "<b>", "<e>", "new") == "a <b>\n\nnew\n<e> c"
    with pytest.raises(ValueError, match="no <b>"):
        PAGES["between"]("nothing", "<b>", "<e>", "new")
