"""Check whether a host can serve the pool: its hardware, and its versions of packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...actors.interfaces import NodeFacts, NodeId
from ...lazy_dataclass import dataclass
from ...providers.base import AcceleratorRequest
from ..api.errors import CapacityError, VersionMismatch
from ..serialization import versions
from ..wire.messages import Welcome

NAME_CHARS = 255  # longest name of a host, in characters (RFC 1035, section 2.3.4)
ACCELERATORS = 256  # accelerators of one machine, at most
MOST = 2**63 - 1
# accepted share of the requested memory: a machine sold with 16 GB reports 15.3, as firmware and kernel use the rest
SOLD_AS = 0.9


@dataclass(frozen=True, slots=True)
class Wanted:
    accelerator: AcceleratorRequest | None = None
    vcpus: int = 0
    memory_gb: float = 0.0


def facts(welcome: Welcome) -> NodeFacts:
    """Return the facts (hardware, addresses, packages) that a node has sent in its welcome message, after a check.

    Raises:
        ValueError: a fact is missing or wrong.
    """
    raw = welcome.facts
    try:
        hostname, address = raw["hostname"], raw["addresses"][0]
        accelerators = tuple((kind, memory_gb) for kind, memory_gb in raw["accelerators"])
        names = (hostname, address, *(kind for kind, _ in accelerators))
        cpus, memory_bytes, sharing = raw.get("cpus", 0), raw.get("memory_bytes", 0), raw.get("sharing", 1)
        numbers = (cpus, memory_bytes, sharing, *(memory_gb for _, memory_gb in accelerators))
        packages = raw.get("packages", {}).items()
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a fact is missing: {error!r}") from error
    if (
        not all(type(name) is str and len(name) <= NAME_CHARS for name in names)
        or not all(type(number) in (int, float) and 0 <= number <= MOST for number in numbers)
        or not all(type(text) is str for pair in packages for text in pair)
        or len(accelerators) > ACCELERATORS
        or sharing < 1
    ):
        raise ValueError("a fact is not what it should be")
    share = max(1, int(cpus) // int(sharing)), int(memory_bytes) // int(sharing)
    return NodeFacts(hostname, address, tuple(welcome.ports), accelerators, (), 1000 * share[0], share[1])


def too_small(facts: NodeFacts, raw_facts: Mapping[str, Any], wanted: Wanted) -> CapacityError | None:
    """Return the error if the node has less than the pool requests. ``raw_facts``: the facts of the welcome."""
    cpus, memory_gb = int(raw_facts.get("cpus", 0)), int(raw_facts.get("memory_bytes", 0)) / 1e9
    if cpus < wanted.vcpus:
        return CapacityError(f"The pool asks for {wanted.vcpus} vCPUs per node; {facts.hostname} has {cpus}.")
    if memory_gb < SOLD_AS * wanted.memory_gb:
        return CapacityError(
            f"The pool asks for {wanted.memory_gb:g} GB of memory per node; {facts.hostname} has {memory_gb:.1f}."
        )
    accelerator = wanted.accelerator
    if accelerator is None or sum(accelerator.fits(*device) for device in facts.accelerators) >= accelerator.count:
        return None
    has = ", ".join(f"{name} ({memory_gb:g} GB)" for name, memory_gb in facts.accelerators) or "none"
    return CapacityError(
        f"The pool asks for {accelerator} per node; the driver of {facts.hostname} shows {has}. Ask for what the nodes "
        "have, or have the provider choose others."
    )


def differences(packages: Mapping[str, str]) -> list[versions.Mismatch]:
    """Return how this process's packages differ from a node's, most important first."""
    from ..node.facts import installed_packages  # pools on this computer do not need this import

    here = installed_packages()
    return versions.compare(here, packages, versions.used(here))


def misfit(facts: NodeFacts, mismatches: Sequence[versions.Mismatch], node: NodeId) -> VersionMismatch | None:
    """Return the error if the node could not unpickle objects of a package that this process has imported."""
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
