"""The cluster of a campaign, and the shares of its nodes that lives have to themselves."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import Cluster, Site
from lives.clients import until
from netlab import Host, Lab, LabError
from netlab.identity import PLAIN_UID

from .queue import Job, command, read

LAB = Path(__file__).parents[1]
REPOSITORY = LAB.parents[1]
NODES = 4  # of each share
IDLE_S = 90.0  # a node that was without power counts as down for some time


class Share:
    """Some nodes, and two partitions that have no others. What runs there is its life's."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number = cluster, number
        self.partition, self.urgent = f"main{number}", f"urgent{number}"
        self.nodes = [cluster.node(name) for name in cluster.site.share(number)]
        self.off: list[Host] = []

    def jobs(self) -> list[Job]:
        """Its partitions', also those that ended some minutes ago."""
        said = self.cluster.run(*command(f"{self.partition},{self.urgent}")).stdout
        return read(said)

    def submit(self, *options: str, urgent: bool = False, script: str = "sleep 600") -> str:
        """A job of somebody else's."""
        partition = self.urgent if urgent else self.partition
        return self.cluster.submit(f"--partition={partition}", "--output=/dev/null", *options, script=script)

    def power_off(self, node: Host, *, silent: bool) -> None:
        node.power_off(silent=silent)
        self.off.append(node)

    def processes(self) -> list[str]:
        """What the user of the jobs runs on the share's nodes."""
        found: list[str] = []
        for node in self.nodes:
            if node not in self.off:
                found += [f"{node.name}: {' '.join(line)}" for pid, line in node.processes().items() if _is_users(pid)]
        return found

    def restore(self) -> None:
        """As it was: no job, all nodes idle.

        Raises:
            LabError, Late
        """
        run = self.cluster.login.run
        for partition in (self.partition, self.urgent):
            run("scancel", f"--partition={partition}", check=False)
        for node in self.off:
            self.cluster.power_on(node)
        self.off.clear()
        run("scontrol", "update", f"PartitionName={self.partition}", f"GraceTime={self.cluster.site.grace_s}")
        names = {node.name for node in self.nodes}
        until(lambda: names <= self.cluster.idle(), IDLE_S, f"{', '.join(sorted(names))} are idle")


def _is_users(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == PLAIN_UID
    except OSError:
        return False


class Ground:
    """A cluster with some shares; lives may be played in several threads. Use `opened`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._all = [Share(cluster, number) for number in range(cluster.site.shares)]
        self._free = [*self._all]
        self._change = threading.Condition()

    @contextmanager
    def share(self, *, alone: bool = False) -> Iterator[Share]:
        """One that nobody has; ``alone``: nobody has any of the others either.

        Raises:
            LabError, Late: it could not be restored; nobody gets it again.
        """
        with self._change:
            self._change.wait_for(lambda: len(self._free) == len(self._all) if alone else self._free or not self._all)
            if not self._free:
                raise LabError(
                    "the cluster has no share any more: each was left in a state that it does not get out of"
                )
            taken = [*self._free] if alone else [self._free[0]]
            self._free = [each for each in self._free if each not in taken]
        try:
            yield taken[0]
        finally:
            try:
                taken[0].restore()
            except BaseException:
                with self._change:
                    self._all.remove(taken[0])
                taken = taken[1:]
                raise
            finally:
                with self._change:
                    self._free += taken
                    self._change.notify_all()


@contextmanager
def opened(shares: int) -> Iterator[Ground]:
    """No process and no host is left when it returns."""
    with (
        Lab(visible=(REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))) as lab,
        Cluster(lab, Site(nodes=NODES * shares, shares=shares)) as cluster,
    ):
        yield Ground(cluster)
