"""What a page is sent while a run goes on is, when it has ended, its report."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.engine.record.report.contents import read_contents
from outrider.engine.record.report.page import PageParts, parts_of
from outrider.engine.record.runs.reader import Run
from outrider.engine.record.ui import pages
from outrider.engine.record.ui.pages import RunPage

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from living import Living, living
from records import training

GOES_ON = {"overview", "timeline", "metrics", "record"}  # with the time, or told by charts; the last has files' sizes
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e\"'`<!--"


class Page:
    """What the script of a page makes of the messages."""

    def __init__(self, parts: PageParts) -> None:
        self.sections = dict(parts.sections)
        self.data = json.loads(json.dumps(parts.data))
        self.logs: dict[str, str] = {}
        self.ended = False

    def take(self, message: dict[str, Any]) -> None:
        if "data" in message:
            self.data = message["data"]
        for name, html in message.get("sections", {}).items():
            self.sections[name] = html
        for place, said in message.get("charts", {}).items():
            section = "metrics" if place[0] == "m" else "system"
            before, found, after = self.sections[section].partition(f'<figure class="chart" id="{place}"')
            assert found
            self.sections[section] = before + said["figure"] + after.partition("</figure>")[2]
            self.data["charts"][place] = {**said["chart"], "own": said["arrays"]}
        for place, said in message.get("tails", {}).items():
            for each in said["curves"]:
                curve = self.data["charts"][place]["curves"][each["i"]]
                for name in "txy":
                    if name in each:
                        curve[f"more {name}"] = curve.get(f"more {name}", []) + each[name]
        for said in message.get("logs", ()):
            assert f'data-log="{said["log"]}"' in self.sections["logs"]
            place = self.sections["logs"].index("</pre>", self.sections["logs"].index(f'data-log="{said["log"]}"'))
            self.sections["logs"] = self.sections["logs"][:place] + said["html"] + self.sections["logs"][place:]
        self.ended |= message.get("end", False)

    def curves(self) -> dict[str, list[tuple[str, list[float], list[float]]]]:
        """The label, times and values of each curve of the metrics."""
        found = {}
        for place, chart in self.data["charts"].items():
            arrays = chart.get("own", self.data["arrays"])
            if place[0] == "m":
                found[place] = [
                    (
                        curve["label"],
                        unpacked(arrays[curve["t"]]) + curve.get("more t", []),
                        unpacked(arrays[curve["y"]]) + curve.get("more y", []),
                    )
                    for curve in chart["curves"]
                ]
        return found


def unpacked(array: Any) -> list[Any]:
    if isinstance(array, list):
        return list(array)
    if "r" in array:
        first, step, count = array["r"]
        return [first + step * place for place in range(count)]
    total, found = 0, []
    for each in array["d"]:
        total += each
        found.append(total)
    return found


def messages(page: RunPage, cursor: str) -> tuple[str, list[dict[str, Any]]]:
    found = page.updates.since(cursor)
    assert found is not None
    return (found[-1][0] if found else cursor), [json.loads(message) for _, message in found]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is due at each look."""
    monkeypatch.setattr(pages.Throttle, "due", lambda self, now: True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return training(tmp_path_factory.mktemp("whole"), nodes=2, losses=1, steps=60, every=10)


def sections_of(run: Run) -> dict[str, str]:
    return {name: settled(html) for name, html in parts_of(read_contents(run), lambda path: None).sections.items()}


def settled(html: str) -> str:
    """It without what depends on the moment at which it was made."""
    html = re.sub(r"as of \d\d:\d\d:\d\d UTC", "", html)
    return re.sub(r"\d+ lines?", "", html)  # the script counts them


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.floats(0, 1), max_size=5).map(sorted))
def test_what_a_page_was_sent_is_the_report_at_any_moment(
    whole: Run, unhurried: None, tmp_path_factory: pytest.TempPathFactory, moments: list[float]
) -> None:
    with living(whole, tmp_path_factory.mktemp("runs")) as run:
        run.grow(moments[0] if moments else 0.0)
        page = RunPage(run.run, "a")
        reader, cursor = Page(page.parts()), page.updates.newest
        for moment in [*moments[1:], None]:
            run.end() if moment is None else run.grow(moment)
            page.look()
            cursor, found = messages(page, cursor)
            for message in found:
                reader.take(message)
            report = Page(parts_of(read_contents(run.run), lambda path: None))
            assert reader.curves() == report.curves()
            sections = sections_of(run.run)
            for name in sections.keys() - (GOES_ON if moment is not None else set()):
                assert settled(reader.sections[name]) == sections[name], name
        assert reader.ended


