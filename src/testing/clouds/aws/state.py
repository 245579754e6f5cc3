"""The state of a cloud: its regions, each with the resources of EC2 and their history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from math import inf
from random import Random
from typing import Any, Protocol
from uuid import uuid4

from ....lazy_dataclass import dataclass
from ..shared.billing import Ledger
from ..shared.clock import Clock
from ..shared.hypervisor import Hypervisor
from ..shared.versions import Versions
from .behaviour import Behaviour
from .faults import Faults
from .instances import Instance, SpotRequest, Volume
from .moto import Moto
from .protocol import EC2Error
from .throttle import Buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A launch template: ``versions[0]`` is version 1."""

    id: str
    name: str
    created: float
    tags: Mapping[str, str]
    versions: tuple[Mapping[str, Any], ...]
    default: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGroup:
    id: str
    name: str
    strategy: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    name: str
    architecture: str
    root_device: str
    owner: str
    volumes: Mapping[str, Mapping[str, Any]]  # by device, in EC2's form
    public: bool = True


class InstanceLife(Protocol):
    """The interface of the simulated life of one instance. `lifecycle.Lifecycle` implements it."""

    @property
    def instance(self) -> Instance: ...

    def terminate(self) -> None: ...

    def interrupt(self, notice_s: float, rebalance_s: float | None) -> None: ...

    def withdraw(self) -> None: ...

    def unplug(self) -> None: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def switched_itself_off(self) -> None: ...


class CloudState:
    """One cloud. Hold ``lock`` for reading and writing."""

    def __init__(self, behaviour: Behaviour, hypervisor: Hypervisor, moto: Moto) -> None:
        self.behaviour, self.hypervisor, self.moto = behaviour, hypervisor, moto
        self.failures: list[Exception] = []  # exceptions of the hypervisor, and of this cloud itself
        self.clock, self.faults, self.lock = Clock(self.failures.append), Faults(), threading.RLock()
        self.ledger = Ledger(self.clock.unix)
        self.regions: dict[str, Region] = {}
        self._ids, self._ages = (Random(f"{what} {behaviour.seed}") for what in ("ids", "ages"))  # noqa: S311 - reproducible by its seed
        self._threads: list[threading.Thread] = []

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-0{self._ids.getrandbits(64):016x}"

    def new_request_id(self) -> str:
        return str(uuid4())

    def age_of_answers(self) -> float:
        stale_s = self.behaviour.stale_s
        return self._ages.uniform(0.0, stale_s) if self.behaviour.wavering else stale_s

    def region(self, name: str) -> Region:
        """Return the region of this name, created on first use.

        Raises:
            KeyError: The region does not exist.
        """
        with self.lock:
            if name not in self.regions:
                self.moto.region(name)
                self.regions[name] = Region(self, name)
            return self.regions[name]

    def spawn(self, deed: Callable[[], None]) -> None:
        """Run a function that may take long in its own thread."""
        thread = threading.Thread(target=deed, name="ec2-machine", daemon=True)
        with self.lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
            thread.start()

    def advance(self, seconds: float) -> None:
        with self.clock.held():
            while self._settle():  # changes of power that are in progress finish before the time advances
                pass
            until = self.clock.now() + seconds
            while self._settle() or self.clock.step(until):
                pass

    def close(self) -> None:
        """Stop the clock, and return when no thread runs any more."""
        self.clock.close()
        while self._settle():
            pass

    def _settle(self) -> bool:
        """Wait for threads that power machines on or off; return False if there were none."""
        with self.lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        return bool(threads)


@dataclass(slots=True)
class Region:
    state: CloudState
    name: str
    instances: Versions[Instance] = field(init=False)
    volumes: Versions[Volume] = field(init=False)
    spot_requests: Versions[SpotRequest] = field(init=False)
    templates: Versions[Template] = field(init=False)
    placement_groups: Versions[PlacementGroup] = field(init=False)
    buckets: Buckets = field(init=False)
    lives: dict[str, InstanceLife] = field(default_factory=dict)  # by instance
    fleets: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    answered: dict[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)  # by (action, ClientToken)
    # Id -> creation time, for resources in moto that may not be visible yet.
    young: dict[str, float] = field(default_factory=dict)
    assigned_addresses: dict[str, int] = field(default_factory=dict)  # index of the last assigned address, by subnet
    images: dict[str, str] = field(default_factory=dict)  # id -> name of the parameter that returned it
    own_images: dict[str, Image] = field(default_factory=dict)  # registered by users

    def __post_init__(self) -> None:
        now = self.state.clock.now
        self.instances, self.volumes, self.spot_requests = Versions(now), Versions(now), Versions(now)
        self.templates, self.placement_groups = Versions(now), Versions(now)
        self.buckets = Buckets(now)

    def is_young(self, group: str, ago: float) -> bool:
        return self.young.get(group, -inf) > self.state.clock.now() - ago

    def check_young(self, named: Iterable[str], ago: float) -> None:
        """Check that a call can already see these groups.

        Raises:
            EC2Error: A group was created less than ``ago`` seconds ago.
        """
        for each in named:
            if self.is_young(each, ago):
                raise EC2Error("InvalidGroup.NotFound", f"The security group '{each}' does not exist")

    def living(self) -> list[Instance]:
        """Return the instances that use capacity and quota."""
        return [each for each in self.instances.all() if each.state in ("pending", "running")]
