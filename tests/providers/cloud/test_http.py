"""JSON over HTTP, against answers as a cloud gives them on good and on bad days. Time is a mock clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import httpx
import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.providers.cloud import calls, http
from outrider.providers.cloud.calls import is_lost
from outrider.providers.cloud.http import (
    Expiring,
    HttpApi,
    HttpFailure,
    Key,
    Service,
    check_url,
    retry_after_s,
    translate,
    trouble_of,
)
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, Unreachable

pytestmark = pytest.mark.anyio

KEY = "secret_outrider_8f1d"
FULL = "launch/no-room"
SERVICE = Service(
    name="Sky",
    extra="sky",
    base_url="https://sky.example/v1",
    limits={"calls": (1.0, 1.0), "launch": (1.0, 1 / 12)},
    limits_of=lambda method, path: ("launch", "calls") if path == "/launch" else ("calls",),
    meanings=((NoCapacity, {FULL: "Sky has no such machine now"}),),
    again_after_s={FULL: 10.0},
)
Reply = httpx.Response | Exception | float  # a number: no answer for so many seconds


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Sky:
    """Answers with ``replies``, in turn; the last one stays."""

    def __init__(
        self,
        *replies: Reply,
        service: Service = SERVICE,
        key: Key = Key(KEY),  # noqa: B008 - frozen
        luck: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self.replies = list(replies)
        self.requests: list[httpx.Request] = []
        self.at: list[float] = []
        client = httpx.AsyncClient(base_url=service.base_url, transport=httpx.MockTransport(self._answer))
        self.api = HttpApi(service, key, client, luck=luck)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.at.append(anyio.current_time())
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, float):
            await anyio.sleep(reply)
            return httpx.Response(200, json={})
        return reply


def ok(**data: object) -> httpx.Response:
    return httpx.Response(200, json=data)


def error(status: int, code: str = "", message: str = "its words", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": message}}, headers=headers)


async def test_a_call_sends_json_with_the_key_and_returns_json() -> None:
    sky = Sky(ok(made=["m-1"]))
    assert await sky.api.call("POST", "/launch", body={"kind": "small"}, params={"dry": "no"}) == {"made": ["m-1"]}
    (request,) = sky.requests
    assert str(request.url) == "https://sky.example/v1/launch?dry=no"
    assert json.loads(request.content) == {"kind": "small"}
    assert request.headers["Authorization"] == f"Bearer {KEY}"


async def test_a_key_may_have_a_header_of_its_own() -> None:
    sky = Sky(error(403, "no", f"not with {KEY}"), service=replace(SERVICE, header="api_key"), key=Key(KEY, scheme=""))
    with pytest.raises(NotAuthorized, match=r"not with \(secret\)"):
        await sky.api.call("GET", "/machines")
    assert sky.requests[0].headers["api_key"] == KEY
    assert "Authorization" not in sky.requests[0].headers


async def test_a_refusal_may_come_with_a_status_of_success() -> None:
    full = httpx.Response(200, json={"ok": False, "error": {"code": FULL, "message": "no room"}})
    service = replace(SERVICE, refuses=lambda answer: isinstance(answer, dict) and answer.get("ok") is False)
    with pytest.raises(NoCapacity, match="no room") as caught:
        await Sky(full, service=service).api.call("POST", "/launch")
    assert not is_lost(caught.value)
    assert await Sky(ok(ok=True), service=service).api.call("POST", "/launch") == {"ok": True}


async def test_an_empty_answer_is_one() -> None:
    assert await Sky(httpx.Response(204)).api.call("DELETE", "/machines/1") is None


@pytest.mark.parametrize("answer", [None, [], {}, {"data": []}, {"data": {"ids": None}}, {"data": {"ids": "m-1"}}])
def test_an_answer_that_lacks_a_part_is_none(answer: object) -> None:
    api = Sky(ok()).api
    assert api.part({"data": {"ids": ["m-1"]}}, list, "data", "ids") == ["m-1"]
    assert api.part([], list) == []
    with pytest.raises(ProviderError, match="Sky's answer is not as it should be") as caught:
        api.part(answer, list, "data", "ids")
    assert is_lost(caught.value)  # what was asked for may have been done


async def test_eight_launches_obey_both_limits_and_others_need_not_wait_for_them() -> None:
    sky = Sky(ok())
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(sky.api.call, "POST", "/launch")
        await anyio.sleep(1.5)
        began = anyio.current_time()
        await sky.api.call("GET", "/machines")
        assert anyio.current_time() - began < 1
    launches = [at for at, request in zip(sky.at, sky.requests, strict=True) if request.method == "POST"]
    assert [round(at - launches[0]) for at in launches] == [12 * number for number in range(8)]


async def test_the_time_for_a_call_does_not_pass_while_this_sides_limits_make_it_wait() -> None:
    sky = Sky(ok())
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(lambda: sky.api.call("POST", "/launch", timeout_s=5))
    assert len(sky.requests) == 8


async def test_a_turn_that_was_waited_for_is_used_and_a_cancelled_one_given_back() -> None:
    sky = Sky(ok())
    await sky.api.turn("POST", "/launch")
    began = anyio.current_time()
    await sky.api.call("POST", "/launch", turn=True)
    assert anyio.current_time() == began
    with anyio.move_on_after(3):
        await sky.api.turn("POST", "/launch")
    await sky.api.turn("POST", "/launch")
    assert 11 < anyio.current_time() - began < 13


async def test_a_throttled_call_is_made_again_after_what_the_cloud_says_and_was_not_carried_out() -> None:
    sky = Sky(error(429, "slow-down", **{"Retry-After": "20"}), ok(made=1))
    assert await sky.api.call("POST", "/launch", timeout_s=60) == {"made": 1}
    assert sky.at[1] - sky.at[0] >= 20

    sky = Sky(error(429, "slow-down", **{"Retry-After": "70"}))
    with pytest.raises(ProviderError, match="called too often") as caught:
        await sky.api.call("POST", "/launch", timeout_s=60)
    assert caught.value.retry_after_s == 70
    assert not is_lost(caught.value)


@pytest.mark.parametrize(
    "reply",
    [error(500, "internal"), error(502), httpx.ReadError("reset"), httpx.RemoteProtocolError("gone"), 100.0,
     httpx.Response(200, text='{"made": ['), httpx.Response(200, text="<html>a proxy's page</html>")],
    ids=str,
)  # fmt: skip
async def test_a_create_without_an_answer_is_not_made_again_and_counts_as_lost(reply: Reply) -> None:
    sky = Sky(reply, ok())
    with pytest.raises(ProviderError) as caught:
        await sky.api.call("POST", "/launch", timeout_s=30)
    assert len(sky.requests) == 1
    assert is_lost(caught.value)


@pytest.mark.parametrize("reply", [error(503), httpx.ReadTimeout("slow"), 100.0], ids=str)
async def test_an_idempotent_call_without_an_answer_is_made_again(reply: Reply) -> None:
    sky = Sky(reply, ok(made=1))
    assert await sky.api.call("POST", "/launch", idempotent=True, timeout_s=60) == {"made": 1}
    assert await Sky(reply, ok(made=1)).api.call("GET", "/machines", timeout_s=60) == {"made": 1}


async def test_a_call_that_never_arrived_is_made_again_and_was_not_carried_out() -> None:
    refused = httpx.ConnectError("All connection attempts failed")
    assert await Sky(refused, ok(made=1)).api.call("POST", "/launch") == {"made": 1}
    with pytest.raises(Unreachable, match=r"cannot be reached at sky\.example") as caught:
        await Sky(refused).api.call("POST", "/launch")
    assert not is_lost(caught.value)
    assert caught.value.retry_after_s


async def test_what_follows_a_lost_answer_is_lost_too_unless_the_cloud_says_what_became_of_it() -> None:
    for later in (httpx.ConnectError("no"), error(429, "slow-down", **{"Retry-After": "90"}), error(401, "bad-key")):
        with pytest.raises(ProviderError) as caught:
            await Sky(later).api.call("POST", "/launch", lost_before=True)
        assert is_lost(caught.value), later
        with pytest.raises(ProviderError) as caught:
            await Sky(error(500), later).api.call("POST", "/launch", idempotent=True)
        assert is_lost(caught.value), later
    with pytest.raises(NoCapacity) as told:
        await Sky(error(400, FULL)).api.call("POST", "/launch", lost_before=True)
    assert not is_lost(told.value)


async def test_a_wrong_certificate_says_so_at_once() -> None:
    wrong = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")
    sky = Sky(wrong)
    with pytest.raises(BadRequest, match="certificate that this computer does not trust"):
        await sky.api.call("GET", "/machines")
    assert len(sky.requests) == 1


async def test_a_code_with_a_meaning_is_told_by_it() -> None:
    with pytest.raises(NoCapacity, match=r"Sky has no such machine now \(launch/no-room: its words\)") as caught:
        await Sky(error(400, FULL)).api.call("POST", "/launch")
    assert (caught.value.code, caught.value.retry_after_s) == (FULL, 10.0)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, NotAuthorized, "does not accept these credentials"),
        (403, NotAuthorized, "does not allow POST /launch"),
        (400, BadRequest, "does not take POST /launch as it is"),
        (301, BadRequest, "sends POST /launch elsewhere"),
        (404, ProviderError, "refused POST /launch"),
    ],
)
async def test_other_answers_are_told_by_their_status(status: int, kind: type[ProviderError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await Sky(error(status, "x")).api.call("POST", "/launch")
    assert not is_lost(caught.value)


async def test_the_key_is_in_no_error() -> None:
    for reply in (error(401, "x", f"no such key: {KEY}"), httpx.ReadError(f"while sending Bearer {KEY}")):
        with pytest.raises(ProviderError) as caught:
            await Sky(reply).api.call("POST", "/launch")
        assert KEY not in str(caught.value)
        assert caught.value.__cause__ is None
    assert KEY not in repr(Key(KEY))


async def test_credentials_are_renewed_once_where_that_is_possible() -> None:
    class Renewing:
        renewed = 0

        async def header(self) -> str:
            return f"Bearer token-{self.renewed}"

        async def renew(self) -> bool:
            self.renewed += 1
            return True

    sky = Sky(error(401), ok(made=1))
    sky.api._access = Renewing()
    assert await sky.api.call("POST", "/launch") == {"made": 1}
    assert [each.headers["Authorization"] for each in sky.requests] == ["Bearer token-0", "Bearer token-1"]
    sky = Sky(error(401))
    sky.api._access = Renewing()
    with pytest.raises(NotAuthorized):
        await sky.api.call("POST", "/launch")
    assert len(sky.requests) == 2


@settings(derandomize=True, database=None)  # that it falls without its guard is to be seen each time
@given(st.integers(100, 599), st.sampled_from(["", "x", FULL, "ReadError", "ConnectError"]), st.booleans())
def test_every_failure_has_an_error_and_its_code(status: int, code: str, unsure: bool) -> None:
    failure = HttpFailure(code=code, status=status, trouble=trouble_of(code, status), method="POST", path="/launch")
    told = translate(SERVICE, failure, unsure=unsure)
    assert told.code == code
    assert str(told)
    if failure.trouble in {"broken", "lost"}:  # CALL-1
        assert is_lost(told)
    if unsure and (failure.trouble or isinstance(told, NotAuthorized)):
        assert is_lost(told)


def test_call_1_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """CALL-1: a lost answer that is told as any other error would be taken for a refusal."""

    def plain(cloud: str, failure: HttpFailure, where: str, *, unsure: bool) -> ProviderError | None:
        error = calls.passing(cloud, failure, where, unsure=unsure)
        return error and ProviderError(str(error), retry_after_s=error.retry_after_s)

    monkeypatch.setattr(http, "passing", plain)
    with pytest.raises(AssertionError):
        test_every_failure_has_an_error_and_its_code()


def test_a_pause_is_said_in_seconds_or_as_a_date() -> None:
    now = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
    assert retry_after_s("12", 0.0) == 12
    assert retry_after_s(format_datetime(now + timedelta(seconds=30), usegmt=True), now.timestamp()) == 30
    assert retry_after_s(format_datetime(now - timedelta(seconds=30), usegmt=True), now.timestamp()) == 0
    assert retry_after_s("soon", 0.0) == retry_after_s("", 0.0) == 0


@pytest.mark.parametrize("url", ["", "sky.example", "ftp://sky.example", "http://", "https://sky:port"])
def test_an_address_that_is_no_url_says_so(url: str) -> None:
    with pytest.raises(BadRequest, match="is no URL"):
        check_url(url)
    check_url("http://127.0.0.1:4566/api")


class Tokens(Expiring):
    """Credentials whose tokens are numbers. ``expired``: the last one is over."""

    token, expired = "", False

    async def refresh(self) -> None:
        await anyio.sleep(1.0)
        self.token, self.expired = f"{int(self.token or 0) + 1}", False


async def test_credentials_that_expire_are_renewed_before_the_call_and_once_for_all_that_wait() -> None:
    tokens, headers = Tokens(), list[str]()

    async def ask() -> None:
        headers.append(await tokens.header())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
    assert headers == ["Bearer 1"] * 3
    tokens.expired = True
    assert await tokens.header() == "Bearer 2"
    assert await tokens.renew()
    assert await tokens.header() == "Bearer 3"
