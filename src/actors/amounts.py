"""Amounts of processors, memory and accelerators that a node has, or that a running task reserves on its node."""

from __future__ import annotations

from collections.abc import Iterable

from ..lazy_named_tuple import NamedTuple

GB = 1e9  # bytes in a gigabyte


class Amounts(NamedTuple):
    """Amounts as whole numbers, so that rounding errors do not add up over a million tasks."""

    millicpus: int = 0  # thousandths of a processor
    memory_bytes: int = 0
    gpus: int = 0

    def fits_in(self, other: Amounts) -> bool:
        return self.millicpus <= other.millicpus and self.memory_bytes <= other.memory_bytes and self.gpus <= other.gpus

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def minus(self, other: Amounts) -> Amounts:
        return Amounts(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def times(self, count: int) -> Amounts:
        return Amounts(self[0] * count, self[1] * count, self[2] * count)

    def share_of(self, has: Amounts) -> float:
        """Return the largest share of ``has`` that one of these amounts takes: 0.5 is one half; inf if ``has`` has zero
        of an amount that is needed.
        """
        pairs = [(mine, its) for mine, its in zip(self, has, strict=True) if mine]
        return max((mine / its if its else float("inf") for mine, its in pairs), default=0.0)

    def __str__(self) -> str:
        """Return the nonzero amounts as users write them: cpus=2, memory_gb=4, gpus=1."""
        texts = (f"cpus={self[0] / 1000:g}", f"memory_gb={self[1] / GB:.3g}", f"gpus={self[2]}")
        return ", ".join(text for text, amount in zip(texts, self, strict=True) if amount)

    @property
    def all(self) -> str:
        """Return all three amounts as text for people, including zeros."""
        return f"cpus={self[0] / 1000:g}, memory_gb={self[1] / GB:.3g}, gpus={self[2]}"


NOTHING = Amounts()


def describe(nodes: Iterable[Amounts]) -> str:
    """Describe the amounts of ``nodes`` for people; amounts that several nodes share are listed once."""
    kinds = [each.all for each in dict.fromkeys(sorted(nodes, reverse=True))]
    return " or ".join(kinds[:4]) + (" or less" if len(kinds) > 4 else "")
