"""Every error that a user can catch: `from outrider.errors import NodeLost`. An alias of `engine.api.errors`."""

from __future__ import annotations

import sys

from .engine.api import errors
from .engine.api.errors import *  # noqa: F403 - for type checkers

sys.modules[__name__] = errors  # the same module object under two names, so that each class exists only once
