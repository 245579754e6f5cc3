"""The payloads of Outrider's own tasks, which run on a node beside its slots. `NodeLink.run_beside` sends them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ..serialization.task_payload import Payload
from ..serialization.task_sources import Source
from ..wire import values
from ..wire.messages import RunFlag

if TYPE_CHECKING:
    from ..api.calls import PendingCall
    from ..serialization.client_streams import Values


def internal_payload(call: PendingCall, code: bytes, *, name: str, output: Values | None = None) -> Payload:
    """Return the payload of an internal task.

    ``code``: the `serialization.program` of the task's function. ``output``: receives the values that the task yields.
    """
    args, kwargs, inputs = call.detach()
    flags = RunFlag.ALONE | RunFlag.FRESH | RunFlag.BESIDE | (RunFlag.STREAM if output is not None else 0)
    return Payload(
        name=name,
        function=hashlib.blake2b(code, digest_size=16).digest(),
        code=code,
        args=values.inline(values.dump((args, kwargs), ("args", "kwargs"))),
        flags=int(flags),
        output=output,
        inputs=tuple(Source(each) for each in inputs),
    )
