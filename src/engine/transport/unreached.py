"""Explain why no SSH server was reached at a host and port: its name, the network, or another service that responds."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from contextlib import suppress

from ..api.printable import plain

SAY_S = 1.0  # seconds for a server to send its greeting
SHOWN = 60  # characters of the greeting to show
NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_NO_WAY = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT}
_OURS = b"SSH-%b-Outrider\r\n" % b"2.0"


def no_such_name(error: BaseException) -> bool:
    """Return whether the host's name does not exist, according to this computer's resolver."""
    return isinstance(error, socket.gaierror) and error.errno in NO_SUCH_NAME


def is_refused(error: BaseException) -> bool:
    """Return whether the host is up, and nothing listens at the port."""
    return isinstance(error, OSError) and _code(error) == errno.ECONNREFUSED


def story(error: BaseException, place: str, host: str, port: int) -> str:
    """Return why ``place`` could not be reached, and what to check; empty: only the error is known."""
    code = _code(error) if isinstance(error, OSError) else None
    match error:
        case socket.gaierror():
            return f"the name {host} could not be looked up ({error.strerror}): see that this computer's network is up"
        case OSError() if code == errno.ECONNREFUSED:
            return (
                f"{place} refuses the connection, as nothing listens at its port {port}: see that its SSH server runs, "
                "and at that port"
            )
        case OSError() if code in _NO_WAY:
            why = error.strerror or error
            return f"there is no way to {place} ({why}): see that it is on, and in a network that this computer reaches"
        case _:
            return ""


def _code(error: OSError) -> int | None:
    """Return the error's number. If several addresses were tried, return the number that all their errors share."""
    if error.errno is not None:
        return error.errno
    codes = {int(each) for each in re.findall(r"\[Errno (\d+)\]", str(error))}
    return codes.pop() if len(codes) == 1 else None


async def read_greeting(host: str, port: int) -> str | None:
    """Return the first line that the server at a port sends; the port should belong to an SSH server. Cancel-safe.

    Empty: the server sends no greeting. None: the server is an SSH server, or nothing listens at the port.
    """
    received, writer = b"", None
    try:
        async with asyncio.timeout(SAY_S):
            reader, writer = await asyncio.open_connection(host, port)
        async with asyncio.timeout(SAY_S):
            writer.write(_OURS)
            while len(received) < SHOWN and b"\n" not in received and (data := await reader.read(SHOWN)):
                received += data
    except (OSError, TimeoutError):
        pass
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                writer.transport.abort()
    return None if writer is None or received.startswith(b"SSH-") else first_line(received)


def first_line(received: bytes) -> str:
    lines = plain(received[:SHOWN].decode(errors="replace")).splitlines()
    return lines[0].strip() if lines else ""
