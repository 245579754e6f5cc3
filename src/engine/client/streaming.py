"""Generators on nodes, as their callers iterate over them here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ...providers.threads import in_thread
from ..api import settings
from ..api.calls import StreamCall, pending
from ..api.errors import NotACall
from ..serialization.error_translation import load_value

if TYPE_CHECKING:
    from ..serialization.payload import Received
    from .jobs import SubmittedJob
    from .open_pool import OpenPool

T = TypeVar("T")


async def stream(core: OpenPool, call: StreamCall[T], on: int | Literal["head"] | None) -> AsyncGenerator[T, None]:
    """`Pool.stream`. The generator runs from when the first value is asked for."""
    if not isinstance(call, StreamCall):
        raise NotACall(f"pool.stream takes the call of a generator function; {pending(call).code} is for pool.run")
    payload, output = core.packer.pack_stream(call)
    job: SubmittedJob[None] = core.Job(core, payload, call.options)

    def settle(ending: Any) -> None:
        job(ending)
        output.end()

    core.submit(job, settings.placement(on, most=core.most), settle)
    try:
        async for received in output:
            yield await _loaded(received, payload.name)
        job.result()
    finally:
        job.cancel()


async def _loaded(received: Received, task: str) -> Any:
    if received.is_long_to_load:
        return await in_thread(load_value, received, task, abandon=True)
    return load_value(received, task)
