"""Lives in turn, some of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from .verdict import Verdict

Life = tuple[str, int]  # its kind and its seed


def turns(kinds: Sequence[str], seeds: Sequence[int]) -> list[Life]:
    """One life of each kind, then the next of each: whoever stops a campaign early has played all kinds alike."""
    return [(kind, seed) for seed in seeds for kind in kinds]


def played(lives: Sequence[Life], play: Callable[[str, int], Verdict], *, jobs: int) -> Iterator[Verdict]:
    """As they end. ``play`` is called in a thread for each."""
    with ThreadPoolExecutor(jobs) as players:
        for turn in as_completed([players.submit(play, *life) for life in lives]):
            yield turn.result()
