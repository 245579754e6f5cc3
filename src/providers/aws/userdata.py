"""The document for cloud-init at a machine's launch: first its lease, then its host key and who may log in.

The document is JSON, which is YAML: nothing in it is quoted by us, for a shell or otherwise.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from .keys import HostKey

LEASE = "/run/outrider/lease"  # whoever touches it renews; /run is empty after each boot, and no disk
GRACE_S = 30  # more than the lease, once: the machine still boots when its lease is armed
LIMIT_BYTES = 16 << 10  # EC2's, of the document; held in base64 here, which some of its calls count

# A machine whose lease cannot be armed ends at once. Names from PATH alone, here as in the script: what is called
# poweroff on a machine may be its keeper's own.
_ARM = """\
folder=$1 script=$2
shift 2
{ mkdir -p "$folder" && printf %s "$script" >"$folder/lease.sh" && sh "$folder/lease.sh" arm "$@"; } ||
    poweroff || shutdown -P now"""


def user_data(
    *, host_key: HostKey, client_key: str, user: str, lease_s: float, max_lifetime_s: float | None = None
) -> str:
    """The cloud-config, as text. At each boot (cloud-init's ``bootcmd``) the lease is armed before all else.

    ``client_key``: the OpenSSH public key that may log in as ``user``, who may become root. The machine powers itself
    off ``lease_s`` after `LEASE` was last touched, and ``max_lifetime_s`` after its boot; parts of a second count
    as one.

    Raises:
        ValueError: it is longer than EC2 takes.
    """
    lifetime_s = 0 if max_lifetime_s is None else max(1, ceil(max_lifetime_s))
    folder = LEASE.rpartition("/")[0]
    arm = [folder, lease_script(), *(str(seconds) for seconds in (max(1, ceil(lease_s)), GRACE_S, lifetime_s))]
    config: dict[str, Any] = {
        "bootcmd": [["sh", "-c", _ARM, "outrider-lease", *arm]],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "ssh_genkeytypes": ["ed25519"],
        "ssh_pwauth": False,
        "disable_root": user != "root",
        # Where the image's own user has this name, cloud-init makes one of the two.
        "users": ["default", {"name": user, "sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": [client_key]}],
    }
    text = f"#cloud-config\n{json.dumps(config)}\n"
    size = len(b64encode(text.encode()))
    if size > LIMIT_BYTES:
        raise ValueError(f"the machine's user data is {size} bytes in base64, and EC2 takes {LIMIT_BYTES}")
    return text


@cache
def lease_script() -> str:
    """``lease.sh``, which says what it does."""
    return Path(__file__).with_name("lease.sh").read_text("ascii")
