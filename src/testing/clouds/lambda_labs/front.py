"""`LambdaCloud`: Lambda's On-Demand Cloud on this computer, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from ....lazy_dataclass import dataclass
from ..shared.faults import Fault, NoCapacity
from ..shared.front import CloudFront, Refused, Reply, Request
from ..shared.hypervisor import Hypervisor
from ..shared.machines import FrontMachine, State, Times
from ..shared.published import Limit, Published, addresses

OPENAPI = Published(Path(__file__).with_name("openapi.json"))
NO_ROOM = "instance-operations/launch/insufficient-capacity"
UNKNOWN = "global/object-does-not-exist"
_STATUS: Mapping[State, str] = {
    "pending": "booting",
    "running": "active",
    "stopped": "preempted",
    "shutting-down": "terminating",
    "terminated": "terminated",
}
_ACTIONS = ("migrate", "rebuild", "restart", "cold_reboot", "terminate")


@dataclass(frozen=True, slots=True)
class SoldType:
    """A machine type of the test cloud. ``gpu``: Lambda's description of its GPU, with the GPU's memory in brackets."""

    name: str
    cents: int
    vcpus: int
    memory_gib: int
    gpus: int = 0
    gpu: str = "N/A"
    storage_gib: int = 512


TYPES = (
    SoldType("cpu_4x_general", 8, 4, 16),
    SoldType("gpu_1x_a10", 129, 30, 200, 1, "A10 (24 GB PCIe)", 1400),
    SoldType("gpu_1x_h100_pcie", 329, 26, 200, 1, "H100 (80 GB PCIe)", 1024),
    SoldType("gpu_1x_gh200", 229, 64, 432, 1, "GH200 (96 GB)", 4096),
    SoldType("gpu_8x_a100_80gb_sxm4", 2232, 240, 1800, 8, "A100 (80 GB SXM4)", 19968),
)
ROOM: Mapping[tuple[str, str], int] = {
    (each.name, region): 64 for each in TYPES for region in ("us-east-1", "us-west-1")
}


class LambdaCloud(CloudFront):
    """A test double of Lambda on this computer, for the length of a `with` block; see also `CloudFront`.

    A machine that powers itself off is still ``active``, as at Lambda. A machine that has ended is not listed.

    Args:
        times: How long machines take to boot and stop, and how outdated the lists of machines are.
        hypervisor: Runs the machines. Default: no machine really runs.
        faults: The faults that are active from the beginning.
        seed: The same seed gives the same ids.
        types: The machine types that the test cloud sells.
        room: (type, region) -> the most machines there. Further machines are refused, and `listInstanceTypes` names
            only the regions with room left.
        keys: The API keys that are accepted. Default: all.
        throttled: Whether requests are limited as by Lambda.
        network: The private addresses of the machines.
        public_network: The public addresses. None: the private ones are public.

    Raises:
        ExceptionGroup: As for `CloudFront`.
    """

    name = "lambda"
    powered_off = "running"

    def __init__(
        self,
        times: Times = Times(),  # noqa: B008 - the default is immutable
        *,
        hypervisor: Hypervisor | None = None,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        types: Sequence[SoldType] = TYPES,
        room: Mapping[tuple[str, str], int] = ROOM,
        keys: Sequence[str] | None = None,
        throttled: bool = False,
        network: str = "10.19.0.0/16",
        public_network: str | None = "198.51.100.0/24",
    ) -> None:
        super().__init__(times, hypervisor=hypervisor, faults=faults, seed=seed)
        self.types, self.room = {each.name: each for each in types}, dict(room)
        self.ssh_keys: dict[str, dict[str, str]] = {}  # id -> the SSH key
        self._accepted = keys
        self._limits = (
            {"call": Limit(1, 1.0), "launch": Limit(1, 12.0), "launches": Limit(5, 60.0)} if throttled else {}
        )
        self._ids = Random(f"ids {seed}")  # noqa: S311 - reproducible by its seed
        self._private = addresses(network)
        self._public = None if public_network is None else addresses(public_network)

    # --- methods for tests --------------------------------------------------------------------------------------------

    def preempt(self, name: str) -> None:
        """Preempt a machine: it is powered off, and its state is ``preempted``."""
        self.store.stop(name, "preempted")

    def left(self) -> list[str]:
        """Return the names of everything that was created and still exists."""
        machines = [f"machine {each.id}" for each in self.machines() if each.state != "terminated"]
        return machines + [f"ssh key {each['name']}" for each in self.ssh_keys.values()]

    # --- its interface ------------------------------------------------------------------------------------------------

    def action(self, request: Request) -> str:
        return OPENAPI.action(request)

    def let_in(self, request: Request, action: str) -> None:
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not key or (self._accepted is not None and key not in self._accepted):
            raise Refused("global/invalid-api-key", "API key was invalid, expired, or deleted.", 401)
        for limit in ("call", "launch", "launches") if action == "launchInstance" else ("call",):
            if limit in self._limits and not self._limits[limit].allows(self.clock.now()):
                raise self.throttled()
        OPENAPI.check_request(request, action)

    def answer(self, request: Request, action: str) -> Reply:
        body, name = request.json(), request.path.rpartition("/")[2]
        match action:
            case "listInstanceTypes":
                data: Any = {each.name: self._sold(each) for each in self.types.values()}
            case "listInstances":
                data = [self._shown(each) for each in self._listed()]
            case "getInstance":
                data = self._shown(
                    self._known(name, [each for each in self.store.shown() if each.state != "terminated"])
                )
            case "launchInstance":
                data = {"instance_ids": [self._launch(body)]}
            case "terminateInstance":
                data = {"terminated_instances": self._terminate(body["instance_ids"])}
            case "listSSHKeys":
                data = list(self.ssh_keys.values())
            case "addSSHKey":
                data = self._add_key(body)
            case _:
                if self.ssh_keys.pop(name, None) is None:
                    raise Refused(UNKNOWN, "Specified SSH key does not exist.", 400)
                data = {}
        return Reply(200, {"data": data})

    def check(self, request: Request, action: str, reply: Reply) -> None:  # noqa: ARG002
        if action:
            OPENAPI.check_answer(action, reply)

    def refusal(self, refused: Refused) -> Reply:
        problem = {"code": refused.code, "message": refused.message, "suggestion": None}
        return Reply(refused.status, {"error": problem}, refused.headers)

    def throttled(self) -> Refused:
        return Refused("global/too-many-requests", "Too many requests.", 429)

    def unauthorized(self, action: str) -> Refused:  # noqa: ARG002
        return Refused("global/account-inactive", "Your account is inactive.", 403)

    # --- internals ----------------------------------------------------------------------------------------------------

    def _launch(self, body: Mapping[str, Any]) -> str:
        sold, region = self.types.get(body["instance_type_name"]), body["region_name"]
        if sold is None:
            raise Refused(UNKNOWN, f"Instance type {body['instance_type_name']} does not exist.", 404)
        (key,) = body["ssh_key_names"]
        named = [each for each in self.ssh_keys.values() if each["name"] == key]
        if not named:
            raise Refused(UNKNOWN, f"SSH key {key} does not exist.", 404)
        if self._left_of(sold.name, region) <= 0 or self._refused(sold.name, region):
            raise Refused(NO_ROOM, "Not enough capacity to fulfill launch request.")
        machine = self.store.create(
            FrontMachine(
                id=UUID(int=self._ids.getrandbits(128)).hex,
                type=sold.name,
                zone=region,
                hourly_usd=sold.cents / 100,
                private_ip=next(self._private),
                public_ip=None if self._public is None else next(self._public),
                user_data=body.get("user_data", ""),
                metadata={"public-keys/0/openssh-key": named[0]["public_key"]},
                labels={each["key"]: each["value"] for each in body.get("tags", ())},
                body=body,
            )
        )
        return machine.id

    def _refused(self, type: str, region: str) -> bool:  # noqa: A002
        living = sum(each.lives and (each.type, each.zone) == (type, region) for each in self.machines())
        return any(
            fault.type in (None, type)
            and fault.zone in (None, region)
            and living >= fault.machines
            and self.faults.happens(fault)
            for fault in self.faults.of(NoCapacity)
        )

    def _left_of(self, type: str, region: str) -> int:  # noqa: A002
        taken = [each for each in self.machines() if each.state != "terminated" and each.type == type]
        return self.room.get((type, region), 0) - sum(each.zone == region for each in taken)

    def _terminate(self, names: Sequence[str]) -> list[dict[str, Any]]:
        known = [each for each in self.machines() if each.state != "terminated"]
        for name in names:
            self._known(name, known)
        for name in names:
            self.store.end(name)
        return [self._shown(self.machine(name)) for name in names]

    def _listed(self) -> list[FrontMachine]:
        return [each for each in self.store.shown() if each.state != "terminated"]

    def _known(self, name: str, machines: Sequence[FrontMachine]) -> FrontMachine:
        machine = next((each for each in machines if each.id == name), None)
        if machine is None:
            raise Refused(UNKNOWN, "Specified instance does not exist.", 404)
        return machine

    def _add_key(self, body: Mapping[str, Any]) -> dict[str, str]:
        if any(each["name"] == body["name"] for each in self.ssh_keys.values()):
            raise Refused("global/duplicate", "An SSH key with this name exists already.")
        name = UUID(int=self._ids.getrandbits(128)).hex
        self.ssh_keys[name] = {"id": name, "name": body["name"], "public_key": body["public_key"]}
        return self.ssh_keys[name]

    def _sold(self, each: SoldType) -> dict[str, Any]:
        regions = [
            _region(region) for type_, region in self.room if type_ == each.name and self._left_of(type_, region) > 0
        ]
        return {"instance_type": _described(each), "regions_with_capacity_available": regions}

    def _shown(self, machine: FrontMachine) -> dict[str, Any]:
        booted = {} if machine.state == "pending" else {"ip": machine.public_ip or machine.private_ip}
        return {
            "id": machine.id,
            "name": machine.body.get("name", ""),
            "status": _STATUS[machine.state],
            "ssh_key_names": list(machine.body["ssh_key_names"]),
            "file_system_names": list(machine.body.get("file_system_names", ())),
            "region": _region(machine.zone),
            "instance_type": _described(self.types[machine.type]),
            "actions": {each: {"available": machine.lives} for each in _ACTIONS},
            "private_ip": machine.private_ip,
            "tags": [{"key": key, "value": value} for key, value in machine.labels.items()],
            **booted,
        }


def _described(each: SoldType) -> dict[str, Any]:
    return {
        "name": each.name,
        "description": f"{each.gpus}x {each.gpu}" if each.gpus else f"{each.vcpus}x CPU",
        "gpu_description": each.gpu,
        "price_cents_per_hour": each.cents,
        "specs": {
            "vcpus": each.vcpus,
            "memory_gib": each.memory_gib,
            "storage_gib": each.storage_gib,
            "gpus": each.gpus,
        },
    }


def _region(name: str) -> dict[str, str]:
    return {"name": name, "description": f"somewhere in {name}"}
