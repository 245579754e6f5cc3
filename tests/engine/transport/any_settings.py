"""What a connection is given where a test cares for none of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import asyncssh

from outrider.engine.image.install_plan import Prepared
from outrider.engine.transport.connection_settings import ConnectionSettings
from outrider.engine.transport.instance_views import InstanceViews
from outrider.engine.transport.plugin_hosts import PluginHosts
from outrider.engine.transport.requirement_check import Wanted
from outrider.engine.transport.task_output import PrintedLines, TaskLogs


def settings(image: Callable[[], Awaitable[Prepared]] | None = None) -> ConnectionSettings:
    return ConnectionSettings(
        pool="p",
        views=InstanceViews("p", 1),
        key=asyncssh.generate_private_key("ssh-ed25519"),
        setup={},
        wanted=lambda _: Wanted(),
        lease_s=60.0,
        image=image or Mock(),
        observe=lambda _: None,
        prints=PrintedLines(lambda _: None),
        logs=TaskLogs(lambda: None),
        plugins=PluginHosts("p", (), lambda: None),
    )
