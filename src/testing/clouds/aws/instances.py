"""An instance, its volumes and its spot request: their states at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ....lazy_dataclass import dataclass
from .faults import Market

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
ENDED = ("shutting-down", "terminated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance. ``launched``: in seconds of the cloud's clock; ``reason``: StateReason's code and message."""

    id: str
    reservation: str
    region: str
    zone: str
    subnet: str
    vpc: str
    type: str
    vcpus: int
    architecture: str
    market: Market
    hourly_usd: float
    image: str
    private_ip: str
    public_ip: str | None
    launched: float
    state: str = "pending"
    reason: tuple[str, str] | None = None
    transition: str = ""
    groups: tuple[tuple[str, str], ...] = ()  # (id, name)
    tags: Mapping[str, str] = field(default_factory=dict)
    user_data: str = ""  # in base64, as in the request
    key_name: str | None = None
    public_key: str = ""
    on_shutdown: str = "stop"  # "stop" or "terminate": the effect when the machine shuts itself down
    placement_group: str | None = None
    profile: str | None = None
    volumes: tuple[tuple[str, str], ...] = ()  # (device, volume id)
    root_device: str = "/dev/sda1"
    spot_request: str | None = None
    token: str = ""
    index: int = 0
    metadata_options: Mapping[str, Any] = field(default_factory=dict)
    efa: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    id: str
    instance: str | None  # None: the volume is detached, and still costs money
    device: str
    zone: str
    size_gb: int
    kind: str
    encrypted: bool
    delete_with_instance: bool
    created: float
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRequest:
    """The one-time spot request of an instance."""

    id: str
    instance: str
    type: str
    zone: str
    state: str  # active, closed, cancelled
    status: str
    created: float
    tags: Mapping[str, str]
