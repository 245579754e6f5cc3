"""Nothing is created that is not written down first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider.providers.aws import launcher
from outrider.providers.aws.api import Api
from outrider.providers.aws.cloud import place_of
from outrider.providers.aws.launcher import RecordedApi
from outrider.providers.cloud import recorder
from outrider.providers.cloud.calls import CallRefused
from outrider.providers.cloud.recorder import Recorder
from outrider.providers.errors import JournalError, NoCapacity, ProviderError
from outrider.providers.shared.journal import Intent, Journal
from outrider.providers.shared.resource_ownership import Thing

pytestmark = pytest.mark.anyio
FLEET = {"Instances": [{"InstanceIds": ["i-1", "i-2"]}, {"InstanceIds": ["i-3"]}]}
LOST = CallRefused("AWS did not answer", retry_after_s=2.0, code="TimedOut")


@pytest.fixture
def journal(journal_path: Path) -> Journal:
    return Journal.open(journal_path)


@pytest.fixture
async def api(journal: Journal, surroundings: None) -> AsyncIterator[RecordedApi]:
    async with RecordedApi.open(region="us-east-1", endpoint_url="http://127.0.0.1:1") as api:
        assert isinstance(api, RecordedApi)
        api.recorder = Recorder(journal, "p", place_of(api))
        yield api


def written(journal: Journal) -> list[Intent]:
    record = journal.record("p")
    return [] if record is None else list(record.intents)


def answering(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | ProviderError, meanwhile: Callable[[], object] = list
) -> list[str]:
    """What `Api.call` is asked from now on; ``meanwhile`` is called before it answers."""
    asked: list[str] = []

    async def call(api: Api, operation: str, /, **parameters: Any) -> dict[str, Any]:
        asked.append(operation)
        meanwhile()
        await anyio.sleep(0.01)
        if isinstance(answer, ProviderError):
            raise answer
        return answer

    monkeypatch.setattr(Api, "call", call)
    return asked


async def test_an_intent_is_on_the_disk_before_the_call_and_its_outcome_after_it(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Intent]] = []
    answering(monkeypatch, FLEET, lambda: seen.append(written(journal)))
    await api.call("create_fleet", ClientToken="token")
    (((before,),), (after,)) = (seen, written(journal))  # RECORDED-1
    assert (before.kind, before.token, before.ids) == ("fleet", "token", None)
    assert before.place == {"region": "us-east-1", "endpoint_url": "http://127.0.0.1:1"}
    assert after.ids == ("i-1", "i-2", "i-3")


@pytest.mark.parametrize(
    ("operation", "answer", "kind", "name"),
    [
        ("create_launch_template", {"LaunchTemplate": {"LaunchTemplateName": "n"}}, "launch-template", "n"),
        ("create_placement_group", {"PlacementGroup": {"GroupName": "n"}}, "placement-group", "n"),
        ("create_security_group", {"GroupId": "sg-1"}, "security-group", "sg-1"),
    ],
)
async def test_all_that_a_pool_creates_is_written_down(
    *,
    operation: str,
    answer: dict[str, Any],
    kind: str,
    name: str,
    api: RecordedApi,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, answer)
    await api.call(operation)
    (intent,) = written(journal)
    assert (intent.kind, intent.ids) == (kind, (name,))
    assert [each.kind for each in api.recorder.intents] == [kind]


async def test_what_is_created_has_the_token_of_its_intent(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RECORDED-3"""
    said: list[dict[str, Any]] = []

    async def call(api: Api, operation: str, /, **parameters: Any) -> dict[str, Any]:
        said.append(parameters)
        raise LOST

    monkeypatch.setattr(Api, "call", call)
    mine = {"Key": "outrider:pool", "Value": "p"}
    with pytest.raises(ProviderError):
        await api.call("create_security_group", TagSpecifications=[{"ResourceType": "security-group", "Tags": [mine]}])
    (intent,) = written(journal)
    assert said[0]["TagSpecifications"][0]["Tags"] == [mine, {"Key": "outrider:launch", "Value": intent.token}]
    claim = await api.recorder.claim()
    assert claim.has(Thing("sg-1", launch=intent.token))


async def test_reads_and_deletions_are_not_recorded(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, {})
    await api.call("describe_instances")
    await api.call("terminate_instances", InstanceIds=["i-1"])
    assert asked == ["describe_instances", "terminate_instances"]
    assert written(journal) == []
    assert api.recorder.intents == []


@pytest.mark.parametrize(("error", "ids"), [(NoCapacity("none", retry_after_s=1.0), ()), (LOST, None)])
async def test_a_refusal_is_an_outcome_and_a_lost_answer_is_none(
    error: ProviderError,
    ids: tuple[str, ...] | None,
    api: RecordedApi,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, error)
    with pytest.raises(type(error)):
        await api.call("create_fleet", ClientToken="token")
    (intent,) = written(journal)
    assert intent.ids == ids  # RECORDED-2


async def test_an_answer_that_names_no_machines_is_no_outcome(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {"FleetId": "fleet-1", "Instances": [], "Errors": []})
    await api.call("create_fleet", ClientToken="token")
    (intent,) = written(journal)
    assert intent.ids is None
    answering(monkeypatch, {"FleetId": "fleet-1", "Errors": [{"ErrorCode": "InsufficientInstanceCapacity"}]})
    await api.call("create_fleet", ClientToken="another")
    assert [each.ids for each in written(journal)] == [None, ()]


async def test_creation_that_cannot_be_recorded_is_not_requested(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, FLEET)
    journal.database.unlink()
    journal.database.mkdir()
    with pytest.raises(JournalError):
        await api.call("create_fleet", ClientToken="token")
    assert asked == []


async def test_a_create_that_is_cancelled_goes_to_its_end(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.CancelScope() as scope:
        answering(monkeypatch, FLEET, scope.cancel)
        await api.call("create_fleet", ClientToken="token")
    (intent,) = written(journal)
    assert intent.ids == ("i-1", "i-2", "i-3")


async def test_recorded_1_falls_without_its_guard(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RECORDED-1"""
    intend, happened = journal.intend, journal.happened

    def late(intent: Intent, ids: Sequence[str]) -> Intent:
        intend(intent.pool, intent.kind, intent.token, intent.place, intent.facts)
        return happened(intent, ids)

    monkeypatch.setattr(journal, "intend", lambda *fields: Intent(*fields))
    monkeypatch.setattr(journal, "happened", late)
    with pytest.raises(ValueError, match="not enough values"):  # there is nothing on the disk
        await test_an_intent_is_on_the_disk_before_the_call_and_its_outcome_after_it(api, journal, monkeypatch)


async def test_recorded_2_falls_without_its_guard(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RECORDED-2"""
    monkeypatch.setattr(recorder, "is_lost", lambda error: False)
    with pytest.raises(AssertionError):
        await test_a_refusal_is_an_outcome_and_a_lost_answer_is_none(LOST, None, api, journal, monkeypatch)


async def test_recorded_3_falls_without_its_guard(
    api: RecordedApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RECORDED-3"""
    monkeypatch.setattr(launcher, "_with_token", lambda specifications, token: [*specifications])
    with pytest.raises(AssertionError):
        await test_what_is_created_has_the_token_of_its_intent(api, journal, monkeypatch)
