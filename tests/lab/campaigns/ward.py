"""A lab's machines of which some are ill from their birth, in what their user data does."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, assert_never

from cloud import LabHypervisor

from outrider.testing.clouds.shared.hypervisor import Boot

if TYPE_CHECKING:
    from netlab import Lab

Illness = Literal["unread", "unarmed", "powerless"]


class Ward(LabHypervisor):
    """``unleased``: the ids of the machines that nothing on them can end."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.unleased: set[str] = set()
        self._illnesses: deque[Illness] = deque()
        self._queue = threading.Lock()

    def falls_ill(self, *illnesses: Illness) -> None:
        """One each of the machines that boot next.

        "unread": cloud-init does not understand its user data: nothing of it is done, and sshd does not start.
        "unarmed": the folder of its lease cannot be made. "powerless": nor does it find ``poweroff``.
        """
        with self._queue:
            self._illnesses.extend(illnesses)

    def boot(self, machine: Boot) -> None:
        with self._queue:
            illness = self._illnesses.popleft() if self._illnesses else None
        if illness in ("unread", "powerless"):
            self.unleased.add(machine.instance_id)
        super().boot(machine if illness is None else replace(machine, user_data=_ill(machine.user_data, illness)))


def _ill(text: str, illness: Illness) -> str:
    unarmed = text.replace("/run/outrider", "/proc/outrider")
    match illness:
        case "unread":
            return "#cloud-config\n{not: json, "
        case "unarmed":
            return unarmed
        case "powerless":
            return unarmed.replace("poweroff", "pooweroff").replace("shutdown -P", "shutdoown -P")
        case _:
            assert_never(illness)
