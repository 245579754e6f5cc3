"""The cloud-init document with which a machine is launched: the lease, then the host key and the accepted login key.

The document is JSON, which is also YAML, so no value needs quoting for a shell.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from ..base import LaunchRequest
from .keys import HostKey
from .vendor import Vendor

LEASE = "/run/outrider/lease"  # a file; a touch renews the lease. /run is in memory, so it is empty after each boot
GRACE_S = 30  # seconds by which the first lease is longer, because the machine is still booting when it begins

# If the lease cannot be set up, the machine powers itself off at once. Programs are found through PATH, as in lease.sh,
# because poweroff may be in another folder.
_ARM = """\
folder=$1 script=$2
shift 2
{ mkdir -p "$folder" && printf %s "$script" >"$folder/lease.sh" && sh "$folder/lease.sh" arm "$@"; } ||
    poweroff || shutdown -P now"""


def user_data(
    vendor: Vendor,
    *,
    host_key: HostKey,
    client_key: str,
    user: str,
    lease_s: float,
    max_lifetime_s: float | None = None,
    at_boot: Sequence[str] = (),
) -> str:
    """Return the cloud-config as a text. At each boot, cloud-init runs its ``bootcmd``, which sets up the lease first.

    The machine powers itself off ``lease_s`` seconds after the file `LEASE` was last touched, or ``max_lifetime_s``
    seconds after its boot, both rounded up. ``client_key``: the OpenSSH public key that may log in as ``user``; this
    user may become root. ``at_boot``: further shell commands at each boot, after the lease.

    Raises:
        ValueError: The document is longer than the cloud accepts.
    """
    lifetime_s = 0 if max_lifetime_s is None else max(1, ceil(max_lifetime_s))
    folder = LEASE.rpartition("/")[0]
    arm = [folder, lease_script(), *(str(seconds) for seconds in (max(1, ceil(lease_s)), GRACE_S, lifetime_s))]
    config: dict[str, Any] = {
        "bootcmd": [["sh", "-c", _ARM, "outrider-lease", *arm], *(["sh", "-c", each] for each in at_boot)],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "ssh_genkeytypes": ["ed25519"],
        "ssh_pwauth": False,
        "disable_root": user != "root",
        # if the image's default user has the same name, cloud-init merges the two users
        "users": ["default", {"name": user, "sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": [client_key]}],
    }
    text = f"#cloud-config\n{json.dumps(config)}\n"
    size = len(b64encode(text.encode()))
    if size > vendor.user_data_bytes:
        problem = f"the machine's user data is {size} bytes in base64"
        raise ValueError(f"{problem}, and {vendor.service} takes {vendor.user_data_bytes}")
    return text


def user_data_for(
    vendor: Vendor, request: LaunchRequest, *, host_key: HostKey, user: str, at_boot: Sequence[str] = ()
) -> str:
    """Return the cloud-config for machines of a request (`user_data`)."""
    return user_data(
        vendor,
        host_key=host_key,
        client_key=request.client_key,
        user=user,
        lease_s=request.lease_s,
        max_lifetime_s=request.max_lifetime_s,
        at_boot=at_boot,
    )


@cache
def lease_script() -> str:
    """Return the text of ``lease.sh``."""
    return Path(__file__).with_name("lease.sh").read_text("ascii")
