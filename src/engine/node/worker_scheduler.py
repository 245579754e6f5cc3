"""The executor's decisions: which worker runs an attempt, when it is ended, and what the client is sent. No I/O.

Events (messages, ends of processes, the time) are method calls; `decide` returns the effects: actions that `WorkerPool`
carries out. A warm worker runs many attempts, a fresh worker runs one. These invariants hold; for each, a test breaks
the code:

    EXEC-1  every attempt is answered exactly once: by its result, `Ended` or `Returned`
    EXEC-2  an attempt that may have started is never delivered to a second worker
    EXEC-3  no more attempts run than there are slots, except attempts of two kinds: ranks of a broadcast, which need
            each other and do not wait for slots, and attempts with the flag BESIDE
    EXEC-4  an attempt with streams, or in a process of its own, shares its worker's pipe with no other attempt
    EXEC-5  a fresh worker runs only one attempt, and no warm worker runs an attempt with the flag FRESH
    EXEC-6  `Ended` is sent only after the attempt's worker is gone, or has reported that the attempt is over
    EXEC-7  no attempt waits while a slot is free
    EXEC-8  the attempts that are returned after a `Recall` have not started
    EXEC-9  no attempt stays in a pipe behind an attempt that takes long
    EXEC-10 an attempt begins when its worker is ready; if no worker can start, a few starts are tried, then the
            executor ends
    EXEC-11 `has_run` is true once a worker has read an attempt; attempts with the flag BESIDE do not count
    EXEC-12 an attempt whose timeout has passed ends with the cause TIMEOUT, even if its worker could not be killed at
            once and answers later
    EXEC-13 after `Compare`, an attempt that only the client knows is reported as ended, and an attempt that only the
            node knows is killed
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ...lazy_named_tuple import NamedTuple
from ..wire.messages import Cause, Ended, Returned, Run, RunFlag, Started
from .slots import TRIES, Attempt, Recall, Slot, SlotTable, StartFailures, Worker


class Fork(NamedTuple):
    worker: int
    slot: int  # index of the slot (room for one task) that the worker fills; `instance_info` shows it
    fresh: bool
    attempt: int = 0  # for a fresh worker: the attempt that it will run; 0 otherwise


class Deliver(NamedTuple):
    worker: int
    run: Run
    body: bytes


class Steal(NamedTuple):
    """Take back the attempts that the worker has not read. Then report its results by `finished`, and call `stolen`."""

    worker: int


class Interrupt(NamedTuple):
    worker: int
    attempt: int


class EndWorker(NamedTuple):
    """Kill the worker and all processes that it has started. When all have ended, call `WorkerScheduler.gone`."""

    worker: int


class Answer(NamedTuple):
    """Send the client a message that the executor has created, not a worker."""

    message: Started | Ended | Returned


class Relay(NamedTuple):
    """Forward a worker's message to the client."""

    body: bytes


class GiveUp(NamedTuple):
    """End the executor, because no task can run on this node; ``reason`` says why."""

    reason: str


Effect = Fork | Deliver | Steal | Interrupt | EndWorker | Answer | Relay | GiveUp


PATIENCE_S = 1.0  # time for an interrupted thread to end its attempt; then its process is killed
SETTLED_S = 1.0  # a worker that was ready for so long has not failed to start, even if it ends without an attempt
# time for a fresh worker to end after its answer: destructors run (`after_call.FREE_S`), then atexit functions
FAREWELL_S = 10.0
# time for a worker to be ready; longer than the fork server's own limits (`template.IMPORT_S`, and 10 s for a fork)
START_S = 60.0
# time for the end of a killed worker; longer than the fork server's limits (`ENDS_S` and `STRAYS_S`) together
END_S = 75.0
_WITH_ANOTHER = 'its process was killed to end another task in it: Worker(kind="process") keeps tasks apart'

# Plain integers, because `&` of an enumeration costs 1 us, and the scheduler needs three for each task.
_FRESH, _ANNOUNCE, _BESIDE = int(RunFlag.FRESH), int(RunFlag.ANNOUNCE), int(RunFlag.BESIDE)


