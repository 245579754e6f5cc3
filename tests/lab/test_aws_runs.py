"""`outrider run` on the test cloud, whose machines are real hosts: scripts, detached runs, closed terminals."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bars.site import until

from outrider.engine.record.runs.reader import runs_in

pytestmark = pytest.mark.anyio
COMMAND = [sys.executable, "-c", "from outrider.engine.cli.main import main; main()"]
ON_AWS = ["--provider", "aws", "--set", "provider.address=private", "--image", f"python={sys.executable}"]
TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 256).reshape(64, 4)[dist.get_rank() :: dist.get_world_size()]
for _ in range(20):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()} of {dist.get_world_size()} loss {loss.item():.6f}")
"""
SLOW = "import time\nfor step in range(10**9): print('step', step, flush=True); time.sleep(0.1)\n"
CLIENT = """
import asyncio
from outrider import AWS, Pool

async def main():
    async with Pool(provider=AWS(address="private"), nodes=2, console="silent"):
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "slow.py").write_text(SLOW)
    return folder


async def outrider(folder: Path, *words: str) -> tuple[int, str, str]:
    """The exit code of a command, what it has said, and what it has complained of. The cloud runs in this process."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 180)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_torchrun_script_runs_on_machines_that_are_gone_afterwards(cloud, hypervisor, lab, project):
    pytest.importorskip("torch")
    began = time.time()
    code, out, err = await outrider(project, "run", "--nodes", "2", *ON_AWS, "train.py")
    ended = time.time()
    assert code == 0, err
    assert sorted(re.findall(r"rank (\d) of 2 loss 0\.\d+", out)) == ["0", "1"]
    assert len(cloud.instances()) == 2
    assert cloud.left() == []
    assert lab.hosts == []
    assert cloud.ledger.unowned_seconds([(began, ended)]) == 0


@pytest.mark.parametrize("ready", [True, False], ids=["runs", "launches"])
@pytest.mark.usefixtures("hypervisor")
async def test_a_detached_run_that_is_stopped_leaves_no_instance(cloud, lab, project, tmp_path, ready):
    code, out, err = await outrider(project, "run", "--detach", "--nodes", "2", *ON_AWS, "slow.py")
    assert code == 0, err
    (run,) = runs_in(tmp_path / "state" / "runs")
    assert out.strip() == run.id
    printed = run.directory / "logs" / "rank-001.log"
    await until(
        lambda: "step 3" in printed.read_text() if ready and printed.exists() else not ready and cloud.instances(), 120
    )
    assert run.owner == "alive"
    assert (await outrider(project, "stop", run.id))[0] == 0
    assert cloud.left() == []
    assert lab.hosts == []
    assert run.owner == "dead"
    assert (await outrider(project, "wait", run.id))[0] == 143
    assert (await outrider(project, "gc"))[0] == 0, "there is nothing to be removed"


@pytest.mark.parametrize("ready", [True, False], ids=["open", "opening"])
async def test_a_closed_terminal_leaves_nothing_for_gc(cloud, hypervisor, lab, project, ready):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, stdout=subprocess.PIPE, cwd=project)
    assert process.stdout is not None
    try:
        if ready:
            assert await asyncio.wait_for(process.stdout.readline(), 120) == b"ready\n"
        else:
            await until(lambda: cloud.instances(), 60)
        os.kill(process.pid, signal.SIGHUP)
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGHUP
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert {each.state for each in cloud.instances()} == {"terminated"}
    assert cloud.left() == []
    assert lab.hosts == []
    assert (await outrider(project, "gc"))[0] == 0, "there is nothing to be removed"
