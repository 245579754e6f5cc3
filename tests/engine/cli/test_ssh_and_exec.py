"""`outrider ssh` and `outrider exec` reach nodes of living pools, by a real sshd where these are elsewhere."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.api.errors import SpecError
from outrider.engine.cli.common import guarded
from outrider.engine.cli.main import app
from outrider.engine.cli.node_choice import Way, host_way, reached, ssh_command
from outrider.engine.cli.ssh import pinned
from outrider.engine.client.adoption import KEY, REST
from outrider.engine.record.runs.description import described
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.nodes import nodes_now
from outrider.engine.transport.ssh import new_key
from outrider.providers.base import Address, Login
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.pool_lock import Owner
from outrider.providers.ssh import SSH, Host

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
OUTRIDER = [sys.executable, "-c", "from outrider.engine.cli.main import main; main()"]
with_sshd = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="there is no sshd here")


# --- which nodes there are --------------------------------------------------------------------------------------------


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {"event": name, "at": 1.0, **fields}


def test_nodes_come_and_go() -> None:
    found = nodes_now(
        [
            event("node_launching", node=0, machine="p/n0", facts={"directory": "/a"}),
            event("node_launching", node=1, machine="p/n1", facts={}),
            event("node_ready", node=0, rank=0, machine="p/n0", hostname="h"),
            event("node_ready", node=1, rank=1, machine="p/n1"),
            event("node_launching", node=2, machine="p/n2", facts={}),
            event("node_lost", node=1),
            event("node_ready", node=2, rank=1),
            event("node_standby", node=3, machine="p/n3"),
        ]
    )
    assert sorted(found.nodes) == [0, 2, 3]
    assert found.ranks == {0: 0, 1: 2}
    assert found.nodes[0].facts == {"directory": "/a"}
    assert found.nodes[0].is_known_as("n0")
    assert found.nodes[0].calls_itself("h")
    assert not found.nodes[0].is_known_as("h")
    assert not found.nodes[3].is_known_as("")
    assert not found.nodes[3].calls_itself("")


@pytest.mark.parametrize(
    ("machine", "name"),
    [("p/me@gpu1:22", "gpu1"), ("p/gpu1", "gpu1"), ("p/me@[::1]:22", "::1"), ("i-0abc", "i-0abc"), ("p/n0", "p/n0")],
)
def test_a_node_is_called_by_its_machine_or_host(machine: str, name: str) -> None:
    (node,) = nodes_now([event("node_launching", node=0, machine=machine)]).nodes.values()
    assert node.is_known_as(name)
    assert not node.is_known_as("gpu2")


def test_ranks_are_where_the_newest_broadcast_runs_them() -> None:
    ready = [event("node_ready", node=node, rank=node) for node in range(3)]
    first = event("generation_started", job=1, nodes=[0, 1], ranks=[0, 1, 2, 3])
    assert nodes_now([*ready, first]).ranks == {0: 0, 1: 0, 2: 1, 3: 1}
    lost = [event("node_lost", node=1), event("generation_started", job=1, nodes=[2], ranks=[2, 3])]
    assert nodes_now([*ready, first, *lost]).ranks == {0: 0, 1: 0, 2: 2, 3: 2}
    assert nodes_now([*ready, first, event("generation_started", job=2, nodes=[1], ranks=[0])]).ranks == {0: 1}


VALUES: list[Any] = [None, True, 0, 1, "x", [0, 1], [0, 1, 2, 3], [[], {}], {"directory": 7}, 1.5]
ANYTHING = st.sampled_from(VALUES)
KINDS: list[Any] = ["node_launching", "node_ready", "node_lost", "generation_started", "other", 3]
NAMES = st.sampled_from(KINDS)
FIELDS = st.sampled_from(["node", "rank", "machine", "facts", "nodes", "ranks", "job"])
EVENTS = st.builds(lambda name, more: {"event": name, **more}, NAMES, st.dictionaries(FIELDS, ANYTHING))


@given(st.lists(EVENTS, max_size=8))
def test_whatever_stands_in_a_record_is_read(events: list[dict[str, Any]]) -> None:
    found = nodes_now(events)
    assert all(node in found.nodes for node in found.ranks.values())


# --- the command line of ssh ------------------------------------------------------------------------------------------


def options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for before, word in itertools.pairwise(words) if before == "-o")


def test_a_pools_own_machine_is_reached_with_its_key_and_pinned_host_alone() -> None:
    way = Way(Address("10.0.0.7", 2222, user="ubuntu"), "/k", ("ssh-ed25519 A", "ssh-ed25519 B"))
    words = ssh_command(way, Path("/pins"), terminal=True)
    assert words[:5] == ["ssh", "-F", "none", "-i", "/k"]
    assert words[-6:] == ["-p", "2222", "-l", "ubuntu", "--", "10.0.0.7"]
    said = options(words)
    assert (said["StrictHostKeyChecking"], said["BatchMode"]) == ("yes", "yes")
    assert (said["UserKnownHostsFile"], said["GlobalKnownHostsFile"]) == ("/pins", "/dev/null")
    assert (said["IdentitiesOnly"], said["IdentityAgent"], said["ForwardAgent"]) == ("yes", "none", "no")
    assert way.pins == "outrider ssh-ed25519 A\noutrider ssh-ed25519 B\n"


def test_the_users_own_login_is_theirs() -> None:
    login = Login(keys=("/id",), known_hosts=("/mine known",), config=("/config",))
    words = ssh_command(Way(Address("gpu1"), login=login), Path("/pins"), terminal=False, command=["ls", "a b"])
    assert words[:5] == ["ssh", "-F", "/config", "-i", "/id"]
    assert options(words)["UserKnownHostsFile"] == '"/mine known"'
    assert words[-4:] == ["-n", "--", "gpu1", "ls 'a b'"]
    agent = ssh_command(Way(Address("gpu1"), login=Login()), Path("/pins"), terminal=True)
    assert "-i" not in agent
    assert options(agent)["UserKnownHostsFile"] == "~/.ssh/known_hosts"


def test_hosts_on_the_way_are_checked_as_well() -> None:
    login = Login(jump="me@first:2222,second")
    through = options(ssh_command(Way(Address("gpu1", 7), login=login), Path("/pins"), terminal=True))["ProxyCommand"]
    assert through.endswith("-W gpu1:7 -- second")
    assert through.count("StrictHostKeyChecking=yes") == 2
    assert "-W second:22 -p 2222 -l me -- first" in through


def test_a_machine_behind_a_command_is_reached_through_it() -> None:
    address = Address("c0", user="me", command=("python3", "relay.py", "a b", "50%"))
    here = ssh_command(Way(address, "/k", ("ssh-ed25519 A",)), Path("/pins"), terminal=True)
    assert options(here)["ProxyCommand"] == "python3 relay.py 'a b' 50%%"
    assert here[-4:] == ["-l", "me", "--", "c0"]
    login = Login(keys=("/id",), known_hosts=("/known",), config=("/config",), jump="me@first,me@login:2222")
    words = ssh_command(Way(address, "/k", ("ssh-ed25519 A",), login), Path("/pins"), terminal=False, command=["ls"])
    assert words[:5] == ["ssh", "-F", "none", "-i", "/k"]
    assert options(words)["HostKeyAlias"] == "outrider"
    hop = shlex.split(options(words)["ProxyCommand"].replace("%%", "%"))
    assert hop[:5] == ["ssh", "-F", "/config", "-i", "/id"]
    assert hop[-8:] == ["-T", "-p", "2222", "-l", "me", "--", "login", "python3 relay.py 'a b' 50%"]
    assert options(hop)["UserKnownHostsFile"] == '"/known"'
    assert options(hop)["ProxyCommand"].endswith("-W login:2222 -l me -- first")


def test_the_way_to_a_users_host_is_in_the_description_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "id").write_bytes(new_key().export_private_key())
    hosts = [Host("gpu1", 2222, "me", key=tmp_path / "id", host_key="ssh-ed25519 A", jump="b"), Host("gpu2")]
    about = {"cwd": "/", "spec": {"specs": [{"provider": json.loads(json.dumps(described(SSH(hosts))))}]}}
    way = host_way(about, "pool/me@gpu1:2222")
    assert way is not None
    assert way.address == Address("gpu1", 2222, user="me")
    assert way.host_keys == ("ssh-ed25519 A",)
    assert way.login == Login(keys=(str(tmp_path / "id"),), jump="b")
    assert host_way(about, "pool/gpu2") == Way(Address("gpu2"), login=Login())
    assert host_way(about, "pool/gpu3") is None
    assert host_way({}, "pool/gpu3") is None


# --- for real ---------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A real sshd for each connection to a free port, which lets one key in."""

    folder: Path
    listener: socket.socket = field(init=False)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host, self.client = new_key(), new_key()
        for name, text in {
            "host": self.host.export_private_key(),
            "id": self.client.export_private_key(),
            "allowed": self.client.export_public_key(),
        }.items():
            (self.folder / name).write_bytes(text)
            (self.folder / name).chmod(0o600)
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/allowed\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\n"
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def host_key(self) -> str:
        return self.host.export_public_key().decode().strip()

    def _serve(self) -> None:
        assert SSHD is not None
        words = [SSHD, "-i", "-e", "-f", str(self.folder / "sshd_config")]
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                at = connection.fileno()
                process = subprocess.Popen(words, stdin=at, stdout=at, stderr=subprocess.DEVNULL)
                self.processes.append(process)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(60)
        for process in self.processes:
            process.terminate()
            process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "sshd").mkdir()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # of sshd's package, made at its first start
    server = Server(tmp_path / "sshd")
    yield server
    server.close()


