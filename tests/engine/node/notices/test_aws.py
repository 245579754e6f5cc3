"""EC2's instance metadata as a source: tokens, the two notices, and a service that is slow, absent or wrong."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from outrider.engine.node.notices import clouds

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Imds:
    """IMDSv2: nothing without a token of its own."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.tokens = 0
        self.items: dict[str, str] = {}
        self.status = 200
        service.answer = self.answer

    async def answer(self, request: Any) -> Any:
        if self.status != 200:
            return self.status, ""
        if request.path == "/latest/api/token":
            assert request.method == "PUT"
            assert 1 <= int(request.headers["x-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
            self.tokens += 1
            return 200, f"token-{self.tokens}"
        if request.headers.get("x-aws-ec2-metadata-token") != f"token-{self.tokens}":
            return 401, ""
        return (200, self.items[request.path]) if request.path in self.items else (404, "")

    def interrupts(self, at: float, action: str = "terminate") -> None:
        time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.items[ACTION] = json.dumps({"action": action, "time": time})


@pytest.fixture
def imds(service: Any) -> Imds:
    return Imds(service)


@pytest.fixture
def source(service: Any) -> clouds.SpotAction:
    return clouds.SpotAction(service.url)


NOW = datetime.now(UTC).timestamp()


async def test_an_interruption_is_told_with_its_seconds_and_taken_back(service: Any, imds: Imds, source: Any) -> None:
    service.date = NOW
    service.watch(source)
    await service.until(lambda: service.notices == [None])
    imds.interrupts(NOW + 90)
    await service.until(lambda: len(service.notices) == 2)
    assert service.notices[1] == pytest.approx(90, abs=1.01)
    del imds.items[ACTION]
    await service.until(lambda: service.notices[2:] == [None])
    assert imds.tokens == 1
    assert {request.path for request in service.asked} == {"/latest/api/token", ACTION}


@pytest.mark.parametrize("skew_s", [-86400, -600, 600, 86400])
async def test_a_clock_that_is_wrong_on_either_side_does_no_harm(
    service: Any, imds: Imds, source: Any, skew_s: float
) -> None:
    """What counts is the distance of two times by the service's clock; ours is not asked."""
    service.date = NOW + skew_s
    imds.interrupts(NOW + skew_s + 60)
    service.watch(source)
    await service.until(lambda: service.notices)
    assert service.notices[0] == pytest.approx(60, abs=1.01)


@pytest.mark.parametrize(("time_s", "told"), [(60, 60), (-5000, 120), (5000, 120)])
async def test_without_the_services_clock_only_what_is_plausible_counts(
    service: Any, imds: Imds, source: Any, time_s: float, told: float
) -> None:
    service.dated = False
    imds.interrupts(datetime.now(UTC).timestamp() + time_s)
    service.watch(source)
    await service.until(lambda: service.notices)
    assert service.notices[0] == pytest.approx(told, abs=30)  # by our clock: a busy computer takes its time


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ('{"action": "hibernate", "time": "2017-09-18T08:22:00Z"}', 0),
        ('{"action": "stop", "time": "soon"}', 120),
        ('{"action": "stop", "time": 3}', 120),
        ('{"action": "stop", "time": "2017-09-18T08:22:00"}', 120),
        ("[]", 120),
        ("terminate", 120),
    ],
)
async def test_a_notice_that_cannot_be_read_is_one_all_the_same(
    service: Any, imds: Imds, source: Any, item: str, told: float
) -> None:
    imds.items[ACTION] = item
    service.watch(source)
    await service.until(lambda: service.notices)
    assert service.notices[0] == pytest.approx(told, abs=1)


async def test_a_token_that_has_run_out_is_replaced_at_once(service: Any, imds: Imds, source: Any) -> None:
    service.watch(source)
    await service.until(lambda: service.notices)
    imds.tokens += 10  # the service knows no older one
    imds.interrupts(datetime.now(UTC).timestamp() + 100)
    await service.until(lambda: len(service.notices) == 2)
    assert imds.tokens == 12


async def test_a_token_is_renewed_before_it_runs_out(service: Any, imds: Imds, source: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(clouds, "AWS_TOKEN_S", 0.02)
    imds_answer = service.answer

    async def lenient(request: Any) -> Any:
        if request.path == "/latest/api/token":
            request.headers["x-aws-ec2-metadata-token-ttl-seconds"] = "1"
        return await imds_answer(request)

    service.answer = lenient
    service.watch(source)
    await service.until(lambda: imds.tokens >= 3)


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_errors_say_nothing_about_the_machine(
    service: Any, imds: Imds, source: Any, status: int, capfd: Any
) -> None:
    imds.interrupts(NOW + 50)
    service.date = NOW
    service.watch(source)
    await service.until(lambda: service.notices)
    imds.status = status
    asked = len(service.asked)
    await service.until(lambda: len(service.asked) > asked + 4)
    imds.status = 200
    asked = len(service.asked)
    await service.until(lambda: len(service.asked) > asked + 2)
    assert len(service.notices) == 1
    log = capfd.readouterr().err
    assert log.count("is asked again") == 1
    assert log.count("answers again") == 1


async def test_a_service_that_does_not_answer_is_asked_less_often_and_then_believed(
    service: Any, imds: Imds, source: Any, monkeypatch: Any, capfd: Any
) -> None:
    """As from a container behind a bridge: the token's answer runs out of hops."""
    monkeypatch.setattr(clouds, "AWS_WITHIN_S", 0.02)
    answers, service.answer = service.answer, lambda request: asyncio.Event().wait()
    service.watch(source)
    await service.until(lambda: len(service.asked) >= 3)
    assert service.notices == []
    assert "hop limit must be 2" in capfd.readouterr().err
    service.answer = answers
    await service.until(lambda: service.notices == [None])


async def test_a_rebalance_recommendation_leaves_two_minutes_from_when_it_came(service: Any, imds: Imds) -> None:
    service.watch(clouds.Rebalance(service.url))
    await service.until(lambda: len(service.asked) > 3)
    imds.items[REBALANCE] = '{"noticeTime": "2020-10-27T08:22:00Z"}'
    await service.until(lambda: service.notices == [120.0])
    asked = len(service.asked)
    await service.until(lambda: len(service.asked) > asked + 5)
    assert service.notices == [120.0]
    imds.items.clear()
    await service.until(lambda: service.notices == [120.0, None])
