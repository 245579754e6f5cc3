"""`Chaos`, the options of a plan of faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.api import checks
from ...engine.api.chaos import ChaosPlan
from ...engine.api.errors import SpecError
from ...lazy_dataclass import dataclass
from .faults import LOSSES, Fault, checked

if TYPE_CHECKING:
    from ...engine.client.open_pool import OpenPool
    from .fault_injector import FaultInjector


@checks.checks_options
@dataclass(frozen=True, slots=True, init=False)
class Chaos(ChaosPlan):
    """The faults to inject into a pool of local nodes: ``Pool(..., chaos=Chaos(mtbf=15, seed=7))``, or see `chaos`.

    A fault that has no target when its time comes is skipped: for example while the node of its rank is being replaced,
    or because `KillRank` and `HoldGil` need a task and none runs.

    Args:
        mtbf: Mean seconds between faults, for the pool as a whole. None: only faults with ``at_step``. Default: 15.
        seed: The same seed gives the same faults, at the same times, at the same relative positions among the nodes.
        faults: The faults, drawn like cards from a pack: each fault comes once, in random order, before any fault
            repeats. Default: all faults that cause the loss of a node.
        rank: The rank of the node that is always the target, 0 for the head. None: any node.
        most: The largest number of faults that are injected. Default: 1000.

    Raises:
        SpecError: An option is not valid.
    """

    mtbf: float | None
    seed: int
    faults: tuple[Fault, ...]
    rank: int | None
    most: int

    def __init__(
        self,
        mtbf: float | None = 15.0,
        *,
        seed: int = 0,
        faults: Sequence[Fault | str] = LOSSES,
        rank: int | None = None,
        most: int = 1000,
    ) -> None:
        checks.count("Chaos(most=...)", most)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise SpecError(f"Chaos: seed takes a whole number, not {seed!r}.")
        if rank is not None:
            checks.count("Chaos(rank=...)", rank, least=0)
        valid = checked(faults)
        untimed = [fault for fault in valid if fault.at_step is None]
        if mtbf is None and untimed:
            raise SpecError(f"Chaos: without mtbf, when does {untimed[0]} happen? Give it at_step, or give mtbf.")
        object.__setattr__(self, "mtbf", None if mtbf is None else checks.seconds("Chaos: mtbf", mtbf))
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "faults", valid)
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "most", most)

    @property
    def at_steps(self) -> tuple[Fault, ...]:
        """The faults with ``at_step``."""
        return tuple(fault for fault in self.faults if fault.at_step is not None)

    def _injection(self, core: OpenPool) -> FaultInjector:
        from .fault_injector import FaultInjector

        return FaultInjector(self, core)
