"""What becomes of the connection to a login host where a command fails in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import asyncssh
import pytest

from outrider.providers.base import Login
from outrider.providers.errors import BadRequest, HostAway
from outrider.providers.shared import login_host
from outrider.providers.shared.login_host import LoginHost, Place

pytestmark = pytest.mark.anyio
FULL = asyncssh.ChannelOpenError(4, "too many sessions")  # SSH_OPEN_RESOURCE_SHORTAGE
LOST = asyncssh.ConnectionLost("Connection lost")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Connection:
    """A connection whose commands fail with ``errors``, one after another, and then end well."""

    def __init__(self, *errors: Exception) -> None:
        self.errors: list[Exception] = [*errors]
        self.commands = 0
        self.closed = False
        self.go_on = anyio.Event()

    async def run(self, *_: object, **__: object) -> object:
        self.commands += 1
        if self.errors:
            await self.go_on.wait()
            raise self.errors.pop(0)
        return SimpleNamespace(exit_status=0, exit_signal=None, stdout=b"said", stderr=b"")

    def is_closed(self) -> bool:
        return False  # that of asyncssh takes a while to know

    def abort(self) -> None:
        self.closed = True


def host(monkeypatch: pytest.MonkeyPatch, *connections: Connection) -> LoginHost:
    left = list(connections)

    async def connect(_: Place) -> Connection:
        await anyio.lowlevel.checkpoint()
        return left.pop(0)

    monkeypatch.setattr(login_host, "_connect", connect)
    monkeypatch.setattr(login_host, "REFUSED_PAUSES_S", (0.01, 0.01))
    return LoginHost(Place("login"))


async def test_a_command_that_fails_late_closes_no_newer_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Connection(LOST), Connection()
    login = host(monkeypatch, old, new)

    async def fails() -> None:
        with pytest.raises(HostAway):
            await login.run(["squeue"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fails)
        while not old.commands:
            await anyio.lowlevel.checkpoint()
        await login.close()  # as another command that failed before
        assert (await login.run(["squeue"])).stdout == "said"
        old.go_on.set()
    assert (await login.run(["squeue"])).stdout == "said"
    assert not new.closed


async def test_a_session_that_is_refused_is_asked_for_again_in_the_same_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = Connection(FULL, FULL)
    full.go_on.set()
    login = host(monkeypatch, full)
    assert (await login.run(["squeue"])).stdout == "said"
    full.errors += [FULL] * 3
    with pytest.raises(HostAway, match="too many sessions"):
        await login.run(["squeue"])
    assert not full.closed


async def test_a_command_that_may_have_run_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Connection(asyncssh.ChannelOpenError(login_host.REQUEST_FAILED, "Session request failed"))
    lost.go_on.set()
    login = host(monkeypatch, lost)
    with pytest.raises(HostAway):
        await login.run(["sbatch"])
    assert (lost.commands, lost.closed) == (1, True)


async def test_a_computer_without_the_program_that_limits_commands_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadRequest, match="There is no timeout here") as caught:
        await login_host.Here().run(["squeue"])
    assert "PATH" in caught.value.advice
    assert caught.value.code == "NoTimeout"  # Slurm is not the only one that runs commands


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed")
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("Hots login\n", BadRequest, "line 1: Bad configuration option: hots"),
        ("ProxyCommand no-such-program %h\n", BadRequest, "no-such-program.*not found"),
        ("ProxyCommand sh -c 'echo the proxy is away; exit 3' >&2\n", HostAway, "status 3 .*the proxy is away"),
        (
            "Host login\n  ProxyJump gate\nHost gate\n  ProxyCommand no-such-program\n",
            BadRequest,
            "gate, on the way to login,",
        ),
    ],
)
async def test_configuration_of_the_login_host_is_told_by_whose_fault_it_is(
    text: str, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    (config := tmp_path / "config").write_text(text)
    login = LoginHost(Place("login", login=Login(config=(str(config),))))
    with pytest.raises(kind, match=words):
        await login.run(["squeue"])
