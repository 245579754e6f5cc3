"""The choice of nodes for `outrider ssh` and `outrider exec`, and the command lines that reach them.

The user can choose nodes of running pools, and nodes of pools whose program has died, until their machines end.
`ssh_command` builds an OpenSSH command line that reaches a machine as its pool does: with the pool's key, and with host
keys checked. `InContainer` builds a command line that runs a program in a container by Docker or Podman, on this
computer or on a host. Neither does I/O.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...lazy_dataclass import dataclass
from ...providers.base import Address, Login
from ...providers.shared.journal import Journal
from ...providers.shared.paths import state_root
from ..api.checks import refuse
from ..client.adoption import machines_kept, machines_left
from ..record.runs.lines import EVENTS, parsed_events
from ..record.runs.names import runs_folder
from ..record.runs.nodes import LivingNode, RunNodes, nodes_now
from ..record.runs.reader import Run, read_json, runs_in, runs_meant

ALIAS = "outrider"  # the host name under which the known_hosts file has the pinned host keys
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
_ALWAYS = {  # options of every ssh command: it must not ask questions, accept new host keys or forward anything
    "StrictHostKeyChecking": "yes",
    "BatchMode": "yes",
    "UpdateHostKeys": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "LogLevel": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Way:
    """The route to a machine by SSH.

    ``key``: the path of the pool's private key; empty: log in as ``login`` says. ``host_keys``: the host must present
    one of these; empty: the user's known_hosts are used. If ``address`` has a command, ssh connects through that
    command (a ProxyCommand), and ``login`` describes how to reach the host on which the command runs.
    """

    address: Address
    key: str = ""
    host_keys: tuple[str, ...] = ()
    login: Login | None = None

    @property
    def pins(self) -> str:
        """The text of a known_hosts file with the pinned host keys."""
        return "".join(f"{ALIAS} {key}\n" for key in self.host_keys)


def ssh_command(way: Way, pins: Path, *, terminal: bool, command: Sequence[str] = ()) -> list[str]:
    """Return the ssh command line that runs ``command`` on the machine; without a command, it opens a shell.

    ``pins``: the path of a file with the text of `Way.pins`.
    """
    login = way.login or Login()
    options = {**_ALWAYS, **_host_keys(way, login, pins)}
    config = login.config
    if way.address.command:
        # the user's SSH configuration applies to the host of the ProxyCommand, and not to the machine
        options["ProxyCommand"], config = _carried(way.address.command, login), ()
    elif login.jump:
        options["ProxyCommand"] = _through(login.jump.split(","), way.address, login)
    keys = (way.key,) if way.key else login.keys
    words = ["ssh", *_words(options, keys, config), *(["-t"] if terminal else ["-n"] if command else [])]
    return [*words, *_destination(way.address), *((shlex.join(command),) if command else ())]


def _host_keys(way: Way, login: Login, pins: Path) -> dict[str, str]:
    if way.host_keys:
        return {"UserKnownHostsFile": str(pins), "GlobalKnownHostsFile": "/dev/null", "HostKeyAlias": ALIAS}
    return _known_hosts(login)


def _known_hosts(login: Login) -> dict[str, str]:
    """Return the ssh options that name the files with known host keys.

    Returns no options if the user's SSH configuration is used, because it may name other files.
    """
    if login.known_hosts:
        files = " ".join(f'"{each}"' for each in login.known_hosts)
        return {"UserKnownHostsFile": files, "GlobalKnownHostsFile": "/dev/null"}
    return {} if login.config else dict(zip(("UserKnownHostsFile", "GlobalKnownHostsFile"), KNOWN_HOSTS, strict=True))


def _words(options: dict[str, str], keys: Sequence[str], config: Sequence[str]) -> list[str]:
    words = ["-F", config[0] if config else "none"]
    if keys:
        options = {**options, "IdentitiesOnly": "yes", "IdentityAgent": "none"}
        words += [word for key in keys for word in ("-i", key)]
    return words + [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _destination(address: Address) -> list[str]:
    words = []
    if address.port is not None:
        words += ["-p", str(address.port)]
    if address.user is not None:
        words += ["-l", address.user]
    return [*words, "--", address.host]


def _host(address: Address) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host


def _carried(command: Sequence[str], login: Login) -> str:
    """Return the ProxyCommand for an address that has a command, through which ssh connects.

    If the login has a jump host, the command runs on that host.
    """
    if not login.jump:
        return shlex.join(command).replace("%", "%%")
    *before, last = login.jump.split(",")
    return _hop(before, last, login, run=shlex.join(command))


def _through(jumps: Sequence[str], to: Address, login: Login) -> str:
    """Return the ProxyCommand that connects to the address ``to`` through jump hosts.

    `ssh -J` is not used, because it would ask whether to trust the jump hosts.
    """
    *before, last = jumps
    return _hop(before, last, login, forward=f"{_host(to)}:{to.port or 22}")


def _hop(before: Sequence[str], last: str, login: Login, *, forward: str = "", run: str = "") -> str:
    """Return the command line that logs in to the host ``last``, and there connects its input and output to the address
    ``forward`` or to the command ``run``.

    ``before``: the jump hosts on the way to the host ``last``.
    """
    from ...providers.ssh import Host

    hop = Host.parse(last)
    at = Address(hop.name, hop.port, user=hop.user)
    options = {**_ALWAYS, **_known_hosts(login)}
    if before:
        options["ProxyCommand"] = _through(before, at, login)
    words = ["ssh", *_words(options, login.keys, login.config), *(["-W", forward] if forward else ["-T"])]
    return shlex.join([*words, *_destination(at), *([run] if run else [])]).replace("%", "%%")


_SHELL = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


@dataclass(frozen=True, slots=True)
class InContainer:
    """A container, and how to run commands in it.

    ``name``: the container's name. ``runtime``: the command of the container runtime, such as ``("sudo", "docker")``.
    ``host``: how to reach the host of the container; None: this computer.
    """

    name: str
    runtime: tuple[str, ...]
    host: Way | None = None

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` in the container, with an empty standard input."""
        return [*self.runtime, "exec", self.name, *command]

    def shell(self, *, terminal: bool) -> list[str]:
        """Return the command line that opens a shell in the container.

        ``terminal``: the shell's input is a terminal.
        """
        return [*self.runtime, "exec", "-it" if terminal else "-i", self.name, *_SHELL]


