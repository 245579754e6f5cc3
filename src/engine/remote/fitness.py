"""Whether a host that answered can serve the pool: what it has, and whether both sides understand what crosses."""

from __future__ import annotations

from collections.abc import Mapping

from ...actors.ports import NodeFacts, NodeId
from ...providers.base import AcceleratorRequest
from .. import versions
from ..errors import CapacityError, VersionMismatch
from ..executor.packages import installed


def too_little(facts: NodeFacts, wanted: AcceleratorRequest | None) -> CapacityError | None:
    """Fewer accelerators than the pool asks for."""
    if wanted is None or sum(wanted.fits(*device) for device in facts.accelerators) >= wanted.count:
        return None
    has = ", ".join(f"{name} ({memory_gb:g} GB)" for name, memory_gb in facts.accelerators) or "none"
    return CapacityError(f"The pool asks for {wanted} per node; the driver of {facts.hostname} shows {has}.")


def differences(packages: Mapping[str, str]) -> list[versions.Mismatch]:
    """Between this program's packages and a node's; what matters most comes first."""
    here = installed()
    return versions.compare(here, packages, versions.used(here))


def misfit(facts: NodeFacts, packages: Mapping[str, str], node: NodeId) -> VersionMismatch | None:
    """A package that this program has imported, whose objects the node would not understand."""
    mismatches = differences(packages)
    serious = [each for each in mismatches if each.serious and each.what in versions.used([each.what])]
    if not serious:
        return None
    same = ", ".join(f'"{each.what}=={each.here}"' for each in serious)
    return VersionMismatch(
        f"{facts.hostname} would not understand what this program sends: give it the same versions, as in "
        f"Image(pip=[{same}]).\n{versions.table(mismatches)}",
        node=node,
        versions=[each.row for each in mismatches],
    )
