"""The machines of a test cloud: they boot, run, and are ended by the user, by themselves or by the cloud."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from random import Random
from typing import Any, Literal

from ....lazy_dataclass import dataclass
from .billing import Bill, Ledger
from .clock import Clock
from .faults import Faults, Market, NoBoot
from .hypervisor import Boot, Hypervisor
from .versions import Versions

State = Literal["pending", "running", "stopped", "shutting-down", "terminated"]
ENDED: tuple[State, ...] = ("shutting-down", "terminated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A test cloud's times, in seconds.

    Args:
        boot_s: The time from pending to running.
        stop_s: The time from shutting-down to terminated.
        stale_s: The age of the state that lists show.
        wavering: Whether that age is random between 0 and ``stale_s``, so that a later list may show an earlier state.
        remembered_s: How long lists show a terminated machine.
    """

    boot_s: float = 0.05
    stop_s: float = 0.05
    stale_s: float = 0.0
    wavering: bool = False
    remembered_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMachine:
    """A test cloud's machine. ``reason``: the code for its end; ``body``: other parameters of its create call."""

    id: str
    type: str
    zone: str
    hourly_usd: float
    private_ip: str
    public_ip: str | None = None
    market: Market = "on-demand"
    user_data: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    state: State = "pending"
    reason: str = ""

    @property
    def lives(self) -> bool:
        return self.state in ("pending", "running")


class Machines:
    """All machines of one test cloud. To read and write several machines, hold ``lock``.

    ``powered_off``: the state of a machine that has switched itself off. In this state, the machine costs money until
    it is ended. ``"running"``: the cloud does not notice the switch-off.
    """

    def __init__(  # noqa: PLR0917
        self,
        clock: Clock,
        faults: Faults,
        ledger: Ledger,
        hypervisor: Hypervisor,
        times: Times,
        failed: Callable[[Exception], None],
        *,
        seed: int,
        powered_off: State,
    ) -> None:
        self.clock, self.faults, self.ledger, self.hypervisor, self.times = clock, faults, ledger, hypervisor, times
        self.lock = threading.RLock()
        self._failed, self._powered_off = failed, powered_off
        self._luck = Random(f"ages {seed}")  # noqa: S311 - reproducible by its seed
        self._all: Versions[FrontMachine] = Versions(clock.now)
        self._power: dict[str, Literal["booting", "on", "going"]] = {}
        self._threads: list[threading.Thread] = []

    # --- queries ------------------------------------------------------------------------------------------------------

    def all(self) -> list[FrontMachine]:
        with self.lock:
            return self._all.all()

    def get(self, name: str) -> FrontMachine:
        """The machine of this id.

        Raises:
            KeyError: there is no such machine.
        """
        with self.lock:
            machine = self._all.get(name)
        if machine is None:
            raise KeyError(name)
        return machine

    def shown(self) -> list[FrontMachine]:
        """Return all machines as a list of the cloud shows them: the list may be outdated."""
        with self.lock:
            stale_s = self.times.stale_s
            return self._all.all(self._luck.uniform(0.0, stale_s) if self.times.wavering else stale_s)

    # --- changes ------------------------------------------------------------------------------------------------------

    def create(self, machine: FrontMachine) -> FrontMachine:
        """Add a pending machine and start its boot."""
        with self.lock:
            created = replace(machine, created=self.clock.unix())
            self._all.put(created.id, created)
            self.ledger.open(
                Bill(created.id, created.type, created.zone, created.market, created.hourly_usd, created.created)
            )
            self.clock.after(self.times.boot_s, partial(self._spawn, partial(self._boot, created.id)))
            return created

    def end(self, name: str, reason: str = "") -> None:
        """End a machine. A machine that has already ended stays as it is.

        Raises:
            KeyError: There is no such machine.
        """
        with self.lock:
            if self.get(name).state in ENDED:
                return
            self._put(name, state="shutting-down", reason=reason)
            match self._power.get(name):
                case None:
                    self.clock.after(self.times.stop_s, partial(self._ended, name))
                case "on":
                    self._unplug_later(name)
                case _:  # the machine is booting, after which it is powered off, or it is being powered off
                    pass

    def stop(self, name: str, reason: str = "") -> None:
        """Power a machine off from outside. The machine still exists, and still costs money."""
        with self.lock:
            self._put(name, state="stopped", reason=reason)
            self._unplug_later(name)

    def settle(self) -> bool:
        """Wait for threads that power machines on or off. Return False if there were none."""
        with self.lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        return bool(threads)

    def close(self) -> None:
        """Power all machines off. The clock must be closed first."""
        while self.settle():
            pass
        for each in self.all():
            if self._power.get(each.id) == "on":
                self._unplug(each.id)

    # --- internals ----------------------------------------------------------------------------------------------------

    def _boot(self, name: str) -> None:
        with self.lock:
            machine = self.get(name)
            if machine.state != "pending":
                return
            if self._refused(machine):
                self.end(name, "boot-failed")
                return
            self._power[name] = "booting"
        error: Exception | None = None
        try:
            self.hypervisor.boot(self._described(machine))
        except Exception as failed:  # noqa: BLE001 - the hypervisor is the test's: its failure ends the machine
            error = failed
            self._failed(failed)
        with self.lock:
            self._power[name] = "on"
            if self.get(name).state != "pending":  # the machine has been ended in the meantime
                self._unplug_later(name)
            elif error is not None:
                self.end(name, "boot-failed")
            else:
                self._put(name, state="running")

    def _refused(self, machine: FrontMachine) -> bool:
        return any(
            fault.type in (None, machine.type) and fault.zone in (None, machine.zone) and self.faults.happens(fault)
            for fault in self.faults.of(NoBoot)
        )

    def _described(self, machine: FrontMachine) -> Boot:
        return Boot(
            instance_id=machine.id,
            private_ip=machine.private_ip,
            public_ip=machine.public_ip,
            zone=machine.zone,
            type=machine.type,
            user_data=machine.user_data,
            metadata=machine.metadata,
            on_poweroff=partial(self._switched_itself_off, machine.id),
        )

    def _switched_itself_off(self, name: str) -> None:
        with self.lock:
            self._power.pop(name, None)
            if self.get(name).lives:
                if self._powered_off in ENDED:
                    self.end(name, "powered-off")
                else:
                    self._put(name, state=self._powered_off, reason="powered-off")

    def _unplug_later(self, name: str) -> None:
        if self._power.get(name) == "on":
            self._power[name] = "going"
            self._spawn(partial(self._unplug, name))

    def _unplug(self, name: str) -> None:
        try:
            self.hypervisor.power_off(name)
        except Exception as failed:  # noqa: BLE001 - as in _boot
            self._failed(failed)
        with self.lock:
            self._power.pop(name, None)
            if self.get(name).state == "shutting-down":
                self.clock.after(self.times.stop_s, partial(self._ended, name))

    def _ended(self, name: str) -> None:
        with self.lock:
            if self.get(name).state == "shutting-down":
                self._put(name, state="terminated")
                self.ledger.close(name)
                self.clock.after(self.times.remembered_s, partial(self._forget, name))

    def _forget(self, name: str) -> None:
        with self.lock:
            self._all.put(name, None)

    def _put(self, name: str, **changes: Any) -> None:
        self._all.put(name, replace(self.get(name), **changes))

    def _spawn(self, deed: Callable[[], None]) -> None:
        """Run a function in a thread of its own, because it may take long."""
        thread = threading.Thread(target=deed, name="cloud-machine", daemon=True)
        with self.lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
            thread.start()
