"""`outrider ps` and `outrider gc` with a second provider: each is asked for its own places, and its own are ended."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from outrider.engine.cli import pool_search
from outrider.providers.errors import ProviderError
from outrider.providers.shared.journal import Intent, Journal
from outrider.providers.shared.pool_lock import Place
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
    before: Callable[[], Awaitable[None]] = checkpoint  # each answer

    def has(self, place: Place) -> bool:
        return "host" in place

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        await self.before()
        if place["host"] not in self.jobs:
            raise ProviderError(f"{place['host']} does not answer", retry_after_s=1.0)
        return PlaceAnswer("cluster", place, tuple(self.jobs[place["host"]]))

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        await self.before()
        self.ended.append((place["host"], pool))
        self.jobs[place["host"]] = [each for each in self.jobs[place["host"]] if each.pool != pool]
        journal.settled(pool, place)

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        self.ended.append((place["host"], f"copies of {pool}"))

    async def everywhere(self, place: Place) -> Sequence[Place]:
        await self.before()
        return [{"host": host} for host in self.jobs]


@pytest.fixture
def cluster(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster({"login": []})
    monkeypatch.setattr(pool_search, "SURVEYORS", {"aws": sky, "cluster": cluster})
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


# --- one that hangs, or fails -----------------------------------------------------------------------------------------


async def forever() -> None:
    await anyio.sleep_forever()


async def unheard_of() -> None:
    await checkpoint()
    raise KeyError("jobs")


def waits_for(sky: Sky, done: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """A wait for the end of that call of the sky's."""
    event, call = anyio.Event(), getattr(sky, done)

    async def calls(*arguments: Any, **options: Any) -> Any:
        answer = await call(*arguments, **options)
        event.set()
        return answer

    monkeypatch.setattr(sky, done, calls)
    return event.wait


def test_a_provider_that_hangs_is_named_and_the_others_answer(
    dead: str, sky: Sky, cluster: Cluster, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sky.regions["us-east-1"] = [replace(JOB, id="i-1", pool="seen")]
    monkeypatch.setattr(pool_search, "ANSWER_S", 0.05)
    cluster.before = forever
    assert outrider("ps", "--region", "us-east-1") == 2
    assert "seen" in outrider.said()
    assert "cluster login could not be asked: it has not answered within 0.05 s" in outrider.errors


def test_a_defect_in_one_provider_hides_none_of_the_others(
    dead: str, book: Journal, sky: Sky, cluster: Cluster, outrider: Outrider
) -> None:
    sky.regions["us-east-1"] = [replace(JOB, id="i-1", pool="seen")]
    cluster.before = unheard_of
    assert outrider("ps", "--region", "us-east-1") == 2
    assert "seen" in outrider.said()
    assert "this is a defect of Outrider: report it (KeyError: 'jobs')" in outrider.errors


def test_places_of_one_provider_that_wait_hold_up_no_other_provider(
    book: Journal, sky: Sky, cluster: Cluster, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [f"login{number}" for number in range(2 * pool_search.AT_A_TIME)]
    cluster.jobs = {host: [] for host in hosts}
    cluster.before = waits_for(sky, "survey", monkeypatch)
    monkeypatch.setattr(pool_search, "ANSWER_S", 5.0)
    places = [word for host in hosts for word in ("--place", f"cluster:host={host}")]
    assert outrider("ps", *places, "--place", "aws:region=us-east-1") == 0


@pytest.mark.parametrize("fails", [False, True])
def test_pools_of_several_providers_are_ended_at_once(
    fails: bool, dead: str, sky: Sky, cluster: Cluster, outrider: Outrider
) -> None:
    east, book = {"region": "us-east-1"}, Journal.open()
    with book.own("other", "aws", east):
        book.intend("other", "fleet", "t", east)
    sky.regions["us-east-1"] = [replace(JOB, id="i-1", pool="other")]
    calls: list[str] = []

    async def after_the_sky() -> None:
        calls.append("survey" if not calls else "sweep")
        if calls[-1] == "sweep":
            await unheard_of() if fails else await wait()

    cluster.before = after_the_sky
    with pytest.MonkeyPatch.context() as monkeypatch:
        wait = waits_for(sky, "sweep", monkeypatch)
        assert outrider("gc", "--apply") == (1 if fails else 0)
    assert sky.swept == [("us-east-1", "other")]
    assert cluster.ended == ([] if fails else [("login", "lost")])
    assert ("this is a defect of Outrider" in outrider.said()) == fails
