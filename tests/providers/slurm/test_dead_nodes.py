"""A pool's jobs of which nodes have lost their power, against a Slurm made by hand. The lab has a real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from outrider.providers.base import EntryPoints, LaunchRequest, Machine, MachineGone, MachineReachable
from outrider.providers.errors import ProviderError
from outrider.providers.shared import login_host
from outrider.providers.slurm import endings, jobs
from outrider.providers.slurm import fleet as fleets
from outrider.providers.slurm import fleet as gathering
from outrider.providers.slurm.fleet import Gathering, SlurmFleet
from outrider.providers.slurm.provider import Slurm

from .by_hand import HandMade

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=2)
SAID = json.dumps({"host_key": "ssh-ed25519 KEY", "step": "1.0", "user": "me", "lease": "/l", "notice": "/n"})


class Dying(HandMade):
    """Its jobs have the nodes c0 and c1. Steps on nodes with power end when they are told to; a job with one that has
    none ends when it is cancelled, and Slurm shows it from then on as ending.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[str] = set()
        self.steps = {"c0", "c1"}

    def on_nodes(self, folder: str) -> str:
        return "".join(f"outrider:node:{node}:{SAID}\n" for node in sorted(self.steps))

    def on_end(self, *words: str) -> None:
        for file in words[: words.index("--")]:
            _, _, node = file.rpartition("/end")[2].rpartition(".")
            self.steps -= ({node} if node else {"c0", "c1"}) - self.dead
        if not self.dead:
            super().on_end(*words)

    def on_scancel(self, _: str, *ids: str) -> None:
        for job in ids:
            self.jobs[job]["state"] = "COMPLETING" if self.dead else "COMPLETED"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dying:
    made = Dying()
    monkeypatch.setattr(login_host, "Here", lambda: made)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    for module in (fleets, endings):
        monkeypatch.setattr(module, "POLL_S", 0.02)
    monkeypatch.setattr(endings, "END_POLL_S", 0.02)
    monkeypatch.setattr(endings, "CONFIRM_S", 180.0)
    monkeypatch.setattr(fleets, "LEASE_MORE_S", -119.0)  # a test that fails does not wait for the whole lease
    for module in (jobs, endings):
        monkeypatch.setattr(module, "SILENT_S", 0.3)
    return made


async def reached(fleet: SlurmFleet, machines: Sequence[Machine]) -> None:
    left = {machine.id for machine in machines}
    with anyio.fail_after(60):
        async for event in fleet.events():
            left -= {event.machine.id} if isinstance(event, MachineReachable) else set()
            if not left:
                return


async def give_up(fleet: SlurmFleet, machine: Machine) -> None:
    """As a pool does with a machine that it has lost. Its end is not confirmed, as long as Slurm has its node."""
    try:
        await fleet.terminate([machine.id])
    except ProviderError:
        pass


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_pool_that_has_lost_a_node_leaves_when_nothing_runs_on_the_others(site: Dying, rank: int) -> None:
    began = 0.0
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(120):
            async with Slurm().open("p", EntryPoints()) as fleet:
                machines = await fleet.launch(REQUEST, 2)
                await reached(fleet, machines)
                site.dead = {f"c{rank}"}
                tasks.start_soon(give_up, fleet, machines[rank])
                await anyio.sleep(0.4)  # longer than SILENT_S
                began = anyio.current_time()
                assert not any("NodeList" in each for each in site.said), "Slurm would start jobs on a dead node"
                site.said.clear()
        tasks.cancel_scope.cancel()
    took_s = anyio.current_time() - began
    assert site.jobs["1"]["state"] == "COMPLETING", "Slurm shows it until it counts the node as down"
    assert site.steps == site.dead
    assert took_s < endings.CONFIRM_S / 2, "it has waited for the node that does not answer"
    assert site.said.count("scancel 1") == 1


async def test_a_killed_step_that_could_not_say_that_it_has_ended_is_not_waited_for(
    site: Dying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "LATE_S", 0.2)
    with anyio.fail_after(120):  # less than `CONFIRM_S`
        async with Slurm().open("p", EntryPoints()) as fleet:
            machines = await fleet.launch(REQUEST, 2)
            await reached(fleet, machines)
            site.dead = {"c0", "c1"}  # somebody's `scancel --full --signal=KILL`
            site.jobs["1"]["state"] = "COMPLETING"
            async for event in fleet.events():
                if isinstance(event, MachineGone):
                    break
    assert site.steps == site.dead


