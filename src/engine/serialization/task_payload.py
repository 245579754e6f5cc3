"""The data of a task, which all its attempts and ranks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ...actors.amounts import Amounts
    from ..wire.messages import Value
    from .client_streams import RankValues, Source, Values
    from .payload import Blob, Shared
    from .stored_objects import Keeps, StoredObject


@dataclass(slots=True, eq=False)
class Payload:
    """The data of a task (see `actors.interfaces.Task`).

    It is created on submission, and all attempts and ranks share it.
    """

    name: str  # name of the function, for display
    function: bytes  # digest of `code`, which identifies the function on nodes
    code: bytes
    args: Value
    blob: Blob | None = None
    timeout_s: float | None = None
    flags: int = 0
    output: Values | RankValues | None = None
    inputs: tuple[Source, ...] = ()
    shared: tuple[Shared[Any], ...] = ()  # values of `Shared` to which the arguments refer
    objects: tuple[StoredObject, ...] = ()  # stored objects to which the arguments refer
    # if set, the result stays on its node, and this object stores it; None: the result is fetched
    keep: Keeps | None = None
    defined: object = None  # a reference to the function's definition, which keeps it alive on nodes
    needs: Amounts | None = None  # resources of its node that each attempt reserves
    span: Any = None  # the call's trace span, if the pool has tracing

    @property
    def borrowed_bytes(self) -> int:
        """The size of the arguments if some of them are in the caller's memory, else 0. `own` copies them."""
        return self.blob.size_bytes if self.blob is not None and self.blob.may_change else 0

    def own(self) -> None:
        """Copy the arguments that are in the caller's memory, so that the caller may change that memory.

        Blocks, as `Blob.own` does.
        """
        if self.blob is not None:
            self.blob.own()
