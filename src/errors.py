"""Every error that a user can catch: `from outrider.errors import NodeLost`. It is `engine.api.errors` itself."""

from __future__ import annotations

import sys

from .engine.api import errors
from .engine.api.errors import *  # noqa: F403 - for type checkers

sys.modules[__name__] = errors  # one module under two names: its classes and its functions are there once
