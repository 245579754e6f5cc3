"""What the simulation plays is like what it stands for."""

from __future__ import annotations

import pytest

from outrider.engine.client import opening
from outrider.engine.node import freeports
from outrider.engine.transport import connection, heartbeat
from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.testing import provider_contract
from outrider.testing.simulator import connection as played
from outrider.testing.simulator import machines, play
from outrider.testing.simulator.clock import VirtualLoop
from outrider.testing.simulator.scenario import CloudSpec, Scenario
from outrider.testing.simulator.simulation import Simulation
from outrider.testing.simulator.trace import Trace


@pytest.mark.parametrize(
    ("real", "name"),
    [(heartbeat, "HEARTBEAT_S"), (heartbeat, "SILENCE_S"), (connection, "GREETING_S"), (connection, "FAREWELL_S")],
)
def test_connections_have_the_same_patience(real, name):
    assert getattr(played, name) == getattr(real, name)


def test_so_have_pools():
    assert play.RECONNECT_S == opening.RECONNECT_S
    assert (machines.PORTS_KEPT, machines.PORTS_FEW) == (freeports.KEPT, freeports.FEW)


@pytest.mark.parametrize("check", provider_contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("boot_s", [0.0, 30.0])
def test_the_scripted_cloud_is_a_provider(check, boot_s):
    loop = VirtualLoop()
    cloud = CloudSpec(boot_s=(boot_s, boot_s))
    sim = Simulation(loop, Scenario(seed=1, nodes=2, min=2, max=2, cloud=cloud), Trace(loop.time))

    async def alive():
        return len(sim.cloud.alive)

    async def kill(machine):
        sim.cloud.lose(machine.id, "as asked")

    loop.run(
        check(
            provider_contract.Subject(
                provider=sim.cloud,
                request=LaunchRequest("ssh-ed25519 CLIENT", 2),
                entry_points=EntryPoints(),
                alive=alive,
                kill=kill,
                within_s=120.0,
            )
        )
    )
