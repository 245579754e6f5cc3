"""Sixty-four machines of a test cloud, each a host of the lab: from opening the pool to the last one's first result."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from unittest import mock

from cloud import LabHypervisor

from outrider import AWS, Pool, compute
from outrider.testing import EC2, Behaviour, aws_faults

if TYPE_CHECKING:
    from netlab import Lab

READY_S = 30.0
TROUBLE = 1.5  # times as long, where capacity is refused and hosts do not answer
REFUSED, DEAF = 0.3, 0.1  # of the machines
BOOT_S = 1.0
CACHE = "/home/*/.cache/outrider/runtime"


@dataclass(frozen=True, slots=True)
class Opened:
    ready_s: float  # until the pool was open, and each node had given a result
    create_calls: int
    launched: int


@compute
def rank() -> int:
    from outrider import instance_info

    return instance_info().rank


async def opened(lab: Lab, *, nodes: int, warm: bool = True, trouble: bool = False) -> Opened:
    """``warm``: the machine image has the cache that a pool has left on a machine of it. ``trouble``: `REFUSED` of the
    machines are refused at first, `DEAF` of them never answer at their SSH port.

    Raises:
        AssertionError: something is left.
    """
    with _cloud(lab) as (ec2, hypervisor):
        if warm:
            async with _pool(1) as pool:
                await pool.run(rank())
                hypervisor.bake(*hypervisor.hosts, CACHE)
        calls, launched = ec2.calls["CreateFleet"], len(ec2.instances())
        if trouble:
            ec2.faults.add(aws_faults.NoCapacity(times=round(REFUSED * nodes)))
            deaf: list[Literal["deaf"]] = ["deaf"]
            hypervisor.next_suffers(*deaf * round(DEAF * nodes))
        began = time.monotonic()
        async with _pool(nodes) as pool:
            assert sorted(await pool.broadcast(rank())) == list(range(nodes))
            ready_s = time.monotonic() - began
            calls, launched = ec2.calls["CreateFleet"] - calls, len(ec2.instances()) - launched
        assert ec2.left() == []
        return Opened(ready_s, calls, launched)


def _pool(nodes: int) -> Pool:
    return Pool(provider=AWS(address="private"), nodes=nodes, allocation="spot", console="silent")


@contextmanager
def _cloud(lab: Lab) -> Iterator[tuple[EC2, LabHypervisor]]:
    """The environment leads to it."""
    hypervisor = LabHypervisor(lab)
    behaviour = Behaviour(vpc_cidr=str(lab.network.subnet), boot_s=BOOT_S)
    with (
        tempfile.TemporaryDirectory() as state,
        EC2(behaviour, hypervisor=hypervisor) as ec2,
        mock.patch.dict(os.environ),
    ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": ec2.endpoint_url,
            "AWS_REGION": ec2.region,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "OUTRIDER_STATE": state,
        }
        try:
            yield ec2, hypervisor
        finally:
            hypervisor.close()
