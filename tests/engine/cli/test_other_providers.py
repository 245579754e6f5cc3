"""`outrider ps` and `outrider gc` with a second provider: each is asked for its own places, and its own are ended."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from outrider.engine.cli import surveys
from outrider.providers.errors import ProviderError
from outrider.providers.journal import Intent, Journal
from outrider.providers.pool_lock import Place
from outrider.providers.survey import FoundMachine, PlaceAnswer

if TYPE_CHECKING:
    from .conftest import Outrider, Sky

LOGIN = {"host": "login"}
ME = f"me@{socket.gethostname()}"
JOB = FoundMachine("4711", "gpu:4", "", "", "pending: Priority, expected 14:20", 0.0, pool="lost", owner=ME)


@dataclass
class Cluster:
    """Jobs by login host. Implements `survey.Surveyor`."""

    jobs: dict[str, list[FoundMachine]] = field(default_factory=dict)
    ended: list[tuple[str, str]] = field(default_factory=list)

    def has(self, place: Place) -> bool:
        return "host" in place

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        if place["host"] not in self.jobs:
            raise ProviderError(f"{place['host']} does not answer", retry_after_s=1.0)
        return PlaceAnswer("cluster", place, tuple(self.jobs[place["host"]]))

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        self.ended.append((place["host"], pool))
        self.jobs[place["host"]] = [each for each in self.jobs[place["host"]] if each.pool != pool]
        journal.settled(pool, place)

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        self.ended.append((place["host"], f"copies of {pool}"))

    async def everywhere(self, place: Place) -> Sequence[Place]:
        return [{"host": host} for host in self.jobs]


@pytest.fixture
def cluster(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster({"login": []})
    monkeypatch.setattr(surveys, "SURVEYORS", {"aws": sky, "cluster": cluster})
    return cluster


@pytest.fixture
def dead(book: Journal, cluster: Cluster) -> str:
    """A pool with a job in the queue, whose client died."""
    with book.own("lost", "cluster", LOGIN):
        book.intend("lost", "job", "t", LOGIN)
    cluster.jobs["login"] = [JOB, replace(JOB, id="4712", state="running")]
    return "lost"


def test_ps_shows_jobs_that_wait_and_those_that_run(dead: str, outrider: Outrider) -> None:
    (pool,) = outrider.json("ps")
    assert outrider.status == 0
    assert (pool["pool"], pool["provider"], pool["place"]) == ("lost", "cluster", LOGIN)
    states = [machine["state"] for machine in pool["machines"]]
    assert states == ["pending: Priority, expected 14:20", "running"]


def test_gc_ends_them_at_their_own_provider(dead: str, sky: Sky, cluster: Cluster, outrider: Outrider) -> None:
    assert outrider("gc") == 1
    assert cluster.ended == []
    assert outrider("gc", "--apply") == 0
    assert cluster.ended == [("login", "lost")]
    assert sky.swept == []
    assert outrider("gc") == 0


def test_pools_of_both_are_found_at_once(dead: str, book: Journal, sky: Sky, outrider: Outrider) -> None:
    east = {"region": "us-east-1"}
    sky.regions["us-east-1"] = [replace(JOB, id="i-1", kind="g5.xlarge", pool="seen")]
    pools = outrider.json("ps", "--region", "us-east-1")
    assert [(pool["pool"], pool["provider"], pool["place"]) for pool in pools] == [
        ("lost", "cluster", LOGIN),
        ("seen", "aws", east),
    ]


def test_a_place_of_any_provider_may_be_named(book: Journal, cluster: Cluster, outrider: Outrider) -> None:
    cluster.jobs["other"] = [replace(JOB, pool="seen")]
    (pool,) = outrider.json("ps", "--place", "cluster:host=other")
    assert (pool["pool"], pool["standing"], pool["place"]) == ("seen", "unknown", {"host": "other"})


def test_a_place_that_does_not_answer_is_told(dead: str, cluster: Cluster, outrider: Outrider) -> None:
    cluster.jobs.clear()
    assert outrider("ps") == 2
    outrider.said()
    assert "login does not answer; that may pass by itself: try again" in outrider.errors


@pytest.mark.parametrize("place", ["cluster", "cluster:", "cluster:host", "cluster:=a", "nobody:host=a", "host=a"])
def test_a_place_that_is_none_is_refused(place: str, book: Journal, cluster: Cluster, outrider: Outrider) -> None:
    assert outrider("ps", "--place", place) == 2
    outrider.said()
    assert "--place takes a provider and where" in outrider.errors
    assert "providers: aws, cluster" in outrider.errors
