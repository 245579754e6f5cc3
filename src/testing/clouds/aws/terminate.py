"""Calls that terminate, stop or start instances, and remove volumes and spot requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .call import CloudCall
from .describe import named, state, unknown_spot_request
from .protocol import Answer, EC2Error
from .state import InstanceLife


def terminate_instances(call: CloudCall) -> Answer:
    """Terminate all instances, or none if one of them is unknown."""
    return {"TerminatingInstances": _changed(call, lambda life: life.terminate())}


def stop_instances(call: CloudCall) -> Answer:
    for each in named(call, call.ask["InstanceIds"]):
        if each.market == "spot":
            why = "because it is associated with a one-time Spot Instance request."
            raise EC2Error("UnsupportedOperation", f"You can't stop the Spot Instance '{each.id}' {why}")
        if each.state not in ("running", "stopping", "stopped"):
            raise _wrong_state(each.id)
    return {"StoppingInstances": _changed(call, lambda life: life.stop())}


def start_instances(call: CloudCall) -> Answer:
    for each in named(call, call.ask["InstanceIds"]):
        if each.state not in ("running", "pending", "stopped"):
            raise _wrong_state(each.id)
    return {"StartingInstances": _changed(call, lambda life: life.start())}


def delete_volume(call: CloudCall) -> Answer:
    name = call.ask["VolumeId"]
    volume = call.region.volumes.get(name, call.ago)
    if volume is None:
        raise EC2Error("InvalidVolume.NotFound", f"The volume '{name}' does not exist.")
    if volume.instance is not None:
        raise EC2Error("VolumeInUse", f"Volume {name} is currently attached to {volume.instance}")
    call.region.volumes.put(name, None)
    return {}


def cancel_spot_instance_requests(call: CloudCall) -> Answer:
    """Cancel requests; their instances keep running."""
    cancelled: list[Answer] = []
    for name in call.ask["SpotInstanceRequestIds"]:
        request = call.region.spot_requests.get(name, call.ago)
        if request is None:
            raise unknown_spot_request(name)
        if request.state == "active":
            request = replace(request, state="cancelled", status="request-canceled-and-instance-running")
            call.region.spot_requests.put(name, request)
        cancelled.append({"SpotInstanceRequestId": name, "State": request.state})
    return {"CancelledSpotInstanceRequests": cancelled}


def _changed(call: CloudCall, change: Callable[[InstanceLife], Any]) -> list[Answer]:
    changes: list[Answer] = []
    for each in named(call, call.ask["InstanceIds"]):
        life = call.region.lives[each.id]
        before = life.instance.state
        change(life)
        after = life.instance.state
        changes.append({"InstanceId": each.id, "PreviousState": state(before), "CurrentState": state(after)})
    return changes


def _wrong_state(instance_id: str) -> EC2Error:
    words = f"The instance '{instance_id}' is not in a state from which it can be started or stopped."
    return EC2Error("IncorrectInstanceState", words)


ACTIONS = {
    "CancelSpotInstanceRequests": cancel_spot_instance_requests,
    "DeleteVolume": delete_volume,
    "StartInstances": start_instances,
    "StopInstances": stop_instances,
    "TerminateInstances": terminate_instances,
}
