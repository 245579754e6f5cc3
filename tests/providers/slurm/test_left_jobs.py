"""What a fleet takes over of a dead client's jobs: by rule, and against a Slurm made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.base import Address, EntryPoints, LaunchRequest, Machine, MachineId, MachineReachable, Warned
from outrider.providers.errors import BadRequest
from outrider.providers.shared import login_host
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.resource_ownership import Claim
from outrider.providers.slurm import jobs as left_jobs
from outrider.providers.slurm.jobs import LeftJobs
from outrider.providers.slurm.provider import Slurm
from outrider.providers.slurm.squeue import JobView

from .by_hand import HandMade

CLAIM = Claim("p", ids=frozenset({"1", "2"}))
VIEWS = st.lists(
    st.builds(
        JobView,
        st.sampled_from(["1", "2", "3"]),
        st.sampled_from(["PENDING", "RUNNING", "COMPLETED"]),
        st.sampled_from([(), ("c0",), ("c0", "c1")]),
        comment=st.sampled_from(["", "outrider:p:a@b:t", "outrider:q:a@b:t"]),
    ),
    unique_by=lambda view: view.id,
)
Decide = Callable[[Sequence[JobView], Claim, Sequence[Machine], int], LeftJobs]


def machine(job: str, number: int) -> Machine:
    facts = {"job": job, "node": f"c{number}"}
    return Machine(
        MachineId(f"p/{job}-{number}"), Address(f"c{number}", command=("srun",)), "ssh-ed25519 K", facts=facts
    )


KNOWN = [machine(job, number) for job in ("1", "2", "3") for number in (0, 1)]


def holds(views: Sequence[JobView], most: int, decide: Decide = left_jobs.split_left_jobs) -> None:
    found = decide(views, CLAIM, KNOWN, most)
    shown = {view.id: view for view in views}
    assert len(found.machines) <= most
    for each in found.machines:
        view = shown[each.facts["job"]]
        assert view.state == "RUNNING", "LEFT-1"
        assert each.facts["node"] in view.nodes, "LEFT-1"
        assert view.id in {"1", "2"}, "LEFT-1"
    living = {view.id for view in views if not view.over and view.id in {"1", "2"}}
    kept = {each.facts["job"] for each in found.machines}
    assert {view.id for view in found.keeps} == kept
    assert {view.id for view in found.ends} == living - kept, "LEFT-2"


@given(VIEWS, st.integers(0, 4))
def test_what_is_taken_over_and_what_is_ended(views: list[JobView], most: int) -> None:
    """LEFT-1, LEFT-2."""
    holds(views, most)


def whatever_is_known(views: Sequence[JobView], claim: Claim, known: Sequence[Machine], most: int) -> LeftJobs:
    found = left_jobs.split_left_jobs(views, claim, known, most)
    return LeftJobs(tuple(known[:most]), 0, found.keeps, found.ends)


def everybodys(views: Sequence[JobView], claim: Claim, known: Sequence[Machine], most: int) -> LeftJobs:
    found = left_jobs.split_left_jobs(views, claim, known, most)
    return LeftJobs(
        found.machines, found.surplus, found.keeps, tuple(view for view in views if view not in found.keeps)
    )


@pytest.mark.parametrize(("decide", "rule"), [(whatever_is_known, "LEFT-1"), (everybodys, "LEFT-2")])
def test_the_rule_falls_without_its_guard(decide: Decide, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        holds([JobView("1", "PENDING"), JobView("3", "RUNNING", ("c0",))], 1, decide)


# --- a fleet ----------------------------------------------------------------------------------------------------------

REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HandMade:
    made = HandMade()
    monkeypatch.setattr(login_host, "Here", lambda: made)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    return made


async def left_by_a_client(site: HandMade, jobs: int) -> list[Machine]:
    """Return the machines of a client that died: its jobs run on, and its journal has them."""
    found: list[Machine] = []
    with anyio.fail_after(60):
        async with Slurm().open("p", EntryPoints()) as fleet:
            for _ in range(jobs):
                await fleet.launch(REQUEST, 2)
            async for event in fleet.events():
                if isinstance(event, MachineReachable):
                    found.append(event.machine)
                    if len(found) == 2 * jobs:
                        break
            fleet._give_back = lambda: anyio.lowlevel.checkpoint()  # type: ignore[method-assign]  # it is killed
    return found


@pytest.mark.anyio
async def test_running_steps_are_taken_over_and_the_others_jobs_end(site: HandMade) -> None:
    known = await left_by_a_client(site, jobs=2)
    assert site.alive == ["1", "2"]
    site.jobs["9"] = {"state": "RUNNING", "nodes": "c9", "comment": "", "folder": "/f"}
    with closing(Journal.open().own("p", "slurm", adopt=True)):
        await adopts(site, known)
    assert Journal.open().records() == []


async def adopts(site: HandMade, known: list[Machine]) -> None:
    async with Slurm().open("p", EntryPoints()) as fleet:
        assert await fleet.adopt(known, 2) == tuple(known[:2])
        assert Warned("2 further machines of the pool are ended: nodes=2") in fleet._events
        with anyio.fail_after(60):
            while "2" in site.alive:
                await anyio.sleep(0.01)
        assert site.alive == ["1", "9"]
        assert [node.id for node in await fleet.launch(REQUEST, 2)] == ["p/4-0", "p/4-1"]
    assert site.alive == ["9"]


@pytest.mark.anyio
async def test_a_pool_of_another_cluster_is_left_as_it_is(site: HandMade) -> None:
    await left_by_a_client(site, jobs=1)
    intent = Journal.open().records()[0].intents[0]
    assert intent.ids == ("1",)
    with pytest.raises(BaseExceptionGroup) as caught, closing(Journal.open().own("p", "slurm", adopt=True)):
        async with Slurm("login", config=False).open("p", EntryPoints()) as fleet:
            await fleet.adopt([], 2)
    assert caught.group_contains(BadRequest, match="not in login: attach to it there")
    assert site.alive == ["1"]
