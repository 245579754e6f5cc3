"""A machine in a cloud's list, in one form that serves a pool, a pool's teardown, and `outrider ps`."""

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
    """One machine in a cloud's list. ``whose``: the machine's id and labels.

    ``status``: the state in the cloud's own words. The six fields after it are those of `survey.FoundMachine`, and the
    last ones are those of `InstanceView`. ``port``: 0 if the SSH server has no port yet.
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
        """The machine as an `InstanceView`, for a pool."""
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
        """The machine as a `FoundMachine`, for `outrider ps`."""
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
    """Return the unix time of an ISO date and time (in UTC if it has no time zone); None: the text is not a date."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
