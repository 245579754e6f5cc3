"""Check the address of a tracker's server, and read what the environment says. HTTP itself is not imported here."""

from __future__ import annotations

import base64
import os
from urllib.parse import unquote, urlsplit

from ..api.checks import refuse, shown


def check_address(owner: str, address: object, example: str) -> str:
    """Check the address of a server.

    Raises:
        SpecError
    """
    if not isinstance(address, str):
        refuse(f"{owner} takes the address of a server, as in {example!r}, not {shown(address)}.")
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        refuse(f"{owner} takes an address that begins with http:// or https://, as in {example!r}.")
    return address


def variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def basic(username: str, password: str) -> str:
    """Return the Authorization header of a user. Both may be quoted as in an address."""
    return f"Basic {base64.b64encode(f'{unquote(username)}:{unquote(password)}'.encode()).decode()}"
