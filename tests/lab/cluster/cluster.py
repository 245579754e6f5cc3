"""A site's cluster as hosts of a lab: up in a few seconds, and gone with the lab."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from netlab import PLAIN_USER, Host, Lab, LabError, Sshd
from netlab.identity import PLAIN_UID, write_key

from .site import ADOPTS, DEVICES, Site

READY_S = 120.0
RUN_S = 120.0  # for a command
POLL_S = 0.05
WORKERS = 4
KEY_BYTES = 1024
CONTROLLER = "/run/slurmctld.pid"
HOME = f"/home/{PLAIN_USER}"
START = """
chown munge: /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
install --directory --owner=munge --group=munge /run/munge /var/log/munge /var/lib/munge
install --directory /var/lib/slurm/state /var/lib/slurm/spool
setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged
"""
ACCOUNTING = """
chmod 0600 /etc/slurm/slurmdbd.conf
install --directory --owner=mysql /var/lib/slurm/database /run/mysqld
mariadb-install-db --no-defaults --user=mysql --datadir=/var/lib/slurm/database --skip-test-db \\
  --auth-root-authentication-method=socket >/var/log/mariadb-install.log 2>&1
setsid mariadbd --no-defaults --user=mysql --datadir=/var/lib/slurm/database --socket=/run/mysqld/mysqld.sock \\
  --skip-networking --innodb-flush-log-at-trx-commit=0 </dev/null >/var/log/mariadb.log 2>&1 &
