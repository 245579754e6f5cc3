"""A secret that an image is given is in no argv, no file, no log, no event; and in nobody else's environment."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outrider import BootstrapError, Image, Secret
from outrider.engine.image.cache import client_cache

pytestmark = pytest.mark.anyio

TOKEN = "qx81-token-5f1d"
PASSWORD = "qx81/pass word"
WRITTEN = "qx81%2Fpass%20word"
CANARIES = (b"qx81-token", b"qx81/pass", b"qx81%2Fpass")

LOOK = """
import json, os, pathlib
found = []
for process in pathlib.Path("/proc").iterdir():
    for name in ("cmdline", "environ"):
        try:
            data = (process / name).read_bytes()
            uid = process.stat().st_uid
        except (OSError, ValueError):
            continue
        if process.name.isdigit() and b"qx81" in data and (name == "cmdline" or uid != os.getuid()):
            found.append([name, uid, data.decode(errors="replace")[:200]])
print("LOOKED", json.dumps(found), os.environ["TOKEN"])
"""


def argvs_with_a_canary() -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            data = (process / "cmdline").read_bytes() if process.name.isdigit() else b""
        except OSError:
            continue
        if b"qx81" in data:
            found.append(data.decode(errors="replace"))
    return found


def files_with_a_canary(*folders: Path) -> list[str]:
    found = []
    for folder in folders:
        for parent, _, names in os.walk(folder):  # a node that lives makes and removes files and folders meanwhile
            for path in (Path(parent, name) for name in names):
                with suppress(FileNotFoundError):
                    if path.is_file() and not path.is_symlink():
                        data = path.read_bytes()
                        found += [str(path)] if any(canary in data for canary in CANARIES) else []
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "look.py").write_text(LOOK)
    return folder


@pytest.fixture
def index(make_wheel: Any, serve: Any) -> Any:
    """One that wants a password, with a package in it."""
    make_wheel("private")
    return serve(password=PASSWORD)


def image(index: Any, project: Path, **changes: Any) -> Image:
    options: dict[str, Any] = {
        "pip": ["private"],
        "pip_indexes": [Secret(f"http://me:{WRITTEN}@127.0.0.1:{index.server_port}/simple")],
        "env": {"TOKEN": Secret(TOKEN)},
        "includes": [project],
        "run": ["python project/look.py", 'echo "$TOKEN" >&2'],
    }
    return Image(**{**options, **changes})


@pytest.mark.parametrize("offline", [False, True])
async def test_a_canary_is_found_nowhere(offline: bool, shell: Any, bring: Any, index: Any, project: Path) -> None:
    seen: list[str] = []
    index.seen = lambda: seen.extend(argvs_with_a_canary())  # while uv waits for its answer
    node = await bring(image(index, project, offline=offline), shell)

    looked = next(line for line in bring.lines if line.startswith("LOOKED"))
    assert looked == "LOOKED [] ****"  # it ran with the secret, and found it nowhere else
    assert "****" in bring.lines
    told = json.dumps([phase._asdict() for phase in bring.phases])
    assert not [canary for canary in CANARIES if canary.decode() in told]
    assert index.asked
    assert seen == []
    assert argvs_with_a_canary() == []

    node.greet(TOKEN=TOKEN)
    assert node.run(lambda: os.environ["TOKEN"]) == TOKEN
    assert files_with_a_canary(shell.home, client_cache()) == []
    node.stop()
    assert files_with_a_canary(shell.home, client_cache()) == []


@pytest.mark.parametrize("changes", [{"pip": ["private", "missing"]}, {"run": ['echo "$TOKEN"; exit 1']}])
async def test_a_canary_is_in_no_error(
    changes: dict[str, Any], shell: Any, bring: Any, index: Any, project: Path
) -> None:
    shell.environment["UV_DEFAULT_INDEX"] = f"http://127.0.0.1:{index.server_port}/simple"
    with pytest.raises(BootstrapError) as caught:
        await bring(image(index, project, offline=False, **changes), shell)
    error = caught.value
    output = f"{error!s} {error!r} {error.log} {error.command} {error.hint} {error.__cause__!r}"
    assert not [canary for canary in CANARIES if canary.decode() in output]
    assert files_with_a_canary(shell.home) == []


async def test_requirements_get_their_variables_without_a_file(
    shell: Any, bring: Any, index: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.password = TOKEN
    monkeypatch.setenv("INDEX_TOKEN", TOKEN)
    wheel = f"http://me:${{INDEX_TOKEN}}@127.0.0.1:{index.server_port}/files/private-1.0-py3-none-any.whl"
    (project / "requirements.txt").write_text(f"private @ {wheel}\n")
    shell.environment["UV_DEFAULT_INDEX"] = f"http://127.0.0.1:{index.server_port}/simple"
    node = await bring(Image(requirements=project / "requirements.txt", offline=False), shell)
    node.greet()
    assert node.run(lambda: __import__("private").VERSION) == "1.0"
    assert files_with_a_canary(shell.home) == []
