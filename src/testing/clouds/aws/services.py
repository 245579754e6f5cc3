"""Other AWS services that clients of EC2 need: public parameters (SSM), prices, quotas. moto answers the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any

from . import images, instance_types, prices
from .faults import ClockSkew, Quota
from .filters import page
from .protocol import EC2Error
from .state import CloudState

PLENTY = 4096.0  # vCPUs of quotas that are not set
SIGNED_FOR_S = 300.0


def answer(state: CloudState, service: str, region: str, action: str, body: bytes) -> Mapping[str, Any] | None:
    """Answer a call to another service; None: moto answers.

    Raises:
        EC2Error: The service refuses.
    """
    request = json.loads(body) if body.startswith(b"{") else {}
    match service, action:
        case "ssm", "GetParameter" if request["Name"].startswith("/aws/service/"):
            return {"Parameter": _parameter(state, region, request["Name"])}
        case "ssm", "GetParameters" if all(name.startswith("/aws/service/") for name in request["Names"]):
            return _parameters(state, region, request["Names"])
        case "pricing", "GetProducts":
            return _products(state, request)
        case "servicequotas", "GetServiceQuota" if request["ServiceCode"] == "ec2":
            return {"Quota": _quota(state, request["QuotaCode"])}
    return None


def check_date(state: CloudState, date: str | None) -> None:
    """Check the date of a request's signature.

    Raises:
        EC2Error: By the cloud's clock, the request was signed too long ago.
    """
    for fault in state.faults.of(ClockSkew):
        if date and state.faults.happens(fault):
            signed = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            now = datetime.now(UTC) + timedelta(seconds=fault.seconds)
            if abs(now - signed).total_seconds() > SIGNED_FOR_S:
                raise EC2Error("RequestExpired", "Request has expired.")


def _parameter(state: CloudState, region: str, name: str) -> Mapping[str, Any]:
    with state.lock:
        value = images.parameter(state.region(region), name)
    if value is None:
        raise EC2Error("ParameterNotFound", f"Parameter {name} not found.")
    arn = f"arn:aws:ssm:{region}::parameter{name}"
    return {"Name": name, "Type": "String", "Value": value, "Version": 1, "ARN": arn, "DataType": "text"}


def _parameters(state: CloudState, region: str, names: list[str]) -> Mapping[str, Any]:
    parameters, missing = list[Mapping[str, Any]](), list[str]()
    for name in names:
        try:
            parameters.append(_parameter(state, region, name))
        except EC2Error:
            missing.append(name)
    return {"Parameters": parameters, "InvalidParameters": missing}


def _products(state: CloudState, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return on-demand prices of Linux machines, one product each."""
    wanted = {each["Field"]: _values(each) for each in request.get("Filters") or ()}
    regions = wanted.get("regionCode") or sorted({*state.regions, "us-east-1"})
    types = instance_types.catalogue(state.behaviour.types)
    names = wanted.get("instanceType") or list(types)
    fitting = [
        (region, name, attributes)
        for region in regions
        for name in names
        if name in types and name in instance_types.zones(region)
        for attributes in [_attributes(region, name, types[name])]
        if all(attributes.get(field) in values for field, values in wanted.items())
    ]
    shown, following = page(fitting, request, most=100)
    listed = [json.dumps(_product(state, region, name, attributes)) for region, name, attributes in shown]
    return {"FormatVersion": "aws_v1", "PriceList": listed, **({"NextToken": following} if following else {})}


def _values(one: Mapping[str, str]) -> list[str]:
    """Return the values that match a filter.

    Raises:
        EC2Error: The filter has a type without a list of values.
    """
    if one["Type"] in ("TERM_MATCH", "EQUALS"):
        return [one["Value"]]
    if one["Type"] == "ANY_OF":
        return one["Value"].split(",")
    raise EC2Error("InvalidParameterException", f"The test cloud has no filters of the type {one['Type']}.")


@cache
def _place(region: str) -> str:
    from botocore.session import get_session

    described = get_session().get_data("endpoints")["partitions"][0]["regions"].get(region, {})
    return str(described.get("description", region)).replace("Europe", "EU")


def _attributes(region: str, name: str, data: Mapping[str, Any]) -> Mapping[str, str]:
    return {
        "capacitystatus": "Used",
        "instanceType": name,
        "licenseModel": "No License required",
        "location": _place(region),
        "locationType": "AWS Region",
        "marketoption": "OnDemand",
        "memory": f"{data['MemoryInfo']['SizeInMiB'] / 1024:g} GiB",
        "operatingSystem": "Linux",
        "operation": "RunInstances",
        "preInstalledSw": "NA",
        "regionCode": region,
        "servicecode": "AmazonEC2",
        "tenancy": "Shared",
        "vcpu": str(instance_types.vcpus(data)),
    }


def _product(state: CloudState, region: str, name: str, attributes: Mapping[str, str]) -> Mapping[str, Any]:
    sku = sha256(f"{region} {name}".encode()).hexdigest()[:16].upper()
    term, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    usd = f"{prices.on_demand(state.behaviour, region, name):.10f}"
    price = {"unit": "Hrs", "rateCode": rate, "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": usd}}
    terms = {"sku": sku, "offerTermCode": "JRTCKXETXF", "priceDimensions": {rate: price}, "termAttributes": {}}
    product = {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku}
    return {"product": product, "serviceCode": "AmazonEC2", "terms": {"OnDemand": {term: terms}}}


def _quota(state: CloudState, code: str) -> Mapping[str, Any]:
    limits = [fault.vcpus for fault in state.faults.of(Quota) if fault.code == code]
    value = min(limits, default=state.behaviour.quotas.get(code, PLENTY))
    return {"ServiceCode": "ec2", "QuotaCode": code, "QuotaName": code, "Value": float(value), "Unit": "None"}
