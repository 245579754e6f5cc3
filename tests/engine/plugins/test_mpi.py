"""The MPI plugin without MPI: what it answers by PMI, what launchers are told, and commands from node to node."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import InstanceInfo, Local, Pool, SpecError, SyncPool, compute, plugins
from outrider.engine.plugins import mpi, mpi_agent, mpi_rsh, pmi

Place = Callable[..., InstanceInfo]

# --- PMI --------------------------------------------------------------------------------------------------------------


def test_a_rank_learns_who_it_is_and_what_others_put() -> None:
    space = pmi.KeyValueSpace("name", 2, {"PMI_process_mapping": "(vector,(0,1,2))"})
    assert space.heard(0, "cmd=init pmi_version=1 pmi_subversion=1") == [
        (0, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1")
    ]
    assert space.heard(1, "cmd=get_maxes")[0][1].startswith("cmd=maxes rc=0 kvsname_max=")
    assert space.heard(1, "cmd=get_appnum") == [(1, "cmd=appnum rc=0 appnum=0")]
    assert space.heard(1, "cmd=get_universe_size") == [(1, "cmd=universe_size rc=0 size=2")]
    assert space.heard(0, "cmd=get_my_kvsname") == [(0, "cmd=my_kvsname rc=0 kvsname=name")]
    assert space.heard(0, "cmd=get kvsname=name key=PMI_process_mapping")[0][1].endswith("value=(vector,(0,1,2))")

    assert space.heard(0, "cmd=put kvsname=name key=card value=tcp://10.0.0.1:5 a=b") == [
        (0, "cmd=put_result rc=0 msg=success")
    ]
    assert space.heard(1, "cmd=get kvsname=name key=card") == [
        (1, "cmd=get_result rc=0 msg=success value=tcp://10.0.0.1:5 a=b")
    ]
    assert "rc=-1" in space.heard(1, "cmd=get kvsname=name key=other")[0][1]
    assert space.heard(1, "cmd=finalize") == [(1, "cmd=finalize_ack rc=0")]


def test_a_barrier_opens_for_all_at_once_and_again() -> None:
    space = pmi.KeyValueSpace("name", 3, {})
    for _ in range(2):
        assert space.heard(2, "cmd=barrier_in") == []
        assert space.heard(0, "cmd=barrier_in") == []
        assert space.heard(0, "cmd=barrier_in") == []  # a rank counts once
        assert space.heard(1, "cmd=barrier_in") == [(rank, "cmd=barrier_out rc=0") for rank in range(3)]


def test_what_a_pool_cannot_do_is_answered_too() -> None:
    space = pmi.KeyValueSpace("name", 1, {})
    assert space.heard(0, "cmd=unheard_of") == [(0, "cmd=unheard_of_result rc=-1")]
    assert [reply for line in ("mcmd=spawn", "nprocs=2", "execname=x", "endcmd") for reply in space.heard(0, line)] == [
        (0, "cmd=spawn_result rc=-1")
    ]
    assert space.heard(0, "cmd=publish_name service=s port=tcp#9") == [(0, "cmd=publish_result rc=0 info=ok")]
    assert space.heard(0, "cmd=lookup_name service=s") == [(0, "cmd=lookup_result rc=0 info=ok port=tcp#9")]
    assert "rc=0" in space.heard(0, "cmd=unpublish_name service=s")[0][1]
    assert "rc=-1" in space.heard(0, "cmd=unpublish_name service=s")[0][1]
    assert "rc=-1" in space.heard(0, "cmd=lookup_name service=s")[0][1]
    assert space.heard(0, "cmd=abort exitcode=7") == []
    assert space.aborted == {0: 7}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
@settings(max_examples=60)
def test_the_mapping_says_which_ranks_share_a_host(hosts: list[str]) -> None:
    """Read as MPICH does: blocks of (first host, how many, ranks on each)."""
    text = pmi.mapping(hosts)
    assert text.startswith("(vector,(")
    assert text.endswith("))")
    numbers: list[int] = []
    for block in text[len("(vector,(") : -2].split("),("):
        first, count, each = map(int, block.split(","))
        numbers += [host for host in range(first, first + count) for _ in range(each)]
    names = list(dict.fromkeys(hosts))
    assert numbers == [names.index(host) for host in hosts]


def test_the_usual_mappings_are_one_block() -> None:
    assert pmi.mapping(["a", "a", "b", "b", "c", "c"]) == "(vector,(0,3,2))"
    assert pmi.mapping(["a", "b"]) == "(vector,(0,2,1))"
    assert pmi.mapping(["a", "a", "a"]) == "(vector,(0,1,3))"


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """As rank 0 starts it, for two ranks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", pmi.__file__], stdin=subprocess.PIPE, pass_fds=[listener.fileno()]
        )
        order = {"size": 2, "secret": "s", "hosts": ["a", "b"], "listener": listener.fileno()}
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    yield address
    process.stdin.close()
    assert process.wait(timeout=60) == 0  # it ends with who started it


