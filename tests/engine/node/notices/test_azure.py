"""Azure's scheduled events as a source: those that end this machine, and not another's."""

from __future__ import annotations

import asyncio
import json
from email.utils import formatdate
from typing import Any

import pytest

from outrider.engine.node.notices import clouds

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]

NOW = 1_700_000_000.0  # not ours
NAME, EVENTS = "/metadata/instance/compute/name", "/metadata/scheduledevents"


class Metadata:
    def __init__(self, service: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 200
        self.body: str | None = None
        service.answer, service.date = self.answer, NOW

    async def answer(self, request: Any) -> Any:
        if request.headers.get("metadata") != "true" or "api-version" not in request.query:
            return 400, ""
        if request.path == NAME:
            assert request.query["format"] == "text"
            return 200, "pool_3"
        assert request.path == EVENTS
        return self.status, self.body or json.dumps({"DocumentIncarnation": 1, "Events": self.events})

    def schedule(
        self, kind: str = "Preempt", *, on: str = "pool_3", in_s: float = 30, status: str = "Scheduled"
    ) -> None:
        self.events.append({
            "EventId": str(len(self.events)), "EventType": kind, "ResourceType": "VirtualMachine", "Resources": [on],
            "EventStatus": status, "NotBefore": formatdate(NOW + in_s, usegmt=True) if status == "Scheduled" else "",
        })  # fmt: skip


@pytest.fixture
def metadata(service: Any) -> Metadata:
    return Metadata(service)


@pytest.fixture
def watched(service: Any, metadata: Metadata) -> Any:
    service.watch(clouds.ScheduledEvents(service.url))
    return service


async def test_a_preemption_is_told_by_the_services_clock_and_taken_back(watched: Any, metadata: Metadata) -> None:
    await watched.until(lambda: watched.notices == [None])
    metadata.schedule(in_s=30)
    await watched.until(lambda: watched.notices[1:] == [pytest.approx(30, abs=1)])
    metadata.events.clear()
    await watched.until(lambda: watched.notices[2:] == [None])
    assert [request.path for request in watched.asked].count(NAME) == 1


async def test_the_soonest_of_several_ends_counts(watched: Any, metadata: Metadata) -> None:
    metadata.schedule("Terminate", in_s=300)
    metadata.schedule("Reboot", in_s=900)
    await watched.until(lambda: watched.notices and watched.notices[-1] == 300)
    metadata.schedule("Preempt", in_s=30)
    await watched.until(lambda: watched.notices[-1] == 30)
    metadata.schedule("Redeploy", status="Started")
    await watched.until(lambda: watched.notices[-1] == 0)


async def test_other_machines_events_and_pauses_do_not(watched: Any, metadata: Metadata) -> None:
    metadata.schedule("Preempt", on="pool_4")
    metadata.schedule("Freeze")
    asked = len(watched.asked)
    await watched.until(lambda: len(watched.asked) > asked + 5)
    assert watched.notices == [None]


@pytest.mark.parametrize(
    "trouble",
    [{"status": 500}, {"status": 429}, {"body": "no JSON"}, {"body": "[]"}, {"body": '{"Events": [{}]}'}],
    ids=str,
)
async def test_trouble_takes_nothing_back(watched: Any, metadata: Metadata, trouble: dict[str, Any]) -> None:
    metadata.schedule()
    await watched.until(lambda: watched.notices and watched.notices[-1] is not None)
    before = {name: getattr(metadata, name) for name in trouble}
    vars(metadata).update(trouble)
    asked = len(watched.asked)
    await watched.until(lambda: len(watched.asked) > asked + 3)
    assert watched.notices[-1] is not None
    vars(metadata).update(before)
    metadata.events.clear()
    await watched.until(lambda: watched.notices[-1] is None)


async def test_the_first_answer_may_take_long(
    service: Any, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It turns the service on. Longer than any later one may take."""
    monkeypatch.setattr(clouds, "AZURE_WITHIN_S", 0.25)
    answers = service.answer
    slow = asyncio.Event()

    async def first_slowly(request: Any) -> Any:
        if request.path == EVENTS:
            await slow.wait()
        return await answers(request)

    service.answer = first_slowly
    service.watch(clouds.ScheduledEvents(service.url))
    await service.until(lambda: len(service.asked) == 2)
    asyncio.get_running_loop().call_later(2 * clouds.AZURE_WITHIN_S, slow.set)
    await service.until(lambda: service.notices == [None])
    assert [request.path for request in service.asked][:2] == [NAME, EVENTS]
    assert [request.path for request in service.asked].count(NAME) == 1


@pytest.mark.parametrize(("kind", "least_s"), clouds.AZURE_LEAST_S.items())
async def test_without_the_services_clock_a_time_that_has_passed_is_not_believed(
    service: Any, metadata: Metadata, kind: str, least_s: float
) -> None:
    service.dated = False
    metadata.schedule(kind, in_s=5)
    service.watch(clouds.ScheduledEvents(service.url))
    await service.until(lambda: service.notices == [least_s])
