"""The tests of all clouds with an API key: the `test_suite` of each imports them; its ``conftest`` has what differs.

That is ``cloud``, the test cloud with the ``times``, ``subject``, and ``calls``. `surroundings` does the rest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import httpx
import pytest
import trio
import trio.testing

from outrider.engine.cli.main import main
from outrider.providers.base import Fleet, Machine, MachineEvent
from outrider.providers.cloud import teardown
from outrider.providers.cloud.calls import is_lost
from outrider.providers.cloud.http import HttpApi, HttpFailure, Key, Service, translate, trouble_of
from outrider.providers.cloud.single_launch import SingleLauncher
from outrider.providers.errors import ProviderError
from outrider.providers.shared.journal import Journal
from outrider.testing import Times, provider_contract
from outrider.testing.clouds.shared import checks
from outrider.testing.clouds.shared.checks import CALL, CHECKS, QUICK, Check, Subject
from outrider.testing.clouds.shared.front import CloudFront
from outrider.testing.clouds.shared.kills import Client, Kill, kill_all, moments

SEED = int(os.environ.get("OUTRIDER_SEED", "0"))
FEW, MANY, AT_ONCE = 4, 200, 20
SOME = 17  # of so many awaits one is tried
BAD = Times(boot_s=0.01, stop_s=0.01, stale_s=0.5, wavering=True)
IN_CI = (
    provider_contract.terminate_is_confirmed_and_idempotent,
    provider_contract.leaving_terminates_every_machine,
)  # on a bad day


def surroundings(
    monkeypatch: pytest.MonkeyPatch, folder: Path, variable: str, key: str, api: ModuleType | None = None
) -> None:
    """Set a key and folders of our own, and lift the limits of requests in the module ``api``."""
    monkeypatch.setenv(variable, key)
    monkeypatch.setenv("HOME", str(folder))  # in which a cloud's own client may keep a key
    monkeypatch.setenv("OUTRIDER_STATE", str(folder / "state"))
    monkeypatch.setenv("OUTRIDER_CACHE", str(folder / "cache"))
    monkeypatch.setattr(teardown, "AGAIN_S", (0.02,))
    if api is not None:
        monkeypatch.setattr(api, "LIMITS", dict.fromkeys(api.LIMITS, (1000.0, 1000.0)))


def without_limits(cloud: str) -> str:
    """Lines of Python that do so in a client that is killed. ``cloud``: its package."""
    return f"""
from outrider.providers.{cloud} import api
from outrider.providers.cloud import teardown
api.LIMITS = dict.fromkeys(api.LIMITS, (1000.0, 1000.0))
teardown.AGAIN_S = (0.02,)
"""


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("check", "times"), list(CHECKS.items()), ids=lambda value: value.__name__ if callable(value) else ""
)
async def test_check(check: Check, subject: Subject) -> None:
    await check(subject)


@pytest.mark.anyio
@pytest.mark.parametrize("times", [QUICK], ids=["quick"])
async def test_once_1_falls_without_its_guard(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, unguarded: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """ONCE-1: sent again, a launch without an answer makes a second machine."""
    unguarded(monkeypatch)
    with pytest.raises(ExceptionGroup) as caught:
        await checks.a_lost_answer_never_makes_two_machines(subject)
    assert caught.group_contains(AssertionError, match="were made, and")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def times() -> Times:
    """A test that is about the cloud's nature has its own: ``@pytest.mark.parametrize("times", [...])``."""
    return QUICK


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def unguarded() -> Callable[[pytest.MonkeyPatch], None]:
    """Take the guard of ONCE-1 away."""
    return lambda patch: patch.setattr(SingleLauncher, "_look_for", SingleLauncher._send)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("check", "times"),
    [(check, QUICK) for check in provider_contract.CHECKS]
    + [
        pytest.param(check, BAD, marks=() if check in IN_CI else pytest.mark.nightly)
        for check in provider_contract.CHECKS
        if check is not provider_contract.cancelling_at_any_await_leaves_nothing
    ]
    + [pytest.param(provider_contract.cancelling_at_any_await_leaves_nothing, BAD, marks=pytest.mark.nightly)],
    ids=lambda value: value.__name__ if callable(value) else "on a bad day" if value.stale_s else "on a good day",
)
async def test_contract(check: provider_contract.Check, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_contract, "count", lambda first: count(first, SOME))
    # Where the end of a machine was confirmed to begin, a list that is older than the machine lacks it as one does that
    # is newer than its end: it may end a moment later than that was told.
    ended = {*subject.ended, "shutting-down"} if subject.front.times.stale_s else subject.ended

    async def alive() -> int:
        return len([each for each in subject.front.machines() if each.state not in ended])

    async def kill(machine: Machine) -> None:
        while subject.front.machine(machine.id).state == "pending":
            await anyio.sleep(0.01)
        subject.take(machine.id)

    provider: Any = subject.provider(**subject.options)
    request = replace(subject.request, nodes=2)
    await check(provider_contract.Subject(provider=provider, request=request, alive=alive, kill=kill, within_s=60))
    if subject.front.times.stale_s:
        subject.front.advance(1.0)  # in which ends that have begun are over
    assert subject.left() == []
    assert Journal.open().records() == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(slice(0, FEW), id="few"),
        *(
            pytest.param(slice(start, start + AT_ONCE), id=f"{start} and on", marks=pytest.mark.nightly)
            for start in range(0, MANY, AT_ONCE)
        ),
    ],
)
async def test_kills(kills: slice, calls: int, subject: Subject) -> None:
    """`make nightly` kills 200; ``OUTRIDER_SEED`` chooses other moments.

    ``calls``: of a client that is not killed, from its beginning to its end; some more where its poller has to wait.
    """
    which = moments(FEW if kills.stop == FEW else MANY, calls=calls, seed=SEED)[kills]
    print(await checks.killed_clients_leave_nothing_that_gc_does_not_end(subject, which))


