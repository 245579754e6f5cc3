"""The reasons why nodes have not become ready. They are kept until nodes are ready, and added to the error of a failed
pool.
"""

from __future__ import annotations

from ..providers.errors import NoCapacity
from . import events as ev
from .broadcasts import Broadcasts
from .events import Observe
from .fleet_controller import FleetController
from .interfaces import ConnectFailed
from .late_nodes import LateNodes
from .membership import Member, Roster


class LaunchFailures:
    """The reasons why nodes have not become ready. `Broadcasts` reports the last of them if a lost node is not
    replaced.
    """

    def __init__(
        self,
        controller: FleetController,
        roster: Roster,
        broadcasts: Broadcasts,
        observe: Observe,
        *,
        boot_timeout_s: float,
    ) -> None:
        self._controller = controller
        self._roster = roster
        self._broadcasts = broadcasts
        self._observe = observe
        self._boot_timeout_s = boot_timeout_s
        self._late = LateNodes()
        self._unusable: list[ConnectFailed] = []
        self._refused: ConnectFailed | None = None  # the last error in `_unusable`; None: a node has become ready since
        self._last: Exception | None = None

    @property
    def hopeless(self) -> Exception | None:
        """Return the error because of which no further node will become ready; None: further nodes may become ready."""
        error = self._controller.final_error
        if error is None or self._controller.coming:
            return None
        if not isinstance(error, NoCapacity) or not self._unusable:
            return self._with_late(error)
        first, *others = self._unusable  # the provider had enough machines, but these machines could not be used
        return self._with_late(first, *(f"Also: {other}" for other in others))

    @property
    def last(self) -> Exception | None:
        """Return the last reason why a node did not become ready."""
        return None if self._last is None else self._with_late(self._last)

    def launch(self, error: Exception, retry_in_s: float | None) -> None:
        """Handle that a launch returned too few machines, or a node failed. ``retry_in_s``: seconds until the next try;
        None: no try follows.
        """
        if isinstance(error, NoCapacity) and error.__cause__ is None:
            # the provider may have had machines, but none was usable: attach the error of the last one
            error.__cause__ = self._refused
        self._last = error
        self._broadcasts.failure = error
        self._observe(ev.LaunchFailed(str(error), self._controller.failures, retry_in_s))

    def unreached(self, member: Member, error: ConnectFailed) -> None:
        """Handle that a node never became ready."""
        if error.late:
            self._late.add(error.late)
        # a host that the user names (it has ``patience_s``) also counts as unusable if it was only late
        if error.futile or (error.late and member.machine.patience_s is not None):
            self._unusable.append(error)
            self._refused = error

    def ready(self) -> None:
        """Handle that a node has become ready."""
        self._broadcasts.failure = self._refused = None

    def _with_late(self, error: Exception, *notes: str) -> Exception:
        """Add notes to the error with which a pool fails, among them the states of the nodes that were late."""
        ready, wanted = len(self._roster), self._controller.wanted
        late = self._late.describe(wanted=wanted, ready=ready, within_s=self._boot_timeout_s)
        if notes or late:
            error.__notes__ = [*notes, *filter(None, [late])]
        return error
