"""A test cloud's machines are hosts of a lab: booted with user data, ended from outside or by themselves."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from netlab import Host, Lab, LabError
from netlab.commands import ip, run

from outrider.testing.clouds.shared.hypervisor import Boot

from .imds import Metadata, MetadataService

USER = "ubuntu"  # of Ubuntu's machine images; it may use sudo without a password
HERE = Path(__file__).parent
CLOUD_INIT = "/usr/lib/outrider-lab/cloudinit.py"
Mishap = Literal["deaf", "impostor"]
PYTORCH = "/opt/pytorch/bin/python"  # of AWS's images with PyTorch: here this very Python, with its packages
POWER = ("/usr/sbin/poweroff", "/usr/sbin/halt", "/usr/sbin/shutdown", "/usr/bin/systemctl")


class LabHypervisor:
    """Implements `outrider.testing.clouds.shared.hypervisor.Hypervisor`. Several threads may call it at once."""

    def __init__(self, lab: Lab, *, user: str = USER) -> None:
        """``user``: the default one of every machine image."""
        self._lab, self._user = lab, user
        self._image: Path | None = None
        self._service = MetadataService()
        self._powered: dict[str, _Powered] = {}
        self._watching: list[threading.Thread] = []
        self._programs = _programs()
        self._mishaps: deque[Mishap] = deque()
        self._lock = threading.Lock()

    # --- what a test does -----------------------------------------------------------------------------------------

    @property
    def hosts(self) -> dict[str, Host]:
        """Those with power, by instance id, in the order in which they booted."""
        with self._lock:
            return {instance: powered.host for instance, powered in self._powered.items()}

    def host(self, instance_id: str) -> Host:
        """
        Raises:
            KeyError: it has no power.
        """
        return self.hosts[instance_id]

    def booted(self, instance_id: str) -> Boot:
        """What it was given at its launch.

        Raises:
            KeyError: it has no power.
        """
        with self._lock:
            return self._powered[instance_id].boot

    def next_suffers(self, *mishaps: Mishap) -> None:
        """One each of the machines that boot next. All else, the lease too, works on them.

        "deaf": nobody answers at its port 22. "impostor": who answers has not the host key that it was given.
        """
        with self._lock:
            self._mishaps.extend(mishaps)

    def bake(self, instance_id: str, *paths: str) -> None:
        """Machines that boot from now on have these files of this one in their image. Globs, below ``/home``.

        Raises:
            KeyError: it has no power.
        """
        self._image = self._lab.image(self.host(instance_id), *paths)

    def close(self) -> None:
        """No machine has power when this returns. Safe to repeat."""
        for instance in self.hosts:
            self.power_off(instance)
        for thread in self._watching:
            thread.join()
        self._service.end()

    # --- what the cloud does --------------------------------------------------------------------------------------

    def boot(self, machine: Boot) -> None:
        with self._lock:
            mishaps: list[Mishap] = [self._mishaps.popleft()] if self._mishaps else []
        name = f"ip-{machine.private_ip.replace('.', '-')}"
        host = self._lab.create(
            name, address=machine.private_ip, sshd=None, authorized=(), programs=self._programs, image=self._image
        )
        powered = _Powered(host, host.pid, _metadata(machine), machine)
        try:
            self._connect(powered)
            pidfd = os.pidfd_open(powered.pid)
            self._start(powered, mishaps)
        except BaseException:
            self._end(powered)
            raise
        with self._lock:
            self._powered[machine.instance_id] = powered
            watching = threading.Thread(target=self._watch, args=(powered, pidfd), daemon=True)
            self._watching.append(watching)
        watching.start()

    def power_off(self, instance_id: str) -> None:
        with self._lock:
            powered = self._powered.pop(instance_id, None)
        if powered is not None:
            self._end(powered)

    def metadata(self, instance_id: str, path: str, value: str | None) -> None:
        with self._lock:
            powered = self._powered.get(instance_id)
        if powered is not None:
            powered.metadata.put(path, value)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _start(self, powered: _Powered, mishaps: Sequence[Mishap]) -> None:
        """Have it do what a machine of this cloud does first."""
        powered.host.start("python3", "-IS", CLOUD_INIT, self._user, *mishaps)

    def _connect(self, powered: _Powered) -> None:
        """Metadata inside it; and what is sent to its public address arrives, as by a cloud's address translation."""
        self._service.open(powered.pid, powered.metadata)
        boot = powered.boot
        if boot.public_ip:
            ip(f"addr add {boot.public_ip}/32 dev lo", inside=powered.pid)
            ip(f"route replace {self._route(boot)}")

    def _route(self, boot: Boot) -> str:
        return f"{boot.public_ip}/32 via {boot.private_ip} dev {self._lab.network.bridge}"

    def _watch(self, powered: _Powered, pidfd: int) -> None:
        """Returns when it has ended: by us, or by itself."""
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        ended.poll()
        os.close(pidfd)
        with self._lock:
            alone = self._powered.pop(powered.boot.instance_id, None) is not None
        if alone:
            self._end(powered)
            powered.boot.on_poweroff()

    def _end(self, powered: _Powered) -> None:
        """Its disk is gone too. Whoever still sends to its address hears nothing, as in a cloud."""
        powered.host.power_off(silent=True)
        self._service.close(powered.pid)
        powered.host.destroy()
        if powered.boot.public_ip:
            run(["ip", "route", "del", *self._route(powered.boot).split()], check=False)
        self._lab.network.remember(powered.boot.private_ip)


class _Powered(NamedTuple):
    host: Host
    pid: int  # of its first process
    metadata: Metadata
    boot: Boot


def _metadata(boot: Boot) -> Metadata:
    return Metadata(boot.metadata, boot.user_data, tokens_required=boot.tokens_required)


def _programs() -> dict[str, bytes]:
    """What a machine image has and this machine's root has not, or not so that it ends the host alone."""
    if shutil.which("sudo") is None:
        raise LabError("no sudo (Debian package sudo): the machines' user is to have it")
    power = (HERE / "power.sh").read_bytes()
    python = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'.encode()
    return {**dict.fromkeys(POWER, power), CLOUD_INIT: (HERE / "cloudinit.py").read_bytes(), PYTORCH: python}
