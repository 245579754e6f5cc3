"""Check the address of a tracker's server, and read what the environment says. HTTP itself is not imported here."""

from __future__ import annotations

import base64
import os
import re
from urllib.parse import unquote, urlsplit

from ..api.checks import refuse, shown

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2


def check_address(owner: str, address: object, example: str) -> str:
    """Check the address of a server.

    Raises:
        SpecError
    """
    if not isinstance(address, str):
        refuse(f"{owner} takes the address of a server, as in {example!r}, not {shown(address)}.")
    if not address.isascii() or not address.isprintable() or " " in address:
        refuse(
            f"{owner} takes an address without spaces, line ends or letters beyond ASCII: they are quoted, as %20 is."
        )
    try:
        parts = urlsplit(address)
        named = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # of a port or an IPv6 address; its text has the whole address
        named = False
    if not named:
        refuse(f"{owner} takes an address that begins with http:// or https:// and a host, as in {example!r}.")
    return address


def check_header(owner: str, name: str, value: str) -> None:
    """Check a header, whose value may be a secret: no error shows it.

    Raises:
        SpecError
    """
    if not _HEADER_NAME.fullmatch(name):
        refuse(f"{owner} takes names of HTTP headers, not {shown(name)}.")
    if not all(" " <= letter <= "~" or letter == "\t" or "\xa0" <= letter <= "\xff" for letter in value):
        refuse(
            f"{owner} has a line's end, or another character that no HTTP header takes. Where it was read from a file, "
            "take .strip() of the text."
        )


def variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def basic(username: str, password: str) -> str:
    """Return the Authorization header of a user. Both may be quoted as in an address."""
    return f"Basic {base64.b64encode(f'{unquote(username)}:{unquote(password)}'.encode()).decode()}"
