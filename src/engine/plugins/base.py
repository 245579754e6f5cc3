"""The plugin protocol: what a framework needs set up around a task, said once for every function that uses it.

A plugin is an immutable, picklable object. Third parties register a factory under the entry point group
``outrider.plugins``; users then write ``plugins.<name>(...)``. In the task's process, in this order:

1. ``env(info)`` is put into the environment, before anything of the user's is imported;
2. the function and its arguments are unpickled;
3. ``session(info)`` is entered, the function runs, and the session is left: also when the function raises, and for a
   generator when it ends or is closed.

The sessions of several plugins are entered in the order in which they were given, and left in the reverse one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ...actors.ports import NodeFacts
    from ..runtime import InstanceInfo


class Plugin:
    """Base of plugins: everything has a default that does nothing."""

    name: ClassVar[str] = ""
    collective: ClassVar[bool] = False  # ranks wait for each other: a broadcast that loses one starts over
    fresh_process: ClassVar[bool] = False  # what it sets up cannot be taken down: the task's process ends with it

    def ranks_per_node(self, facts: NodeFacts) -> int:  # noqa: ARG002
        """How many copies of a broadcast function run on a node."""
        return 1

    def env(self, info: InstanceInfo) -> Mapping[str, str]:  # noqa: ARG002
        """Environment variables for this task."""
        return {}

    def session(self, info: InstanceInfo) -> AbstractContextManager[None]:  # noqa: ARG002
        """What is set up around the function, in the task's process."""
        return nullcontext()


def merged(pool: Sequence[Plugin], function: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """A pool's plugins with a function's own, which replace those of the same name."""
    own = {plugin.name for plugin in function}
    return (*(plugin for plugin in pool if plugin.name not in own), *function)
