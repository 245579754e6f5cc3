"""The test cloud for Hyperstack. It checks each request and each response against an extract of Hyperstack's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from ....lazy_dataclass import dataclass
from ..shared.faults import Fault, NoCapacity
from ..shared.front import CloudFront, Refused, Reply, Request
from ..shared.hypervisor import Hypervisor
from ..shared.machines import FrontMachine, State, Times
from ..shared.published import Published, addresses

PUBLISHED = Published(Path(__file__).with_name("openapi.json"))
# State -> Hyperstack's name of it. A deleted machine has no name here, because it is no longer listed.
_STATUS: Mapping[State, str] = {
    "pending": "BUILD",
    "running": "ACTIVE",
    "stopped": "SHUTOFF",
    "shutting-down": "DELETING",
}


@dataclass(frozen=True, slots=True)
class FlavorSpec:
    """A flavor (machine type) of the test cloud, and the regions that have it."""

    name: str
    gpu: str
    gpu_count: int
    cpu: int
    ram: float
    regions: tuple[str, ...] = ("CANADA-1", "NORWAY-1")
    disk: int = 100


FLAVORS = (
    FlavorSpec("n1-cpu-small", "", 0, 4, 4.0),
    FlavorSpec("n3-RTX-A6000x1", "RTX-A6000", 1, 28, 58.0),
    FlavorSpec("n3-RTX-A6000x1-spot", "RTX-A6000-spot", 1, 28, 58.0, ("CANADA-1",)),
    FlavorSpec("n3-L40x1", "L40", 1, 28, 58.0, ("CANADA-1",)),
    FlavorSpec("n3-A100x8", "A100-80G-PCIe", 8, 252, 1440.0, ("NORWAY-1",), disk=400),
    FlavorSpec("n3-H100x8-NVLink", "H100-80G-PCIe-NVLink", 8, 252, 1440.0, disk=400),
)
PRICES = {  # USD per hour, from the price list of August 2026, except for the two prices of machines without GPUs
    "RTX-A6000": 0.5,
    "RTX-A6000-spot": 0.4,
    "L40": 1.0,
    "A100-80G-PCIe": 1.35,
    "H100-80G-PCIe-NVLink": 2.6,
    "vCPU (cpu-only-flavors)": 0.05,
    "RAM (cpu-only-flavors)": 0.01,
}
ENVIRONMENTS = {"default-CANADA-1": "CANADA-1", "default-NORWAY-1": "NORWAY-1"}
IMAGES = ("Ubuntu Server 22.04 LTS R535 CUDA 12.2", "Ubuntu Server 24.04 LTS R570 CUDA 12.8", "Debian 12")


class HyperstackCloud(CloudFront):
    """A test double of Hyperstack on this computer, for the length of a `with` block; see also `CloudFront`.

    Args:
        times: How long machines take to boot and stop, and how outdated the lists of machines are.
        hypervisor: Runs the machines. Default: no machine really runs.
        faults: The faults that are active from the beginning.
        seed: The same seed gives the same ids.
        flavors: The flavors (machine types) that the test cloud has.
        environments: The environments, with their regions.
        room: (flavor, region) -> the most machines there. Default: any number.
        page_size: The most entries on one page of a list, however many are requested.
        keys: The API keys that are accepted. Default: all.
        network: The private addresses of the machines.
        public_network: The public addresses. None: the private ones are public.

    Raises:
        ExceptionGroup: As for `CloudFront`.
    """

    name = "hyperstack"
    powered_off: ClassVar[State] = "stopped"

    def __init__(
        self,
        times: Times = Times(),  # noqa: B008 - the default is immutable
        *,
        hypervisor: Hypervisor | None = None,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        flavors: Sequence[FlavorSpec] = FLAVORS,
        environments: Mapping[str, str] = ENVIRONMENTS,
        room: Mapping[tuple[str, str], int] | None = None,
        page_size: int = 100,
        keys: Sequence[str] | None = None,
        network: str = "10.0.0.0/16",
        public_network: str | None = "198.51.0.0/16",
    ) -> None:
        super().__init__(times, hypervisor=hypervisor, faults=faults, seed=seed)
        self.flavors = {each.name: each for each in flavors}
        self.environments, self.room, self.page_size = dict(environments), dict(room or {}), page_size
        self._private, self._public = addresses(network), addresses(public_network or network)
        self._same_address = public_network is None
        self.key_pairs: dict[int, dict[str, Any]] = {}
        self._accepted = keys
        self._ids = Random(seed)  # noqa: S311 - reproducible by its seed

    def take_back(self, name: str) -> None:
        """Preempt a spot machine: delete it without notice."""
        self.store.end(name, "taken back")

    def left(self) -> list[str]:
        """Return the ids of everything that was created and still exists."""
        return [*(each.id for each in self.machines() if each.state != "terminated"), *map(str, self.key_pairs)]

    # --- CloudFront ---------------------------------------------------------------------------------------------------

    def action(self, request: Request) -> str:
        return PUBLISHED.action(request)

    def let_in(self, request: Request, action: str) -> None:
        key = request.headers.get("api_key", "")
        if not key or (self._accepted is not None and key not in self._accepted):
            raise Refused("unauthorized", "Invalid API key", 401)
        PUBLISHED.check_request(request, action)

    def answer(self, request: Request, action: str) -> Reply:
        answers: Mapping[str, Callable[[Request], Any]] = {
            "List_VMs": lambda request: self._page(request, "instances", self._shown()),
            "Create_VMs": self._create,
            "Get_VM": lambda request: _ok({"instance": self._instance(self._named(request))}),
            "Delete_VM": self._delete,
            "List_Flavors": self._flavors,
            "Get_pricebook": lambda request: [{"name": name, "value": usd} for name, usd in PRICES.items()],  # noqa: ARG005
            "List_environments": self._environments,
            "List_Images": self._images,
            "List_key_pairs": lambda request: self._page(request, "keypairs", list(self.key_pairs.values())),
            "Import_key_pair": self._import_key_pair,
            "Delete_key_pair": self._delete_key_pair,
        }
        return Reply(200, answers[action](request))

    def check(self, request: Request, action: str, reply: Reply) -> None:  # noqa: ARG002
        # Hyperstack reports a refusal in the body, whatever the HTTP status.
        refused = isinstance(reply.body, dict) and reply.body.get("status") is False
        PUBLISHED.check_answer(action, replace(reply, status=400) if refused else reply)

    def refusal(self, refused: Refused) -> Reply:
        body = {"status": False, "message": refused.message, "error_reason": refused.code}
        return Reply(refused.status, body, refused.headers)

    def throttled(self) -> Refused:
        return Refused("bad_request", "Too Many Requests", 429)

    def unauthorized(self, action: str) -> Refused:
        return Refused("forbidden", f"{action} is not permitted for this user", 403)

    # --- operations ---------------------------------------------------------------------------------------------------

    def _page(self, request: Request, name: str, entries: Sequence[object]) -> Any:
        size = min(int(request.query.get("pageSize", "10")), self.page_size)
        begin = (int(request.query.get("page", "1")) - 1) * size
        shown = list(entries[begin : begin + size])
        return _ok({name: shown, "count": len(entries), "page": begin // size + 1, "page_size": size})

    def _shown(self) -> list[Any]:
        return [self._instance(each) for each in self.store.shown() if each.state != "terminated"]

    def _instance(self, each: FrontMachine) -> dict[str, Any]:
        flavor = self.flavors[each.type]
        return {
            "id": int(each.id),
            "name": each.body["name"],
            "status": _STATUS[each.state],
            "environment": {"name": each.zone, "region": self.environments[each.zone]},
            "flavor": {"name": flavor.name, "gpu": flavor.gpu, "gpu_count": flavor.gpu_count}
            | {"cpu": flavor.cpu, "ram": flavor.ram, "disk": flavor.disk},
            "fixed_ip": each.private_ip,
            "floating_ip": each.public_ip if each.state == "running" else None,
            "labels": list(each.body["labels"]),
            "created_at": datetime.fromtimestamp(each.created, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        }

    def _create(self, request: Request) -> Any:
        body = request.json()
        flavor, zone = self.flavors.get(body["flavor_name"]), body["environment_name"]
        if zone not in self.environments:
            raise Refused("not_found", f"Environment {zone} does not exist", 404)
        region = self.environments[zone]
        if flavor is None or region not in flavor.regions:
            raise Refused("not_found", f"Flavor {body['flavor_name']} not found", 404)
        if (body["key_name"], {"name": zone}) not in [(p["name"], p["environment"]) for p in self.key_pairs.values()]:
            raise Refused("not_found", f"Keypair {body['key_name']} not found", 404)
        if body["image_name"] not in IMAGES:
            raise Refused("not_found", f"Image {body['image_name']} not found", 404)
        if any(" " in each for each in body["labels"]):
            raise Refused("bad_request", "labels are divided by spaces")
        if body["count"] != 1:
            raise Refused("bad_request", "the test cloud makes one machine in a call")
        if self._is_full(flavor, zone, region):
            raise Refused("bad_request", f"Not enough stock of {flavor.name} in {region}")
        private = next(self._private)
        machine = FrontMachine(
            id=str(self._new_id()),
            type=flavor.name,
            zone=zone,
            hourly_usd=_usd(flavor),
            private_ip=private,
            public_ip=private if self._same_address else next(self._public),
            market="spot" if flavor.gpu.endswith("-spot") else "on-demand",
            user_data=body["user_data"],
            body=body,
        )
        return _ok({"instances": [self._instance(self.store.create(machine))]})

    def _is_full(self, flavor: FlavorSpec, zone: str, region: str) -> bool:
        living = [each for each in self.machines("pending", "running", "stopped") if each.type == flavor.name]
        there = [each for each in living if self.environments[each.zone] == region]
        if len(there) >= self.room.get((flavor.name, region), len(there) + 1):
            return True
        return any(
            fault.type in (None, flavor.name)
            and fault.zone in (None, zone)
            and len([each for each in living if fault.zone in (None, each.zone)]) >= fault.machines
            and self.faults.happens(fault)
            for fault in self.faults.of(NoCapacity)
        )

    def _named(self, request: Request) -> FrontMachine:
        name = request.path.rpartition("/")[2]
        matches = [each for each in self.machines(*_STATUS) if each.id == name]
        if not matches:
            raise Refused("not_found", f"Virtual machine {name} does not exist", 404)
        return matches[0]

    def _delete(self, request: Request) -> Any:
        self.store.end(self._named(request).id, "deleted")
        return _ok({})

    def _flavors(self, request: Request) -> Any:
        wanted = request.query.get("region")
        groups = [
            {"gpu": each.gpu, "region_name": region, "flavors": [self._flavor(each, region)]}
            for each in self.flavors.values()
            for region in each.regions
            if wanted in (None, region)
        ]
        return _ok({"data": groups})

    def _flavor(self, each: FlavorSpec, region: str) -> dict[str, Any]:
        facts = {"name": each.name, "gpu": each.gpu, "gpu_count": each.gpu_count, "cpu": each.cpu, "ram": each.ram}
        room = self.room.get((each.name, region), 1)
        return {**facts, "disk": each.disk, "region_name": region, "stock_available": room > 0}

    def _environments(self, request: Request) -> Any:
        named = enumerate(self.environments.items(), 1)
        entries = [{"id": number, "name": name, "region": region} for number, (name, region) in named]
        return self._page(request, "environments", entries)

    def _images(self, request: Request) -> Any:
        region = request.query["region"]
        images = [{"id": number, "name": name, "region_name": region} for number, name in enumerate(IMAGES, 1)]
        return _ok({"images": [{"region_name": region, "type": "Ubuntu", "images": images}]})

    def _import_key_pair(self, request: Request) -> Any:
        body = request.json()
        if body["environment_name"] not in self.environments:
            raise Refused("not_found", f"Environment {body['environment_name']} does not exist", 404)
        if body["name"] in {pair["name"] for pair in self.key_pairs.values()}:
            raise Refused("already_exist", f"Keypair {body['name']} already exists", 409)
        number, there = self._new_id(), {"name": body["environment_name"]}
        pair = {"id": number, "name": body["name"], "public_key": body["public_key"], "environment": there}
        self.key_pairs[number] = pair
        return _ok({"keypair": pair})

    def _delete_key_pair(self, request: Request) -> Any:
        if self.key_pairs.pop(int(request.path.rpartition("/")[2]), None) is None:
            raise Refused("not_found", "Keypair does not exist", 404)
        return _ok({})

    def _new_id(self) -> int:
        return self._ids.randrange(100_000, 1_000_000)


def _ok(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": True, "message": "done", **facts}


def _usd(flavor: FlavorSpec) -> float:
    if flavor.gpu:
        return PRICES[flavor.gpu] * flavor.gpu_count
    return PRICES["vCPU (cpu-only-flavors)"] * flavor.cpu + PRICES["RAM (cpu-only-flavors)"] * flavor.ram