def test_ranks_meet_at_a_server_of_their_own(server: tuple[str, int]) -> None:
    socks = [pmi.connect(*server, rank, "s", role="rank", within_s=60) for rank in range(2)]
    files = [sock.makefile("rw", newline="\n") for sock in socks]
    for rank, file in enumerate(files):
        file.write(f"cmd=put kvsname=k key=card-{rank} value=v{rank}\ncmd=barrier_in\n")
        file.flush()
    for rank, file in enumerate(files):
        assert file.readline() == "cmd=put_result rc=0 msg=success\n"
        assert file.readline() == "cmd=barrier_out rc=0\n"
        file.write(f"cmd=get kvsname=k key=card-{1 - rank}\ncmd=get kvsname=k key=PMI_process_mapping\n")
        file.flush()
        assert file.readline().endswith(f"value=v{1 - rank}\n")
        assert file.readline().endswith("value=(vector,(0,2,1))\n")
    for file in files:
        file.close()
    for sock in socks:
        sock.close()


def test_a_line_may_come_byte_by_byte_and_is_put_together_once() -> None:
    lines = pmi.Lines()
    said = b"cmd=put key=k value=v\ncmd=barrier_in\ncmd="
    assert [line for byte in said for line in lines.feed(bytes([byte]))] == said.split(b"\n")[:-1]
    lines = pmi.Lines()
    for number in range(pmi.LINE_BYTES >> 10):
        assert lines.feed(bytes(1 << 10)) == []
        assert len(lines._pieces) == number + 1, "a piece is put together with others before its line is whole"
    with pytest.raises(ValueError, match="of at most 65536"):
        lines.feed(b"x")
    with pytest.raises(ValueError, match="of at most 65536"):
        pmi.Lines().feed(bytes(pmi.LINE_BYTES + 1) + b"\n")


def test_a_rank_that_ends_no_line_is_let_go_and_the_others_are_served(server: tuple[str, int]) -> None:
    endless, other = (pmi.connect(*server, rank, "s", role="rank", within_s=60) for rank in range(2))
    with endless, other, other.makefile("rw", newline="\n") as file:
        with suppress(ConnectionError):  # as soon as the server has closed it
            endless.sendall(b"x" * (16 * pmi.LINE_BYTES))
        with suppress(ConnectionError):
            assert endless.recv(1) == b""
        file.write("cmd=get_appnum\n")
        file.flush()
        assert file.readline() == "cmd=appnum rc=0 appnum=0\n"


def test_client_without_the_secret_gets_no_answer(server: tuple[str, int]) -> None:
    with pytest.raises(TimeoutError, match="no PMI server answered"):
        pmi.connect(*server, 0, "guessed", role="rank", within_s=0.3)
    with socket.create_connection(server) as stranger:
        stranger.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\n")
        nonce = stranger.recv(1000)
        assert len(nonce) == 2 * pmi.NONCE_BYTES + 1
        assert stranger.recv(1000) == b""
    pmi.connect(*server, 0, "s", role="rank", within_s=60).close()  # others are served


