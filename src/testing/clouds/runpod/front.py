"""`RunPodCloud`: RunPod on this computer, for tests of clients of RunPod's REST v2."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from ..shared.extract import Extract
from ..shared.faults import Fault, NoCapacity
from ..shared.front import CloudFront, Refused, Reply, Request
from ..shared.hypervisor import Hypervisor
from ..shared.machines import FrontMachine, State, Times
from ..shared.published import addresses
from ..shared.schema import Invalid
from . import sold
from .sold import CENTERS, CPUS, GPUS, ROOM

OPENAPI = Extract(Path(__file__).with_name("openapi.json"))

# These are RunPod's own messages, as other projects recorded them in October 2026.
NO_ROOM = "There are no longer any instances available with the requested specifications. Please refresh and try again."
_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    413: "Content Too Large",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
}
_STATUS: Mapping[State, str] = {
    "pending": "PROVISIONING",
    "running": "RUNNING",
    "stopped": "EXITED",
    "shutting-down": "TERMINATED",
    "terminated": "TERMINATED",
}
_ACTIONS = {"PROVISIONING": ["stop", "terminate"], "RUNNING": ["stop", "restart", "terminate"]}
# Operations that a pod may call for itself, with the API key in its environment.
_OWN = frozenset({"getPod", "deletePod", "podAction"})
_ENDED = ("shutting-down", "terminated")


class RunPodCloud(CloudFront):
    """A test double of RunPod on this computer, for the length of a `with` block; see also `CloudFront`.

    A pod whose first process has ended stays, and is billed. Set ``credit`` to False for an account without a balance:
    then nothing is created.

    Args:
        times: How long machines take to boot and stop, and how outdated the lists of machines are.
        hypervisor: Runs the machines. Default: no machine really runs.
        faults: The faults that are active from the beginning.
        seed: The same seed gives the same ids.
        address: The address at which the test cloud listens.
        room: (type, data center) -> the most pods there. Further pods are refused, and the catalogue shows this stock.
        keys: The API keys that are accepted. Default: all.
        page: The number of pods on one page of a list.
        pod_keys: Whether pods may call with the API key in their environment, each for itself.
        network: The private addresses of the pods.
        public_network: The addresses with the pods' ports. None: those of ``network``.

    Raises:
        ExceptionGroup: As for `CloudFront`.
    """

    name = "runpod"
    powered_off = "stopped"

    def __init__(
        self,
        times: Times = Times(),  # noqa: B008 - the default is immutable
        *,
        hypervisor: Hypervisor | None = None,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        address: str = "127.0.0.1",
        room: Mapping[tuple[str, str], int] = ROOM,
        keys: Sequence[str] | None = None,
        page: int = 1000,
        pod_keys: bool = True,
        network: str = "10.65.0.0/16",
        public_network: str | None = "198.51.100.0/24",
    ) -> None:
        super().__init__(times, hypervisor=hypervisor, faults=faults, seed=seed, address=address)
        self.room, self.page, self.pod_keys, self.credit = dict(room), page, pod_keys, True
        self._accepted = keys
        self._ids = Random(f"ids {seed}")  # noqa: S311 - reproducible by its seed
        self._own_keys: dict[str, str] = {}  # pod id -> the API key that only this pod may use
        self._private = addresses(network)
        self._public = None if public_network is None else addresses(public_network)

    # --- methods for tests --------------------------------------------------------------------------------------------

    def stop(self, name: str) -> None:
        """Stop a pod, as RunPod does when the account's balance is used up. Its state is then ``EXITED``."""
        self.store.stop(name, "stopped")

    def lose(self, name: str) -> None:
        """Remove a pod, as if its host had failed: RunPod no longer lists it."""
        self.store.end(name, "lost")

    def left(self) -> list[str]:
        """Return the names of everything that was created and still exists."""
        return [f"pod {each.body['name']}" for each in self.machines() if each.state not in _ENDED]

    # --- its interface ------------------------------------------------------------------------------------------------

    def action(self, request: Request) -> str:
        return OPENAPI.action(request.method, request.path)

    def let_in(self, request: Request, action: str) -> None:
        self._check_key(request, action)
        if not action:
            raise Invalid(f"{request.method} {request.path}", "there is no such operation")
        operation, most = OPENAPI.operations[action], OPENAPI.document["bytes_at_most"]
        OPENAPI.schemas.check(operation.get("query", "NoQuery"), dict(request.query))
        if len(request.body) > most:
            raise Invalid(action, f"it has {len(request.body)} bytes, and {most} are allowed")
        if "asks" in operation:
            OPENAPI.schemas.check(operation["asks"], request.json())
        elif request.body:
            raise Invalid(action, "it takes no body")

    def answer(self, request: Request, action: str) -> Reply:
        name = OPENAPI.parts(action, request.path).get("id", "")
        body: dict[str, Any] | None
        match action:
            case "listPods":
                body = self._page(request.query)
            case "createPod":
                return Reply(201, self._shown(self._create(request.json())))
            case "getPod":
                body = self._shown(self._known(name, ended=True))
            case "deletePod":
                body = self._act(self._known(name), "terminate")
            case "podAction":
                body = self._act(self._known(name), request.json()["action"])
            case "listGpuTypes":
                self._check_availability(request.query)
                body = {"gpus": [sold.gpu(each, request.query, self._left_of) for each in GPUS]}
            case "listCpuTypes":
                self._check_availability(request.query)
                body = {"cpus": [sold.cpu(each, self._left_of) for each in CPUS]}
            case _:
                body = {"dataCenters": [sold.center(each) for each in CENTERS]}
        return Reply(204 if body is None else 200, body)

    def check(self, request: Request, action: str, reply: Reply) -> None:  # noqa: ARG002
        answers = OPENAPI.operations.get(action, {}).get("answers", {})
        schema = answers.get(str(reply.status), "ErrorResponse")
        if schema is not None:
            OPENAPI.schemas.check(schema, reply.body)

    def refusal(self, refused: Refused) -> Reply:
        problem = {"title": _TITLES.get(refused.status, "Error"), "status": refused.status, "detail": refused.message}
        return Reply(refused.status, problem, {"Content-Type": "application/problem+json", **refused.headers})

    def throttled(self) -> Refused:
        return Refused("", "rate limit exceeded for the minute window", 429, **{"Retry-After": "1"})

    def unauthorized(self, action: str) -> Refused:  # noqa: ARG002
        return Refused("", "access denied", 403)

    # --- credentials --------------------------------------------------------------------------------------------------

    def _check_key(self, request: Request, action: str) -> None:
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        of = next((pod for pod, own in self._own_keys.items() if own == key), None)
        if of is not None:
            if not self.pod_keys or action not in _OWN or OPENAPI.parts(action, request.path)["id"] != of:
                raise Refused("", "access denied", 403)
        elif not key or (self._accepted is not None and key not in self._accepted):
            raise Refused("", "missing bearer token" if not key else "invalid api key", 401)

    def _check_availability(self, query: Mapping[str, str]) -> None:
        if ("include" in query) != ("product" in query):
            raise Refused("", "product is required with include=AVAILABILITY, and valid only with it", 400)

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _create(self, body: Mapping[str, Any]) -> FrontMachine:
        if ("gpu" in body) == ("cpu" in body):
            raise Invalid("createPod", "exactly one of gpu and cpu must be set")
        if not self.credit:
            raise Refused("", "Insufficient balance.", 402)
        kind, usd, what = self._ordered(body)
        centers = body.get("dataCenterIds") or list(CENTERS)
        if body.get("globalNetworking"):
            centers = [each for each in centers if CENTERS.get(each)]
        center = next((each for each in centers if self._left_of(kind, each) > 0), None)
        if center is None or self._refused(kind, center):
            raise Refused("", NO_ROOM, 400)
        name = "".join(self._ids.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=14))
        self._own_keys[name] = f"rpa_{self._ids.getrandbits(160):040X}"
        private = next(self._private)
        public = private if self._public is None else next(self._public)
        port = 10_000 + self._ids.randrange(20_000)
        env = {
            **body.get("env", {}),
            "RUNPOD_POD_ID": name,
            "RUNPOD_API_KEY": self._own_keys[name],
            "RUNPOD_TCP_PORT_22": str(port),
        }
        return self.store.create(
            FrontMachine(
                id=name,
                type=kind,
                zone=center,
                hourly_usd=usd,
                private_ip=private,
                public_ip=public,
                user_data=shlex.join([*body.get("entrypoint", []), *body.get("cmd", [])]),
                metadata=env,
                body={**body, **what, "port": port},
            )
        )

    def _ordered(self, body: Mapping[str, Any]) -> tuple[str, float, dict[str, Any]]:
        """Return the ordered type, its price per hour, and the fields of the pod that depend on the type."""
        if "cpu" in body:
            cpu, vcpus = next((each for each in CPUS if each.id == body["cpu"]["id"]), None), body["cpu"]["vcpuCount"]
            if cpu is None or vcpus & (vcpus - 1) or vcpus > cpu.at_most or "persistent" in body.get("mounts", {}):
                raise Refused("", f"Unknown CPU type: {body['cpu']['id']}", 422)
            fields = {"id": cpu.id, "vcpuCount": vcpus, "memory": int(vcpus * cpu.memory_gb)}
            return cpu.id, cpu.usd * vcpus, {"cpu": fields}
        wanted, cloud = body["gpu"], body.get("cloud", "SECURE")
        gpu, number = next((each for each in GPUS if each.id == wanted["id"]), None), wanted.get("count", 1)
        if gpu is None:
            raise Refused("", f"Unknown GPU type: {wanted['id']}", 422)
        usd = sold.price(gpu, cloud)
        small = wanted.get("minRamPerGpu", 0) > gpu.memory_gb or wanted.get("minVcpuCountPerGpu", 0) > gpu.vcpus
        if not usd or number > gpu.at_most or small:
            raise Refused("", NO_ROOM, 400)
        fields = {"id": gpu.id, "count": number, "vcpuCount": number * gpu.vcpus, "memory": number * gpu.memory_gb}
        return gpu.id, usd * number, {"gpu": fields}

    def _refused(self, type: str, zone: str) -> bool:  # noqa: A002
        living = sum(each.lives and (each.type, each.zone) == (type, zone) for each in self.machines())
        return any(
            fault.type in (None, type)
            and fault.zone in (None, zone)
            and living >= fault.machines
            and self.faults.happens(fault)
            for fault in self.faults.of(NoCapacity)
        )

    def _left_of(self, type: str, zone: str) -> int:  # noqa: A002
        taken = sum((each.type, each.zone) == (type, zone) for each in self.machines() if each.state not in _ENDED)
        return self.room.get((type, zone), 0) - taken

    def _known(self, name: str, *, ended: bool = False) -> FrontMachine:
        """Return the pod with an id, in its present state. ``ended``: also find a pod that has just begun to end."""
        shown = [each for each in self.machines() if each.state not in (_ENDED[1:] if ended else _ENDED)]
        machine = next((each for each in shown if each.id == name), None)
        if machine is None:
            raise Refused("", "resource not found", 404)
        return machine

    def _act(self, machine: FrontMachine, action: str) -> dict[str, Any] | None:
        """Start, stop or terminate a pod; return the pod, or None if it is now deleted."""
        if action not in _ACTIONS.get(_STATUS[machine.state], ("start", "terminate")):
            raise Refused("", f"{action} is not valid for a pod that is {_STATUS[machine.state]}", 409)
        if action == "terminate":
            self.store.end(machine.id)
            return None
        if action != "stop":
            raise Invalid("podAction", f"no test needs {action!r} yet")
        self.store.stop(machine.id, "stopped")
        return self._shown(self.machine(machine.id))

    def _page(self, query: Mapping[str, str]) -> dict[str, Any]:
        pods = [each for each in self.store.shown() if each.state not in _ENDED]
        at, size = int(query.get("cursor", "0")), min(self.page, int(query.get("limit", "1000")))
        more = at + size < len(pods)
        return {
            "pods": [self._shown(each) for each in pods[at : at + size]],
            "pagination": {"hasNextPage": more, "nextCursor": str(at + size) if more else None},
        }

    def _shown(self, machine: FrontMachine) -> dict[str, Any]:
        body, status, runs = machine.body, _STATUS[machine.state], machine.state == "running"
        entrypoint, cmd = list(body.get("entrypoint", [])), list(body.get("cmd", []))
        endpoint = {"host": machine.public_ip, "port": body["port"], "username": "root"}
        endpoint["command"] = f"ssh root@{endpoint['host']} -p {endpoint['port']}"
        mapped = runs and "22/tcp" in body.get("ports", ())
        port = {"private": 22, "public": body["port"], "type": "tcp", "ip": machine.public_ip}
        network: dict[str, Any] = {"enabled": bool(body.get("globalNetworking"))}
        if network["enabled"] and runs:
            network |= {"ip": machine.private_ip, "internalDns": f"{machine.id}.runpod.internal"}
        return {
            "id": machine.id,
            "name": body["name"],
            "status": status,
            "actions": _ACTIONS.get(status, ["start", "terminate"]),
            "image": body["image"],
            "args": json.dumps({"entrypoint": entrypoint, "cmd": cmd}) if entrypoint or cmd else "",
            "entrypoint": entrypoint,
            "cmd": cmd,
            "disk": body.get("disk", 20),
            "mounts": body.get("mounts", {}),
            "ports": list(body.get("ports", [])),
            "env": dict(body.get("env", {})),
            "registry": body.get("registry"),
            "cloud": body.get("cloud", "SECURE"),
            "dataCenterId": machine.zone,
            "cudaVersion": "12.8" if "gpu" in body else None,
            "ssh": {"proxy": None, "direct": endpoint if mapped else None},
            "template": None,
            "cost": round(machine.hourly_usd, 4) if machine.lives else 0.0,
            "locked": False,
            "globalNetworking": network,
            "runtime": {"uptime": 1, "ports": [port] if mapped else []} if runs else None,
            "createdAt": datetime.fromtimestamp(machine.created, UTC).isoformat().replace("+00:00", "Z"),
            "startedAt": None,
        } | {key: body[key] for key in ("gpu", "cpu") if key in body}
