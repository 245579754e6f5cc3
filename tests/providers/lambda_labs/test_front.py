"""Lambda's test cloud: what it answers, what it refuses, and that nothing outside of the schema passes unseen."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from outrider.testing import LambdaCloud, Times, cloud_faults

from ..cloud.suite import Ask, outside_of_schema, requests


def asking(cloud: LambdaCloud) -> Ask:
    return requests(cloud, "/api/v1")


def launch(ask: Ask, **more: Any) -> httpx.Response:
    ask("POST", "/ssh-keys", json={"name": "mine", "public_key": "ssh-ed25519 MINE"})
    said = {"region_name": "us-east-1", "instance_type_name": "gpu_1x_a10", "ssh_key_names": ["mine"], **more}
    return ask("POST", "/instance-operations/launch", json=said)


def test_a_machine_boots_runs_ends_and_is_billed_meanwhile() -> None:
    with LambdaCloud(Times(boot_s=60, stop_s=30)) as cloud:
        ask = asking(cloud)
        (name,) = launch(ask, tags=[{"key": "team", "value": "ml"}]).json()["data"]["instance_ids"]
        (shown,) = ask("GET", "/instances").json()["data"]
        assert (shown["status"], shown.get("ip"), shown["tags"]) == ("booting", None, [{"key": "team", "value": "ml"}])
        cloud.advance(60)
        assert ask("GET", f"/instances/{name}").json()["data"]["status"] == "active"
        cloud.advance(3600)
        ended = ask("POST", "/instance-operations/terminate", json={"instance_ids": [name]}).json()["data"]
        assert [each["status"] for each in ended["terminated_instances"]] == ["terminating"]
        cloud.advance(30)
        assert ask("GET", "/instances").json() == {"data": []}
        assert ask("GET", f"/instances/{name}").status_code == 404
        assert cloud.ledger.cost_usd() == pytest.approx(1.29, rel=0.05)
        assert cloud.left() == ["ssh key mine"]


def test_old_lists_do_not_show_what_is_new() -> None:
    with LambdaCloud(Times(stale_s=100)) as cloud:
        ask = asking(cloud)
        launch(ask)
        assert ask("GET", "/instances").json() == {"data": []}
        cloud.advance(101)
        assert len(ask("GET", "/instances").json()["data"]) == 1


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"instance_type_name": "gpu_9x"}, 404, "global/object-does-not-exist"),
        ({"ssh_key_names": ["other"]}, 404, "global/object-does-not-exist"),
        ({"region_name": "us-west-2"}, 400, "instance-operations/launch/insufficient-capacity"),
    ],
)
def test_a_launch_is_refused_in_lambdas_codes(more: dict[str, Any], status: int, code: str) -> None:
    with LambdaCloud() as cloud:
        answer = launch(asking(cloud), **more)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_keys_quotas_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with LambdaCloud(keys=["good"], throttled=True) as cloud:
        ask, now = asking(cloud), [0.0]
        monkeypatch.setattr(cloud.clock, "now", lambda: now[0])  # two requests may be a second apart on a busy computer
        assert ask("GET", "/ssh-keys").json()["error"]["code"] == "global/invalid-api-key"
        good = {"headers": {"Authorization": "Bearer good"}}
        assert ask("GET", "/ssh-keys", **good).status_code == 200
        assert ask("GET", "/ssh-keys", **good).status_code == 429
        now[0] += 1.0
        assert ask("GET", "/ssh-keys", **good).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "why"),
    [
        ("POST", "/instance-operations/launch", {"region_name": "us-east-1"}, "lacks instance_type_name"),
        ("POST", "/instance-operations/terminate", {"instance_id": "x"}, "lacks instance_ids"),
        ("POST", "/ssh-keys", {"name": "k", "pubkey": "x"}, "has pubkey"),
        ("GET", "/machines", None, "no such operation"),
        ("GET", "/instances", {"pool": "x"}, "takes no body"),
    ],
)
def test_a_request_outside_of_the_schema_is_raised_at_the_end(
    method: str, path: str, body: dict[str, Any] | None, why: str
) -> None:
    outside_of_schema(LambdaCloud(), "/api/v1", (method, path, {"json": body} if body is not None else {}), why)


def test_a_client_that_dies_in_the_middle_of_a_request_is_no_fault_of_anybodys() -> None:
    with LambdaCloud() as cloud:
        parts = urlsplit(cloud.endpoint_url)
        assert parts.hostname is not None
        with socket.create_connection((parts.hostname, parts.port or 0)) as client:
            head = (
                "POST /api/v1/ssh-keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer any\r\nContent-Length: 40\r\n\r\n"
            )
            client.sendall(head.encode() + b'{"name"')
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b""
        assert cloud.calls == {}


def test_faults_of_the_wire() -> None:
    faults = [cloud_faults.LostRequest("addSSHKey"), cloud_faults.LostAnswer("addSSHKey", after=1)]
    with LambdaCloud(faults=faults) as cloud:
        ask = asking(cloud)
        said = {"json": {"name": "mine", "public_key": "ssh-ed25519 MINE"}}
        with pytest.raises(httpx.RemoteProtocolError):
            ask("POST", "/ssh-keys", **said)
        assert cloud.ssh_keys == {}
        assert ask("POST", "/ssh-keys", **said).status_code == 200
        cloud.faults.add(
            cloud_faults.HalfAnswer("listSSHKeys"), cloud_faults.HalfAnswer("listSSHKeys", valid_http=False)
        )
        with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
            ask("GET", "/ssh-keys").json()
        with pytest.raises(httpx.RemoteProtocolError):
            ask("GET", "/ssh-keys")
        cloud.faults.add(
            cloud_faults.Throttle("listSSHKeys"), cloud_faults.CallRefused("listSSHKeys", "x/y", "No.", 500)
        )
        assert ask("GET", "/ssh-keys").status_code == 429
        assert ask("GET", "/ssh-keys").json()["error"]["code"] == "x/y"


def test_a_machine_that_does_not_boot_and_one_that_is_taken() -> None:
    with LambdaCloud(faults=[cloud_faults.NoBoot()]) as cloud:
        ask = asking(cloud)
        launch(ask)
        cloud.advance(5)
        assert [each.state for each in cloud.machines()] == ["terminated"]
        (name,) = launch(ask).json()["data"]["instance_ids"]
        cloud.advance(5)
        cloud.preempt(name)
        assert [each["status"] for each in ask("GET", "/instances").json()["data"]] == ["preempted"]
