"""The accounting is asked when a pool's jobs have ended: how long, and what is said where it says nothing."""

from __future__ import annotations

import anyio
import pytest
import trio.testing

from outrider.providers.base import MachineId, MachineUsage, UsageUnknown
from outrider.providers.errors import HostAway
from outrider.providers.shared.login_host import Ended
from outrider.providers.slurm.fleet import DISABLED, usage
from outrider.providers.slurm.jobs import Job
from outrider.providers.slurm.site import SlurmCommands

from .by_hand import HandMade
from .test_accounting import MB, ONE_NODE, SHRUNK

pytestmark = pytest.mark.anyio
RUNS = ONE_NODE.replace("2|COMPLETED", "2|RUNNING")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@pytest.fixture
def site() -> HandMade:
    return HandMade()


def job(id_: str, *nodes: str) -> Job:
    machines = [MachineId(f"p/{id_}-{number}") for number in range(len(nodes))]
    return Job(id_, "/f", 0.0, [], node_of=dict(zip(machines, nodes, strict=True)))


async def asked(site: HandMade, *jobs: Job, within_s: float = 5.0) -> list[MachineUsage | UsageUnknown]:
    with anyio.fail_after(within_s + 3):
        return list(await usage(SlurmCommands(site), jobs, within_s=within_s))


async def test_machines_have_the_figures_of_their_nodes(site: HandMade) -> None:
    site.accounts = [ONE_NODE]
    assert await asked(site, job("2", "c0")) == [
        MachineUsage(MachineId("p/2-0"), 3.0, 1.0, 0.013 + 0.001 + 0.097, 10940416, 1000 * MB)
    ]


async def test_it_is_asked_again_until_the_jobs_have_ended_there_too(site: HandMade) -> None:
    site.accounts = ["", RUNS, ONE_NODE]
    assert [type(each) for each in await asked(site, job("2", "c0"))] == [MachineUsage]
    assert len(site.said) == 3


async def test_figures_that_come_too_late_are_not_waited_for(site: HandMade) -> None:
    site.accounts = [RUNS]
    assert await asked(site, job("2", "c0"), within_s=0.2) == [
        UsageUnknown("the accounting comes late; ask for it by `sacct --jobs 2`")
    ]


async def test_of_several_jobs_those_that_have_ended_are_told(site: HandMade) -> None:
    site.accounts = [ONE_NODE]
    used, late = await asked(site, job("2", "c0"), job("9", "c1"), within_s=0.2)
    assert isinstance(used, MachineUsage)
    assert late == UsageUnknown("the accounting comes late; ask for it by `sacct --jobs 9`")
    assert "--jobs 2,9" in site.said[0]
    assert "--jobs 9 " in site.said[-1]


async def test_without_accounting_that_is_said_at_once(site: HandMade) -> None:
    assert await asked(site, job("2", "c0")) == [
        UsageUnknown(f"the cluster keeps no accounting (sacct here: Slurm {DISABLED})")
    ]
    assert len(site.said) == 1


async def test_nothing_is_asked_of_jobs_that_never_ran(site: HandMade) -> None:
    assert await asked(site, job("2")) == []
    assert site.said == []


async def test_nodes_that_have_no_figures_are_told_of(site: HandMade) -> None:
    site.accounts = [SHRUNK + ONE_NODE]
    told = await asked(site, job("1", "c0", "c1"), job("2", "c0", "c9"))
    assert [each.why for each in told if isinstance(each, UsageUnknown)] == [
        "Slurm has no figures of steps that ran when their job was shrunk (job 1)",
        "the accounting does not have all nodes of job 2",
    ]


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (HostAway("The connection was lost", retry_after_s=1.0), "The connection was lost"),
        (
            Ended(127, "", "env: 'sacct': No such file or directory"),
            "sacct here failed, and said: env: 'sacct': No such",
        ),
        (Ended(1, "", ""), "sacct here failed, and said: nothing"),
    ],
)
async def test_a_failure_is_told_and_raises_nothing(site: HandMade, fails: Exception | Ended, said: str) -> None:
    def failing(*_: str) -> Ended:
        if isinstance(fails, Exception):
            raise fails
        return fails

    site.on_sacct = failing  # type: ignore[method-assign]
    (unknown,) = await asked(site, job("2", "c0"))
    assert isinstance(unknown, UsageUnknown)
    assert unknown.why.startswith(said)
