"""What the simulation plays is like what it stands for."""

from __future__ import annotations

import pytest

from outrider.engine import core
from outrider.engine.executor import freeports
from outrider.engine.remote import connection as real
from outrider.engine.testing import connection as played
from outrider.engine.testing import daemon, simulator
from outrider.engine.testing.clock import VirtualLoop
from outrider.engine.testing.scenario import CloudSpec, Scenario
from outrider.engine.testing.site import Site
from outrider.engine.testing.trace import Trace
from outrider.providers import contract
from outrider.providers.base import Embedding, LaunchRequest


@pytest.mark.parametrize("name", ["HEARTBEAT_S", "SILENCE_S", "GREETING_S", "FAREWELL_S"])
def test_connections_have_the_same_patience(name):
    assert getattr(played, name) == getattr(real, name)


def test_so_have_pools():
    assert simulator.RECONNECT_S == core.RECONNECT_S
    assert (daemon.PORTS_KEPT, daemon.PORTS_FEW) == (freeports.KEPT, freeports.FEW)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("boot_s", [0.0, 30.0])
def test_the_scripted_cloud_is_a_provider(check, boot_s):
    loop = VirtualLoop()
    cloud = CloudSpec(boot_s=(boot_s, boot_s))
    site = Site(loop, Scenario(seed=1, nodes=2, min=2, max=2, cloud=cloud), Trace(loop.time))

    async def alive():
        return len(site.cloud.alive)

    async def kill(machine):
        site.cloud.fell(machine.id, "as asked")

    loop.run(
        check(
            contract.Subject(
                provider=site.cloud,
                request=LaunchRequest("ssh-ed25519 CLIENT", 2),
                embedding=Embedding("", ""),
                alive=alive,
                kill=kill,
                within_s=120.0,
            )
        )
    )
