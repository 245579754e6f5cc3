"""Checks for the address of a tracker's server, and settings from the environment. This module does not import HTTP."""

from __future__ import annotations

import base64
import os
import re
from urllib.parse import unquote, urlsplit

from ..api.checks import refuse, shown

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # the syntax of header names by RFC 9110, 5.6.2


def check_address(owner: str, address: object, example: str) -> str:
    """Check the address of a server.

    Raises:
        SpecError: the address is not valid.
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
    except ValueError:  # urlsplit's error for a port or an IPv6 address contains the whole address, which may be secret
        named = False
    if not named:
        refuse(f"{owner} takes an address that begins with http:// or https:// and a host, as in {example!r}.")
    return address


def check_header(owner: str, name: str, value: str) -> None:
    """Check an HTTP header. Its value may be a secret, so no error shows the value.

    Raises:
        SpecError: The name or the value is not valid.
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
    """Return the HTTP Authorization header for a user and password, each of which may be percent-encoded as in a
    URL.
    """
    return f"Basic {base64.b64encode(f'{unquote(username)}:{unquote(password)}'.encode()).decode()}"
