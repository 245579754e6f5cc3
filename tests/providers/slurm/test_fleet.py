"""A pool's jobs where commands fail or answers are lost, against a Slurm made by hand. The lab has a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from outrider.providers.base import (
    EntryPoints,
    LaunchRequest,
    MachineGone,
    MachineQueued,
    MachineReachable,
    MachineUsage,
    Warned,
)
from outrider.providers.errors import BadRequest, HostAway, NotGone, ProviderError, QuotaExceeded
from outrider.providers.shared import login_host
from outrider.providers.shared.journal import Journal
from outrider.providers.slurm import endings, jobs, submitter
from outrider.providers.slurm import fleet as fleets
from outrider.providers.slurm import fleet as gathering
from outrider.providers.slurm.fleet import SlurmFleet
from outrider.providers.slurm.provider import Slurm
from outrider.providers.slurm.step.programs import HERE

from .by_hand import HandMade
from .test_accounting import ONE_NODE

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HandMade:
    made = HandMade()
    monkeypatch.setattr(login_host, "Here", lambda: made)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    for name in ("POLL_S", "CALM_POLL_S", "AWAY_S"):
        monkeypatch.setattr(fleets, name, 0.02)
    for name in ("POLL_S", "END_POLL_S"):
        monkeypatch.setattr(endings, name, 0.02)
    monkeypatch.setattr(gathering, "GATHER_S", 0.0)
    monkeypatch.setattr(submitter, "LOOK_S", 0.01)
    monkeypatch.setattr(submitter, "OVER_S", 0.3)
    return made


@asynccontextmanager
async def opened(provider: Slurm | None = None) -> AsyncIterator[SlurmFleet]:
    async with (provider or Slurm()).open("p", EntryPoints()) as fleet:
        yield fleet


async def events_until(fleet: SlurmFleet, kind: type, count: int = 1) -> list[object]:
    seen: list[object] = []
    with anyio.fail_after(60):
        async for event in fleet.events():
            seen.append(event)
            if sum(isinstance(each, kind) for each in seen) >= count:
                return seen
    raise AssertionError("the events ended")


async def test_a_job_is_told_of_from_the_queue_to_its_address(site: HandMade) -> None:
    site.state = "PENDING"
    async with opened() as fleet:
        machines = await fleet.launch(REQUEST, 2)
        await events_until(fleet, MachineQueued, 2)
        site.jobs["1"] |= {"state": "RUNNING", "nodes": "c[0-1]"}
        seen = await events_until(fleet, MachineReachable, 2)
    reached = [event.machine for event in seen if isinstance(event, MachineReachable)]
    assert [machine.id for machine in reached] == [machine.id for machine in machines]
    assert [machine.facts["node"] for machine in reached] == ["c0", "c1"]
    assert reached[0].notices == ("file,path=/n",)
    assert site.alive == []
    assert Journal.open().records() == []


@pytest.mark.parametrize("host", [None, "login"])
async def test_this_computer_runs_no_relay_from_the_disk_that_nodes_write_on(
    site: HandMade, monkeypatch: pytest.MonkeyPatch, host: str | None
) -> None:
    """On a login host there is no other."""
    monkeypatch.setattr(site, "close", anyio.lowlevel.checkpoint, raising=False)
    monkeypatch.setattr(login_host, "LoginHost", lambda _: site)
    async with opened(Slurm(host)) as fleet:
        await fleet.launch(REQUEST, 2)
        seen = await events_until(fleet, MachineReachable)
        of_the_job = f"{site.jobs['1']['folder']}/relay.py"
    [address] = [event.machine.address for event in seen if isinstance(event, MachineReachable)]
    assert address is not None
    near = str(HERE / "relay.py")
    assert [word for word in address.command if word.endswith("relay.py")] == [
        near if host is None else of_the_job,
        of_the_job,
    ]


@pytest.mark.parametrize("made", [True, False])
async def test_a_lost_answer_of_sbatch_is_one_job_or_none(site: HandMade, made: bool) -> None:
    site.lost, site.made_when_lost = True, made
    async with opened() as fleet:
        if made:
            assert [machine.id for machine in await fleet.launch(REQUEST, 2)] == ["p/1-0", "p/1-1"]
        else:
            with pytest.raises(HostAway, match="made no job"):
                await fleet.launch(REQUEST, 2)
        assert site.submitted == 1
    assert site.alive == []


async def cancelled_when_submitted(site: HandMade, fleet: SlurmFleet) -> None:
    """Launch, and cancel that in the call of sbatch."""
    submit = site.on_submit
    with anyio.CancelScope() as scope:
        site.on_submit = lambda *words: (scope.cancel(), submit(*words))[1]  # type: ignore[method-assign,func-returns-value]
        await fleet.launch(REQUEST, 2)


async def test_a_cancelled_launch_leaves_no_job(site: HandMade) -> None:
    site.lost = site.made_when_lost = True
    async with opened() as fleet:
        await cancelled_when_submitted(site, fleet)
        assert site.alive == ["1"]
    assert (site.alive, site.submitted) == ([], 1)


async def test_known_jobs_are_ended_before_it_is_known_what_a_lost_call_made(site: HandMade) -> None:
    open_then: list[bool] = []
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        site.lost = True
        await cancelled_when_submitted(site, fleet)
        lost = fleet._submitter.submissions[1]
        end = site.on_end
        site.on_end = lambda *words: (open_then.append(lost.open), end(*words))[1]  # type: ignore[method-assign]
    assert open_then == [True]
    assert not lost.open
    assert site.alive == []


async def test_a_refusal_is_a_typed_error_and_nothing_is_left_in_the_journal(site: HandMade) -> None:
    site.refused = "sbatch: error: invalid partition specified: gpuu"
    async with opened() as fleet:
        with pytest.raises(BadRequest, match="There is no such partition: sbatch says"):
            await fleet.launch(REQUEST, 2)
    assert Journal.open().records() == []


async def test_a_job_that_will_never_start_is_an_error_and_taken_out_of_the_queue(site: HandMade) -> None:
    site.state, site.reason = "PENDING", "QOSMaxGRESPerJob"
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        seen = await events_until(fleet, MachineGone, 2)
        errors = [event.error for event in seen if isinstance(event, MachineGone)]
        assert all(isinstance(error, QuotaExceeded) and "QOSMaxGRESPerJob" in str(error) for error in errors)
        with anyio.fail_after(60):
            while site.alive:
                await anyio.sleep(0.01)


async def test_a_pool_that_is_larger_than_its_partition_fails_with_the_partitions_limit(
    site: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PERSISTS_S", 0.1)
    site.state, site.reason = "PENDING", "PartitionNodeLimit"
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        seen = await events_until(fleet, MachineGone, 2)
    errors = [event.error for event in seen if isinstance(event, MachineGone)]
    assert all(isinstance(error, BadRequest) for error in errors)
    assert "(PartitionNodeLimit)" in str(errors[0])
    assert "partition main: TotalNodes=4, MaxNodes=1, State=UP" in str(errors[0])


async def test_a_controller_that_is_away_is_told_of_once_and_asked_again(site: HandMade) -> None:
    site.away = 5
    async with opened() as fleet:
        await fleet.launch(REQUEST, 2)
        seen = await events_until(fleet, MachineReachable, 2)
    told = [event.text for event in seen if isinstance(event, Warned)]
    assert len(told) == 1
    assert "Unable to contact slurm controller" in told[0]


async def test_an_end_that_slurm_does_not_confirm_names_the_job(
    site: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "LEASE_MORE_S", -119.7)  # how long is left of the patience
    with pytest.raises(BaseExceptionGroup) as caught:
        async with opened() as fleet:
            await fleet.launch(REQUEST, 2)
            site.away = 10_000
    [error] = caught.value.exceptions
    assert isinstance(error, NotGone)
    assert error.machines == ("job 1",)
    assert Journal.open().records()[0].intents[0].ids == ("1",)


async def test_terminating_some_leaves_the_others(site: HandMade) -> None:
    async with opened() as fleet:
        first, second = await fleet.launch(REQUEST, 2)
        await events_until(fleet, MachineReachable, 2)
        site.on_nodes = lambda folder: ""  # type: ignore[method-assign]  # its step has ended
        await fleet.terminate([first.id])
        assert site.alive == ["1"]
        await fleet.terminate([first.id, second.id])
        assert site.alive == []


async def test_jobs_that_need_not_start_together_are_jobs_of_one_node(site: HandMade) -> None:
    async with opened(Slurm(together=False)) as fleet:
        machines = await fleet.launch(REQUEST, 2)
        assert [machine.facts["job"] for machine in machines] == ["1", "2"]
    assert (site.alive, site.submitted) == ([], 2)


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_become_arguments_of_sbatch() -> None:
    options = {"mail-type": "END", "nice": 100, "hold": True}
    said = Slurm(partition="gpu", qos="long", account="a", constraint="x", exclusive=True, options=options).arguments()
    named = ["--partition=gpu", "--constraint=x", "--qos=long", "--account=a", "--exclusive"]
    assert said == [*named, "--mail-type=END", "--nice=100", "--hold"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reach": "telnet"}, "'auto', 'ssh' or 'srun'"),
        ({"setup": "module load cuda"}, "takes a list of lines"),
        ({"time": "1h"}, "no duration"),
        ({"time": 0}, "no time at all"),
        ({"partition": ""}, "leave it out"),
        ({"options": {"nodes": 4}}, "Pool"),
        ({"options": {"requeue": True}}, "sets itself"),
        ({"options": {"clusters": "b"}}, "a login host of that cluster"),
        ({"options": {"cluster-constraint": "x"}}, "a login host of that cluster"),
        ({"options": {"het-group": 1}}, "a pool for each kind of node"),
        ({"options": {"arr": "0-9"}}, r"array is not taken here: .*pool.map.*beginning of a longer name"),
        ({"options": {"mail type": "x"}}, "no long option"),
        ({"options": {"hold": False}}, "leave it out"),
        ({"host": "-oProxyCommand=x"}, "as for ssh"),
        ({"host": "a b"}, "as for ssh"),
        ({"known_hosts": "/no/such"}, "there is no file"),
    ],
)
def test_an_option_that_can_never_work_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Slurm(**options)  # type: ignore[arg-type]


def test_a_program_outside_of_a_job_has_no_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProviderError, match="runs in no job"):
        Slurm.current()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c[1,0]")
    assert Slurm.current().nodes == ("c1", "c0")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(ProviderError, match="several copies"):
        Slurm.current()


async def test_how_nodes_were_used_is_told_last(site: HandMade) -> None:
    site.accounts = [ONE_NODE.replace("\n2", "\n1").replace("2|", "1|", 1)]
    seen: list[object] = []
    async with opened() as fleet, anyio.create_task_group() as tasks:

        async def read() -> None:
            seen.extend([event async for event in fleet.events()])

        await fleet.launch(replace(REQUEST, nodes=1), 1)
        await events_until(fleet, MachineReachable)
        tasks.start_soon(read)
        await fleet.close()
    assert isinstance(seen[-1], MachineUsage)
    assert seen[-1].id == "p/1-0"