def test_a_point_is_a_short_message(whole: Run, unhurried: None, tmp_path: Path) -> None:
    with living(whole, tmp_path) as run:
        run.grow(0.4)
        page = RunPage(run.run, "a")
        page.look()
        cursor = page.updates.newest
        page._looks["state"] = page._looks["small"] = Never()
        with (run.directory / "metrics.jsonl").open("a") as file:
            file.write("\n")  # the last line is half a one
        last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-2])
        run.append("metrics.jsonl", last | {"at": last["at"] + 1, "step": last["step"] + 1, "values": {"loss": 0.125}})
        page.look()
        _, (message,) = messages(page, cursor)
        assert message.keys() == {"tails", "seconds", "state"}
        (curve,) = message["tails"]["m0"]["curves"]
        assert curve["y"] == [0.125]
        assert curve["x"] == [last["step"] + 1]


class Never:
    def due(self, now: float) -> bool:
        return False


def test_a_page_that_opens_later_has_all_that_others_were_sent(whole: Run, unhurried: None, tmp_path: Path) -> None:
    with living(whole, tmp_path) as run:
        page = RunPage(run.run, "a")
        reader, cursor = Page(page.parts()), page.updates.newest
        for part in (0.2, 0.5, 0.8):
            run.grow(part)
            page.look()
        for message in messages(page, cursor)[1]:
            reader.take(message)
        late = Page(page.parts())
        assert late.curves() == reader.curves()
        assert settled(late.sections["logs"]) == settled(reader.sections["logs"])
        anew = Page(page.parts())
        anew.take(json.loads(page.whole()))
        assert anew.curves() == reader.curves()


def test_of_a_flood_of_lines_pages_get_the_beginning_and_the_end(whole: Run, unhurried: None, tmp_path: Path) -> None:
    with living(whole, tmp_path) as run:
        run.grow(1.0)
        page = RunPage(run.run, "a")
        cursor = page.updates.newest
        with (run.directory / "logs" / "rank-000.log").open("a") as log:
            for number in range(60_000):
                log.write(f"2026-11-25T08:00:00.000Z stdout line {number} of a flood\n")
        page.look()
        _, (message,) = messages(page, cursor)
        assert "logs" not in message
        logs = message["sections"]["logs"]
        assert len(logs) < 1 << 20
        assert "line 59999 of" in logs
        assert "are left out here" in logs


def test_text_of_tasks_is_no_markup_in_messages(whole: Run, unhurried: None, tmp_path: Path) -> None:
    with living(whole, tmp_path) as run:
        run.grow(1.0)
        page = RunPage(run.run, "a")
        cursor = page.updates.newest
        with (run.directory / "logs" / "rank-000.log").open("a") as log:
            log.write(f"2026-11-25T08:00:00.000Z stdout {HOSTILE}\n")
        said = {"at": 1_795_595_050.0, "function": HOSTILE, "job": 9, "rank": 0, "node": 0, "generation": 1, "step": 1}
        run.append("metrics.jsonl", said | {"values": {HOSTILE: 1.0}})
        run.append("texts.jsonl", said | {"name": HOSTILE, "text": HOSTILE})
        run.append("events.jsonl", {"event": "node_lost", "at": said["at"], "node": 0, "cause": HOSTILE})
        page.look()
        _, found = messages(page, cursor)
        sent = json.dumps(found)
        assert "alert(1)" in sent
        assert not re.search(r"<(script|img)", sent)
        assert b"\n" not in page.updates.since(cursor)[0][1]  # type: ignore[index]


def test_a_run_whose_owner_dies_ends_on_its_page(whole: Run, unhurried: None, tmp_path: Path) -> None:
    made = Living(whole, tmp_path)
    made.grow(0.5)
    page = RunPage(made.run, "a")
    cursor = page.updates.newest
    made.close()
    assert page.look()
    assert page.over
    _, found = messages(page, cursor)
    assert found[-1]["end"]
    assert found[-1]["state"] == "killed"
    assert "its program was killed" in found[-1]["sections"]["overview"]
    assert 'data-live="' not in page.html()


def test_a_record_that_is_removed_ends_its_page_and_nothing_else(whole: Run, unhurried: None, tmp_path: Path) -> None:
    import shutil

    with living(whole, tmp_path) as run:
        run.grow(0.5)
        page = RunPage(run.run, "a")
        shutil.rmtree(run.directory)
        page.look()
        page.parts()
