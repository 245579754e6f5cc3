"""The whole report: from a record to a file that no text in the record can change."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from outrider.actors import events as ev
from outrider.engine.record.report.contents import read_contents
from outrider.engine.record.report.overview import failure_of, shown_command, state_of
from outrider.engine.record.report.page import page, write_report
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.reader import Run, runs_in
from outrider.engine.record.runs.status import RunStatus

sys.path.insert(0, str(Path(__file__).parent))
from records import BEGAN, Record, training

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\x00\u202e\"'`<!--"
ALLOWED = {"script": 2, "style": 1, "link": 1, "meta": 5, "img": 0, "iframe": 0, "object": 0, "form": 0, "base": 0}


class Tags(HTMLParser):
    """The elements of a page, and everything in them that could ask for something or run."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.sources: list[str] = []
        self.bad: list[str] = []
        self.texts: dict[str, str] = {}
        self._inside = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self._inside = tag
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.bad.append(f"{tag} {name}")
            if name in ("src", "href") and value is not None:
                self.sources.append(value)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.texts[f"{self._inside}{self.count[self._inside]}"] = data


@pytest.fixture
def four(tmp_path: Path) -> Run:
    return training(tmp_path, steps=60)


def made(run: Run) -> str:
    return page(read_contents(run))


def test_the_policy_allows_this_script_and_style_and_nothing_else(four: Run) -> None:
    content = made(four)
    found = Tags(content)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', content)
    assert policy is not None
    for kind, text in (("script", found.texts["script2"]), ("style", found.texts["style1"])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]


def test_nothing_is_asked_for_and_nothing_is_inline(four: Run) -> None:
    found = Tags(made(four))
    assert found.bad == []
    assert {tag: found.count.get(tag, 0) for tag in ALLOWED} == ALLOWED
    assert not [each for each in found.sources if re.match(r"(?!data:|#)\w+:|//", each)]


def hostile(tmp_path: Path) -> Run:
    record = Record(tmp_path)
    record.events = [
        ev.PoolStarting(HOSTILE, HOSTILE, 1, 1, at=BEGAN),
        ev.NodeReady(0, 0, 1, 1, HOSTILE, HOSTILE, HOSTILE, at=BEGAN + 1),
        ev.BroadcastSubmitted(1, HOSTILE, at=BEGAN + 1),
        ev.GenerationStarted(1, 1, (0,), (0, 1), at=BEGAN + 1),
        ev.TaskOutput(1, 0, 0, "stdout", f"{HOSTILE}\nafter\n", HOSTILE, 0, 2, at=BEGAN + 2),
        ev.JobFailed(1, HOSTILE, HOSTILE, 0, (0,), at=BEGAN + 3),
        ev.NodeLost(0, HOSTILE, at=BEGAN + 3),
    ]
    record.metrics(2.0, {HOSTILE: 1.0, "nan": "nan"}, step=1, function=HOSTILE)
    origin = {"at": BEGAN + 2, "function": HOSTILE, "job": 1, "rank": 0, "node": 0, "generation": 1, "step": None}
    record.lines["texts.jsonl"] = [{**origin, "name": HOSTILE, "text": HOSTILE}]
    record.lines["artifacts.jsonl"] = [
        {**origin, "name": HOSTILE, "path": path, "size_bytes": 1, "sha256": HOSTILE}
        for path in (HOSTILE, "../../etc/passwd", "/etc/passwd", "javascript:alert(1)", "artifacts/a b?.txt")
    ]
    error = {"type": HOSTILE, "message": HOSTILE, "traceback": HOSTILE}
    run = record.write(exit_code=1, error=error | {"first": {"rank": 0, "node": 0, **error}})
    (run.directory / "params.json").write_text(json.dumps({HOSTILE: HOSTILE, "deep": {"a": [HOSTILE]}}))
    (run.directory / "stacks").mkdir()
    (run.directory / "stacks" / "now-rank-000.txt").write_bytes(HOSTILE.encode() + b"\xff\xfe")
    with (run.directory / "logs" / "rank-000.log").open("ab") as log:
        log.write(b"2026-11-25T08:00:00.000Z stdout \xff\xfe\x00</pre><script>\n")
    (run.directory / "artifacts").mkdir()
    (run.directory / "artifacts" / "a b?.txt").write_text("")
    return run


def test_no_text_of_the_record_becomes_markup(tmp_path: Path) -> None:
    run = hostile(tmp_path)
    content = write_report(run).read_text()
    found = Tags(content)
    assert found.bad == []
    assert {tag: found.count.get(tag, 0) for tag in ALLOWED} == ALLOWED
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", content)
    assert content.count("alert(1)") > 10, "it is shown, as the text that it is"
    json.loads(found.texts["script1"])


def test_links_lead_into_the_record_alone(tmp_path: Path) -> None:
    run = hostile(tmp_path)
    found = Tags(write_report(run).read_text())
    links = [each for each in found.sources if not each.startswith(("#", "data:"))]
    assert "artifacts/a%20b%3F.txt" in links
    assert not [each for each in links if "passwd" in each or "javascript" in each or each.startswith("/")]
    elsewhere = Tags(write_report(run, tmp_path / "report.html").read_text())
    assert f"{run.id}/artifacts/a%20b%3F.txt" in elsewhere.sources


def test_the_curves_have_each_step_once_and_every_rank(four: Run) -> None:
    said = json.loads(Tags(made(four)).texts["script1"])
    loss = said["charts"]["m0"]
    assert [curve["label"] for curve in loss["curves"] if "faint" not in curve] == [f"rank {rank}" for rank in range(4)]
    steps = [said["arrays"][curve["x"]] for curve in loss["curves"] if "faint" not in curve]
    assert steps == [{"r": [0, 1, 60]}] * 4
    assert any("faint" in curve for curve in loss["curves"])


