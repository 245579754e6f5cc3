"""Labels for clouds that limit the length and the characters of labels. Longer texts are stored in a resource's
description.

Such a label has at most 63 lower-case letters, digits, "-" and "_". If a pool's name has other characters, its label
ends with a hash, and the description has the full name. Resources without labels, such as a firewall's rules, have only
a description.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from ..shared.resource_ownership import Thing
from . import labels

POOL, OWNER, LAUNCH = "outrider-pool", "outrider-owner", "outrider-launch"
KEY, VALUE = r"[a-z][a-z0-9_-]{0,62}", r"[a-z0-9_-]{0,63}"  # patterns that a user's label must match
LIMITS = "keys and values of at most 63 of a-z, 0-9, - and _, and keys that begin with a letter"
RESERVED = "outrider-"

_WHAT = {"pool": labels.POOL, "owner": labels.OWNER, "launch": labels.LAUNCH}


def value(text: str) -> str:
    """Return a text in the form of a label's value. Different texts give different values."""
    plain = re.sub(r"[^a-z0-9_-]", "-", text.lower())
    if plain == text and len(text) <= 63:
        return text
    return f"{plain[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def stem(pool: str) -> str:
    """Return the prefix for the names of a pool's resources: at most 40 characters that are valid in a domain name."""
    plain = re.sub(r"[^a-z0-9-]", "-", pool.lower()).strip("-")[:22].strip("-")
    return f"outrider-{plain}-{hashlib.sha256(pool.encode()).hexdigest()[:8]}" if plain else f"outrider-{value(pool)}"


def of_machines(pool_labels: Mapping[str, str], tags: Mapping[str, str], token: str) -> dict[str, str]:
    """Return the labels of a pool's machines. ``pool_labels``: from `labels.labels_of`. ``tags``: the user's labels."""
    return {**tags, POOL: value(pool_labels[labels.POOL]), OWNER: value(pool_labels[labels.OWNER]), LAUNCH: token}


def description(pool_labels: Mapping[str, str], token: str, *, usd: float = 0.0) -> str:
    """Return the description of a resource. ``usd``: the resource's price per hour when it was created."""
    fields = {"pool": pool_labels[labels.POOL], "owner": pool_labels[labels.OWNER], "launch": token}
    return json.dumps({**fields, "usd": round(usd, 4)} if usd else fields)


def fields_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in a resource's ``description``; empty if Outrider did not write it."""
    try:
        fields = json.loads(resource.get("description") or "{}")
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def thing(name: str, resource: Mapping[str, Any]) -> Thing:
    """Return a resource as a `Thing`. ``resource``: its ``labels`` and ``description`` in a response. ``name``: its
    name in the journal.
    """
    fields = fields_of(resource)
    known = {_WHAT[key]: str(fields[key]) for key in _WHAT if key in fields}
    shown = resource.get("labels") or {}
    if LAUNCH in shown:
        known[labels.LAUNCH] = shown[LAUNCH]
    # if label and description differ, the label counts, because lists filter by labels
    if POOL in shown and value(known.get(labels.POOL, "")) != shown[POOL]:
        known[labels.POOL] = shown[POOL]
    return labels.thing(name, known)
