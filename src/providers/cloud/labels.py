"""The labels by which a pool's resources are found: set by each create call itself, never afterwards.

Clouds call them tags or labels. Where a cloud has none, they are parts of a resource's name.
"""

from __future__ import annotations

import getpass
import re
import socket
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from ..errors import BadRequest
from ..resource_ownership import Thing

POOL = "outrider:pool"
OWNER = "outrider:owner"  # user@host at that time
LAUNCH = "outrider:launch"  # the token of the create call, which finds a resource if the answer was lost
AT = "outrider:at"  # where a cloud does not say when a machine was created: unix time
UNTIL = "outrider:until"  # unix time at which the pool's max_lifetime is over
RESERVED = "outrider:"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")  # characters not allowed in all kinds of names


def labels_of(pool: str, others: Mapping[str, str]) -> dict[str, str]:
    """The labels of each resource of ``pool``. ``others``: the user's."""
    return {"Name": name_of(pool), **others, POOL: pool, OWNER: _owner()}


def of_machine(pool: str, others: Mapping[str, str], token: str, max_lifetime_s: float | None) -> dict[str, str]:
    """The labels of a machine in a cloud that says nothing else of it: also when it was made, and when it must end."""
    labels = {**labels_of(pool, others), LAUNCH: token, AT: f"{time.time():.0f}"}
    return labels if max_lifetime_s is None else {**labels, UNTIL: f"{time.time() + max_lifetime_s:.0f}"}


def name_of(pool: str) -> str:
    return f"outrider-{_NOT_IN_NAMES.sub('-', pool)}"[:100]


def thing(name: str, labels: Mapping[str, str]) -> Thing:
    """A resource with these labels as a `Thing`. ``name``: its name in the journal."""
    return Thing(name, pool=labels.get(POOL, ""), owner=labels.get(OWNER, ""), launch=labels.get(LAUNCH, ""))


def as_text(labels: Mapping[str, str], most: int) -> str:
    """The labels of ours in one text, for a cloud whose machines have a name or a note alone: ``outrider:pool=...``.

    Raises:
        BadRequest: it has more than ``most`` characters, as names are long.
    """
    pairs = {key.removeprefix(RESERVED): value for key, value in labels.items() if key.startswith(RESERVED)}
    text = RESERVED + urlencode(pairs)
    if len(text) > most:
        raise BadRequest(
            f"a label has {most} characters, too few for the pool's name and its owner's: use shorter ones"
        )
    return text


def of_text(text: str) -> dict[str, str]:
    """The labels that `as_text` has written; none of a text that it has not."""
    if not text.startswith(RESERVED):
        return {}
    return {RESERVED + key: value for key, value in parse_qsl(text.removeprefix(RESERVED))}


def number(text: str) -> float | None:
    """The number in a label; None: it has none."""
    try:
        return float(text)
    except ValueError:
        return None


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a user database
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:256]
