"""Saves in the background: a thread per save, one at a time. A failure is raised by the next call of the training."""

from __future__ import annotations

import threading
import time
from collections import Counter

from ..api.errors import CheckpointError
from .participant import Participant
from .records import CheckpointId, complete
from .snapshot import Snapshot
from .store import polls
from .writing import Parts, clean, complete_checkpoint, write


class Saving:
    """The saves of this rank that are not complete yet. For use by one thread."""

    def __init__(self, participant: Participant, *, keep: int, within_s: float) -> None:
        self._participant = participant
        self._keep = keep
        self._within_s = within_s
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._failure: CheckpointError | None = None
        self._pending: dict[CheckpointId, Parts] = {}  # rank 0: checkpoints to be completed
        self._newest: CheckpointId | None = None
        self._begun: Counter[int] = Counter()  # saves by step; the same on all ranks

    def start(self, step: int, snapshot: Snapshot, *, delay_s: float) -> None:
        """Write in the background. The previous save must be `settled`."""
        self._hurry.clear()
        self._newest = at = CheckpointId(self._participant.term.number, step, self._begun[step])
        self._begun[step] += 1
        self._thread = threading.Thread(target=self._run, args=[at, snapshot, delay_s], name="outrider-checkpoint")
        self._thread.start()  # no daemon: a script ends only when its last save is written

    def settle(self, *, hurry: bool) -> None:
        """Return when this rank's part is written. ``hurry``: do not wait to see what other ranks have written.

        Raises:
            CheckpointError: the part could not be written.
        """
        if self._thread is not None:
            if hurry:
                self._hurry.set()
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def finish(self) -> None:
        """Return when the latest save is complete: every rank's part is written, and the manifest.

        Raises:
            CheckpointError: the save could not be written, or a rank's part is missing.
        """
        self.settle(hurry=False)
        newest, self._newest = self._newest, None
        if newest is None:
            return
        lack: str | None = None
        for _ in polls(self._participant.store, self._within_s):
            if self._participant.leads:
                lack = self._complete()
            else:  # a later checkpoint may be complete, and this one deleted
                done = any(at >= newest for at in complete(self._participant.store.names()))
                lack = None if done else "rank 0 has not completed it"
            if lack is None:
                return
        raise CheckpointError(
            f"Step {newest.step} of {self._participant.run!r} is not complete after {self._within_s:g} s: {lack}. "
            "Every rank must save the same steps.",
            run=self._participant.run,
            url=self._participant.store.url,
        )

    def _run(self, at: CheckpointId, snapshot: Snapshot, delay_s: float) -> None:
        try:
            self._hurry.wait(delay_s)
            write(self._participant, at, snapshot, hurry=self._hurry, within_s=self._within_s)
            if self._participant.leads:
                self._pending[at] = Parts(self._participant, at)
                for _ in polls(self._participant.store, self._within_s, self._hurry):
                    if self._complete() is None:
                        break
        except CheckpointError as error:
            error.run = self._participant.run
            self._failure = error
        except Exception as error:  # noqa: BLE001  the training's thread raises it
            self._failure = CheckpointError(
                f"Step {at.step} of {self._participant.run!r} could not be saved ({type(error).__name__}: {error}).",
                run=self._participant.run,
                url=self._participant.store.url,
            )
            self._failure.__cause__ = error

    def _complete(self) -> str | None:
        """Complete what is possible, forget what is older; return what the newest pending checkpoint lacks, or None."""
        lacks = {at: complete_checkpoint(self._participant, at, self._pending[at]) for at in sorted(self._pending)}
        done = [at for at, lack in lacks.items() if lack is None]
        if done:
            self._pending = {at: parts for at, parts in self._pending.items() if at > done[-1]}
            clean(self._participant, self._keep)
        return lacks[max(self._pending)] if self._pending else None


def spread_s(rank: int, ranks: int, since_last_s: float) -> float:
    """Seconds that a rank waits before it writes: ranks spread over a tenth of the time between saves, at most 5 s."""
    return min(5.0, since_last_s / 10) * rank / ranks


def now() -> float:
    return time.monotonic()
