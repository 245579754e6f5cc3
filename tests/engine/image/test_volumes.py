"""What a node needs for its volumes, and what is said where it does not have it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider import Secret, Volume
from outrider.engine.api.image import Image
from outrider.engine.image.install_plan import HostFacts, install_plan, prepare
from outrider.engine.image.installer import system
from outrider.engine.image.installer.installation import Failed, Installation

HOST = HostFacts("Linux", "x86_64", "glibc 2.36", 0, "/cache", "", None, None, frozenset(), ())


class Machine:
    """This one, with other tools and another user."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tools = {"rclone", "fusermount3", "apt-get", "sudo"}
        self.installed: list[str] = []
        self.uid = 1000
        self.is_fuse_ours = True
        monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}" if name in self.tools else None)
        monkeypatch.setattr(system.os, "geteuid", lambda: self.uid)
        monkeypatch.setattr(system.os, "access", lambda *_: self.is_fuse_ours)
        monkeypatch.setattr(system, "install_packages", self._install)

    def _install(self, _: Installation, packages: Sequence[str]) -> None:
        self.installed += packages


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Machine(monkeypatch)


@pytest.fixture
def installation() -> Any:
    out = os.open(os.devnull, os.O_WRONLY)
    yield Installation(out)
    os.close(out)


def test_below_home_a_user_needs_nobody(machine: Machine, tmp_path: Path) -> None:
    home = str(tmp_path)
    assert system._user_can_mount([f"{home}/data", f"{home}/more"])
    assert not system._user_can_mount([f"{home}/data", "/data"])
    assert not system._user_can_mount([f"{home}-other/data"])
    (tmp_path / "out").symlink_to("/mnt")
    assert not system._user_can_mount([f"{home}/out/data"])
    machine.is_fuse_ours = False
    assert not system._user_can_mount([f"{home}/data"])


def test_missing_packages_are_installed_or_named(machine: Machine, installation: Installation) -> None:
    system._install_volume_programs(installation)
    assert machine.installed == []
    machine.tools -= {"fusermount3"}
    system._install_volume_programs(installation)
    assert machine.installed == ["fuse3"]
    machine.tools -= {"rclone", "apt-get"}
    with pytest.raises(Failed, match="no rclone and no fuse3, and no apt") as caught:
        system._install_volume_programs(installation)
    assert "Debian or Ubuntu" in caught.value.hint


def test_host_without_fuse_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat
    monkeypatch.setattr(system.os, "stat", lambda path: real(os.devnull if path == "/dev/fuse" else path))
    with pytest.raises(Failed, match="no /dev/fuse"):
        system._check_host()


@pytest.mark.anyio
async def test_plan_has_volumes_and_hides_credentials() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": Secret("canary-77aa")}
    volume = Volume("s3://my-bucket/x", mount="/data", credentials=keys)
    prepared = await prepare(Image(), [volume])
    plan = install_plan(prepared, HOST, None)
    assert plan["volumes"] == [volume.order()]
    assert "canary-77aa" in plan["secrets"]
    assert "canary-77aa" not in repr(prepared.volumes)