def test_a_record_of_an_example_is_a_small_file(tmp_path: Path) -> None:
    run = training(tmp_path, steps=440)
    assert write_report(run).stat().st_size <= 300_000


def test_the_file_is_the_users_alone_and_replaces_the_one_before(four: Run) -> None:
    path = write_report(four)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("old")
    assert write_report(four) == path
    assert path.read_text().startswith("<!doctype html>")
    assert [each.name for each in four.directory.glob("report*")] == ["report.html"]


def test_a_folder_that_cannot_be_written_leaves_nothing(four: Run, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_report(four, tmp_path / "nowhere" / "report.html")


def test_a_record_with_nothing_in_it_has_a_report(tmp_path: Path) -> None:
    directory = tmp_path / "20261125-083320-empty-4f8a"
    directory.mkdir()
    content = made(Run(directory.name, "empty", directory, {}))
    assert "No node was asked for" in content
    assert "Nothing was printed" in content


def test_damaged_files_are_left_out(four: Run) -> None:
    for name in ("run.json", "result.json", "params.json"):
        (four.directory / name).write_bytes(b'{"half')
    for name in ("metrics.jsonl", "system.jsonl", "events.jsonl", "texts.jsonl"):
        with (four.directory / name).open("ab") as file:
            file.write(b'[1, 2]\n{"at": "x"}\n\xff\xfe\n{"half')
    assert "rank 3" in made(four)


def test_of_many_metrics_those_without_a_figure_are_named(tmp_path: Path) -> None:
    record = Record(tmp_path, events=[ev.NodeReady(0, 0, 1, 1, at=BEGAN)])
    for step in range(2):
        record.metrics(step, {f"metric {number}": 1.0 for number in range(100)}, step=step)
    content = made(record.write())
    assert content.count("<figure") == 60
    assert "40 more are in metrics.jsonl" in content
    assert len(json.loads(Tags(content).texts["script1"])["charts"]) == 60


# --- what is said of the run ------------------------------------------------------------------------------------------


def record_of(folder: Path, **facts: Any) -> tuple[RecordFiles, Run]:
    files = RecordFiles.make(folder, "run", BEGAN)
    files.replace("status.json", RunStatus(files.directory.name, "run", BEGAN).facts(BEGAN + 10.0, 0.0, 0.0) | facts)
    return files, runs_in(folder)[-1]


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, "ended"), (1, "failed"), (3, "failed"), (129, "stopped"), (130, "stopped"), (143, "stopped")],
)
def test_a_run_that_ended_says_how(tmp_path: Path, code: int, state: str) -> None:
    files, run = record_of(tmp_path, state="ended", ended=BEGAN + 5.0, exit=code)
    files.close()
    assert state_of(read_contents(run)) == state


def test_a_run_that_lives_says_so_and_one_whose_program_died_too(tmp_path: Path) -> None:
    files, run = record_of(tmp_path, state="running", written=BEGAN + 10.0)
    contents = read_contents(run)
    assert state_of(contents) == "running"
    assert contents.ended == contents.now
    assert "The run goes on" in page(contents)
    files.close()
    contents = read_contents(run)
    assert state_of(contents) == "killed"
    assert contents.ended == BEGAN + 10.0
    assert "was killed before it could end the run" in page(contents)


def test_the_failure_that_came_first_leads_and_the_others_are_folded(tmp_path: Path) -> None:
    first = {"rank": 1, "node": 1, "type": "ValueError", "message": "bad luck", "traceback": "Traceback there"}
    error = {"type": "BroadcastFailed", "message": "train failed", "traceback": "of the program", "first": first}
    record = Record(tmp_path)
    record.events = [
        ev.JobFailed(1, "train", "ConnectionError: closed by peer", 0, (0, 2, 3), at=BEGAN + 3),
        ev.JobFailed(1, "train", "ValueError: bad luck", 1, (1,), at=BEGAN + 3),
    ]
    contents = read_contents(record.write(exit_code=1, error=error))
    failure = failure_of(contents)
    assert failure is not None
    assert failure.first is not None
    assert failure.first == ("train on rank 1, node 1", "ValueError: bad luck", 1)
    assert failure.traceback == "Traceback there"
    assert [each.where for each in failure.others] == ["train on ranks 0, 2-3"]
    assert "3 other failures followed" in page(contents)


def test_a_program_that_failed_by_itself_shows_its_traceback(tmp_path: Path) -> None:
    error = {"type": "KeyError", "message": "'x'", "traceback": "Traceback here"}
    content = made(Record(tmp_path).write(exit_code=1, error=error))
    assert "KeyError: &#x27;x&#x27;" in content
    assert "Traceback here" in content


def test_the_log_of_the_rank_that_failed_first_comes_first_and_is_open(tmp_path: Path) -> None:
    error = {"type": "E", "message": "", "traceback": "", "first": {"rank": 2, "node": 2, "type": "E", "message": ""}}
    content = made(training(tmp_path, steps=10, losses=0, exit_code=1, error=error))
    logs = re.findall(r'<details class="log-fold"( open)?><summary>(rank \d)', content)
    assert logs == [(" open", "rank 2"), ("", "rank 0"), ("", "rank 1"), ("", "rank 3")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/home/ada/.venv/bin/python", "train.py", "--lr", "1e-3"], "python train.py --lr 1e-3"),
        ([], ""),
        (None, ""),
        (3, ""),
    ],
)
def test_the_command_is_told_without_the_interpreters_path(words: object, said: str) -> None:
    assert shown_command(words) == said