def container_of(about: Mapping[str, Any], node: LivingNode) -> InContainer | None:
    """Return the container of a node; None: the node is not a container.

    ``about``: the description of the node's run, from run.json.
    """
    runtime, (host, _, name) = shlex.split(node.facts.get("runtime", "")), node.machine.rpartition("/")
    if not runtime:
        return None
    return InContainer(name, tuple(runtime), _host_way(about, host) if host else None)


def _host_way(about: Mapping[str, Any], host: str) -> Way:
    from ...providers.shared.login_host import Place

    specs = about.get("spec", {}).get("specs", ())
    providers = [spec["provider"] for spec in specs if isinstance(spec.get("provider"), Mapping)]
    logins = [each["login"] for each in providers if host in each.get("hosts", ()) and each.get("login")]
    login = logins[0] if logins else {}

    def files(name: str) -> tuple[str, ...]:
        return tuple(str(Path(about.get("cwd", "")) / path) for path in login.get(name, ()))

    place = Place.parse(host, Login(keys=files("keys"), known_hosts=files("known_hosts"), config=files("config")))
    return Way(Address(place.host, place.port, user=place.user), login=place.login)


@dataclass(frozen=True, slots=True)
class Reached:
    """A node, and how to reach it: in a ``folder`` on this computer, in a ``container``, or by SSH (``way``)."""

    name: str  # such as "node 3"; the machine's name if the pool has no record
    machine: str
    way: Way | None = None
    folder: Path | None = None
    container: InContainer | None = None
    number: int | None = None  # the node's number in its run; None: unknown


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines whose SSH keys the journal (the local database of pools) has.

    ``ways``: the SSH route to each machine, by the machine's id at the provider.
    """

    ways: Mapping[str, Way]

    @classmethod
    def known(cls) -> Machines:
        journal, ways = Journal(state_root()), dict[str, Way]()
        for pool in sorted(each.name for each in journal.pools.iterdir()) if journal.pools.is_dir() else ():
            if (kept := machines_kept(journal, pool)) is None:
                continue
            key, machines = kept
            for name, (machine, host_keys) in machines.items():
                if machine.address is not None:
                    ways[name] = Way(machine.address, str(key), host_keys, machine.login)
        return cls(ways)


def reached(wanted: str, *, node: int | None = None, rank: int | None = None) -> list[Reached]:
    """Return the nodes that the user means.

    ``wanted`` is a run, which means all its ready nodes, or a machine, which means the node on it. ``node`` and
    ``rank`` limit a run to the node with this number or rank.

    Raises:
        SpecError: there is no such node; the message says which nodes exist.
        OSError: the state folder cannot be read.
    """
    machines, runs = Machines.known(), runs_in(runs_folder())
    meant = runs_meant(wanted, runs)
    living = [run for run in meant if run.owner == "alive"]
    if len(living) > 1:
        refuse(f"{wanted!r} is the beginning of {len(living)} living runs, {', '.join(each.id for each in living)}.")
    if living:
        return list(_chosen(living[0], machines, node, rank))
    named = [*_by_machine(wanted, runs, machines)]
    if len(named) > 1:
        which = ", ".join(f"{each.machine} ({each.name})" for each in named)
        refuse(f"{wanted!r} is {len(named)} nodes: {which}. Write the machine, or the run with --node.")
    if named and (node is None and rank is None):
        return named
    if meant:
        run = meant[-1]
        if run.owner == "dead" and not run.ended and (nodes := list(_left(run, machines, node, rank))):
            return nodes
        gone = "is of another computer" if run.owner == "elsewhere" else "has lost its owner, which died"
        how = "has ended" if run.ended else gone
        refuse(f"run {run.id} {how}, and has no nodes here any more: `outrider ps` shows the pools that live.")
    return refuse(
        f"{wanted!r} is neither a run nor a node of a living pool: `outrider ps` and `outrider runs` show those."
    )


def _left(run: Run, machines: Machines, node: int | None, rank: int | None) -> Iterator[Reached]:
    """Yield the nodes of a run whose program died, if their machines still exist.

    Print to stderr when the machines' leases will end them.
    """
    left = machines_left(Journal(state_root()))
    run_nodes = nodes_now(parsed_events((run.directory / EVENTS).read_bytes()))
    nodes = {number: each for number, each in run_nodes.nodes.items() if each.machine in left}
    if not nodes:
        return
    ranks = {rank: number for rank, number in run_nodes.ranks.items() if number in nodes}
    leases = [lease_s for each in nodes.values() if (lease_s := left[each.machine]) is not None]
    lease = f"their lease, {max(leases):g} s after that" if leases else "their lease"
    print(
        f"outrider: run {run.id} has lost its owner, which died: its machines end by {lease}, unless Pool.attach takes "
        "them over",
        file=sys.stderr,
    )
    yield from _chosen(run, machines, node, rank, RunNodes(nodes, ranks))


def _chosen(
    run: Run, machines: Machines, node: int | None, rank: int | None, run_nodes: RunNodes | None = None
) -> Iterator[Reached]:
    run_nodes = run_nodes or nodes_now(parsed_events((run.directory / EVENTS).read_bytes()))
    if rank is not None and rank not in run_nodes.ranks:
        refuse(f"run {run.id} has no rank {rank}: it has {_numbers(run_nodes.ranks)}.")
    number = run_nodes.ranks[rank] if rank is not None else node
    if number is not None and number not in run_nodes.nodes:
        refuse(f"run {run.id} has no node {number}: it has {_numbers(run_nodes.nodes)}.")
    wanted = [each for each in run_nodes.nodes.values() if (each.ready if number is None else each.number == number)]
    if not wanted:
        refuse(f"no node of run {run.id} is ready yet.")
    for each in wanted:
        yield _reached(run, each, machines)


def _by_machine(wanted: str, runs: Sequence[Run], machines: Machines) -> Iterator[Reached]:
    """Yield the nodes whose machine has this name or address.

    Names that the pool knows count first. Names that nodes report about themselves are used only if no other name
    matches: a node that reports the name of another node must not get that node's commands.
    """
    living = [
        (run, each)
        for run in runs
        if not run.ended and run.owner == "alive"
        for each in nodes_now(parsed_events((run.directory / EVENTS).read_bytes())).nodes.values()
    ]
    called = {name for name, way in machines.ways.items() if wanted in (name, way.address.host)}
    known = [(run, each) for run, each in living if each.machine in called or each.is_known_as(wanted)]
    others = called - {each.machine for _, each in living}
    root = state_root() / "local"
    is_local = "/" in wanted and ".." not in wanted and (root / wanted / "work").is_dir()
    if not known and not others and not is_local:
        known = [(run, each) for run, each in living if each.calls_itself(wanted)]
    for run, each in known:
        yield _reached(run, each, machines)
    for name in sorted(others):
        yield Reached(name, name, machines.ways[name])
    if is_local and wanted not in {each.machine for _, each in known}:
        yield Reached(wanted, wanted, folder=root / wanted / "work")


def _reached(run: Run, node: LivingNode, machines: Machines) -> Reached:
    name = f"node {node.number}"
    if (way := machines.ways.get(node.machine)) is not None:
        return Reached(name, node.machine, way, number=node.number)
    if (directory := node.facts.get("directory")) is not None:
        return Reached(name, node.machine, folder=Path(directory) / "work", number=node.number)
    if (way := host_way(read_json(run.directory / "run.json"), node.machine)) is not None:
        return Reached(name, node.machine, way, number=node.number)
    if (container := container_of(read_json(run.directory / "run.json"), node)) is not None:
        return Reached(name, node.machine, container.host, container=container, number=node.number)
    return refuse(
        f"the way to {name} of run {run.id} ({node.machine or 'no machine yet'}) is known to its program alone: its "
        "provider keeps no key for others, or the record is just being begun."
    )


def host_way(about: Mapping[str, Any], machine: str) -> Way | None:
    """Return how to reach a host that belongs to the user; None: the run has no such host. No I/O.

    ``about``: the description of the run, from run.json.
    """
    specs = about.get("spec", {}).get("specs", ()) if isinstance(about.get("spec"), Mapping) else ()
    for spec in specs:
        provider = spec.get("provider") if isinstance(spec, Mapping) else None
        if not isinstance(provider, Mapping) or provider.get("class") != "SSH":
            continue
        for host in provider.get("hosts", ()):
            if machine.partition("/")[2] == _host_name(host):
                key, pinned = host.get("key"), host.get("host_key")
                login = Login(
                    keys=(str(Path(str(about.get("cwd", ""))) / Path(key).expanduser()),) if key else (),
                    known_hosts=tuple(provider.get("known_hosts", ())),
                    config=tuple(provider.get("config", ())),
                    jump=host.get("jump"),
                )
                address = Address(host["name"], host.get("port"), user=host.get("user"))
                return Way(address, host_keys=(pinned,) if pinned else (), login=login)
    return None


def _host_name(host: Mapping[str, Any]) -> str:
    from ...providers.ssh import Host

    return str(Host(host["name"], host.get("port"), host.get("user")))


def _numbers(numbers: Mapping[int, object]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
