"""The resources held by attempts on their node besides a slot: memory, threads, and devices of their own. No I/O.

HOLD-1: two running attempts have no device in common, as long as the client assigns no more devices than the node has.
HOLD-2: a device may go to another attempt while the process of its answered attempt is still ending; free devices are
used first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..wire.messages import Hold

VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN = "OUTRIDER_OWN_DEVICES"  # set for a task with devices of its own, to the value of VISIBLE
THREADS: tuple[str, ...] = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Allotment(NamedTuple):
    """A worker's share of its node: environment variables, and its memory in bytes.

    ``defaults`` apply only to variables that the user has not set. ``memory_bytes`` 0: unlimited.
    """

    settings: dict[str, str]
    defaults: dict[str, str]
    memory_bytes: int


FREE = Allotment({}, {}, 0)


@dataclass(slots=True)
class Holdings:
    devices: Sequence[str] = ()  # the node's devices, by their CUDA names
    holds: dict[int, Hold] = field(default_factory=dict)  # attempt -> its resources, until the attempt has ended
    _users: dict[str, list[int]] = field(default_factory=dict)  # device -> its workers, the newest last
    # worker with devices -> its attempt, until the attempt has ended
    _attempts: dict[int, int] = field(default_factory=dict)

    def add(self, hold: Hold) -> None:
        self.holds[hold.attempt] = hold

    def allotment(self, worker: int, attempt: int) -> Allotment:
        """Return the share of an attempt's new worker, and assign devices to the worker."""
        hold = self.holds.get(attempt)
        if hold is None:
            return FREE
        settings: dict[str, str] = {}
        if hold.gpus:
            own = ",".join(self._take(worker, attempt, hold.gpus))
            settings = {VISIBLE: own, OWN: own}
        defaults = dict.fromkeys(THREADS, str(max(1, hold.millicpus // 1000))) if hold.millicpus else {}
        return Allotment(settings, defaults, hold.memory_bytes)

    def ended(self, attempt: int) -> None:
        """Release an answered attempt's resources; its process may still be ending."""
        if self.holds.pop(attempt, None) is not None:
            for worker in [worker for worker, its in self._attempts.items() if its == attempt]:
                del self._attempts[worker]

    def gone(self, worker: int) -> None:
        """Release the devices of a worker whose processes are gone."""
        self._attempts.pop(worker, None)
        for users in self._users.values():
            if worker in users:
                users.remove(worker)

    def _take(self, worker: int, attempt: int, count: int) -> list[str]:
        for before in [worker for worker, its in self._attempts.items() if its == attempt]:
            del self._attempts[before]  # this worker was ended before it had read the attempt
        taken = sorted(self.devices, key=self._use)[:count]
        taken.sort(key=self.devices.index)
        for device in taken:
            self._users.setdefault(device, []).append(worker)
        self._attempts[worker] = attempt
        return taken

    def _use(self, device: str) -> tuple[int, int]:
        users = self._users.get(device, [])
        return sum(worker in self._attempts for worker in users), len(users)


def named_devices(count: int, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the CUDA names of the ``count`` devices that a node's tasks see with the environment ``env``."""
    visible = [name.strip() for name in env.get(VISIBLE, "").split(",") if name.strip()]
    return tuple(visible[:count]) if len(visible) >= count else tuple(map(str, range(count)))
