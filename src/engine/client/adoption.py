"""Adoption records: the data that a later client needs to take over the pool of a dead client.

A record holds the pool's SSH key, if its machines are reached by SSH, and the machines with their host keys. It is
stored with mode 0600 in the journal (this computer's database of pools), and is deleted with the pool's other files
there.
ADOPTION-1: a host key is written to the record before it is used.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...lazy_dataclass import dataclass
from ...providers.base import (
    Address,
    Adopting,
    Fleet,
    LaunchRequest,
    Login,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineReachable,
)
from ...providers.errors import ProviderError
from ...providers.shared.journal import Journal, Ownership, PoolOwned, PoolRecord
from ...providers.shared.threads import in_thread
from ..api.errors import SpecError
from ..api.settings import Nodes, is_named
from .opening import new_client_key

if TYPE_CHECKING:
    from ...providers.shared.pool_lock import Owner
    from ..api.settings import Settings
    from ..transport.ssh import PoolKey

# names of two files of a pool in the journal, this computer's database of pools; other versions of outrider read these
# files, too
KEY, REST = "client_key", "takeover"
# Fields of a machine that the record leaves out. A machine that outlives its client has no witnesses: other servers,
# whose silence shows that this computer's network is down.
NOT_KEPT = ("witnesses",)


class AdoptionRecord:
    """One pool's adoption record.

    ``name``: the pool's `unique` name. ``pool``: the pool's name on its nodes. ``turn``: a random name of the client
    that took over the pool; empty for the pool's first client. ``key``: None if no machine is reached by SSH.
    ``lease_s``: the longest lease of any of the pool's machines in seconds; None: unknown.
    """

    def __init__(self, ownership: Ownership, pool: str, key: PoolKey | None, turn: str, lease_s: float | None) -> None:
        self.name, self.pool, self.key, self.turn = ownership.pool, pool, key, turn
        self.lease_s = lease_s
        self.machines: dict[MachineId, Machine] = {}
        self._ownership = ownership
        self._host_keys: dict[MachineId, tuple[str, ...]] = {}
        self._saving = asyncio.Lock()
        self._changed = False
        self._later: asyncio.Task[None] | None = None

    @classmethod
    def begin(
        cls, journal: Journal, name: str, provider: str, *, key: PoolKey | None, pool: str, lease_s: float
    ) -> Self:
        record = cls(journal.own(name, provider), pool, key, "", lease_s)
        try:
            if key is not None:
                record._ownership.keep(KEY, key.export_private_key().decode())
        except BaseException:
            record._ownership.close()
            raise
        return record

    @classmethod
    def adopt(cls, journal: Journal, name: str, provider: str) -> Self:
        """Take over the record of a dead client, and return it.

        Raises:
            SpecError: no pool of this name can be taken over; the message names its owner, if it has one.
            JournalError
        """
        left = _left(journal, name, provider)
        try:
            ownership = journal.own(left.pool, provider, adopt=True)
        except PoolOwned as error:
            raise _owned(name, error.owner) from error
        with ExitStack() as stack:
            stack.callback(ownership.close)
            text = ownership.kept(REST)
            if text is None:
                raise SpecError(
                    f"The pool {name!r} was left before it had machines: remove it with `outrider gc --apply`."
                )
            written = json.loads(text)
            record = cls(ownership, written["pool"], _key(ownership), secrets.token_hex(2), written.get("lease_s"))
            for each in written["machines"]:
                machine = _machine(each["machine"])
                record.machines[machine.id] = machine
                record._host_keys[machine.id] = tuple(each["host_keys"])
            stack.pop_all()
        return record

    async def around(self, fleet: Fleet, settings: Settings) -> tuple[RecordedFleet, Settings]:
        """Return a wrapper of the fleet (the pool's machines) that records the machines here, and the pool's settings.

        If the pool takes over all machines of its dead client, the returned settings request as many nodes as there
        are machines.

        Raises:
            ProviderError
        """
        if settings.attach is None:
            return RecordedFleet(fleet, self), settings
        nodes = settings.nodes
        most = len(self.machines) if settings.attach == "all" else nodes.desired + nodes.spare
        recorded = await RecordedFleet.adopt(fleet, self, most, settings.lease_s)
        if settings.attach == "all":
            settings = replace(settings, nodes=Nodes(len(recorded.adopted) or nodes.desired))
        return recorded, settings

    async def close(self) -> None:
        """Close the record, after the fleet (the pool's machines) is closed.

        If the fleet has confirmed that nothing of the pool is left, the record is deleted.
        """
        if self._later is not None:
            await self._later
        self._ownership.close()

    def pinned(self, machine: Machine) -> tuple[str, ...]:
        """Return the SSH host keys that a machine may present instead of the key from its launch.

        An empty tuple means that only the key from its launch is valid.
        """
        return self._host_keys.get(machine.id, ())

    async def rotated(self, machine: Machine, keys: tuple[str, ...]) -> None:
        """Record the SSH host keys that the machine may present from now on. Return when they are written to disk."""
        self._host_keys[machine.id] = keys
        self._changed = True
        await self._save()

    def has(self, *machines: Machine) -> None:
        """Add machines of the pool to the record.

        The record is written in the background. Until then, a later client could end these machines, but not take them
        over.
        """
        self.machines.update({machine.id: machine for machine in machines})
        self._save_later()

    def lost(self, *machines: MachineId) -> None:
        for machine in machines:
            self.machines.pop(machine, None)
            self._host_keys.pop(machine, None)
        self._save_later()

    def _save_later(self) -> None:
        self._changed = True
        if self._later is None or self._later.done():
            self._later = asyncio.create_task(self._save(), name="outrider-adoption")

    async def _save(self) -> None:
        """Write the record to disk. Changes that arrive during a write are written together by the next write.

        The pool continues if a write fails: machines that no client can take over end themselves when their lease
        expires.
        """
        async with self._saving:
            while self._changed:
                self._changed = False
                with suppress(ProviderError):
                    await in_thread(self._ownership.keep, REST, self._text(), abandon=True)

    def _text(self) -> str:
        machines = [
            {"machine": _written(machine), "host_keys": self.pinned(machine)} for machine in self.machines.values()
        ]
        return json.dumps({"pool": self.pool, "lease_s": self.lease_s, "machines": machines})


def open_record(settings: Settings, name: str, tag: str, pool: str) -> AdoptionRecord:
    """Create an adoption record. If ``settings.attach`` is set, take over the record of a dead client instead.

    ``name``: the pool's name for people. ``tag``: the unique name of a new pool. ``pool``: the pool's name on its
    nodes.

    Raises:
        SpecError, ProviderError
    """
    journal, provider = Journal.open(), settings.provider.name
    if settings.attach:
        return AdoptionRecord.adopt(journal, name, provider)
    key = new_client_key(settings)
    return AdoptionRecord.begin(journal, tag, provider, key=key, pool=pool, lease_s=settings.lease_s)


def machines_kept(journal: Journal, pool: str) -> tuple[Path, dict[str, tuple[Machine, tuple[str, ...]]]] | None:
    """Return the path of a pool's SSH key file, and the pool's machines, each with its possible host keys.

    Return None if the pool has no record of its machines, or reaches no machine by SSH. The pool may have a living
    owner; reading its record does not change that.
    """
    key, rest = journal.kept(pool, KEY), journal.kept(pool, REST)
    if key is None or rest is None:
        return None
    try:
        written = json.loads(rest.read_text())
        machines = [(_machine(each["machine"]), tuple(each["host_keys"])) for each in written["machines"]]
    except (OSError, ValueError, KeyError, TypeError):  # another version wrote the record, or the pool has just ended
        return None
    return key, {machine.id: (machine, keys or (machine.host_key,)) for machine, keys in machines}


def machines_left(journal: Journal) -> dict[str, float | None]:
    """Return the ids of the machines that dead clients on this computer have left, and that a client can adopt.

    Each id maps to the longest lease of its pool in seconds, or to None if that lease is unknown.

    Raises:
        JournalError
    """
    left: dict[str, float | None] = {}
    for record in journal.records() if journal.pools.is_dir() else ():
        if record.standing == "dead" and (rest := journal.kept(record.pool, REST)) is not None:
            # another version wrote the record, or the pool has just ended
            with suppress(OSError, ValueError, KeyError, TypeError):
                written = json.loads(rest.read_text())
                left |= {str(each["machine"]["id"]): written.get("lease_s") for each in written["machines"]}
    return left


def _key(ownership: Ownership) -> PoolKey | None:
    text = ownership.kept(KEY)
    if text is None:
        return None
    from ..transport.ssh import kept_key

    return kept_key(text)


def lease_kept(ownership: Ownership) -> float | None:
    """Return the longest lease in seconds of any machine in a dead client's pool; None: unknown."""
    try:
        lease_s = json.loads(ownership.kept(REST) or "{}").get("lease_s")
    except (ValueError, AttributeError):  # the record cannot be read, so no client can attach to the pool either
        return None
    return float(lease_s) if isinstance(lease_s, (int, float)) else None


def _left(journal: Journal, name: str, provider: str) -> PoolRecord:
    """Return the record of the only pool of this name that a dead client has left.

    ``journal``: this computer's database of pools.

    Raises:
        SpecError: no such pool, several of them, or a pool of another owner or provider.
    """
    records = [record for record in journal.records() if is_named(record.pool, name)]
    dead = [record for record in records if record.standing == "dead"]
    if len(dead) > 1:
        names = ", ".join(record.pool for record in dead)
        raise SpecError(f"Several pools {name!r} were left: attach to one of {names}; `outrider ps` shows them.")
    for record in dead or records:
        match record.standing:
            case "alive":
                raise _owned(name, record.owner)
            case "elsewhere":
                raise SpecError(f"The pool {name!r} is of {record.owner}, which may be alive: attach to it there.")
            case _:
                pass
        if record.provider != provider:
            whose = record.provider or "nobody known"
            raise SpecError(f"The pool {name!r} has machines of {whose}, not of {provider}: attach with its own.")
        return record
    others = ", ".join(each.pool for each in journal.orphans()) or "none"
    raise SpecError(f"There is no pool {name!r} to attach to in {journal.root}; left by dead clients: {others}.")


def _owned(name: str, owner: Owner | None) -> SpecError:
    whose = owner or "unknown"
    return SpecError(f"The pool {name!r} has a living owner: {whose}. End that program first, or open another pool.")


@dataclass(slots=True)
class RecordedFleet:
    """A wrapper of a fleet (the machines of a pool) that keeps these machines in the adoption record.

    ``adopted``: machines that a dead client left and that `launch` has not returned yet.
    """

    fleet: Fleet
    record: AdoptionRecord
    adopted: list[Machine] = field(default_factory=list)

    @classmethod
    async def adopt(cls, fleet: Fleet, record: AdoptionRecord, most: int, lease_s: float) -> RecordedFleet:
        """Return a fleet that adopts up to ``most`` of the machines that a dead client left.

        ``lease_s``: the lease of machines that are launched from now on, in seconds.

        Raises:
            ProviderError
        """
        assert isinstance(fleet, Adopting), "what outlives its client can be adopted"
        known = list(record.machines.values())
        adopted = list(await fleet.adopt(known, most, lease_s=record.lease_s))
        if record.lease_s is not None:
            record.lease_s = max(record.lease_s, lease_s)
        record.lost(*(record.machines.keys() - {machine.id for machine in adopted}))
        return cls(fleet, record, adopted)

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Return adopted machines at once, possibly fewer than ``count``; launch machines when none is left to adopt.

        Adopted machines are returned at once because their leases expire unless the client connects to them.
        """
        if self.adopted:
            first, self.adopted = self.adopted[:count], self.adopted[count:]
            return first
        machines = await self.fleet.launch(request, count)
        self.record.has(*machines)
        return machines

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        await self.fleet.terminate(ids)
        self.record.lost(*ids)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        self.fleet.unusable(machine, cause, for_good=for_good)

    async def events(self) -> AsyncGenerator[MachineEvent, None]:
        async for event in self.fleet.events():
            match event:
                case MachineReachable(machine):
                    self.record.has(machine)
                case MachineGone(gone):
                    self.record.lost(gone)
                case _:
                    pass
            yield event


def _written(machine: Machine) -> dict[str, Any]:
    values = {each.name: getattr(machine, each.name) for each in fields(Machine) if each.name not in NOT_KEPT}
    address = None if machine.address is None else asdict(machine.address)
    login = None if machine.login is None else asdict(machine.login)
    return values | {"address": address, "login": login, "env": dict(machine.env), "facts": dict(machine.facts)}


def _machine(written: Mapping[str, Any]) -> Machine:
    known = {each.name for each in fields(Machine)}
    values = {name: value for name, value in written.items() if name in known}
    kept = {"address": Address, "login": Login}
    values |= {name: kind(**_tuples(values[name])) for name, kind in kept.items() if values.get(name) is not None}
    return Machine(**_tuples(values))


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists to tuples in values that were read from JSON: the dataclasses have tuples, and JSON has none."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
