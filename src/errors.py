"""The errors that a user can catch, as in `from outrider.errors import NodeLost`. An alias of `engine.api.errors`."""

from __future__ import annotations

import sys

from .engine.api import errors
from .engine.api.errors import *  # noqa: F403 - for type checkers

sys.modules[__name__] = errors  # both names are the same module object, so that each error class exists only once