within() { timeout 120 sh -c 'until "$@" >/dev/null 2>&1; do sleep 0.05; done' wait "$@"; }
within mariadb-admin --no-defaults --socket=/run/mysqld/mysqld.sock ping
slurmdbd
within sacctmgr --noheader show cluster
sacctmgr --immediate --quiet add cluster lab
"""


class Cluster:
    """``login`` is on the lab's network; the ``nodes`` are on one of their own, which is reached through it alone.

    ``network`` is theirs. The lab's plain user may log in, has no other rights, and has one home on all hosts.
    """

    def __init__(self, lab: Lab, site: Site = Site()) -> None:  # noqa: B008 - immutable
        """Bring it up; returns when Slurm says that its nodes are idle.

        Raises:
            LabError
        """
        self.lab, self.site = lab, site
        self._home = lab.folder("home")
        self._munge_key = os.urandom(KEY_BYTES)
        self.network = lab.add_network()
        names = ["login", *site.names]
        with ThreadPoolExecutor(WORKERS) as threads:
            self.login, *self.nodes = threads.map(self._boot, names)
            self._fill_home()
            list(threads.map(self._set_up, self.hosts))
        self.wait_idle()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> list[Host]:
        return [self.login, *self.nodes]

    def node(self, name: str) -> Host:
        return next(host for host in self.nodes if host.name == name)

    def close(self) -> None:
        """The hosts never existed; their network and homes are gone with the lab."""
        for host in self.hosts:
            host.destroy()

    @property
    def has_cgroups(self) -> bool:
        """Whether jobs are tracked, and held to the memory that they asked for, by control groups."""
        return all(node.has_own_cgroups for node in self.nodes)

    # --- as a user ------------------------------------------------------------------------------------------------

    def run(
        self, *argv: str, stdin: str = "", check: bool = True, limit_s: float = RUN_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login host as the plain user, at home."""
        given = ("env", f"--chdir={HOME}", *argv)
        return self.login.run(*given, user=PLAIN_USER, stdin=stdin, check=check, limit_s=limit_s)

    def submit(self, *options: str, script: str) -> str:
        """Hand a batch script to Slurm; returns the job's number."""
        done = self.run("sbatch", "--parsable", *options, stdin=f"#!/bin/sh\n{script}\n")
        return done.stdout.strip().partition(";")[0]

    def state(self, job: str) -> str:
        """In Slurm's word: PENDING, RUNNING, COMPLETED, ..."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").stdout.strip()

    def nodes_of(self, job: str) -> str:
        """As Slurm writes them: "c[0-2]"."""
        return self.run("squeue", "--noheader", f"--jobs={job}", "--format=%N").stdout.strip()

    def wait_state(self, job: str, *states: str, within_s: float = READY_S) -> str:
        """Returns which of these it has got to.

        Raises:
            LabError: another, for too long.
        """
        until = time.monotonic() + within_s
        while (state := self.state(job)) not in states:
            if time.monotonic() > until:
                raise LabError(f"job {job} is {state} and not {' or '.join(states)} within {within_s:g} s")
            time.sleep(POLL_S)
        return state

    # --- as its administrator -------------------------------------------------------------------------------------

    def idle(self) -> set[str]:
        """The names of the nodes on which nothing runs and something could."""
        done = self.login.run(
            "sinfo", "--noheader", "--Node", "--states=idle", "--responding", "--format=%N", check=False
        )
        return set(done.stdout.split())

    def wait_idle(self, within_s: float = READY_S) -> None:
        """Returns when all nodes are.

        Raises:
            LabError: some are not.
        """
        until = time.monotonic() + within_s
        while missing := set(self.site.names) - self.idle():
            if time.monotonic() > until:
                said = self.login.run("sinfo", "--list-reasons", check=False).stdout
                raise LabError(f"{', '.join(sorted(missing))} not idle within {within_s:g} s: {said}{self._log()}")
            time.sleep(POLL_S)

    def power_on(self, node: Host) -> None:
        """Give a node its power back, with everything that runs on it at its boot."""
        node.power_on()
        node.wait_up()
        self._set_up(node)

    def stop_controller(self, *, signal: str = "TERM") -> None:
        """Nobody answers for the cluster; what runs goes on."""
        ended = 'while [ -d "/proc/$pid" ]; do sleep 0.05; done'
        self.login.run("sh", "-euc", f'pid=$(cat {CONTROLLER}); kill -{signal} "$pid"; {ended}')

    def start_controller(self) -> None:
        """It knows the jobs that it knew."""
        self.login.run("slurmctld")

    # --- how it is made -------------------------------------------------------------------------------------------

    def _boot(self, name: str) -> Host:
        networks = [self.lab.network, self.network] if name == "login" else [self.network]
        adopts = () if name == "login" else ("UsePAM yes",)
        return self.lab.create(
            name,
            networks=networks,
            sshd=Sshd(lines=adopts),
            shared={"/home": self._home},
            own_cgroups=name != "login",
        )

    def _fill_home(self) -> None:
        folder = self._home / PLAIN_USER
        ssh = folder / ".ssh"
        ssh.mkdir(parents=True)
        own = write_key(ssh / "id_ed25519", PLAIN_USER)
        (ssh / "authorized_keys").write_text(f"{self.lab.public_key}\n{own}\n")
        names = ((host, f"{host.name},{host.address_on(self.network)}") for host in self.hosts)
        (ssh / "known_hosts").write_text(
            "".join(f"{name} {' '.join(host.host_key.split()[:2])}\n" for host, name in names)
        )
        for path in (folder, ssh, *ssh.iterdir()):
            os.chown(path, PLAIN_UID, PLAIN_UID)
        ssh.chmod(0o700)

    def _set_up(self, host: Host) -> None:
        """What a machine of the site starts at its boot, with the files that say how."""
        login, nodes = self.login.address_on(self.network), [node.address for node in self.nodes]
        files = {
            "/etc/hosts": "".join(
                f"{address} {name}\n"
                for address, name in [
                    ("127.0.0.1", "localhost"),
                    (login, "login"),
                    *zip(nodes, self.site.names, strict=True),
                ]
            ),
            "/etc/slurm/slurm.conf": self.site.configuration(login, nodes, cgroups=self.has_cgroups),
            "/etc/slurm/gres.conf": self.site.devices,
            "/etc/slurm/cgroup.conf": self.site.control_groups,
        }
        if host is not self.login:
            files["/etc/pam.d/sshd"] = ADOPTS
        elif self.site.accounting:
            files["/etc/slurm/slurmdbd.conf"] = self.site.database
        for path, text in files.items():
            host.path(path).parent.mkdir(parents=True, exist_ok=True)
            host.path(path).write_text(text)
        rules = self.site.firewall(login=login, nodes=nodes, is_login=host is self.login)
        host.run("nft", "-f", "-", stdin=rules)
        for number in range(self.site.gpus):
            device = host.path(f"{DEVICES}{number}")
            device.parent.mkdir(parents=True, exist_ok=True)
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        key = host.path("/etc/munge/munge.key")
        key.unlink(missing_ok=True)
        key.write_bytes(self._munge_key)
        database = ACCOUNTING if host is self.login and self.site.accounting else ""
        daemon = "slurmctld -c" if host is self.login else "slurmd"
        host.run("sh", "-euc", f"{START}{database}{daemon}")

    def _log(self) -> str:
        """The end of what the controller says."""
        return self.login.run("tail", "--lines=20", "/var/log/slurmctld.log", check=False).stdout
