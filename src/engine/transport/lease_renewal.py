"""Check a machine's lease at the first contact, and renew it until the machine's executor does.

An image may take longer to install than the lease lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ...actors.interfaces import ConnectFailed
from ..image.commands import CommandRunner

RENEWALS = 4  # renewals during the time of one lease, so that some may fail
# seconds between renewals, at most: a machine left by a dead client may have a shorter lease than this pool's
MOST_S = 15.0
# seconds to wait for the result of the lease check after the bootstrap; as a rule, the check ends during the bootstrap
CHECK_S = 10.0

# The machine creates the lease file when it arms the lease, and detects a renewal by the file's inode and time. The
# script's argument is the file's path.
CHECK_LEASE = """\
seen() { stat -c '%i %y' -- "$1"; }
before=$(seen "$1") || exit 1
touch -c -- "$1" && [ "$(seen "$1")" != "$before" ] && exit 0
sleep 0.1
touch -c -- "$1" && [ "$(seen "$1")" != "$before" ]"""

T = TypeVar("T")


class LeaseRenewal:
    """The renewal of a lease: touches the lease file ``file`` on the machine at once, and repeatedly until `close`.

    A failed renewal is tried again. It is not reported: other work on the same connection fails too, and reports the
    error. ``checked``: the first touch must have an effect. LEASE-1: a machine that cannot end itself is not used.
    """

    def __init__(self, shell: CommandRunner, file: str, lease_s: float, *, checked: bool) -> None:
        self._shell, self._file, self._every_s = shell, file, min(lease_s / RENEWALS, MOST_S)
        self._armed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not checked:
            self._armed.set_result(True)
        self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._task.cancel()

    async def during(self, work: Coroutine[Any, Any, T], machine: str) -> T:
        """Return the result of ``work``.

        If the lease is not armed, cancel the work and refuse the machine: without a lease, it could outlive its client.

        Raises:
            ConnectFailed: the lease is not armed.
            TimeoutError: the state of the lease could not be read.
        """
        doing = asyncio.ensure_future(work)
        try:
            either: list[asyncio.Future[Any]] = [doing, self._armed]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._armed.done():
                doing.result()  # if both the work and the lease fail, raise the error of the work
            async with asyncio.timeout(CHECK_S):
                armed = await asyncio.shield(self._armed)
            if not armed:
                raise ConnectFailed(
                    f"the lease of machine {machine} is not armed: {self._file} is not there, or touching it changes "
                    "nothing, so nothing would end the machine if this program died. It is not used. Its image has to "
                    "run cloud-init, with sh and poweroff: the machine's console output says what failed",
                    fatal=True,
                )
            return await doing
        finally:
            doing.cancel()
            await asyncio.wait([doing])
            if not doing.cancelled():
                doing.exception()  # mark the error as retrieved, so that asyncio does not log it

    async def _run(self) -> None:
        while True:
            with suppress(OSError):  # OSError includes TimeoutError
                async with asyncio.timeout(self._every_s):
                    if self._armed.done():
                        await self._shell.run(["touch", "-c", "--", self._file])
                    else:
                        ended = await self._shell.run(["sh", "-c", CHECK_LEASE, "outrider-lease", self._file])
                        if ended.status is not None:  # the status is None if the command was killed
                            self._armed.set_result(ended.status == 0)
            await asyncio.sleep(self._every_s)
