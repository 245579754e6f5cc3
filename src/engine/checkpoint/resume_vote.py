"""The vote by which the ranks of a world agree on the checkpoint to resume from, through the storage alone.

Rank 0 proposes a checkpoint. Every rank reads its part of that checkpoint and votes. If all ranks could read it, rank 0
writes the decision; otherwise it proposes the next older checkpoint. A rank that is restarted alone finds the decision
and follows it.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from ..api.errors import CheckpointError
from .participant import Participant
from .records import CheckpointId, Damaged, complete, listed, verdict
from .store import polls

_VOTE = re.compile(r"vote-(\d+)-rank-(\d+)-(ok|bad)")


class Loaded(NamedTuple):
    """The step and state from which training resumes; ``(0, None)`` if nothing was saved."""

    step: int
    state: Any


class ResumeVote:
    """The vote of a world's ranks on the checkpoint for the world's ``number``-th load.

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
        """Load the newest checkpoint that this world has completed, or else the checkpoint that the vote chose."""
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
