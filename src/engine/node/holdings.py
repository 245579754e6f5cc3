"""The resources that attempts hold on their node besides a slot: memory, CPU threads, and devices (GPUs). No I/O.

HOLD-1: two running attempts have no device in common, as long as the client assigns no more devices than the node has.
HOLD-2: when an attempt has answered, its devices may be given to another attempt although the worker's process has not
ended yet; free devices are given first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..wire.messages import Hold

VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN = "OUTRIDER_OWN_DEVICES"  # set only in tasks with their own GPUs, to the value of CUDA_VISIBLE_DEVICES
THREADS: tuple[str, ...] = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Allotment(NamedTuple):
    """A worker's share of its node: environment variables, and a memory limit in bytes (0: unlimited).

    ``settings`` are always set, ``defaults`` only if the user has not set these variables.
    """

    settings: dict[str, str]
    defaults: dict[str, str]
    memory_bytes: int


FREE = Allotment({}, {}, 0)


@dataclass(slots=True)
class Holdings:
    devices: Sequence[str] = ()  # the node's GPUs, as named in CUDA_VISIBLE_DEVICES
    holds: dict[int, Hold] = field(default_factory=dict)  # attempt that has not ended -> its resources
    _users: dict[str, list[int]] = field(default_factory=dict)  # device -> workers that have it, the newest last
    # worker with devices -> its attempt that has not ended
    _attempts: dict[int, int] = field(default_factory=dict)

    def add(self, hold: Hold) -> None:
        self.holds[hold.attempt] = hold

    def allotment(self, worker: int, attempt: int) -> Allotment:
        """Assign the resources of an attempt to its new worker, and return them."""
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
        """Release the resources of an attempt that has ended; its worker's process may still run."""
        if self.holds.pop(attempt, None) is not None:
            for worker in [worker for worker, its in self._attempts.items() if its == attempt]:
                del self._attempts[worker]

    def gone(self, worker: int) -> None:
        """Release the devices of a worker, all of whose processes have ended."""
        self._attempts.pop(worker, None)
        for users in self._users.values():
            if worker in users:
                users.remove(worker)

    def _take(self, worker: int, attempt: int, count: int) -> list[str]:
        for before in [worker for worker, its in self._attempts.items() if its == attempt]:
            del self._attempts[before]  # an earlier worker ended before it read the attempt
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
    """Return the names (as in CUDA_VISIBLE_DEVICES) of the ``count`` GPUs that tasks with this ``env`` can use."""
    visible = [name.strip() for name in env.get(VISIBLE, "").split(",") if name.strip()]
    return tuple(visible[:count]) if len(visible) >= count else tuple(map(str, range(count)))