class WorkerScheduler:
    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._queue: deque[Attempt] = deque()
        self._attempts: dict[int, Attempt] = {}
        self._table = SlotTable()
        self._ranks: deque[Attempt] = deque()  # waiting ranks and BESIDE attempts: they need no free slot
        self._workers: dict[int, Worker] = {}
        self._recalls: list[Recall] = []
        self._last_worker = 0
        self._starts = StartFailures()
        self._due: dict[int, float] = {}  # worker -> when it must be ready (or gone, if it was killed)
        self._has_run = False
        self._gave_up = False

    # --- events ------------------------------------------------------------------------------------------------------

    def open(self, slots: int, *, threads: bool, now: float) -> None:
        """Create the slots and their workers. ``threads``: one worker, with a thread per slot, serves all slots."""
        self._table = SlotTable(slots, threads=threads)
        self._make_missing(now)

    def submitted(self, run: Run, body: bytes) -> None:
        if run.attempt not in self._attempts:
            self._attempts[run.attempt] = attempt = Attempt(run, body)
            self._queue_of(attempt).append(attempt)

    def killed(self, attempt_id: int, now: float) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:  # already answered
            return
        if attempt.slot is None:
            self._queue_of(attempt).remove(attempt)
            self._end(attempt, Cause.KILLED, 0)
        else:
            self._mark_for_kill(attempt, Cause.KILLED, now)

    def compared(self, attempt_ids: tuple[int, ...], now: float) -> None:
        """End the attempts that only one side knows. ``attempt_ids``: all attempts that the client knows."""
        here = set(self.attempts())
        for attempt_id in attempt_ids:
            if attempt_id not in here:
                self._effects.append(Answer(Ended(attempt_id, Cause.UNKNOWN, 0, "")))
        for attempt_id in here.difference(attempt_ids):
            self.killed(attempt_id, now)

    def recalled(self, attempt_ids: tuple[int, ...]) -> None:
        recall = Recall([])
        for attempt_id in attempt_ids:
            attempt = self._attempts.get(attempt_id)
            if attempt is None:
                continue
            if attempt.slot is None:
                self._queue_of(attempt).remove(attempt)
                del self._attempts[attempt_id]
                recall.returned.append(attempt_id)
            elif attempt is not attempt.slot.pipe[0] and attempt.kill_cause is None and attempt.slot.worker is not None:
                attempt.recall = recall
                recall.waiting.add(attempt.slot.worker.id)
                self._steal(attempt.slot)
        self._recalls.append(recall)
        self._answer_recalls()

    def ready(self, worker_id: int, now: float) -> None:
        """Handle a worker's report that it is ready: the attempts that were delivered to it begin now."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.ready:
            return
        worker.ready = True
        if not worker.ending:
            self._due.pop(worker_id, None)
        worker.idle_since = now
        for slot in self._table.slots:
            if slot.worker is worker and slot.pipe:
                slot.since, worker.idle_since = now, None
                self._start(slot, now)

    def finished(self, worker_id: int, attempt_id: int, body: bytes, now: float, *, interrupted: bool = False) -> bool:
        """Handle a worker's answer to an attempt; return whether it is sent to the client.

        Args:
            body: the encoded message to send.
            now: the time, in seconds.
            interrupted: whether the attempt was interrupted, so that the answer contains no result.
        """
        attempt = self._attempts.get(attempt_id)
        slot = attempt.slot if attempt is not None else None
        if attempt is None or slot is None or slot.worker is None or slot.worker.id != worker_id:
            return False  # already answered
        slot.pipe.remove(attempt)
        relayed = not interrupted and attempt.kill_cause is not Cause.TIMEOUT
        if not relayed:
            self._end(attempt, attempt.kill_cause or Cause.KILLED, 0)
        else:
            del self._attempts[attempt_id]
            self._effects.append(Relay(body))
        self._record_use(slot.worker, slot)
        slot.since, slot.stuck = now, False
        if slot.worker.fresh:
            slot.leaves_by = now + FAREWELL_S
        elif slot.pipe:
            self._start(slot, now)
        else:
            self._table.release(slot)
        return relayed

    def stolen(self, worker_id: int, attempt_ids: list[int], now: float) -> None:
        """Handle the attempts that were taken back from a worker because it had not read them.

        Before this call, `finished` must have handled the worker's results.

        Args:
            attempt_ids: these attempts, the oldest first.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        was_stealing, worker.stealing = worker.stealing, False
        for attempt_id in reversed(attempt_ids):
            attempt = self._attempts.get(attempt_id)
            if attempt is not None and attempt.slot is not None:
                attempt.slot.pipe.remove(attempt)
                self._unstarted(attempt)
        for slot in self._table.slots:
            if slot.worker is worker:
                slot.stuck = True
                for attempt in slot.pipe:
                    attempt.recall = None
                if not slot.pipe:
                    if worker.fresh:
                        # this worker was started only for an attempt that was taken back
                        if attempt_ids and (was_stealing or not self._attempts.keys() & attempt_ids):
                            self._end_worker(worker, now)
                    elif attempt_ids:  # without taken-back attempts, the slot is already free
                        self._table.release(slot)
                        # slots whose workers do not read are used last
                        self._table.free.sort(key=lambda slot: not slot.stuck)
                elif slot.pipe[0].kill_cause is not None and not self._is_shared(worker):
                    self._end_worker(worker, now)
        for recall in self._recalls:
            recall.waiting.discard(worker_id)
        self._answer_recalls()

    def gone(self, worker_id: int, cause: Cause, code: int, detail: str, now: float, *, ago_us: int = 0) -> None:
        """Handle the end of a worker and of all processes that it has started.

        Before this call, `finished` must have handled the worker's results, and `stolen` its unread attempts.

        Args:
            cause: the cause of death.
            code: exit code, number of the signal, or bytes of memory, depending on the cause.
            detail: text for the error; may be "".
            ago_us: time since the death, in microseconds.
        """
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        worker.stealing = False
        self._due.pop(worker_id, None)
        # Drop the effects for the dead worker. There may be some: for example, an attempt that had to be ended was the
        # next one in its pipe when its last result arrived.
        self._effects = [
            effect
            for effect in self._effects
            if not isinstance(effect, Steal | Interrupt | EndWorker) or effect.worker != worker_id
        ]
        for recall in self._recalls:
            recall.waiting.discard(worker_id)
        slots = self._table.served_by(worker)
        for slot in slots:
            if slot.worker is worker and slot.pipe:
                self._record_use(worker, slot)
        settled = [each for each in (worker, *self._workers.values()) if each.has_waited(now, SETTLED_S)]
        for each in settled:
            self._starts.succeeded(each.id)
        if (
            worker not in settled
            and not worker.used
            and not worker.ending
            and self._starts.failed(worker_id, self._last_worker, now)
        ):
            story = detail or f"{cause} {code}"
            self._give_up(f"no worker could be started there, {TRIES} times in a row ({story})")
        for slot in slots:
            if slot.warm is worker:
                slot.warm = None
            if slot.worker is worker:
                self._vacate(slot, worker, cause, code, detail, ago_us=ago_us)
                slot.worker = slot.warm
        self._make_missing(now)
        self._table.count_free()
        self._answer_recalls()

    def ticked(self, now: float) -> None:
        """Handle timeouts and other times that have come. Called at the time that `due` has returned."""
        if any(at <= now for at in self._due.values()):
            self._give_up("its fork server does not answer")
        if self._starts.pause_until is not None and self._starts.pause_until <= now:
            self._starts.pause_until = None
            self._make_missing(now)
            self._table.count_free()
        for slot in self._table.slots:
            if slot.worker is not None and slot.leaves_by is not None and slot.leaves_by <= now:
                self._end_worker(slot.worker, now)
            if slot.pipe:
                self._check_slot(slot, slot.pipe[0], now)

    def decide(self, now: float) -> list[Effect]:
        """Assign waiting attempts to slots where possible; return all effects to carry out, in their order."""
        if self._gave_up:  # no attempt begins any more, but ended attempts are still reported
            effects, self._effects = self._effects, []
            return [effect for effect in effects if isinstance(effect, Answer | Relay | GiveUp)]
        while self._ranks and not self._awaits_start(self._ranks[0].run):
            attempt = self._ranks.popleft()
            self._place(attempt, self._table.beside() if attempt.run.flags & _BESIDE else self._seat(now), now)
        table = self._table
        while self._queue:
            attempt = self._queue[0]
            if attempt.run.flags & _FRESH and self._starts.pause_until is not None:
                break
            slot = table.free.pop() if table.free else table.stackable(attempt, now)
            if slot is None:
                break
            self._queue.popleft()
            self._place(attempt, slot, now)
        effects, self._effects = self._effects, []
        return effects

    # --- queries -----------------------------------------------------------------------------------------------------

    @property
    def has_run(self) -> bool:
        """Return whether a worker has read an attempt. Attempts with the flag BESIDE (of plugins) do not count."""
        return self._has_run or any(
            each.pipe and not each.beside and each.worker is not None and each.worker.ready
            for each in self._table.slots
        )

    def due(self) -> float | None:
        """Return the time at which `ticked` must be called; None if nothing has a time limit."""
        if self._gave_up:
            return None
        times = [*self._due.values()]
        if self._starts.pause_until is not None:
            times.append(self._starts.pause_until)
        for slot in self._table.slots:
            if slot.worker is None or slot.worker.ending:
                continue
            if slot.leaves_by is not None:
                times.append(slot.leaves_by)
            if not slot.pipe:
                continue
            head = slot.pipe[0]
            if head.kill_cause is not None and self._is_shared(slot.worker):
                times.append(head.kill_requested_at + PATIENCE_S)
            elif (times_out_at := head.times_out_at) is not None:
                times.append(times_out_at)
            if len(slot.pipe) > 1 and not slot.stuck and not slot.worker.stealing:
                times.append(slot.stalls_at)
        return min(times, default=None)

    def attempts(self) -> Iterator[int]:
        """Yield the attempts that are not answered yet: neither a result, nor `Ended` or `Returned`, was sent."""
        yield from self._attempts
        for recall in self._recalls:
            yield from recall.returned

    def worker_of(self, attempt_id: int) -> int | None:
        """Return the worker of an attempt; 0 if the attempt waits for a worker; None if it is unknown or answered."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            return None
        return 0 if attempt.slot is None or attempt.slot.worker is None else attempt.slot.worker.id

    def running(self, worker_id: int) -> int:
        """Return the attempt that a worker runs (the latest, if it runs several); 0 if it runs none."""
        attempt, latest = 0, -1.0
        for slot in self._table.slots:
            if slot.worker is not None and slot.worker.id == worker_id and slot.pipe:
                head = slot.pipe[0]
                if head.started is not None and head.started > latest:
                    attempt, latest = head.run.attempt, head.started
        return attempt

    def heads(self) -> list[tuple[int, int, float]]:
        """Return (attempt, its worker, time of its begin) of each running attempt."""
        heads = [(slot.pipe[0], slot.worker) for slot in self._table.slots if slot.pipe]
        return [(head.run.attempt, of.id, head.started) for head, of in heads if of and head.started is not None]

    # --- assignment to slots -----------------------------------------------------------------------------------------

    def _place(self, attempt: Attempt, slot: Slot, now: float) -> None:
        run = attempt.run
        if run.flags & _FRESH:
            slot.worker = self._make(slot.index, now, fresh_for=run.attempt)
        worker = slot.worker
        if worker is None:
            raise AssertionError(f"slot {slot.index} counted as free without a worker")
        attempt.slot, worker.idle_since = slot, None
        slot.pipe.append(attempt)
        self._effects.append(Deliver(worker.id, run, attempt.body))
        if len(slot.pipe) == 1:
            slot.since = now
            if worker.ready:
                self._start(slot, now)

    def _start(self, slot: Slot, now: float) -> None:
        attempt = slot.pipe[0]
        attempt.started = now
        if attempt.run.flags & _ANNOUNCE:
            self._effects.append(Answer(Started(attempt.run.attempt)))
        if attempt.kill_cause is not None:
            self._check_slot(slot, attempt, now)

    def _seat(self, now: float) -> Slot:
        """Return a free slot for a rank; if all slots are busy, create an extra slot."""
        slot = self._table.take_any()
        if slot is None:
            slot = self._table.add()
            self._make_warm(slot, now)
        return slot

    def _queue_of(self, attempt: Attempt) -> deque[Attempt]:
        run = attempt.run
        waits = (run.world is None or self._table.threads) and not run.flags & _BESIDE
        return self._queue if waits else self._ranks

    def _is_shared(self, worker: Worker) -> bool:
        return self._table.threads and not worker.fresh

    # --- ending attempts ---------------------------------------------------------------------------------------------

    def _mark_for_kill(self, attempt: Attempt, cause: Cause, now: float) -> None:
        """Arrange the end of an attempt that was delivered to a worker, whether it runs or waits in the pipe.

        If its end is already arranged, the first cause stays.
        """
        if attempt.kill_cause is None and attempt.slot is not None and attempt.slot.worker is not None:
            attempt.kill_cause, attempt.kill_requested_at = cause, now
            if self._is_shared(attempt.slot.worker):
                self._effects.append(Interrupt(attempt.slot.worker.id, attempt.run.attempt))
            else:
                self._check_slot(attempt.slot, attempt.slot.pipe[0], now)

    def _check_slot(self, slot: Slot, head: Attempt, now: float) -> None:
        """Decide, for a slot that runs ``head``, whether to end attempts or the worker, or to take attempts back."""
        worker = slot.worker
        if worker is None or worker.ending:
            return
        if (times_out_at := head.times_out_at) is not None and times_out_at <= now:
            self._mark_for_kill(head, Cause.TIMEOUT, now)
            return
        if self._is_shared(worker):
            if head.kill_cause is not None and head.kill_requested_at + PATIENCE_S <= now:
                self._end_worker(worker, now)
        elif any(attempt.kill_cause for attempt in slot.pipe):
            self._steal(slot)  # take back the other attempts first; then `stolen` ends the worker
        elif len(slot.pipe) > 1 and not slot.stuck and slot.stalls_at <= now:
            self._steal(slot)

    def _steal(self, slot: Slot) -> None:
        if slot.worker is not None and not slot.worker.stealing and not slot.worker.ending:
            slot.worker.stealing = True
            self._effects.append(Steal(slot.worker.id))

    def _end_worker(self, worker: Worker, now: float) -> None:
        if not worker.ending:
            worker.ending = True
            self._due[worker.id] = now + END_S
            self._table.withdraw(worker)
            self._effects.append(EndWorker(worker.id))

    def _vacate(self, slot: Slot, worker: Worker, cause: Cause, code: int, detail: str, *, ago_us: int) -> None:
        """Empty the pipe of a slot whose worker is gone: end the first attempt; the others have not begun."""
        slot.leaves_by, slot.stuck = None, False
        if not slot.pipe:
            return
        head = slot.pipe.popleft()
        while slot.pipe:
            self._unstarted(slot.pipe.pop())
        if head.kill_cause is not None:
            self._end(head, head.kill_cause, 0, detail, ago_us=ago_us)
        elif worker.ending:
            self._end(head, Cause.SIGNAL, 9, detail or _WITH_ANOTHER, ago_us=ago_us)
        else:
            self._end(head, cause, code, detail, ago_us=ago_us)

    def _unstarted(self, attempt: Attempt) -> None:
        """End, return or queue an attempt that was taken back from a worker. Call this for the newest attempt first."""
        attempt.slot = attempt.started = None
        if attempt.kill_cause is Cause.KILLED:
            self._end(attempt, Cause.KILLED, 0)
        elif attempt.recall is not None:
            del self._attempts[attempt.run.attempt]
            attempt.recall.returned.append(attempt.run.attempt)
        else:
            attempt.kill_cause = None
            self._queue_of(attempt).appendleft(attempt)

    def _end(self, attempt: Attempt, cause: Cause, code: int, detail: str = "", *, ago_us: int = 0) -> None:
        del self._attempts[attempt.run.attempt]
        self._effects.append(Answer(Ended(attempt.run.attempt, cause, code, detail, ago_us)))

    def _answer_recalls(self) -> None:
        for recall in [recall for recall in self._recalls if not recall.waiting]:
            self._recalls.remove(recall)
            self._effects.append(Answer(Returned(tuple(sorted(recall.returned)))))

    # --- workers -----------------------------------------------------------------------------------------------------

    def _make_missing(self, now: float) -> None:
        if self._starts.pause_until is None:
            for slot in self._table.slots:
                if slot.warm is None and not slot.beside:
                    self._make_warm(slot, now)

    def _make_warm(self, slot: Slot, now: float) -> None:
        worker = self._make(slot.index, now)
        for each in [each for each in self._table.slots if not each.beside] if self._table.threads else [slot]:
            each.warm = worker
            if each.worker is None:
                each.worker = worker

    def _make(self, index: int, now: float, *, fresh_for: int | None = None) -> Worker:
        self._last_worker += 1
        self._workers[self._last_worker] = worker = Worker(self._last_worker, fresh_for is not None)
        self._due[worker.id] = now + START_S
        self._effects.append(Fork(worker.id, index, worker.fresh, fresh_for or 0))
        return worker

    def _record_use(self, worker: Worker, slot: Slot) -> None:
        """Record that a worker has read an attempt: it has answered the attempt, or has died after reading it."""
        self._has_run = self._has_run or not slot.beside
        if not worker.used:
            worker.used = True
            self._starts.succeeded(worker.id)

    def _awaits_start(self, run: Run) -> bool:
        """Return whether the attempt needs a new worker, but workers are not started now because a start has failed."""
        missing = run.flags & _FRESH or not (self._table.free or self._table.free_extra)
        return self._starts.pause_until is not None and bool(missing)

    def _give_up(self, reason: str) -> None:
        """End the executor, because no task can run on this node; the client runs its attempts on other nodes."""
        if not self._gave_up:
            self._gave_up = True
            self._effects.append(GiveUp(reason))
