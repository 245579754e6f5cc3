"""`Slurm`: the provider of nodes of a cluster on which the user has an account, as jobs in the cluster's queue."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import anyio

from ...lazy_dataclass import dataclass
from ..base import EntryPoints, Login
from ..errors import UnknownOption
from ..shared.login_options import LongOptions, OptionValue, as_texts, as_words, login_of, long_options
from ..shared.option_names import checking_options, shown
from ..shared.paths import StrPath
from ..shared.threads import uninterrupted
from .notation import seconds_of

if TYPE_CHECKING:
    from ..shared.login_host import Place
    from .allocation import Allocation
    from .fleet import SlurmFleet

Reach = Literal["auto", "ssh", "srun"]
OURS = {  # options of sbatch that Outrider sets itself, each with what the user should use instead
    "parsable": "",
    "nodes": "Pool(nodes=...)",
    "ntasks": "@compute and Worker(...) say what runs on a node",
    "ntasks-per-node": "plugins.torch(ranks_per_node=...)",
    "job-name": "Pool(name=...)",
    "array": "pool.map(...)",
    "wrap": "@compute",
    "comment": "",
    "signal": "",
    "no-kill": "",
    "requeue": "",
    "no-requeue": "",
    "output": "",
    "error": "",
    "chdir": "",
    "export": "Slurm(setup=['export NAME=VALUE'])",
    "wait": "",
    "test-only": "",
    "partition": "Slurm(partition=...)",
    "time": "Slurm(time=...)",
    "gres": "Slurm(gres=...)",
    "exclusive": "Slurm(exclusive=True)",
    "constraint": "Slurm(constraint=...)",
    "qos": "Slurm(qos=...)",
    "account": "Slurm(account=...)",
    "cpus-per-task": "Pool(vcpus=...)",
    "mem": "Pool(memory_gb=...)",
    "clusters": "Slurm(host=...), a login host of that cluster",
    "cluster-constraint": "Slurm(host=...), a login host of that cluster",
    "het-group": "a pool for each kind of node",
}


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, init=False)
class Slurm:
    """Nodes of a Slurm cluster. A pool's nodes are one job, which ends with the pool; no port is opened on them.

    The ``vcpus`` and ``memory_gb`` of the pool become ``--cpus-per-task`` and ``--mem``.

    Args:
        host: The login host, as in ``ssh host``; its host key must be known. None: this computer has sbatch.
        partition: The partition, as for sbatch.
        time: The time limit of the job: ``"90"`` (minutes), ``"1:00:00"`` or ``"2-0"``. Default: the partition's.
        gres: The devices of each node, as for sbatch. Default: derived from the pool's accelerator.
        exclusive: True: no jobs of others on the nodes.
        constraint: Features of the nodes, as for sbatch.
        qos: The quality of service, as for sbatch.
        account: The account that is charged, as for sbatch.
        setup: Lines of shell before the steps, such as ``"module load cuda/12"``. Tasks have the variables
            that these lines set.
        together: False makes a job for each node, which starts when it can.
        reach: The connection to the steps: ``"srun"`` works everywhere; ``"ssh"`` is SSH from the login host to the
            node, at sites that allow it. ``"auto"`` tries SSH and falls back to srun.
        options: Further long options of sbatch, such as ``{"mail-type": "END", "nice": 100}``. True: an option without
            a value.
        key: A private key file for the login host, as for `SSH`.
        known_hosts: Files to check the login host's key against, as for `SSH`.
        config: True reads ``~/.ssh/config`` if it exists; or the path of another file.
        python: The interpreter of the step on the nodes. The interpreter of tasks comes from the pool's image.

    Raises:
        ValueError: An option can never work.
        TypeError: The option does not exist.
    """

    host: str | None
    partition: str | None
    time: str | None
    gres: str | None
    exclusive: bool
    constraint: str | None
    qos: str | None
    account: str | None
    setup: tuple[str, ...]
    together: bool
    reach: Reach
    options: LongOptions
    key: str | None
    known_hosts: tuple[str, ...]
    config: tuple[str, ...]
    python: str

    def __init__(
        self,
        host: str | None = None,
        *,
        partition: str | None = None,
        time: str | int | None = None,
        gres: str | None = None,
        exclusive: bool = False,
        constraint: str | None = None,
        qos: str | None = None,
        account: str | None = None,
        setup: Sequence[str] = (),
        together: bool = True,
        reach: Reach = "auto",
        options: Mapping[str, OptionValue] | None = None,
        key: StrPath | None = None,
        known_hosts: StrPath | Sequence[StrPath] | None = None,
        config: bool | StrPath = True,
        python: str = "python3",
    ) -> None:
        if reach not in get_args(Reach):
            raise ValueError(f"Slurm(reach=...) is 'auto', 'ssh' or 'srun', not {reach!r}")
        if isinstance(setup, str):
            raise ValueError(f"Slurm(setup=...) takes a list of lines: write Slurm(setup=[{setup!r}])")
        if not isinstance(setup, Sequence) or not all(isinstance(line, str) for line in setup):
            raise ValueError(f"Slurm(setup=...) takes a list of lines, not {shown(setup)}")
        login = login_of("Slurm", key=key, known_hosts=known_hosts, config=config)
        values: dict[str, object] = {
            "host": host,
            "partition": partition,
            "time": _time(time),
            "gres": gres,
            "exclusive": bool(exclusive),
            "constraint": constraint,
            "qos": qos,
            "account": account,
            "setup": tuple(setup),
            "together": bool(together),
            "reach": reach,
            "options": long_options(
                "Slurm", options or {}, command="sbatch", example="mail-type", ours=OURS, abbreviated=True
            ),
            "key": next(iter(login.keys), None),
            "known_hosts": login.known_hosts,
            "config": login.config,
            "python": python,
        }
        for name, value in values.items():
            if value == "" or (isinstance(value, str) and "\n" in value):
                raise ValueError(f"Slurm({name}=...) is empty or has several lines: leave it out for its default")
            object.__setattr__(self, name, value)
        if host is not None:
            self.place()

    @staticmethod
    def current(*, python: str = "python3") -> Allocation:
        """Return a provider of the nodes of the job that this program runs in, under salloc or in a batch script.

        Nothing is submitted: pools use the job's nodes, in the order of the allocation, and the job outlives them.
        Several pools of one job share its nodes.

        Args:
            python: The interpreter of the step on the nodes.

        Raises:
            BadRequest: This program runs in no job, or srun has started several copies of it.
        """
        from .allocation import Allocation

        return Allocation.of(os.environ, python=python)

    @property
    def name(self) -> str:
        """The name of the provider."""
        return "slurm"

    @property
    def local(self) -> bool:
        """Return whether the nodes are on this computer."""
        return False

    @property
    def outlives(self) -> bool:
        """Return True: the steps outlive their client until their lease is over."""
        return True

    @property
    def free(self) -> bool:
        """Return True: Slurm limits users by shares of the cluster, not by money."""
        return True

    @property
    def time_s(self) -> float | None:
        """The time limit in seconds; None: the partition's."""
        return None if self.time is None else seconds_of(self.time)

    @property
    def where(self) -> str:
        """The login host, or this computer."""
        return self.host or os.uname().nodename

    @property
    def journal_place(self) -> dict[str, str]:
        """Return the login host and the files for logging in, as texts for the journal.

        By these texts, later commands find the pools of this provider.
        """
        return {"slurm": self.where, **({} if self.host is None else as_texts(self.login()))}

    def login(self) -> Login:
        """Return the keys and files with which to log in to the login host."""
        keys = () if self.key is None else (self.key,)
        return Login(keys=keys, known_hosts=self.known_hosts, config=self.config)

    def place(self) -> Place:
        """Return the login host.

        Raises:
            ValueError: The text is not a host.
        """
        from ..shared.login_host import Place

        return Place.of_option("Slurm(host=...)", self.host or "", self.login())

    def arguments(self) -> list[str]:
        """Return the arguments of sbatch for the options, without the time limit."""
        named = {
            "partition": self.partition,
            "constraint": self.constraint,
            "qos": self.qos,
            "account": self.account,
        }
        options = [f"--{name}={value}" for name, value in named.items() if value is not None]
        options += ["--exclusive"] if self.exclusive else []
        return options + as_words(self.options)

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[SlurmFleet]:  # noqa: ARG002
        """Open a fleet, which connects to the login host in the background. `launch` raises connection errors.

        Raises:
            JournalError: The journal cannot be written.
            BadRequest: The pool has another owner.
        """
        from ..shared.journal import Journal
        from ..shared.login_host import opened_commands
        from .fleet import SlurmFleet

        journal = await uninterrupted(Journal.open)
        ownership = await uninterrupted(partial(journal.own, pool, self.name, self.journal_place))
        try:
            async with (
                opened_commands([] if self.host is None else [self.place()]) as (commands,),
                anyio.create_task_group() as tasks,
            ):
                fleet = SlurmFleet(self, pool, commands, journal, tasks)
                fleet.start()
                try:
                    yield fleet
                finally:
                    with anyio.CancelScope(shield=True):
                        await fleet.close()
                    tasks.cancel_scope.cancel()
        finally:
            await uninterrupted(ownership.close)


def _time(option: str | int | None) -> str | None:
    if option is None:
        return None
    text = str(option)
    try:
        seconds = seconds_of(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"Slurm(time=...): {error}") from None
    if not seconds:
        raise ValueError("Slurm(time=...) is no time at all: leave it out for the partition's default")
    return text
