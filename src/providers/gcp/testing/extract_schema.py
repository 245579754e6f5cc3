"""Make ``compute.json``, the part of Compute Engine's published schema that this project uses.

The whole is in Google's own client library: ``pip download --no-deps google-api-python-client``, and in the wheel
``googleapiclient/discovery_cache/documents/compute.v1.json``. Then, in the repository's root::

    python -m outrider.providers.gcp.testing.extract_schema compute.v1.json src/providers/gcp/testing/compute.json

It keeps the methods below, whole parameters of theirs, and of schemas types, names, enumerations and references.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

METHODS = (
    "acceleratorTypes.list", "firewalls.delete", "firewalls.insert", "firewalls.list", "globalOperations.get",
    "instances.aggregatedList", "instances.delete", "instances.get", "machineTypes.list", "regionInstances.bulkInsert",
    "regionOperations.get", "regions.get", "zoneOperations.get", "zoneOperations.list",
)  # fmt: skip
KEPT = frozenset(
    {"$ref", "additionalProperties", "enum", "format", "items", "pattern", "properties", "required", "type"}
)


def extract(document: dict[str, Any]) -> dict[str, Any]:
    methods, schemas = {}, {}
    for name in METHODS:
        resource, _, method = name.partition(".")
        said = document["resources"][resource]["methods"][method]
        methods[name] = {
            "method": said["httpMethod"],
            "path": said["path"],
            "parameters": {key: {**_kept(each), "in": each["location"]} for key, each in said["parameters"].items()},
            "request": said.get("request", {}).get("$ref"),
            "response": said["response"]["$ref"],
        }
    wanted = [each for said in methods.values() for each in (said["request"], said["response"]) if each]
    while wanted:
        name = wanted.pop()
        if name not in schemas:
            schemas[name] = _kept(document["schemas"][name])
            wanted += _references(schemas[name])
    common = {key: {**_kept(each), "in": "query"} for key, each in document["parameters"].items()}
    return {
        "revision": document["revision"],
        "parameters": common,
        "methods": methods,
        "schemas": dict(sorted(schemas.items())),
    }


def _kept(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    found = {key: _kept(each) for key, each in said.items() if key in KEPT and key != "properties"}
    if "properties" in said:
        found["properties"] = {key: _kept(each) for key, each in said["properties"].items()}
    return found


def _references(said: Any) -> Iterator[str]:
    if isinstance(said, dict):
        if isinstance(said.get("$ref"), str):
            yield said["$ref"]
        for each in said.values():
            yield from _references(each)


if __name__ == "__main__":
    whole, part = map(Path, sys.argv[1:])
    part.write_text(json.dumps(extract(json.loads(whole.read_text("utf-8"))), separators=(",", ":")) + "\n", "utf-8")
