"""Create ``compute.json``, the part of Compute Engine's published schema that this project uses.

The full schema is in Google's own client library: run ``pip download --no-deps google-api-python-client``, and take
``googleapiclient/discovery_cache/documents/compute.v1.json`` out of the wheel. Then, in the repository's root::

    python -m outrider.testing.clouds.gcp.extract_schema compute.v1.json src/testing/clouds/gcp/compute.json

``compute.json`` has the methods that this module names, with all their parameters. Of each schema it keeps only the
types, names, enumerations and references.
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
        description = document["resources"][resource]["methods"][method]
        methods[name] = {
            "method": description["httpMethod"],
            "path": description["path"],
            "parameters": {
                key: {**_kept(each), "in": each["location"]} for key, each in description["parameters"].items()
            },
            "request": description.get("request", {}).get("$ref"),
            "response": description["response"]["$ref"],
        }
    wanted = [
        each for description in methods.values() for each in (description["request"], description["response"]) if each
    ]
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


def _kept(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    kept = {key: _kept(each) for key, each in schema.items() if key in KEPT and key != "properties"}
    if "properties" in schema:
        kept["properties"] = {key: _kept(each) for key, each in schema["properties"].items()}
    return kept


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for each in schema.values():
            yield from _references(each)


if __name__ == "__main__":
    whole, part = map(Path, sys.argv[1:])
    part.write_text(json.dumps(extract(json.loads(whole.read_text("utf-8"))), separators=(",", ":")) + "\n", "utf-8")
