"""Compute Engine's metadata server as a source: it answers when a value changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outrider.engine.node.notices import clouds

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]

PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"


class Metadata:
    """Answers at once to who knows an old version or none, and to others when the value changes."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.values = {PREEMPTED: "FALSE", MAINTENANCE: "NONE"}
        self.version = 1
        self.status = 200
        self.flavor = {"Metadata-Flavor": "Google"}
        self.waiting = 0
        self.changed = asyncio.Event()
        service.answer = self.answer

    async def answer(self, request: Any) -> Any:
        if request.headers.get("metadata-flavor") != "Google":
            return 403, ""
        if self.status == 200 and request.query.get("wait_for_change") == "true":
            self.waiting += 1
            waits_s = float(request.query["timeout_sec"])
            if request.query["last_etag"] == str(self.version):
                try:
                    await asyncio.wait_for(self.changed.wait(), waits_s)
                except TimeoutError:
                    pass
        return self.status, self.values[request.path], {**self.flavor, "ETag": str(self.version)}

    def change(self, path: str, value: str) -> None:
        self.values[path] = value
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()


@pytest.fixture
def metadata(service: Any) -> Metadata:
    return Metadata(service)


async def test_a_preemption_is_known_as_soon_as_it_is_there(service: Any, metadata: Metadata) -> None:
    service.watch(clouds.Preempted(service.url))
    await service.until(lambda: metadata.waiting == 1)
    assert service.notices == [None]
    metadata.change(PREEMPTED, "TRUE")
    await service.until(lambda: metadata.waiting == 2)
    assert service.notices[1:] == [pytest.approx(30, abs=1)]
    assert len(service.asked) == 3  # no more than were needed
    metadata.change(PREEMPTED, "FALSE")
    await service.until(lambda: service.notices[2:] == [None])


async def test_the_seconds_count_from_when_it_was_first_seen(
    service: Any, metadata: Metadata, monkeypatch: Any
) -> None:
    monkeypatch.setattr(clouds, "GCP_HOST_S", 0.05)
    metadata.values[PREEMPTED] = "TRUE"
    told: list[float] = []
    service.tell = told.append
    service.watch(clouds.Preempted(service.url))
    await service.until(lambda: len(told) == 4)
    assert told == sorted(told, reverse=True)
    assert told[-1] < 30 - 3 * 0.05


@pytest.mark.parametrize(("seconds", "told"), [(None, 60.0), (3600.0, 3600.0)])
async def test_maintenance_that_ends_the_machine_is_a_notice(
    service: Any, metadata: Metadata, seconds: float | None, told: float
) -> None:
    service.watch(
        clouds.Maintenance(service.url) if seconds is None else clouds.Maintenance(service.url, seconds=seconds)
    )
    await service.until(lambda: metadata.waiting == 1)
    metadata.change(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    await service.until(lambda: metadata.waiting == 2)
    assert service.notices == [None]
    metadata.change(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    await service.until(lambda: service.notices[1:] == [pytest.approx(told, abs=1)])
    metadata.change(MAINTENANCE, "NONE")
    await service.until(lambda: service.notices[2:] == [None])


@pytest.mark.parametrize("broken", [{"status": 503}, {"flavor": {}}], ids=str)
async def test_a_busy_server_or_another_one_is_not_believed(service: Any, metadata: Metadata, broken: Any) -> None:
    service.watch(clouds.Preempted(service.url))
    await service.until(lambda: metadata.waiting == 1)
    before = {name: getattr(metadata, name) for name in broken}
    vars(metadata).update(broken)
    metadata.change(PREEMPTED, "TRUE")
    asked = len(service.asked)
    await service.until(lambda: len(service.asked) > asked + 3)
    assert service.notices == [None]
    vars(metadata).update(before)
    await service.until(lambda: service.notices[1:] == [pytest.approx(30, abs=1)])


async def test_a_question_that_is_left_hanging_is_asked_again(
    service: Any, metadata: Metadata, monkeypatch: Any
) -> None:
    """The server was replaced under it, as on a live migration: nothing ever comes."""
    monkeypatch.setattr(clouds, "GCP_HOST_S", 0.05)
    monkeypatch.setattr(clouds, "GCP_WITHIN_S", 0.05)
    service.watch(clouds.Preempted(service.url))
    await service.until(lambda: metadata.waiting == 1)
    answers, service.answer = service.answer, lambda request: asyncio.Event().wait()
    asked = len(service.asked)
    await service.until(lambda: len(service.asked) > asked + 1)
    metadata.values[PREEMPTED] = "TRUE"
    service.answer = answers
    await service.until(lambda: len(service.notices) == 2)


async def test_a_server_that_does_not_wait_is_not_asked_without_pause(service: Any, metadata: Metadata) -> None:
    async def answer(request: Any) -> Any:
        assert "wait_for_change" not in request.query
        return 200, metadata.values[request.path], metadata.flavor

    service.answer = answer
    service.watch(clouds.Preempted(service.url))
    await service.until(lambda: len(service.asked) > 3)
    metadata.values[PREEMPTED] = "TRUE"
    await service.until(lambda: len(service.notices) == 2)