@dataclass
class Record:
    files: RecordFiles

    def has(self, *events: dict[str, Any], **about: Any) -> None:
        self.files.append({"events.jsonl": b"".join(json.dumps(each).encode() + b"\n" for each in events)})
        owner = asdict(Owner.this(self.files.directory))
        self.files.replace("run.json", {"owner": owner, "cwd": "/", **about})
        self.files.replace("status.json", {"state": "running", "pool": "train", "provider": "ssh", "began": 1e9})


@pytest.fixture
def record(book: Journal) -> Iterator[Record]:
    files = RecordFiles.make(book.root / "runs", "train", 1e9)
    yield Record(files)
    files.close()


def outrider(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run
    return run([*OUTRIDER, *words], capture_output=True, text=True, check=False, env={**os.environ, **environment})


@with_sshd
def test_a_users_host_runs_a_command_and_its_exit_code_comes_back(server: Server, record: Record) -> None:
    user = os.environ.get("USER") or "root"
    host = Host("127.0.0.1", server.port, user, key=server.folder / "id", host_key=server.host_key)
    spec = {"specs": [{"provider": described(SSH([host]))}]}
    record.has(event("node_launching", node=0, machine=f"p/{host}"), event("node_ready", node=0, rank=0), spec=spec)
    said = outrider("exec", "train", "--", "sh", "-c", "echo 'a  b'; echo bad >&2; exit 3")
    assert (said.returncode, said.stdout, said.stderr) == (3, "[node 0] a  b\n", "[node 0] bad\n")
    assert list(server.folder.parent.glob("outrider-ssh-*")) == []


@with_sshd
def test_a_clouds_machine_is_reached_with_the_pools_key(server: Server, book: Journal, tmp_path: Path) -> None:
    user = os.environ.get("USER") or "root"
    machine = {
        "id": "i-0abc",
        "host_key": server.host_key,
        "address": {"host": "127.0.0.1", "port": server.port, "user": user},
    }
    with book.own("train-00ff00", "aws", {"region": "us-east-1"}) as owned:
        owned.keep(KEY, server.client.export_private_key().decode())
        owned.keep(REST, json.dumps({"pool": "p", "machines": [{"machine": machine, "host_keys": []}]}))
        said = outrider("exec", "i-0abc", "--", "echo", "hello")
        assert (said.returncode, said.stdout, said.stderr) == (0, "[i-0abc] hello\n", "")
        wrong = {**machine, "host_key": new_key().export_public_key().decode().strip()}
        owned.keep(REST, json.dumps({"pool": "p", "machines": [{"machine": wrong, "host_keys": []}]}))
        refused = outrider("exec", "i-0abc", "--", "echo", "hello")
        assert (refused.returncode, refused.stdout) == (255, "")
        assert "verification failed" in refused.stderr
        owned.keep(REST, json.dumps({"pool": "p", "machines": [{"machine": wrong, "host_keys": [server.host_key]}]}))
        shell = subprocess.run(
            [*OUTRIDER, "ssh", "i-0abc"], input="exit 7\n", capture_output=True, text=True, check=False
        )
        assert shell.returncode == 7
        book.settled("train-00ff00")


def test_a_node_of_this_computer_runs_it_in_its_folder(record: Record, tmp_path: Path) -> None:
    for node in range(2):
        (tmp_path / f"n{node}" / "work").mkdir(parents=True)
    facts = [{"directory": str(tmp_path / f"n{node}")} for node in range(2)]
    begun = [event("node_launching", node=node, machine=f"p/n{node}", facts=facts[node]) for node in range(2)]
    record.has(*begun, *(event("node_ready", node=node, rank=1 - node) for node in range(2)))
    said = outrider("exec", "train", "--", "pwd")
    assert (said.returncode, said.stderr) == (0, "")
    assert sorted(said.stdout.splitlines()) == [f"[node {node}] {tmp_path}/n{node}/work" for node in range(2)]
    assert outrider("exec", "train", "--rank", "0", "--", "pwd").stdout == f"[node 1] {tmp_path}/n1/work\n"
    unknown = ("exec", "train", "--node", "0", "--", "no-such-program")
    assert outrider(*unknown).returncode == 127
    assert outrider(*unknown[:2], "--json", *unknown[2:]).stdout == (
        '{"node": 0, "machine": "p/n0", "exit_code": 127, "said": "no-such-program cannot be run '
        '(No such file or directory)"}\n'
    )
    failed = outrider(
        "exec", "train", "--rank", "0", "--json", "--", "sh", "-c", "echo out; sleep 0.1; echo err >&2; exit 3"
    )
    assert (failed.returncode, failed.stderr) == (3, "")
    node = {"node": 1, "machine": "p/n1"}
    *lines, end = (json.loads(line) for line in failed.stdout.splitlines())
    assert end == {**node, "exit_code": 3, "said": ""}
    assert sorted(lines, key=lambda line: line["stream"]) == [
        {**node, "stream": "stderr", "text": "err"},
        {**node, "stream": "stdout", "text": "out"},
    ]
    killed = outrider("exec", "train", "--node", "0", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137
    bar = outrider("exec", "train", "--node", "0", "--", "printf", r"\033[31mred\033]0;title\007 10%%\r20%%\n")
    assert bar.stdout == "[node 0] 20%\n"
    painted = outrider("exec", "train", "--node", "0", "--", "printf", r"\033[31mred\033]0;title\007\n")
    assert painted.stdout == "[node 0] red\n"
    shell = outrider("ssh", "train", "--node", "1")
    assert shell.returncode == 2
    assert f"node 1 is this computer: `cd {tmp_path}/n1/work`" in shell.stderr


def test_ctrl_c_ends_the_commands(record: Record, tmp_path: Path) -> None:
    (tmp_path / "n0" / "work").mkdir(parents=True)
    facts = {"directory": str(tmp_path / "n0")}
    record.has(event("node_launching", node=0, machine="p/n0", facts=facts), event("node_ready", node=0, rank=0))
    words = [*OUTRIDER, "exec", "train", "--", "sh", "-c", "echo $$; exec sleep 60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().removeprefix("[node 0] "))
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (130, "")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_command_that_ignores_its_end_is_ended_too(record: Record, tmp_path: Path) -> None:
    (tmp_path / "n0" / "work").mkdir(parents=True)
    facts = {"directory": str(tmp_path / "n0")}
    record.has(event("node_launching", node=0, machine="p/n0", facts=facts), event("node_ready", node=0, rank=0))
    words = [*OUTRIDER, "exec", "train", "--", "sh", "-c", "trap '' TERM; echo $$; exec sleep 60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().removeprefix("[node 0] "))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, "")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nobody_who_reads_ends_the_commands(record: Record, tmp_path: Path) -> None:
    events = []
    for node in range(2):
        (tmp_path / f"n{node}" / "work").mkdir(parents=True)
        facts = {"directory": str(tmp_path / f"n{node}")}
        events.append(event("node_launching", node=node, machine=f"p/n{node}", facts=facts))
    record.has(*events, *(event("node_ready", node=node, rank=node) for node in range(2)))
    words = [*OUTRIDER, "exec", "train", "--", "sh", "-c", "echo $$; exec yes"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().partition("] ")[2])
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate()
        assert (process.returncode, said) == (141, "")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("exec", "train", "--node", "7", "--", "ls"), "has no node 7: it has 0."),
        (("exec", "train", "--rank", "7", "--", "ls"), "has no rank 7: it has 0."),
        (("exec", "train", "--rank", "0", "--node", "0", "--", "ls"), "takes --node or --rank, not both"),
        (("exec", "train"), "what is to be run is missing"),
        (("exec", "nobody", "--", "ls"), "'nobody' is neither a run nor a node"),
        (("ssh", "train", "--node", "0"), "is known to its program alone"),
        (("ssh", "old"), "has ended, and has no nodes here any more"),
    ],
)
def test_what_is_not_there_is_an_error_with_a_next_step(
    words: tuple[str, ...], said: str, record: Record, book: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    record.has(event("node_launching", node=0, machine="m"), event("node_ready", node=0, rank=0))
    old = RecordFiles.make(book.root / "runs", "old", 1e9)
    old.replace("status.json", {"state": "ended"})
    old.close()
    assert guarded(lambda: app(list(words))) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_node_that_names_itself_like_another_is_not_given_what_is_meant_for_that(record: Record) -> None:
    """Node 1 says that it has the name of node 0's host, and its address."""
    begun = [
        event("node_launching", node=n, machine=f"p/me@gpu{n}:22", facts={"directory": f"/n{n}"}) for n in range(2)
    ]
    honest = event("node_ready", node=0, rank=0, hostname="ip-10-0-0-7", address="10.0.0.7")
    record.has(*begun, honest, event("node_ready", node=1, rank=1, hostname="gpu0", address="10.0.0.7"))
    assert [each.name for each in reached("gpu0")] == ["node 0"], "its pool reaches it by that name"
    assert [each.name for each in reached("ip-10-0-0-7")] == ["node 0"], "nobody else says so"
    with pytest.raises(
        SpecError, match=r"'10.0.0.7' is 2 nodes: p/me@gpu0:22 \(node 0\), p/me@gpu1:22 \(node 1\)\. Write"
    ):
        reached("10.0.0.7")


def test_an_address_that_the_journal_knows_is_not_another_nodes(record: Record, book: Journal) -> None:
    machine = {"id": "i-0abc", "host_key": "ssh-ed25519 A", "address": {"host": "10.0.0.7", "port": 22, "user": "u"}}
    with book.own("train-00ff00", "aws", {"region": "us-east-1"}) as owned:
        owned.keep(KEY, new_key().export_private_key().decode())
        owned.keep(REST, json.dumps({"pool": "p", "machines": [{"machine": machine, "host_keys": []}]}))
        evil = event("node_launching", node=1, machine="i-0evil", facts={"directory": "/n1"})
        claims = event("node_ready", node=1, rank=1, hostname="i-0abc", address="10.0.0.7")
        record.has(evil, claims)
        assert [each.machine for each in (*reached("10.0.0.7"), *reached("i-0abc"))] == ["i-0abc"] * 2
        record.has(event("node_launching", node=0, machine="i-0abc"), event("node_ready", node=0, rank=0))
        assert [each.name for each in reached("10.0.0.7")] == ["node 0"]
        book.settled("train-00ff00")


def test_nothing_of_the_journal_is_made_by_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    with pytest.raises(Exception, match="neither a run"):
        reached("x")
    assert not (tmp_path / "state").exists()


def test_pins_are_a_private_file_that_goes() -> None:
    with pinned(Way(Address("a"), host_keys=("ssh-ed25519 A",))) as pins:
        assert pins.read_text() == "outrider ssh-ed25519 A\n"
        assert pins.parent.stat().st_mode & 0o077 == 0
    assert not pins.parent.exists()


@pytest.fixture
def dead_run(book: Journal) -> Path:
    """The record of a run whose process died, with two machines that its pool has left and one that it has lost."""
    program = subprocess.run([sys.executable, "-c", DIES, str(book.root)], capture_output=True, text=True, check=True)
    return Path(program.stdout.strip())


DIES = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from outrider.engine.client.adoption import REST
from outrider.engine.record.runs.files import RecordFiles
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.pool_lock import Owner
root = Path(sys.argv[1])
owned = Journal.open(root).own("train-00ff00", "containers", {"on": "here"})
machines = [{"machine": {"id": f"/box-{n}"}, "host_keys": []} for n in range(2)]
owned.keep(REST, json.dumps({"pool": "p", "lease_s": 90.0, "machines": machines}))
files = RecordFiles.make(root / "runs", "train", 1e9)
events = [
    event
    for n in range(3)
    for event in (
        {"event": "node_launching", "node": n, "machine": f"/box-{n}", "facts": {"runtime": "echo"}},
        {"event": "node_ready", "node": n, "rank": n},
    )
]
files.append({"events.jsonl": b"".join(json.dumps(each).encode() + b"\\n" for each in events)})
files.replace("run.json", {"owner": asdict(Owner.this(files.directory)), "cwd": "/"})
files.replace("status.json", {"state": "running", "pool": "train", "provider": "containers", "began": 1e9})
print(files.directory, flush=True)
os._exit(0)
"""


def test_machines_of_a_dead_client_are_reached_until_their_lease_ends_them(
    dead_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = reached("train")
    assert [(each.name, each.container and each.container.name) for each in nodes] == [
        ("node 0", "box-0"),
        ("node 1", "box-1"),
    ]
    note = capsys.readouterr().err
    assert f"run {dead_run.name} has lost its owner, which died: its machines end by their lease, 90 s after" in note
    assert "Pool.attach" in note
    assert [each.number for each in reached("train", rank=1)] == [1]
    with pytest.raises(SpecError, match="has no node 2: it has 0, 1"):
        reached("train", node=2)


def test_dead_run_has_no_nodes_when_its_machines_have_a_new_owner(dead_run: Path, book: Journal) -> None:
    refused = pytest.raises(SpecError, match=f"run {dead_run.name} has lost its owner, which died, and has no nodes")
    with book.own("train-00ff00", "containers", adopt=True), refused:
        reached("train")
