"""The process on each node that runs the code of plugins there, beside the tasks. `api.plugin` describes it."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..api.compute import compute
from ..api.plugin import NodeSide, Setup

if TYPE_CHECKING:
    from ..api.plugin import Plugin

STARTING, READY = 0, 1  # kinds of messages; STARTING: the setup of a plugin begins; READY: all plugins are set up
MESSAGE = 2


@compute
def plugin_host(
    plugins: bytes, facts: dict[str, Any], inbox: Iterator[tuple[str, Any]]
) -> Iterator[tuple[int, str, Any]]:
    """Set up each plugin on this node, report the result, and forward messages. When ``inbox`` ends, undo the setup."""
    outbox: SimpleQueue[tuple[int, str, Any] | None] = SimpleQueue()
    sides: dict[str, NodeSide] = {}
    env: dict[str, str] = {}
    accelerators: tuple[tuple[str, float], ...] = tuple((kind, memory_gb) for kind, memory_gb in facts["accelerators"])
    chosen: tuple[Plugin, ...] = pickle.loads(plugins)
    with ExitStack() as stack:
        for plugin in chosen:
            yield STARTING, plugin.name, None
            side = NodeSide(
                pool=facts["pool"],
                node=facts["node"],
                hostname=facts["hostname"],
                address=facts["address"],
                accelerators=accelerators,
                directory=Path.cwd(),
                tell=lambda message, name=plugin.name: outbox.put((MESSAGE, name, message)),  # type: ignore[misc]
            )
            setup = stack.enter_context(plugin.node(side)) or Setup()
            env |= setup.env
            os.environ.update(setup.env)  # plugins that are set up later see these variables
            accelerators = accelerators if setup.accelerators is None else setup.accelerators
            sides[plugin.name] = side
        yield READY, "", (env, accelerators)
        threading.Thread(target=_listen, args=(inbox, sides, outbox), daemon=True, name="outrider-inbox").start()
        while (message := outbox.get()) is not None:
            yield message


def _listen(inbox: Iterator[tuple[str, Any]], sides: dict[str, NodeSide], outbox: SimpleQueue[Any]) -> None:
    try:
        for name, message in inbox:
            sides[name].heard(message)
    finally:
        outbox.put(None)
