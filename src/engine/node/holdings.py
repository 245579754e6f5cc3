"""The holdings of attempts on their node, besides a slot: memory, threads, and devices of their own. No I/O.

HOLD-1: two attempts that run see no device in common, as long as the client gives them no more than the node has.
HOLD-2: a device may go to another attempt while the process of its answered one still ends; free devices go first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..wire.messages import Hold

VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN = "OUTRIDER_OWN_DEVICES"  # set for a task with devices of its own: the same as VISIBLE
THREADS: tuple[str, ...] = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Allotment(NamedTuple):
    """A worker's share of its node: environment variables, and its memory in bytes.

    ``defaults`` apply to variables that the user has not set. 0 bytes: unlimited.
    """

    settings: dict[str, str]
    defaults: dict[str, str]
    memory_bytes: int


FREE = Allotment({}, {}, 0)


@dataclass(slots=True)
class Holdings:
    devices: Sequence[str] = ()  # the node's, as CUDA names them
    holds: dict[int, Hold] = field(default_factory=dict)  # by attempt, until it has ended
    _users: dict[str, list[int]] = field(default_factory=dict)  # device -> the workers that have it, the latest last
    _attempts: dict[int, int] = field(default_factory=dict)  # worker with devices -> its attempt, until that has ended

    def add(self, hold: Hold) -> None:
        self.holds[hold.attempt] = hold

    def allotment(self, worker: int, attempt: int) -> Allotment:
        """Return the share of an attempt's new worker. Its devices are its own from now on."""
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
        """Handle that an attempt has been answered; its process may still end."""
        if self.holds.pop(attempt, None) is not None:
            for worker in [worker for worker, its in self._attempts.items() if its == attempt]:
                del self._attempts[worker]

    def gone(self, worker: int) -> None:
        """Handle that a worker's processes are gone."""
        self._attempts.pop(worker, None)
        for users in self._users.values():
            if worker in users:
                users.remove(worker)

    def _take(self, worker: int, attempt: int, count: int) -> list[str]:
        for before in [worker for worker, its in self._attempts.items() if its == attempt]:
            del self._attempts[before]  # its worker was ended before it had read the attempt
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
    """Return CUDA's names of the ``count`` devices that a node's tasks see in the environment ``env``."""
    visible = [name.strip() for name in env.get(VISIBLE, "").split(",") if name.strip()]
    return tuple(visible[:count]) if len(visible) >= count else tuple(map(str, range(count)))
