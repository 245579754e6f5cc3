"""`Local`: machines that are process groups on this computer. They run the same executor as machines elsewhere."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..base import EntryPoints, LaunchRequest, MachineOffer
from ..errors import BadRequest, JournalError, ProviderError, UnknownOption
from ..shared.option_names import checking_options
from ..shared.paths import NotPrivate, state_root
from .state import PoolDirectory
from .supervisor_start import StartedSupervisor, start_supervisor

if TYPE_CHECKING:
    from .fleet import LocalFleet


class _Begun(NamedTuple):
    """A pool's directory and its supervisor. ``start`` starts another supervisor if the first one has ended."""

    directory: PoolDirectory
    start: Callable[[], StartedSupervisor]
    supervisor: StartedSupervisor


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, init=False)
class Local:
    """Nodes on this computer, each a process group with a private directory and a unix socket. Linux only.

    Tasks see this process's own Python environment (interpreter, packages, ``sys.path``) and run in the node's private
    directory. The computer's GPUs are divided evenly among the nodes; with fewer GPUs than nodes, tasks see none.

    Args:
        state: The parent of the pool's directory, which exists as long as the pool. Default: ``$OUTRIDER_STATE``, else
            ``$XDG_STATE_HOME/outrider``, else ``~/.local/state/outrider``.
        shared_memory: False sends large data over the node's socket, instead of by file descriptor.
        as_remote: True connects to the nodes as if they were other machines: by SSH, with a pinned host key, and
            without shared memory. For tests of these connections.
        work_mib: The size in MiB of the directory in which a node's tasks run; its files are then in memory. For tests
            of full disks; needs root, to mount. Default: the space of the disk.

    Raises:
        TypeError: The option does not exist.
        ValueError: The size is not valid.
    """

    state: Path | None
    shared_memory: bool
    as_remote: bool
    work_mib: int | None

    def __init__(
        self,
        *,
        state: str | os.PathLike[str] | None = None,
        shared_memory: bool = True,
        as_remote: bool = False,
        work_mib: int | None = None,
    ) -> None:
        if work_mib is not None and (isinstance(work_mib, bool) or not isinstance(work_mib, int) or work_mib < 1):
            raise ValueError(f"Local: work_mib takes a whole number of MiB, at least 1, not {work_mib!r}")
        if state is not None and "\0" in str(state):
            raise ValueError(f"Local: state can be the path of no directory: {str(state)!r:.60}")
        object.__setattr__(self, "work_mib", work_mib)
        object.__setattr__(self, "state", None if state is None else Path(state))
        object.__setattr__(self, "shared_memory", shared_memory and not as_remote)
        object.__setattr__(self, "as_remote", as_remote)

    def _why_not(self, error: OSError) -> str:
        if error.errno == errno.EMFILE:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"this program has no descriptors left ({error}): its limit is {soft}, raise it by `ulimit -n`"
        try:
            root = state_root(self.state)
        except OSError:  # report the error of the caller, not this one
            return str(error)
        another = "or name another directory, by Local(state=...) or $OUTRIDER_STATE"
        if isinstance(error, NotPrivate):
            return (
                f"{error.filename} is not used, as {error.why}: let this user alone write there (chmod 700), {another}"
            )
        return f"{root} cannot be written ({error}): make room there, {another}"

    @property
    def name(self) -> str:
        """The name of the provider."""
        return "local"

    @property
    def local(self) -> bool:
        """Return whether nodes are on this computer."""
        return True

    @property
    def free(self) -> bool:
        """Return whether machines cost nothing."""
        return True

    @property
    def keyless(self) -> bool:
        """Return whether nodes are reached without a key."""
        return not self.as_remote

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return this computer, as a node sees it.

        Raises:
            BadRequest: The request can never be met here.
            NoCapacity: This computer has less than the request needs.
        """
        from .computer import this_computer

        return [await this_computer(request, state_root(self.state))]

    def open(self, pool: str, entry_points: EntryPoints) -> AbstractAsyncContextManager[LocalFleet]:
        """Start the supervisor at once. The returned context manager has to be entered.

        After its block, the supervisor and every machine are gone.

        Raises:
            BadRequest: On entering: this is not Linux.
            JournalError: On entering: the state directory cannot be written, or other users may write there.
        """
        begun: _Begun | ProviderError
        try:
            begun = self._begin(pool, entry_points)
        except ProviderError as error:
            begun = error
        return self._opened(begun)

    def _begin(self, pool: str, entry_points: EntryPoints) -> _Begun:
        if sys.platform != "linux":
            raise BadRequest(f"local nodes need Linux (PR_SET_PDEATHSIG, memfd), and this is {sys.platform}")
        try:
            directory = PoolDirectory(self.state, pool)
            start = partial(start_supervisor, directory.path, entry_points, self.work_mib)
            try:
                return _Begun(directory, start, start())
            except OSError:
                directory.discard()
                raise
        except OSError as error:
            raise JournalError(self._why_not(error)) from error

    @asynccontextmanager
    async def _opened(self, begun: _Begun | ProviderError) -> AsyncIterator[LocalFleet]:
        if isinstance(begun, ProviderError):
            raise begun
        import anyio  # anyio is slow to import, so the supervisor is started before it

        from .fleet import LocalFleet

        fleet = LocalFleet(
            begun.directory,
            begun.supervisor,
            start=begun.start,
            shared_memory=self.shared_memory,
            as_remote=self.as_remote,
        )
        async with anyio.create_task_group() as tasks:
            fleet.start(tasks)
            try:
                yield fleet
            finally:
                with anyio.CancelScope(shield=True):
                    await fleet.close()