async def test_a_pool_whose_nodes_all_answer_is_left_by_slurms_word(
    site: Dying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "LATE_S", 1000.0)
    async with Slurm().open("p", EntryPoints()) as fleet:
        machines = await fleet.launch(REQUEST, 2)
        await reached(fleet, machines)
        await fleet.terminate([machines[1].id])
        assert "scontrol update JobId=1 NodeList=c0" in site.said
        await anyio.sleep(0.4)
        site.dead = {"a job that ends slowly, on nodes that answer"}

        async def completes() -> None:
            await anyio.sleep(0.2)
            site.jobs["1"]["state"] = "COMPLETING"
            await anyio.sleep(0.5)
            assert not left.is_set(), "it was left while Slurm was ending its job"
            site.jobs["1"]["state"] = "COMPLETED"

        left = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(completes)
            await fleet.close()
            left.set()


async def test_a_long_epilog_is_not_waited_for(site: Dying) -> None:
    with anyio.fail_after(120):
        async with Slurm().open("p", EntryPoints()) as fleet:
            await reached(fleet, await fleet.launch(REQUEST, 2))
            site.dead = {"the epilog runs, on nodes that answer"}
            site.jobs["1"]["state"] = "COMPLETING"
    assert (site.steps, site.jobs["1"]["state"]) == (set(), "COMPLETING")


async def test_a_job_that_slurm_ends_is_told_of_soon_and_its_nodes_are_made_free(
    site: Dying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CAUSE_S", 0.05)
    monkeypatch.setattr(site, "on_look", lambda *_: "outrider:root:/jobs\noutrider:user:me\noutrider:kill:1\n")
    async with Slurm().open("p", EntryPoints()) as fleet:
        machines = await fleet.launch(REQUEST, 2)
        await reached(fleet, machines)
        site.jobs["1"]["state"] = "COMPLETING"
        with anyio.fail_after(60):
            while site.steps:
                await anyio.sleep(0.02)
        assert not any("scancel" in each for each in site.said)
        site.dead = {"Slurm takes long to clean up, on nodes that answer"}
        began = anyio.current_time()
    assert anyio.current_time() - began < endings.CONFIRM_S / 2, "it has waited for Slurm's clean-up"


async def test_tasks_of_a_job_that_slurm_ends_keep_their_time_where_the_pool_has_lost_it_first(
    site: Dying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "on_look", lambda *_: "outrider:root:/jobs\noutrider:user:me\noutrider:kill:1000\n")
    monkeypatch.setattr(fleets, "LOOK_S", 0.02)
    async with Slurm().open("p", EntryPoints()) as fleet:
        machines = await fleet.launch(REQUEST, 2)
        await reached(fleet, machines)
        site.jobs["1"]["state"] = "COMPLETING"
        with anyio.fail_after(120):
            await fleet.terminate([machine.id for machine in machines])
        assert site.steps == {"c0", "c1"}
        fleet._submitter._around = replace(await fleet._submitter.site(), grace_s=0.0)  # now it is over
        with anyio.fail_after(60):
            while site.steps:
                await anyio.sleep(0.02)
        site.jobs["1"]["state"] = "CANCELLED"


async def test_nodes_that_are_lost_together_get_one_job(site: Dying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHER_S", 0.5)
    asked: list[list[str]] = []

    async def launch(fleet: SlurmFleet, index: int) -> None:
        asked[index] = [machine.id for machine in await fleet.launch(REQUEST, 1)]

    async with Slurm().open("p", EntryPoints()) as fleet:
        await fleet.launch(REQUEST, 2)
        assert site.submitted == 1
        asked += [[], [], []]
        async with anyio.create_task_group() as tasks:
            for index in range(3):
                tasks.start_soon(launch, fleet, index)
        assert site.submitted == 2
        assert sorted(asked) == [["p/2-0"], ["p/2-1"], ["p/2-2"]]


async def test_a_gathered_launch_that_fails_or_is_cancelled_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    async def fails(_: LaunchRequest, count: int) -> list[Machine]:
        counts.append(count)
        raise ProviderError("no")

    async def hangs(_: LaunchRequest, count: int) -> list[Machine]:
        counts.append(count)
        await anyio.sleep_forever()
        raise AssertionError

    async def told(gathering: Gathering, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await gathering.launch(REQUEST, 1)
        except ProviderError as error:
            errors.append(str(error))

    for launch, expected in ((fails, ["no", "no"]), (hangs, ["the call that was to submit the job was cancelled"])):
        errors: list[str] = []
        gathered, first = Gathering(launch), anyio.CancelScope()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(told, gathered, first)
                tasks.start_soon(told, gathered, anyio.CancelScope())
                await anyio.sleep(2 * gathering.GATHER_S)
                first.cancel()
        assert errors == expected
    assert counts == [2, 2]
