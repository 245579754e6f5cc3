"""The former names of the modules of `record/runs` that the guide on metrics gave to users: they still work."""

from __future__ import annotations

import sys

from .record.runs import metrics, names, tensorboard

sys.modules |= {f"{__name__}.{module.__name__.rpartition('.')[2]}": module for module in (metrics, names, tensorboard)}
