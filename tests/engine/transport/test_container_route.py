"""A command in a container that has ended, or is paused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from outrider.actors import events as ev
from outrider.actors.interfaces import ConnectFailed
from outrider.engine.image.commands import CommandResult
from outrider.engine.transport.container_route import ContainerShell, PausedWarning
from outrider.providers.base import Address, Machine, MachineId

pytestmark = pytest.mark.anyio
NOT_RUNNING = b"Error: can only create exec sessions on running containers: container state improper\n"
MACHINE = Machine(MachineId("box"), Address(), "", ssh=False, inside=("sudo", "podman", "exec", "-i", "box"))


class Runtime:
    """Podman with one container, in this state."""

    def __init__(self, state: bytes) -> None:
        self.state = state

    def __call__(self, words: Sequence[str]) -> Any:
        return Commands(self, tuple(words))


class Commands:
    def __init__(self, runtime: Runtime, words: tuple[str, ...]) -> None:
        self.runtime, self.words = runtime, words

    async def run(
        self, argv: Sequence[str], *, stdin: object = b"", output: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        del stdin, output
        if self.words == MACHINE.inside:
            return CommandResult(255, None, b"", NOT_RUNNING)
        assert (*self.words, *argv) == ("sudo", "podman", "inspect", "--format", "{{.State.Status}}", "box")
        return CommandResult(0 if self.runtime.state else 125, None, self.runtime.state, b"no such container")


@pytest.mark.parametrize("state", [b"exited\n", b""])
async def test_command_in_an_ended_container_fails_for_good(state: bytes) -> None:
    events: list[ev.Event] = []
    with pytest.raises(ConnectFailed, match="container box is gone: Error: can only") as caught:
        await ContainerShell(Runtime(state), MACHINE, PausedWarning(events.append)).run(["true"])
    assert caught.value.fatal
    assert events == []


async def test_command_in_a_paused_container_may_be_tried_again_and_warns_once() -> None:
    events: list[ev.Event] = []
    shell = ContainerShell(Runtime(b"paused\n"), MACHINE, PausedWarning(events.append))
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError, match="container box is paused: `podman unpause box` lets it go on"):
            await shell.run(["true"])
    assert [each.text for each in events if isinstance(each, ev.ProviderWarned)] == [
        "container box is paused: `podman unpause box` lets it go on"
    ]
