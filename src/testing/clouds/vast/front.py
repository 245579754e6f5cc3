"""`VastCloud`: Vast.ai on this computer, for tests."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from ....lazy_dataclass import dataclass
from ....providers.cloud import labels
from ..shared.faults import Fault, Market, NoCapacity
from ..shared.front import CloudFront, Refused, Reply, Request
from ..shared.hypervisor import Hypervisor
from ..shared.machines import FrontMachine, State, Times
from ..shared.published import Limit, Published, addresses
from ..shared.schema import Invalid

TAKEN, UNKNOWN = "no_such_ask", "no_such_instance"
HOURS = 24 * 30.0  # hours per month; the prices of storage are per month
TEXTS = 4096  # most characters of `args` and `onstart` together
EVERYWHERE = "0.0.0.0"  # noqa: S104 - no socket listens here
PAGE, MOST = 25, 64  # most instances in one response, and most offers in one response
_STATUS: Mapping[State, str | None] = {
    "pending": "loading",
    "running": "running",
    "stopped": "stopped",
    "shutting-down": "stopped",
    "terminated": None,
}
_LIMITS = {"searchOffers": (10, 60.0), "createInstance": (1, 4.5), "showInstances": (1, 1.0)}
_LIMITS |= dict.fromkeys(("destroyInstances", "destroyInstance"), (1, 3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rentable:
    """A machine that somebody rents out at the test cloud. Prices are in USD; only ``storage_usd`` is for its disk.

    Args:
        id: The id of the offer.
        gpu: The name of its GPUs.
        gpus: The number of GPUs.
        gpu_ram_mb: The memory of one GPU in MB.
        usd: The price of an hour on demand.
        min_bid: The lowest bid for an hour.
        storage_usd: The price of a GB of disk for a month.
        cores: The number of processors.
        ram_mb: The memory in MB.
        disk_gb: The disk in GB.
        place: The location, which ends with the code of the country.
        reliability: The share of past time, from 0 to 1, in which the machine was up.
        verified: Whether Vast.ai has verified the machine.
        cuda: The newest CUDA version that its driver supports.
        ports: The number of open ports.
        days: For how many days the machine is offered.
    """

    id: int
    gpu: str = "RTX 4090"
    gpus: int = 1
    gpu_ram_mb: int = 24564
    usd: float = 0.4
    min_bid: float = 0.2
    storage_usd: float = 0.15  # USD per GB and month
    cores: float = 16.0
    ram_mb: int = 65536
    disk_gb: float = 500.0
    place: str = "Texas, US"
    reliability: float = 0.99
    verified: bool = True
    cuda: float = 13.0
    ports: int = 100
    days: float = 30.0

    @property
    def kind(self) -> str:
        return f"{self.gpus}x {self.gpu}"

    @property
    def country(self) -> str:
        return self.place.rpartition(",")[2].strip()


MACHINES = (
    *(Rentable(id=1000 + number, usd=0.4 + number / 1000) for number in range(24)),
    *(Rentable(id=2000 + number, usd=0.45, min_bid=0.25, place="Bavaria, DE") for number in range(24)),
    *(
        Rentable(id=3000 + number, gpu="H100 SXM", gpus=8, gpu_ram_mb=81559, usd=16.0, min_bid=9.0, cores=192.0)
        for number in range(4)
    ),
    Rentable(id=4000, gpu="A100 PCIE", gpu_ram_mb=81920, usd=0.9, min_bid=0.6, reliability=0.9, place=", SE"),
    Rentable(id=4001, gpu="A100 SXM4", gpu_ram_mb=40960, usd=0.8, min_bid=0.5, verified=False, place=", SE"),
)


class VastCloud(CloudFront):
    """A test double of Vast.ai on this computer, for the length of a `with` block; see also `CloudFront`.

    Args:
        times: How long machines take to boot and stop, and how outdated the lists of machines are.
        hypervisor: Runs the machines. Default: no machine really runs.
        faults: The faults that are active from the beginning.
        seed: The same seed gives the same ids.
        offered: The machines that are rented out, each to one tenant.
        keys: The API keys that are accepted. Default: all.
        credit_usd: The credit of the account in USD.
        throttled: Whether requests are limited as by Vast.ai.
        network: The private addresses of the machines.
        public_network: The public addresses. None: the private ones are public.
        address: The address at which the test cloud listens.

    Raises:
        ExceptionGroup: As for `CloudFront`.
    """

    name = "vast"
    powered_off = "stopped"  # if a container's first process ends, Vast.ai does not delete the container

    def __init__(
        self,
        times: Times = Times(),  # noqa: B008 - the default is immutable
        *,
        hypervisor: Hypervisor | None = None,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        offered: Sequence[Rentable] = MACHINES,
        keys: Sequence[str] | None = None,
        credit_usd: float = 25.0,
        throttled: bool = False,
        network: str = "10.20.0.0/16",
        public_network: str | None = "198.51.100.0/24",
        address: str = "127.0.0.1",
    ) -> None:
        super().__init__(times, hypervisor=hypervisor, faults=faults, seed=seed, address=address)
        self.offered, self.credit_usd = {each.id: each for each in offered}, credit_usd
        self._accepted = keys
        self._limits = {name: Limit(*limit) for name, limit in _LIMITS.items()} if throttled else {}
        self._dice = Random(f"ids {seed}")  # noqa: S311 - reproducible by its seed
        self._created = 0
        self._private = addresses(network)
        self._public = None if public_network is None else addresses(public_network)

    # --- methods for tests --------------------------------------------------------------------------------------------

    def outbid(self, name: str) -> None:
        """Outbid an instance for another renter: it is stopped without notice, and its disk is still billed."""
        self.store.stop(name, "outbid")

    def left(self) -> list[str]:
        """Return the names of everything that was created and still exists."""
        return [f"instance {each.id}" for each in self.machines() if each.state != "terminated"]

    # --- its interface ------------------------------------------------------------------------------------------------

    def action(self, request: Request) -> str:
        return _document().action(request)

    def let_in(self, request: Request, action: str) -> None:
        key, name = request.headers.get("authorization", "").removeprefix("Bearer ").strip(), _last(request.path)
        of_instance = {each.metadata["CONTAINER_API_KEY"]: each.id for each in self.machines()}
        if key in of_instance:
            if action != "destroyInstance" or name != of_instance[key]:
                raise Refused("forbidden", "This key is for one instance alone.", 403)
        elif not key or (self._accepted is not None and key not in self._accepted):
            raise Refused("auth_error", "Invalid user key", 401)
        if action in self._limits and not self._limits[action].allows(self.clock.now()):
            raise self.throttled()
        _document().check_request(request, action)

    def answer(self, request: Request, action: str) -> Reply:
        body, name = request.json(), _last(request.path)
        match action:
            case "showUser":
                answer: dict[str, Any] = {"id": 4711, "email": "ada@example.org", "credit": self.credit_usd}
            case "searchOffers":
                answer = self._search(body)
            case "createInstance":
                answer = self._create(self._ask(int(name), body), body)
            case "showInstances":
                answer = self._page(request.query)
            case "destroyInstances":
                answer = self._destroy([str(each) for each in body["instance_ids"]], "instances_not_found")
            case _:
                answer = self._destroy([name], UNKNOWN)
        return Reply(200, answer)

    def check(self, request: Request, action: str, reply: Reply) -> None:  # noqa: ARG002
        if action:
            _document().check_answer(action, reply)

    def refusal(self, refused: Refused) -> Reply:
        return Reply(refused.status, {"success": False, "error": refused.code, "msg": refused.message}, refused.headers)

    def throttled(self) -> Refused:
        return Refused("too_many_requests", "API requests too frequent: endpoint threshold=4.5", 429)

    def unauthorized(self, action: str) -> Refused:
        return Refused("forbidden", f"This key has no permission for {action}.", 403)

    # --- offers -------------------------------------------------------------------------------------------------------

    def _search(self, query: Mapping[str, Any]) -> dict[str, Any]:
        market, disk_gb = query.get("type", "ondemand"), query.get("allocated_storage", 8.0)
        taken = {each.body["ask"] for each in self.store.shown() if each.state != "terminated"}
        offers = [
            offer
            for each in self.offered.values()
            if _fits(offer := self._offer(each, market, disk_gb, rented=each.id in taken), query)
        ]
        offers.sort(key=lambda offer: (offer["dph_total"], offer["id"]))
        most = min(query.get("limit", MOST), MOST)
        return {"offers": offers[:most], "truncated": len(offers) > most}

    def _offer(self, each: Rentable, market: str, disk_gb: float, *, rented: bool) -> dict[str, Any]:
        storage = each.storage_usd * disk_gb / HOURS
        base = each.min_bid if market == "bid" else each.usd
        return {
            "id": each.id,
            "ask_contract_id": each.id,
            "machine_id": each.id + 50000,
            "is_bid": market == "bid",
            "gpu_name": each.gpu,
            "num_gpus": each.gpus,
            "gpu_ram": each.gpu_ram_mb,
            "gpu_frac": 0.5,
            "cpu_arch": "amd64",
            "cpu_cores": each.cores * 2,
            "cpu_cores_effective": each.cores,
            "cpu_ram": each.ram_mb * 2,
            "cuda_max_good": each.cuda,
            "direct_port_count": each.ports,
            "disk_space": each.disk_gb,
            "dph_base": base,
            "dph_total": base + storage,
            "min_bid": each.min_bid,
            "storage_cost": each.storage_usd,
            "storage_total_cost": storage,
            "duration": each.days * 86400,
            "external": False,
            "geolocation": each.place,
            "reliability": each.reliability,
            "rentable": not rented,
            "rented": rented,
            "verification": "verified" if each.verified else "unverified",
        }

    # --- instances ----------------------------------------------------------------------------------------------------

    def _ask(self, number: int, body: Mapping[str, Any]) -> Rentable:
        if sum(map(len, [body.get("onstart") or "", *body.get("args", ())])) > TEXTS:
            raise Invalid("createInstance", f"args and onstart together have more than {TEXTS} characters")
        if self.credit_usd <= 0:
            raise Refused("insufficient_credit", "Your account lacks credit; see the billing page.", 400)
        offer = self.offered.get(number)
        if offer is None:
            raise Refused(
                "invalid_args", f"error 404/3603: no_such_ask Instance type by id {number} is not available.", 404
            )
        market: Market = "spot" if "price" in body else "on-demand"
        if (
            any(each.body["ask"] == number and each.state != "terminated" for each in self.machines())
            or self._full(offer, market)
            or body.get("price", offer.min_bid) < offer.min_bid
        ):
            raise Refused(TAKEN, f"error 410/3907: no_such_ask Instance type {number} is no longer available.", 410)
        return offer

    def _full(self, offer: Rentable, market: Market) -> bool:
        living = sum(each.lives and each.type == offer.kind for each in self.machines())
        return any(
            fault.type in (None, offer.kind)
            and fault.zone in (None, offer.country)
            and fault.market in (None, market)
            and living >= fault.machines
            and self.faults.happens(fault)
            for fault in self.faults.of(NoCapacity)
        )

    def _create(self, offer: Rentable, body: Mapping[str, Any]) -> dict[str, Any]:
        self._created += 1
        name, key = str(7_000_000 + self._created), f"{self._dice.getrandbits(256):064x}"
        private = next(self._private)
        public = private if self._public is None else next(self._public)
        ports = [each.split()[1].partition(":")[2] for each in body.get("env", {}) if each.startswith("-p ")]
        mapped = {port: 40_000 + self._created * 8 + place for place, port in enumerate(ports)}
        env = {name: value for name, value in body.get("env", {}).items() if not name.startswith("-")}
        storage = offer.storage_usd * body.get("disk", 8.0) / HOURS
        self.store.create(
            FrontMachine(
                id=name,
                type=offer.kind,
                zone=offer.country,
                hourly_usd=body.get("price", offer.usd) + storage,
                private_ip=private,
                public_ip=public if self._public is not None else None,
                market="spot" if "price" in body else "on-demand",
                user_data=shlex.join([body.get("onstart") or "/bin/sh", *body.get("args", ())]),
                metadata={
                    **env,
                    "CONTAINER_ID": name,
                    "CONTAINER_API_KEY": key,
                    "VAST_CONTAINERLABEL": f"C.{name}",
                    "PUBLIC_IPADDR": public,
                    **{f"VAST_TCP_PORT_{port}": str(at) for port, at in mapped.items()},
                },
                labels=labels.of_text(body.get("label", "")),
                body={**body, "ask": offer.id, "mapped": mapped},
            )
        )
        return {"success": True, "new_contract": int(name), "instance_api_key": key}

    def _page(self, query: Mapping[str, str]) -> dict[str, Any]:
        after, limit = int(query.get("after_token", "0")), min(int(query.get("limit", "5")), PAGE)
        listed = [each for each in self.store.shown() if each.state != "terminated"]
        rest = [each for each in sorted(listed, key=lambda each: int(each.id)) if int(each.id) > after]
        page = rest[:limit]
        return {
            "success": True,
            "instances_found": len(page),
            "total_instances": len(listed),
            "next_token": page[-1].id if len(rest) > limit else None,
            "instances": [self._shown(each) for each in page],
        }

    def _shown(self, each: FrontMachine) -> dict[str, Any]:
        offer, runs = self.offered[each.body["ask"]], each.state == "running"
        ports = {
            f"{port}/tcp": [{"HostIp": EVERYWHERE, "HostPort": str(at)}] for port, at in each.body["mapped"].items()
        }
        status = "exited" if each.reason == "powered-off" else _STATUS[each.state]
        return {
            "id": int(each.id),
            "actual_status": status,
            "cur_state": "running" if each.lives else "stopped",
            "intended_status": "running",
            "label": each.body.get("label"),
            "image_uuid": each.body["image"],
            "image_runtype": each.body.get("runtype", "ssh"),
            "status_msg": None,
            "public_ipaddr": each.public_ip or each.private_ip,
            "machine_id": offer.id + 50000,
            "start_date": each.created,
            "gpu_name": offer.gpu,
            "num_gpus": offer.gpus,
            "gpu_ram": offer.gpu_ram_mb,
            "cpu_cores_effective": offer.cores,
            "ports": ports if runs else None,
            "geolocation": offer.place,
            "is_bid": each.market == "spot",
            "min_bid": offer.min_bid,
            "dph_total": each.hourly_usd,
        }

    def _destroy(self, names: Sequence[str], unknown: str) -> dict[str, Any]:
        known = {each.id for each in self.machines() if each.state != "terminated"}
        if not known.intersection(names):
            raise Refused(unknown, f"Instance {', '.join(names)} not found.", 404)
        for name in known.intersection(names):
            self.store.end(name)
        return {"success": True}


def _fits(offer: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    """Return whether an offer passes the filters of a search. Some filters differ in form from the offer's field."""
    has = {
        **offer,
        "verified": offer["verification"] == "verified",
        "geolocation": offer["geolocation"].rpartition(",")[2].strip(),
    }
    return all(_holds(has[name], filters) for name, filters in query.items() if isinstance(filters, dict))


def _holds(has: Any, filters: Mapping[str, Any]) -> bool:
    checks: dict[str, Callable[[Any], bool]] = {
        "eq": lambda wanted: bool(has == wanted),
        "neq": lambda wanted: bool(has != wanted),
        "gt": lambda wanted: bool(has > wanted),
        "gte": lambda wanted: bool(has >= wanted),
        "lt": lambda wanted: bool(has < wanted),
        "lte": lambda wanted: bool(has <= wanted),
        "in": lambda wanted: has in wanted,
        "notin": lambda wanted: has not in wanted,
    }
    return all(checks[name](wanted) for name, wanted in filters.items())


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


@cache
def _document() -> Published:
    return Published(Path(__file__).with_name("openapi.json"))
