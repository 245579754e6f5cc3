"""A cache that somebody else may have written to is refused before anything in it is run or touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import BootstrapError, Image
from outrider.engine.image import install_plan, outrider_archive
from outrider.engine.image.cache import client_cache

pytestmark = pytest.mark.anyio
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")


PLACES = [
    *("runtime", "runtime/0", "envs", "envs/0", "uv", "uv/0", "uv-cache", "pythons/cpython-3.99.1", "files"),
    *("volumes", "claims", "claims/volumes", "pools", "pools/0"),
]


def given_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def opened(path: Path) -> None:
    path.chmod(0o777)


def opened_to_its_group(path: Path) -> None:
    path.chmod(0o770)


ways = pytest.mark.parametrize(
    "spoil", [pytest.param(given_away, marks=as_root), opened, opened_to_its_group], ids=lambda way: way.__name__
)


def probed(cache: Path) -> install_plan.HostFacts:
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "OUTRIDER_CACHE": str(cache)}
    argv = install_plan.probe_arguments("3.99", "")
    return install_plan.parse_probe(
        subprocess.run(argv, input=install_plan.PROBE_SCRIPT, env=env, capture_output=True, check=True).stdout
    )


@ways
async def test_code_that_somebody_left_in_a_cache_is_not_run(
    tmp_path: Path, shell: Any, bring: Any, spoil: Callable[[Path], None]
) -> None:
    """The runtime's digest is the same for everybody with this version."""
    cache, ran = tmp_path / "scratch", tmp_path / "ran"
    runtime = cache / "runtime" / outrider_archive.build().digest
    runtime.mkdir(parents=True)
    (runtime / "__main__.py").write_text(f"open({str(ran)!r}, 'w')\n")
    spoil(cache)
    shell.environment["OUTRIDER_CACHE"] = str(cache)
    with pytest.raises(BootstrapError, match="cannot be trusted") as caught:
        await bring(Image(), shell)
    assert caught.value.phase == "probe"
    assert f"remove {cache} there, or set OUTRIDER_CACHE" in caught.value.hint
    assert not caught.value.systematic
    assert not ran.exists()
    assert sorted(path.name for path in cache.iterdir()) == ["runtime"]  # nor was anything written there


@ways
@pytest.mark.parametrize("place", PLACES)
def test_an_entry_of_somebody_else_is_as_bad(tmp_path: Path, place: str, spoil: Callable[[Path], None]) -> None:
    """A cache may have been open to others once, and the owner has closed it since."""
    cache = tmp_path / "cache"
    (cache / place).mkdir(mode=0o700, parents=True)
    cache.chmod(0o700)
    assert probed(cache).exposed is None
    spoil(cache / place)
    assert (probed(cache).exposed or ())[2:] == (str(cache / place),)


def test_the_probe_runs_no_python_out_of_it(tmp_path: Path) -> None:
    cache, ran = tmp_path / "cache", tmp_path / "ran"
    python = cache / "pythons" / "cpython-3.99.1" / "bin" / "python3.99"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n: >{ran}\necho 3.99.1 cpython {python}\n")
    python.chmod(0o755)
    assert [each.path for each in probed(cache).pythons if each.minor == "3.99"] == [str(python)]
    ran.unlink()
    opened(cache)
    assert probed(cache).pythons == ()
    assert not ran.exists()


@as_root
def test_a_link_of_somebody_else_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads to a folder of the user's own today, and elsewhere tomorrow."""
    (tmp_path / "own").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("own")
    assert probed(link).exposed is None
    os.lchown(link, NOBODY, NOBODY)
    assert (probed(link).exposed or ())[:1] == (str(NOBODY),)
    monkeypatch.setenv("OUTRIDER_CACHE", str(link))
    with pytest.raises(BootstrapError, match="belongs to another user"):
        client_cache()


@ways
def test_this_computers_own_cache_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    """What comes out of it, uv and wheels, is run on every node."""
    cache = tmp_path / "made" / "cache"
    monkeypatch.setenv("OUTRIDER_CACHE", str(cache))
    assert client_cache() == cache
    assert cache.stat().st_mode & 0o777 == cache.parent.stat().st_mode & 0o777 == 0o700
    spoil(cache)
    with pytest.raises(BootstrapError, match=r"cannot be used: .*believed and run") as caught:
        client_cache()
    assert f"remove {cache}, or set OUTRIDER_CACHE" in caught.value.hint


async def test_open_umask_does_not_open_the_cache(shell: Any, bring: Any, make_wheel: Any, wheels: Path) -> None:
    """What a pool leaves in the cache is fit for the next one: nobody else may write there."""
    make_wheel("left")
    image = Image(pip=["left"], pip_indexes=[str(wheels)])
    before = os.umask(0o000)
    try:
        node = await bring(image, shell)
        node.greet()
        assert node.run(lambda: (os.umask(0), __import__("left").VERSION)) == (0, "1.0")  # tasks have the login's
        await bring(image, shell)
    finally:
        os.umask(before)
    assert bring.done == ["probe", "executor"]
    there = [path for kind in ("runtime", "envs", "uv", "pools") for path in (shell.cache / kind).glob("*")]
    assert {path.stat().st_mode & 0o077 for path in there if path.is_dir()} == {0}  # whatever is made below them