def test_server_without_the_secret_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\nwhile True:\n with s.accept()[0] as c:\n"
            "  try: c.sendall(b'00' * 16 + b'\\n'); c.recv(1000); c.sendall(b'a' * 64 + b'\\n'); c.recv(1)\n"
            "  except OSError: pass"  # nobody waited for it
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(listener.fileno())], pass_fds=[listener.fileno()]
        ) as impostor:
            for within_s in (0.5, 5.0, 50.0):  # a busy computer may not have started it within the first
                with pytest.raises(TimeoutError) as refused:
                    pmi.connect("127.0.0.1", listener.getsockname()[1], 0, "s", role="rank", within_s=within_s)
                if "does not know this pool's secret" in str(refused.value):
                    break
            impostor.kill()
    assert "does not know this pool's secret" in str(refused.value)


ABORTING = """
import sys, time
from outrider.engine.plugins import pmi
reach = (sys.argv[1], int(sys.argv[2]), 1, "s")
rank = pmi.connect(*reach, role="rank", within_s=60)
watch = pmi.AbortWatch(pmi.connect(*reach, role="watch", within_s=60))
if sys.argv[3] == "abort":
    rank.sendall(b"cmd=abort exitcode=5\\n")
watch.leave()
print("left")
"""


@pytest.mark.parametrize(("how", "status", "said"), [("abort", 5, ""), ("end", 0, "left\n")])
def test_a_rank_that_aborted_cannot_leave_as_if_nothing_were(
    server: tuple[str, int], how: str, status: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABORTING, server[0], str(server[1]), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, said), done.stderr


# --- what launchers are told ------------------------------------------------------------------------------------------


def test_launchers_use_the_networks_of_the_nodes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "interface", lambda address: {"10.0.0.1": "eth7"}.get(address))
    env = plugins.mpi().env(place(1, nodes=3))
    assert env["HYDRA_IFACE"] == env["I_MPI_HYDRA_IFACE"] == env["FI_TCP_IFACE"] == "eth7"
    assert env["OMPI_MCA_btl_tcp_if_include"] == env["PRTE_MCA_prte_if_include"] == "10.0.0.0/30"
    assert "HYDRA_LAUNCHER" not in env  # no agent here
    assert plugins.mpi().env(place(0, nodes=3, shared=True, address="127.0.0.1")) == {}


def test_launchers_use_our_program_for_ssh(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mpi.RSH, "/there/rsh")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    env = plugins.mpi().env(place(0, address="127.0.0.1"))
    for name in (
        *("HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC", "OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"),
    ):
        assert env[name] == "/there/rsh"
    assert not any("ROOT" in name for name in env)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert plugins.mpi().env(place(0, address="127.0.0.1"))["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


def test_host_files_name_every_host_once(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"):
        monkeypatch.delenv(name, raising=False)
    with mpi.written_hosts(place(0, nodes=2)):
        assert "HYDRA_HOST_FILE" not in os.environ  # without an agent there is no other node
    monkeypatch.setenv(mpi.RSH, str(tmp_path / "rsh"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    with mpi.written_hosts(place(0, nodes=2, each=2)):
        hydra, open_mpi = Path(os.environ["HYDRA_HOST_FILE"]), Path(os.environ["OMPI_MCA_orte_default_hostfile"])  # noqa: SIM112
        assert hydra.read_text() == "10.0.0.0:4\n10.0.0.1:4\n"
        assert open_mpi.read_text() == "10.0.0.0 slots=4\n10.0.0.1 slots=4\n"
        assert os.environ["PRTE_MCA_prte_default_hostfile"] == str(open_mpi)  # noqa: SIM112
        assert hydra.parent.parent == tmp_path
    assert not hydra.exists()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5))
@settings(max_examples=60)
def test_the_common_network_holds_all_and_no_half_of_it_does(numbers: list[int]) -> None:
    addresses = [IPv4Address(number) for number in numbers]
    network = ip_network(mpi.common_network(addresses))
    assert all(address in network for address in addresses)
    assert network.prefixlen == 32 or not any(
        all(address in half for address in addresses) for half in network.subnets()
    )


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        (["host", "true"], "host", "true"),
        (["-x", "me@host", "sh", "-c", "a b"], "host", "sh -c a b"),
        (["-o", "StrictHostKeyChecking=no", "-p", "22", "-q", "10.0.0.1", "orted -x"], "10.0.0.1", "orted -x"),
        (["-l", "me", "host", "x"], "host", "x"),
    ],
)
def test_sshs_arguments_are_understood(words: list[str], host: str, command: str) -> None:
    assert mpi_rsh.host_and_command(words) == (host, command)


