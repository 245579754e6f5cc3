"""Every kind of life, by name."""

from __future__ import annotations

from collections.abc import Mapping

from ..life import Kind
from . import answers, ends, machines, owners

KINDS: Mapping[str, Kind] = {kind.name: kind for module in (answers, ends, machines, owners) for kind in module.KINDS}
