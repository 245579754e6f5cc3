"""`GCE`: Google Compute Engine on this computer, for tests of HTTP clients of Compute Engine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from ipaddress import ip_network
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple

from ....lazy_dataclass import dataclass
from ..shared.extract import Extract
from ..shared.faults import NoCapacity
from ..shared.front import CloudFront, Refused, Reply, Request
from ..shared.machines import ENDED, FrontMachine, State, Times
from ..shared.schema import Invalid
from .launches import check_launch, has, kind_of
from .operations import Operations
from .zones import GPUS, REGIONS, types_in

PROJECT = "test-project"
COMPUTE = Extract(Path(__file__).with_name("compute.json"), operations="methods")
TOKEN = "ya29.test"  # noqa: S105 - a token of the test cloud
STATUS: Mapping[State, str] = {
    "pending": "STAGING", "running": "RUNNING", "stopped": "TERMINATED", "shutting-down": "STOPPING"
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A limit of the project: at most ``machines`` machines of types that begin with ``types`` in a region."""

    name: str
    machines: int
    types: str = ""
    times: int | None = None
    after: int = 0


class Call(NamedTuple):
    """One request to Compute Engine. ``parts`` are the variable parts of its path."""

    parts: Mapping[str, str]
    request: Request


class GCE(CloudFront):
    """A test double of Compute Engine, for one project, on this computer.

    Its requests and responses are checked against Google's published schema (``compute.json``).

    Args:
        times: How long machines take to boot and stop, and how outdated the lists of machines are.
        op_s: Seconds until an operation is done.
        page: The number of items on a page of a list.
        subnet: The private addresses of the machines.
        options: Further options, as of `CloudFront`: ``hypervisor``, ``faults``, ``seed`` and ``address``.
    """

    name: ClassVar[str] = "gcp"
    powered_off: ClassVar[State] = "stopped"

    def __init__(
        self,
        times: Times = Times(),  # noqa: B008 - the default is immutable
        *,
        op_s: float = 0.02,
        page: int = 500,
        subnet: str = "172.31.0.0/16",
        **options: Any,
    ) -> None:
        super().__init__(times, **options)
        self.op_s, self.page = op_s, page
        self.firewalls: dict[str, dict[str, Any]] = {}
        self.tokens = 0  # how many access tokens were requested
        self._noticed: set[str] = set()  # machines that are being preempted
        self._addresses = islice(ip_network(subnet).hosts(), 20, None)

    def __enter__(self) -> GCE:
        super().__enter__()
        self._luck = Random(f"gce {self.seed}")  # noqa: S311 - reproducible by its seed
        self.operations = Operations(self.clock, self.op_s)
        return self

    # --- methods for tests --------------------------------------------------------------------------------------------

    def credentials(self, folder: Path) -> Path:
        """Write the key of a service account, whose access tokens come from this test cloud. Return its file."""
        file = folder / "service-account.json"
        key = {"type": "service_account", "project_id": PROJECT, "private_key_id": "1", "private_key": _private_key()}
        key |= {"client_email": f"tester@{PROJECT}.example", "token_uri": f"{self.endpoint_url}/token"}
        file.write_text(json.dumps(key))
        return file

    def preempt(self, name: str, notice_s: float = 30.0) -> None:
        """Preempt a spot machine: it gets its notice and is STOPPING at once, and is deleted ``notice_s`` later."""
        self._noticed.add(name)
        self.hypervisor.metadata(name, "instance/preempted", "TRUE")
        self.clock.after(notice_s, partial(self._taken, name, "compute.instances.preempted"))

    def fail_host(self, name: str) -> None:
        """Make the host of a machine fail, so that the machine is stopped."""
        with self.lock:
            self.store.stop(name, "compute.instances.hostError")

    # --- the protocol -------------------------------------------------------------------------------------------------

    def action(self, request: Request) -> str:
        return "token" if request.path == "/token" else COMPUTE.action(request.method, request.path)

    def let_in(self, request: Request, action: str) -> None:
        if action == "token":
            return
        if not action:
            raise Invalid(request.path, f"Compute Engine has no {request.method} here that the extract knows")
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise Refused("authError", "Invalid Credentials", 401)
        method = COMPUTE.operations[action]
        known = {**method["parameters"], **COMPUTE.document["parameters"]}
        parameters = {**COMPUTE.parts(action, request.path), **request.query}
        for key, value in parameters.items():
            if key not in known:
                raise Invalid(f"{action}?{key}", "there is no such parameter")
            pattern = known[key].get("pattern")
            if pattern and not re.fullmatch(pattern, value):
                raise Invalid(f"{action}?{key}", f"{value!r} does not match {pattern}")
        if method["request"] is not None:
            COMPUTE.schemas.check(method["request"], request.json())
        elif request.body:
            raise Invalid(action, "it takes no body")
        if parameters["project"] != PROJECT:
            raise Refused("notFound", f"The resource 'projects/{parameters['project']}' was not found", 404)

    def answer(self, request: Request, action: str) -> Reply:
        if action == "token":
            self.tokens += 1
            return Reply(body={"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})
        known = self.operations.of_request(request.query.get("requestId", ""))
        if known is not None:
            return Reply(body=known)
        verb = _VERBS[action]
        return Reply(body=verb(self, Call(COMPUTE.parts(action, request.path), request)))

    def check(self, request: Request, action: str, reply: Reply) -> None:  # noqa: ARG002
        if action in {"", "token"} or reply.status >= 400:
            return
        COMPUTE.schemas.check(COMPUTE.operations[action]["response"], reply.body)

    def refusal(self, refused: Refused) -> Reply:
        detail = {"message": refused.message, "domain": "global", "reason": refused.code}
        error: dict[str, Any] = {"code": refused.status, "message": refused.message, "errors": [detail]}
        if refused.code.isupper():  # the reasons of google.rpc.ErrorInfo are in upper case
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": refused.code}]
            error["errors"] = [detail | {"reason": "forbidden" if refused.status == 403 else "badRequest"}]
        return Reply(refused.status, {"error": error})

    def throttled(self) -> Refused:
        return Refused("rateLimitExceeded", "Quota exceeded for quota metric 'Queries' of the service", 403)

    def unauthorized(self, action: str) -> Refused:
        permission = f"compute.{action.replace('regionInstances.bulkInsert', 'instances.create')}"
        return Refused("IAM_PERMISSION_DENIED", f"Required '{permission}' permission for 'projects/{PROJECT}'", 403)

    # --- lists --------------------------------------------------------------------------------------------------------

    def _listed(self, kind: str, items: Sequence[Any], request: Request) -> dict[str, Any]:
        """Return one page of a list. The page token is the index of the page's first item."""
        at = int(request.query.get("pageToken") or 0)
        most = min(self.page, int(request.query.get("maxResults") or 500))
        more = {"nextPageToken": str(at + most)} if at + most < len(items) else {}
        return {"kind": kind, "id": "list", "items": list(items[at : at + most]), **more}

    def _region(self, call: Call) -> dict[str, Any]:
        zones = [self._url(f"zones/{zone}") for zone in _known(REGIONS, call.parts["region"], "regions")]
        return {"kind": "compute#region", "name": call.parts["region"], "status": "UP", "zones": zones}

    def _types(self, call: Call) -> dict[str, Any]:
        return self._listed("compute#machineTypeList", types_in(call.parts["zone"]), call.request)

    def _gpus(self, call: Call) -> dict[str, Any]:
        types = [{"kind": "compute#acceleratorType", "name": each} for each in GPUS.get(call.parts["zone"], ())]
        return self._listed("compute#acceleratorTypeList", types, call.request)

    def _instances(self, call: Call) -> dict[str, Any]:
        fits = _label_filter(call.request.query.get("filter", ""))
        shown = [each for each in self.store.shown() if each.state != "terminated" and fits(each.labels)]
        page = self._listed("compute#instanceAggregatedList", sorted(shown, key=lambda each: each.id), call.request)
        by_zone: dict[str, Any] = {f"zones/{zone}": {} for zones in REGIONS.values() for zone in zones}
        for each in page["items"]:
            by_zone[f"zones/{each.zone}"].setdefault("instances", []).append(self._instance(each))
        return page | {"items": by_zone}

    def _rules(self, call: Call) -> dict[str, Any]:
        match = re.fullmatch(r'name eq "([\w*.-]+)"', call.request.query.get("filter", 'name eq ".*"'))
        if match is None:
            raise Invalid("firewalls.list?filter", f"{call.request.query['filter']!r} is not understood here")
        rules = [each for name, each in sorted(self.firewalls.items()) if re.fullmatch(match[1], name)]
        return self._listed("compute#firewallList", rules, call.request)

    def _zone_operations(self, call: Call) -> dict[str, Any]:
        """Return the operations of a zone: those that clients requested, and those by which Google ended machines."""
        done = self.operations.of_zone(call.parts["zone"])
        ends = [self._end(each) for each in self.store.all() if each.zone == call.parts["zone"] and each.reason]
        condition = call.request.query.get("filter", "")
        target = re.fullmatch(r'\(targetLink eq "\.\*/instances/([\w-]+)"\)', condition)
        group = re.fullmatch(r'operationGroupId eq "([\w-]+)"', condition)
        if target:
            matches = [
                each for each in [*done, *ends] if each.get("targetLink", "").endswith(f"/instances/{target[1]}")
            ]
        elif group:
            matches = [each for each in done if each.get("operationGroupId") == group[1]]
        else:
            raise Invalid("zoneOperations.list?filter", f"{condition!r} is not understood here")
        return self._listed("compute#operationList", matches, call.request)

    def _end(self, machine: FrontMachine) -> dict[str, Any]:
        name, user = machine.id.partition(".")[0], "system@google.com" if "." in machine.reason else ""
        kind = {"powered-off": "compute.instances.guestTerminate", "time-limit": "delete"}.get(machine.reason)
        if machine.reason == "time-limit":
            user = "system"
        target = {"targetLink": self._url(f"zones/{machine.zone}/instances/{name}"), "user": user or "tester"}
        when = self.operations.date(0.0)
        return {
            "name": f"end-{name}",
            "operationType": kind or machine.reason,
            "status": "DONE",
            "insertTime": when,
        } | target

    def _operation(self, call: Call) -> dict[str, Any]:
        operation = self.operations.get(call.parts["operation"])
        if operation is None:
            raise Refused("notFound", f"The resource '{call.request.path}' was not found", 404)
        return operation

    # --- firewall rules -----------------------------------------------------------------------------------------------

    def _make_rule(self, call: Call) -> dict[str, Any]:
        rule = call.request.json()
        if rule["name"] in self.firewalls:
            raise Refused("alreadyExists", f"The resource 'firewalls/{rule['name']}' already exists", 409)
        self.firewalls[rule["name"]] = {"kind": "compute#firewall", **rule}
        return self._began("insert", call.request, target=f"global/firewalls/{rule['name']}")

    def _delete_rule(self, call: Call) -> dict[str, Any]:
        if self.firewalls.pop(call.parts["firewall"], None) is None:
            raise Refused("notFound", f"The resource 'firewalls/{call.parts['firewall']}' was not found", 404)
        return self._began("delete", call.request, target=f"global/firewalls/{call.parts['firewall']}")

    # --- machines -----------------------------------------------------------------------------------------------------

    def _get(self, call: Call) -> dict[str, Any]:
        return self._instance(self._existing(call.parts))

    def _delete(self, call: Call) -> dict[str, Any]:
        machine = self._existing(call.parts)
        self.store.end(machine.id, "delete")
        target = f"zones/{call.parts['zone']}/instances/{call.parts['instance']}"
        return self._began("delete", call.request, target=target, zone=call.parts["zone"])

    def _existing(self, parts: Mapping[str, str]) -> FrontMachine:
        try:
            machine = self.store.get(f"{parts['instance']}.{parts['zone']}")
        except KeyError:
            machine = None
        if machine is None or machine.state == "terminated":
            reason = (
                f"The resource 'projects/{PROJECT}/zones/{parts['zone']}/instances/{parts['instance']}' was not found"
            )
            raise Refused("notFound", reason, 404)
        return machine

    def _bulk_insert(self, call: Call) -> dict[str, Any]:
        body, region = call.request.json(), call.parts["region"]
        zones, properties = _known(REGIONS, region, "regions"), body["instanceProperties"]
        check_launch(body)
        names, preferences = list(body["perInstanceProperties"]), body.get("locationPolicy", {}).get("locations", {})
        denied = {zone for zone, its in preferences.items() if its.get("preference") == "DENY"}
        allowed = [zone for zone in zones if f"zones/{zone}" not in denied]
        kind, gpu = kind_of(properties)
        having = [zone for zone in allowed if has(zone, properties["machineType"], gpu)]
        if not having:
            raise Refused("invalid", f"Machine type {properties['machineType']} is not in the zones of {region}", 400)
        living = {each.id.partition(".")[0] for each in self.store.all() if each.state != "terminated"}
        if living.intersection(names):
            raise Refused("alreadyExists", f"The resource '{min(living.intersection(names))}' already exists", 409)
        market: Literal["spot", "on-demand"] = (
            "spot" if properties["scheduling"].get("provisioningModel") == "SPOT" else "on-demand"
        )
        zones_used: list[str] = []
        why: dict[str, dict[str, Any]] = {}
        for name in names[: int(body["count"])]:
            zone = next((each for each in having if self._room(each, kind, market, why)), None)
            if zone is None:
                break
            zones_used.append(zone)
            self._put(name, zone, kind, market, properties)
        return self._bulk_operation(
            call.request, region, len(names), zones_used, why, int(body.get("minCount", body["count"]))
        )

    def _bulk_operation(  # noqa: PLR0917
        self, request: Request, region: str, target: int, zones_used: list[str], why: Mapping[str, Any], least: int
    ) -> dict[str, Any]:
        group = f"group-{self._luck.getrandbits(48):x}"
        status = {
            f"zones/{zone}": {"createdVmCount": zones_used.count(zone), "targetVmCount": target, "status": "DONE"}
            for zone in dict.fromkeys(zones_used)
        }
        more: dict[str, Any] = {
            "operationGroupId": group,
            "instancesBulkInsertOperationMetadata": {"perLocationStatus": status},
        }
        if len(zones_used) < least:
            reason = f"Requested minimum count of {least} VMs could not be created."
            more["error"] = {"errors": [{"code": "VM_MIN_COUNT_NOT_REACHED", "message": reason}]}
            for zone, error in why.items():
                failed = {"operationGroupId": group, "error": {"errors": [error]}}
                self._began("insert", None, target=f"zones/{zone}/instances/none", zone=zone, more=failed)
        return self._began("bulkInsert", request, target=f"regions/{region}", region=region, more=more)

    def _room(self, zone: str, kind: str, market: str, why: dict[str, dict[str, Any]]) -> bool:
        """Return whether one more machine fits into a zone. If not, ``why`` gets the error for the machine."""
        region = zone.rpartition("-")[0]
        living = [each for each in self.store.all() if each.state != "terminated"]
        for quota in self.faults.of(Quota):
            used = sum(each.type.startswith(quota.types) and each.zone.startswith(region) for each in living)
            if kind.startswith(quota.types) and used >= quota.machines and self.faults.happens(quota):
                info = {
                    "metricName": "compute.googleapis.com/x",
                    "limitName": quota.name,
                    "limit": float(quota.machines),
                }
                detail = {"quotaInfo": info | {"dimensions": {"region": region}}}
                reason = f"Quota '{quota.name}' exceeded.  Limit: {quota.machines:.1f} in region {region}."
                why[zone] = {"code": "QUOTA_EXCEEDED", "message": reason, "errorDetails": [detail]}
                return False
        for fault in self.faults.of(NoCapacity):
            wanted = fault.type in (None, kind) and fault.zone in (None, zone) and fault.market in (None, market)
            used = sum(
                fault.type in (None, each.type)
                and fault.zone in (None, each.zone)
                and fault.market in (None, each.market)
                for each in living
            )
            if wanted and used >= fault.machines and self.faults.happens(fault):
                reason = f"The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources available."
                why[zone] = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "message": reason}
                return False
        return True

    def _put(
        self, name: str, zone: str, kind: str, market: Literal["spot", "on-demand"], body: Mapping[str, Any]
    ) -> None:
        number = len(self.store.all()) + 1
        metadata = {each["key"]: each["value"] for each in body.get("metadata", {}).get("items", ())}
        public = bool(body["networkInterfaces"][0].get("accessConfigs"))
        machine = FrontMachine(
            id=f"{name}.{zone}",
            type=kind,
            zone=zone,
            hourly_usd=1.0,
            private_ip=str(next(self._addresses)),
            public_ip=f"198.51.100.{number % 250 + 4}" if public else None,
            market=market,
            user_data=metadata.get("user-data", ""),
            metadata={"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"},
            labels=body.get("labels", {}),
            body=body,
        )
        self.store.create(machine)
        run = body["scheduling"].get("maxRunDuration")
        if run and body["scheduling"].get("instanceTerminationAction") == "DELETE":
            self.clock.after(int(run["seconds"]), partial(self._taken, machine.id, "time-limit"))

    def _taken(self, name: str, reason: str) -> None:
        """End a machine as Google does, with a reason.

        A stopped machine is not ended, because Google does not limit the run time of stopped machines (page "Limit the
        run time of a VM").
        """
        with self.lock:
            if self.store.get(name).state not in (*ENDED, "stopped"):
                self.store.end(name, reason)

    def _instance(self, machine: FrontMachine) -> dict[str, Any]:
        name, body = machine.id.partition(".")[0], machine.body
        interface: dict[str, Any] = {"name": "nic0", "network": self._url("global/networks/default")}
        interface |= {"networkIP": machine.private_ip} if machine.state != "pending" else {}
        if machine.public_ip:
            access = {"type": "ONE_TO_ONE_NAT", "name": "External NAT"}
            interface["accessConfigs"] = [access | ({"natIP": machine.public_ip} if machine.state != "pending" else {})]
        return {
            "kind": "compute#instance",
            "name": name,
            "zone": self._url(f"zones/{machine.zone}"),
            "machineType": self._url(f"zones/{machine.zone}/machineTypes/{machine.type.partition('+')[0]}"),
            "status": "STOPPING" if machine.id in self._noticed and machine.lives else STATUS[machine.state],
            "description": body.get("description", ""),
            "labels": dict(machine.labels),
            "scheduling": body["scheduling"],
            "creationTimestamp": self.operations.date(machine.created - self.clock.unix()),
            "networkInterfaces": [interface],
        }

    def _began(
        self,
        kind: str,
        request: Request | None,
        *,
        target: str,
        zone: str = "",
        region: str = "",
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        place = (
            {"zone": self._url(f"zones/{zone}")}
            if zone
            else {"region": self._url(f"regions/{region}")}
            if region
            else {}
        )
        token = "" if request is None else request.query.get("requestId", "")
        return self.operations.begin(kind, token, {"targetLink": self._url(target), **place, **(more or {})})

    def _url(self, path: str) -> str:
        return f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/{path}"


_VERBS: Mapping[str, Callable[[GCE, Call], dict[str, Any]]] = {
    "acceleratorTypes.list": GCE._gpus,
    "firewalls.delete": GCE._delete_rule,
    "firewalls.insert": GCE._make_rule,
    "firewalls.list": GCE._rules,
    "globalOperations.get": GCE._operation,
    "instances.aggregatedList": GCE._instances,
    "instances.delete": GCE._delete,
    "instances.get": GCE._get,
    "machineTypes.list": GCE._types,
    "regionInstances.bulkInsert": GCE._bulk_insert,
    "regionOperations.get": GCE._operation,
    "regions.get": GCE._region,
    "zoneOperations.get": GCE._operation,
    "zoneOperations.list": GCE._zone_operations,
}


def _label_filter(text: str) -> Callable[[Mapping[str, str]], bool]:
    there, same = re.fullmatch(r"labels\.([\w-]+):\*", text), re.fullmatch(r"labels\.([\w-]+) = ([\w-]+)", text)
    if there:
        return lambda labels: there[1] in labels
    if same:
        return lambda labels: labels.get(same[1]) == same[2]
    raise Invalid("instances.aggregatedList?filter", f"{text!r} is not understood here")


def _known(places: Mapping[str, Sequence[str]], name: str, kind: str) -> Sequence[str]:
    if name not in places:
        raise Refused("notFound", f"The resource 'projects/{PROJECT}/{kind}/{name}' was not found", 404)
    return places[name]


@cache
def _private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

    key = generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode("ascii")
