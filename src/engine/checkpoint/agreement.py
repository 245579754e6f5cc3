"""The ranks of a world agree, through the storage alone, on the checkpoint that they resume from.

Rank 0 proposes a checkpoint, every rank reads its part of it and votes. Where all could read it, rank 0 writes the
decision; otherwise it proposes the next older one. A rank that is restarted alone finds a decision and follows it.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..api.errors import CheckpointError
from .decisions import Agreed, verdict
from .participant import Participant
from .records import CheckpointId, Damaged, complete
from .store import polls

T = TypeVar("T")

_VOTE = re.compile(r"vote-(\d+)-rank-(\d+)-(ok|bad)")


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    at: CheckpointId
    value: T


class Reader(Generic[T]):
    """Load one checkpoint: ``read`` gives this rank's part of a checkpoint, or raises `Damaged`."""

    def __init__(
        self, participant: Participant, number: int, read: Callable[[CheckpointId], T], within_s: float
    ) -> None:
        self._participant = participant
        self._store = participant.store
        self._folder = f"terms/{participant.term.number:08}/load-{number:04}"
        self._read = read
        self._within_s = within_s
        self._damage: list[str] = []

    def run(self) -> Found[T] | None:
        """Return what this rank has read; None where the run has no checkpoint.

        Raises:
            CheckpointError: every checkpoint is damaged, or another rank did not answer within ``within_s``.
        """
        if self._participant.alone:
            return self._first(complete(self._store.names()))
        decided = self._decision()
        if decided is not None:
            return self._late(decided)
        return self._lead() if self._participant.leads else self._follow()

    # --- alone ------------------------------------------------------------------------------------------------------

    def _first(self, candidates: list[CheckpointId]) -> Found[T] | None:
        for at in candidates:
            value, reason = self._try(at)
            if value is not None:
                return value
            self._warn(at, reason)
        self._end()
        return None

    def _late(self, decided: list[CheckpointId]) -> Found[T] | None:
        """Load the newest checkpoint that this world has completed, or else the one that it resumed from."""
        own = [at for at in complete(self._store.names()) if at.term == self._participant.term.number]
        return self._first([*own, *decided])

    # --- together ---------------------------------------------------------------------------------------------------

    def _lead(self) -> Found[T] | None:
        refused: set[CheckpointId] = set()
        number = 0
        while True:
            candidates = [at for at in complete(self._store.names()) if at not in refused]
            at = self._propose(number, candidates[0] if candidates else None)
            if at is None:
                self._decide(None)
                self._end()
                return None
            value = self._vote(number, at)
            result = self._await_votes(number, at)
            if isinstance(result, Agreed) and value is not None:
                self._decide(at)
                return value
            self._warn(at, str(result))
            refused.add(at)
            number += 1

    def _propose(self, number: int, at: CheckpointId | None) -> CheckpointId | None:
        """Return the proposal of this number, which an earlier process of this rank may have written already."""
        key = f"{self._folder}/proposal-{number:03}.json"
        if self._store.create(key, json.dumps({"at": at}).encode()):
            return at
        return _at(json.loads(self._store.get(key)))

    def _await_votes(self, number: int, at: CheckpointId) -> Agreed | str:
        votes: dict[int, str] = {}
        for _ in polls(self._store, self._within_s):
            for key in self._store.names(self._folder):
                found = _VOTE.fullmatch(key.rpartition("/")[2])
                if found is not None and int(found[1]) == number:
                    reason = self._store.get(key).decode() if found[3] == "bad" else ""
                    votes[int(found[2])] = reason
            if (result := verdict(at, votes, self._participant.term.size)) is not None:
                return result
        missing = sorted(set(range(self._participant.term.size)) - set(votes))
        raise self._error(f"rank {', '.join(map(str, missing[:8]))} did not read it within {self._within_s:g} s")

    def _follow(self) -> Found[T] | None:
        number = 0
        value: Found[T] | None = None
        for _ in polls(self._store, self._within_s):
            decided = self._decision()
            if decided is not None:
                if not decided:
                    self._end()
                    return None
                if value is not None and value.at == decided[0]:
                    return value
                return self._late(decided)
            try:
                proposal = json.loads(self._store.get(f"{self._folder}/proposal-{number:03}.json"))
            except FileNotFoundError:
                continue
            if (at := _at(proposal)) is not None:
                value = self._vote(number, at)
            number += 1
        raise self._error(f"rank 0 did not say which one within {self._within_s:g} s: every rank must call load()")

    def _vote(self, number: int, at: CheckpointId) -> Found[T] | None:
        value, reason = self._try(at)
        key = f"{self._folder}/vote-{number:03}-rank-{self._participant.rank:05}-{'bad' if reason else 'ok'}"
        self._store.put(key, [reason.encode()])
        return value

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

    # --- either way -------------------------------------------------------------------------------------------------

    def _try(self, at: CheckpointId) -> tuple[Found[T] | None, str]:
        try:
            return Found(at, self._read(at)), ""
        except Damaged as damage:
            return None, str(damage)

    def _warn(self, at: CheckpointId, reason: str) -> None:
        self._damage.append(f"step {at.step}: {reason}")
        warnings.warn(
            f"The checkpoint of {self._participant.run!r} at step {at.step} is damaged and is skipped: {reason}.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _end(self) -> None:
        """Raise where checkpoints exist but all are damaged: training must not silently start from step 0."""
        if self._damage:
            raise self._error(f"all of them are damaged ({'; '.join(self._damage)}); to begin anew take another name")

    def _error(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoints of {self._participant.run!r} cannot be loaded: {reason}.",
            run=self._participant.run,
            url=self._store.url,
        )


def _at(proposal: dict[str, Any]) -> CheckpointId | None:
    at = proposal["at"]
    return None if at is None else CheckpointId(*at)
