"""A pool's jobs where answers are lost: against a Slurm made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest

from outrider.providers.base import EntryPoints, LaunchRequest, MachineGone, Warned
from outrider.providers.errors import BadRequest, HostAway, NotGone, ProviderError
from outrider.providers.shared import login_host
from outrider.providers.shared.login_host import COMMAND_S, Ended
from outrider.providers.slurm import endings, jobs, submitter
from outrider.providers.slurm import fleet as fleets
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

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = COMMAND_S) -> Ended:
        await anyio.lowlevel.checkpoint()
        assert len(self.said) < MOST, "Slurm is asked without end"
        shell = argv[0] == "sh"
        what, *words = argv[3:] if shell else argv
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

    def on_env(self, *words: str) -> str | Ended:
        if "sacct" in words:
            return Ended(1, "", "Slurm accounting storage is disabled")
        if self.away:
            return Ended(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        return f"7|{self.queue}|{self.comment.removeprefix('--comment=')}\n" if self.queue else ""

    def on_nodes(self, _: str) -> str:
        said = {name: text for name, text in self.files.items() if "/" not in name}
        return "".join(f"outrider:node:{node}:{text}\n" for node, text in said.items())

    def on_tail(self, _: str, many: str, path: str) -> str:
        assert many == "2000"
        folder, _, name = path.rpartition("/")
        return self.files.get(f"{folder.rpartition('/')[0]}/{name}", "")

    def on_end(self, *_: str) -> None:
        self.queue = None


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    made = Site()
    monkeypatch.setattr(login_host, "Here", lambda: made)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    for name in ("POLL_S", "CALM_POLL_S", "AWAY_S"):
        monkeypatch.setattr(fleets, name, 0.01)
    for name in ("POLL_S", "END_POLL_S"):
        monkeypatch.setattr(endings, name, 0.01)
    monkeypatch.setattr(jobs, "APART_S", 0.01)
    monkeypatch.setattr(submitter, "LOOK_S", 0.01)
    monkeypatch.setattr(submitter, "OVER_S", 0.1)
    return made


@asynccontextmanager
async def opened() -> AsyncIterator[SlurmFleet]:
    async with Slurm().open("p", EntryPoints()) as fleet:
        yield fleet


async def first(fleet: SlurmFleet, kind: type[Event]) -> Event:
    with anyio.fail_after(60):
        async for event in fleet.events():
            if isinstance(event, kind):
                return event
    raise AssertionError("the events ended")


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.01)


async def test_closing_gives_up_in_time_while_nobody_knows_what_sbatch_made(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "LEASE_MORE_S", 0.3 - fleets.LEASE_S)  # how long is left of the patience
    site.sbatch, site.away = HostAway("The connection was lost", retry_after_s=0.05), True
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


UNSURE = [
    Ended(None, "", "Killed"),
    Ended(143),
    Ended(0, "Submitted\n"),
    Ended(1, "", "sbatch: error: Batch job submission failed: Message receive failure"),
    Ended(1, "", "sbatch: error: Something that nobody has heard of"),
]


@pytest.mark.parametrize("answer", UNSURE, ids=str)
async def test_a_job_of_sbatch_whose_answer_is_no_refusal_is_found(site: Site, answer: Ended) -> None:
    site.sbatch = answer
    async with opened() as fleet:
        assert [machine.id for machine in await fleet.launch(REQUEST, 2)] == ["p/7-0", "p/7-1"]


async def test_words_that_nobody_knows_are_told_when_there_is_no_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "COMMAND_S", 0.0)
    site.sbatch, site.queue = UNSURE[-1], None
    async with opened() as fleet:
        with pytest.raises(ProviderError, match="Something that nobody has heard of") as caught:
            await fleet.launch(REQUEST, 2)
    assert type(caught.value) is ProviderError


@pytest.mark.parametrize("queue", ["FAILED||N/A|1:00:00|NonZeroExitCode", "COMPLETED||N/A|1:00:00|None"])
async def test_a_job_that_ends_before_it_was_reached_is_told_of_with_its_output(site: Site, queue: str) -> None:
    site.queue = queue
    site.files["/jobs/job.out"] = "module: cuda/99 is unknown\nslurmstepd: error: execve(): python3: No such file\n"
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        cause = (await first(fleet, MachineGone)).cause
    assert "module: cuda/99 is unknown slurmstepd: error: execve(): python3: No such file" in cause


async def test_a_job_that_is_put_back_into_the_queue_is_cancelled(site: Site) -> None:
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        await until(lambda: all(job.running for job in fleet._book.open_jobs))
        site.queue = "PENDING||N/A|1:00:00|JobHeldAdmin"
        assert "put back into the queue" in (await first(fleet, MachineGone)).cause
        await until(lambda: "scancel 7" in site.said)


async def test_a_job_that_answers_lacked_is_ended_all_the_same(site: Site) -> None:
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        await until(lambda: all(job.running for job in fleet._book.open_jobs))
        shown, site.queue = site.queue, None
        assert "does not know job 7" in (await first(fleet, MachineGone)).cause
        site.queue = shown
    assert [said for said in site.said if said.startswith("end ") and said.endswith("-- 7")]


async def test_a_node_that_cannot_be_used_is_told_of_once_and_given_back(site: Site) -> None:
    site.files["c1"] = '{"error": "there is no sshd on node c1"}'
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        gone = await first(fleet, MachineGone)
        assert (gone.id, gone.cause) == ("p/7-1", "there is no sshd on node c1")
        await until(lambda: "scontrol update JobId=7 NodeList=c0" in site.said)
        with anyio.fail_after(60):
            await fleet.terminate([gone.id])
        site.queue = "CANCELLED||N/A|1:00:00|None"
        assert (await first(fleet, MachineGone)).id == "p/7-0"


async def test_a_job_that_went_to_another_cluster_is_cancelled_there(site: Site) -> None:
    site.sbatch = Ended(0, "7;b\n")
    async with opened() as fleet:
        with pytest.raises(BadRequest, match="job 7 to cluster b"):
            await fleet.launch(REQUEST, 2)
    assert "scancel --clusters=b 7" in site.said
