"""The agreements of the ranks that save together (a world): who may save, where to resume, and which steps to save.

All agreements go through the storage alone.

Who may save: a `Participant` is a process in its role in a run, with its rank, its world and the world's term. The term
is a number: a world with a higher number fences this world, so that it may not save any more.

Where to resume (`ResumeVote`): rank 0 proposes a checkpoint. Every rank reads its part of that checkpoint and votes. If
all ranks could read it, rank 0 writes the decision; otherwise it proposes the next older checkpoint. A rank that is
restarted alone finds the decision and follows it.

Which steps to save (`SaveInterval`, without clock or I/O): every n steps, every n seconds, or because a machine will be
taken back. All ranks must save the same steps, but their clocks differ. For saves by steps, each rank decides alone.
For saves by time, rank 0 announces a step that lies a little ahead, and each rank saves at its first step at or after
the announced step. A rank that has already passed that step when it reads the announcement requests a later step.
`Announcements` sends announcements and requests through the storage.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from typing import Any, NamedTuple

from ...lazy_dataclass import dataclass
from ..api.errors import CheckpointError, CheckpointFenced, SpecError
from ..runtime.instance_info import instance_info
from .records import CheckpointId, Damaged, Term, World, admission, complete, listed, term_key, term_numbers, verdict
from .store import Store, polls


@dataclass(frozen=True, slots=True)
class Participant:
    store: Store
    run: str
    rank: int
    term: Term
    within_s: float  # how long to wait for other ranks, in seconds

    def check(self) -> None:
        """Raise a CheckpointFenced if newer processes (a world with a higher term) have taken over the checkpoints."""
        newest = max(term_numbers(self.store.names("terms")), default=0)
        if newest > self.term.number:
            try:
                term = Term.load(self.store.get(term_key(newest)))
            except Damaged:
                term = Term.unknown(newest)
            raise _fenced(self.run, self.store, term)

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(message, run=self.run, url=self.store.url)


def this_world() -> tuple[World, int]:
    info = instance_info()
    if info.pool:
        attempt = info.attempt if info.world_size == 1 else 0
        return World(info.pool, info.job, info.generation, attempt, info.world_size), info.rank
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # outside a pool, nothing tells two starts of the same ranks apart
        raise SpecError(
            f"checkpoint() outside a pool is for one process, and WORLD_SIZE is {os.environ['WORLD_SIZE']} here: "
            "run the function by pool.broadcast."
        )
    return World("", 0, 0, 0, 1, secrets.token_hex(8)), 0


def participant_of(store: Store, run: str, world: World, rank: int, within_s: float) -> Participant:
    """Return the participant for ``rank``, with the term (the number) of its ``world`` (the ranks that save together).

    Rank 0 creates the term; other ranks wait for it.

    Raises:
        CheckpointFenced: A newer run has taken over the checkpoints of ``run``.
        CheckpointError: Rank 0 did not create the term within ``within_s`` seconds.
    """
    known: dict[int, Term] = {}
    damaged: dict[int, str] = {}
    for _ in polls(store, within_s):
        for number in term_numbers(store.names("terms")) - known.keys():
            try:
                known[number] = Term.load(store.get(term_key(number)))
            except FileNotFoundError:  # the file of an old term that another rank has just deleted
                continue
            # a later poll reads the file again, unless this rank's new term makes it obsolete
            except Damaged as damage:
                damaged[number] = str(damage)
        unknown = [Term.unknown(number) for number in damaged.keys() - known.keys()]
        term = admission(world, rank, [*known.values(), *unknown])
        if term is None:
            continue
        if term.world != world:
            raise _fenced(run, store, term)
        if term.number in known or store.create(term_key(term.number), term.dump()):
            for each in unknown if rank == 0 else ():
                _warn(store, run, each.number, damaged[each.number])
            return Participant(store, run, rank, term, within_s)
    raise CheckpointError(
        f"Rank 0 did not open the checkpoints of {run!r} at {store.url} within {within_s:g} s, and rank {rank} waits "
        "for it: every rank of a broadcast must call checkpoint(...) with the same name and root, and then load() or "
        "save(). checkpoint(timeout=...) is how long they wait for each other.",
        run=run,
        url=store.url,
    )


def _warn(store: Store, run: str, number: int, damage: str) -> None:
    warnings.warn(
        f"{store.url}/{term_key(number)} is damaged ({damage}). It says who has saved checkpoints of {run!r} before; "
        "this process takes over from them, and the checkpoints are used as they are. The file may be removed.",
        RuntimeWarning,
        stacklevel=2,
    )


def _fenced(run: str, store: Store, by: Term) -> CheckpointFenced:
    who = f"generation {by.generation} of job {by.job} in pool {by.pool}" if by.pool else "another process"
    return CheckpointFenced(
        f"The checkpoints of {run!r} were taken over by {who}, which began later: this process saves nothing any more. "
        "Where both are meant to go on, give each a name of its own.",
        run=run,
        url=store.url,
    )


_VOTE = re.compile(r"vote-(\d+)-rank-(\d+)-(ok|bad)")


class Loaded(NamedTuple):
    """The step and state from which training resumes; ``(0, None)`` if nothing was saved."""

    step: int
    state: Any


class ResumeVote:
    """The vote of the ranks on the checkpoint that they load. ``number``: how many earlier loads succeeded.

    ``read`` returns this rank's state of a checkpoint, or raises `Damaged`.
    """

    def __init__(self, participant: Participant, number: int, read: Callable[[CheckpointId], Any]) -> None:
        self._participant = participant
        self._store = participant.store
        self._folder = f"terms/{participant.term.number:08}/load-{number:04}"
        self._read = read
        self._damage: list[str] = []

    def run(self) -> Loaded:
        """Return the step and state from which this rank resumes.

        Raises:
            CheckpointError: every checkpoint is damaged, or another rank did not answer in time.
        """
        loaded = self._run()
        if loaded is None and self._damage:  # training must not silently start again from step 0
            raise self._error(f"all of them are damaged ({'; '.join(self._damage)}); to begin anew take another name")
        return loaded or Loaded(0, None)

    def _run(self) -> Loaded | None:
        if self._participant.term.size == 1:
            return self._first(complete(self._store.names()))
        decided = self._chosen("decision")
        if decided is not None:
            return self._late(decided)
        return self._follow() if self._participant.rank else self._lead()

    def _first(self, candidates: list[CheckpointId]) -> Loaded | None:
        for at in candidates:
            loaded, damage = self._try(at)
            if loaded is not None:
                return loaded
            self._warn(at, damage)
        return None

    def _late(self, decided: list[CheckpointId]) -> Loaded | None:
        """Load the newest checkpoint that these ranks have completed, or else the checkpoint that their vote chose."""
        own = [at for at in complete(self._store.names()) if at.term == self._participant.term.number]
        return self._first([*own, *decided])

    def _lead(self) -> Loaded | None:
        refused: set[CheckpointId] = set()
        while True:
            number = len(refused)
            at = self._propose(number, [at for at in complete(self._store.names()) if at not in refused])
            if at is None:
                loaded = None
                break
            loaded, damage = self._vote(number, at)
            damage = self._await_votes(number, at) or damage
            if loaded is not None and not damage:
                break
            self._warn(at, damage)
            refused.add(at)
        decision = {"at": at, "damage": self._damage}
        self._store.create(f"{self._folder}/decision.json", json.dumps(decision).encode())
        return loaded

    def _propose(self, number: int, candidates: list[CheckpointId]) -> CheckpointId | None:
        """Propose the first candidate, unless an earlier process of this rank has already made this proposal.

        Return the proposal that is in the storage.
        """
        at = candidates[0] if candidates else None
        name = f"proposal-{number:03}"
        if not self._store.create(f"{self._folder}/{name}.json", json.dumps({"at": at}).encode()):
            return next(iter(self._chosen(name) or []), None)
        return at

    def _await_votes(self, number: int, at: CheckpointId) -> str:
        votes: dict[int, str] = {}
        for _ in polls(self._store, self._participant.within_s):
            for key in self._store.names(self._folder):
                match = _VOTE.fullmatch(key.rpartition("/")[2])
                if match is not None and int(match[1]) == number:
                    votes[int(match[2])] = self._store.get(key).decode() if match[3] == "bad" else ""
            if (result := verdict(votes, self._participant.term.size)) is not None:
                return result
        silent = sorted(set(range(self._participant.term.size)) - set(votes))
        raise self._error(
            f"rank {listed(silent)} did not read step {at.step} within {self._participant.within_s:g} s: every "
            "rank must call load(), and checkpoint(timeout=...) is how long they wait for each other"
        )

    def _follow(self) -> Loaded | None:
        number = 0
        voted, loaded = None, None
        for _ in polls(self._store, self._participant.within_s):
            decided = self._chosen("decision")
            if decided is not None:
                if not decided:
                    return None
                return loaded if loaded is not None and voted == decided[0] else self._late(decided)
            proposed = self._chosen(f"proposal-{number:03}")
            if proposed is not None:
                for voted in proposed:
                    loaded, _damage = self._vote(number, voted)
                number += 1
        raise self._error(
            f"rank 0 did not choose one within {self._participant.within_s:g} s: every rank must call load(), and "
            "checkpoint(timeout=...) is how long they wait for each other"
        )

    def _vote(self, number: int, at: CheckpointId) -> tuple[Loaded | None, str]:
        loaded, damage = self._try(at)
        key = f"{self._folder}/vote-{number:03}-rank-{self._participant.rank:05}-{'bad' if damage else 'ok'}"
        self._store.put(key, [damage.encode()])
        return loaded, damage

    def _chosen(self, name: str) -> list[CheckpointId] | None:
        """Read a proposal or decision. Return [its checkpoint], or [] if it names none; None: rank 0 has not written it
        yet.
        """
        key = f"{self._folder}/{name}.json"
        try:
            choice = json.loads(self._store.get(key))
            self._damage = choice.get("damage", self._damage)
            return [] if choice["at"] is None else [CheckpointId(*choice["at"])]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{key}, by which ranks agree, is damaged ({error!r}); run it again, and another file is written"
            raise self._error(reason) from error

    def _try(self, at: CheckpointId) -> tuple[Loaded | None, str]:
        try:
            return Loaded(at.step, self._read(at)), ""
        except Damaged as damage:
            return None, str(damage)

    def _warn(self, at: CheckpointId, damage: str) -> None:
        self._damage.append(f"step {at.step}: {damage}")
        warnings.warn(
            f"The checkpoint of {self._participant.run!r} at step {at.step} is damaged and is skipped: {damage}.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _error(self, reason: str) -> CheckpointError:
        return self._participant.error(
            f"The checkpoints of {self._participant.run!r} at {self._store.url} cannot be loaded: {reason}."
        )


_RATE_OVER = 32  # steps over which the speed of training is measured
# time between two exchanges, as a multiple of the storage's `poll_s`: object storage bills each request
EXCHANGE_POLLS = 2


class SaveInterval:
    """The save interval of one rank. Times are in seconds; every call must use the same clock."""

    def __init__(
        self, *, steps: int | None, seconds: float | None, alone: bool, leads: bool, lead_s: float, now: float
    ) -> None:
        """Create the interval. ``lead_s``: how many seconds it takes until all ranks have read an announced step."""
        self._steps, self._seconds = steps, seconds
        self._alone, self._leads = alone, leads
        self._lead_s = lead_s
        self._recent_steps: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER)
        self._announced: set[int] = set()
        # whether the step of the latest `due` call must be saved because a machine will be taken back
        self.urgent = False
        self.resumed(0, now)

    def resumed(self, step: int, now: float) -> None:
        self._last, self._last_at = step, now
        self._recent_steps.clear()
        self._announced.clear()
        self._wants_announcement = self._answer = False

    def due(self, step: int, now: float, urgent: Callable[[], bool]) -> bool:
        """Return whether ``step`` must be saved. Another call for the same step returns the same answer."""
        if self._recent_steps and self._recent_steps[-1][1] == step:
            return self._answer
        self._recent_steps.append((now, step))
        before, self.urgent = self.urgent, urgent()
        late = self._seconds is not None and now - self._last_at >= self._seconds
        reached = {target for target in self._announced if target <= step}
        self._announced -= reached
        self._answer = (
            bool(reached)
            or (self.urgent and not before)
            or (self._steps is None and self._seconds is None)
            or (self._steps is not None and step // self._steps > self._last // self._steps)
            or (late and self._alone)
        )
        if self._answer:
            self._last, self._last_at = step, now
            self._wants_announcement = False
        elif late and self._leads and not self._announced:
            self._wants_announcement = True
        return self._answer

    def saved(self, step: int, now: float) -> None:
        """Record that ``step`` was saved, due or not, so that it is not due again."""
        self._last, self._last_at = step, now
        if self._recent_steps and self._recent_steps[-1][1] == step:
            self._answer = False

    def next_announcement(self) -> int | None:
        """Return the step that rank 0 must announce; None: no announcement is needed."""
        if (
            not self._wants_announcement or len(self._recent_steps) < 2
        ):  # the speed of training is known only after two steps
            return None
        (then, first), (now, step) = self._recent_steps[0], self._recent_steps[-1]
        rate = (step - first) / (now - then) if now > then else 0.0
        return step + max(1, ceil(rate * self._lead_s))

    def announced(self, target: int) -> None:
        if self._recent_steps and self._recent_steps[-1][1] >= target:
            self._lead_s *= 2
            self._wants_announcement = True
        else:
            self._announced.add(target)
            self._wants_announcement = False


class Announcements(threading.Thread):
    """The thread on each rank that writes and reads announced steps.

    ``lock``: guards the save interval, which the training's thread uses too.
    """

    def __init__(self, participant: Participant, interval: SaveInterval, lock: threading.Lock) -> None:
        super().__init__(daemon=True, name="outrider-checkpoint-announcements")
        self._store = participant.store
        self._folder = f"terms/{participant.term.number:08}/calls"
        self._interval, self._lock = interval, lock
        self._number = 0
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(EXCHANGE_POLLS * self._store.poll_s):
            with suppress(CheckpointError):  # the next save raises the error
                self._exchange()

    def _exchange(self) -> None:
        key = f"{self._folder}/{self._number:06}"
        with self._lock:
            target = self._interval.next_announcement()
        if target is not None:
            self._store.create(key, b"%d" % target)  # no effect if another rank was first
        try:
            target = int(self._store.get(key))
        except FileNotFoundError:
            return
        self._number += 1
        with self._lock:
            self._interval.announced(target)


def lead_s(poll_s: float) -> float:
    """Return the seconds until every rank has read an announced step.

    This is the time of three exchanges with the storage: one to write, one to read, one in reserve.
    """
    return 3 * EXCHANGE_POLLS * poll_s


def spread_s(rank: int, ranks: int, since_last_s: float) -> float:
    """Return the seconds that a rank waits before it writes its save, so that ranks do not write all at once.

    The ranks' writes begin within a tenth of the time between two saves, at most within 5 s.
    """
    return min(5.0, since_last_s / 10) * rank / ranks
