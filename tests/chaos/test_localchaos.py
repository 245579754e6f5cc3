"""The campaign can fail: its referee objects to each thing that it is there for, and its lives are drawn from seeds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # as `make chaos` does

from localchaos.plan import FAULTS, FINISH, Life, Strike, draw
from localchaos.referee import Found, judge

CALM = replace(draw(1, FINISH), limit=0, threads=False, as_remote=False)
RIGHT = [
    {"at": 1.0, "what": "ready"},
    {"at": 2.0, "what": "call", "number": 7, "kind": "plain"},
    {"at": 3.0, "what": "right", "number": 7, "kind": "plain"},
    {"at": 4.0, "what": "closing"},
    {"at": 5.0, "what": "closed", "tasks": []},
    {"at": 5.0, "what": "left", "threads": [], "descriptors": [], "children": []},
]
ENDED = Found(exit=0, struck=frozenset())


def error(*kinds: str, **facts: Any) -> dict[str, Any]:
    return {"at": 3.0, "what": "error", "number": 7, "kind": "plain", "kinds": kinds, "text": "no", **facts}


def judged(entry: dict[str, Any], *struck: str, life: Life = CALM) -> list[str]:
    journal = [entry if each["what"] == "right" else each for each in RIGHT]
    return judge(life, journal, replace(ENDED, struck=frozenset(struck)))


def test_a_life_in_which_all_went_well_is_right() -> None:
    assert judge(CALM, RIGHT, ENDED) == []


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (replace(ENDED, exit=None), "the client did not end"),
        (replace(ENDED, exit=1), "the client ended with 1"),
        (replace(ENDED, marks={"once-7": 2}), "began 2 times"),
        (replace(ENDED, processes=["17 worker"]), "left a process"),
        (replace(ENDED, files=["state/local/x"]), "left a file"),
        (replace(ENDED, stderr="Traceback"), "the client wrote"),
    ],
)
def test_what_is_found_afterwards_counts(found: Found, wrong: str) -> None:
    (told,) = judge(CALM, RIGHT, found)
    assert wrong in told


def test_only_over_ssh_may_asyncio_log_that_a_connection_is_gone() -> None:
    found = replace(ENDED, stderr="socket.send() raised exception.\n" * 999)
    assert judge(replace(CALM, as_remote=True), RIGHT, found) == []
    assert judge(CALM, RIGHT, found) != []
    assert judge(replace(CALM, as_remote=True), RIGHT, replace(ENDED, stderr=found.stderr + "Traceback")) != []


@pytest.mark.parametrize("what", ["threads", "descriptors", "children"])
def test_what_is_left_in_the_client_counts(what: str) -> None:
    journal = [{**each, what: ["x"]} if each["what"] == "left" else each for each in RIGHT]
    assert judge(CALM, journal, ENDED) == [f"left in the client: {what} ['x']"]


def test_a_call_settles_once() -> None:
    assert any("never settled" in told for told in judge(CALM, [*RIGHT[:2], *RIGHT[3:]], ENDED))
    assert any("settled twice" in told for told in judge(CALM, [*RIGHT[:3], *RIGHT[2:]], ENDED))


def test_a_wrong_value_and_a_call_that_hangs_count() -> None:
    wrong = {"at": 3.0, "what": "wrong", "number": 7, "kind": "plain", "text": "5 instead of 4"}
    assert judged(wrong) == ["call 7 (plain) gave 5 instead of 4"]
    assert judged({**wrong, "what": "hang"}) == ["call 7 (plain) did not settle"]
    assert judged({**wrong, "what": "cancelled"}) == ["call 7 (plain) was cancelled by nobody"]


def test_an_error_counts_unless_a_fault_of_this_life_accounts_for_it() -> None:
    lost = error("NodeLost", "TaskError", "OutriderError")
    assert judged(lost) != []
    assert judged(lost, "kill-machine") == []
    assert judged(lost, "full-work", "kill-worker") != []
    assert judged(error("OSError", errno="ENOSPC"), "full-work") == []
    assert judged(error("OSError", errno="ENOENT"), "full-work") != []
    assert judged(error("SerializationError", "OutriderError"), "limit-server") != []


def test_what_follows_from_a_ranks_end_counts_without_that_end() -> None:
    killed, gone = {"kinds": ["TaskKilled"], "text": ""}, {"kinds": ["PeerGone"], "text": ""}
    assert judged(error("BroadcastFailed", leaves=[killed, gone]), "kill-worker") == []
    assert judged(error("BroadcastFailed", leaves=[gone]), "kill-worker") != []


def test_a_pool_that_works_no_more_when_all_is_as_it_was_counts() -> None:
    (told,) = judged({**error("NodeLost"), "kind": "probe_run"}, "kill-machine")
    assert "works no more" in told


def test_a_life_is_a_function_of_its_seed() -> None:
    lives = [draw(seed) for seed in range(300)]
    assert lives == [draw(seed) for seed in range(300)]
    assert {strike.fault for life in lives for strike in life.strikes} == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_only_one_fault_is_drawn_when_no_other_is_wanted(fault: str) -> None:
    for seed in range(20):
        life = draw(seed, fault)
        assert life.limit == 0
        assert {strike.fault for strike in life.strikes} == {fault}
        assert all(isinstance(strike, Strike) and 0 <= strike.at_s < life.seconds for strike in life.strikes)
