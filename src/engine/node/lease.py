"""The machine's own lease, where it has one: a file that the executor touches as long as its client is heard."""

from __future__ import annotations

import math
import os
import sys

RENEW_S = 1.0  # at most so often


class MachineLease:
    """The lease of the machine, which ends when nobody has touched ``file`` for a while. Empty: there is no lease."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._due_at = -math.inf
        self._told = False

    def renew(self, now: float) -> None:
        """Touch the file: the client was just heard. A failure is only logged, once, in the executor's log."""
        if not self._file or now < self._due_at:
            return
        self._due_at = now + RENEW_S
        try:
            os.utime(self._file)  # to the kernel's present: who does not own the file may do no more
        except OSError as error:
            if not self._told:
                self._told = True
                print(f"the machine's lease {self._file} is not renewed: {error.strerror}", file=sys.stderr, flush=True)
