"""`outrider stacks` shows what the tasks of a living run are at."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, compute
from outrider.engine.cli.control import stacks


@compute
def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.005)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    end = tmp_path / "end"
    with Pool(provider=Local(), nodes=2, console="silent", run="hung") as pool, ThreadPoolExecutor() as threads:
        results: Future[Any] = threads.submit(lambda: wait_for(str(end)) @ pool)
        while sum("in wait_for" in each.text for each in pool.stacks()) < 2:
            time.sleep(0.005)
        yield pool
        end.touch()
        assert results.result() == [None, None]


def shown(capsys: pytest.CaptureFixture[str], count: int, **options: Any) -> str:
    """What it shows, as soon as so many tasks are in it: on a busy computer one may not answer in time."""
    while True:
        assert stacks("hung", **options) == 0
        said = capsys.readouterr().out
        assert said.count("in wait_for") <= count
        if said.count("in wait_for") == count:
            return said


def test_it_shows_all_ranks_or_some(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, 2)
    assert "rank 0 of 2 of wait_for on node" in said
    assert shown(capsys, 1, rank=[1]).startswith("rank 1 of 2 of wait_for on node")
    assert stacks("hung", rank=[7]) == 0
    assert capsys.readouterr().out == "Nothing runs.\n"
    assert stacks("hung", as_json=True) == 0
    assert [each["rank"] for each in json.loads(capsys.readouterr().out)] == [0, 1]


def test_a_run_that_has_ended_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    with Pool(provider=Local(), console="silent", run="over"):
        pass
    assert stacks("over") == 2
    assert "has ended" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        stacks("nothing")
    assert left.value.code == 2
