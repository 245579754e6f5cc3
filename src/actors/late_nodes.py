"""Nodes that were not ready when their time to boot was over: the state of each, and a sentence about all such
nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..lazy_named_tuple import NamedTuple

NO_ADDRESS = "waiting for an address"
NO_ANSWER = "waiting for an answer"
PREPARED = "being prepared"
_KEPT = 1024  # number of states to keep; the limit is for pools whose nodes are late again and again


class Preparing(NamedTuple):
    """The step of preparing a node that is under way, such as "packages".

    ``text``: the last line of the step's output. ``for_s``: seconds since the step began.
    """

    step: str
    text: str = ""
    for_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.step} had taken {self.for_s:.0f} s" + (f", at last: {self.text}" if self.text else "")


class LateNodes:
    """The states of the nodes that were late last. The pool's error describes the newest, one for each node that the
    pool lacks.
    """

    def __init__(self) -> None:
        self._where: list[str] = []

    def add(self, where: str) -> None:
        self._where.append(where)
        del self._where[:-_KEPT]

    def describe(self, *, wanted: int, ready: int, within_s: float) -> str:
        """Return a sentence about the nodes that were late last; empty: the sentence would add nothing to the error of
        a single node.
        """
        missing = max(0, wanted - ready)
        late = self._where[-missing:] if missing else []
        return sentence(late, ready=ready, within_s=within_s) if len(late) + ready > 1 and late else ""


def sentence(late: Sequence[str], *, ready: int, within_s: float) -> str:
    """Return a sentence about late nodes. ``late``: the state of each late node, in words that fit behind "was"."""
    groups = [f"{count} {'was' if count == 1 else 'were'} {where}" for where, count in Counter(late).most_common()]
    if ready:
        groups.append(f"{ready} {'is' if ready == 1 else 'are'} ready")
    return f"Of {len(late) + ready} nodes, after their boot_timeout of {within_s:g} s, {', '.join(groups)}."
