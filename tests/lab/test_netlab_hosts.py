"""A host is a machine of its own: name, users, keys, processes, disk; on this machine's root or on bare Debian."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest
from netlab import PASSWORD, PLAIN_USER, Lab, LabError, Sshd


def ssh(lab: Lab, tmp_path: Path, *words: str, port: int = 22) -> subprocess.CompletedProcess[str]:
    """OpenSSH's own client, with nothing of this machine's user in it."""
    (tmp_path / "known_hosts").write_text(lab.known_hosts)
    options = [
        "-F",
        "none",
        "-i",
        str(lab.key),
        "-o",
        f"UserKnownHostsFile={tmp_path}/known_hosts",
        "-o",
        "BatchMode=yes",
    ]
    return subprocess.run(["ssh", *options, "-p", str(port), *words], capture_output=True, text=True, check=False)


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


def test_ssh_reaches_a_host_that_is_no_other(lab, hosts, tmp_path):
    hosts(2)
    for host in lab.hosts:
        done = ssh(lab, tmp_path, f"root@{host.address}", "hostname; cat /etc/hostname; whoami; echo $HOME")
        assert done.stdout.split() == [host.name, host.name, "root", "/root"], done.stderr
    assert len({host.host_key.split()[1] for host in lab.hosts}) == 2


def test_a_plain_user_may_log_in_and_owns_a_home(lab, hosts, tmp_path):
    [host] = hosts(1)
    done = ssh(lab, tmp_path, f"{PLAIN_USER}@{host.address}", "whoami; touch ~/mine && echo $HOME; touch /etc/mine")
    assert done.stdout.split() == [PLAIN_USER, f"/home/{PLAIN_USER}"]
    assert "Permission denied" in done.stderr
    assert host.run("whoami", user=PLAIN_USER).stdout.strip() == PLAIN_USER


def test_an_image_has_what_its_host_had_in_its_homes_and_nothing_else(lab, hosts):
    [host] = hosts(1)
    host.run("sh", "-c", "mkdir -p ~/cache/one; echo kept >~/cache/one/file; echo not >~/other", user=PLAIN_USER)
    image = lab.image(host, "/home/*/cache")
    first, second = (lab.create(image=image) for _ in range(2))
    home = f"/home/{PLAIN_USER}"
    assert first.run("stat", "--format=%U", f"{home}/cache/one/file").stdout.strip() == PLAIN_USER
    first.run("sh", "-c", "echo changed >~/cache/one/file", user=PLAIN_USER)
    assert second.run("cat", f"{home}/cache/one/file").stdout == "kept\n"
    assert second.run("ls", "/home", home).stdout.split() == ["/home:", PLAIN_USER, f"{home}:", "cache"]


def test_hosts_see_this_machines_python_and_nothing_of_its_homes(hosts):
    [host] = hosts(1)
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as one, tempfile.NamedTemporaryFile(dir="/tmp") as other:
        for name in (one.name, other.name):
            assert host.run("ls", name, check=False).returncode == 2
    assert host.run("ls", "/var/tmp", "/mnt").stdout.split() == ["/mnt:", "/var/tmp:"]
    assert host.run(sys.executable, "-c", "import outrider, sys; print(sys.prefix)").stdout.strip() == sys.prefix
    assert host.run(sys.executable, "-c", "import outrider", user=PLAIN_USER).returncode == 0


def test_what_a_host_writes_is_its_own(hosts):
    one, other = hosts(2)
    one.run("sh", "-c", "echo x > /etc/mine; echo x > /usr/local/mine; rm /etc/os-release")
    assert other.run("ls", "/etc/mine", "/usr/local/mine", check=False).returncode != 0
    assert not Path("/usr/local/mine").exists()
    assert Path("/etc/os-release").exists()
    assert one.path("/etc/mine").read_text() == "x\n"


def test_hosts_may_share_a_folder_and_keep_it_when_the_power_goes(lab):
    folder = lab.folder("home")
    one, other = (lab.create(shared={"/home": folder}) for _ in range(2))
    one.run("sh", "-c", "echo x >/home/mine")
    assert other.run("cat", "/home/mine").stdout == "x\n"
    assert other.run("ls", "/home").stdout == "mine\n"  # and nothing of its own
    one.power_off()
    one.power_on()
    one.wait_up()
    assert one.run("cat", "/home/mine").stdout == "x\n"


def test_a_host_may_make_control_groups_below_its_own(lab):
    host = lab.create(own_cgroups=True)
    if not host.has_own_cgroups:
        pytest.skip("this kernel has no control groups of version 1")
    group = "/sys/fs/cgroup/memory/made"
    limited = f"mkdir {group}; echo 20M >{group}/memory.limit_in_bytes; echo $$ >{group}/cgroup.procs; python3 -c"
    assert host.run("sh", "-c", f"{limited} 'bytearray(200 << 20)'; echo $?").stdout == "137\n"
    host.power_off()
    host.power_on()
    host.wait_up()
    assert host.run("ls", group, check=False).returncode == 2


def test_a_bare_host_has_debians_python_and_no_more(bare_hosts, lab, tmp_path):
    [host] = bare_hosts(1)
    done = ssh(
        lab, tmp_path, f"root@{host.address}", "python3 -c 'import sys; print(sys.prefix)'; which pip uv gcc curl; ls /"
    )
    assert done.stdout.split()[0] == "/usr"
    assert "/pip" not in done.stdout
    assert "/curl" not in done.stdout
    assert host.run("python3", "-c", "import msgpack", check=False).returncode == 1


def test_a_host_sees_its_own_processes_alone_and_reaps_orphans(hosts):
    one, other = hosts(2)
    sleeper = one.spawn("sleep", "1000")
    try:
        until(lambda: ["sleep", "1000"] in one.processes().values())
        assert ["sleep", "1000"] not in other.processes().values()
        assert "sleep" not in other.run("ps", "ax").stdout
        one.run("sh", "-c", "(sleep 0.01 &)")  # its parent is gone when it ends
        until(lambda: one.run("ps", "-C", "sleep", "-o", "args=").stdout.split() == ["sleep", "1000"])
    finally:
        sleeper.kill()


def test_paths_can_be_hidden(lab):
    host = lab.create(hidden=["/usr/bin/python3", "/etc/os-release"])
    assert host.run("sh", "-c", "PATH=/usr/bin python3 -V; cat /etc/os-release", check=False).returncode != 0
    assert "not found" in host.run("sh", "-c", "/usr/bin/python3", check=False).stderr


def test_a_disk_is_as_large_as_asked(lab):
    host = lab.create(disk_bytes=8 << 20)
    for folder in ("/root", "/tmp", "/opt"):
        done = host.run("dd", "if=/dev/zero", f"of={folder}/large", "bs=1M", "count=16", check=False)
        assert "No space left on device" in done.stderr
        host.run("rm", f"{folder}/large")


def test_power_comes_back_to_the_same_host(lab, hosts, tmp_path):
    [host] = hosts(1)
    host.run("touch", "/root/kept")
    key, pid = host.host_key, host.pid
    host.power_off()
    with pytest.raises(LabError, match="no power"):
        host.run("true")
    host.power_on()
    host.wait_up()
    assert (host.host_key, host.run("ls", "/root").stdout.split()[-1]) == (key, "kept")
    assert host.pid != pid
    assert ssh(lab, tmp_path, f"root@{host.address}", "hostname").stdout.strip() == host.name


def test_an_address_is_given_to_the_next_host_with_another_key(lab):
    old = lab.create()
    old.destroy()
    new = lab.create(address=old.address)
    assert new.address == old.address
    assert new.host_key != old.host_key
    with pytest.raises(LabError, match="taken"):
        lab.create(address=new.address)
    with pytest.raises(LabError, match=f"a host called {new.name} already"):
        lab.create(new.name)


def test_labs_do_not_meet():
    with Lab() as one, Lab() as other:
        assert one.number != other.number
        there = other.create()
        away = one.create().run("python3", "-c", CONNECTS, there.address, "1", check=False)
        assert away.stdout.strip() != "connected"
        assert there.run("python3", "-c", CONNECTS, there.address, "60").stdout.strip() == "connected"


def test_sixteen_hosts_reach_each_other(hosts):
    made = hosts(16)
    for host in made[:2]:
        for other in made:
            assert host.run("python3", "-c", CONNECTS, other.address, "60").stdout.strip() == "connected"


def test_a_jump_host_is_the_only_way(lab, tmp_path):
    inner = lab.add_network()
    jump = lab.create("jump", networks=[lab.network, inner])
    hidden = lab.create("hidden", networks=[inner])
    assert ssh(lab, tmp_path, "-o", "ConnectTimeout=1", f"root@{hidden.address}", "true").returncode == 255
    options = f"-F none -i {lab.key} -o UserKnownHostsFile={tmp_path}/known_hosts"
    through = f"ProxyCommand=ssh {options} -W %h:%p root@{jump.address}"
    assert ssh(lab, tmp_path, "-o", through, f"root@{hidden.address}", "hostname").stdout.strip() == "hidden"


@pytest.mark.anyio
async def test_sshd_takes_passwords_only_where_told(lab, connect):
    host = lab.create(sshd=Sshd(public_key=False, password=True))
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(host)
    async with connect(host, client_keys=None, password=PASSWORD) as connection:
        assert (await connection.run("hostname")).stdout.strip() == host.name


@pytest.mark.anyio
async def test_sshd_may_refuse_to_forward_sockets(lab, connect):
    serves = ["sh", "-c", f"exec python3 -c {SERVES!r}"]
    for allowed in (True, False):
        host = lab.create(sshd=Sshd(stream_local_forwarding=allowed))
        server = host.spawn(*serves)
        try:
            until(host.path("/run/served").exists)
            async with connect(host) as connection:
                if allowed:
                    reader, writer = await connection.open_unix_connection("/run/served")
                    assert await reader.read() == b"served"
                    writer.close()
                else:
                    with pytest.raises(asyncssh.ChannelOpenError):
                        await connection.open_unix_connection("/run/served")
        finally:
            server.kill()


@pytest.mark.anyio
async def test_sshd_listens_where_told(lab, connect):
    host = lab.create(sshd=Sshd(port=2222))
    assert host.known_hosts.startswith(f"[{host.address}]:2222 ssh-ed25519 ")
    assert host.listening() == {2222}
    async with connect(host) as connection:
        assert (await connection.run("hostname")).stdout.strip() == host.name


def test_a_host_may_have_no_sshd(lab):
    assert lab.create(sshd=None).listening() == set()


def test_the_machine_forwards_nothing():
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "0"
    assert os.geteuid() == 0


CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 22), float(sys.argv[2])).close()
except OSError as error:
    print(error)
else:
    print("connected")
"""

SERVES = (
    "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/run/served.new'); s.listen();"
    "import os; os.rename('/run/served.new', '/run/served'); c = s.accept()[0]; c.sendall(b'served'); c.close()"
)
