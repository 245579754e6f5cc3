"""Keep the adoption record: what a later client needs to take over the pool of a dead one. It holds the pool's key,
where machines are reached by SSH, and its machines with their host keys.

It lies in the journal, mode 0600, and goes with the pool. ADOPTION-1: a host key is written down before it is in use.
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
from ...providers.journal import Journal, Ownership, PoolOwned, PoolRecord
from ...providers.threads import in_thread
from ..api.errors import SpecError
from ..api.settings import Nodes, is_named
from .from_settings import new_client_key

if TYPE_CHECKING:
    from ...providers.pool_lock import Owner
    from ..api.settings import Settings
    from ..transport.ssh import PoolKey

KEY, REST = "client_key", "takeover"  # the names of the two files in the journal, which other versions read
NOT_KEPT = ("witnesses",)  # no machine that outlives its client has any


class AdoptionRecord:
    """One pool's adoption record. ``name``: its `unique` name; ``pool``: its nodes' name for it; ``turn``: which of its
    clients this is, empty: the first; ``key``: None where no machine is reached by SSH; ``lease_s``: the longest lease
    that any of its machines has, None: not known.
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
            SpecError: there is none that may be taken over; says whose it is.
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
        """Return the fleet with its machines in this record, and the settings; if the pool takes over all remaining
        machines, with their number as the number of nodes.

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
        """Close the record when the fleet is closed. If the fleet has settled the pool, the record goes with it."""
        if self._later is not None:
            await self._later
        self._ownership.close()

    def pinned(self, machine: Machine) -> tuple[str, ...]:
        """Return the keys that the host may show in place of the one it was launched with; empty: that one."""
        return self._host_keys.get(machine.id, ())

    async def rotated(self, machine: Machine, keys: tuple[str, ...]) -> None:
        """Note the keys that the host may show from now on. Return when they are written."""
        self._host_keys[machine.id] = keys
        self._changed = True
        await self._save()

    def has(self, *machines: Machine) -> None:
        """Note machines of the pool. They are written soon: until then they could only be ended, not taken over."""
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
        """Write the record. Changes made during a write are written together by the next writer. If writing fails, the
        pool goes on: a machine that nobody can take over is ended by its lease.
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
    """Return a new record, or, if ``settings`` attach to a pool, the record of its dead client. ``name``: for people;
    ``tag``: the unique name of a new pool; ``pool``: its nodes' name for it.

    Raises:
        SpecError, ProviderError
    """
    journal, provider = Journal.open(), settings.provider.name
    if settings.attach:
        return AdoptionRecord.adopt(journal, name, provider)
    key = new_client_key(settings)
    return AdoptionRecord.begin(journal, tag, provider, key=key, pool=pool, lease_s=settings.lease_s)


def machines_kept(journal: Journal, pool: str) -> tuple[Path, dict[str, tuple[Machine, tuple[str, ...]]]] | None:
    """Return the file of a pool's key, and its machines with the possible keys of their hosts; None: the pool keeps no
    machines, or reaches none by SSH.

    The pool may have a living owner, which stays its owner.
    """
    key, rest = journal.kept(pool, KEY), journal.kept(pool, REST)
    if key is None or rest is None:
        return None
    try:
        written = json.loads(rest.read_text())
        machines = [(_machine(each["machine"]), tuple(each["host_keys"])) for each in written["machines"]]
    except (OSError, ValueError, KeyError, TypeError):  # of another version, or it has just ended
        return None
    return key, {machine.id: (machine, keys or (machine.host_key,)) for machine, keys in machines}


def machines_left(journal: Journal) -> dict[str, float | None]:
    """Return the machines that dead clients of this computer have left, and that another one can adopt, with the
    longest lease of their pool in seconds, or None where that is not known.

    Raises:
        JournalError
    """
    left: dict[str, float | None] = {}
    for record in journal.records() if journal.pools.is_dir() else ():
        if record.standing == "dead" and (rest := journal.kept(record.pool, REST)) is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):  # of another version, or it has just ended
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
    """Return the longest lease that any machine of a dead client's pool may have; None: not known."""
    try:
        lease_s = json.loads(ownership.kept(REST) or "{}").get("lease_s")
    except (ValueError, AttributeError):  # nobody can attach to it either
        return None
    return float(lease_s) if isinstance(lease_s, (int, float)) else None


def _left(journal: Journal, name: str, provider: str) -> PoolRecord:
    """Return the journal's record of the one pool of that name that a dead client has left."""
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
    """A fleet (`providers.base.Fleet`) around another one, with its machines in the adoption record. ``adopted``: the
    machines of a dead client, which are launched first.
    """

    fleet: Fleet
    record: AdoptionRecord
    adopted: list[Machine] = field(default_factory=list)

    @classmethod
    async def adopt(cls, fleet: Fleet, record: AdoptionRecord, most: int, lease_s: float) -> RecordedFleet:
        """Return a fleet with up to ``most`` of the machines that a dead client left. ``lease_s``: that of machines
        launched from now on.

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
        """Return adopted machines at once, even if fewer than asked for: their leases run out unless somebody connects
        to them. When there are none any more, launch machines.
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
    """Return values that were JSON, which has no tuples, as the dataclasses have them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
