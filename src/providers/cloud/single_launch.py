"""`SingleLauncher`: the base class of launchers at clouds whose calls create one machine, without idempotency tokens.

ONCE-1: a launch without a response is never sent again. Its machine is searched for by its label, for as long as lists
may be outdated. After that, the launch counts as not carried out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineId
from ..errors import ProviderError
from .account import AccountCloud
from .calls import AGAIN_S, CallRefused
from .inventory import GRACE_S
from .offers import Cooldowns, Offer
from .port import Answer, Created, Order, PlainLauncher, Plan
from .recorder import FLEET, Recorder


@dataclass(slots=True, kw_only=True)
class SingleOrder(Order):
    """The launch of one machine. ``body``: the body of the request. ``host_key``: the public host key of the new
    machine.

    ``sent_at``: the time at which the only try of the launch ended.
    """

    body: Mapping[str, Any]
    host_key: str
    sent_at: float = 0.0


A = TypeVar("A", bound=AccountCloud)
O = TypeVar("O", bound=SingleOrder)  # noqa: E741 (an order)


class SingleLauncher(PlainLauncher, ABC, Generic[A, O]):
    """The base class of a cloud's `port.Launcher`; a cloud's own launcher implements the abstract methods."""

    def __init__(self, cloud: A, recorder: Recorder) -> None:
        self._cloud, self._recorder = cloud, recorder

    @abstractmethod
    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> Plan:
        """See `port.Launcher.plan`."""

    @abstractmethod
    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> O:
        """Prepare the launch of one machine. Wait for the rate limits here, where a cancellation is harmless."""

    @abstractmethod
    async def _launch(self, order: O) -> Sequence[str]:
        """Send the create call. Return the machine's id.

        Raises:
            ProviderError: The call failed; `calls.is_lost` says whether it may have been carried out.
        """

    async def _launched(self, order: O) -> Sequence[str]:
        """Return the ids of the listed machines with the token of this order.

        Raises:
            ProviderError: The cloud does not respond.
        """
        return await self._cloud.launched(order.token)

    @abstractmethod
    def _created(self, order: O, machine: MachineId) -> Created:
        """Return the machine of a completed order."""

    async def create(self, order: O) -> Answer:
        ask = self._look_for if order.lost else self._send
        machine_ids = await self._recorder.create(
            FLEET, order.token, {"count": "1"}, lambda: ask(order), lambda ids: ids
        )
        return Answer([self._created(order, MachineId(each)) for each in machine_ids])

    async def _send(self, order: O) -> Sequence[str]:
        try:
            return await self._launch(order)
        finally:
            order.sent_at = anyio.current_time()

    async def _look_for(self, order: O) -> Sequence[str]:
        """Find the machine of a launch that got no response (`look_for`)."""
        return await look_for(self._cloud.vendor.name, order.sent_at, lambda: self._launched(order))


# --- launches without a response --------------------------------------------------------------------------------------


async def look_for(service: str, sent_at: float, labelled: Callable[[], Awaitable[Sequence[str]]]) -> Sequence[str]:
    """Search for the machines of a launch that got no response, and return their ids.

    ``sent_at``: the time at which the only try of the launch ended. ``labelled``: lists the machines with the launch's
    label.

    Raises:
        CallRefused: No machine is listed yet, or the cloud does not respond: the search must go on.
        ProviderError: No machine can appear any more: the launch was not carried out.
    """
    searched_at = anyio.current_time()
    try:
        machines = await labelled()
    except ProviderError as error:
        raise CallRefused(str(error), retry_after_s=error.retry_after_s or AGAIN_S, code=error.code) from error
    if machines:
        return machines
    if searched_at - sent_at < GRACE_S:
        problem = f"{service} shows no machine of the launch that had no answer: it is looked for again"
        raise CallRefused(problem, retry_after_s=AGAIN_S)
    raise ProviderError(
        f"{service} has shown no machine of a launch without an answer for {GRACE_S:.0f} s: it was not carried out",
        retry_after_s=AGAIN_S,
    )
