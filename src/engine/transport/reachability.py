"""Check whether any host responds while all nodes of a pool are silent.

If none does, this computer's network is down.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...lazy_named_tuple import NamedTuple
from ...providers.base import Address, Login, Machine

ANSWER_S = 2.5  # seconds for an answer: TCP retries after 1 s, so one lost packet does not count as silence
AT_MOST = 32  # number of hosts to probe at the same time


class Place(NamedTuple):
    """An SSH server to probe.

    ``behind``: the server leads to machines behind it, so a refused connection does not count as an answer.
    """

    host: str
    port: int
    behind: bool = False


async def anybody(machines: Sequence[Machine]) -> bool:
    """Return whether an SSH port of these machines or their witnesses responds, even with a refusal. Do not log in.

    Witnesses are other servers, whose silence shows that this computer's network is down. For a machine behind other
    hosts, the first host on the way is probed. A refusal by that host is no answer, as nothing behind it can be
    reached. This computer's own addresses, such as the end of a tunnel, prove nothing.
    """
    asking = [
        asyncio.ensure_future(answers(place.host, place.port, behind=place.behind)) for place in await _places(machines)
    ]
    try:
        with suppress(TimeoutError):
            for answer in asyncio.as_completed(asking, timeout=ANSWER_S):
                if await answer:
                    return True
        return False
    finally:
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def answers(host: str, port: int, *, behind: bool = False) -> bool:
    """Return whether another computer answers by TCP; with ``behind``, a refusal does not count. Cancel-safe."""
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
        if _is_here(family, address):
            return False
        with socket.socket(family, kind, protocol) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
    except (ConnectionRefusedError, ConnectionResetError):
        return not behind
    except OSError:
        return False
    return True


def _is_here(family: int, address: Any) -> bool:
    """Return whether the address belongs to this computer. Raise an OSError if there is no route to the address now."""
    if ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)  # sends nothing: the kernel only chooses the route
        return bool(sock.getsockname()[0] == address[0])


async def _places(machines: Sequence[Machine]) -> list[Place]:
    """Return the servers to probe: first the witnesses (servers other than the nodes), then the nodes."""
    ways: dict[Address, Login | None] = {}
    for machine in machines:
        for address in machine.witnesses:
            ways.setdefault(address, machine.login and replace(machine.login, jump=None))
    for machine in machines:
        if machine.address is not None and machine.address.path is None and (machine.login or not machine.inside):
            ways.setdefault(machine.address, machine.login)
    places: dict[Place, None] = {}
    for address, way in ways.items():
        if len(places) < AT_MOST and (first := await _first_stop(address, way)) is not None:
            places[first] = None
    return list(places)


async def _first_stop(address: Address, way: Login | None) -> Place | None:
    """Return the first host on the way; None: a local command leads there, or the configuration is unreadable."""
    if address.command and (way is None or not way.jump):
        return None
    if way is None or not (way.config or way.jump):
        return Place(address.host, address.port or 22)
    import asyncssh  # pools on this computer do not need this import

    from . import login

    with suppress(OSError, ValueError, asyncssh.Error):
        stops = await (login.jumps(way) if address.command else login.stops(address, way, ""))
        return Place(stops[0].host, stops[0].port, behind=bool(address.command) or len(stops) > 1)
    return None
