"""The interface between a test cloud and the program that runs its machines: power on, power off, and shutdowns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from ....lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Boot:
    """The description of a machine that is to be powered on.

    Args:
        instance_id: The id of the instance.
        private_ip: The private address.
        zone: The zone.
        type: The type.
        user_data: The decoded text; bytes that are not UTF-8 are kept by surrogateescape.
        metadata: The answers of the metadata service, by path below ``/latest/meta-data/``. A public key that was named
            at launch is at ``public-keys/0/openssh-key``.
        on_poweroff: A function to call, from any thread, when the machine has shut itself down.
        public_ip: The public address, or None.
        tokens_required: Whether the metadata service answers only requests with a token (IMDSv2).
        hop_limit: The hop limit of the metadata service's answers.
    """

    instance_id: str
    private_ip: str
    zone: str
    type: str
    user_data: str  # decoded text; bytes that are not UTF-8 are kept by surrogateescape
    metadata: Mapping[str, str]
    on_poweroff: Callable[[], None]
    public_ip: str | None = None
    tokens_required: bool = False
    hop_limit: int = 1


class Hypervisor(Protocol):
    """Runs machines. Methods are called from many threads; calls for one machine do not overlap."""

    def boot(self, machine: Boot) -> None:
        """Power on the machine, and return. An exception ends the instance with the reason Server.InternalError."""
        ...

    def power_off(self, instance_id: str) -> None:
        """Cut the power, and delete the disk. Also called for a machine that has shut itself down."""
        ...

    def metadata(self, instance_id: str, path: str, value: str | None) -> None:
        """Change an answer of the metadata service. The machine may be off already.

        Args:
            instance_id: The id of the instance.
            path: The path below ``/latest/meta-data/``.
            value: The answer. None: status 404.
        """
        ...


@dataclass(slots=True)
class Paper:
    """The default hypervisor: it runs no machines, and only records their power and metadata.

    Attributes:
        on: The machines with power, by id.
        served: The metadata of the machines, by id.
    """

    on: dict[str, Boot] = field(default_factory=dict)
    served: dict[str, dict[str, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def boot(self, machine: Boot) -> None:
        """Record that the machine has power."""
        with self._lock:
            self.on[machine.instance_id] = machine
            self.served[machine.instance_id] = dict(machine.metadata)

    def power_off(self, instance_id: str) -> None:
        """Record that the machine has no power."""
        with self._lock:
            self.on.pop(instance_id, None)
            self.served.pop(instance_id, None)

    def metadata(self, instance_id: str, path: str, value: str | None) -> None:
        """Change the answer of the metadata service: see `Hypervisor.metadata`."""
        with self._lock:
            served = self.served.get(instance_id)
            if served is not None and value is None:
                served.pop(path, None)
            elif served is not None and value is not None:
                served[path] = value

    def shut_down(self, instance_id: str) -> None:
        """Shut a machine down, as the command ``poweroff`` on the machine would.

        Raises:
            KeyError: The machine has no power.
        """
        with self._lock:
            machine = self.on.pop(instance_id)
        machine.on_poweroff()
