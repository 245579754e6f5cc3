"""The ranks of a world agree, through the storage alone, on the checkpoint that they resume from.

Rank 0 proposes a checkpoint, every rank reads its part of it and votes. Where all could read it, rank 0 writes the
decision; otherwise it proposes the next older one. A rank that is restarted alone finds a decision and follows it.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from ..api.errors import CheckpointError
from .decisions import verdict
from .participant import Participant
from .records import CheckpointId, Damaged, complete
from .store import polls

_VOTE = re.compile(r"vote-(\d+)-rank-(\d+)-(ok|bad)")


class Restored(NamedTuple):
    """A checkpoint, and this rank's state in it."""

    at: CheckpointId
    state: Any


class ResumeVote:
    """The ``number``-th load of a world. ``read`` gives this rank's state of a checkpoint, or raises `Damaged`."""

    def __init__(
        self, participant: Participant, number: int, read: Callable[[CheckpointId], Any], within_s: float
    ) -> None:
        self._participant = participant
        self._store = participant.store
        self._folder = f"terms/{participant.term.number:08}/load-{number:04}"
        self._read = read
        self._within_s = within_s
        self._damage: list[str] = []

    def run(self) -> Restored | None:
        """Return what this rank resumes from; None where the run has no checkpoint.

        Raises:
            CheckpointError: every checkpoint is damaged, or another rank did not answer within ``within_s``.
        """
        restored = self._run()
        if restored is None and self._damage:  # training must not silently start from step 0
            raise self._error(f"all of them are damaged ({'; '.join(self._damage)}); to begin anew take another name")
        return restored

    def _run(self) -> Restored | None:
        if self._participant.alone:
            return self._first(complete(self._store.names()))
        decided = self._decision()
        if decided is not None:
            return self._late(decided)
        return self._lead() if self._participant.leads else self._follow()

    def _first(self, candidates: list[CheckpointId]) -> Restored | None:
        for at in candidates:
            restored, damage = self._try(at)
            if restored is not None:
                return restored
            self._warn(at, damage)
        return None

    def _late(self, decided: list[CheckpointId]) -> Restored | None:
        """Load the newest checkpoint that this world has completed, or else the one that it resumed from."""
        own = [at for at in complete(self._store.names()) if at.term == self._participant.term.number]
        return self._first([*own, *decided])

    def _lead(self) -> Restored | None:
        refused: set[CheckpointId] = set()
        for number in count():
            candidates = [at for at in complete(self._store.names()) if at not in refused]
            at = self._propose(number, candidates[0] if candidates else None)
            if at is None:
                break
            restored, damage = self._vote(number, at)
            damage = self._await_votes(number, at) or damage
            if restored is not None and not damage:
                self._decide(at)
                return restored
            self._warn(at, damage)
            refused.add(at)
        self._decide(None)
        return None

    def _propose(self, number: int, at: CheckpointId | None) -> CheckpointId | None:
        """Return the proposal of this number, which an earlier process of this rank may have written already."""
        key = f"{self._folder}/proposal-{number:03}.json"
        if self._store.create(key, json.dumps({"at": at}).encode()):
            return at
        return _at(json.loads(self._store.get(key)))

    def _await_votes(self, number: int, at: CheckpointId) -> str:
        votes: dict[int, str] = {}
        for _ in polls(self._store, self._within_s):
            for key in self._store.names(self._folder):
                found = _VOTE.fullmatch(key.rpartition("/")[2])
                if found is not None and int(found[1]) == number:
                    votes[int(found[2])] = self._store.get(key).decode() if found[3] == "bad" else ""
            if (result := verdict(votes, self._participant.term.size)) is not None:
                return result
        silent = sorted(set(range(self._participant.term.size)) - set(votes))
        raise self._error(
            f"rank {', '.join(map(str, silent[:8]))} did not read step {at.step} within {self._within_s:g} s: every "
            "rank must call load(), and checkpoint(timeout=...) is how long they wait for each other"
        )

    def _follow(self) -> Restored | None:
        number = 0
        restored: Restored | None = None
        for _ in polls(self._store, self._within_s):
            decided = self._decision()
            if decided is not None:
                if not decided:
                    return None
                return restored if restored is not None and restored.at == decided[0] else self._late(decided)
            try:
                proposal = json.loads(self._store.get(f"{self._folder}/proposal-{number:03}.json"))
            except FileNotFoundError:
                continue
            if (at := _at(proposal)) is not None:
                restored, _damage = self._vote(number, at)
            number += 1
        raise self._error(
            f"rank 0 did not choose one within {self._within_s:g} s: every rank must call load(), and "
            "checkpoint(timeout=...) is how long they wait for each other"
        )

    def _vote(self, number: int, at: CheckpointId) -> tuple[Restored | None, str]:
        restored, damage = self._try(at)
        key = f"{self._folder}/vote-{number:03}-rank-{self._participant.rank:05}-{'bad' if damage else 'ok'}"
        self._store.put(key, [damage.encode()])
        return restored, damage

    def _decide(self, at: CheckpointId | None) -> None:
        decision = {"at": at, "damage": self._damage}
        self._store.create(f"{self._folder}/decision.json", json.dumps(decision).encode())

    def _decision(self) -> list[CheckpointId] | None:
        """The decision of this load: [] means that nothing can be loaded; None where rank 0 has not decided yet."""
        try:
            decision = json.loads(self._store.get(f"{self._folder}/decision.json"))
        except FileNotFoundError:
            return None
        at = _at(decision)
        if at is None:
            self._damage = decision["damage"]
        return [] if at is None else [at]

    def _try(self, at: CheckpointId) -> tuple[Restored | None, str]:
        try:
            return Restored(at, self._read(at)), ""
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


def _at(proposal: dict[str, Any]) -> CheckpointId | None:
    at = proposal["at"]
    return None if at is None else CheckpointId(*at)
