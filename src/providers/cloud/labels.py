"""The labels that identify a pool's resources. Each create call sets them itself; nothing sets them later.

Clouds call them tags or labels. In a cloud without labels, they are part of a resource's name.
"""

from __future__ import annotations

import getpass
import re
import socket
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from ..errors import BadRequest
from ..shared.resource_ownership import Thing

POOL = "outrider:pool"
OWNER = "outrider:owner"  # user@host of the program that created the resource
LAUNCH = "outrider:launch"  # the token of the create call, to find the resource if the response was lost
AT = "outrider:at"  # unix time of the creation, for clouds that do not report it
UNTIL = "outrider:until"  # unix time at which the pool's max_lifetime ends
RESERVED = "outrider:"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")  # characters that names of some resources may not have


def labels_of(pool: str, others: Mapping[str, str]) -> dict[str, str]:
    """Return the labels for each resource of ``pool``. ``others``: the user's labels."""
    return {"Name": name_of(pool), **others, POOL: pool, OWNER: _owner()}


def of_machine(pool: str, others: Mapping[str, str], token: str, max_lifetime_s: float | None) -> dict[str, str]:
    """Return a machine's labels, for clouds that store neither when a machine was created nor when it must end.

    The labels contain these times.
    """
    labels = {**labels_of(pool, others), LAUNCH: token, AT: f"{time.time():.0f}"}
    return labels if max_lifetime_s is None else {**labels, UNTIL: f"{time.time() + max_lifetime_s:.0f}"}


def name_of(pool: str) -> str:
    return f"outrider-{_NOT_IN_NAMES.sub('-', pool)}"[:100]


def thing(name: str, labels: Mapping[str, str]) -> Thing:
    """Return a resource with these labels as a `Thing`. ``name``: its name in the journal."""
    return Thing(name, pool=labels.get(POOL, ""), owner=labels.get(OWNER, ""), launch=labels.get(LAUNCH, ""))


def as_text(labels: Mapping[str, str], most: int) -> str:
    """Return Outrider's labels as one text, ``outrider:pool=...``, for clouds whose machines have only a name or a
    note.

    Raises:
        BadRequest: The text has more than ``most`` characters, because the pool's or the owner's name is too long.
    """
    pairs = {key.removeprefix(RESERVED): value for key, value in labels.items() if key.startswith(RESERVED)}
    text = RESERVED + urlencode(pairs)
    if len(text) > most:
        raise BadRequest(
            f"a label has {most} characters, too few for the pool's name and its owner's: use shorter ones"
        )
    return text


def of_text(text: str) -> dict[str, str]:
    """Return the labels in a text from `as_text`; empty for other texts."""
    if not text.startswith(RESERVED):
        return {}
    return {RESERVED + key: value for key, value in parse_qsl(text.removeprefix(RESERVED))}


def number(text: str) -> float | None:
    """Return the number in a label; None: the label is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # e.g. in a container without a user database
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:256]
