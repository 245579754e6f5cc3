"""Clients killed at any moment: `outrider gc` ends what they had, and each launch has made its machines once.

``OUTRIDER_STRESS=200`` kills at so many moments, ``OUTRIDER_SEED`` chooses others.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from outrider.providers.cloud.small_labels import LAUNCH
from outrider.testing.clouds.gcp.front import GCE
from outrider.testing.clouds.shared.faults import LostAnswer

STRESS = int(os.environ.get("OUTRIDER_STRESS", "0"))
SEED = int(os.environ.get("OUTRIDER_SEED", "0"))
MACHINES = 3
CALLS = 40  # of a client, from its beginning to its end
CLIENT = """
import os, signal, sys, threading
import anyio
from outrider import GCP
from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.providers.cloud import teardown
from outrider.providers.gcp import api

pool, endpoint_url, which, delay, machines = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
teardown.AGAIN_S, api.PAUSES = (0.02,), (0.02,)
call, calls = api.Api.call, 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def counted(self, *operation, **parameters):
    global calls
    calls += 1
    mine = which in (str(calls), operation[0])
    if mine and delay == "before":
        die()
    try:
        return await call(self, *operation, **parameters)
    finally:
        if mine:
            threading.Timer(float(delay), die).start() if float(delay) else die()

async def main():
    async with GCP("us-central1", endpoint_url=endpoint_url).open(pool, EntryPoints()) as fleet:
        made = await fleet.launch(LaunchRequest("ssh-ed25519 CLIENT", machines), machines)
        await fleet.terminate([made[0].id])

api.Api.call = counted
anyio.run(main)
"""


def moments(count: int) -> list[tuple[int, str]]:
    dice = random.Random(SEED)
    return [(dice.randint(1, CALLS), dice.choice(["before", "0", "0.02", "0.1"])) for _ in range(count)]


def killed(cloud: GCE, pool: str, which: int | str, delay: str) -> bool:
    """Run a client that is to be killed at a call, by its number or its method; False: it has ended before."""
    given = [pool, cloud.endpoint_url, str(which), delay, str(MACHINES)]
    code = subprocess.run([sys.executable, "-c", CLIENT, *given], check=False, timeout=120).returncode
    assert code in {0, -signal.SIGKILL}
    return code != 0


def outrider(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "outrider", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,  # for 150 s a lost launch may yet appear
    )
    assert ran.returncode in {0, 1}, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("count", [pytest.param(2, id="few"), pytest.param(200, id="many", marks=pytest.mark.nightly)])
def test_clients_killed_at_any_moment_leave_nothing_that_gc_does_not_end(count: int, cloud: GCE) -> None:
    def kill(index: int, number: int, delay: str) -> bool:
        if index % 3 == 0:
            cloud.faults.add(LostAnswer("regionInstances.bulkInsert"))
        return killed(cloud, f"killed-{index}", number, delay)

    with ThreadPoolExecutor(2) as some:
        died = list(some.map(lambda each: kill(each[0], *each[1]), enumerate(moments(STRESS or count))))
    outrider("gc", "--apply")
    assert cloud.machines("pending", "running", "stopped") == []
    cloud.advance(60)
    assert cloud.machines("shutting-down") == []
    assert cloud.firewalls == {}
    made = Counter(each.labels[LAUNCH] for each in cloud.machines())
    print(f"{sum(died)} of {len(died)} clients killed, {made.total()} machines, none left, {dict(cloud.calls)}")
    assert all(number <= MACHINES for number in made.values()), "machines of one launch were made twice"
    assert sum(died) > len(died) / 3


def test_ps_and_gc_know_machines_of_google(cloud: GCE) -> None:
    assert killed(cloud, "left", "DELETE", "before")  # when it has its machines
    for each in cloud.machines("running")[:1]:
        cloud.hypervisor.shut_down(each.id)  # type: ignore[attr-defined]
    shown = json.loads(outrider("ps", "--json"))
    (pool,) = [each for each in shown if each["pool"] == "left"]
    assert {each["kind"] for each in pool["machines"]} == {"n2d-standard-2"}
    assert {each["state"] for each in pool["machines"]} <= {"running", "stopped", "pending"}
    assert all(each["hourly_usd"] > 0 for each in pool["machines"] if each["state"] == "running")
    outrider("gc", "--apply")
    assert cloud.machines("pending", "running", "stopped") == []
    assert cloud.firewalls == {}
    assert json.loads(outrider("ps", "--json")) == []
