"""The uv that is installed on this computer: it resolves packages here, and is sent to nodes that need it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..api.secrets import Scrubber, Secret, revealed
from .hints import bootstrap_error


class Uv(NamedTuple):
    path: Path
    version: str

    @classmethod
    def if_installed(cls) -> Uv | None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            from uv import find_uv_bin

            return cls(Path(find_uv_bin()), version("uv"))
        except (ImportError, FileNotFoundError, PackageNotFoundError):
            return None

    async def run(
        self, *arguments: str, secrets: Iterable[Secret] = (), env: Mapping[str, str] | None = None, stdin: bytes = b"",
        cwd: Path | None = None,
    ) -> str:  # fmt: skip
        """Run uv and return its stdout. Cancel-safe. A failure is a `BootstrapError` of phase "packages"."""
        running = await asyncio.create_subprocess_exec(
            str(self.path),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1", **(env or {})},
            cwd=cwd,
        )
        try:
            out, errors = await running.communicate(stdin)
        except BaseException:
            running.kill()
            await asyncio.shield(running.wait())
            raise
        if running.returncode == 0:
            return out.decode()
        scrub = Scrubber(secrets)
        command = scrub(f"uv {' '.join(arguments)}")
        raise bootstrap_error(
            "packages",
            f"on this computer, {command} ended with exit status {running.returncode}",
            command=command,
            exit_status=running.returncode,
            log=scrub(errors.decode(errors="replace")).splitlines(),
            systematic=True,
        )


def index_environment(urls: Sequence[str | Secret], folders: Sequence[Path] = ()) -> dict[str, str]:
    """Environment variables that tell uv its indexes by preference. As arguments, passwords would be visible."""
    env = {"UV_INDEX": " ".join(map(revealed, urls)), "UV_FIND_LINKS": ",".join(map(str, folders))}
    return {name: value for name, value in env.items() if value}
