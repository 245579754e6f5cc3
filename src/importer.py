"""The process that imported Outrider. In a fork of that process, `os.getpid` returns another number than `PID`."""

from __future__ import annotations

import os

PID = os.getpid()
