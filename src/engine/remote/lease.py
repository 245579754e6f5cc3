"""A machine's own lease is renewed from here until its executor does that: the image may take longer than the lease."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Never

from ..image.shell import Shell

RENEWALS = 4  # in the time of one lease: some may fail


async def renew(shell: Shell, file: str, lease_s: float) -> Never:
    """Touch ``file`` there at once, and again and again until cancelled. A failure is silent, and tried again: the
    work that goes over the same connection meets it too.
    """
    every_s = lease_s / RENEWALS
    while True:
        with suppress(OSError):  # TimeoutError too
            async with asyncio.timeout(every_s):
                await shell.run(["touch", "-c", "--", file])
        await asyncio.sleep(every_s)