Command = Callable[..., str]


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process; return what it prints: ``outrider("ps", "--json")``."""

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["outrider", *words])
        with suppress(SystemExit):
            main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def dead_pool(subject: Subject, outrider: Command) -> Callable[[Kill], dict[str, Any]]:
    """Kill a client at that moment; return its pool as `outrider ps` shows it, after `outrider gc` has ended it."""

    def ended(kill: Kill) -> dict[str, Any]:
        options = {"endpoint_url": subject.front.endpoint_url, **subject.options}
        client = Client(provider=subject.surveyor.provider, options=options, call=CALL, before=subject.before)
        assert anyio.run(kill_all, client, [kill]) == 1
        (pool,) = json.loads(outrider("ps", "--json"))
        assert pool["pool"] == "killed-0"
        assert pool["machines"]
        outrider("gc", "--apply")
        assert subject.left() == []
        assert json.loads(outrider("ps", "--json")) == []
        found: dict[str, Any] = pool
        return found

    return ended


# --- means ------------------------------------------------------------------------------------------------------------


async def events(fleet: Fleet, count: int) -> list[MachineEvent]:
    """The next events."""
    found: list[MachineEvent] = []
    with anyio.fail_after(60):
        async with aclosing(fleet.events()) as coming:  # type: ignore[type-var]  # it is a generator
            async for event in coming:
                found.append(event)
                if len(found) == count:
                    break
    return found


def meant(service: Service, status: int, code: str, message: str, *, kind: type[ProviderError], words: str) -> None:
    """Check what an answer of a cloud's is told as: of this kind, with these words and its own."""
    code = code or f"HTTP {status}"
    failure = HttpFailure(
        code=code, status=status, message=message, method="POST", path="/x", trouble=trouble_of(code, status)
    )
    error = translate(service, failure, unsure=False)
    assert type(error) is kind or (kind is ProviderError and isinstance(error, ProviderError))
    assert words in str(error)
    assert message.rstrip(".") in str(error)
    assert error.code == code
    assert is_lost(error) == (status == 500)


Answered = Callable[[httpx.Request], httpx.Response]


def on_a_mock_clock(
    service: Service,
    main: Callable[[HttpApi], Awaitable[object]],
    answer: Answered = lambda request: httpx.Response(200, json={}),
) -> dict[str, list[float]]:
    """Run ``main`` with an interface on a mock clock; return when each request was sent, by its method and path."""
    sent: dict[str, list[float]] = {}

    async def answered(request: httpx.Request) -> httpx.Response:
        sent.setdefault(f"{request.method} {request.url.path}", []).append(anyio.current_time())
        return answer(request)

    async def run() -> None:
        transport = httpx.MockTransport(answered)
        client = httpx.AsyncClient(base_url=service.base_url, transport=transport, verify=False)
        async with client:
            await main(HttpApi(service, Key("any"), client))

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    return sent


Ask = Callable[..., httpx.Response]


def requests(cloud: CloudFront, version: str) -> Ask:
    """Requests to a test cloud with the key ``any``. ``version``: with which its paths begin."""

    def ask(method: str, path: str, **more: Any) -> httpx.Response:
        said: dict[str, Any] = {"headers": {"Authorization": "Bearer any"}, **more}
        return httpx.request(
            method, f"{cloud.endpoint_url}{version}{path}", verify=False, **said
        )  # certificates: 25 ms

    return ask


def outside_of_schema(cloud: CloudFront, version: str, call: tuple[str, str, dict[str, Any]], why: str) -> None:
    """Check that a request which the schema lacks is refused, and raised at the test cloud's end."""
    with pytest.raises(ExceptionGroup) as caught, cloud:
        method, path, more = call
        assert requests(cloud, version)(method, path, **more).status_code == 400
    assert why in str(caught.value.exceptions[0])
