"""How well the nodes of a real Slurm were used: as its own accounting has it, and as seff would divide it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from outrider import Pool, Slurm, compute, events
from outrider.engine.record.display.descriptions import describe
from outrider.engine.record.report.contents import read_contents
from outrider.engine.record.report.page import page
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.runs.reader import runs_in
from outrider.engine.record.runs.writer import RunWriter

if TYPE_CHECKING:
    from cluster import Cluster

pytestmark = pytest.mark.anyio
MB = 1024**2


@pytest.fixture(autouse=True)
def state(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    monkeypatch.setattr(RunWriter.close, "__defaults__", (60.0,))  # the record is read when the pool has ended


def slurm(made: Cluster, tmp_path: Any) -> Slurm:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(made.login.known_hosts)
    return Slurm(f"ada@{made.login.address}", key=made.lab.key, known_hosts=known_hosts, config=False, partition="main")


@compute
def uses(cpu_s: float, megabytes: int) -> int:
    """Take memory, and processor time. The accounting looks every 2 s."""
    kept = b"x" * (megabytes << 20)
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        pass
    time.sleep(3)
    return len(kept)


def sacct(made: Cluster, *fields: str) -> list[dict[str, str]]:
    """Every job and step, one row each, in sacct's own words."""
    said = made.run("sacct", "--parsable2", "--noconvert", "--allusers", f"--format={','.join(fields)}").stdout
    head, *rows = (line.split("|") for line in said.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def cpu_s(text: str) -> float:
    """Of "00:01.250" or "00:00:00"."""
    return sum(float(part) * 60**power for power, part in enumerate(reversed(text.split(":"))))


def parts(allocated: str) -> dict[str, str]:
    return dict(each.split("=", 1) for each in allocated.split(","))


@pytest.mark.nightly  # a database of 190 MB has to be installed for it
async def test_efficiency_is_that_of_sacct_and_seff(cluster, tmp_path, capfd):
    made = cluster(nodes=2, accounting=True)
    seen: list[events.Event] = []
    async with Pool(provider=slurm(made, tmp_path), nodes=2, memory_gb=0.5, run="used", console="plain") as pool:
        watching = pool.events()
        ranks = await pool.broadcast(uses(2.0, 100))
        assert ranks == [100 * MB] * 2
    seen += [event async for event in watching]
    rows = sacct(made, "JobIDRaw", "NodeList", "AllocCPUS", "AllocTRES", "ElapsedRaw", "TotalCPU", "TRESUsageInTot")
    (job,) = [row for row in rows if "." not in row["JobIDRaw"]]
    used = [event for event in seen if isinstance(event, events.NodeUsed)]
    assert len(used) == 2
    for event, node in zip(sorted(used, key=lambda each: each.machine), ("c0", "c1"), strict=True):
        steps = [row for row in rows if "." in row["JobIDRaw"] and row["NodeList"] == node]
        cores, elapsed_s = int(job["AllocCPUS"]) / 2, int(job["ElapsedRaw"])
        asked = int(parts(job["AllocTRES"])["mem"].removesuffix("M")) * MB / 2
        most = max(int(parts(row["TRESUsageInTot"])["mem"]) for row in steps)
        spent = sum(cpu_s(row["TotalCPU"]) for row in steps)
        assert (event.seconds, event.cpus) == (elapsed_s, cores)
        assert event.cpu_s == pytest.approx(spent, abs=0.001)
        assert (event.memory_bytes, event.memory_total_bytes) == (most, asked)
        assert event.cpu_s > 2.0
        assert most > 100 * MB
    (told,) = [event for event in seen if isinstance(event, events.PoolUsed)]
    all_s = sum(cpu_s(row["TotalCPU"]) for row in rows if "." in row["JobIDRaw"])  # seff's numerator, of the whole job
    seff = all_s / (int(job["AllocCPUS"]) * int(job["ElapsedRaw"]))
    assert told.cpu == pytest.approx(seff, rel=0.02)  # steps of both nodes are left out: Slurm's own, which do nothing
    assert told.unknown == ""
    assert f"outrider: {describe(told)}\n" in capfd.readouterr().err
    with capfd.disabled():
        print(f"\n{job}\n{used}\n{told}; seff's {seff:.4f}")
    (run,) = runs_in(runs_folder())
    shown = page(read_contents(run))
    assert "2 nodes have used" in shown
    assert "How well each node was used" in shown


async def test_a_site_without_accounting_is_said_to_have_none(cluster, tmp_path):
    made = cluster(nodes=1)
    async with Pool(provider=slurm(made, tmp_path), nodes=1, run="used", console="silent") as pool:
        assert await pool.run(uses(0.0, 1)) == MB
    (run,) = runs_in(runs_folder())
    assert "How well the nodes were used is not known: the cluster keeps no accounting" in page(read_contents(run))
