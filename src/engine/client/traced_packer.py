"""Packing of calls in a pool with tracing: each call gets a span, and its task receives the span's context with the
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..runtime.trace_context import Traced
from ..serialization.packer import Packer

if TYPE_CHECKING:
    from ..api.calls import Call, Callee, StreamCall
    from ..api.sink import CallTraces
    from ..serialization.payload import Blob
    from ..serialization.task_payload import Payload
    from ..wire.messages import Value


class TracedPacker(Packer):
    """A packer that reports each call to ``traces``. ``packer``: the arguments of `Packer`."""

    _carrier: Mapping[str, str]  # the trace context of the call that is being packed

    def __init__(self, traces: CallTraces, *packer: Any, **more: Any) -> None:
        super().__init__(*packer, **more)
        self._traces = traces

    def pack(self, call: Call[Any] | StreamCall[Any]) -> Payload:
        with self._traces.packing(call.options.name or call.function.__name__) as self._carrier:
            payload = super().pack(call)
        payload.span = self._traces.packed
        return payload

    def _dump(
        self,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        task: str,
        function: Callee,
        *,
        by_reference: bool = True,
    ) -> tuple[Value, Blob | None]:
        args, kwargs = arguments
        if not isinstance(kwargs, Traced):
            kwargs = Traced(kwargs, self._carrier)
        return super()._dump((args, kwargs), task, function, by_reference=by_reference)
