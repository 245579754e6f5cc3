"""The start script of a rented container, which has no init system and perhaps no SSH server. Its text is in
``rented_container.sh``.
"""

from __future__ import annotations

import gzip
import re
import shlex
from base64 import b64encode
from functools import cache
from math import ceil
from pathlib import Path

from .keys import HostKey
from .userdata import LEASE, lease_script

USER = "root"
# seconds by which the first lease is longer: the container may have to install an SSH server
GRACE_S = 240
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

    The container ends ``lease_s`` seconds after the file `userdata.LEASE` was last touched, or ``max_lifetime_s`` after
    the start. The process then kills everything in the container and runs ``end_itself`` until it succeeds.
    ``end_itself``: a shell command of the cloud that deletes the container, such as ``call DELETE
    "https://cloud/machines/$ID" "Authorization: Bearer $KEY"``.
    """
    lifetime_s = 0 if max_lifetime_s is None else max(1, ceil(max_lifetime_s))
    variables = {
        "host_key": host_key.private.strip(),
        "client_key": client_key,
        "lease_sh": _bare(lease_script()),
        "lease_s": str(max(1, ceil(lease_s))),
        "grace_s": str(GRACE_S),
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
