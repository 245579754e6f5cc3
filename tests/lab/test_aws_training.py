"""The example for AWS as it is, on the test cloud: trained to the end over two interruptions, and nothing is left."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.anyio
EXAMPLE = Path(__file__).parents[2] / "examples" / "aws_spot.py"
NOTICE_S = 40.0  # EC2's is 120


async def test_a_training_on_spot_machines_survives_two_interruptions(cloud, hypervisor, lab):
    pytest.importorskip("torch")
    began = time.time()
    process = await asyncio.create_subprocess_exec(sys.executable, "-u", EXAMPLE, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    taken: set[str] = set()
    try:
        for number in (1, 2):
            await said(process, rb"epoch \d+: loss")
            victim = next(each for each in hypervisor.hosts if each not in taken)
            taken.add(victim)
            cloud.interrupt(victim, notice_s=NOTICE_S)
            stretch = await said(process, rb"stretch (\d) ends after epoch (\d+)")
            assert (int(stretch[1]), int(stretch[2]) < 100) == (number, True), "it was told in mid-training"
            assert victim in hypervisor.hosts, "and in time"
        await said(process, rb"stretch 3 ends after epoch 100")
        await said(process, rb"four spot instances: (9[5-9]|100)\.\d\d%")
        assert await asyncio.wait_for(process.wait(), 120) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    ended = time.time()
    machines = cloud.instances()
    assert {each.market for each in machines} == {"spot"}
    assert len(machines) == 6, "nothing was replaced twice"
    assert lab.hosts == []
    assert cloud.left() == []
    assert cloud.ledger.unowned_seconds([(began, ended)]) == 0


async def said(process: asyncio.subprocess.Process, pattern: bytes) -> re.Match[bytes]:
    """The next line that it prints with this in it."""
    assert process.stdout is not None
    async with asyncio.timeout(240):
        async for line in process.stdout:
            if found := re.search(pattern, line):
                return found
    raise AssertionError(f"it ended without saying {pattern!r}")
