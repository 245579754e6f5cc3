"""What a site's administrators decide: how many nodes, who may go where, and Slurm's files that say so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONTROLLER_PORT, NODE_PORT, DATABASE_PORT = 6817, 6818, 6819
SRUN_PORTS = (60001, 60999)  # where srun listens for the steps that it starts
DEVICES = "/var/lib/slurm/device"  # and a number: what Slurm counts, and hands out by number
ADOPTS = """\
auth required pam_permit.so
account required pam_slurm_adopt.so action_adopt_failure=deny action_generic_failure=deny
session required pam_permit.so
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, before it exists."""

    nodes: int = 2
    cpus: int = 2  # of each, as Slurm is told: nothing holds tasks to them
    memory_mb: int = 2000  # of each, as Slurm is told; a job is held to its share where this kernel lets the lab do so
    gpus: int = 2  # of each, of the type a100: numbers that jobs are given, with no device behind them
    ssh_to_nodes: bool = True  # from the login host, for those who have a job there (pam_slurm_adopt); False: closed
    node_timeout_s: int = 10  # silent for so long, a node is down; it takes up to three times as long
    grace_s: int = 2  # between the notice of a preemption and its end
    kill_wait_s: int = 2  # between SIGTERM and SIGKILL
    shares: int = 0  # parts of the nodes, in their order: `main0` and `urgent0` are partitions of the first part alone
    accounting: bool = False  # a database of jobs, which sacct asks; it takes some seconds more to bring up

    @property
    def names(self) -> list[str]:
        """Of the nodes."""
        return [f"c{number}" for number in range(self.nodes)]

    def configuration(self, login: str, nodes: Sequence[str], *, cgroups: bool) -> str:
        """The text of ``slurm.conf``, with these addresses. ``cgroups``: the hosts have some to divide."""
        tracking = "cgroup" if cgroups else "linuxproc"
        lines = [
            "ClusterName=lab",
            f"SlurmctldHost=login({login})",
            f"SlurmctldPort={CONTROLLER_PORT}",
            f"SlurmdPort={NODE_PORT}",
            f"SrunPortRange={SRUN_PORTS[0]}-{SRUN_PORTS[1]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "StateSaveLocation=/var/lib/slurm/state",
            "SlurmdSpoolDir=/var/lib/slurm/spool",
            "SlurmctldPidFile=/run/slurmctld.pid",
            "SlurmdPidFile=/run/slurmd.pid",
            "SlurmctldLogFile=/var/log/slurmctld.log",
            "SlurmdLogFile=/var/log/slurmd.log",
            f"ProctrackType=proctrack/{tracking}",
            f"TaskPlugin=task/{'cgroup' if cgroups else 'none'}",
            "PrologFlags=contain",  # a step for those who come by SSH: pam_slurm_adopt needs it
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            f"DefMemPerCPU={self.memory_mb // self.cpus}",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherFrequency=2",
            *self._storage,
            "ReturnToService=2",  # a node whose power comes back is used again
            f"SlurmdTimeout={self.node_timeout_s}",
            "SlurmctldTimeout=10",
            f"KillWait={self.kill_wait_s}",
            "MinJobAge=300",
            "InactiveLimit=0",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "MpiDefault=none",
            *(["GresTypes=gpu"] if self.gpus else []),
            *(self._node(name, address) for name, address in zip(self.names, nodes, strict=True)),
            *self._partitions("", "ALL", " Default=YES"),
            *(line for number in range(self.shares) for line in self._partitions(number, ",".join(self.share(number)))),
        ]
        return "".join(f"{line}\n" for line in lines)

    def share(self, number: int) -> list[str]:
        """The names of the nodes of one part."""
        each = self.nodes // self.shares
        return self.names[number * each : (number + 1) * each]

    def _partitions(self, suffix: str | int, nodes: str, more: str = "") -> list[str]:
        ends = f"PreemptMode=CANCEL GraceTime={self.grace_s}"
        return [
            f"PartitionName=main{suffix} Nodes={nodes}{more} PriorityTier=1 {ends}",
            f"PartitionName=urgent{suffix} Nodes={nodes} PriorityTier=10 PreemptMode=OFF",
        ]

    def _node(self, name: str, address: str) -> str:
        gres = f" Gres=gpu:a100:{self.gpus}" if self.gpus else ""
        return f"NodeName={name} NodeAddr={address} CPUs={self.cpus} RealMemory={self.memory_mb}{gres} State=UNKNOWN"

    @property
    def _storage(self) -> list[str]:
        if not self.accounting:
            return ["AccountingStorageType=accounting_storage/none"]
        host = ["AccountingStorageHost=localhost", f"AccountingStoragePort={DATABASE_PORT}"]
        return ["AccountingStorageType=accounting_storage/slurmdbd", *host]

    @property
    def database(self) -> str:
        """The text of ``slurmdbd.conf``. MariaDB knows root by its socket; both are of the login host alone."""
        lines = [
            "AuthType=auth/munge",
            "DbdHost=localhost",
            f"DbdPort={DATABASE_PORT}",
            "SlurmUser=root",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            "StorageLoc=slurm",
            "LogFile=/var/log/slurmdbd.log",
            "PidFile=/run/slurmdbd.pid",
        ]
        return "".join(f"{line}\n" for line in lines)

    @property
    def devices(self) -> str:
        """The text of ``gres.conf``."""
        return f"Name=gpu Type=a100 File={DEVICES}[0-{self.gpus - 1}]\n" if self.gpus else ""

    @property
    def control_groups(self) -> str:
        """The text of ``cgroup.conf``."""
        return "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainDevices=no\nConstrainCores=no\n"

    def firewall(self, *, login: str, nodes: Iterable[str], is_login: bool) -> str:
        """nft's rules of a host. The nodes trust each other, as frameworks need it; to everybody else they are closed
        but for Slurm, and SSH from the login host where that is allowed. The login host takes SSH, and Slurm's nodes.
        """
        among = ", ".join(nodes)
        srun = f"{SRUN_PORTS[0]}-{SRUN_PORTS[1]}"
        if is_login:
            rules = ["tcp dport 22 accept", f"ip saddr {{ {among} }} tcp dport {{ {CONTROLLER_PORT}, {srun} }} accept"]
        else:
            ssh = ", 22" if self.ssh_to_nodes else ""
            rules = [
                f"ip saddr {{ {among} }} accept",
                f"ip saddr {login} tcp dport {{ {NODE_PORT}, {srun}{ssh} }} accept",
            ]
        always = ['iifname "lo" accept', "ct state established,related accept"]
        body = "; ".join(["type filter hook input priority 0", "policy drop", *always, *rules])
        return f"table inet site {{\n chain input {{ {body}; }}\n}}\n"
