"""Vast.ai's test cloud: what it answers, what it refuses, and that nothing outside of the schema passes unseen."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.testing import Rentable, Times, VastCloud, cloud_faults

from ..cloud.suite import Ask, outside_of_schema, requests

BODY = {"image": "ubuntu:24.04", "runtype": "args", "onstart": "/bin/sh", "args": ["-c", "sleep 1"], "disk": 16}


def asking(cloud: VastCloud) -> Ask:
    return requests(cloud, "/api")


def test_a_machine_boots_runs_ends_and_is_billed_meanwhile() -> None:
    with VastCloud(Times(boot_s=60, stop_s=30)) as cloud:
        ask = asking(cloud)
        made = ask("PUT", "/v0/asks/1000/", json={**BODY, "env": {"-p 22:22": "1", "A": "b"}, "label": "mine"}).json()
        (shown,) = ask("GET", "/v1/instances/").json()["instances"]
        assert (shown["id"], shown["actual_status"], shown["ports"]) == (made["new_contract"], "loading", None)
        cloud.advance(60)
        (shown,) = ask("GET", "/v1/instances/").json()["instances"]
        assert (shown["actual_status"], shown["label"], shown["is_bid"]) == ("running", "mine", False)
        (boot,) = cloud.hypervisor.on.values()  # type: ignore[attr-defined]
        assert boot.user_data == "/bin/sh -c 'sleep 1'"
        assert boot.metadata["VAST_TCP_PORT_22"] == shown["ports"]["22/tcp"][0]["HostPort"]
        assert (boot.metadata["A"], boot.metadata["CONTAINER_ID"]) == ("b", str(made["new_contract"]))
        cloud.advance(3600)
        ended = ask("DELETE", "/v0/instances/", content=f'{{"instance_ids": [{made["new_contract"]}]}}')
        assert ended.json() == {"success": True}
        cloud.advance(30)
        assert ask("GET", "/v1/instances/").json()["instances"] == []
        assert cloud.ledger.cost_usd() == pytest.approx(0.4 + 16 * 0.15 / 720, rel=0.05)
        assert cloud.left() == []


def test_an_instances_own_key_deletes_it_and_nothing_else() -> None:
    with VastCloud(keys=["any"]) as cloud:
        ask = asking(cloud)
        one, two = (ask("PUT", f"/v0/asks/{each}/", json=BODY).json() for each in (1000, 1001))
        own = {"headers": {"Authorization": f"Bearer {one['instance_api_key']}"}}
        assert ask("GET", "/v1/instances/", **own).status_code == 403
        assert ask("DELETE", f"/v0/instances/{two['new_contract']}/", **own).status_code == 403
        assert ask("DELETE", f"/v0/instances/{one['new_contract']}/", **own).status_code == 200
        cloud.advance(1)
        assert cloud.left() == [f"instance {two['new_contract']}"]


def test_an_offer_is_for_one_tenant_and_an_outbid_one_is_stopped_and_billed() -> None:
    with VastCloud(offered=[Rentable(id=1, min_bid=0.2)]) as cloud:
        ask = asking(cloud)
        assert [each["rentable"] for each in ask("POST", "/v0/bundles/", json={"type": "bid"}).json()["offers"]] == [
            True
        ]
        assert ask("PUT", "/v0/asks/1/", json={**BODY, "price": 0.1}).status_code == 410
        name = str(ask("PUT", "/v0/asks/1/", json={**BODY, "price": 0.3}).json()["new_contract"])
        assert ask("POST", "/v0/bundles/", json={"rentable": {"eq": True}}).json()["offers"] == []
        refused = ask("PUT", "/v0/asks/1/", json=BODY)
        assert (refused.status_code, refused.json()["error"]) == (410, "no_such_ask")
        assert ask("PUT", "/v0/asks/2/", json=BODY).status_code == 404
        cloud.advance(60)
        cloud.outbid(name)
        (shown,) = ask("GET", "/v1/instances/").json()["instances"]
        assert (shown["actual_status"], shown["is_bid"]) == ("stopped", True)
        before = cloud.ledger.cost_usd()
        cloud.advance(3600)
        assert cloud.ledger.cost_usd() > before


def test_lists_have_pages_and_searches_an_end() -> None:
    with VastCloud(offered=[Rentable(id=each) for each in range(1, 101)]) as cloud:
        ask = asking(cloud)
        found = ask("POST", "/v0/bundles/", json={"limit": 1000}).json()
        assert (len(found["offers"]), found["truncated"]) == (64, True)
        for each in range(1, 31):
            ask("PUT", f"/v0/asks/{each}/", json=BODY)
        first = ask("GET", "/v1/instances/", params={"limit": "25"}).json()
        assert (len(first["instances"]), first["total_instances"]) == (25, 30)
        second = ask("GET", "/v1/instances/", params={"limit": "25", "after_token": first["next_token"]}).json()
        assert (len(second["instances"]), second["next_token"]) == (5, None)


def test_keys_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with VastCloud(keys=["good"], throttled=True) as cloud:
        ask, now = asking(cloud), [0.0]
        monkeypatch.setattr(cloud.clock, "now", lambda: now[0])  # two requests may be a second apart on a busy computer
        assert ask("GET", "/v0/users/current/").status_code == 401
        good = {"headers": {"Authorization": "Bearer good"}}
        assert ask("GET", "/v0/users/current/", **good).json()["credit"] == 25.0
        assert [ask("GET", "/v1/instances/", **good).status_code for _ in range(2)] == [200, 429]
        now[0] += 1.0
        assert ask("GET", "/v1/instances/", **good).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "why"),
    [
        ("PUT", "/v0/asks/1000/", {"label": "x"}, "lacks image"),
        ("PUT", "/v0/asks/1000/", {"image": "x", "entrypoint": "sh"}, "has entrypoint"),
        ("PUT", "/v0/asks/1000/", {"image": "x", "args": ["a" * 2048], "onstart": "b" * 2049}, "more than 4096"),
        ("PUT", "/v0/asks/1000/", {"image": "x", "label": "y" * 257}, "257 characters"),
        ("PUT", "/v0/asks/1000/", {"image": "x", "price": 0.0}, "at least 0.001"),
        ("DELETE", "/v0/instances/", {"ids": [1]}, "lacks instance_ids"),
        ("POST", "/v0/bundles/", {"gpu": {"eq": "H100"}}, "has gpu"),
        ("GET", "/v1/instances/?page=2", None, "takes no page"),
        ("GET", "/v0/instances/", None, "no such operation"),
    ],
)
def test_a_request_outside_of_the_schema_is_raised_at_the_end(
    method: str, path: str, body: dict[str, Any] | None, why: str
) -> None:
    outside_of_schema(VastCloud(), "/api", (method, path, {"json": body} if body is not None else {}), why)


def test_faults_of_room_and_of_booting() -> None:
    with VastCloud(Times(boot_s=1, stop_s=1), faults=[cloud_faults.NoCapacity(type="1x RTX 4090", zone="US")]) as cloud:
        ask = asking(cloud)
        assert ask("PUT", "/v0/asks/1000/", json=BODY).status_code == 410
        cloud.faults.add(cloud_faults.NoBoot())
        name = ask("PUT", "/v0/asks/2000/", json=BODY).json()["new_contract"]
        cloud.advance(3)
        assert cloud.machine(str(name)).state == "terminated"
        assert cloud.machine(str(name)).reason == "boot-failed"
