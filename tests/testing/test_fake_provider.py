"""The fake cloud is a provider like any other, and plays its script by the clock."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
import trio.testing

from outrider.providers.base import EntryPoints, LaunchRequest, MachineGone, MachineReachable, PreemptionNotice
from outrider.providers.errors import NoCapacity
from outrider.testing import provider_contract
from outrider.testing.fake_provider import Fake, Script

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)


@pytest.fixture
def anyio_backend():
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@pytest.mark.parametrize(
    "script", [Script(), Script(launch_s=(2.0,), boot_s=(30.0,), terminate_s=5.0)], ids=["quick", "slow"]
)
@pytest.mark.parametrize("check", provider_contract.CHECKS, ids=lambda check: check.__name__)
async def test_it_passes_the_contract(check, script):
    fake = Fake(script)

    async def alive():
        return len(fake.alive)

    async def kill(machine):
        next(fleet for fleet in fake.fleets if machine.id in fleet.machines).lose(machine.id)

    await check(provider_contract.Subject(provider=fake, alive=alive, kill=kill, within_s=120.0))


class Leaky(Fake):
    """Forgets its machines when it is left in a hurry."""

    def open(self, pool, entry_points):
        opened = super().open(pool, entry_points)
        fake = self

        class Careless:
            async def __aenter__(self):
                return await opened.__aenter__()

            async def __aexit__(self, *error):
                kept = dict(fake.alive)
                try:
                    return await opened.__aexit__(*error)
                finally:
                    if error[0] is not None:
                        fake.alive.update(kept)

        return Careless()


async def test_the_contract_notices_a_provider_that_leaks_on_cancellation():
    fake = Leaky(Script(launch_s=(1.0,)))

    async def alive():
        return len(fake.alive)

    subject = provider_contract.Subject(provider=fake, alive=alive, kill=None)
    with pytest.raises(AssertionError, match="cancelled at await"):
        await provider_contract.cancelling_at_any_await_leaves_nothing(subject)


async def test_the_contract_notices_a_price_below_nothing():
    class Haggling(Fake):
        @asynccontextmanager
        async def open(self, pool, entry_points):
            async with super().open(pool, entry_points) as fleet:
                yield Quoted(fleet)

    class Quoted:
        def __init__(self, fleet):
            self.events, self.launch, self.terminate = fleet.events, fleet.launch, fleet.terminate

        async def quote(self, request):
            return -1.0

    async def alive():
        return 0

    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match=r"costs -1\.0 USD")):
        await provider_contract.a_quote_is_a_price_or_none(
            provider_contract.Subject(provider=Haggling(), alive=alive, kill=None)
        )


async def test_machines_boot_and_fail_by_the_script():
    script = Script(boot_s=(10.0, 0.0), capacity=2, failures=(NoCapacity("later", retry_after_s=5.0), None))
    async with Fake(script).open("p", EntryPoints()) as fleet:
        with pytest.raises(NoCapacity, match="later"):
            await fleet.launch(REQUEST, 1)
        first, second = await fleet.launch(REQUEST, 3)
        assert first.address is None
        assert second.address is not None
        async for event in fleet.events():
            assert isinstance(event, MachineReachable)
            assert event.machine.id == first.id
            assert anyio.current_time() >= 10
            break
        with pytest.raises(NoCapacity, match="taken"):
            await fleet.launch(REQUEST, 1)


async def test_a_test_can_lose_machines_and_give_and_withdraw_notices():
    async with Fake().open("p", EntryPoints()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        fleet.give_notice(machine.id, 30.0)
        fleet.withdraw_notice(machine.id)
        fleet.lose(machine.id)
        seen = []
        async for event in fleet.events():
            seen.append(event)
            if isinstance(event, MachineGone):
                break
        assert seen == [
            PreemptionNotice(machine.id, "spot", 30.0),
            PreemptionNotice(machine.id, "spot", None),
            MachineGone(machine.id, "spot interruption"),
        ]
