"""`outrider ps` from the outside: which pools it shows, and what it says of each."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.engine.cli.pool_search import FoundPool
from outrider.engine.cli.pool_table import age, machines, place, price
from outrider.providers.shared.journal import Journal
from outrider.providers.survey import FoundMachine

if TYPE_CHECKING:
    from .conftest import Outrider, Sky

EAST = {"region": "us-east-1", "profile": "work"}
SPOT = FoundMachine("i-1", "g5.xlarge", "spot", "us-east-1a", "running", 0.0, hourly_usd=0.5)
POOL = FoundPool("p", "aws", EAST, "me@here", "alive")


def test_the_pools_of_the_journal_are_shown_with_their_machines(book: Journal, sky: Sky, outrider: Outrider) -> None:
    with book.own("train", "aws", EAST):
        (record,) = book.records()
        assert record.owner is not None
        since = time.time() - 3661
        owner = f"{record.owner.user}@{record.owner.host}"
        sky.regions["us-east-1"] = [replace(SPOT, launched_at=since, pool="train", owner=owner)] * 2
        assert outrider("ps") == 0
        said = outrider.said()
    for word in ("train", "us-east-1 work", "2 g5.xlarge spot", "1 h 1 min", "1.00", f"owned by {record.owner}"):
        assert word in said


def test_more_places_are_asked_for_by_tag(book: Journal, sky: Sky, outrider: Outrider) -> None:
    sky.regions = {"us-west-2": [replace(SPOT, pool="theirs", owner="you@there")], "eu-west-1": []}
    assert outrider("ps") == 0
    assert "No pools." in outrider.said()
    assert outrider("ps", "--region", "us-west-2", "--region", "eu-west-1") == 0
    assert "of you@there, not in the journal here" in outrider.said()
    (told,) = outrider.json("ps", "--all-regions", "--profile", "work")
    assert told["place"] == {"profile": "work", "region": "us-west-2"}


def test_environment_says_how_to_get_in_unless_an_option_does(
    book: Journal, sky: Sky, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sky.regions = {"us-west-2": [replace(SPOT, pool="theirs", owner="you@there")]}
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    (told,) = outrider.json("ps", "--region", "us-west-2")
    assert told["place"] == {"profile": "work", "region": "us-west-2"}
    (told,) = outrider.json("ps", "--region", "us-west-2", "--profile", "other")
    assert told["place"] == {"profile": "other", "region": "us-west-2"}


def test_unanswered_place_is_shown(book: Journal, sky: Sky, outrider: Outrider) -> None:
    book.own("lost", "aws", EAST).close()
    sky.refuses.add("us-east-1")
    assert outrider("ps") == 2
    said = outrider.said()
    assert "owner is dead" in said
    assert "us-east-1 work could not be asked: no credentials" in outrider.errors
    assert outrider.json("ps")
    assert "us-east-1 work could not be asked: no credentials" in outrider.errors


@pytest.mark.parametrize(("since", "said"), [(30, "0 min"), (3700, "1 h 1 min"), (90_000, "1 d 1 h"), (-5, "0 min")])
def test_ages_in_words(since: float, said: str) -> None:
    assert age(replace(POOL, machines=(replace(SPOT, launched_at=1e6 - since),)), 1e6) == said


def test_unknown_facts_are_shown_as_unknown() -> None:
    assert (machines(POOL), price(POOL), age(POOL, 0.0)) == ("none", "", "")
    assert machines(replace(POOL, error="no")) == "?"
    assert price(replace(POOL, machines=(SPOT, replace(SPOT, hourly_usd=None)))) == "?"
    assert (place(EAST), place({})) == ("us-east-1 work", "nowhere")


def test_unusable_state_directory_is_an_error_with_a_next_step(
    sky: Sky, outrider: Outrider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", "/dev/null/state")
    for command in ("ps", "gc"):
        assert outrider(command) == 2
        assert "$OUTRIDER_STATE" in capsys.readouterr().err
