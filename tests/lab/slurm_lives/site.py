"""What a life has: a share of the cluster's nodes, a state directory, and clients in their processes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.cluster import HOME
from lives import clients, collection
from netlab import PLAIN_USER, Host

from .ground import LAB, REPOSITORY, Share
from .queue import Job
from .wish import Wish

FOLDERS = f"{HOME}/.cache/outrider/jobs"
Client = clients.Client[Wish]


class Site:
    """Use `opened`."""

    def __init__(self, share: Share, folder: Path) -> None:
        self.share, self.folder = share, folder
        self.state = folder / "state"
        self.clients: list[Client] = []
        self._known_hosts = folder / "known_hosts"
        self._known_hosts.write_text(share.cluster.login.known_hosts)

    @property
    def env(self) -> dict[str, str]:
        return {
            "COLUMNS": "250",
            "LIFE_KEY": str(self.share.cluster.lab.key),
            "LIFE_KNOWN_HOSTS": str(self._known_hosts),
            "LIFE_LOGIN": f"{PLAIN_USER}@{self.share.cluster.login.address}",
            "LIFE_PARTITION": self.share.partition,
            "OUTRIDER_STATE": str(self.state),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": f"{LAB}:{REPOSITORY / '.shim'}",
        }

    def start(self, wish: Wish) -> Client:
        key = str(len(self.clients))
        client = Client("slurm_lives.client", wish, key=key, env=self.env, before=(), log=self.folder / f"{key}.log")
        self.clients.append(client)
        return client

    def gc(self, *options: str) -> collection.Collected:
        return collection.gc(*options, env=self.env)

    def jobs(self, client: Client) -> list[Job]:
        """All that it has ever submitted. Names of a life's pools differ."""
        own = re.compile(re.escape(client.wish.name) + r"-\w{6}", re.ASCII)
        return [job for job in self.share.jobs() if own.fullmatch(job.pool) and not job.owner.startswith("bob@")]

    def living(self, client: Client) -> list[Job]:
        return [job for job in self.jobs(client) if job.ended is None]

    def hosts(self, job: Job) -> list[Host]:
        """In the order of the allocation; the batch shell is on the first."""
        names = self.share.cluster.run("scontrol", "show", "hostnames", job.hosts).stdout.split()
        return [self.share.cluster.node(name) for name in names]

    def left(self, ids: set[str], tokens: set[str], *, completing: bool) -> list[str]:
        """What there is of jobs that should be over: in the queue, on hosts with power, on the shared disk.

        ``completing``: Slurm may show them for a while, as in `referee.Ended`.
        """
        share, cluster = self.share, self.share.cluster
        jobs = [job for job in share.jobs() if job.id in ids and job.ended is None]
        # A job that has a node without power is shown until Slurm counts the node as down.
        shown = completing or bool(share.off)
        found = [f"job {job.id} {job.state}" for job in jobs if not (shown and job.state == "COMPLETING")]
        found += share.processes()
        lines = [" ".join(line) for line in cluster.login.processes().values()]
        found += [f"login: {line}" for line in lines if any(token in line for token in tokens)]
        folders = cluster.run("ls", "-A", FOLDERS, check=False).stdout.split()
        return found + [f"{FOLDERS}/{each}" for each in folders if each in tokens]


@contextmanager
def opened(share: Share) -> Iterator[Site]:
    """No process is left when it returns."""
    with tempfile.TemporaryDirectory(prefix="outrider-life-") as folder:
        site = Site(share, Path(folder))
        try:
            yield site
        finally:
            for client in site.clients:
                client.kill()
                client.end(10.0)
