"""RunPod's test cloud: what it answers, what it refuses, and that nothing outside of the schema passes unseen."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.testing import RunPodCloud, Times, cloud_faults

from ..cloud.suite import Ask, outside_of_schema, requests

POD = {
    "name": "mine",
    "image": "image",
    "gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 2},
    "ports": ["22/tcp"],
    "dataCenterIds": ["US-KS-2"],
}
STOCK = {"include": "AVAILABILITY", "product": "POD"}


def asking(cloud: RunPodCloud) -> Ask:
    return requests(cloud, "/v2")


def test_a_pod_starts_runs_ends_and_is_billed_meanwhile() -> None:
    with RunPodCloud(Times(boot_s=60, stop_s=30)) as cloud:
        ask = asking(cloud)
        answer = ask("POST", "/pods", json=POD)
        assert answer.status_code == 201
        pod = answer.json()
        assert (pod["status"], pod["ssh"]["direct"], pod["cost"]) == ("PROVISIONING", None, 1.38)
        cloud.advance(60)
        (shown,) = ask("GET", "/pods").json()["pods"]
        assert (shown["status"], shown["dataCenterId"], shown["gpu"]["vcpuCount"]) == ("RUNNING", "US-KS-2", 32)
        assert shown["ssh"]["direct"]["port"] == shown["runtime"]["ports"][0]["public"] >= 10_000
        cloud.advance(3600)
        assert ask("DELETE", f"/pods/{pod['id']}").status_code == 204
        assert ask("GET", f"/pods/{pod['id']}").json()["status"] == "TERMINATED"
        assert ask("GET", "/pods").json()["pods"] == []
        cloud.advance(30)
        assert ask("GET", f"/pods/{pod['id']}").status_code == 404
        assert ask("DELETE", f"/pods/{pod['id']}").status_code == 404
        assert cloud.ledger.cost_usd() == pytest.approx(1.38, rel=0.05)
        assert cloud.left() == []


def test_a_stopped_pod_can_only_be_started_or_ended() -> None:
    with RunPodCloud(Times(boot_s=0)) as cloud:
        ask = asking(cloud)
        name = ask("POST", "/pods", json=POD).json()["id"]
        cloud.advance(1)
        stopped = ask("POST", f"/pods/{name}/action", json={"action": "stop"}).json()
        assert (stopped["status"], stopped["cost"], stopped["actions"]) == ("EXITED", 0.0, ["start", "terminate"])
        assert ask("POST", f"/pods/{name}/action", json={"action": "stop"}).status_code == 409
        assert ask("POST", f"/pods/{name}/action", json={"action": "terminate"}).status_code == 204


def test_lists_have_pages_and_may_be_old() -> None:
    with RunPodCloud(Times(stale_s=100), page=2) as cloud:
        ask = asking(cloud)
        for number in range(3):
            ask("POST", "/pods", json={**POD, "name": f"pod-{number}"})
        assert ask("GET", "/pods").json()["pods"] == []
        cloud.advance(101)
        first = ask("GET", "/pods").json()
        assert first["pagination"]["hasNextPage"]
        second = ask("GET", "/pods", params={"cursor": first["pagination"]["nextCursor"]}).json()
        assert second["pagination"] == {"hasNextPage": False, "nextCursor": None}
        assert [each["name"] for each in first["pods"] + second["pods"]] == ["pod-0", "pod-1", "pod-2"]


def test_the_catalogue_has_prices_of_both_clouds_and_the_stock_that_is_left() -> None:
    with RunPodCloud(room={("NVIDIA GeForce RTX 4090", "US-KS-2"): 1, ("cpu3c", "EU-RO-1"): 9}) as cloud:
        ask = asking(cloud)

        def rtx() -> dict[str, Any]:
            listed = ask("GET", "/catalog/gpus", params={**STOCK, "count": "2", "cloud": "SECURE"}).json()["gpus"]
            found: dict[str, Any] = next(each for each in listed if each["name"] == "RTX 4090")
            return found

        assert (rtx()["price"]["secure"], rtx()["availability"]) == (0.69, "LOW")
        assert {each["id"]: each["availability"] for each in rtx()["dataCenters"]}["US-KS-2"] == "LOW"
        ask("POST", "/pods", json=POD)
        assert rtx()["availability"] == "NONE"
        assert "dataCenters" not in rtx()
        cpus = ask("GET", "/catalog/cpus", params=STOCK).json()["cpus"]
        assert {each["id"]: each["availability"] for each in cpus} == {
            "cpu3c": "HIGH",
            "cpu5c": "NONE",
            "cpu3m": "NONE",
        }
        assert {each["id"] for each in ask("GET", "/catalog/datacenters").json()["dataCenters"]} >= {"US-KS-2"}
        assert ask("GET", "/catalog/gpus", params={"include": "AVAILABILITY"}).status_code == 400


@pytest.mark.parametrize(
    ("more", "status", "detail"),
    [
        ({"gpu": {"id": "NVIDIA NOT A GPU"}}, 422, "Unknown GPU type: NVIDIA NOT A GPU"),
        ({"gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 16}}, 400, "no longer any instances available"),
        ({"gpu": {"id": "NVIDIA GeForce RTX 4090", "minRamPerGpu": 999}}, 400, "no longer any instances available"),
        ({"cloud": "COMMUNITY", "gpu": {"id": "NVIDIA A100-SXM4-80GB"}}, 400, "no longer any instances available"),
        ({"dataCenterIds": ["US-TX-3"], "globalNetworking": True}, 400, "no longer any instances available"),
    ],
)
def test_a_pod_is_refused_as_runpod_does(more: dict[str, Any], status: int, detail: str) -> None:
    with RunPodCloud() as cloud:
        answer = asking(cloud)("POST", "/pods", json=POD | more)
        assert (answer.status_code, answer.json()["status"]) == (status, status)
        assert detail in answer.json()["detail"]


def test_keys_balance_and_limits() -> None:
    with RunPodCloud(keys=["good"], faults=[cloud_faults.Throttle("listPods")]) as cloud:
        ask = asking(cloud)
        good = {"headers": {"Authorization": "Bearer good"}}
        assert ask("GET", "/pods").status_code == 429
        assert ask("GET", "/pods").status_code == 401
        assert ask("GET", "/pods", headers={}).json()["detail"] == "missing bearer token"
        assert ask("GET", "/pods", **good).status_code == 200
        cloud.credit = False
        assert ask("POST", "/pods", json=POD, **good).status_code == 402


def test_a_pod_may_end_itself_and_nothing_else() -> None:
    with RunPodCloud(keys=["good"]) as cloud:
        ask, good = asking(cloud), {"headers": {"Authorization": "Bearer good"}}
        mine, other = (ask("POST", "/pods", json=POD, **good).json()["id"] for _ in range(2))
        env = cloud.machine(mine).metadata
        assert env["RUNPOD_POD_ID"] == mine
        own = {"headers": {"Authorization": f"Bearer {env['RUNPOD_API_KEY']}"}}
        assert ask("GET", "/pods", **own).status_code == 403
        assert ask("POST", "/pods", json=POD, **own).status_code == 403
        assert ask("DELETE", f"/pods/{other}", **own).status_code == 403
        cloud.pod_keys = False
        assert ask("DELETE", f"/pods/{mine}", **own).status_code == 403
        cloud.pod_keys = True
        assert ask("DELETE", f"/pods/{mine}", **own).status_code == 204
        assert env["RUNPOD_API_KEY"] not in ask("GET", f"/pods/{other}", **good).text


@pytest.mark.parametrize(
    ("method", "path", "more", "why"),
    [
        ("POST", "/pods", {"json": {"name": "x", "gpu": {"id": "y"}}}, "lacks image"),
        ("POST", "/pods", {"json": {**POD, "gpuCount": 1}}, "has gpuCount"),
        ("POST", "/pods", {"json": {**POD, "cpu": {"id": "cpu3c", "vcpuCount": 2}}}, "exactly one of gpu and cpu"),
        ("POST", "/pods", {"json": {**POD, "env": {"A": 1}}}, "no string"),
        ("POST", "/pods", {"json": {**POD, "cmd": ["x" * 103_000]}}, "102400 are allowed"),
        ("GET", "/pods", {"params": {"desiredStatus": "RUNNING"}}, "has desiredStatus"),
        ("GET", "/pods/x", {"params": {"cursor": "1"}}, "has cursor"),
        ("GET", "/catalog/gpus", {"params": {**STOCK, "cloud": "ALL"}}, "none of"),
        ("POST", "/pods/x/action", {"json": {"action": "reset"}}, "none of"),
        ("GET", "/machines", {}, "no such operation"),
        ("GET", "/pods", {"json": {}}, "takes no body"),
    ],
)
def test_a_request_outside_of_the_schema_is_raised_at_the_end(
    method: str, path: str, more: dict[str, Any], why: str
) -> None:
    outside_of_schema(RunPodCloud(), "/v2", (method, path, more), why)


def test_a_pod_that_does_not_start_and_one_that_is_lost() -> None:
    with RunPodCloud(faults=[cloud_faults.NoBoot()]) as cloud:
        ask = asking(cloud)
        ask("POST", "/pods", json=POD)
        cloud.advance(5)
        assert [each.state for each in cloud.machines()] == ["terminated"]
        name = ask("POST", "/pods", json=POD).json()["id"]
        cloud.advance(5)
        cloud.lose(name)
        assert ask("GET", "/pods").json()["pods"] == []
