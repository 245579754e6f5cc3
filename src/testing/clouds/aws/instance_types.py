"""Instance types: their descriptions (moto has EC2's), the zones that offer them, and their quotas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from .behaviour import FAMILIES
from .call import CloudCall
from .filters import Fact, Facts, chosen, page
from .protocol import Answer, EC2Error, Rendered, render_item

Data = Mapping[str, Any]

_QUOTAS = (  # (pattern for the beginning of a type's name, on-demand quota, spot quota)
    (r"(g\d|vt)", "L-DB2E81BA", "L-3819A6DF"),
    (r"p\d", "L-417A185B", "L-7212CCBC"),
    (r"inf", "L-1945791B", "L-B5D1601B"),
    (r"trn", "L-2C3B7624", "L-6B0D517C"),
    (r"dl", "L-6E869C2A", "L-85EED4F7"),
    (r"hpc", "L-F7808C92", "L-F7808C92"),
    (r"f\d", "L-74FC7D96", "L-88CF9481"),
    (r"(x|u)", "L-7295265B", "L-E3A00192"),
    (r"", "L-1216C47A", "L-34B43A08"),
)


@cache
def quota_code(type_name: str, market: str) -> str:
    for beginning, on_demand, spot in _QUOTAS:
        if re.match(beginning, type_name):
            return spot if market == "spot" else on_demand
    raise AssertionError("the last one fits all")


@cache
def catalogue(patterns: tuple[str, ...]) -> dict[str, Data]:
    """Return the descriptions of types by name, unordered as in EC2."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    return {name: data for name, data in INSTANCE_TYPES.items() if any(fnmatchcase(name, each) for each in patterns)}


@cache
def zones(region: str) -> dict[str, frozenset[str]]:
    """Return the region's zones that offer each type."""
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

    zones_by_type: dict[str, set[str]] = {}
    for offering in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ()):
        zones_by_type.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return {name: frozenset(places) for name, places in zones_by_type.items()}


def known(patterns: tuple[str, ...], region: str, type_name: str) -> Data:
    """Return the description of a type.

    Raises:
        EC2Error: There is no such type.
    """
    data = catalogue(patterns).get(type_name)
    if data is None or type_name not in zones(region):
        raise EC2Error("InvalidParameterValue", f"Invalid value '{type_name}' for InstanceType.")
    return data


def vcpus(data: Data) -> int:
    return int(data["VCpuInfo"]["DefaultVCpus"])


def architecture(data: Data) -> str:
    return "arm64" if "arm64" in data["ProcessorInfo"]["SupportedArchitectures"] else "x86_64"


def describe_instance_types(call: CloudCall) -> Answer:
    types, places = catalogue(call.region.state.behaviour.types), zones(call.region.name)
    names = call.ask.get("InstanceTypes") or [name for name in types if name in places]
    unknown = [name for name in names if name not in types or name not in places]
    if unknown:
        raise EC2Error("InvalidInstanceType", f"The following supplied instance types do not exist: {unknown}")
    fitting = chosen(names, call.ask.get("Filters"), _TypeFacts())
    shown, following = page(fitting, call.ask, most=100)
    return {"InstanceTypes": [_rendered(name) for name in shown], "NextToken": following}


def describe_instance_type_offerings(call: CloudCall) -> Answer:
    types, kind = catalogue(call.region.state.behaviour.types), call.ask.get("LocationType", "region")
    if kind == "region":
        pairs = [(name, call.region.name) for name in zones(call.region.name) if name in types]
    elif kind == "availability-zone":
        pairs = [(name, zone) for name, places in zones(call.region.name).items() if name in types for zone in places]
    else:
        raise EC2Error("InvalidParameterValue", f"The location type {kind} is not valid")
    fitting = chosen(sorted(pairs), call.ask.get("Filters"), _OFFERING_FACTS)
    shown, following = page(fitting, call.ask, most=1000)
    offerings = [{"InstanceType": name, "LocationType": kind, "Location": place} for name, place in shown]
    return {"InstanceTypeOfferings": offerings, "NextToken": following}


@cache
def _rendered(name: str) -> Rendered:
    return render_item("InstanceTypeInfo", catalogue(("*",))[name])


_OFFERING_FACTS: Facts[tuple[str, str]] = {
    "instance-type": lambda it: [it[0]],
    "location": lambda it: [it[1]],
}


class _TypeFacts(dict[str, Fact[str]]):
    """The filters of instance types. The filter ``vcpu-info.default-vcpus`` reads the field ``VCpuInfo.DefaultVCpus``.

    If the field is a list, the filter's name lacks the plural ``s`` of the field's name.
    """

    def __missing__(self, name: str) -> Fact[str]:
        path = next((form for form in _forms(name) if form in _paths()), None)
        if path is None:
            raise KeyError(name)
        return lambda type_name: _values(type_name).get(path, [])


def _forms(name: str) -> list[str]:
    *path, last = name.replace("-", "").split(".")
    return [
        ".".join([*path[:-1], *(part + middle for part in path[-1:]), last + ending])
        for ending in ("", "s", "es")
        for middle in ("", "s")
    ]


@cache
def _paths() -> frozenset[str]:
    return frozenset(path for data in catalogue(FAMILIES).values() for path, _ in _leaves("", data))


@cache
def _values(name: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for path, value in _leaves("", catalogue(("*",))[name]):
        values.setdefault(path, []).append(value)
    return values


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(f"{path}.{name.lower()}" if path else name.lower(), below)
    elif isinstance(value, list):
        for below in value:
            yield from _leaves(path, below)
    else:
        yield path, str(value).lower() if isinstance(value, bool) else str(value)


ACTIONS = {
    "DescribeInstanceTypes": describe_instance_types,
    "DescribeInstanceTypeOfferings": describe_instance_type_offerings,
}
