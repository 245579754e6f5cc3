"""A pool's jobs where answers are lost: against a Slurm made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from outrider.providers.base import EntryPoints, LaunchRequest, MachineGone, Warned
from outrider.providers.errors import NotGone
from outrider.providers.slurm import fleet as fleets
from outrider.providers.slurm import login_host, submissions
from outrider.providers.slurm.errors import Ended, SlurmAway
from outrider.providers.slurm.fleet import SlurmFleet
from outrider.providers.slurm.provider import Slurm

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=2)
MOST = 400  # commands of one test
Event = TypeVar("Event", MachineGone, Warned)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Site:
    """The commands of a login host. ``sbatch``: its answer, or what it raises; ``queue``: state, nodes and reason."""

    where = "here"

    def __init__(self) -> None:
        self.sbatch: Ended | BaseException = Ended(0, "7\n")
        self.queue: str | None = "RUNNING|c[0-1]|N/A|1:00:00|None"
        self.away = False  # squeue does not answer
        self.comment = ""
        self.files: dict[str, str] = {}
        self.said: list[str] = []

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"") -> Ended:  # noqa: ARG002
        await anyio.sleep(0)
        assert len(self.said) < MOST, "Slurm is asked without end"
        shell = argv[0] == "sh"
        what, *words = [*argv[3:], "look"] if shell else argv
        self.said.append(" ".join([what, *words]))
        answer = getattr(self, f"on_{what}", lambda *_: "")(*words)
        return answer if isinstance(answer, Ended) else Ended(0, answer)

    def on_look(self, *_: str) -> str:
        return "outrider:root:/jobs\noutrider:user:me\n"

    def on_submit(self, _: str, *arguments: str) -> Ended:
        self.comment = next(each for each in arguments if each.startswith("--comment="))
        if isinstance(self.sbatch, BaseException):
            raise self.sbatch
        return self.sbatch

    def on_env(self, *_: str) -> str | Ended:
        if self.away:
            return Ended(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        return f"7|{self.queue}|{self.comment.removeprefix('--comment=')}\n" if self.queue else ""

    def on_end(self, *_: str) -> None:
        self.queue = None


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    made = Site()
    monkeypatch.setattr(login_host, "Here", lambda: made)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    for name in ("POLL_S", "CALM_POLL_S", "AWAY_S", "END_POLL_S"):
        monkeypatch.setattr(fleets, name, 0.01)
    monkeypatch.setattr(submissions, "OVER_S", 0.1)
    return made


@asynccontextmanager
async def opened() -> AsyncIterator[SlurmFleet]:
    async with Slurm().open("p", EntryPoints()) as fleet:
        yield fleet


async def first(fleet: SlurmFleet, kind: type[Event]) -> Event:
    with anyio.fail_after(5):
        async for event in fleet.events():
            if isinstance(event, kind):
                return event
    raise AssertionError("the events ended")


async def test_closing_gives_up_in_time_while_nobody_knows_what_sbatch_made(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "LEASE_MORE_S", 0.3 - fleets.LEASE_S)  # how long is left of the patience
    site.sbatch, site.away = SlurmAway("The connection was lost", retry_after_s=0.05), True
    with pytest.raises(BaseExceptionGroup) as caught:
        async with opened() as fleet, anyio.create_task_group() as tasks:
            tasks.start_soon(fleet.launch, REQUEST, 2)
            assert "whether sbatch made a job is not known yet" in (await first(fleet, Warned)).text
            tasks.cancel_scope.cancel()
    [error] = caught.value.exceptions
    assert isinstance(error, NotGone)
    assert error.unsure


async def test_a_call_of_sbatch_that_ends_oddly_is_looked_for(site: Site) -> None:
    site.sbatch, site.queue = RuntimeError("nobody expects it"), None
    with pytest.raises(BaseExceptionGroup) as caught:
        async with opened() as fleet:
            await fleet.launch(REQUEST, 2)
    assert caught.group_contains(RuntimeError, match="nobody expects it")