def test_arguments_without_a_command_are_refused() -> None:
    for words in (["host"], ["-x"], []):
        with pytest.raises(ValueError, match="a host and a command"):
            mpi_rsh.host_and_command(words)


def test_invalid_options_are_refused() -> None:
    for ranks in (0, "many", True):
        with pytest.raises(SpecError, match="ranks_per_node"):
            plugins.mpi(ranks_per_node=ranks)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="timeout"):
        plugins.mpi(timeout=0)


def test_the_secret_is_not_shown_and_not_the_same_twice() -> None:
    one, other = plugins.mpi(), plugins.mpi()
    assert one.secret not in repr(one)
    assert one.secret != other.secret
    assert one == other


# --- commands from node to node ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_STATE", str(tmp_path_factory.mktemp("state")))
        with Pool(provider=Local(), nodes=2, plugins=[plugins.mpi()], console="silent") as pool:
            yield pool


@compute
def shell(script: str, stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        ["/bin/sh", "-c", script], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_command_runs_on_the_node_that_is_named(pool: SyncPool) -> None:
    hosts = pool.handle("mpi").hosts
    assert len(set(hosts)) == 2
    pids = set()
    for host in hosts:
        status, out, err = pool.run(
            shell(f"$OUTRIDER_MPI_RSH -x {host} 'cat; echo $PPID; echo \"$0 to stderr\" >&2; exit 3'", "given"), on=0
        )
        assert (status, out[:5], err) == (3, "given", "/bin/sh to stderr\n")
        pids.add(out[5:])
    assert len(pids) == 2


def test_much_output_comes_whole_and_in_order(pool: SyncPool) -> None:
    host = pool.handle("mpi").hosts[1]
    status, out, err = pool.run(shell(f"$OUTRIDER_MPI_RSH {host} 'seq 1 200000'", ""))
    assert (status, err) == (0, "")
    assert out == "".join(f"{number}\n" for number in range(1, 200_001))


def test_a_signal_there_is_an_exit_status_here(pool: SyncPool) -> None:
    host = pool.handle("mpi").hosts[1]
    assert pool.run(shell(f"$OUTRIDER_MPI_RSH {host} 'kill -9 $$'"))[0] == 128 + 9


def test_a_stranger_is_no_node(pool: SyncPool) -> None:
    status, _, err = pool.run(shell("$OUTRIDER_MPI_RSH elsewhere true"))
    assert status == mpi_rsh.FAILED
    assert "no node of this pool is called 'elsewhere'; there are node-" in err


@compute
def interrupted(script: str) -> int:
    process = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    return pid


def test_a_command_that_nobody_waits_for_is_ended_with_what_it_started(pool: SyncPool) -> None:
    host = pool.handle("mpi").hosts[1]
    pid = pool.run(interrupted(f"exec $OUTRIDER_MPI_RSH {host} 'setsid sleep 600 & echo $!; wait'"))
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        pool.run(shell("true"))


def test_nobody_else_may_connect_to_a_nodes_agent(tmp_path: Path) -> None:
    with mpi_agent._listening(tmp_path):
        assert stat.S_IMODE((tmp_path / "agent").stat().st_mode) == 0o600
