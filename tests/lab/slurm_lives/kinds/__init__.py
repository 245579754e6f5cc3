"""Every kind of life, by name."""

from __future__ import annotations

from collections.abc import Mapping

from ..life import Kind
from . import answers, losses, owners, waits

KINDS: Mapping[str, Kind] = {kind.name: kind for module in (losses, answers, owners, waits) for kind in module.KINDS}
