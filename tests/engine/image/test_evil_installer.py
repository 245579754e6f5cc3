"""An installer may say anything: it costs that host, and the error says what it said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any

import pytest

from outrider import Image
from outrider.engine.api.errors import BootstrapError
from outrider.engine.image.commands import CommandResult

pytestmark = pytest.mark.anyio


class EvilHost:
    """Implements `CommandRunner`. The probe finds this computer; its installer says ``frames``, whatever it is sent."""

    def __init__(self, host: Any, frames: Sequence[object]) -> None:
        self._host, self._frames = host, frames

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        if argv[-1] != "install":
            return await self._host.run(argv, stdin=stdin, output=output)  # type: ignore[no-any-return]
        assert output is not None
        assert not isinstance(stdin, bytes)
        for frame in ({"is": "hello"}, *self._frames):
            output(json.dumps(frame, separators=(",", ":")).encode() + b"\n")
        async for _ in stdin:
            pass
        return CommandResult(0, None, b"", b"")


FAILED = {"phase": [], "reason": 17, "command": {}, "exit_status": "1", "log": [None], "hint": 0, "timed_out": 0}


async def test_failure_of_wrong_types_is_an_error_of_that_host(shell: Any, bring: Any) -> None:
    with pytest.raises(BootstrapError, match="phase \\[\\]: 17"):
        await bring(Image(), EvilHost(shell, [{"is": "failed", **FAILED}]))


@pytest.mark.parametrize(
    ("frame", "output"),
    [
        ({"is": "need", "wheels": True}, "it asks for packages, and the image has none"),
        ({"is": "need", "files": ["no digest"]}, "a file that the image does not have: 'no digest'"),
        ({"is": "need", "files": [17]}, "files by what is no text"),
        ({"is": "need", "files": 17}, "not iterable"),
        ({"is": "result"}, "'socket'"),
        ({"is": "failed", "phase": "run"}, "'exit_status'"),
        ({"is": "phase"}, "'name'"),
        ({"is": "phase", "name": "run", "state": "line", "text": "", "seconds": "soon"}, "'soon'"),
        ({"is": "failed", **FAILED, "log": 17}, "not iterable"),
    ],
)
async def test_protocol_violation_is_an_error_of_that_host(shell: Any, bring: Any, frame: object, output: str) -> None:
    with pytest.raises(BootstrapError, match="the installer broke its protocol") as caught:
        await bring(Image(), EvilHost(shell, [frame]))
    assert output in str(caught.value)
