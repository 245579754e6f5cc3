"""A machine as a cloud lists it, read once for all who ask: a pool, what ends one, and `outrider ps`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from datetime import UTC, datetime

from ...lazy_dataclass import dataclass
from ..base import MachineId
from ..resource_ownership import Thing
from ..survey import FoundMachine
from .instance_inventory import SSH_PORT, InstanceView, State


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """One entry of a cloud's list. ``whose``: its id, and what its labels say.

    ``status``: its state in the cloud's own words. `survey.FoundMachine` has the next six, `InstanceView` the rest.
    ``port``: 0 where the SSH server has none yet.
    """

    whose: Thing
    state: State
    _: KW_ONLY
    status: str
    kind: str
    zone: str
    market: str = "on-demand"
    launched_at: float | None = None
    hourly_usd: float | None = None
    until: float | None = None
    public: str = ""
    private: str = ""
    port: int = SSH_PORT
    reason: str = ""
    message: str = ""

    @property
    def id(self) -> MachineId:
        return MachineId(self.whose.id)

    @property
    def view(self) -> InstanceView:
        """The machine as its pool sees it."""
        return InstanceView(
            self.id,
            self.state,
            public=self.public,
            private=self.private,
            reason=self.reason,
            message=self.message,
            launch=self.whose.launch,
            port=self.port,
        )

    @property
    def summary(self) -> FoundMachine:
        """The machine as `outrider ps` shows it."""
        address = self.public or self.private
        return FoundMachine(
            self.id,
            self.kind,
            self.market,
            self.zone,
            self.status,
            self.launched_at or 0.0,
            address if not address or self.port in (0, SSH_PORT) else f"{address}:{self.port}",
            self.hourly_usd,
            self.until,
            pool=self.whose.pool,
            owner=self.whose.owner,
            launch=self.whose.launch,
        )


def time_of(text: object) -> float | None:
    """The unix time of a cloud's text in ISO's format, of UTC if it says no zone; None: it is none."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
