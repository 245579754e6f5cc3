"""The life cycle of an instance: it boots, runs, and is ended by the user, by itself or by the cloud."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..shared.hypervisor import Boot
from .faults import NoBoot
from .instances import ENDED, Instance
from .state import Region

USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
ITSELF = ("Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
SPOT = ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")
INTERNAL = ("Server.InternalError", "Server.InternalError: Internal error on launch")
REBALANCE, ACTION, TERMINATION = "events/recommendations/rebalance", "spot/instance-action", "spot/termination-time"


class Lifecycle:
    """One instance's life since its launch. State changes hold the cloud's lock; booting does not."""

    def __init__(self, region: Region, instance_id: str) -> None:
        self._region, self._state, self._id = region, region.state, instance_id
        self._power = "off"  # power of the machine: "off", "booting", "on" or "going" (being switched off)
        # Number of the last notice; a withdrawal increases it, so that the withdrawn notice has no effect.
        self._notices = 0

    @property
    def instance(self) -> Instance:
        instance = self._region.instances.get(self._id)
        assert instance is not None, f"{self._id} was put before its life began"
        return instance

    def begin(self) -> None:
        """Boot the instance, which is pending."""
        self._state.clock.after(self._state.behaviour.boot_s, partial(self._state.spawn, self._boot))

    def stop(self) -> None:
        with self._state.lock:
            if self.instance.state == "running":
                self._end(USER, self._user_initiated(), "stopping")

    def start(self) -> None:
        with self._state.lock:
            if self.instance.state == "stopped":
                self._put(state="pending", reason=None, transition="", launched=self._state.clock.now())
                self.begin()

    def terminate(self) -> None:
        with self._state.lock:
            if self.instance.state not in ENDED:
                self._end(USER, self._user_initiated())

    def switched_itself_off(self) -> None:
        with self._state.lock:
            if self.instance.state in ("pending", "running"):
                for_good = self.instance.on_shutdown == "terminate" or self.instance.market == "spot"
                self._end(ITSELF, "", "shutting-down" if for_good else "stopping")

    def interrupt(self, notice_s: float, rebalance_s: float | None) -> None:
        """Send the rebalance recommendation, the notice ``rebalance_s`` later, and end the instance ``notice_s`` after
        that.
        """
        with self._state.lock:
            self._notices += 1
            noticed = partial(self._notice, self._notices, notice_s)
            if rebalance_s is None:
                noticed()
            else:
                notice = json.dumps({"noticeTime": self._time(0.0)})
                self._state.hypervisor.metadata(self._id, REBALANCE, notice)
                self._state.clock.after(rebalance_s, noticed)

    def withdraw(self) -> None:
        with self._state.lock:
            self._notices += 1
            for path in (REBALANCE, ACTION, TERMINATION):
                self._state.hypervisor.metadata(self._id, path, None)

    def unplug(self) -> None:
        """Power the machine off when the test cloud closes."""
        if self._power == "on":
            self._unplug()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _notice(self, notice: int, notice_s: float) -> None:
        with self._state.lock:
            if notice != self._notices or self.instance.state in ENDED:
                return
            at = self._time(notice_s)
            self._state.hypervisor.metadata(self._id, ACTION, json.dumps({"action": "terminate", "time": at}))
            self._state.hypervisor.metadata(self._id, TERMINATION, at)
            self._spot("active", "marked-for-termination")
            self._state.clock.after(notice_s, partial(self._take, notice))

    def _take(self, notice: int) -> None:
        with self._state.lock:
            if notice == self._notices and self.instance.state not in ENDED:
                self._end(SPOT, SPOT[0], spot_status="instance-terminated-no-capacity")

    def _boot(self) -> None:
        with self._state.lock:
            if self.instance.state != "pending":
                return
            if self._refused():
                self._end(INTERNAL, INTERNAL[0])
                return
            self._power = "booting"
        error: Exception | None = None
        try:
            self._state.hypervisor.boot(_described(self.instance, self.switched_itself_off))
        except Exception as failed:  # noqa: BLE001 - the hypervisor is the user's: its failure ends the machine
            error = failed
        with self._state.lock:
            self._power = "on"
            if error is not None:
                self._state.failures.append(error)
            if self.instance.state != "pending":  # the instance has been ended in the meantime
                self._unplug_later()
            elif error is not None:
                self._end(INTERNAL, INTERNAL[0])
            else:
                self._put(state="running")

    def _refused(self) -> bool:
        for fault in self._state.faults.of(NoBoot):
            if fault.type in (None, self.instance.type) and fault.zone in (None, self.instance.zone):
                return self._state.faults.happens(fault)
        return False

    def _end(
        self,
        reason: tuple[str, str],
        transition: str,
        state: str = "shutting-down",
        spot_status: str = "instance-terminated-by-user",
    ) -> None:
        was_off = self._power == "off" and self.instance.state in ("stopped", "pending")
        self._put(state=state, reason=reason, transition=transition)
        if state == "shutting-down":
            self._spot("closed", spot_status)
        if was_off:
            self._state.clock.after(self._state.behaviour.stop_s, self._ended)
        elif self._power == "on":  # a booting machine is powered off after its boot
            self._unplug_later()

    def _unplug_later(self) -> None:
        self._power = "going"
        self._state.spawn(self._unplug)

    def _unplug(self) -> None:
        try:
            self._state.hypervisor.power_off(self._id)
        except Exception as failed:  # noqa: BLE001 - as in _boot
            self._state.failures.append(failed)
        with self._state.lock:
            self._power = "off"
            self._state.clock.after(self._state.behaviour.stop_s, self._ended)

    def _ended(self) -> None:
        with self._state.lock:
            if self.instance.state == "stopping":
                self._put(state="stopped", public_ip=None)
            elif self.instance.state == "shutting-down":
                self._put(state="terminated", public_ip=None)
                self._state.ledger.close(self._id)
                self._release_volumes()
                self._state.clock.after(self._state.behaviour.remembered_s, self._forget)

    def _release_volumes(self) -> None:
        for _, name in self.instance.volumes:
            volume = self._region.volumes.get(name)
            if volume is not None:
                self._region.volumes.put(name, None if volume.delete_with_instance else replace(volume, instance=None))

    def _forget(self) -> None:
        with self._state.lock:
            self._region.instances.put(self._id, None)

    def _put(self, **changes: Any) -> None:
        self._region.instances.put(self._id, replace(self.instance, **changes))

    def _spot(self, state: str, status: str) -> None:
        name = self.instance.spot_request
        request = self._region.spot_requests.get(name) if name else None
        if name and request is not None:
            self._region.spot_requests.put(name, replace(request, state=state, status=status))

    def _user_initiated(self) -> str:
        return f"User initiated ({self._state.clock.date():%Y-%m-%d %H:%M:%S} GMT)"

    def _time(self, after_s: float) -> str:
        return f"{self._state.clock.date(self._state.clock.now() + after_s):%Y-%m-%dT%H:%M:%SZ}"


def _described(instance: Instance, on_poweroff: Callable[[], None]) -> Boot:
    name = f"ip-{instance.private_ip.replace('.', '-')}.ec2.internal"
    served = {
        "ami-id": instance.image,
        "ami-launch-index": str(instance.index),
        "hostname": name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.market,
        "instance-type": instance.type,
        "local-hostname": name,
        "local-ipv4": instance.private_ip,
        "placement/availability-zone": instance.zone,
        "placement/region": instance.region,
        "reservation-id": instance.reservation,
        "security-groups": "\n".join(name for _, name in instance.groups),
    }
    if instance.public_ip:
        served["public-ipv4"] = instance.public_ip
    if instance.public_key:
        served["public-keys/0/openssh-key"] = instance.public_key
    if instance.metadata_options.get("InstanceMetadataTags") == "enabled":
        served |= {f"tags/instance/{key}": value for key, value in instance.tags.items()}
    return Boot(
        instance_id=instance.id,
        private_ip=instance.private_ip,
        public_ip=instance.public_ip,
        zone=instance.zone,
        type=instance.type,
        user_data=base64.b64decode(instance.user_data).decode("utf-8", "surrogateescape"),
        metadata=served,
        on_poweroff=on_poweroff,
        tokens_required=instance.metadata_options.get("HttpTokens") == "required",
        hop_limit=instance.metadata_options.get("HttpPutResponseHopLimit", 1),
    )
