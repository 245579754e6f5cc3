"""One host: booted, reached into, broken in the ways in which machines and networks break, and taken down."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .cgroups import Groups
from .commands import LIMIT_S, LabError, ip, run
from .identity import PLAIN_UID, PLAIN_USER
from .network import Network
from .plan import Plan, settings
from .proc import Process, in_namespace, namespace, this
from .spawned import PATH, Spawned, environment
from .wan import Wan

INIT = (Path(__file__).parent / "init.sh").read_text()
BOOT_S = 180.0
LOOK_S = 0.005  # between two looks for a port: each goes through all connections of this machine, in the kernel
TABLE = "outrider_lab"
LISTEN, ESTABLISHED = "0A", "01"  # net/tcp_states.h


class Host:
    """Made by `Lab.create`. What is done to it here is done from outside: no ssh, and nothing of ours runs in it."""

    def __init__(
        self, plan: Plan, groups: Groups, *, started: Callable[[Process], None], gone: Callable[[Host], None]
    ) -> None:
        self._plan, self._groups, self._started, self._gone = plan, groups, started, gone
        self._launcher: subprocess.Popen[bytes] | None = None
        self._init: Process | None = None
        self._wans: dict[str, Wan] = {}

    # --- who it is ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def address(self) -> str:
        return self._plan.ports[0].address

    def address_on(self, network: Network) -> str:
        """The host's address on this one of its networks."""
        return next(port.address for port in self._plan.ports if port.network is network)

    @property
    def has_own_cgroups(self) -> bool:
        """Whether it may make control groups, of version 1; see `Lab.create`."""
        return any(place.startswith("/sys/fs/cgroup/") for place in self._plan.shared)

    @property
    def port(self) -> int:
        """Its sshd's."""
        return 22 if self._plan.sshd is None else self._plan.sshd.port

    @property
    def host_key(self) -> str:
        """As in an ``authorized_keys`` file: type, key, comment."""
        return self._plan.host_key

    @property
    def known_hosts(self) -> str:
        """Its line in a ``known_hosts`` file."""
        at = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{at} {' '.join(self.host_key.split()[:2])}\n"

    @property
    def console(self) -> str:
        return self._plan.console.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Of its first process, as this machine knows it.

        Raises:
            LabError: the host has no power.
        """
        if self._init is None:
            raise LabError(f"{self.name} has no power")
        return self._init.pid

    # --- its life -------------------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Start it, with the disk it has; returns before its sshd listens: see `wait_up`."""
        plan = self._plan
        namespaces = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
        shared = [word for place, folder in plan.shared.items() for word in (str(folder), place)]
        arguments = [plan.name, str(plan.disk), plan.lower, *shared, "--", *plan.visible]
        with plan.console.open("ab") as console:
            self._launcher = subprocess.Popen(
                ["unshare", *namespaces, "bash", "-s", "--", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                start_new_session=True,
                bufsize=0,
                env={"PATH": PATH, "LANG": "C.UTF-8"},
            )
        self._started(this(self._launcher.pid))
        self._tell(INIT.rstrip())
        self._init = this(int(self._hear()))
        self._started(self._init)
        self._groups.join(self._launcher.pid)
        self._groups.join(self._init.pid)
        ip(
            *(
                f"link add {port.link} type veth peer name {port.inside} netns {self._init.pid}\n"
                f"link set {port.link} master {port.network.bridge} up"
                for port in plan.ports
            )
        )
        self._tell("link set lo up\n" + "".join(f"{line}\n" for port in plan.ports for line in settings(port)))
        if plan.sshd is not None:
            self._tell("sshd")

    def wait_up(self, within_s: float = BOOT_S) -> None:
        """Returns when its sshd listens, or, without one, when it has booted."""
        until = time.monotonic() + within_s
        if self._hear() != "up":
            raise LabError(f"{self.name} did not boot: {self.console}")
        while self._plan.sshd is not None and self.port not in self.listening():
            if time.monotonic() > until:
                raise LabError(f"{self.name}: sshd did not listen within {within_s:g} s: {self.console}")
            time.sleep(LOOK_S)

    def power_off(self, *, silent: bool = False) -> None:
        """The plug is pulled: the link is gone first, so neither FIN nor RST leaves. Its disk stays.

        ``silent``: as in a cloud, whose network does not tell that nobody answers; see `Network.remember`.
        """
        if self._launcher is None:
            return
        for port in self._plan.ports:
            if silent:
                port.network.remember(port.address)
            run(["ip", "link", "del", port.link], check=False)
        for wan in self._wans.values():
            wan.close()
        self._wans.clear()
        if self._init is not None:
            self._init.kill()
        self._groups.thaw()
        self._end_launcher()
        self._groups.remove_inner()
        self._init = None

    def destroy(self) -> None:
        """It never existed."""
        self.power_off()
        self._groups.remove()
        for port in self._plan.ports:
            port.network.forget(port.address)
            port.network.release(port.address)
        if self._plan.disk.is_mount():
            run(["umount", "--lazy", str(self._plan.disk)])
        shutil.rmtree(self._plan.disk, ignore_errors=True)
        self._gone(self)

    # --- reaching into it -----------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        user: str = "root",
        stdin: str = "",
        check: bool = True,
        limit_s: float = LIMIT_S,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on it, to the end; ``check``: a failure raises."""
        return run(
            self._enter(argv, user), stdin=stdin, check=check, limit_s=limit_s, env=environment(user) | dict(env or {})
        )

    def spawn(self, *argv: str, user: str = "root") -> Spawned:
        """Start a command on it as a child of ours, which ends with the host at the latest."""
        entering = subprocess.Popen(
            self._enter(argv, user),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(user),
            start_new_session=True,
        )
        return Spawned(entering)

    def start(self, *argv: str) -> None:
        """Have its first process start a command, as a machine does at its boot; what it says is on the console."""
        if any(not word or set(word) & set(" \t\n*?[") for word in argv):
            raise ValueError(f"{argv}: only plain words can be told to {self.name}")
        self._tell(f"start {' '.join(argv)}")

    def path(self, path: str) -> Path:
        """Where this machine finds the host's file; absolute links in it would lead astray."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def processes(self) -> dict[int, list[str]]:
        """The command line of everything that runs on it, by this machine's pid; not the host's first process."""
        inode = namespace(self.pid, "pid")
        found: dict[int, list[str]] = {}
        for pid in in_namespace("pid", inode) if inode is not None else ():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line and pid != self.pid:  # empty: a zombie
                found[pid] = line.decode(errors="replace").rstrip("\0").split("\0")
        return found

    def listening(self) -> set[int]:
        """The TCP ports (IPv4) that something listens on, loopback included."""
        return self._ports(LISTEN)

    def _ports(self, *states: str) -> set[int]:
        """Its own ends (IPv4) of what is in one of these states."""
        rows = (line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:])
        return {int(row[1].partition(":")[2], 16) for row in rows if row[3] in states}

    # --- faults ---------------------------------------------------------------------------------------------------

    def partition(self, *, silent: bool = False) -> None:
        """Frames are dropped both ways until `heal`; ``silent`` as in `power_off`."""
        for port in self._plan.ports:
            if silent:
                port.network.remember(port.address)
            ip(f"link set {port.link} nomaster")

    def blackhole(self) -> None:
        """A partition that nothing tells of."""
        self.partition(silent=True)

    def drop(self, *, incoming: bool = False, outgoing: bool = False) -> None:
        """One way only: what arrives, or what leaves, is lost until `heal`. It is lost on the wire, ARP excepted:
        nobody is told, as a filter in the host would tell its senders.
        """
        for hook, wanted in (("ingress", incoming), ("egress", outgoing)):
            for port in self._plan.ports if wanted else ():
                chain = f'{hook}_{port.inside} {{ type filter hook {hook} device "{port.inside}" priority 0; }}'
                rule = f"{hook}_{port.inside} meta protocol ip drop"
                self._nft(
                    f"add table netdev {TABLE}", f"add chain netdev {TABLE} {chain}", f"add rule netdev {TABLE} {rule}"
                )

    def refuse(self, port: int) -> None:
        """Connections to this port are reset, as where nothing listens, until `heal`; also those that exist."""
        self._nft(
            f"add table inet {TABLE}",
            f"add chain inet {TABLE} input {{ type filter hook input priority 0; }}",
            f'add rule inet {TABLE} input iifname != "lo" tcp dport {port} reject with tcp reset',
        )

    def heal(self) -> None:
        """Undo `partition`, `blackhole`, `drop` and `refuse`."""
        for family in ("inet", "netdev"):
            self._nft(f"add table {family} {TABLE}", f"delete table {family} {TABLE}")
        for port in self._plan.ports:
            ip(f"link set {port.link} master {port.network.bridge}")
            port.network.forget(port.address)

    def freeze(self) -> None:
        """All its processes stand still; its kernel goes on answering: TCP acknowledges, sshd's port accepts."""
        self._groups.freeze()

    def thaw(self) -> None:
        self._groups.thaw()

    def limit_memory(self, size_bytes: int | None) -> None:
        """Beyond that, its kernel kills. What it writes to its disk counts: the disk is memory."""
        self._groups.limit_memory(size_bytes)

    def limit_cores(self, cores: float | None) -> None:
        """As many, or as much of one, has it for all of its processes. None: this machine's."""
        self._groups.limit_cores(cores)

    def limit_bandwidth(self, *, up_mbit: float, down_mbit: float) -> None:
        for port in self._plan.ports:
            self._shape(("tc",), port.link, down_mbit)
            self._shape(("nsenter", "--target", str(self.pid), "--net", "tc"), port.inside, up_mbit)

    def distance(self, *, delay_s: float, jitter_s: float = 0.0, loss: float = 0.0) -> Wan:
        """Put it far away: each frame takes ``delay_s`` to it and as long back. Until its power is off."""
        [port] = self._plan.ports
        wan = Wan(delay_s=delay_s, jitter_s=jitter_s, loss=loss)
        end = f"{port.link}f"
        self._wans[port.link] = wan
        ip(f"link del {port.link}")
        wan.connect(port.link, end)
        ip(f"link set {port.link} master {port.network.bridge} up", f"link set {end} netns {self.pid}")
        ip(f"link set {end} name {port.inside}", *settings(port), inside=self.pid)
        return wan

    def stop_sshd(self, *, sessions: bool = False) -> None:
        """Its port is closed; ``sessions``: the connections that it had end too: their ends have left."""
        ended = (LISTEN, ESTABLISHED) if sessions else (LISTEN,)
        while True:
            for pid, line in self.processes().items():  # also one that it has begun to serve since the last look
                if (
                    line[0].startswith("sshd: /usr/sbin/sshd")
                    or line[0] == "/usr/sbin/sshd"
                    or (sessions and line[0].startswith("sshd"))
                ):
                    _kill(pid)
            if self.port not in self._ports(*ended):
                return
            time.sleep(0.001)

    def start_sshd(self) -> None:
        self._tell("sshd")
        while self.port not in self.listening():
            time.sleep(LOOK_S)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _enter(self, argv: Sequence[str], user: str) -> list[str]:
        identity = ["--setuid", str(PLAIN_UID), "--setgid", str(PLAIN_UID)] if user == PLAIN_USER else []
        joins = "".join(f"echo $$ >{shlex.quote(path)}; " for path in self._groups.joining)
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"]
        return ["sh", "-c", f'{joins}exec "$@"', "enter", *enter, *identity, "--", *argv]

    def _nft(self, *lines: str) -> None:
        run(["nsenter", "--target", str(self.pid), "--net", "nft", "-f", "-"], stdin="\n".join(lines) + "\n")

    @staticmethod
    def _shape(tc: Sequence[str], link: str, mbit: float) -> None:
        burst_bytes = max(32_000, int(mbit * 1e6 / 8 / 100))
        shape = f"tbf rate {mbit}mbit burst {burst_bytes} latency 100ms"
        run([*tc, "qdisc", "replace", "dev", link, "root", *shape.split()])

    def _tell(self, order: str) -> None:
        assert self._launcher is not None, "a host with power is listening"
        assert self._launcher.stdin is not None, "it was given a pipe"
        self._launcher.stdin.write(order.encode() + b"\n")

    def _hear(self) -> str:
        """The next line of its first process.

        Raises:
            LabError
        """
        assert self._launcher is not None, "a host with power can be heard"
        assert self._launcher.stdout is not None, "it was given a pipe"
        line = b""
        until = time.monotonic() + BOOT_S
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._launcher.stdout], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._launcher.stdout.fileno(), 1) if ready else b""
            if not more:
                raise LabError(f"{self.name} did not boot: {self.console}")
            line += more
        return line.decode().strip()

    def _end_launcher(self) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is None:
            return
        for pipe in (launcher.stdin, launcher.stdout):
            if pipe is not None:
                pipe.close()
        try:
            launcher.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait(LIMIT_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
