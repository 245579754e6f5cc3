"""The test cloud's machines: their metadata, what they do with user data, and how they end."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from cloud.imds import ITEMS, LONGEST_TTL_S, TOKEN, TTL, Metadata
from netlab import Host, leftovers
from netlab.commands import run

from outrider.testing.clouds.shared.hypervisor import Boot

pytestmark = pytest.mark.anyio
IDS = {"instance-id": "i-0", "placement/availability-zone": "us-east-1a", "placement/region": "us-east-1"}
ASK = """
import http.client, json, sys
method, path, headers = json.loads(sys.argv[1])
connection = http.client.HTTPConnection("169.254.169.254", timeout=60)
connection.request(method, path, headers=headers)
answer = connection.getresponse()
print(json.dumps([answer.status, answer.read().decode()]))
"""


@pytest.fixture
def boot(lab, hypervisor) -> Callable[..., tuple[Host, threading.Event]]:
    """``host, ended = boot(cloud_config)``: ``ended`` is set when the hypervisor says that it has ended by itself."""

    def booted(config: Mapping[str, Any] | None = None, **options: Any) -> tuple[Host, threading.Event]:
        ended = threading.Event()
        number = len(hypervisor.hosts) + 20
        machine = Boot(
            instance_id=f"i-{number}",
            private_ip=str(lab.network.subnet[number]),
            zone="us-east-1a",
            type="t3.micro",
            user_data="" if config is None else "#cloud-config\n" + json.dumps(config),
            on_poweroff=ended.set,
            **{"metadata": IDS | {"instance-id": f"i-{number}"}, "tokens_required": True, **options},
        )
        hypervisor.boot(machine)
        return hypervisor.host(machine.instance_id), ended

    return booted


def asked(host: Host, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """From inside: nobody asks that address here."""
    status, body = json.loads(host.run("python3", "-c", ASK, json.dumps([method, path, headers])).stdout)
    return status, body


def until(holds: Callable[[], object], host: Host) -> None:
    last = time.monotonic() + 120.0
    while not holds():
        assert time.monotonic() < last, host.console
        time.sleep(0.002)


def until_sshd(host: Host) -> None:
    until(lambda: 22 in host.listening(), host)


def test_nothing_is_told_without_a_token_and_nothing_after_its_time():
    metadata = Metadata(IDS)
    path = f"{ITEMS}/instance-id"
    assert metadata.answer("GET", path, {}, 0.0).status == 401
    assert metadata.answer("GET", path, {TOKEN: "made up"}, 0.0).status == 401
    token = metadata.answer("PUT", "/latest/api/token", {TTL: "10"}, 100.0).body
    assert metadata.answer("GET", path, {TOKEN: token}, 109.9) == (200, "i-0", {})
    assert metadata.answer("GET", path, {TOKEN: token}, 110.0).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({TTL: "0"}, 400),
        ({TTL: f"{LONGEST_TTL_S + 1}"}, 400),
        ({TTL: "60 s"}, 400),
        ({TTL: f"{LONGEST_TTL_S}"}, 200),
        ({TTL: "60", "x-forwarded-for": "10.0.0.1"}, 403),
    ],
)
def test_a_token_is_given_as_ec2_gives_it(headers, status):
    assert Metadata(IDS).answer("PUT", "/latest/api/token", headers, 0.0).status == status


def test_without_the_requirement_a_token_is_needed_by_nobody_but_a_wrong_one_is_refused():
    metadata = Metadata(IDS, tokens_required=False)
    assert metadata.answer("GET", f"{ITEMS}/instance-id", {}, 0.0).body == "i-0"
    assert metadata.answer("GET", f"{ITEMS}/instance-id", {TOKEN: "made up"}, 0.0).status == 401


def test_items_come_and_go_and_folders_are_listed():
    metadata = Metadata(IDS, tokens_required=False)

    def get(path: str) -> tuple[int, str]:
        return metadata.answer("GET", path, {}, 0.0)[:2]

    assert get(f"{ITEMS}/") == (200, "instance-id\nplacement/")
    assert get(f"{ITEMS}/placement/") == get(f"{ITEMS}/placement") == (200, "availability-zone\nregion")
    assert get(f"{ITEMS}/spot/instance-action")[0] == get("/latest/user-data")[0] == get("/latest")[0] == 404
    metadata.put("spot/instance-action", '{"action": "terminate"}')
    assert get(f"{ITEMS}/spot/instance-action") == (200, '{"action": "terminate"}')
    metadata.put("spot/instance-action", None)
    metadata.put("spot/instance-action", None)
    assert get(f"{ITEMS}/spot/instance-action")[0] == 404


def test_each_machine_is_told_of_itself(boot, hypervisor):
    one, _ = boot({"runcmd": ["true"]})
    other, _ = boot()
    for host, instance in ((one, "i-20"), (other, "i-21")):
        status, token = asked(host, "PUT", "/latest/api/token", {TTL: "60"})
        assert status == 200
        assert asked(host, "GET", f"{ITEMS}/instance-id", {TOKEN: token}) == (200, instance)
        assert asked(host, "GET", f"{ITEMS}/instance-id", {}) == (401, "")
        hypervisor.metadata(instance, "spot/termination-time", "soon")
        assert asked(host, "GET", f"{ITEMS}/spot/termination-time", {TOKEN: token}) == (200, "soon")
    assert asked(other, "GET", f"{ITEMS}/instance-id", {TOKEN: "of another"})[0] == 401


async def test_user_data_is_carried_out_in_cloud_inits_order(boot, connect):
    """The lease comes first: when it is armed, nobody can have logged in and nothing else can have failed."""
    key, client = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    look = 'id ubuntu >/dev/null 2>&1 && echo user; pgrep -x sshd >/dev/null && echo sshd; echo "$INSTANCE_ID"'
    public = client.export_public_key().decode()
    config = {
        "bootcmd": [["sh", "-c", f"({look}) >/run/first"], "false", "echo $((20 + 22)) >/run/second"],
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": key.export_private_key().decode(),
            "ed25519_public": key.export_public_key().decode(),
        },
        "users": ["default", {"name": "ubuntu", "sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": [public]}],
        "write_files": [{"path": "/etc/outrider/file", "content": "said", "permissions": "0600"}],
        "runcmd": [f"({look}) >/run/last; echo >/run/done"],
    }
    host, _ = boot(config)
    until_sshd(host)
    known = asyncssh.import_known_hosts(f"{host.address} {key.export_public_key().decode()}")
    async with connect(host, username="ubuntu", client_keys=[client], known_hosts=known) as connection:
        done = await connection.run(
            "id -un; sudo -n id -u; sudo cat /etc/outrider/file; until [ -e /run/done ]; do :; done"
        )
        assert done.stdout.split() == ["ubuntu", "0", "said"]
    assert host.path("/run/first").read_text().split() == ["i-20"]
    assert host.path("/run/second").read_text() == "42\n"
    assert host.path("/run/last").read_text().split() == ["user", "sshd", "i-20"]


async def test_only_the_keys_that_were_given_open_it(boot, connect, lab):
    host, _ = boot({"ssh_authorized_keys": []})
    until_sshd(host)
    for user in ("ubuntu", "root"):
        with pytest.raises(asyncssh.PermissionDenied):
            await connect(host, username=user, client_keys=[str(lab.key)], known_hosts=None)


async def test_the_key_that_was_named_at_the_launch_opens_it(boot, connect, lab):
    host, _ = boot(metadata=IDS | {"public-keys/0/openssh-key": lab.public_key})
    until_sshd(host)
    async with connect(host, username="ubuntu", known_hosts=None) as connection:
        assert (await connection.run("id -un")).stdout == "ubuntu\n"
    async with connect(host, known_hosts=None) as connection:
        assert "rather than root" in str((await connection.run("id -u")).stdout)


def test_what_cloud_init_does_not_know_never_answers(boot):
    host, _ = boot({"bootcmd": ["echo >/run/first"], "power_state": {"mode": "poweroff"}})
    until(lambda: "nothing here plays power_state" in host.console, host)
    assert not host.path("/run/first").exists()
    assert 22 not in host.listening()


async def test_an_impostor_answers_with_a_key_of_its_own(boot, hypervisor, connect):
    hypervisor.next_suffers("impostor")
    key = asyncssh.generate_private_key("ssh-ed25519")
    host, _ = boot({"ssh_keys": {"ed25519_private": key.export_private_key().decode()}})
    until_sshd(host)
    known = asyncssh.import_known_hosts(f"{host.address} {key.export_public_key().decode()}")
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await connect(host, known_hosts=known)


def test_a_deaf_machine_does_all_but_answer(boot, hypervisor):
    hypervisor.next_suffers("deaf")
    deaf, _ = boot({"runcmd": ["echo >/run/done"]})
    well, _ = boot()
    until_sshd(well)
    until(lambda: deaf.path("/run/done").exists(), deaf)
    assert 22 not in deaf.listening()


@pytest.mark.parametrize(
    "command",
    ["poweroff", "poweroff -f", "/sbin/poweroff", "halt -p", "shutdown -h now", "shutdown -P +0", "systemctl poweroff"],
)
def test_a_machine_can_end_itself_and_no_other(boot, hypervisor, command):
    host, ended = boot()
    other, other_ended = boot()
    pid = host.pid
    assert host.run(*command.split(), user="ada", check=False).returncode != 0, "whoever is not root cannot"
    assert not ended.is_set()
    host.run(*command.split(), check=False)  # whether it returns before the end is luck
    assert ended.wait(60)
    assert list(hypervisor.hosts.values()) == [other]
    assert not other_ended.is_set()
    assert other.run("hostname").stdout.strip() == other.name
    assert not hypervisor.hosts.get("i-20")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(not Path("/proc/sysrq-trigger").exists(), reason="this kernel has no such switch")
def test_this_machines_own_switch_is_out_of_reach(boot, hosts):
    for host in (boot()[0], *hosts(1)):
        null = host.run("stat", "-c", "%t:%T", "/dev/null").stdout
        assert host.run("stat", "-c", "%t:%T", "/proc/sysrq-trigger").stdout == null


def test_what_a_machine_cannot_do_to_itself_is_refused(boot):
    machine, _ = boot()
    assert machine.run("systemctl", "reboot", check=False).returncode != 0
    assert machine.run("shutdown", "+5", check=False).returncode != 0


def test_a_machine_whose_power_is_cut_has_not_ended_by_itself(boot, hypervisor, lab):
    host, ended = boot(public_ip=f"198.18.{lab.number}.20")
    address = host.address
    hypervisor.power_off("i-20")
    hypervisor.power_off("i-20")
    hypervisor.metadata("i-20", "spot/termination-time", "soon")
    assert not ended.wait(0.05)
    assert lab.hosts == []
    again, _ = boot()
    assert again.address == address, "and its address can be given to another"


async def test_a_public_address_leads_to_its_machine(boot, connect, lab):
    host, _ = boot(public_ip=f"198.18.{lab.number}.20", metadata=IDS | {"public-keys/0/openssh-key": lab.public_key})
    until_sshd(host)
    async with asyncssh.connect(
        f"198.18.{lab.number}.20",
        username="ubuntu",
        client_keys=[str(lab.key)],
        known_hosts=None,
        config=None,
        agent_path=None,
    ) as connection:
        assert (await connection.run("hostname")).stdout == f"{host.name}\n"


def test_nothing_is_left_of_them(hypervisor, lab, boot):
    before = leftovers(lab.number)
    boot(public_ip=f"198.18.{lab.number}.20")
    boot()
    hypervisor.close()
    assert [line for line in leftovers(lab.number) if line not in before and "control group" not in line] == []
    assert f"198.18.{lab.number}." not in run(["ip", "route"]).stdout
