"""The data with which a new machine starts: its SSH host key, its start script with the lease, and its `Machine`.

The host key is generated on this computer, so that it is known before the first connection. A virtual machine starts
with a cloud-init document (`user_data`; JSON, which is also YAML, so that no value needs quoting for a shell). A rented
container has no init system and perhaps no SSH server: it starts with `first_process`, whose text is in
``rented_container.sh``. Both set up the lease first: the machine ends itself when its client has not renewed the lease
in time.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, Machine, MachineId
from .offers import Offer
from .vendor import Vendor


@dataclass(frozen=True, slots=True)
class HostKey:
    """An ed25519 key pair in OpenSSH's formats: ``private`` is PEM, ``public`` one line without a comment."""

    private: str = field(repr=False)
    public: str


def host_key() -> HostKey:
    """Generate an SSH host key for a new machine (takes 0.1 ms).

    The launch request contains this private key, so the cloud knows it. Therefore the pool replaces the machine's host
    key when it first connects.
    """
    from cryptography.hazmat.primitives import serialization  # imported here, because only clouds need this package
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private.decode("ascii"), public.decode("ascii"))


# --- cloud-init -------------------------------------------------------------------------------------------------------


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


# --- rented containers ------------------------------------------------------------------------------------------------


USER = "root"
# seconds by which the first lease is longer: the container may have to install an SSH server
CONTAINER_GRACE_S = 240
FOLDER = LEASE.rpartition("/")[0]


def first_process(
    *,
    host_key: HostKey,
    client_key: str,
    lease_s: float,
    end_itself: str,
    max_lifetime_s: float | None = None,
    port: int = 22,
) -> str:
    """Return the command of a container's first process, for ``sh -c``. It has some 3,400 characters, and needs root,
    gzip and base64.

    The process serves SSH at ``port`` with ``host_key``; ``client_key`` may log in as `USER`. If there is no SSH
    server, the process installs one.

    The container ends ``lease_s`` seconds after the file `LEASE` was last touched, or ``max_lifetime_s`` after the
    start. The process then kills everything in the container and runs ``end_itself`` until it succeeds.
    ``end_itself``: a shell command of the cloud that deletes the container, such as ``call DELETE
    "https://cloud/machines/$ID" "Authorization: Bearer $KEY"``.
    """
    lifetime_s = 0 if max_lifetime_s is None else max(1, ceil(max_lifetime_s))
    variables = {
        "host_key": host_key.private.strip(),
        "client_key": client_key,
        "lease_sh": _bare(lease_script()),
        "lease_s": str(max(1, ceil(lease_s))),
        "grace_s": str(CONTAINER_GRACE_S),
        "lifetime_s": str(lifetime_s),
        "port": str(port),
    }
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    text = "\n".join([*assignments, f"end_itself() {{ {end_itself}; }}", _bare(_script())])
    packed = b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii")
    file = f'"$OUTRIDER_ROOT{FOLDER}/container.sh"'
    unpack = f"(umask 077; echo {packed} | base64 -d | gzip -dc >{file})"
    return f'mkdir -p "$OUTRIDER_ROOT{FOLDER}" && {unpack} && exec sh {file} start'


@cache
def _script() -> str:
    """Return the text of ``rented_container.sh``."""
    return Path(__file__).with_name("rented_container.sh").read_text("ascii")


def _bare(script: str) -> str:
    """Return a script without its comments and indents, because clouds limit the length of a command."""
    lines = [re.sub(r"(?:^|\s)# .*$", "", line).strip() for line in script.splitlines()]
    return "\n".join(line for line in lines if line and line != "#")


# --- the new machine --------------------------------------------------------------------------------------------------


NOTHING: Mapping[str, str] = MappingProxyType({})


def new_machine(
    name: MachineId,
    offer: Offer,
    *,
    host_key: str,
    image: str,
    extras_usd: float = 0.0,
    notices: tuple[str, ...] = (),
    lease: str = LEASE,
    billed_at_least_s: float = 0.0,
    env: Mapping[str, str] = NOTHING,
    facts: Mapping[str, str] = NOTHING,
) -> Machine:
    """Return the `Machine` for a new machine of this offer. The machine was started with `user_data`, and has no
    address yet. Its ``host_key`` is replaced when the pool first connects.

    ``extras_usd``: USD per hour in addition to the offer's price. ``facts``: further facts to display.
    """
    return Machine(
        id=name,
        address=None,
        host_key=host_key,
        rotate_host_key=True,
        notices=notices,
        lease=lease,
        hourly_cost=offer.hourly_usd + extras_usd,
        billed_at_least_s=billed_at_least_s,
        env=env,
        facts={
            "type": offer.type.name,
            "zone": offer.zone,
            "market": offer.market,
            "price": f"{offer.hourly_usd:.4f} USD/h",
            "image": image,
            **facts,
        },
    )
