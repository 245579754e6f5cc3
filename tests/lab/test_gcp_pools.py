"""Machines of Google's in the test cloud, as hosts: one that is preempted is replaced, and a dead client's end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bars.site import said, until, watched

from outrider import Pool, compute, events, instance_info, preemption
from outrider.engine.record.runs.lines import events_in
from outrider.engine.record.runs.reader import runs_in

pytestmark = pytest.mark.anyio
NOTICE_S = 30.0  # as Google's
LEASE_S, SHUTDOWN_S = 3.0, 60.0
REPLACED = (events.NodeNoticed, events.NodeLate, events.NodeFailed, events.NodeLost)
EXAMPLE = Path(__file__).parents[2] / "examples" / "aws_spot.py"


@compute(on_loss="restart")
def until_replaced() -> tuple[int, int, int, str]:
    """The first generation does not end; a rank of it that is told of its end says so on its host."""
    info = instance_info()
    if info.generation == 1:
        from pathlib import Path

        while (notice := preemption()) is None:
            time.sleep(0.01)
        Path.home().joinpath("told").write_text(f"{notice.source} {notice.seconds_left}")
        time.sleep(1000)
    return info.generation, info.rank, info.world_size, info.hostname


@pytest.mark.usefixtures("unhurried")
async def test_a_broadcast_survives_a_preemption_with_notice(gce, hypervisor, gcp):
    async with Pool(provider=gcp(), nodes=2, allocation="spot", console="silent") as pool, watched(pool) as diary:
        task = asyncio.create_task(pool.broadcast(until_replaced()))
        await diary.first(events.GenerationStarted, 60)
        machine, host = next(iter(hypervisor.hosts.items()))
        since = len(diary.events)
        gce.preempt(machine, notice_s=NOTICE_S)
        told = host.path("/home/ubuntu/told")
        await until(told.exists, 60, what="the task was told")
        source, left = told.read_text().split()
        assert source == "gcp"
        assert 0 < float(left) <= 30
        requested = await diary.first(events.NodesRequested, 60, since=since)
        ready = await diary.first(events.NodeReady, 60, since=since)
        assert requested.at < ready.at
        assert machine in hypervisor.hosts, "it is ready before the other machine goes"
        await asyncio.to_thread(gce.advance, NOTICE_S)
        results = await asyncio.wait_for(task, 60)
        assert [result[:3] for result in results] == [(2, rank, 2) for rank in range(2)]
        assert host.name not in {name for *_, name in results}
    assert gce.machine(machine).reason == "compute.instances.preempted"
    assert len(gce.machines()) == 3, "nothing was replaced twice"
    assert gce.machines("pending", "running", "stopped") == []
    assert gce.firewalls == {}


@pytest.mark.nightly
async def test_a_dead_clients_machines_power_themselves_off_and_gc_deletes_them(gce, lab):
    client = f"""
import asyncio
from outrider import GCP, Pool

async def main():
    provider = GCP(address="private", endpoint_url={gce.endpoint_url!r})
    async with Pool(provider=provider, nodes=2, lease={LEASE_S}, console="silent"):
        print("ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", client, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 150) == b"ready\n"
        process.send_signal(signal.SIGKILL)
        died = time.time()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await until(lambda: len(gce.machines("stopped")) == 2, LEASE_S + SHUTDOWN_S)
    print(f"powered off {time.time() - died:.1f} s after the client's death")
    assert lab.hosts == []
    gc = await asyncio.create_subprocess_exec(sys.executable, "-m", "outrider", "gc", "--apply")
    assert await asyncio.wait_for(gc.wait(), 150) == 0
    await until(lambda: not gce.machines("running", "stopped", "shutting-down"), 60)
    assert gce.firewalls == {}


@pytest.mark.nightly
async def test_the_training_of_digits_survives_two_preemptions(gce, hypervisor, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    program = tmp_path / "gcp_spot.py"
    text = EXAMPLE.read_text().replace("import AWS,", "import GCP,")
    text = text.replace("AWS(ami=PYTORCH)", f"GCP(address='private', endpoint_url={gce.endpoint_url!r})")
    program.write_text(text)
    process = await asyncio.create_subprocess_exec(sys.executable, "-u", program, stdout=asyncio.subprocess.PIPE)
    taken: set[str] = set()
    try:
        for _ in (1, 2):
            await said(process, rb"epoch \d+: loss")
            victim = next(each for each in hypervisor.hosts if each not in taken)
            taken.add(victim)
            gce.preempt(victim, notice_s=NOTICE_S)
            await said(process, rb"stretch (\d) ends after epoch (\d+)")
        await said(process, rb"stretch 3 ends after epoch 100")
        await said(process, rb"four spot instances: (9[5-9]|100)\.\d\d%")
        assert await asyncio.wait_for(process.wait(), 120) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    (run,) = runs_in(tmp_path / "state" / "runs")
    seen = [*events_in((run.directory / "events.jsonl").read_bytes())]
    # On a busy computer others than the two may be late or lost, and are replaced by right.
    replaced = {each.node for each in seen if isinstance(each, REPLACED)}
    assert len(gce.machines()) == 4 + len(replaced) >= 6, "nothing was replaced twice"
    assert gce.machines("pending", "running", "stopped") == []
