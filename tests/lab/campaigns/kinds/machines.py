"""What befalls machines: they are taken, there are none, or they are ill from their birth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lives.clients import Late, until

from outrider.testing import aws_faults

from ..life import Kind, Life
from ..site import Client
from ..ward import Illness
from ..wish import Wish

if TYPE_CHECKING:
    from cloud.hypervisor import Mishap

NOTICES_S = (0.0, 0.0, 1.0, 3.0, 120.0)
SPOT = 3  # machines of a pool that loses some
MISHAPS: tuple[Mishap, ...] = ("deaf", "impostor")
BOOT_TIMEOUT_S = 30.0


def taken(life: Life, client: Client, count: int) -> None:
    """So many of its machines at once, each with a notice of its own."""
    there = sorted(each.id for each in life.site.running(client))
    for name in life.dice.sample(there, min(count, len(there))):
        try:
            life.site.cloud.interrupt(name, notice_s=life.dice.choice(NOTICES_S))
        except KeyError:  # it has ended meanwhile
            pass


def spot_all(life: Life) -> None:
    """all 3 spot machines are taken at a random moment, notices 0, 1, 3 or 120 s"""
    client = _spot(life, surplus=SPOT)
    _launched(life, client)
    life.passes(0.0, 8.0)
    taken(life, client, SPOT)


def spot_boot(life: Life) -> None:
    """1 or 2 of 3 are taken while they boot"""
    client = _spot(life, surplus=2)
    _launched(life, client)
    life.passes(0.0, 1.5)
    taken(life, client, life.dice.randint(1, 2))


def spot_broadcast(life: Life) -> None:
    """1 or 2 of 3 are taken in the middle of a broadcast, twice"""
    client = _spot(life, surplus=4)
    if client.wait("ready", 120.0):
        for _ in range(2):
            life.passes(0.0, 3.0)
            taken(life, client, life.dice.randint(1, 2))


def no_capacity(life: Life) -> None:
    """there is no capacity anywhere for up to 30 s"""
    life.site.cloud.faults.add(aws_faults.NoCapacity())
    life.client(Wish(), within_s=300.0)
    life.passes(5.0, 30.0)
    life.site.cloud.faults.clear()


def deaf(life: Life) -> None:
    """1, 2 or 4 machines whose sshd never answers, or answers with a wrong key"""
    mishap: Mishap = life.dice.choice(MISHAPS)
    life.site.hypervisor.next_suffers(*[mishap] * life.dice.choice((1, 2, 4)))
    _nursed(life)


def unread(life: Life) -> None:
    """1, 2 or 4 machines that do not understand their user data: no lease, no sshd"""
    _ill(life, "unread")


def unarmed(life: Life) -> None:
    """1, 2 or 4 machines whose lease cannot be armed"""
    _ill(life, "unarmed")


def powerless(life: Life) -> None:
    """1 or 2 machines whose lease cannot be armed, and that have no poweroff"""
    _ill(life, "powerless")


def _spot(life: Life, *, surplus: int) -> Client:
    wish = Wish(nodes=SPOT, spot=True, rounds=life.dice.randint(3, 6))
    return life.client(wish, surplus=surplus, within_s=300.0)


def _launched(life: Life, client: Client) -> None:
    try:
        until(lambda: len(life.site.machines(client)) >= SPOT, 90.0, "it has machines")
    except Late as error:
        life.found.append(f"CHAOS-1: {error}")


def _ill(life: Life, illness: Illness) -> None:
    life.site.hypervisor.falls_ill(*[illness] * life.dice.choice((1, 2, 4)))
    _nursed(life)


def _nursed(life: Life) -> None:
    """The pool is ready all the same; or its client is killed before or just after."""
    # Of two nodes one may be late, and the pool makes up for it before it is given up.
    client = life.client(Wish(boot_timeout_s=BOOT_TIMEOUT_S, rounds=1), surplus=1, within_s=400.0)
    killed = life.dice.random()
    if killed < 0.3:
        _launched_any(life, client)
        life.passes(0.0, 6.0)
        life.kill(client)
    elif client.wait("ready", 300.0):
        well = {each.id for each in life.site.running(client)} - life.site.hypervisor.unleased
        life.expect(len(well) >= client.wish.nodes, f"CHAOS-12: ready with {len(well)} machines that have a lease")
        if killed < 0.5:
            time.sleep(killed)
            life.kill(client)


def _launched_any(life: Life, client: Client) -> None:
    try:
        until(lambda: life.site.machines(client), 90.0, "it has a machine")
    except Late as error:
        life.found.append(f"CHAOS-1: {error}")


KINDS = (
    Kind("spot-all", spot_all),
    Kind("spot-boot", spot_boot),
    Kind("spot-broadcast", spot_broadcast),
    Kind("no-capacity", no_capacity),
    Kind("deaf", deaf),
    Kind("unread", unread),
    Kind("unarmed", unarmed),
    Kind("powerless", powerless),
)
