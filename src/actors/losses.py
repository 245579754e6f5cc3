"""The losses and failures that a broadcast's generations have seen, which decide whether another may follow. Pure."""

from __future__ import annotations

from .ports import NodeId


class Losses:
    def __init__(self, *, steady_s: float) -> None:
        self.all: tuple[tuple[NodeId, str], ...] = ()  # node and cause, under any generation
        self.nodes: tuple[NodeId, ...] = ()  # lost under this generation
        self.in_row = 0  # generations that followed lost ones without a steady one between
        self.failures = 0  # generations in which a rank failed, and that another followed
        self.failed_by: str | None = None  # why this generation is being fenced, if no node was lost
        self._steady_s = steady_s  # a generation that ran for so long ends the row
        self._began_at = 0.0
        self._first_at = 0.0  # when the first node under this generation was lost, as far as is known

    @property
    def cause(self) -> str:
        """Return why this generation is lost."""
        return self.all[-1][1] if self.nodes else self.failed_by or ""

    def generation_began(self, now: float) -> None:
        self._began_at = now
        self.failed_by = None
        self.nodes = ()

    def ranks_began(self, now: float) -> None:
        """Handle that ranks of a lost node run again alone: a loss is measured from here."""
        self._began_at = now

    def add(self, node: NodeId, cause: str, at: float) -> None:
        self._first_at = min(self._first_at, at) if self.nodes else at
        self.all += ((node, cause),)
        self.nodes += (node,)

    def count(self) -> None:
        """Count this generation as lost, or as failed if no node was lost: a loss is taken as a failure's cause."""
        if not self.nodes:
            self.failures += 1
        elif self._first_at - self._began_at >= self._steady_s:
            self.in_row = 1
        else:
            self.in_row += 1
