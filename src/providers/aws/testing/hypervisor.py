"""What has the machines: the cloud says when one gets power and loses it, and the hypervisor says when one gave up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Boot:
    """A machine that is to get power.

    ``metadata``: what its metadata service answers, by path below ``/latest/meta-data/``; a public key that was named
    at the launch is at ``public-keys/0/openssh-key``. ``tokens_required``: and only to those who have a token (IMDSv2).
    ``on_poweroff``: to be called, from any thread, once the machine has switched itself off.
    """

    instance_id: str
    private_ip: str
    zone: str
    type: str
    user_data: str  # as text: decoded; bytes that are not UTF-8 are kept by surrogateescape
    metadata: Mapping[str, str]
    on_poweroff: Callable[[], None]
    public_ip: str | None = None
    tokens_required: bool = False
    hop_limit: int = 1


class Hypervisor(Protocol):
    """Called from many threads, but for one machine by one at a time: boot returns before power_off is called."""

    def boot(self, machine: Boot) -> None:
        """Return when the machine has power. What is raised ends the instance with Server.InternalError."""
        ...

    def power_off(self, instance_id: str) -> None:
        """As pulling the plug, and gone with its disk. Also called for a machine that has switched itself off."""
        ...

    def metadata(self, instance_id: str, path: str, value: str | None) -> None:
        """From now on the machine's metadata service answers so at ``path``; None: 404. It may be off already."""
        ...


@dataclass(slots=True)
class Paper:
    """The default: machines that have no host. ``on``: those that have power; ``served``: what they can read."""

    on: dict[str, Boot] = field(default_factory=dict)
    served: dict[str, dict[str, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def boot(self, machine: Boot) -> None:
        with self._lock:
            self.on[machine.instance_id] = machine
            self.served[machine.instance_id] = dict(machine.metadata)

    def power_off(self, instance_id: str) -> None:
        with self._lock:
            self.on.pop(instance_id, None)
            self.served.pop(instance_id, None)

    def metadata(self, instance_id: str, path: str, value: str | None) -> None:
        with self._lock:
            served = self.served.get(instance_id)
            if served is not None and value is None:
                served.pop(path, None)
            elif served is not None and value is not None:
                served[path] = value

    def shut_down(self, instance_id: str) -> None:
        """The machine switches itself off, as by ``poweroff`` typed on it.

        Raises:
            KeyError: it has no power.
        """
        with self._lock:
            machine = self.on.pop(instance_id)
        machine.on_poweroff()
